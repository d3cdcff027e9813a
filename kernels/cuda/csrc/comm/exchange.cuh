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
// In one shot (one_shot.cuh) every rank sends all its numbers to all others. In two (two_shots.cuh), for larger sums,
// it sends each its part alone, adds up the own part, and sends that sum to all others. What is done with rows of such
// a sum next may be part of the launch (after_sum.cuh).
#pragma once
#include "packets.cuh"
#include "quire.cuh"

#define THREADS 512
#define MOST_RANKS 8
#define PACKET_WORDS 4
#define SLOTS 6
// Packets that a thread has on their way at once.
#define BATCH 4

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

// A block's portion of a message: whole units, of equally many packets each.
struct Portion {
    u64 first; // packet
    u32 packets;
    u32 number; // of the first chunk

    // `all` units of `unit` packets; the last one may be cut by the end of the message.
    DEVICE Portion(const Ranks& ranks, u64 all, u32 unit) {
        const u64 share = (all + gridDim.x - 1) / gridDim.x, before = min(blockIdx.x * share, all);
        first = before * unit;
        packets = min(share, all - before) * unit;
        number = ranks.chunks[blockIdx.x];
    }
};

// Adds packets of ranks, which come in rank order, so that the bits are the same everywhere.
template <typename T> DEVICE void add(Packet<T>& sum, u32 from, const Packet<T>& packet) {
#pragma unroll
    for (u32 i = 0; i < Packet<T>::NUMBERS; i++)
        sum.numbers[i] = from == 0 ? packet.numbers[i] : sum.numbers[i] + packet.numbers[i];
}

// Numbers as a rank has them: f32, or what they travel as.
template <bool SHORT, typename T> struct Numbers { typedef f32 Type; };
template <typename T> struct Numbers<true, T> { typedef T Type; };
