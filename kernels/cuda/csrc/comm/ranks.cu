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
// Six slots take turns. Why that is enough, for chunk k to be written where chunk k - 6 was: its sender has taken all
// of chunk k - 2 in this launch, or finished the launch before. Either way it has words of the peer's chunk k - 2 (or a
// later one), which the peer sent after it had emptied chunk k - 4, or after a launch that had.
//
// In one shot every rank sends all its numbers to all others. In two, which are for larger sums, it sends each its part
// alone, adds up the own part, and sends that sum to all others: see `TwoShots`.
#include "packets.cuh"
#include "quire.cuh"

#define MOST_RANKS 8
#define PACKET_WORDS 4
#define SLOTS 6
// Packets that a thread has on their way at once.
#define BATCH 4
#define THREADS 512

// Twin: src/comm/peers.rs. An inbox is `[post][slot][other rank][block][packet]`.
struct Ranks {
    uint4* inbox[MOST_RANKS];
    u32* chunks; // that each block has exchanged
    u32 rank;
    u32 size;
    u32 blocks;  // in an inbox
    u32 packets; // of a block's chunk
};
SAME_LAYOUT(Ranks, Ranks);

// What packets are: numbers of a rank, or sums of two shots.
constexpr u32 NUMBERS_POST = 0, SUMS_POST = 1;

