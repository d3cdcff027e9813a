// x = min(max(x, -limit), limit), element by element; NaN stays NaN.
#include "quire.cuh"

template <typename T> DEVICE void clamp(T* x, f32 limit, u64 count) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x) {
        f32 value = load(x[i]);
        x[i] = Cast<T>::from(value > limit ? limit : value < -limit ? -limit : value);
    }
}

#define CLAMP(T) \
    extern "C" __global__ void clamp_##T(T* x, f32 limit, u64 count) { clamp(x, limit, count); }

CLAMP(f32)
CLAMP(bf16)
CLAMP(f16)
