// A block of `attention_prefill_hopper.cu`: what it has in shared memory, and the tiles of work that its warps hand on. For a file that says
// TYPE, DIM, STAGES, and with NARROW that the cache keeps 8-bit floats.
#pragma once
#include "cached.cuh"
#include "hopper.cuh"
#include "prefill.cuh"

#define KEYS 128u
#define ROWS 128u
// Warps that compute; and how many arrivals say that keys (or values) are there, that queries are, that a tile's description has been read.
#define CONSUMERS 8u
#ifdef NARROW
#define FULL 128u
#define QUERY_THREADS 128u
#else
#define FULL 1u
#define QUERY_THREADS 64u
#endif
#define TAKERS (CONSUMERS + 3)

// A block's next work, as one warp leaves it in shared memory for all others.
struct Tile {
    // Of keys; none: there is no more work.
    u32 tiles;
    u32 kv_head, first_block, start, first_row;
    // Of its packed rows: the first of the sequence's, the end of the sequence's.
    u32 first_packed, packed;
    // Keys that some row sees; keys that all rows see.
    u32 begin, end, clear, clear_end;
    u32 first_tile;
};

// Where in a ring of stages somebody is, and the parity of the phase that ends there next.
struct Place {
    u32 stage, parity;
    DEVICE void next() {
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if (stage == 0) parity ^= 1;
    }
};

struct PrefillBlock {
    typedef TYPE T;
    static const u32 PARTS = DIM / 64;
    static const u32 TILE_BYTES = KEYS * DIM * 2, Q_BYTES = ROWS * DIM * 2, Q_PART_BYTES = 64 * 128;
    // Keys and values: 8 rows of 64 columns, the same rows of the next 64 columns, then the next 8 rows.
    static const u32 PART_BYTES = 1024, GROUP_BYTES = PARTS * 1024;

    Attention attention;
    Batch batch;
    u32 group_size, least, row_tiles;
    // Where queries, keys and values lie, and the barriers of each.
    u32 shared_q, shared_k, shared_v, full_k, full_v, empty_k, empty_v, full_q, empty_q, full_tile, empty_tile;
    Tile* tiles;

    // Describes one of the step's `kv_heads * row_tiles` tiles; false if there is none of that number.
    DEVICE bool find(u32 item, Tile& tile) const {
        u32 sequence, inside;
        // The last tiles of a sequence see most keys: they go first.
        if (!find_tile(batch, group_size, ROWS, least, row_tiles - 1 - item / attention.kv_heads, sequence, inside)) return false;
        tile.kv_head = item % attention.kv_heads;
        tile.first_block = batch.first_block[sequence];
        tile.start = batch.start[sequence];
        tile.first_row = batch.first_row[sequence];
        tile.packed = batch.num_rows[sequence] * group_size;
        tile.first_packed = inside * ROWS;
        tile.end = tile.start + (min(tile.first_packed + ROWS, tile.packed) - 1) / group_size + 1;
        tile.clear_end = tile.start + tile.first_packed / group_size + 1;
        tile.begin = tile.clear_end > attention.window ? tile.clear_end - attention.window : 0;
        tile.clear = tile.end > attention.window ? tile.end - attention.window : 0;
        tile.first_tile = tile.begin / KEYS;
        tile.tiles = (tile.end + KEYS - 1) / KEYS - tile.first_tile;
        return true;
    }

