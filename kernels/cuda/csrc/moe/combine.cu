// out[row] = sum over slots of weight[row][slot] * x[row * top_k + slot], slots in ascending order; or added to out.
// Blocks (row, columns).
#include "quire.cuh"

// Elements that a thread reads at once.
template <typename T, u32 N> struct __align__(N * sizeof(T)) Several { T at[N]; };

template <u32 N, typename X, typename Out>
DEVICE void combine(const X* x, const f32* weights, Out* out, u32 top_k, u32 width, u32 accumulate) {
    const u64 row = blockIdx.x;
    for (u32 i = (blockIdx.y * blockDim.x + threadIdx.x) * N; i < width; i += gridDim.y * blockDim.x * N) {
        f32 sums[N] = {};
#pragma unroll 4
        for (u32 slot = 0; slot < top_k; ++slot) {
            const auto piece = *(const Several<X, N>*)(x + (row * top_k + slot) * width + i);
#pragma unroll
            for (u32 j = 0; j < N; j++) sums[j] = fmaf(weights[row * top_k + slot], load(piece.at[j]), sums[j]);
        }
        auto* to = (Several<Out, N>*)(out + row * width + i);
        Several<Out, N> result;
        if (accumulate) result = *to;
#pragma unroll
        for (u32 j = 0; j < N; j++) result.at[j] = Cast<Out>::from(accumulate ? sums[j] + load(result.at[j]) : sums[j]);
        *to = result;
    }
}

#define COMBINE(X, OUT) \
    extern "C" __global__ void combine_##X##_##OUT( \
        const X* x, const f32* weights, OUT* out, u32 top_k, u32 width, u32 accumulate) { \
        launch_dependents(); \
        wait_for_inputs(); \
        /* 16 bytes of x. */ \
        constexpr u32 N = 16 / sizeof(X); \
        if (width % N == 0) combine<N>(x, weights, out, top_k, width, accumulate); \
        else combine<1>(x, weights, out, top_k, width, accumulate); \
    }

COMBINE(f32, f32)
COMBINE(bf16, f32)
COMBINE(f16, f32)
COMBINE(bf16, bf16)
COMBINE(f16, f16)