// Another rank's packets for a block of the rank `at`.
DEVICE uint4* packets_of(const Ranks& ranks, u32 at, u32 from, u32 number, u32 post = NUMBERS_POST) {
    u32 other = from > at ? from - 1 : from;
    u64 place = ((post * SLOTS + number % SLOTS) * (ranks.size - 1) + other) * (u64)ranks.blocks + blockIdx.x;
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

    // The packet at `first` of `count` numbers, which are f32 or what they travel as; what lies beyond the end is 0.
    template <typename X> DEVICE static Packet at(const X* x, u64 first, u64 count) {
        Packet packet;
        if (first + NUMBERS <= count) {
            packet.load_all(x + first);
        } else {
#pragma unroll
            for (u32 i = 0; i < NUMBERS; i++) packet.numbers[i] = first + i < count ? load(x[first + i]) : 0.0f;
        }
        return packet;
    }

    template <typename X> DEVICE void to(X* x, u64 first, u64 count) const {
        if (first + NUMBERS <= count) {
            store_all(x + first);
        } else {
#pragma unroll
            for (u32 i = 0; i < NUMBERS; i++)
                if (first + i < count) x[first + i] = Cast<X>::from(numbers[i]);
        }
    }

    DEVICE void load_all(const f32* x) {
#pragma unroll
        for (u32 i = 0; i < NUMBERS; i += 4) *(float4*)&numbers[i] = *(const float4*)&x[i];
    }
    template <typename X> DEVICE void load_all(const X* x) {
        static_assert(sizeof(X) * NUMBERS == sizeof(uint4), "what travels in other types is f32");
        *this = of(*(const uint4*)x);
    }
    DEVICE void store_all(f32* x) const {
#pragma unroll
        for (u32 i = 0; i < NUMBERS; i += 4) *(float4*)&x[i] = *(const float4*)&numbers[i];
    }
    template <typename X> DEVICE void store_all(X* x) const {
        static_assert(sizeof(X) * NUMBERS == sizeof(uint4), "what travels in other types is f32");
        *(uint4*)x = words();
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

// Waits for a packet, `words` being what was there.
DEVICE uint4 wait_for(uint4* packet, uint4 words) {
    while (!words.x || !words.y || !words.z || !words.w) words = look(packet);
    return make_uint4(~words.x, ~words.y, ~words.z, ~words.w);
}

// The same as `wait_for`, and empties the packet's place.
DEVICE uint4 take(uint4* packet, uint4 words) {
    words = wait_for(packet, words);
    empty(packet);
    return words;
}

// What a block exchanges: `packets` of them, in chunks, from the packet `first` of all.
template <typename X, typename T> struct Share {
    static constexpr u32 NUMBERS = Packet<T>::NUMBERS;
    const Ranks& ranks;
    const X* x;
    u64 count; // of all numbers
    u64 first;
    u32 packets;
    u32 number; // of the first chunk

    DEVICE Share(const Ranks& ranks, const X* x, u64 count) : ranks(ranks), x(x), count(count) {
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
template <typename T, typename X, typename Got>
DEVICE void exchange(const Ranks& ranks, const X* x, u64 count, Got got) {
    wait_for_inputs();
    Share<X, T> share(ranks, x, count);
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

// Adds packets of ranks, which come in rank order, so that the bits are the same everywhere.
template <typename T> DEVICE void add(Packet<T>& sum, u32 from, const Packet<T>& packet) {
#pragma unroll
    for (u32 i = 0; i < Packet<T>::NUMBERS; i++)
        sum.numbers[i] = from == 0 ? packet.numbers[i] : sum.numbers[i] + packet.numbers[i];
}

// x = sum over ranks of x, each rounded to `T`, and so is the sum: it has the same bits in two shots.
template <typename T, typename X> DEVICE void sum(const Ranks& ranks, X* x, u64 count) {
    Packet<T> sum;
    exchange<T>(ranks, x, count, [&](u64 first, u32 from, Packet<T> packet) {
        add(sum, from, packet);
        if (from + 1 == ranks.size) Packet<T>::of(sum.words()).to(x, first, count);
    });
}

// A sum of numbers of type `X` that travel as `T`.
#define RANKS_SUM(X, T) \
    extern "C" __global__ void __launch_bounds__(THREADS) ranks_sum_##X##_##T( \
        const __grid_constant__ Ranks ranks, X* x, u64 count) { \
        sum<T>(ranks, x, count); \
    }

RANKS_SUM(f32, f32)
RANKS_SUM(f32, bf16)
RANKS_SUM(f32, f16)
RANKS_SUM(bf16, bf16)

// Threads of a block that do one thing; the others leave it out.
struct Team {
    u32 first;
    u32 threads;

    DEVICE bool has(u32 thread) const { return thread - first < threads; }
};

// What a block adds in two shots. A chunk is parts of equally many packets, one for each rank to add; those beyond the
// end of what the block adds are 0, and no rank keeps them, so that every rank hears of every other in each chunk.
//
// In step s of a launch some threads send the numbers of chunk s, some the sums of chunk s - 1, and some take the sums
// of chunk s - 2 and empty its numbers as well: a fence waits for all that its thread wrote, so it is theirs alone who
// write nothing to other ranks. Slots suffice: numbers of chunk k are sent once sums of chunk k - 3 have come from all
// ranks, which they sent in a step after the one that emptied the numbers of chunk k - 5; sums of chunk k once its
// numbers have come, which their ranks sent after they had taken the sums of chunk k - 3.
template <typename X, typename T> struct TwoShots {
    static constexpr u32 NUMBERS = Packet<T>::NUMBERS;
    const Ranks& ranks;
    X* x;
    u64 count; // of all numbers
    u64 first; // packet
    u32 packets;
    u32 number; // of the first chunk

    DEVICE TwoShots(const Ranks& ranks, X* x, u64 count) : ranks(ranks), x(x), count(count) {
        u64 all = (count + NUMBERS - 1) / NUMBERS, share = (all + gridDim.x - 1) / gridDim.x;
        first = blockIdx.x * share;
        packets = first >= all ? 0 : first + share < all ? share : all - first;
        number = ranks.chunks[blockIdx.x];
    }

    DEVICE u32 chunk_packets() const { return ranks.size * ranks.packets; }
    DEVICE u32 chunks() const { return (packets + chunk_packets() - 1) / chunk_packets(); }

    // Of a chunk, for each rank.
    DEVICE u32 part(u32 chunk) const {
        u32 left = packets - chunk * chunk_packets();
        return (min(left, chunk_packets()) + ranks.size - 1) / ranks.size;
    }

    // Where packet `i` of a rank's part of a chunk is among those of the block.
    DEVICE u32 at(u32 chunk, u32 owner, u32 i) const { return chunk * chunk_packets() + owner * part(chunk) + i; }

    DEVICE Packet<T> own(u32 at) const {
        // What lies beyond is another block's, which may be writing there.
        return Packet<T>::at(x, (first + at) * NUMBERS, at < packets ? count : 0);
    }

    DEVICE void keep(u32 at, const Packet<T>& packet) const {
        if (at < packets) packet.to(x, (first + at) * NUMBERS, count);
    }

    // `use(rank, i, load(rank, i))` for packets of the parts of all other ranks, as a thread of the team.
    template <typename Load, typename Use> DEVICE void others(u32 chunk, Team team, Load load, Use use) const {
        const u32 part = this->part(chunk), all = (ranks.size - 1) * part;
        auto rank = [&](u32 i) { return (ranks.rank + 1 + i / part) % ranks.size; };
        for (u32 first = threadIdx.x - team.first; first < all; first += BATCH * team.threads) {
            uint4 words[BATCH];
#pragma unroll
            for (u32 b = 0, i = first; b < BATCH; b++, i += team.threads)
                if (i < all) words[b] = load(rank(i), i % part);
#pragma unroll
            for (u32 b = 0, i = first; b < BATCH; b++, i += team.threads)
                if (i < all) use(rank(i), i % part, words[b]);
        }
    }

    DEVICE void send_numbers(u32 chunk, Team team) const {
        others(
            chunk, team, [&](u32 to, u32 i) { return own(at(chunk, to, i)).words(); },
            [&](u32 to, u32 i, uint4 words) { put(packets_of(ranks, to, ranks.rank, number + chunk) + i, words); });
    }

    // Adds the own part, and sends the sum.
    DEVICE void send_sums(u32 chunk, Team team) const {
        const u32 part = this->part(chunk);
        auto packet = [&](u32 from) { return packets_of(ranks, ranks.rank, from, number + chunk); };
        for (u32 i = threadIdx.x - team.first; i < part; i += team.threads) {
            const u32 place = at(chunk, ranks.rank, i);
            uint4 seen[MOST_RANKS];
#pragma unroll
            for (u32 from = 0; from < MOST_RANKS; from++)
                if (from < ranks.size) seen[from] = from == ranks.rank ? own(place).words() : look(packet(from) + i);
            Packet<T> sum;
#pragma unroll
            for (u32 from = 0; from < MOST_RANKS; from++) {
                if (from < ranks.size) {
                    uint4 words = from == ranks.rank ? seen[from] : wait_for(packet(from) + i, seen[from]);
                    add(sum, from, Packet<T>::of(words));
                }
            }
            const uint4 words = sum.words();
            for (u32 step = 1; step < ranks.size; step++) {
                u32 to = (ranks.rank + step) % ranks.size;
                put(packets_of(ranks, to, ranks.rank, number + chunk, SUMS_POST) + i, words);
            }
            keep(place, Packet<T>::of(words));
        }
    }

    // Takes the sums of other ranks, and empties their numbers, which were added in the step before.
    DEVICE void take_sums(u32 chunk, Team team) const {
        auto packet = [&](u32 from) { return packets_of(ranks, ranks.rank, from, number + chunk, SUMS_POST); };
        others(
            chunk, team, [&](u32 from, u32 i) { return look(packet(from) + i); },
            [&](u32 from, u32 i, uint4 seen) {
                empty(packets_of(ranks, ranks.rank, from, number + chunk) + i);
                keep(at(chunk, from, i), Packet<T>::of(take(packet(from) + i, seen)));
            });
    }
};

// x = sum over ranks of x, each rounded to `T`, as is the sum. A chunk is sent while the one before it is added, and
// sums of the one before that are taken.
template <typename T, typename X> DEVICE void sum_in_two_shots(const Ranks& ranks, X* x, u64 count) {
    wait_for_inputs();
    const TwoShots<X, T> share(ranks, x, count);
    const u32 chunks = share.chunks(), thread = threadIdx.x, quarter = blockDim.x / 4;
    const bool alone = chunks == 1;
    const Team all{0, blockDim.x};
    const Team senders = alone ? all : Team{0, quarter}, adders = alone ? all : Team{quarter, 2 * quarter},
               takers = alone ? all : Team{3 * quarter, quarter};
    for (u32 step = 0; step < chunks + 2; step++) {
        if (step == chunks + 1) launch_dependents();
        if (step < chunks && senders.has(thread)) share.send_numbers(step, senders);
        if (step >= 1 && step <= chunks && adders.has(thread)) share.send_sums(step - 1, adders);
        if (step >= 2 && takers.has(thread)) {
            share.take_sums(step - 2, takers);
            // What is emptied is so on all devices before the next chunk is sent.
            if (!alone) __threadfence_system();
        }
        // Numbers are sent before sums take their place.
        __syncthreads();
    }
    // The last look at the counter was every thread's first.
    if (thread == 0) ranks.chunks[blockIdx.x] = share.number + chunks;
}

#define RANKS_SUM_IN_TWO_SHOTS(X, T) \
    extern "C" __global__ void __launch_bounds__(THREADS) ranks_two_shot_sum_##X##_##T( \
        const __grid_constant__ Ranks ranks, X* x, u64 count) { \
        sum_in_two_shots<T>(ranks, x, count); \
    }

RANKS_SUM_IN_TWO_SHOTS(f32, f32)
RANKS_SUM_IN_TWO_SHOTS(f32, bf16)
RANKS_SUM_IN_TWO_SHOTS(f32, f16)
RANKS_SUM_IN_TWO_SHOTS(bf16, bf16)

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
