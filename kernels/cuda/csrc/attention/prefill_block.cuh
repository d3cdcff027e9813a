// A block of `attention_prefill_hopper.cu`: what it has in shared memory, and the tiles of work that its warps hand on.
// For a file that says TYPE, DIM, TILE_KEYS, STAGES, BLOCKS of a cluster, which take neighbouring tiles of rows and
// whose keys and values are the same, with NARROW that the cache keeps 8-bit floats, with SOFT_CAP and ALIBI that the
// layer has these, and with EXPANDED that keys and values come from no cache (`attention_expanded.cu`); V_DIM may
// differ from DIM there.
#pragma once
#include "cached.cuh"
#include "hopper_values.cuh"
#include "prefill.cuh"
#ifdef EXPANDED
#include "expanded.cuh"
#else
#define V_DIM DIM
#endif

#define KEYS ((u32)TILE_KEYS)
#define ROWS 128u
// Warps that compute; how many arrivals say that keys (or values) are there, that queries are; and warps that read a
// tile's description. Where what is read is plain shared memory, each thread says itself that it has: racecheck does
// not follow one that speaks for its warp.
#define CONSUMERS 8u
#ifdef NARROW
#define FULL 128u
#define QUERY_THREADS 128u
#else
#define FULL 1u
#define QUERY_THREADS 64u
#endif
#define TAKERS (CONSUMERS + 3)
// Keys and values that blocks of the device may be reading at about the same time: what its cache holds for certain.
#define TOGETHER_BYTES (16u << 20)

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
#ifdef EXPANDED
    // Where the first of these keys lies; whether rows have seen others before, or will after.
    u32 from, continues, goes_on;
#endif
};

// Whether a row's last keys come first. By ALiBi they weigh most: what scores are taken relative to is theirs then, and
// seldom has to rise for those before.
#ifdef ALIBI
#define LAST_KEYS_FIRST true
#else
#define LAST_KEYS_FIRST false
#endif

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
    // Of 64 columns. What a row of the last one has beyond DIM is of the row after it, and nothing reads it.
    static const u32 PARTS = (DIM + 63) / 64, ROW_BYTES = PARTS * 128;
    static const u32 V_ROW_BYTES = (V_DIM + 63) / 64 * 128, V_TILE_BYTES = KEYS * V_ROW_BYTES;
    static const u32 TILE_BYTES = KEYS * ROW_BYTES, Q_BYTES = ROWS * ROW_BYTES, Q_PART_BYTES = 64 * 128;
#ifdef EXPANDED
    // Keys and values: all rows of 64 columns, then those of the next 64.
    static const u32 PART_BYTES = KEYS * 128, GROUP_BYTES = 1024, V_GROUP_BYTES = 1024;
#else
    // Keys and values: 8 rows of 64 columns, the same rows of the next 64 columns, then the next 8 rows.
    static const u32 PART_BYTES = 1024, GROUP_BYTES = PARTS * 1024, V_GROUP_BYTES = GROUP_BYTES;
#endif

    Attention attention;
    Batch batch;
    u32 group_size, least, row_tiles, rank;
    // Where queries, keys and values lie, and the barriers of each.
    u32 shared_q, shared_k, shared_v, full_k, full_v, empty_k, empty_v, full_q, empty_q, full_tile, empty_tile,
        full_item;
    Tile* tiles;
    // What the cluster's first block tells this one.
    u32* told;
#ifdef EXPANDED
    const ExpandedRound* round;
    const T* queries;
    const T* rotated;
    f32* sums;
#endif

    // Which of the step's `kv_heads * row_tiles` tiles goes when. The last tiles of a sequence see most keys: they go
    // first, those of all heads together; but of as many heads only as have all their keys and values in the device's
    // cache.
    DEVICE void place(u32 item, u32& row_tile, u32& kv_head) const {
#ifdef EXPANDED
        const u32 keys = round->tokens;
#else
        const u32 keys = batch.counts[2];
#endif
        const u32 heads = attention.kv_heads,
                  together = min(max(TOGETHER_BYTES / (keys * (DIM + V_DIM) * 2), 1), heads);
        const u32 first = item / (together * row_tiles) * together, inside = item % (together * row_tiles);
        const u32 width = min(together, heads - first);
        row_tile = row_tiles - 1 - inside / width;
        kv_head = first + inside % width;
    }

