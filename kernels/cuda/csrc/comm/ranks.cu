// What the ranks of a group exchange by writing to each other: each rank writes its part straight into the memory of
// all others, over NVLink or PCIe, and reads theirs from its own. One crossing, no barrier between ranks: a word that
// is not there yet is 0, which no word on its way is, and the reader of a word makes it 0 again (the idea of
// TensorRT-LLM's "Lamport" kernels, whose word for "not yet" is -0.0).
//
// A block talks to the block of the same number on other ranks. What it exchanges goes in chunks, each with a number
// that both count in device memory, so nothing that the host passes changes from call to call, and a CUDA graph may
// hold the launch. In a message of several chunks one half of the threads sends a chunk while the other half takes the
// one before it.
//
// Four slots take turns. Why that is enough, for chunk k to be written where chunk k - 4 was: its sender has taken all
// of chunk k - 2 in this launch, or finished the launch before. Either way it has words of the peer's chunk k - 2 (or a
// later one), which the peer sent after it had emptied chunk k - 4, or after a launch that had.
#include "quire.cuh"

#define MOST_RANKS 8
#define PACKET_WORDS 4
#define SLOTS 4
// Packets that a thread has on their way at once.
#define BATCH 4
#define THREADS 512

// Twin: src/comm/one_shot.rs. An inbox is `[slot][from rank][block][packet]`.
struct Ranks {
    uint4* inbox[MOST_RANKS];
    u32* chunks; // that each block has exchanged
    u32 rank;
    u32 size;
    u32 blocks;  // in an inbox
    u32 packets; // of a block's chunk
};
SAME_LAYOUT(Ranks, Ranks);

// A rank's packets for a block.
DEVICE uint4* packets_of(const Ranks& ranks, u32 at, u32 from, u32 number) {
    u64 place = ((number % SLOTS) * ranks.size + from) * (u64)ranks.blocks + blockIdx.x;
    return ranks.inbox[at] + place * ranks.packets;
}

// Numbers of a packet in an element type, and their words, which are never all ones.
template <typename T> struct Wire;
template <> struct Wire<f32> {
    static constexpr u32 NUMBERS = 1;
    DEVICE static u32 word(const f32* x) {
        u32 bits = __float_as_uint(x[0]);
        return bits == ~0u ? 0x7fffffffu : bits;
    }
    DEVICE static void numbers(u32 word, f32* x) { x[0] = __uint_as_float(word); }
};
// Rounded to 16 bits no NaN has all bits set.
template <typename T> struct Wire {
    static constexpr u32 NUMBERS = 2;
    DEVICE static u32 word(const f32* x) { return Cast<T>::from(x[0]).bits | (u32)Cast<T>::from(x[1]).bits << 16; }
    DEVICE static void numbers(u32 word, f32* x) {
        x[0] = load(T{(u16)word});
        x[1] = load(T{(u16)(word >> 16)});
    }
};

template <typename T> struct Packet {
    static constexpr u32 NUMBERS = PACKET_WORDS * Wire<T>::NUMBERS;
    f32 numbers[NUMBERS];

    // The packet at `first` of `count` numbers; what lies beyond the end is 0.
    DEVICE static Packet at(const f32* x, u64 first, u64 count) {
        Packet packet;
        if (first + NUMBERS <= count) {
#pragma unroll
            for (u32 i = 0; i < NUMBERS; i += 4) *(float4*)&packet.numbers[i] = *(const float4*)&x[first + i];
        } else {
#pragma unroll
            for (u32 i = 0; i < NUMBERS; i++) packet.numbers[i] = first + i < count ? x[first + i] : 0.0f;
        }
        return packet;
    }

    DEVICE void to(f32* x, u64 first, u64 count) const {
        if (first + NUMBERS <= count) {
#pragma unroll
            for (u32 i = 0; i < NUMBERS; i += 4) *(float4*)&x[first + i] = *(const float4*)&numbers[i];
        } else {
#pragma unroll
            for (u32 i = 0; i < NUMBERS; i++)
                if (first + i < count) x[first + i] = numbers[i];
        }
    }

    DEVICE uint4 words() const {
        u32 words[PACKET_WORDS];
#pragma unroll
        for (u32 i = 0; i < PACKET_WORDS; i++) words[i] = Wire<T>::word(&numbers[i * Wire<T>::NUMBERS]);
        return make_uint4(words[0], words[1], words[2], words[3]);
    }

    DEVICE static Packet of(uint4 words) {
        Packet packet;
        const u32 all[PACKET_WORDS] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (u32 i = 0; i < PACKET_WORDS; i++) Wire<T>::numbers(all[i], &packet.numbers[i * Wire<T>::NUMBERS]);
        return packet;
    }
};

