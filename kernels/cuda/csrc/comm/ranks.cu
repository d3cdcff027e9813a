// What the ranks of a group exchange by writing to each other: each rank writes its part straight into the memory of
// all others, over NVLink or PCIe, and reads theirs from its own. One crossing, no barrier: a word that is not there
// yet is 0, which no word on its way is, and the reader of a word makes it 0 again (the idea of TensorRT-LLM's
// "Lamport" kernels, whose word for "not yet" is -0.0).
//
// A block counts its calls in device memory and talks to the block of the same number on other ranks, so nothing that
// the host passes changes from call to call, and a CUDA graph may hold the launch. Two halves take turns. Why that is
// enough: a block that writes call k has finished call k - 1, so it has the peer's words of k - 1, which the peer wrote
// after its kernel of k - 2 was over, and with it all that it took and emptied.
#include "quire.cuh"

#define MOST_RANKS 8
#define PACKET_WORDS 4

// Twin: src/comm/one_shot.rs. An inbox is `[half][from rank][block][packet]`.
struct Ranks {
    uint4* inbox[MOST_RANKS];
    u32* calls; // that each block has made
    u32 rank;
    u32 size;
    u32 blocks;  // in an inbox
    u32 packets; // of a block
};
SAME_LAYOUT(Ranks, Ranks);

// A rank's packets for a block.
DEVICE uint4* packets_of(const Ranks& ranks, u32 at, u32 from, u32 call) {
    u64 place = ((call & 1) * ranks.size + from) * (u64)ranks.blocks + blockIdx.x;
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

DEVICE uint4 take(uint4* packet) {
    uint4 words;
    do {
        asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w) : "l"(packet) : "memory");
    } while (!words.x || !words.y || !words.z || !words.w);
    asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %1, %1, %1};" ::"l"(packet), "r"(0) : "memory");
    return make_uint4(~words.x, ~words.y, ~words.z, ~words.w);
}

// Calls `got(first, from, packet)` for each of this block's packets, by the place of its first number, and for each
// rank in order, this one included. All ranks have `count` numbers, at an address that is a multiple of 16.
template <typename T, typename Got> DEVICE void exchange(const Ranks& ranks, const f32* x, u64 count, Got got) {
    constexpr u32 NUMBERS = Packet<T>::NUMBERS;
    wait_for_inputs();
    u32 call = ranks.calls[blockIdx.x] + 1;
    u64 packets = (count + NUMBERS - 1) / NUMBERS, share = (packets + gridDim.x - 1) / gridDim.x;
    u64 first = blockIdx.x * share, end = first + share < packets ? first + share : packets;
    for (u64 i = first + threadIdx.x; i < end; i += blockDim.x) {
        uint4 words = Packet<T>::at(x, i * NUMBERS, count).words();
        for (u32 step = 1; step < ranks.size; step++) {
            u32 to = (ranks.rank + step) % ranks.size;
            put(packets_of(ranks, to, ranks.rank, call) + (i - first), words);
        }
    }
    launch_dependents();
    for (u64 i = first + threadIdx.x; i < end; i += blockDim.x) {
        // As the others get it.
        uint4 mine = Packet<T>::at(x, i * NUMBERS, count).words();
        for (u32 from = 0; from < ranks.size; from++) {
            uint4* packet = packets_of(ranks, ranks.rank, from, call) + (i - first);
            got(i * NUMBERS, from, Packet<T>::of(from == ranks.rank ? mine : take(packet)));
        }
    }
    // The last look at the counter was every thread's first.
    __syncthreads();
    if (threadIdx.x == 0) ranks.calls[blockIdx.x] = call;
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
    extern "C" __global__ void ranks_sum_##T(Ranks ranks, f32* x, u64 count) { sum<T>(ranks, x, count); }

RANKS_SUM(f32)
RANKS_SUM(bf16)
RANKS_SUM(f16)

// Column `col` of row `row` of a rank's part goes to its place in the whole row, unless it is padding.
DEVICE void place(f32* out, u32 out_width, u32 width, u64 element, u32 from, f32 value) {
    u64 row = element / width, col = from * (u64)width + element % width;
    if (col < out_width) out[row * out_width + col] = value;
}

// out[row] = [x[row] of rank 0 | x[row] of rank 1 | ...], cut to `out_width`.
extern "C" __global__ void ranks_gather(Ranks ranks, const f32* x, f32* out, u32 rows, u32 width, u32 out_width) {
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
