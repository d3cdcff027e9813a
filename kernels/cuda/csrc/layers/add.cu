// x += y, element by element.
#include "quire.cuh"

template <typename X, typename Y> DEVICE void add(X* x, const Y* y, u64 count) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x)
        x[i] = Cast<X>::from(load(x[i]) + load(y[i]));
}

#define ADD(X, Y) \
    extern "C" __global__ void add_##X##_##Y(X* x, const Y* y, u64 count) { add(x, y, count); }

ADD(f32, f32)
ADD(f32, bf16)
ADD(f32, f16)
ADD(bf16, bf16)
ADD(f16, f16)
