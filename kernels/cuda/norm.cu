// Normalisation of rows, alone or after a residual add (one block a row), and of heads inside a row (one warp a head).
// Sums run over a block or warp whose size depends on the width alone.
#include "quire.cuh"

// `ops::Norm`; see kernels/src/cuda/norm.rs.
struct Norm {
    const f32* weight;
    const f32* bias;
    f32 eps;
    u32 subtract_mean;
};

DEVICE f32 normed(const Norm& norm, f32 x, f32 mean, f32 factor, u32 i) {
    f32 y = (x - mean) * factor;
    if (norm.weight) y *= norm.weight[i];
    if (norm.bias) y += norm.bias[i];
    return y;
}

// `x` and `out` may be the same: an element is read and written by one thread, and all are read before any is written.
template <typename In, typename Out> DEVICE void norm_row(const In* x, Norm norm, Out* out, u32 width) {
    f32 mean = 0.0f;
    if (norm.subtract_mean) {
        f32 sum = 0.0f;
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) sum += load(x[i]);
        mean = block_sum(sum) / width;
    }
    f32 square = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        f32 centred = load(x[i]) - mean;
        square += centred * centred;
    }
    f32 factor = 1.0f / sqrtf(block_sum(square) / width + norm.eps);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) out[i] = Cast<Out>::from(normed(norm, load(x[i]), mean, factor, i));
}

template <typename Delta, typename Out>
DEVICE void add_norm(f32* residual, const Delta* delta, Norm norm, Out* out, u32 width) {
    u64 row = blockIdx.x * (u64)width;
    // Each thread reads back below only what it wrote here itself.
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) residual[row + i] += load(delta[row + i]);
    norm_row(residual + row, norm, out + row, width);
}

template <typename T> DEVICE void head_norm(T* x, Norm norm, u32 first_col, u32 heads, u32 dim, u32 width) {
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
    for (u32 i = lane; i < dim; i += 32) values[i] = Cast<T>::from(normed(norm, load(values[i]), mean, factor, i));
}

#define NORM(IN, OUT) \
    extern "C" __global__ void norm_##IN##_##OUT(const IN* x, Norm norm, OUT* out, u32 width) { \
        norm_row(x + blockIdx.x * (u64)width, norm, out + blockIdx.x * (u64)width, width); \
    } \
    extern "C" __global__ void add_norm_##IN##_##OUT(f32* residual, const IN* delta, Norm norm, OUT* out, u32 width) { \
        add_norm(residual, delta, norm, out, width); \
    }
#define HEAD_NORM(T) \
    extern "C" __global__ void head_norm_##T(T* x, Norm norm, u32 first_col, u32 heads, u32 dim, u32 width) { \
        head_norm(x, norm, first_col, heads, dim, width); \
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