// Words travel inverted, so that none is 0. A 4-byte access at system scope is one access to every device (PTX ISA,
// memory consistency model), also as a part of a vector.
DEVICE void put(uint4* packet, uint4 words) {
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(packet), "r"(~words.x), "r"(~words.y),
                 "r"(~words.z), "r"(~words.w)
                 : "memory");
}

DEVICE uint4 look(uint4* packet) {
    uint4 words;
    asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(packet) : "memory");
    return words;
}

// Waits for a packet, `words` being what was there, and empties its place.
DEVICE uint4 take(uint4* packet, uint4 words) {
    while (!words.x || !words.y || !words.z || !words.w) words = look(packet);
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %1, %1, %1};" ::"l"(packet), "r"(0) : "memory");
    return make_uint4(~words.x, ~words.y, ~words.z, ~words.w);
}

// What a block exchanges: `packets` of them, in chunks, from the packet `first` of all.
template <typename T> struct Share {
    static constexpr u32 NUMBERS = Packet<T>::NUMBERS;
    const Ranks& ranks;
    const f32* x;
    u64 count; // of all numbers
    u64 first;
    u32 packets;
    u32 number; // of the first chunk

    DEVICE Share(const Ranks& ranks, const f32* x, u64 count) : ranks(ranks), x(x), count(count) {
        u64 all = (count + NUMBERS - 1) / NUMBERS, share = (all + gridDim.x - 1) / gridDim.x;
        first = blockIdx.x * share;
        packets = first >= all ? 0 : first + share < all ? share : all - first;
        number = ranks.chunks[blockIdx.x];
    }

    DEVICE u32 chunks() const { return (packets + ranks.packets - 1) / ranks.packets; }

    DEVICE u32 packets_in(u32 chunk) const {
        u32 left = packets - chunk * ranks.packets;
        return left < ranks.packets ? left : ranks.packets;
    }

    DEVICE uint4 own(u32 chunk, u32 i) const {
        return Packet<T>::at(x, (first + chunk * ranks.packets + i) * NUMBERS, count).words();
    }

    // Sends a chunk, as thread `thread` of `threads`.
    DEVICE void send(u32 chunk, u32 thread, u32 threads) const {
        u32 end = packets_in(chunk);
        for (u32 i = thread; i < end; i += BATCH * threads) {
            uint4 words[BATCH];
#pragma unroll
            for (u32 b = 0; b < BATCH; b++)
                if (i + b * threads < end) words[b] = own(chunk, i + b * threads);
            for (u32 step = 1; step < ranks.size; step++) {
                u32 to = (ranks.rank + step) % ranks.size;
                uint4* there = packets_of(ranks, to, ranks.rank, number + chunk) + i;
#pragma unroll
                for (u32 b = 0; b < BATCH; b++)
                    if (i + b * threads < end) put(there + b * threads, words[b]);
            }
        }
    }

    // Takes a chunk of all ranks: `got(first, from, packet)` for each packet, by the place of its first number, and for
    // each rank in order, this one included, as the others get it.
    template <typename Got> DEVICE void receive(u32 chunk, u32 thread, u32 threads, Got got) const {
        u32 end = packets_in(chunk), other = ranks.rank == 0 ? 1 : 0;
        for (u32 i = thread; i < end; i += BATCH * threads) {
            uint4 mine[BATCH], seen[BATCH];
#pragma unroll
            for (u32 b = 0; b < BATCH; b++)
                if (i + b * threads < end) {
                    seen[b] = look(packets_of(ranks, ranks.rank, other, number + chunk) + i + b * threads);
                    mine[b] = own(chunk, i + b * threads);
                }
#pragma unroll
            for (u32 b = 0; b < BATCH; b++) {
                u32 at = i + b * threads;
                if (at >= end) break;
                for (u32 from = 0; from < ranks.size; from++) {
                    uint4* packet = packets_of(ranks, ranks.rank, from, number + chunk) + at;
                    uint4 words = mine[b];
                    if (from != ranks.rank) words = take(packet, from == other ? seen[b] : look(packet));
                    got((first + chunk * ranks.packets + at) * NUMBERS, from, Packet<T>::of(words));
                }
            }
        }
    }
};

