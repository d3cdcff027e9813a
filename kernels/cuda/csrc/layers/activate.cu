// x = activation(x), element by element; of 16-bit types eight at a time.
#include "activation.cuh"

template <typename T> struct Accuracy {
    typedef Nearly How;
};
template <> struct Accuracy<f32> {
    typedef Exact How;
};

template <typename T> DEVICE void activate(T* x, Activation activation, u64 count) {
    typedef typename Accuracy<T>::How How;
    constexpr u32 PIECE = 16 / sizeof(T);
    launch_dependents();
    wait_for_inputs();
    const u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x, step = gridDim.x * (u64)blockDim.x;
    for (u64 i = first; i < count / PIECE; i += step) {
        uint4 piece = ((const uint4*)x)[i];
        T* y = (T*)&piece;
#pragma unroll
        for (u32 j = 0; j < PIECE; j++) y[j] = Cast<T>::from(activated<How>(activation, load(y[j])));
        ((uint4*)x)[i] = piece;
    }
    const u64 left = count / PIECE * PIECE + first;
    if (left < count) x[left] = Cast<T>::from(activated<How>(activation, load(x[left])));
}

#define ACTIVATE(T) \
    extern "C" __global__ void activate_##T(T* x, Activation activation, u64 count) { activate(x, activation, count); }

ACTIVATE(f32)
ACTIVATE(bf16)
ACTIVATE(f16)
