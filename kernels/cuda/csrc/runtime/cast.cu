// out = x in another element type.
#include "quire.cuh"

template <typename In, typename Out> DEVICE void cast(const In* x, Out* out, u64 count) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x)
        out[i] = Cast<Out>::from(load(x[i]));
}

#define CAST(IN, OUT) \
    extern "C" __global__ void cast_##IN##_##OUT(const IN* x, OUT* out, u64 count) { cast(x, out, count); }

CAST(f32, bf16)
CAST(f32, f16)
CAST(bf16, f32)
CAST(f16, f32)
