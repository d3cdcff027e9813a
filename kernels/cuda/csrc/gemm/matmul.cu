// out = x w^T (+ bias), or added to what is there: the plain version, for every pair of types and every shape.
// x is [rows, k], w is [n, k], out is [rows, n].
#include "simt_tile.cuh"

template <typename X, typename W, typename Out>
DEVICE void matmul(const X* x, const W* w, const f32* bias, Out* out, u32 rows, u32 n, u32 k, u32 accumulate) {
    simt_tile(
        x, rows, n, k, [=](u32 col, u32 at) { return load(w[(u64)col * k + at]); },
        [=](u32 row, u32 col, f32 sum) { finish(out + (u64)row * n + col, sum, bias, col, accumulate); });
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
