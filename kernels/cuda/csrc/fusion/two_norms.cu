// Two norms of the same rows, one block a row, which is read once.
#include "norm.cuh"

// Two norms of the same rows, which differ in weights and biases alone.
template <u32 TIMES, typename Out>
DEVICE void two_norms(const f32* x, const Norm& first, const Norm& second, Out* out, Out* other, u32 width) {
    launch_dependents();
    fetch_params(first, width);
    fetch_params(second, width);
    wait_for_inputs();
    const u64 row = blockIdx.x * (u64)width;
    if (!is_kept<TIMES>(width)) {
        norm_row(x + row, first, out + row, width);
        return norm_row(x + row, second, other + row, width);
    }
    Row<TIMES> kept;
    kept.read(x + row, width);
    kept.norm({0, 0, first.eps, first.subtract_mean}, width, [&](u32, u32 at, float4 y) {
        store_four(out + row + at, normed_four(first, y, 0.0f, 1.0f, at));
        store_four(other + row + at, normed_four(second, y, 0.0f, 1.0f, at));
    });
}

#define TWO_NORMS(OUT) \
    extern "C" __global__ void two_norms_f32_##OUT( \
        const f32* x, const Norm first, const Norm second, OUT* out, OUT* other, u32 width) { \
        two_norms<USUAL>(x, first, second, out, other, width); \
    } \
    extern "C" __global__ void two_norms_wide_f32_##OUT( \
        const f32* x, const Norm first, const Norm second, OUT* out, OUT* other, u32 width) { \
        two_norms<WIDE>(x, first, second, out, other, width); \
    }

TWO_NORMS(f32)
TWO_NORMS(bf16)
TWO_NORMS(f16)
