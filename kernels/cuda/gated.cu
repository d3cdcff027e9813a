// out = activation(gate) * up, where each row of the input is [gate | up]. One block a row.
#include "activation.cuh"

template <typename In, typename Out> DEVICE void gated(const In* gate_up, Out* out, Activation activation, u32 width) {
    const In* gate = gate_up + blockIdx.x * 2ull * width;
    const In* up = gate + width;
    Out* row = out + blockIdx.x * (u64)width;
    for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < width; i += gridDim.y * blockDim.x)
        row[i] = Cast<Out>::from(activated(activation, load(gate[i])) * gated_half(activation, load(up[i])));
}

#define GATED(IN, OUT) \
    extern "C" __global__ void gated_##IN##_##OUT(const IN* gate_up, OUT* out, Activation activation, u32 width) { \
        gated(gate_up, out, activation, width); \
    }

GATED(f32, f32)
GATED(f32, bf16)
GATED(f32, f16)
GATED(bf16, bf16)
GATED(f16, f16)
