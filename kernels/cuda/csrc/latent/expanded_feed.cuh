// How keys and values that were made anew reach the blocks of a cluster of `attention_expanded.cu`, and what rows keep
// from one round to the next. A key is `[rope | rest]`, its first part the same for all heads: the copy engine brings
// it from where it is, so that nobody writes it for each head. So it is with queries, whose first part was rotated
// elsewhere.
#pragma once
#include "prefill_block.cuh"

#define ROPE_DIM 64u
#define NOPE_DIM (DIM - ROPE_DIM)

struct Feeder : PrefillBlock {
    // Registers of a thread that feeds, and of one that computes, which has no room for queries.
    static const u32 FEED_REGISTERS = 40, COMPUTE_REGISTERS = 232;
    static const bool QUERIES_IN_REGISTERS = false;
    // Rows of a tile of keys that this block brings.
    static const u32 PART = KEYS / BLOCKS;

    // Walks over a tile's keys: `COUNT` lanes bring 64 columns each, of the map and from the column that are theirs.
    template <u32 COUNT>
    DEVICE void feed(const TensorMap* map, u32 column, const Tile& tile, u32 shared, u32 full, u32 empty,
        Place& at) const {
        static const u32 BYTES = COUNT * PART_BYTES;
        const u32 lane = threadIdx.x % 32;
        wait_for_inputs();
#pragma unroll 1
        for (u32 index = 0; index < tile.tiles; index++) {
            barrier_wait(empty + 8 * at.stage, at.parity ^ 1);
            if (lane == 0) barrier_expect(full + 8 * at.stage, BYTES);
            __syncwarp();
            if (lane < COUNT) {
                const u32 row = tile.from + index * KEYS + rank * PART;
                const u32 to = shared + at.stage * BYTES + lane * PART_BYTES + rank * (PART * 128);
                if constexpr (BLOCKS == 1) copy_box(to, map, column, row, full + 8 * at.stage);
                else copy_box_to(to, map, column, row, full + 8 * at.stage, (1 << BLOCKS) - 1);
            }
            __syncwarp();
            at.next();
        }
    }

    // Where piece `piece` of a row's query comes from.
    DEVICE const T* query_from(const Tile& tile, u32 row, u32 piece) const {
        const size_t token = tile.first_row + min(tile.first_packed + row, tile.packed - 1);
        if (piece < ROPE_DIM / 8)
            return rotated + token * attention.qkv_width + tile.kv_head * attention.dim + piece * 8;
        return queries + (token * attention.q_heads + tile.kv_head) * DIM + piece * 8 - ROPE_DIM;
    }

    DEVICE void feed_queries(const Tile& tile, u32 turn) const {
        barrier_wait(empty_q, turn % 2 ^ 1);
        wait_for_inputs();
#pragma unroll 4
        for (u32 i = threadIdx.x % QUERY_THREADS; i < ROWS * DIM / 8; i += QUERY_THREADS) {
            const u32 row = i / (DIM / 8), piece = i % (DIM / 8);
            copy_async(query_at(row, piece), query_from(tile, row, piece), true);
        }
        copy_commit();
        copy_wait<0>();
        publish_shared();
        barrier_arrive(full_q);
    }

    // For the four warps of the first group. `rope`: keys' first parts; `made`: of each head the rest of a key, and a
    // value.
    DEVICE void run(const TensorMap* rope, const TensorMap* made, u32* counter, u32 items) const {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        Place at = {0, 0};
        const auto feed_query = [&](const Tile& tile, u32 turn) { feed_queries(tile, turn); };
        if (warp == 0)
            follow([&](const Tile& tile, u32) {
                const u32 rest = tile.kv_head * (NOPE_DIM + V_DIM) + (lane - 1) * 64;
                feed<DIM / 64>(lane == 0 ? rope : made, lane == 0 ? 0 : rest, tile, shared_k, full_k, empty_k, at);
            });
        else if (warp == 1)
            follow([&](const Tile& tile, u32) {
                const u32 value = tile.kv_head * (NOPE_DIM + V_DIM) + NOPE_DIM + lane * 64;
                feed<V_DIM / 64>(made, value, tile, shared_v, full_v, empty_v, at);
            });
        else if (warp == 2)
            lead(counter, items, feed_query);
        else
            follow(feed_query);
    }

    // What a warpgroup's rows of a head keep: sums, and of each thread's rows what scores are relative to and the sums
    // of weights; each thread finds its own again.
    DEVICE f32* kept(const Tile& tile, u32 group) const {
        return sums + ((size_t)(tile.first_packed / 64 + group) * attention.q_heads + tile.kv_head) * KEPT;
    }
    static const u32 KEPT = 128 * (V_DIM / 2 + 4);

    DEVICE void keep_numbers(const f32 (&most)[2], const f32 (&sum)[2], const Tile& tile, u32 group) const {
        ((float4*)(kept(tile, group) + 64 * V_DIM))[threadIdx.x % 128] = make_float4(most[0], most[1], sum[0], sum[1]);
    }

    DEVICE void keep_sums(const f32 (&o)[V_DIM / 2], const Tile& tile, u32 group) const {
        float4* to = (float4*)kept(tile, group) + threadIdx.x % 128;
#pragma unroll
        for (u32 i = 0; i < V_DIM / 8; i++)
            to[i * 128] = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
    }

    DEVICE void resume(f32 (&o)[V_DIM / 2], f32 (&most)[2], f32 (&sum)[2], const Tile& tile, u32 group) const {
        const float4* from = (const float4*)kept(tile, group) + threadIdx.x % 128;
#pragma unroll
        for (u32 i = 0; i < V_DIM / 8; i++) {
            const float4 x = from[i * 128];
            o[4 * i] = x.x, o[4 * i + 1] = x.y, o[4 * i + 2] = x.z, o[4 * i + 3] = x.w;
        }
        const float4 numbers = from[V_DIM / 8 * 128];
        most[0] = numbers.x, most[1] = numbers.y, sum[0] = numbers.z, sum[1] = numbers.w;
    }
};
