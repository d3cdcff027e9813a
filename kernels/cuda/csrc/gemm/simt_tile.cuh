// A tile of out = x w^T in f32, on no tensor core: for every type and shape. A block makes 64 x 64 of it, a thread
// 4 x 4.
// Each element adds up its k products one after the other, so a row's bits do not depend on the rows beside it.
#pragma once
#include "quire.cuh"

constexpr u32 SIMT_TILE = 64, SIMT_STEP = 16, SIMT_EACH = 4;

// `weight(col, at)`: the number that x's column `at` is multiplied by for column `col` of the result.
// `keep(row, col, sum)` gets each element of the block's tile once.
template <typename X, typename Weight, typename Keep>
DEVICE void simt_tile(const X* x, u32 rows, u32 n, u32 k, Weight weight, Keep keep) {
    __shared__ f32 xs[SIMT_STEP][SIMT_TILE + 4], ws[SIMT_STEP][SIMT_TILE + 4];
    u32 first_row = blockIdx.y * SIMT_TILE, first_col = blockIdx.x * SIMT_TILE;
    u32 my_row = threadIdx.x / 16 * SIMT_EACH, my_col = threadIdx.x % 16 * SIMT_EACH;
    f32 sums[SIMT_EACH][SIMT_EACH] = {};
    for (u32 step = 0; step < k; step += SIMT_STEP) {
        for (u32 i = threadIdx.x; i < SIMT_TILE * SIMT_STEP; i += blockDim.x) {
            u32 line = i / SIMT_STEP, at = i % SIMT_STEP, row = first_row + line, col = first_col + line;
            bool inside = step + at < k;
            xs[at][line] = inside && row < rows ? load(x[(u64)row * k + step + at]) : 0.0f;
            ws[at][line] = inside && col < n ? weight(col, step + at) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 at = 0; at < SIMT_STEP; ++at)
#pragma unroll
            for (u32 i = 0; i < SIMT_EACH; ++i)
#pragma unroll
                for (u32 j = 0; j < SIMT_EACH; ++j)
                    sums[i][j] = fmaf(xs[at][my_row + i], ws[at][my_col + j], sums[i][j]);
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < SIMT_EACH; ++i) {
#pragma unroll
        for (u32 j = 0; j < SIMT_EACH; ++j) {
            u32 row = first_row + my_row + i, col = first_col + my_col + j;
            if (row < rows && col < n) keep(row, col, sums[i][j]);
        }
    }
}

// Adds what comes after a sum, and writes it.
template <typename Out>
DEVICE void finish(Out* to, f32 sum, const f32* bias, u32 col, u32 accumulate) {
    if (bias) sum += bias[col];
    if (accumulate) sum += load(*to);
    *to = Cast<Out>::from(sum);
}
