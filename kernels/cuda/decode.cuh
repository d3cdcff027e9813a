// The list of (sequence, head, tile of keys) of `attention_decode.cu`, and walking along it. For a file that says how many keys a TILE has, and
// how many WARPS a block.
#pragma once
#include "quire.cuh"

// Where in the list of tiles a warp is.
struct Cursor {
    u32 sequence;
    // Counts the groups of query heads of a sequence.
    u32 head;
    u32 tile;
    // Of this sequence.
    u32 first_tile;
    u32 end_tile;
    u32 begin;
    u32 end;
    const u32* table;
};

// Tiles of a sequence that its row sees, as [first, end), or an empty range if it does not decode in this step.
DEVICE void visible(const Batch& batch, u32 window, u32 sequence, Cursor& at) {
    const bool decodes = batch.num_rows[sequence] == 1;
    at.end = decodes ? batch.start[sequence] + 1 : 0;
    at.begin = at.end > window ? at.end - window : 0;
    at.first_tile = at.begin / TILE;
    at.end_tile = (at.end + TILE - 1) / TILE;
}

DEVICE void enter(const Batch& batch, u32 window, u32 sequence, Cursor& at) {
    visible(batch, window, sequence, at);
    at.sequence = sequence;
    at.table = batch.blocks + batch.first_block[sequence];
}

// `before[s]`: tiles of one head in all sequences before s.
DEVICE Cursor seek(const Batch& batch, u32 window, u32 heads, u32 sequences, const u32* before, u32 unit) {
    u32 low = 0, high = sequences;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (before[middle] * heads <= unit) low = middle;
        else high = middle;
    }
    Cursor at;
    enter(batch, window, low, at);
    const u32 inside = unit - before[low] * heads, tiles = at.end_tile - at.first_tile;
    at.head = inside / tiles;
    at.tile = at.first_tile + inside % tiles;
    return at;
}

DEVICE void advance(const Batch& batch, u32 window, u32 heads, u32 sequences, const u32* before, Cursor& at) {
    if (++at.tile < at.end_tile) return;
    if (++at.head == heads) {
        at.head = 0;
        u32 next = at.sequence + 1;
        while (next < sequences && before[next + 1] == before[next]) next++;
        if (next == sequences) return;
        enter(batch, window, next, at);
    }
    at.tile = at.first_tile;
}

// Fills `before` and returns the number of tiles of one head in the whole step.
DEVICE u32 plan(const Batch& batch, u32 window, u32 sequences, u32* before) {
    __shared__ u32 warp_tiles[WARPS];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 total = 0;
    for (u32 base = 0; base < sequences; base += WARPS * 32) {
        const u32 sequence = base + threadIdx.x;
        Cursor at;
        at.first_tile = at.end_tile = 0;
        if (sequence < sequences) visible(batch, window, sequence, at);
        const u32 mine = at.end_tile - at.first_tile;
        u32 sum = mine;
#pragma unroll
        for (u32 lanes = 1; lanes < 32; lanes *= 2) {
            const u32 other = __shfl_up_sync(~0u, sum, lanes);
            if (lane >= lanes) sum += other;
        }
        if (lane == 31) warp_tiles[warp] = sum;
        __syncthreads();
        u32 offset = total;
#pragma unroll
        for (u32 i = 0; i < WARPS; i++) {
            if (i < warp) offset += warp_tiles[i];
            total += warp_tiles[i];
        }
        if (sequence < sequences) before[sequence] = offset + sum - mine;
        __syncthreads();
    }
    if (threadIdx.x == 0) before[sequences] = total;
    __syncthreads();
    return total;
}
