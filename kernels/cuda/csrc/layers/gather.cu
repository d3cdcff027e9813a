// out[i] = x[rows[i]]. One block a row of out.
#include "quire.cuh"

template <typename T> DEVICE void gather(const T* x, const u32* rows, T* out, u32 width) {
    const T* from = x + rows[blockIdx.x] * (u64)width;
    T* to = out + blockIdx.x * (u64)width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}

#define GATHER(T) \
    extern "C" __global__ void gather_##T(const T* x, const u32* rows, T* out, u32 width) { \
        gather(x, rows, out, width); \
    }

GATHER(f32)
GATHER(bf16)
GATHER(f16)
