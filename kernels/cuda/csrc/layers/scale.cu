// x *= factor, element by element.
#include "quire.cuh"

template <typename T> DEVICE void scale(T* x, f32 factor, u64 count) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x)
        x[i] = Cast<T>::from(load(x[i]) * factor);
}

#define SCALE(T) \
    extern "C" __global__ void scale_##T(T* x, f32 factor, u64 count) { scale(x, factor, count); }

SCALE(f32)
SCALE(bf16)
SCALE(f16)
