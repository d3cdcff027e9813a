// A step's shared prefix: decoding sequences whose tables begin with the same blocks (`src/runtime/shared_prefix.rs`).
// `attention_cascade.cu` attends to these once for all of them, in units: some rows, some keys, one key head; and
// `attention_decode.cu` adds what that leaves to the rest of each row. How units are cut is computed here by both, from
// what is in device memory: a recorded launch knows of no length.
#pragma once
#include "quire.cuh"

// Rows of a unit, each a pair (member, query head of the key head's group), and keys of a tile.
#define UNIT_ROWS 128u
#define UNIT_KEYS 64u
// Parts of a prefix at most, and tiles of each at least.
#define MOST_PARTS 64u
#define LEAST_TILES 4u

// What does not change while a launch is recorded and replayed; `Cascade` of `src/attention/attention_cascade.rs`.
struct Cascade {
    // What units leave: see `Unit`.
    f32* units;
    // Units that there is room for, and blocks of the grid that works on them.
    u32 most, blocks;
};
SAME_LAYOUT(Cascade, Cascade);

struct SharedPrefix {
    // None: nothing is shared.
    u32 tokens;
    u32 members;
    // Of a key head's rows.
    u32 row_tiles;
    // Parts of the prefix, and keys of each but the last.
    u32 parts, part_keys;

    SharedPrefix() = default;
    // By whole warps.
    DEVICE SharedPrefix(const Batch& batch, const Attention& attention, const Cascade& cascade) {
        const u32 lane = threadIdx.x % 32, group_size = attention.q_heads / attention.kv_heads;
        members = batch.counts[4];
        tokens = min(batch.shared[0] * attention.block_size, batch.counts[5]);
        if (members == 0) tokens = 0;
        row_tiles = (members * group_size + UNIT_ROWS - 1) / UNIT_ROWS;
        parts = part_keys = 0;
        if (tokens == 0) return;
        const u32 tiles = (tokens + UNIT_KEYS - 1) / UNIT_KEYS, all = row_tiles * attention.kv_heads;
        // Each lane looks at some numbers of parts: what takes the fewest tiles one after the other is best. To leave
        // and add one more part takes about as long as a sixth of a tile.
        u32 best = ~0u;
        for (u32 count = 1 + lane; count <= MOST_PARTS; count += 32) {
            if (count > 1 && (count * LEAST_TILES > tiles || count * all > cascade.most)) break;
            const u32 turns = (count * all + cascade.blocks - 1) / cascade.blocks, each = (tiles + count - 1) / count;
            best = min(best, (6 * turns * each + count) << 8 | count);
        }
        best = __reduce_min_sync(~0u, best) & 255;
        const u32 each = (tiles + best - 1) / best;
        part_keys = each * UNIT_KEYS;
        // None is empty.
        parts = (tiles + each - 1) / each;
    }

    // The first of the units of a key head's tile of rows: one for each part, one after the other.
    DEVICE u32 first_unit(u32 kv_head, u32 row_tile) const { return (kv_head * row_tiles + row_tile) * parts; }
};

// What a unit leaves: UNIT_ROWS rows of `WIDTH` columns, as `Part` of `decode_parts.cuh` has them.
template <u32 WIDTH>
struct Unit {
    static const u32 SIZE = UNIT_ROWS * (WIDTH + 2);
    f32* at;

    DEVICE Unit(const Cascade& cascade, u32 unit) : at(cascade.units + (size_t)unit * SIZE) {}

    // Sums of weighted values, from a column on; the largest score (base 2); the sum of weights relative to it.
    DEVICE f32* sums(u32 row, u32 column) const { return at + row * WIDTH + column; }
    DEVICE f32& most(u32 row) const { return at[UNIT_ROWS * WIDTH + row]; }
    DEVICE f32& weight(u32 row) const { return at[UNIT_ROWS * (WIDTH + 1) + row]; }
};