    // The tile of a turn, which stays where it is until all warps but the one that finds tiles have released it.
    DEVICE const Tile& hold(u32 turn) const {
        barrier_wait(full_tile + 8 * (turn % 2), turn / 2 % 2);
        return tiles[turn % 2];
    }
    DEVICE void release(u32 turn) const {
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty_tile + 8 * (turn % 2));
    }

    // Each block asks until there is no more: `items` times in all, after which the counter is zero again.
    DEVICE u32 next_item(u32* counter, u32 items) const {
        u32 before = 0;
        if (threadIdx.x % 32 == 0) before = atomicInc(counter, items - 1);
        return gridDim.x + __shfl_sync(~0u, before, 0);
    }

    // Walks over the block's tiles, for the warp that finds them for all others: `each` does its own part of one. The first tile follows from the
    // batch's description alone: it is there before the step's keys are. The others are asked for when there is a place for them: that is when the
    // warps that compute have left the tile before the last one.
    template <typename F>
    DEVICE void lead(u32* counter, u32 items, const F& each) const {
        u32 item = blockIdx.x;
        for (u32 turn = 0;; turn++) {
            barrier_wait(empty_tile + 8 * (turn % 2), turn / 2 % 2 ^ 1);
            if (turn > 0) item = next_item(counter, items);
            Tile tile;
            bool found = item < items && find(item, tile);
            if (!found) wait_for_inputs();
            while (!found && item < items) {
                item = next_item(counter, items);
                found = item < items && find(item, tile);
            }
            if (!found) tile.tiles = 0;
            if (threadIdx.x % 32 == 0) {
                tiles[turn % 2] = tile;
                barrier_arrive(full_tile + 8 * (turn % 2));
            }
            __syncwarp();
            if (!found) return;
            each(tile, turn);
        }
    }

    // The same for any other warp that feeds.
    template <typename F>
    DEVICE void follow(const F& each) const {
        for (u32 turn = 0;; turn++) {
            const Tile tile = hold(turn);
            release(turn);
            if (tile.tiles == 0) return;
            each(tile, turn);
        }
    }

    // Where piece `piece` of 16 bytes of a packed row of queries goes.
    DEVICE u32 query_at(u32 row, u32 piece) const {
        const u32 to = shared_q + row / 64 * (64 * DIM * 2) + piece / 8 * Q_PART_BYTES;
        return to + row % 64 * 128 + (piece % 8 ^ row % 8) * 16;
    }

    // Where it comes from, in rows `[row of the step][qkv_width]`. Rows past the sequence's end are its last one.
    DEVICE const T* query_from(const T* qkv, const Tile& tile, u32 row, u32 piece) const {
        const u32 packed = min(tile.first_packed + row, tile.packed - 1);
        const u32 token = packed / group_size, head = tile.kv_head * group_size + packed % group_size;
        return qkv + (size_t)(tile.first_row + token) * attention.qkv_width + head * DIM + piece * 8;
    }

    // Makes barriers, and says where everything lies.
    DEVICE void prepare(char* shared) {
        group_size = attention.q_heads / attention.kv_heads;
        shared_q = (shared_address(shared) + 1023) / 1024 * 1024;
        shared_k = shared_q + Q_BYTES;
        shared_v = shared_k + STAGES * TILE_BYTES;
        full_k = shared_v + STAGES * TILE_BYTES;
        full_v = full_k + 8 * STAGES;
        empty_k = full_v + 8 * STAGES;
        empty_v = empty_k + 8 * STAGES;
        full_q = empty_v + 8 * STAGES;
        empty_q = full_q + 8;
        full_tile = empty_q + 8;
        empty_tile = full_tile + 16;
        tiles = (Tile*)(shared + (empty_tile + 16 - shared_address(shared)));
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < STAGES; stage++) {
                barrier_init(full_k + 8 * stage, FULL);
                barrier_init(full_v + 8 * stage, FULL);
                // One arrival from each consuming warp.
                barrier_init(empty_k + 8 * stage, CONSUMERS);
                barrier_init(empty_v + 8 * stage, CONSUMERS);
            }
            barrier_init(full_q, QUERY_THREADS);
            barrier_init(empty_q, CONSUMERS);
            for (u32 slot = 0; slot < 2; slot++) {
                barrier_init(full_tile + 8 * slot, 1);
                // From each warp but the one that gives.
                barrier_init(empty_tile + 8 * slot, TAKERS);
            }
            barrier_init_done();
        }
        __syncthreads();
    }
};
