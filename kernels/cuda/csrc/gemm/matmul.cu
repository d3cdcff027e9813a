// out = x w^T (+ bias), or added to what is there: the plain version, for every pair of types and every shape.
// x is [rows, k], w is [n, k], out is [rows, n]. A block makes a tile of 64 x 64, a thread 4 x 4 of it. Each element
// adds up its k products one after the other, so a row's bits do not depend on the rows beside it.
#include "quire.cuh"

constexpr u32 TILE = 64, STEP = 16, EACH = 4;

template <typename X, typename W, typename Out>
DEVICE void matmul(const X* x, const W* w, const f32* bias, Out* out, u32 rows, u32 n, u32 k, u32 accumulate) {
    __shared__ f32 xs[STEP][TILE + 4], ws[STEP][TILE + 4];
    u32 first_row = blockIdx.y * TILE, first_col = blockIdx.x * TILE;
    u32 my_row = threadIdx.x / 16 * EACH, my_col = threadIdx.x % 16 * EACH;
    f32 sums[EACH][EACH] = {};
    for (u32 step = 0; step < k; step += STEP) {
        for (u32 i = threadIdx.x; i < TILE * STEP; i += blockDim.x) {
            u32 line = i / STEP, at = i % STEP;
            bool inside = step + at < k;
            xs[at][line] = inside && first_row + line < rows ? load(x[(u64)(first_row + line) * k + step + at]) : 0.0f;
            ws[at][line] = inside && first_col + line < n ? load(w[(u64)(first_col + line) * k + step + at]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 at = 0; at < STEP; ++at)
#pragma unroll
            for (u32 i = 0; i < EACH; ++i)
#pragma unroll
                for (u32 j = 0; j < EACH; ++j) sums[i][j] = fmaf(xs[at][my_row + i], ws[at][my_col + j], sums[i][j]);
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < EACH; ++i) {
#pragma unroll
        for (u32 j = 0; j < EACH; ++j) {
            u32 row = first_row + my_row + i, col = first_col + my_col + j;
            if (row >= rows || col >= n) continue;
            Out* to = out + (u64)row * n + col;
            f32 sum = sums[i][j];
            if (bias) sum += bias[col];
            if (accumulate) sum += load(*to);
            *to = Cast<Out>::from(sum);
        }
    }
}

#define MATMUL(X, W, OUT) \
    extern "C" __global__ void __launch_bounds__(256) matmul_##X##_##W##_##OUT( \
        const X* x, const W* w, const f32* bias, OUT* out, u32 rows, u32 n, u32 k, u32 accumulate) { \
        matmul(x, w, bias, out, rows, n, k, accumulate); \
    }

MATMUL(f32, f32, f32)
MATMUL(f32, bf16, f32)
MATMUL(f32, f16, f32)
MATMUL(bf16, bf16, f32)
MATMUL(bf16, bf16, bf16)
MATMUL(f16, f16, f32)
MATMUL(f16, f16, f16)
