// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert], or what an activation makes of it, where experts have
// few rows: `skinny.cuh` for each tile, so that an expert's weights are read once for up to 32 rows, at the memory's
// speed. Tiles of one expert are neighbours: those past the first find its weights in the cache.
#include "experts.cuh"
#include "skinny.cuh"

// Columns of `out` of a block that keeps gated ones: it has as many rows of either half of the weights.
constexpr u32 GATED_COLUMNS = Skinny::COLUMNS / 2;

DEVICE void put(void* out, size_t at, f32 value, u32 wide) {
    if (wide) ((f32*)out)[at] = value;
    else ((TYPE*)out)[at] = Cast<TYPE>::from(value);
}

// Grid: [tiles, columns of `out` over those of a block, rounded up].
extern "C" __global__ void __launch_bounds__(32 * WARPS, LEAST_BLOCKS) expert_matmul_skinny(void* out, const TYPE* x,
    const TYPE* const* weights, const f32* bias, const Choices choices, const ExpertShape shape) {
    __shared__ Skinny::Parts parts;
    launch_dependents();
    wait_for_inputs();
    if (blockIdx.x >= choices.num_tiles(shape.pairs)) return;
    const Tile tile = choices.tile(blockIdx.x);
    const u32 rows = choices.rows_of(tile), width = shape.width();
    const u32 first = blockIdx.y * (GATED ? GATED_COLUMNS : Skinny::COLUMNS);
    const f32* shifts = bias ? bias + (size_t)tile.expert * shape.n : bias;
    Skinny product(shape.k);
    product.start_weights(weights[tile.expert], shape.k, [=](u32 at) {
        const bool up = GATED && at >= GATED_COLUMNS;
        return min(first + (up ? at - GATED_COLUMNS : at), width - 1) + (up ? width : 0);
    });
    product.start_rows(rows, [=](u32 row) {
        return x + (size_t)(choices.pair(tile.begin + min(row, rows - 1)) / shape.pairs_a_row) * shape.k;
    });
    product.run(parts);
    if constexpr (!GATED) {
        Skinny::finish(parts, rows, first, width, shifts, [=](u32 row, u32 column, f32 sum) {
            put(out, (size_t)choices.pair(tile.begin + row) * width + column, sum, shape.wide);
        });
    } else {
        for (u32 i = threadIdx.x; i < rows * GATED_COLUMNS; i += WARPS * 32) {
            const u32 row = i / GATED_COLUMNS, inside = i % GATED_COLUMNS, column = first + inside;
            if (column >= width) continue;
            const f32 gate = Skinny::add(parts, row, inside, shifts ? shifts[column] : 0.0f);
            const f32 up = Skinny::add(parts, row, GATED_COLUMNS + inside, shifts ? shifts[width + column] : 0.0f);
            put(out, (size_t)choices.pair(tile.begin + row) * width + column, shape.gated(gate, up), shape.wide);
        }
    }
}
