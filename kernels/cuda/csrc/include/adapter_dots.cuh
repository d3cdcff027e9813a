// Dots of rows with weights of their adapters, shared by the warps of a block.
#pragma once
#include "warp_dots.cuh"

// Rows of a block where there are many, which share what is read of their adapter; and dots of such a block, which
// share what is read of the rows.
constexpr u32 EACH = 8, DOTS = 4;
// Warps that share a dot, so that its inputs are read side by side.
constexpr u32 WARPS = 8;

// Sums of x[i][k] * w[d][k] over this warp's share of k, for the rows of `mine`.
template <u32 ROWS, u32 COUNT, typename X, typename W>
DEVICE void share_of_dots(
    const X* const (&x)[ROWS], u32 mine, const W* const (&w)[COUNT], u32 k, f32 (&sums)[ROWS][COUNT]) {
    constexpr u32 N = 16 / sizeof(W);
    // 16 bytes of w stand for at least as many of x, unless its elements are larger.
    constexpr u32 X_BYTES = sizeof(X) >= sizeof(W) ? 16 : sizeof(X);
    const u32 lane = threadIdx.x % 32, share = (k + WARPS * N - 1) / (WARPS * N) * N;
    const u32 begin = threadIdx.x / 32 * share, end = min(begin + share, k);
#pragma unroll
    for (u32 i = 0; i < ROWS; i++)
#pragma unroll
        for (u32 d = 0; d < COUNT; d++) sums[i][d] = 0.0f;
    if (k % N == 0 && (u64)w[0] % 16 == 0) {
#pragma unroll 2
        for (u32 at = begin + lane * N; at < end; at += 32 * N) {
            f32 ws[COUNT][N];
#pragma unroll
            for (u32 d = 0; d < COUNT; d++) {
                const Piece<W, N, 16> piece(w[d] + at);
#pragma unroll
                for (u32 j = 0; j < N; j++) ws[d][j] = load(piece.at[j]);
            }
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) {
                if (!(mine >> i & 1u)) continue;
                const Piece<X, N, X_BYTES> xs(x[i] + at);
#pragma unroll
                for (u32 d = 0; d < COUNT; d++)
#pragma unroll
                    for (u32 j = 0; j < N; j++) sums[i][d] = fmaf(load(xs.at[j]), ws[d][j], sums[i][d]);
            }
        }
    } else {
        for (u32 at = begin + lane; at < end; at += 32)
#pragma unroll
            for (u32 i = 0; i < ROWS; i++)
                if (mine >> i & 1u)
#pragma unroll
                    for (u32 d = 0; d < COUNT; d++) sums[i][d] = fmaf(load(x[i][at]), load(w[d][at]), sums[i][d]);
    }
#pragma unroll
    for (u32 i = 0; i < ROWS; i++)
#pragma unroll
        for (u32 d = 0; d < COUNT; d++) sums[i][d] = warp_sum(sums[i][d]);
}

// Shares of a block's warps in the dots of its rows.
template <u32 ROWS, u32 COUNT> struct Shares {
    f32 of[WARPS][ROWS][COUNT];

    DEVICE f32 sum(u32 row, u32 dot) const {
        f32 sum = 0.0f;
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) sum += of[warp][row][dot];
        return sum;
    }
};

// COUNT dots of each row of `left` with weights of its slot, the rows of one slot together: `row` gives x of a row,
// `weights` w of a slot and dot. `store` gets the slot, its rows as bits, and the shares. All threads of a block see
// the same slots.
template <u32 ROWS, u32 COUNT, typename Row, typename Weights, typename Store>
DEVICE void dots_by_slot(const u32 (&slot)[ROWS], u32 left, u32 k, Row row, Weights weights, Store store) {
    __shared__ Shares<ROWS, COUNT> shares;
    const u32 warp = threadIdx.x / 32;
    while (left) {
        u32 own = NO_ADAPTER, mine = 0;
        decltype(row(0)) x[ROWS];
#pragma unroll
        for (u32 i = 0; i < ROWS; i++)
            if (own == NO_ADAPTER && left >> i & 1u) own = slot[i];
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            if ((left >> i & 1u) && slot[i] == own) mine |= 1u << i;
            x[i] = row(i);
        }
        left &= ~mine;
        decltype(weights(0, 0)) w[COUNT];
#pragma unroll
        for (u32 d = 0; d < COUNT; d++) w[d] = weights(own, d);
        f32 sums[ROWS][COUNT];
        share_of_dots(x, mine, w, k, sums);
        if (threadIdx.x % 32 == 0)
#pragma unroll
            for (u32 i = 0; i < ROWS; i++)
#pragma unroll
                for (u32 d = 0; d < COUNT; d++) shares.of[warp][i][d] = sums[i][d];
        __syncthreads();
        store(own, mine, shares);
        __syncthreads();
    }
}
