// `x *= activation(gate)`, with columns of another buffer, and the norm of each head of the product, in place: a block
// for each head of a row, which keeps it in registers.
#include "activation.cuh"
#include "norm.cuh"

template <typename T> struct Gate {
    const T* first;
    u32 width;
    Activation activation;
};
SAME_LAYOUT(Gate<f32>, GateColumns);

template <u32 TIMES, typename T>
DEVICE void gated_norm(T* x, const Gate<T>& gate, Norm norm, u32 dim, u32 width, u32 stride) {
    launch_dependents();
    // Each head's own parameters, or the same for all.
    const u32 head = blockIdx.y;
    if (norm.weight) norm.weight += head * stride;
    if (norm.bias) norm.bias += head * stride;
    fetch_params(norm, dim);
    wait_for_inputs();
    T* values = x + blockIdx.x * (u64)width + head * dim;
    Row<TIMES> row, gates;
    row.read(values, dim);
    gates.read(gate.first + blockIdx.x * (u64)gate.width + head * dim, dim);
#pragma unroll
    for (u32 i = 0; i < TIMES; i++) {
        const float4 by = gates.x[i];
        row.x[i].x *= activated(gate.activation, by.x);
        row.x[i].y *= activated(gate.activation, by.y);
        row.x[i].z *= activated(gate.activation, by.z);
        row.x[i].w *= activated(gate.activation, by.w);
    }
    row.write(norm, values, dim);
}

#define GATED_NORM(T) \
    extern "C" __global__ void gated_norm_##T( \
        T* x, const Gate<T> gate, const Norm norm, u32 dim, u32 width, u32 stride) { \
        gated_norm<USUAL>(x, gate, norm, dim, width, stride); \
    } \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS) gated_norm_wide_##T( \
        T* x, const Gate<T> gate, const Norm norm, u32 dim, u32 width, u32 stride) { \
        gated_norm<WIDE>(x, gate, norm, dim, width, stride); \
    }

GATED_NORM(f32)
GATED_NORM(bf16)
GATED_NORM(f16)
