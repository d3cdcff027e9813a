// The list of (sequence, head, tile of keys) of `attention_decode.cu`, where a block's part of it begins, and walking
// along it. For a file that says how many keys a TILE has. Each warp does it for itself: on the way to a kernel's first
// bytes nothing waits for another warp.
#pragma once
#include "quire.cuh"

// Where in the list of tiles a warp is.
struct Cursor {
    u32 sequence;
    // Counts the groups of query heads of a sequence.
    u32 head;
    u32 tile;
    // Of this sequence.
    u32 first_tile, end_tile;
    u32 begin, end;
    // The sequence's row, and where its block table begins.
    u32 row, table;
    // Tiles of all heads of all sequences before this one.
    u32 before;

    DEVICE u32 tiles() const { return end_tile - first_tile; }

    // Keys `begin` to `end` of the window that ends at `last`, without the first `shared`; nothing for an end of 0.
    DEVICE void see(u32 last, u32 window, u32 shared) {
        end = last;
        begin = last > window ? last - window : shared;
        first_tile = begin / TILE;
        end_tile = (last + TILE - 1) / TILE;
    }
};

struct List {
    Batch batch;
    u32 window;
    // Groups of query heads of a sequence, and sequences of the launch: those of padding have no rows.
    u32 heads, sequences;
    // Tiles of all sequences and heads, most of a sequence, and sequences that decode.
    u32 total, longest, active;
    // Keys of a shared prefix, which its members do not see here; used with CASCADE.
    u32 shared;

    // How many of these a sequence leaves out.
    DEVICE u32 shared_by(u32 sequence) const {
#ifdef CASCADE
        return batch.member[sequence] == NOBODY ? 0 : shared;
#else
        return 0;
#endif
    }

    // A sequence and what its row sees: no tile if it does not decode in this step.
    DEVICE Cursor look(u32 sequence) const {
        Cursor at;
        at.sequence = sequence;
        at.head = at.tile = at.row = at.table = at.before = 0;
        u32 end = 0, left_out = 0;
        if (sequence < sequences) {
            const u32 rows = batch.num_rows[sequence], start = batch.start[sequence];
            at.row = batch.first_row[sequence];
            at.table = batch.first_block[sequence];
            if (rows == 1) {
                end = start + 1;
                left_out = shared_by(sequence);
            }
        }
        at.see(end, window, left_out);
        return at;
    }

    // Counts all tiles; a lane's sequence of the first 32.
    DEVICE Cursor count() {
        const u32 lane = threadIdx.x % 32;
        const Cursor mine = look(lane);
        u32 tiles = mine.tiles(), most = tiles, some = mine.end > 0;
#pragma unroll 1
        for (u32 base = 32; base < sequences; base += 32) {
            const Cursor other = look(base + lane);
            tiles += other.tiles();
            most = max(most, other.tiles());
            some += other.end > 0;
        }
        total = __reduce_add_sync(~0u, tiles) * heads;
        longest = __reduce_max_sync(~0u, most);
        active = __reduce_add_sync(~0u, some);
        return mine;
    }

    // Where tile `unit` of the list is. `mine`: as `count` returns it.
    DEVICE Cursor seek(u32 unit, Cursor mine) const {
        const u32 lane = threadIdx.x % 32;
        u32 before = 0;
#pragma unroll 1
        for (u32 base = 32; base < sequences; base += 32) {
            const u32 sum = __reduce_add_sync(~0u, mine.tiles()) * heads;
            if (unit < before + sum) break;
            before += sum;
            mine = look(base + lane);
        }
        u32 sum = mine.tiles();
#pragma unroll
        for (u32 lanes = 1; lanes < 32; lanes *= 2) {
            const u32 other = __shfl_up_sync(~0u, sum, lanes);
            if (lane >= lanes) sum += other;
        }
        const u32 after = before + sum * heads;
        const u32 found = __ffs(__ballot_sync(~0u, unit < after)) - 1;
        const auto told = [=](u32 x) { return __shfl_sync(~0u, x, found); };
        Cursor at;
        at.sequence = told(mine.sequence);
#ifdef CASCADE
        at.see(told(mine.end), window, told(mine.begin));
#else
        at.see(told(mine.end), window, 0);
#endif
        at.row = told(mine.row);
        at.table = told(mine.table);
        at.before = told(after - mine.tiles() * heads);
        const u32 inside = unit - at.before, tiles = at.tiles();
        at.head = inside / tiles;
        at.tile = at.first_tile + inside - at.head * tiles;
        return at;
    }

    // To the next tile, of which there must be one.
    DEVICE void advance(Cursor& at) const {
        if (++at.tile < at.end_tile) return;
        if (++at.head == heads) {
            const u32 before = at.before + at.tiles() * heads;
            at = look(next(at.sequence));
            at.before = before;
        }
        at.tile = at.first_tile;
    }

    // The next sequence that decodes, of which there must be one.
    DEVICE u32 next(u32 sequence) const {
#pragma unroll 1
        for (u32 base = sequence + 1;; base += 32) {
            const u32 other = base + threadIdx.x % 32;
            const u32 decode = __ballot_sync(~0u, other < sequences && batch.num_rows[other] == 1);
            if (decode || base >= sequences) return base + __ffs(decode) - 1;
        }
    }
};

// floor(x / y) for x < 2^20 and y <= 1,024, in a few instructions.
DEVICE u32 quotient(u32 x, u32 y) { return (u32)__fdividef((f32)x + 0.5f, (f32)y); }

// Cuts a list of `total` tiles among `blocks` (at most 1,024) as evenly as can be.
struct Cut {
    u32 total, blocks;
    // Of each block, and what is left.
    u32 share, rest;

    DEVICE Cut(u32 total, u32 blocks) : total(total), blocks(blocks) {
        share = total / blocks;
        rest = total - share * blocks;
    }
    // First tile of a block: floor(block * total / blocks).
    DEVICE u32 first(u32 block) const { return block * share + quotient(block * rest, blocks); }
    // The block that has a tile.
    DEVICE u32 block_of(u32 unit) const {
        const u64 product = ((u64)unit + 1) * blocks - 1;
        return product >> 32 ? (u32)(product / total) : (u32)product / total;
    }
};
