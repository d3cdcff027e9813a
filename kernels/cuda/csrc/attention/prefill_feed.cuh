// How keys and values that lie in the cache as products take them reach the blocks of a cluster of
// `attention_prefill_hopper.cu`: by the copy engine, page by page (or half of one), each block bringing a part for all
// of them. One warp feeds keys, one values, two queries.
#pragma once
#include "prefill_block.cuh"

// A layer's keys, or values.
typedef const TensorMap* Pages;

struct Feeder : PrefillBlock {
    // Registers of a thread that feeds, and of one that computes.
    static const u32 FEED_REGISTERS = 40, COMPUTE_REGISTERS = 232;
    // Whether those that compute have room for queries there.
        static const bool QUERIES_IN_REGISTERS = DIM <= 192;

    // Rows of a tile of keys that this block brings, and those that a lane copies (`copied_tokens` of
    // `src/attention/attention_prefill.rs`).
    static const u32 PART = KEYS / BLOCKS;
    DEVICE u32 copied() const {
        const u32 most = min(attention.block_size, KEYS / 2);
        return (KEYS & (KEYS - 1)) == 0 || KEYS / 2 % most == 0 ? most : 16;
    }

    // Where this lane's rows of a tile of keys begin in the cache's matrix; past its end, where zeros come from, if
    // no row sees them.
    DEVICE u32 page(const Tile& tile, u32 index) const {
        const u32 block_size = attention.block_size, rows = copied();
        const u32 first = key_tile(tile, index) * KEYS + rank * PART + threadIdx.x % 32 * rows;
        const bool seen = threadIdx.x % 32 < PART / rows && first < tile.end && first + rows > tile.begin;
        if (!seen) return 0x7fffff00u;
        const u32 block = batch.blocks[tile.first_block + first / block_size];
        return (block * attention.kv_heads + tile.kv_head) * block_size + first % block_size;
    }

    DEVICE void feed(const TensorMap* map, const Tile& tile, u32 shared, u32 full, u32 empty, Place& at) const {
        const u32 lane = threadIdx.x % 32, rows = copied();
        u32 row = page(tile, 0);
        wait_for_inputs();
#pragma unroll 1
        for (u32 index = 0; index < tile.tiles; index++) {
            // Looked up while the stage is still in use.
            const u32 next = index + 1 < tile.tiles ? page(tile, index + 1) : 0;
            barrier_wait(empty + 8 * at.stage, at.parity ^ 1);
            if (lane == 0) barrier_expect(full + 8 * at.stage, TILE_BYTES);
            __syncwarp();
            if (lane < PART / rows) {
                const u32 to = shared + at.stage * TILE_BYTES + (rank * PART + lane * rows) / 8 * GROUP_BYTES;
                if constexpr (BLOCKS == 1) copy_rows(to, map, row / 8, full + 8 * at.stage);
                else copy_rows_to(to, map, row / 8, full + 8 * at.stage, (1 << BLOCKS) - 1);
            }
            __syncwarp();
            row = next;
            at.next();
        }
    }

    DEVICE void feed_queries(const T* qkv, const Tile& tile, u32 turn) const {
        barrier_wait(empty_q, turn % 2 ^ 1);
        wait_for_inputs();
#pragma unroll 4
        for (u32 i = threadIdx.x % QUERY_THREADS; i < ROWS * DIM / 8; i += QUERY_THREADS) {
            const u32 row = i / (DIM / 8), piece = i % (DIM / 8);
            copy_async(query_at(row, piece), query_from(qkv, tile, row, piece), true);
        }
        copy_commit();
        copy_wait<0>();
        publish_shared();
        barrier_arrive(full_q);
    }

    // For the four warps of the first group.
    DEVICE void run(Pages keys, Pages values, const T* qkv, u32* counter, u32 items) const {
        const u32 warp = threadIdx.x / 32;
        Place at = {0, 0};
        // A warp that has little to do leads, so that keys of the next tile follow those of one without a gap.
        const auto queries = [&](const Tile& tile, u32 turn) { feed_queries(qkv, tile, turn); };
        if (warp == 0)
            follow([&](const Tile& tile, u32) { feed(keys, tile, shared_k, full_k, empty_k, at); });
        else if (warp == 1)
            follow([&](const Tile& tile, u32) { feed(values, tile, shared_v, full_v, empty_v, at); });
        else if (warp == 2)
            lead(counter, items, queries);
        else
            follow(queries);
    }
};
