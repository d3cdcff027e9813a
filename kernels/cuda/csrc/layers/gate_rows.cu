// x[row] *= sigmoid(gate[row]). One block a row.
#include "quire.cuh"

template <typename X, typename G> DEVICE void gate_rows(X* x, const G* gate, u32 width) {
    f32 factor = 1.0f / (1.0f + expf(-load(gate[blockIdx.x])));
    X* row = x + blockIdx.x * (u64)width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) row[i] = Cast<X>::from(load(row[i]) * factor);
}

#define GATE_ROWS(X, G) \
    extern "C" __global__ void gate_rows_##X##_##G(X* x, const G* gate, u32 width) { gate_rows(x, gate, width); }

GATE_ROWS(f32, f32)
GATE_ROWS(f32, bf16)
GATE_ROWS(f32, f16)
GATE_ROWS(bf16, f32)
GATE_ROWS(f16, f32)
GATE_ROWS(bf16, bf16)
GATE_ROWS(f16, f16)
