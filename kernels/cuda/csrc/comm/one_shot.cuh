// One shot: every rank sends all its numbers to all others.
#pragma once
#include "exchange.cuh"

// What a block exchanges, in chunks of as many packets as there is room for.
template <typename X, typename T> struct Share : Portion {
    static constexpr u32 NUMBERS = Packet<T>::NUMBERS;
    const Ranks& ranks;
    const X* x;
    u64 count; // of all numbers

    DEVICE Share(const Ranks& ranks, const X* x, u64 count)
        : Portion(ranks, (count + NUMBERS - 1) / NUMBERS, 1), ranks(ranks), x(x), count(count) {}

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

// x = sum over ranks of x, each rounded to `T`, and so is the sum: it has the same bits in two shots.
template <typename T, typename X> DEVICE void sum(const Ranks& ranks, X* x, u64 count) {
    Packet<T> sum;
    exchange<T>(ranks, x, count, [&](u64 first, u32 from, Packet<T> packet) {
        add(sum, from, packet);
        if (from + 1 == ranks.size) Packet<T>::of(sum.words()).to(x, first, count);
    });
}
