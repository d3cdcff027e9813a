// Two shots: every rank sends each other rank its part, adds up its own, and sends that sum to all others.
#pragma once
#include "exchange.cuh"

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
template <typename X, typename T> struct TwoShots : Portion {
    static constexpr u32 NUMBERS = Packet<T>::NUMBERS;
    const Ranks& ranks;
    X* x;
    u64 count; // of all numbers
    u32 chunk_packets; // whole units, of which there is room for one at least

    DEVICE TwoShots(const Ranks& ranks, X* x, u64 count, u32 unit)
        : Portion(ranks, ((count + NUMBERS - 1) / NUMBERS + unit - 1) / unit, unit), ranks(ranks), x(x), count(count),
          chunk_packets(ranks.size * ranks.packets / unit * unit) {}

    DEVICE u32 chunks() const { return (packets + chunk_packets - 1) / chunk_packets; }
    DEVICE u32 packets_in(u32 chunk) const { return min(packets - chunk * chunk_packets, chunk_packets); }

    // Of a chunk, for each rank.
    DEVICE u32 part(u32 chunk) const { return (packets_in(chunk) + ranks.size - 1) / ranks.size; }

    // Where packet `i` of a rank's part of a chunk is among those of the block; beyond the end where that part is cut.
    DEVICE u32 at(u32 chunk, u32 owner, u32 i) const {
        const u32 at = owner * part(chunk) + i;
        return at < packets_in(chunk) ? chunk * chunk_packets + at : packets;
    }

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

// Chunk by chunk, by `threads` of the block: one is sent while the one before it is added, and sums of the one before
// that are taken.
template <typename X, typename T> DEVICE void exchange_chunks(const TwoShots<X, T>& share, u32 threads) {
    const u32 chunks = share.chunks(), thread = threadIdx.x, quarter = threads / 4;
    const bool alone = chunks == 1;
    const Team all{0, threads};
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
}

// x = sum over ranks of x, each rounded to `T`, as is the sum. Rows of a chunk are ready a step after its sums are
// taken: those of a single chunk are for the whole block, those of many for a crew that does not exchange.
template <typename T, typename X, typename After>
DEVICE void sum_in_two_shots(const Ranks& ranks, X* x, u64 count, After after) {
    after.fetch_params();
    wait_for_inputs();
    const u32 unit = after.template unit<Packet<T>::NUMBERS>();
    const TwoShots<X, T> share(ranks, x, count, unit);
    const u32 chunks = share.chunks();
    const bool alone = chunks == 1;
    if (alone || threadIdx.x < After::exchangers()) {
        exchange_chunks(share, alone ? blockDim.x : After::exchangers());
        if (alone) after.template rows<WholeBlock>(share.first / unit, share.packets / unit);
    } else {
        for (u32 step = 0; step < chunks + 3; step++) {
            if (step >= 3) {
                const u32 chunk = step - 3;
                const u64 first = (share.first + chunk * share.chunk_packets) / unit;
                after.template rows<Crew>(first, share.packets_in(chunk) / unit);
            }
            if (step < chunks + 2) __syncthreads();
        }
    }
    // The last look at the counter was every thread's first.
    if (threadIdx.x == 0) ranks.chunks[blockIdx.x] = share.number + chunks;
}
