// A norm, an add to the residual, and the norm of the sum, one block a row.
#include "norm.cuh"

// `residual += norm(delta); out = norm(residual)`: a norm of the addend comes first, which is as if it were written.
template <u32 TIMES, typename Out>
DEVICE void norm_add_norm(f32* residual, f32* delta, const Norm& first, const Norm& norm, Out* out, u32 width) {
    launch_dependents();
    fetch_params(first, width);
    fetch_params(norm, width);
    wait_for_inputs();
    u64 row = blockIdx.x * (u64)width;
    if (!is_kept<TIMES>(width)) {
        norm_row(delta + row, first, delta + row, width);
        add_row(residual + row, delta + row, width);
        return norm_row(residual + row, norm, out + row, width);
    }
    Row<TIMES> sum, added;
    added.read(delta + row, width);
    sum.read(residual + row, width);
    added.norm_in_place(first, width);
    auto stored = [&](u32 i, u32) { return sum.x[i]; };
    sum.add(stored, [&](u32 i, u32) { return added.x[i]; }, residual + row, width);
    sum.write(norm, out + row, width);
}

#define NORM_ADD_NORM(OUT) \
    extern "C" __global__ void norm_add_norm_f32_##OUT( \
        f32* residual, f32* delta, const Norm first, const Norm how, OUT* out, u32 width) { \
        norm_add_norm<USUAL>(residual, delta, first, how, out, width); \
    } \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS) norm_add_norm_wide_f32_##OUT( \
        f32* residual, f32* delta, const Norm first, const Norm how, OUT* out, u32 width) { \
        norm_add_norm<WIDE>(residual, delta, first, how, out, width); \
    }

NORM_ADD_NORM(f32)
NORM_ADD_NORM(bf16)
NORM_ADD_NORM(f16)