#ifdef EXPANDED
    // The same of a part of a round: its rows that see some of its keys.
    DEVICE bool find(u32 item, Tile& tile) const {
        u32 inside, i = 0;
        place(item, inside, tile.kv_head);
        for (; i < round->count && inside >= round->parts[i].tiles<BLOCKS * ROWS>(); i++)
            inside -= round->parts[i].tiles<BLOCKS * ROWS>();
        if (i == round->count) return false;
        const ExpandedPart& part = round->parts[i];
        tile.start = batch.start[part.sequence] + part.first_row;
        tile.first_row = batch.first_row[part.sequence] + part.first_row;
        tile.packed = part.rows;
        const u32 first = inside * (BLOCKS * ROWS), end = part.begin + part.keys;
        tile.first_packed = first + rank * ROWS;
        const u32 last = tile.start + min(first + BLOCKS * ROWS, part.rows) - 1;
        if (last < part.begin) return false;
        tile.begin = tile.clear = part.begin;
        tile.end = min(last + 1, end);
        tile.clear_end = max(min(tile.start + first + 1, end), part.begin);
        tile.first_tile = part.begin / KEYS;
        tile.tiles = (tile.end + KEYS - 1) / KEYS - tile.first_tile;
        tile.from = part.at;
        tile.continues = part.begin > 0;
        tile.goes_on = last >= end;
        return true;
    }
#else
    // Describes this block's part of a tile, which all blocks of the cluster share; false if there is none of that
    // number.
    DEVICE bool find(u32 item, Tile& tile) const {
        u32 sequence, inside, row_tile;
        place(item, row_tile, tile.kv_head);
        if (!find_tile(batch, group_size, BLOCKS * ROWS, least, row_tile, sequence, inside)) return false;
        tile.first_block = batch.first_block[sequence];
        tile.start = batch.start[sequence];
        tile.first_row = batch.first_row[sequence];
        tile.packed = batch.num_rows[sequence] * group_size;
        const u32 first = inside * (BLOCKS * ROWS);
        tile.first_packed = first + rank * ROWS;
        const u32 sequence_end = tile.start + batch.num_rows[sequence];
        const u32 last = tile.start + (min(first + BLOCKS * ROWS, tile.packed) - 1) / group_size,
                  foremost = tile.start + first / group_size;
        tile.end = attention.seen_end(last, sequence_end);
        tile.clear_end = attention.seen_end(foremost, sequence_end);
        tile.begin = foremost + 1 > attention.window ? foremost + 1 - attention.window : 0;
        tile.clear = last + 1 > attention.window ? last + 1 - attention.window : 0;
        tile.first_tile = tile.begin / KEYS;
        tile.tiles = (tile.end + KEYS - 1) / KEYS - tile.first_tile;
        return true;
    }
