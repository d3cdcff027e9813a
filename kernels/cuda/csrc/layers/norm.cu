// Normalisation of rows, alone or after a residual add (one block a row), and of heads inside a row (one warp a head).
// Sums run over a block or warp whose size depends on the width alone. A row that fits is read once and kept in
// registers.
#include "norm.cuh"

template <u32 TIMES, typename In, typename Out> DEVICE void norm(const In* x, const Norm& norm, Out* out, u32 width) {
    launch_dependents();
    fetch_params(norm, width);
    wait_for_inputs();
    u64 row = blockIdx.x * (u64)width;
    if (!is_kept<TIMES>(width)) return norm_row(x + row, norm, out + row, width);
    Row<TIMES> kept;
    kept.read(x + row, width);
    kept.write(norm, out + row, width);
}

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

// `stride`: from one head's parameters to the next one's; 0 where all share theirs.
template <typename T> DEVICE void head_norm(
    T* x, const Norm& norm, u32 first_col, u32 heads, u32 dim, u32 width, u32 stride) {
    launch_dependents();
    wait_for_inputs();
    u32 head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head >= heads) return;
    T* values = x + blockIdx.x * (u64)width + first_col + head * dim;
    f32 mean = 0.0f;
    if (norm.subtract_mean) {
        f32 sum = 0.0f;
        for (u32 i = lane; i < dim; i += 32) sum += load(values[i]);
        mean = warp_sum(sum) / dim;
    }
    f32 square = 0.0f;
    for (u32 i = lane; i < dim; i += 32) {
        f32 centred = load(values[i]) - mean;
        square += centred * centred;
    }
    f32 factor = 1.0f / sqrtf(warp_sum(square) / dim + norm.eps);
    for (u32 i = lane; i < dim; i += 32)
        values[i] = Cast<T>::from(normed(norm, load(values[i]), mean, factor, head * stride + i));
}

#define NORM(IN, OUT) \
    extern "C" __global__ void norm_##IN##_##OUT(const IN* x, const Norm how, OUT* out, u32 width) { \
        norm<USUAL>(x, how, out, width); \
    } \
    extern "C" __global__ void norm_wide_##IN##_##OUT(const IN* x, const Norm how, OUT* out, u32 width) { \
        norm<WIDE>(x, how, out, width); \
    } \
    extern "C" __global__ void add_norm_##IN##_##OUT( \
        f32* residual, const IN* delta, const Norm how, OUT* out, u32 width) { \
        add_norm<USUAL>(residual, delta, how, out, width); \
    } \
    extern "C" __global__ void add_norm_wide_##IN##_##OUT( \
        f32* residual, const IN* delta, const Norm how, OUT* out, u32 width) { \
        add_norm<WIDE>(residual, delta, how, out, width); \
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
#define NORM_ADD_NORM(OUT) \
    extern "C" __global__ void norm_add_norm_f32_##OUT( \
        f32* residual, f32* delta, const Norm first, const Norm how, OUT* out, u32 width) { \
        norm_add_norm<USUAL>(residual, delta, first, how, out, width); \
    } \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS) norm_add_norm_wide_f32_##OUT( \
        f32* residual, f32* delta, const Norm first, const Norm how, OUT* out, u32 width) { \
        norm_add_norm<WIDE>(residual, delta, first, how, out, width); \
    }
#define HEAD_NORM(T) \
    extern "C" __global__ void head_norm_##T( \
        T* x, const Norm how, u32 first_col, u32 heads, u32 dim, u32 width, u32 stride) { \
        head_norm(x, how, first_col, heads, dim, width, stride); \
    }

NORM(f32, f32)
NORM(f32, bf16)
NORM(f32, f16)
NORM(bf16, f32)
NORM(f16, f32)
NORM(bf16, bf16)
NORM(f16, f16)
TWO_NORMS(f32)
TWO_NORMS(bf16)
TWO_NORMS(f16)
NORM_ADD_NORM(f32)
NORM_ADD_NORM(bf16)
NORM_ADD_NORM(f16)
HEAD_NORM(f32)
HEAD_NORM(bf16)
HEAD_NORM(f16)
