// How keys and values of 8 bits reach a block of `attention_prefill_hopper.cu`: through the registers of four warps,
// which widen them to f16.
#pragma once
#include "prefill_block.cuh"

// A layer's keys, or values: `[block][kv_head][token in block][DIM]`.
typedef const e4m3* Pages;

struct Feeder : PrefillBlock {
    static const u32 FEED_REGISTERS = 88, COMPUTE_REGISTERS = 208;
    static const bool QUERIES_IN_REGISTERS = false;
    // Rows of a tile that a warp feeds; and turns in which it does so: in each a lane has 16 numbers, of row `lane / 4`
    // of 8, columns `lane % 4 * 16 ..` of 64.
    static const u32 WARP_ROWS = KEYS / 4, TURNS = WARP_ROWS / 8 * PARTS;

    // What this lane has of a tile of keys, or values; zeros for keys that no row sees.
    struct Pieces {
        uint4 bits[TURNS];
    };

    DEVICE void load(Pieces& pieces, Pages from, const Tile& tile, u32 index) const {
        const u32 lane = threadIdx.x % 32, block_size = attention.block_size;
        // Each lane looks for one row.
        const u32 token = key_tile(tile, index) * KEYS + threadIdx.x / 32 * WARP_ROWS + lane;
        u32 mine = NOBODY;
        const bool has_one = WARP_ROWS == 32 || lane < WARP_ROWS;
        if (has_one && index < tile.tiles && token >= tile.begin && token < tile.end) {
            const u32 block = batch.blocks[tile.first_block + token / block_size];
            mine = (block * attention.kv_heads + tile.kv_head) * block_size + token % block_size;
        }
#pragma unroll
        for (u32 i = 0; i < TURNS; i++) {
            const u32 row = __shfl_sync(~0u, mine, i / PARTS * 8 + lane / 4);
            const uint4* at = (const uint4*)(from + (size_t)row * DIM + i % PARTS * 64) + lane % 4;
            const bool is_none = row == NOBODY || (DIM % 64 != 0 && i % PARTS * 64 + lane % 4 * 16 >= DIM);
            pieces.bits[i] = is_none ? make_uint4(0, 0, 0, 0) : __ldcg(at);
        }
    }

    // Widens them into a stage, as the copy engine would have put numbers of 16 bits there.
    DEVICE void store(const Pieces& pieces, u32 stage) const {
        const u32 lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
        const u32 to = stage + threadIdx.x / 32 * (WARP_ROWS / 8 * GROUP_BYTES) + row * 128;
        const u32 first = to + (column ^ row) * 16, second = to + (column ^ row ^ 1) * 16;
#pragma unroll
        for (u32 i = 0; i < TURNS; i++) {
            const uint4 x = pieces.bits[i];
            const u32 there = i / PARTS * GROUP_BYTES + i % PARTS * PART_BYTES;
            store_shared(first + there,
                make_uint4(widen_pair(x.x), widen_pair(x.x >> 16), widen_pair(x.y), widen_pair(x.y >> 16)));
            store_shared(second + there,
                make_uint4(widen_pair(x.z), widen_pair(x.z >> 16), widen_pair(x.w), widen_pair(x.w >> 16)));
        }
        publish_shared();
    }

    DEVICE void feed_queries(const T* qkv, const Tile& tile, u32 turn) const {
        barrier_wait(empty_q, turn % 2 ^ 1);
#pragma unroll 1
        for (u32 i = threadIdx.x; i < ROWS * DIM / 8; i += QUERY_THREADS) {
            const u32 row = i / (DIM / 8), piece = i % (DIM / 8);
            const uint4 x = *(const uint4*)query_from(qkv, tile, row, piece);
            store_shared(
                query_at(row, piece), make_uint4(to_f16<T>(x.x), to_f16<T>(x.y), to_f16<T>(x.z), to_f16<T>(x.w)));
        }
        publish_shared();
        barrier_arrive(full_q);
    }

    DEVICE void feed(Pages keys, Pages values, const T* qkv, const Tile& tile, u32 turn, Place& at) const {
        wait_for_inputs();
        Pieces k, v;
        load(k, keys, tile, 0);
#pragma unroll 1
        for (u32 index = 0; index < tile.tiles; index++) {
            // What is next is on its way while its stage is still in use.
            barrier_wait(empty_k + 8 * at.stage, at.parity ^ 1);
            store(k, shared_k + at.stage * TILE_BYTES);
            barrier_arrive(full_k + 8 * at.stage);
            load(v, values, tile, index);
            if (index == 0) feed_queries(qkv, tile, turn);
            barrier_wait(empty_v + 8 * at.stage, at.parity ^ 1);
            store(v, shared_v + at.stage * TILE_BYTES);
            barrier_arrive(full_v + 8 * at.stage);
            load(k, keys, tile, index + 1);
            at.next();
        }
    }

    // For the four warps of the first group.
    DEVICE void run(Pages keys, Pages values, const T* qkv, u32* counter, u32 items) const {
        Place at = {0, 0};
        const auto each = [&](const Tile& tile, u32 turn) { feed(keys, values, qkv, tile, turn, at); };
        if (threadIdx.x / 32 == 0) lead(counter, items, each);
        else follow(each);
    }
};