// Exchanges what all ranks have, `count` numbers at an address that is a multiple of 16: see `Share::receive`.
template <typename T, typename Got> DEVICE void exchange(const Ranks& ranks, const f32* x, u64 count, Got got) {
    wait_for_inputs();
    Share<T> share(ranks, x, count);
    u32 chunks = share.chunks(), half = blockDim.x / 2, thread = threadIdx.x;
    if (chunks) share.send(0, thread, blockDim.x);
    if (chunks > 1) {
        // Numbers are sent before the sum takes their place.
        __syncthreads();
        for (u32 chunk = 0; chunk + 1 < chunks; chunk++) {
            if (thread < half) {
                share.send(chunk + 1, thread, half);
            } else {
                share.receive(chunk, thread - half, half, got);
                // What is emptied is so on all devices before the next chunk but one is sent.
                __threadfence_system();
            }
            __syncthreads();
        }
    }
    launch_dependents();
    if (chunks) share.receive(chunks - 1, thread, blockDim.x, got);
    // The last look at the counter was every thread's first.
    __syncthreads();
    if (thread == 0) ranks.chunks[blockIdx.x] = share.number + chunks;
}

// x = sum over ranks of x, each rounded to `T`; added in rank order, so that the bits are the same everywhere.
template <typename T> DEVICE void sum(const Ranks& ranks, f32* x, u64 count) {
    Packet<T> sum;
    exchange<T>(ranks, x, count, [&](u64 first, u32 from, Packet<T> packet) {
#pragma unroll
        for (u32 i = 0; i < Packet<T>::NUMBERS; i++)
            sum.numbers[i] = from == 0 ? packet.numbers[i] : sum.numbers[i] + packet.numbers[i];
        if (from + 1 == ranks.size) sum.to(x, first, count);
    });
}

#define RANKS_SUM(T) \
    extern "C" __global__ void __launch_bounds__(THREADS) ranks_sum_##T( \
        const __grid_constant__ Ranks ranks, f32* x, u64 count) { \
        sum<T>(ranks, x, count); \
    }

RANKS_SUM(f32)
RANKS_SUM(bf16)
RANKS_SUM(f16)

// Column `col` of row `row` of a rank's part goes to its place in the whole row, unless it is padding.
DEVICE void place(f32* out, u32 out_width, u32 width, u64 element, u32 from, f32 value) {
    u64 row = element / width, col = from * (u64)width + element % width;
    if (col < out_width) out[row * out_width + col] = value;
}

// out[row] = [x[row] of rank 0 | x[row] of rank 1 | ...], cut to `out_width`.
extern "C" __global__ void __launch_bounds__(THREADS)
    ranks_gather(const __grid_constant__ Ranks ranks, const f32* x, f32* out, u32 rows, u32 width, u32 out_width) {
    u64 count = (u64)rows * width;
    exchange<f32>(ranks, x, count, [&](u64 first, u32 from, Packet<f32> packet) {
#pragma unroll
        for (u32 i = 0; i < Packet<f32>::NUMBERS; i++)
            if (first + i < count) place(out, out_width, width, first + i, from, packet.numbers[i]);
    });
}

// The same of parts that are all here: `parts` is [rank][row][width].
extern "C" __global__ void ranks_place(const f32* parts, f32* out, u32 size, u32 rows, u32 width, u32 out_width) {
    u64 part = (u64)rows * width;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < size * part; i += gridDim.x * (u64)blockDim.x)
        place(out, out_width, width, i % part, i / part, parts[i]);
}
