// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert] where experts have few rows: `few.cuh` for each tile, so that an expert's
// weights are read once for up to 32 rows, at the memory's speed. Tiles of one expert are neighbours: those past the first find its weights
// in the cache.
#include "experts.cuh"
#include "few.cuh"

// Grid: [tiles, n / (8 TILES), rounded up]. `wide`: `out` is f32; else it has the input's type.
extern "C" __global__ void __launch_bounds__(32 * WARPS, LEAST_BLOCKS) expert_matmul_few(
    void* out, const TYPE* x, const TYPE* const* weights, const f32* bias, const Choices choices, const ExpertShape shape, u32 wide) {
    __shared__ Few::Parts parts;
    launch_dependents();
    wait_for_inputs();
    if (blockIdx.x >= choices.num_tiles(shape.pairs)) return;
    const Tile tile = choices.tile(blockIdx.x);
    const u32 rows = choices.rows_of(tile), first = blockIdx.y * Few::COLUMNS;
    Few product(shape.k);
    product.start_weights(weights[tile.expert], first, shape.n, shape.k);
    product.start_rows(rows, [=](u32 row) {
        return x + (size_t)(choices.pair(tile.begin + min(row, rows - 1)) / shape.pairs_a_row) * shape.k;
    });
    product.run(parts);
    product.finish(parts, rows, first, shape.n, bias ? bias + (size_t)tile.expert * shape.n : bias, [=](u32 row, u32 column, f32 sum) {
        const size_t at = (size_t)choices.pair(tile.begin + row) * shape.n + column;
        if (wide) ((f32*)out)[at] = sum;
        else ((TYPE*)out)[at] = Cast<TYPE>::from(sum);
    });
}
