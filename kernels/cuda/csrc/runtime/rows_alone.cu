// Some rows of a step as sequences of one row each: what attention of these rows alone is told of them.
#include "quire.cuh"

// `alone` has `count` entries of its own in `first_row`, `num_rows`, `start` and `first_block`; the rest is the step's.
extern "C" __global__ void rows_alone(const u32* rows, const Batch batch, const Batch alone, u32 count) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const u32 row = rows[i], sequence = batch.row_sequence[row];
        alone.first_row[i] = row;
        alone.num_rows[i] = sequence != NOBODY;
        alone.start[i] = batch.positions[row];
        alone.first_block[i] = sequence == NOBODY ? 0 : batch.first_block[sequence];
    }
}
