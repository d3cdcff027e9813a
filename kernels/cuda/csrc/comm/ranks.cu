// Gathers what ranks have of rows; exchange.cuh says how they exchange it.
#include "one_shot.cuh"

// Column `col` of row `row` of a rank's part goes to its place in the whole row, unless it is padding.
DEVICE void place(f32* out, u32 out_width, u32 width, u64 element, u32 from, f32 value) {
    u64 row = element / width, col = from * (u64)width + element % width;
    if (col < out_width) out[row * out_width + col] = value;
}

// out[row] = [x[row] of rank 0 | x[row] of rank 1 | ...], cut to `out_width`.
extern "C" __global__ void __launch_bounds__(THREADS)
    ranks_gather(const __grid_constant__ Ranks ranks, const f32* x, f32* out, u32 rows, u32 width, u32 out_width) {
    u64 count = (u64)rows * width;
    exchange<f32>(ranks, x, count, [&](u64 first, u32 from, Packet<f32> packet) {
#pragma unroll
        for (u32 i = 0; i < Packet<f32>::NUMBERS; i++)
            if (first + i < count) place(out, out_width, width, first + i, from, packet.numbers[i]);
    });
}

// The same of parts that are all here: `parts` is [rank][row][width].
extern "C" __global__ void ranks_place(const f32* parts, f32* out, u32 size, u32 rows, u32 width, u32 out_width) {
    u64 part = (u64)rows * width;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < size * part; i += gridDim.x * (u64)blockDim.x)
        place(out, out_width, width, i % part, i / part, parts[i]);
}
