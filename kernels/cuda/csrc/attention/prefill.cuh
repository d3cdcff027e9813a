// What kernels for sequences with several rows share: which block has which rows.
#pragma once
#include "quire.cuh"

// Finds tile `tile` of all sequences with at least `least` rows: returns false past the last; else the sequence and the
// tile in it. All threads of a block call it.
DEVICE bool find_tile(
    const Batch& batch, u32 group_size, u32 tile_rows, u32 least, u32 tile, u32& sequence, u32& inside) {
    const u32 sequences = batch.counts[1], lane = threadIdx.x % 32;
    u32 before = 0;
    for (u32 base = 0; base < sequences; base += 32) {
        const u32 rows = base + lane < sequences ? batch.num_rows[base + lane] : 0;
        const u32 mine = rows >= least ? (rows * group_size + tile_rows - 1) / tile_rows : 0;
        u32 sum = mine;
#pragma unroll
        for (u32 lanes = 1; lanes < 32; lanes *= 2) {
            const u32 other = __shfl_up_sync(~0u, sum, lanes);
            if (lane >= lanes) sum += other;
        }
        const u32 here = __ballot_sync(~0u, before + sum > tile);
        if (here) {
            const u32 owner = __ffs(here) - 1;
            sequence = base + owner;
            inside = tile - __shfl_sync(~0u, before + sum - mine, owner);
            return true;
        }
        before += __shfl_sync(~0u, sum, 31);
    }
    return false;
}
