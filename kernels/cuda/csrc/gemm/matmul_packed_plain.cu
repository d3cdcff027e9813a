// out = x w^T (+ bias), or added to what is there, for weights of 4 or 8 bits, of every type and shape, in f32: each
// element adds up its k products in order, whatever the other rows. x is [rows, k], out is [rows, n].
#include "packed.cuh"
#include "simt_tile.cuh"

template <typename X, typename Out>
DEVICE void plain(const X* x, const PackedWeights& w, const f32* bias, Out* out, u32 rows, u32 accumulate) {
    simt_tile(
        x, rows, w.n, w.k, [=](u32 col, u32 at) { return Group(w, col, at).value(w, code_at(w, col, at)); },
        [=](u32 row, u32 col, f32 sum) { finish(out + (u64)row * w.n + col, sum, bias, col, accumulate); });
}

#define PLAIN_OF(X, OUT) \
    extern "C" __global__ void __launch_bounds__(256) matmul_packed_plain_##X##_##OUT( \
        const X* x, const PackedWeights w, const f32* bias, OUT* out, u32 rows, u32 accumulate) { \
        plain(x, w, bias, out, rows, accumulate); \
    }

PLAIN_OF(f32, f32)
PLAIN_OF(f32, bf16)
PLAIN_OF(f32, f16)
PLAIN_OF(bf16, f32)
PLAIN_OF(bf16, bf16)
PLAIN_OF(f16, f32)
PLAIN_OF(f16, f16)
