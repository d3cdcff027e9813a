// A residual add and the norm of the sum, one block a row.
#include "norm.cuh"

template <u32 TIMES, typename Delta, typename Out>
DEVICE void add_norm(f32* residual, const Delta* delta, const Norm& norm, Out* out, u32 width) {
    launch_dependents();
    fetch_params(norm, width);
    wait_for_inputs();
    u64 row = blockIdx.x * (u64)width;
    if (!is_kept<TIMES>(width)) {
        add_row(residual + row, delta + row, width);
        return norm_row(residual + row, norm, out + row, width);
    }
    Row<TIMES> sum;
    auto stored = [&](u32, u32 at) { return load_four(residual + row + at); };
    auto added = [&](u32, u32 at) { return load_four(delta + row + at); };
    sum.add(stored, added, residual + row, width);
    sum.write(norm, out + row, width);
}

#define ADD_NORM(DELTA, OUT) \
    extern "C" __global__ void add_norm_##DELTA##_##OUT( \
        f32* residual, const DELTA* delta, const Norm how, OUT* out, u32 width) { \
        add_norm<USUAL>(residual, delta, how, out, width); \
    } \
    extern "C" __global__ void add_norm_wide_##DELTA##_##OUT( \
        f32* residual, const DELTA* delta, const Norm how, OUT* out, u32 width) { \
        add_norm<WIDE>(residual, delta, how, out, width); \
    }

ADD_NORM(f32, f32)
ADD_NORM(f32, bf16)
ADD_NORM(f32, f16)
ADD_NORM(bf16, f32)
ADD_NORM(f16, f32)
ADD_NORM(bf16, bf16)
ADD_NORM(f16, f16)
