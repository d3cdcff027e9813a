// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert], or what an activation makes of it, for weights of 4 or
// 8 bits, where experts have few rows: `packed_skinny.cuh` for each tile. Tiles of one expert are neighbours: those
// past the first find its weights in the cache.
#include "experts.cuh"
#include "packed_skinny.cuh"

#if __CUDA_ARCH__ >= 800
// Grid: [tiles of rows, columns of `out` over those of a block, rounded up]. k is a multiple of 8; gated, n of 32 and
// TILES of 2.
extern "C" __global__ void __launch_bounds__(32 * WARPS, LEAST_BLOCKS) expert_matmul_packed(void* out, const TYPE* x,
    const PackedWeights* weights, const f32* bias, const Choices choices, const ExpertShape shape) {
    constexpr u32 COLUMNS = PackedSkinny::COLUMNS / (GATED ? 2 : 1);
    __shared__ PackedSkinny::Parts parts;
    __shared__ u32 table[CODE == LEVELS ? 256 : 1];
    launch_dependents();
    wait_for_inputs();
    if (blockIdx.x >= choices.num_tiles(shape.pairs)) return;
    const Tile tile = choices.tile(blockIdx.x);
    const u32 rows = choices.rows_of(tile), width = shape.width(), first = blockIdx.y * COLUMNS;
    const PackedWeights w = weights[tile.expert];
    PackedSkinny product(w, table);
    product.start_weights([=](u32 at) {
        const u32 kept = COLUMNS / TILE_ROWS, last = (width + TILE_ROWS - 1) / TILE_ROWS - 1;
        return min(first / TILE_ROWS + at % kept, last) + (at < kept ? 0 : width / TILE_ROWS);
    });
    if (CODE == LEVELS) {
        make_table<TYPE>(w, table);
        __syncthreads();
    }
    product.start_rows(rows, [=](u32 row) {
        return x + (size_t)(choices.pair(tile.begin + min(row, rows - 1)) / shape.pairs_a_row) * shape.k;
    });
    product.run(parts);
    const f32* shifts = bias ? bias + (size_t)tile.expert * shape.n : bias;
    for (u32 i = threadIdx.x; i < rows * COLUMNS; i += WARPS * 32) {
        const u32 row = i / COLUMNS, inside = i % COLUMNS, at = first + inside;
        if (at >= width) continue;
        f32 sum = PackedSkinny::whole(parts, row, inside, shifts ? shifts[at] : 0.0f);
        if constexpr (GATED)
            sum = shape.gated(
                sum, PackedSkinny::whole(parts, row, COLUMNS + inside, shifts ? shifts[width + at] : 0.0f));
        put<TYPE>(out, (size_t)choices.pair(tile.begin + row) * width + at, sum, shape.wide);
    }
}
#else
extern "C" __global__ void expert_matmul_packed() {}
#endif
