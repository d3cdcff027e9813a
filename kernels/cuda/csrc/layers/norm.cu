// Normalisation of rows (one block a row), and of heads inside a row (one warp a head). Sums run over a block or warp
// whose size depends on the width alone. A row that fits is read once and kept in registers. What is fused with a norm
// has files of its own: a compiler takes seconds for all of them together.
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
HEAD_NORM(f32)
HEAD_NORM(bf16)
HEAD_NORM(f16)
