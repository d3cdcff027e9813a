// out[row] = sum over slots of weight[row][slot] * x[row * top_k + slot], slots in ascending order; or added to out.
#include "quire.cuh"

template <typename X, typename Out>
DEVICE void combine(const X* x, const f32* weights, Out* out, u32 top_k, u32 width, u32 accumulate) {
    u64 row = blockIdx.x;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        f32 sum = 0.0f;
        for (u32 slot = 0; slot < top_k; ++slot)
            sum = fmaf(weights[row * top_k + slot], load(x[(row * top_k + slot) * width + i]), sum);
        Out* to = out + row * width + i;
        *to = Cast<Out>::from(accumulate ? sum + load(*to) : sum);
    }
}

#define COMBINE(X, OUT) \
    extern "C" __global__ void combine_##X##_##OUT( \
        const X* x, const f32* weights, OUT* out, u32 top_k, u32 width, u32 accumulate) { \
        combine(x, weights, out, top_k, width, accumulate); \
    }

COMBINE(f32, f32)
COMBINE(bf16, f32)
COMBINE(f16, f32)
COMBINE(bf16, bf16)
COMBINE(f16, f16)
