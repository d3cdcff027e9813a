// x[row] += table[position of row + offset]. One block a row.
#include "quire.cuh"

template <typename T> DEVICE void add_positions(
    const T* table, const u32* positions, f32* x, u32 offset, u32 entries, u32 width) {
    u32 entry = positions[blockIdx.x] + offset;
    if (entry >= entries) return; // padding
    const T* from = table + (u64)entry * width;
    f32* to = x + blockIdx.x * (u64)width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) to[i] += load(from[i]);
}

#define ADD_POSITIONS(T) \
    extern "C" __global__ void add_positions_##T( \
        const T* table, const u32* positions, f32* x, u32 offset, u32 entries, u32 width) { \
        add_positions(table, positions, x, offset, entries, width); \
    }

ADD_POSITIONS(f32)
ADD_POSITIONS(bf16)
ADD_POSITIONS(f16)
