// The work of `attention_latent.cu`: the list of (sequence, tile of rows, tile of keys), and walking along the part of
// it that a block has. Called by whole warps.
#pragma once
#include "quire.cuh"

// Keys of a tile; rows of a tile, which are pairs of token and query head.
#ifdef TILE_KEYS
#define TILE ((u32)TILE_KEYS)
#else
#define TILE 64u
#endif
#ifdef TILE_ROWS
#define ROWS ((u32)TILE_ROWS)
#else
#define ROWS 64u
#endif
// Blocks of a cluster, which take neighbouring tiles of rows and the same keys: of a team's rows.
#ifndef BLOCKS
#define BLOCKS 1
#endif
#define TEAM_ROWS (BLOCKS * ROWS)
#include "decode.cuh"

// What beginning and ending a tile of rows takes, in tiles of keys: a part of the list of its own, before these.
#ifndef OVERHEAD
#define OVERHEAD 3u
#endif

// A part of the list that lies in one tile of rows: the keys that a block takes for it, of which there may be none.
struct Piece {
    u32 sequence, row_tile;
    // Units of the list, from the first of this tile of rows on; tiles of keys that this sees.
    u32 from, until, all;

    DEVICE u32 units() const { return all + OVERHEAD; }
    // Tiles of keys.
    DEVICE static u32 key_tile(u32 unit) { return unit > OVERHEAD ? unit - OVERHEAD : 0; }
    DEVICE u32 first() const { return key_tile(from); }
    DEVICE u32 end() const { return key_tile(until); }

    DEVICE bool begins() const { return first() == 0 && end() > 0; }
    DEVICE bool ends() const { return end() == all; }
};

struct LatentList {
    Batch batch;
    u32 heads, sequences;

    DEVICE static u32 sum_of(u32 x) { return __reduce_add_sync(~0u, x); }
    // Of this lane and those below it.
    DEVICE static u32 sum_up_to(u32 x) {
#pragma unroll
        for (u32 lanes = 1; lanes < 32; lanes *= 2) {
            const u32 other = __shfl_up_sync(~0u, x, lanes);
            if (threadIdx.x % 32 >= lanes) x += other;
        }
        return x;
    }

    DEVICE u32 row_tiles(u32 rows) const { return (rows * heads + TEAM_ROWS - 1) / TEAM_ROWS; }
    // Tiles of keys that some row of a tile sees.
    DEVICE u32 key_tiles(u32 rows, u32 start, u32 row_tile) const {
        const u32 last = (min((row_tile + 1) * TEAM_ROWS, rows * heads) - 1) / heads;
        return (start + last) / TILE + 1;
    }

    // Units of all tiles of rows of a lane's sequence, of 32 from `base` on.
    DEVICE u32 units_of(u32 base) const {
        const u32 lane = threadIdx.x % 32, sequence = base + lane;
        u32 rows = 0, start = 0;
        if (sequence < sequences) {
            rows = batch.num_rows[sequence];
            start = batch.start[sequence];
            // Whoever has it needs these next.
            touch((const f32*)batch.first_row + sequence);
            touch((const f32*)batch.first_block + sequence);
        }
        u32 mine = rows == 1 ? row_tiles(1) * (key_tiles(1, start, 0) + OVERHEAD) : 0;
        for (u32 more = __ballot_sync(~0u, rows > 1); more != 0; more &= more - 1) {
            const u32 owner = __ffs(more) - 1;
            const u32 its_rows = __shfl_sync(~0u, rows, owner), its_start = __shfl_sync(~0u, start, owner);
            u32 tiles = 0;
            for (u32 tile = lane; tile < row_tiles(its_rows); tile += 32) tiles += key_tiles(its_rows, its_start, tile);
            tiles = sum_of(tiles) + row_tiles(its_rows) * OVERHEAD;
            if (lane == owner) mine = tiles;
        }
        return mine;
    }

    // Of all sequences. `first`: of a lane's one of the first 32.
    DEVICE u32 total(u32 first) const {
        u32 units = sum_of(first);
        for (u32 base = 32; base < sequences; base += 32) units += sum_of(units_of(base));
        return units;
    }

    // How many clusters of `most` the list is cut among: where tiles of rows are all as long as each other, as decoding
    // sequences' often are, a number for which whole ones, or whole parts of each, fall to a cluster, if that leaves
    // few of them idle.
    DEVICE u32 teams(u32 total, u32 most) const {
        u32 tiles = 0, longest = 0;
        for (u32 base = threadIdx.x % 32; base < sequences; base += 32) {
            const u32 rows = batch.num_rows[base], mine = row_tiles(rows);
            if (rows == 0) continue;
            tiles += mine;
            longest = max(longest, key_tiles(rows, batch.start[base], mine - 1) + OVERHEAD);
        }
        tiles = sum_of(tiles);
        longest = __reduce_max_sync(~0u, longest);
        most = min(most, total);
        if (total == 0 || tiles * longest != total) return most;
        const u32 each = (tiles + most - 1) / most, count = tiles <= most ? most / tiles * tiles : tiles / each;
        return count >= most - most / 5 && (tiles <= most || tiles % each == 0) ? count : most;
    }

    // The piece of at most `most` units that begins at unit `unit` of the list, which there must be. `mine`: of a
    // lane's one of the first 32 sequences.
    DEVICE Piece seek(u32 unit, u32 most, u32 mine) const {
        const u32 lane = threadIdx.x % 32;
        Piece piece = {};
        for (u32 base = 0; base < sequences; base += 32) {
            if (base > 0) mine = units_of(base);
            const u32 up_to = sum_up_to(mine), found = __ballot_sync(~0u, unit < up_to);
            if (found) {
                const u32 owner = __ffs(found) - 1;
                piece.sequence = base + owner;
                unit -= __shfl_sync(~0u, up_to - mine, owner);
                break;
            }
            unit -= __shfl_sync(~0u, up_to, 31);
        }
        const u32 rows = batch.num_rows[piece.sequence], start = batch.start[piece.sequence], tiles = row_tiles(rows);
        for (u32 base = 0; base < tiles; base += 32) {
            const u32 tile = base + lane, mine = tile < tiles ? key_tiles(rows, start, tile) + OVERHEAD : 0,
                      up_to = sum_up_to(mine), found = __ballot_sync(~0u, unit < up_to);
            if (found) {
                const u32 owner = __ffs(found) - 1;
                piece.row_tile = base + owner;
                unit -= __shfl_sync(~0u, up_to - mine, owner);
                break;
            }
            unit -= __shfl_sync(~0u, up_to, 31);
        }
        piece.all = key_tiles(rows, start, piece.row_tile);
        piece.from = unit;
        piece.until = min(piece.units(), unit + most);
        return piece;
    }

    // The piece after one that ends its tile of rows, of which there must be one.
    DEVICE Piece after(Piece piece, u32 most) const {
        if (++piece.row_tile == row_tiles(batch.num_rows[piece.sequence])) {
            piece.sequence = next(piece.sequence);
            piece.row_tile = 0;
        }
        piece.all = key_tiles(batch.num_rows[piece.sequence], batch.start[piece.sequence], piece.row_tile);
        piece.from = 0;
        piece.until = min(piece.units(), most);
        return piece;
    }

    // The next sequence with rows, of which there must be one.
    DEVICE u32 next(u32 sequence) const {
        for (u32 base = sequence + 1;; base += 32) {
            const u32 other = base + threadIdx.x % 32;
            const u32 some = __ballot_sync(~0u, other < sequences && batch.num_rows[other] > 0);
            if (some || base >= sequences) return base + __ffs(some) - 1;
        }
    }
};
