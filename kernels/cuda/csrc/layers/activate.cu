// x = activation(x), element by element.
#include "activation.cuh"

template <typename T> DEVICE void activate(T* x, Activation activation, u64 count) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x)
        x[i] = Cast<T>::from(activated(activation, load(x[i])));
}

#define ACTIVATE(T) \
    extern "C" __global__ void activate_##T(T* x, Activation activation, u64 count) { activate(x, activation, count); }

ACTIVATE(f32)
ACTIVATE(bf16)
ACTIVATE(f16)
