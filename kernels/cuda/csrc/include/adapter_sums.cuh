// What an output of an adapter adds to a row: its weights times the row's shrunk numbers.
#pragma once
#include "warp_dots.cuh"

// Highest rank whose weights a thread keeps from row to row.
constexpr u32 KEPT = 16;

// `count` weights as numbers, 16 bytes at a time where that can be.
template <typename W> DEVICE void keep(const W* from, u32 count, f32 (&to)[KEPT]) {
    constexpr u32 N = 16 / sizeof(W);
    if (count % N == 0 && (u64)from % 16 == 0) {
#pragma unroll
        for (u32 at = 0; at < KEPT; at += N) {
            if (at >= count) break;
            const Piece<W, N, 16> piece(from + at);
#pragma unroll
            for (u32 j = 0; j < N; j++) to[at + j] = load(piece.at[j]);
        }
    } else {
#pragma unroll
        for (u32 at = 0; at < KEPT; at++)
            if (at < count) to[at] = load(from[at]);
    }
}

// A thread's weights of one output, of the slot that it saw last.
template <typename W> struct KeptWeights {
    f32 kept[KEPT];
    u32 slot = NO_ADAPTER;

    // The sum over t[j] * w[j] for j below `rank`; `w` are the weights of slot `of`.
    DEVICE f32 dot(const f32* t, const W* w, u32 rank, u32 of) {
        f32 sum = 0.0f;
        if (rank <= KEPT) {
            if (of != slot) keep(w, rank, kept);
            slot = of;
#pragma unroll
            for (u32 j = 0; j < KEPT; j++)
                if (j < rank) sum = fmaf(t[j], kept[j], sum);
        } else {
            slot = NO_ADAPTER;
            for (u32 from = 0; from < rank; from += KEPT) {
                const u32 count = min(KEPT, rank - from);
                keep(w + from, count, kept);
#pragma unroll
                for (u32 j = 0; j < KEPT; j++)
                    if (j < count) sum = fmaf(t[from + j], kept[j], sum);
            }
        }
        return sum;
    }
};
