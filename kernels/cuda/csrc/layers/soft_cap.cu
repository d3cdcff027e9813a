// x = cap * tanh(x / cap), element by element.
#include "quire.cuh"

extern "C" __global__ void soft_cap_f32(f32* x, f32 cap, u64 count) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += gridDim.x * (u64)blockDim.x)
        x[i] = cap * tanhf(x[i] / cap);
}
