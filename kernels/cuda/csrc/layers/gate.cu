// x *= activation(gate), with as many columns of `gate` as x has. One block a row.
#include "activation.cuh"

#define GATE(T) \
    extern "C" __global__ void gate_##T(T* x, const T* gate, Activation activation, u32 width, u32 gate_width) { \
        T* row = x + blockIdx.x * (u64)width; \
        const T* gates = gate + blockIdx.x * (u64)gate_width; \
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) \
            row[i] = Cast<T>::from(load(row[i]) * activated(activation, load(gates[i]))); \
    }

GATE(f32)
GATE(bf16)
GATE(f16)
