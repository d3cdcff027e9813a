// out[m, n] = x[m, k] w[n, k]^T (+ bias) (+ out) for few rows of x and weights of 4 or 8 bits; or, compiled with
// GATED, activation(g) * u of its columns [g | u]. The first weights are read before the kernel waits for its input,
// because weights are there already. `src/gemm/matmul_packed.rs` chooses the configuration.
#include "activation.cuh"
#include "packed_skinny.cuh"

#ifndef GATED
#define GATED 0
#endif

#if __CUDA_ARCH__ >= 800
// Grid: [tiles / TILES, rows / ROWS, both rounded up]. `k` is a multiple of 8; gated, n of 32 and TILES of 2.
extern "C" __global__ void __launch_bounds__(32 * WARPS, LEAST_BLOCKS) matmul_packed(void* out, const TYPE* x,
    const PackedWeights w, const f32* bias, const PackedShape shape, const Activation activation) {
    __shared__ PackedSkinny::Parts parts;
    __shared__ u32 table[CODE == LEVELS ? 256 : 1];
    const u32 last = (shape.n + TILE_ROWS - 1) / TILE_ROWS - 1, half = TILES / 2;
    PackedSkinny product(w, table);
    product.start_weights([=](u32 tile) {
        if (!GATED) return min(blockIdx.x * TILES + tile, last);
        const u32 gates = (last + 1) / 2;
        return min(blockIdx.x * half + tile % (half ? half : 1), gates - 1) + (tile < half ? 0 : gates);
    });
    launch_dependents();
    if (CODE == LEVELS) {
        make_table<TYPE>(w, table);
        __syncthreads();
    }
    wait_for_inputs();
    const u32 first_row = blockIdx.y * PackedSkinny::ROWS, rows = min(shape.rows - first_row, PackedSkinny::ROWS);
    product.start_rows(rows, [=](u32 row) { return x + (size_t)(first_row + row) * shape.k; });
    product.run(parts);
    constexpr u32 COLUMNS = PackedSkinny::COLUMNS / (GATED ? 2 : 1);
    const u32 width = shape.n / (GATED ? 2 : 1);
    for (u32 i = threadIdx.x; i < rows * COLUMNS; i += WARPS * 32) {
        const u32 row = i / COLUMNS, column = i % COLUMNS, at = blockIdx.x * COLUMNS + column;
        if (at >= width) continue;
        const size_t to = (size_t)(first_row + row) * width + at;
        f32 sum = PackedSkinny::whole(parts, row, column, bias ? bias[at] : 0.0f);
        if (GATED) {
            const f32 other = PackedSkinny::whole(
                parts, row, COLUMNS + column, bias ? bias[width + at] : 0.0f);
            // Rounded as if they had been stored.
            const f32 gate = load(Cast<TYPE>::from(sum)), up = load(Cast<TYPE>::from(other));
            sum = activated(activation, gate) * gated_half(activation, up);
        }
        if (shape.accumulate) sum += shape.wide ? ((const f32*)out)[to] : load(((const TYPE*)out)[to]);
        put<TYPE>(out, to, sum, shape.wide);
    }
}
#else
extern "C" __global__ void matmul_packed() {}
#endif