#endif

    // The number of the tile of keys that comes as `index`th.
    DEVICE static u32 key_tile(const Tile& tile, u32 index) {
        return tile.first_tile + (LAST_KEYS_FIRST ? tile.tiles - 1 - index : index);
    }

    // The tile of a turn, which stays where it is until all warps but the one that finds tiles have released it.
    DEVICE const Tile& hold(u32 turn) const {
        barrier_wait(full_tile + 8 * (turn % 2), turn / 2 % 2);
        return tiles[turn % 2];
    }
    DEVICE void release(u32 turn) const {
        barrier_arrive(empty_tile + 8 * (turn % 2));
    }

    // All blocks of the cluster have read a stage before something else is copied there.
    DEVICE static void leave(u32 empty) {
        const u32 lane = threadIdx.x % 32;
        if constexpr (BLOCKS == 1) {
            if (lane == 0) barrier_arrive(empty);
        } else if (lane < BLOCKS) barrier_arrive_after_reading(address_in(empty, lane));
    }

    // Each cluster asks until there is no more: `items` times in all, after which the counter is zero again.
    DEVICE u32 next_item(u32* counter, u32 items) const {
        u32 before = 0;
        if (threadIdx.x % 32 == 0) before = atomicInc(counter, items - 1);
        return gridDim.x / BLOCKS + __shfl_sync(~0u, before, 0);
    }

    // What the cluster's first block says. It is there before that block can say something two turns later: keys that
    // are multiplied in between come from all blocks.
    DEVICE u32 agreed(u32 item, u32 turn) const {
        const u32 lane = threadIdx.x % 32, barrier = full_item + 8 * (turn % 2);
        u32* at = told + turn % 2;
        if (rank == 0) {
            if (lane > 0 && lane < BLOCKS) send(address_in(shared_address(at), lane), item, address_in(barrier, lane));
            return item;
        }
        if (lane == 0) barrier_expect(barrier, 4);
        barrier_wait_for_cluster(barrier, turn / 2 % 2);
        return *(volatile u32*)at;
    }

    // The cluster's next tile, for which its first block asks; false if there is no more. `turn`: calls before.
    DEVICE bool find_next(u32* counter, u32 items, u32 turn, Tile& tile) const {
        // The counter was the last launch's.
        wait_for_inputs();
        u32 item = 0;
        bool found = false;
        while (rank == 0 && !found && item < items) {
            item = next_item(counter, items);
            found = item < items && find(item, tile);
        }
        if constexpr (BLOCKS > 1) {
            item = agreed(item, turn);
            if (rank > 0) found = item < items && find(item, tile);
        }
        return found;
    }

    // Walks over the block's tiles, for the warp that finds them for all others: `each` does its own part of one. The
    // first tile follows from the batch's description alone: it is there before the step's keys are. The others are
    // asked for when there is a place for them: that is when the warps that compute have left the tile before the last
    // one.
    template <typename F>
    DEVICE void lead(u32* counter, u32 items, const F& each) const {
        for (u32 turn = 0, asked = 0;; turn++) {
            barrier_wait(empty_tile + 8 * (turn % 2), turn / 2 % 2 ^ 1);
            Tile tile;
            const bool found = turn == 0 && find(blockIdx.x / BLOCKS, tile) || find_next(counter, items, asked++, tile);
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
        const u32 to = shared_q + row / 64 * (64 * ROW_BYTES) + piece / 8 * Q_PART_BYTES;
        return to + row % 64 * 128 + (piece % 8 ^ row % 8) * 16;
    }

#ifndef EXPANDED
    // Where it comes from, in rows `[row of the step][qkv_width]`. Rows past the sequence's end are its last one.
    DEVICE const T* query_from(const T* qkv, const Tile& tile, u32 row, u32 piece) const {
        const u32 packed = min(tile.first_packed + row, tile.packed - 1);
        const u32 token = packed / group_size, head = tile.kv_head * group_size + packed % group_size;
        return qkv + (size_t)(tile.first_row + token) * attention.qkv_width + head * DIM + piece * 8;
    }
#endif

    // All threads of the cluster: before they use each other's barriers, and when none will any more.
    DEVICE static void meet() {
        if constexpr (BLOCKS == 1) __syncthreads();
        else {
            __syncwarp();
            cluster_barrier();
        }
    }

    // Makes barriers, and says where everything lies.
    DEVICE void prepare(char* shared) {
        group_size = attention.q_heads / attention.kv_heads;
        rank = cluster_rank();
        shared_q = (shared_address(shared) + 1023) / 1024 * 1024;
        shared_k = shared_q + Q_BYTES;
        shared_v = shared_k + STAGES * TILE_BYTES;
        full_k = shared_v + STAGES * V_TILE_BYTES;
        full_v = full_k + 8 * STAGES;
        empty_k = full_v + 8 * STAGES;
        empty_v = empty_k + 8 * STAGES;
        full_q = empty_v + 8 * STAGES;
        empty_q = full_q + 8;
        full_tile = empty_q + 8;
        empty_tile = full_tile + 16;
        full_item = empty_tile + 16;
        tiles = (Tile*)(shared + (full_item + 16 - shared_address(shared)));
        told = (u32*)(tiles + 2);
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < STAGES; stage++) {
                barrier_init(full_k + 8 * stage, FULL);
                barrier_init(full_v + 8 * stage, FULL);
                // One arrival from each consuming warp of the cluster.
                barrier_init(empty_k + 8 * stage, BLOCKS * CONSUMERS);
                barrier_init(empty_v + 8 * stage, BLOCKS * CONSUMERS);
            }
            barrier_init(full_q, QUERY_THREADS);
            barrier_init(empty_q, 32 * CONSUMERS);
            for (u32 slot = 0; slot < 2; slot++) {
                barrier_init(full_tile + 8 * slot, 1);
                // From all but the warp that gives.
                barrier_init(empty_tile + 8 * slot, 32 * TAKERS);
                barrier_init(full_item + 8 * slot, 1);
            }
            barrier_init_done();
        }
        meet();
    }
};
