// Products of single rows with rows of a weight matrix, a warp for each output: for grouped products, whose groups have
// few rows.
#pragma once
#include "quire.cuh"

constexpr u32 OUTPUTS = 8; // outputs (and warps) of a block

// N elements, read BYTES at a time: 16 where an address is a multiple of that, else those of an element.
template <typename T, u32 N, u32 BYTES> struct __align__(16) Piece {
    T at[N];
    DEVICE Piece(const T* from) {
        if (BYTES == 16) {
#pragma unroll
            for (u32 i = 0; i < N * sizeof(T) / 16; i++) ((uint4*)at)[i] = ((const uint4*)from)[i];
        } else {
#pragma unroll
            for (u32 i = 0; i < N; i++) at[i] = from[i];
        }
    }
};

// Sums of x[row][i] * w[i], the same bits in all lanes; 16 bytes of w a lane at a time where rows of it allow that. The
// sum of an absent row (null) is zero, that of another does not depend on the rows beside it. X_BYTES: how x is read;
// 16 where rows begin at multiples of 16.
template <u32 X_BYTES, typename X, typename W, u32 ROWS>
DEVICE void warp_dots(const X* const (&x)[ROWS], const W* w, u32 k, f32 (&sums)[ROWS]) {
    constexpr u32 N = 16 / sizeof(W);
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 row = 0; row < ROWS; row++) sums[row] = 0.0f;
    if (k % N == 0 && (u64)w % 16 == 0) {
        for (u32 i = lane * N; i < k; i += 32 * N) {
            const Piece<W, N, 16> ws(w + i);
#pragma unroll
            for (u32 row = 0; row < ROWS; row++) {
                if (!x[row]) continue;
                const Piece<X, N, X_BYTES> xs(x[row] + i);
#pragma unroll
                for (u32 j = 0; j < N; ++j) sums[row] = fmaf(load(xs.at[j]), load(ws.at[j]), sums[row]);
            }
        }
    } else {
        for (u32 i = lane; i < k; i += 32)
#pragma unroll
            for (u32 row = 0; row < ROWS; row++)
                if (x[row]) sums[row] = fmaf(load(x[row][i]), load(w[i]), sums[row]);
    }
#pragma unroll
    for (u32 row = 0; row < ROWS; row++) sums[row] = warp_sum(sums[row]);
}
