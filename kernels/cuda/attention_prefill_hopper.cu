// Attention for sequences with several rows in this step on Hopper: `attention_prefill.cu` with warpgroup products and the copy engine.
// Key and value heads of 64 or 128, without soft cap and ALiBi.
//
// Three warpgroups: one warp of the first feeds pages of keys and values into two stages of shared memory; the others own 64 packed rows
// each (a row is a pair of token and query head). While the tensor cores multiply the weights of one tile of keys with its values and
// the queries with the next tile's keys, the other warpgroup's softmax runs (FlashAttention-3).
#include "hopper.cuh"
#include "prefill.cuh"

// Compiled for one type and shape (`../src/cuda/attention_prefill.rs`).
#ifndef TYPE
#define TYPE bf16
#define DIM 128
#endif

#define KEYS 128u
#define STAGES 2u
#define ROWS 128u
#define LOG2E 1.4426950408889634f

// What all threads of a block know about its tile.
struct Tile {
    u32 sequence, kv_head, group_size;
    // Of its packed rows: the first of the sequence's, the end of the sequence's.
    u32 first_packed, packed;
    u32 start, first_row, last_token;
    // Keys that some row sees; keys that all rows see.
    u32 begin, end, clear, clear_end;
    u32 first_tile, tiles;
};

struct HopperPrefill {
    typedef TYPE T;
    static const u32 PARTS = DIM / 64;
    static const u32 TILE_BYTES = KEYS * DIM * 2, PART_BYTES = KEYS * 128, Q_BYTES = ROWS * DIM * 2, Q_PART_BYTES = 64 * 128;
    // 1,024 to align what comes first.
    static const u32 SHARED_BYTES = 1024 + Q_BYTES + 2 * STAGES * TILE_BYTES + 4 * STAGES * 8;

    Attention attention;
    Tile tile;
    u32 shared_q, shared_k, shared_v, full_k, full_v, empty_k, empty_v;

    DEVICE void load_pages(const TensorMap* map, const u32* table, u32 index, u32 to, u32 full, u32 empty) const {
        const u32 lane = threadIdx.x % 32, stage = index % STAGES, parity = index / STAGES % 2;
        barrier_wait(empty + 8 * stage, parity ^ 1);
        if (lane == 0) barrier_expect(full + 8 * stage, TILE_BYTES);
        __syncwarp();
        const u32 block_size = attention.block_size, first = (tile.first_tile + index) * KEYS + lane * block_size;
        if (lane >= KEYS / block_size) return;
        const bool seen = first < tile.end && first + block_size > tile.begin;
        // Rows outside the matrix come as zeros.
        const u32 row = seen ? (table[first / block_size] * attention.kv_heads + tile.kv_head) * block_size : 0x7fffff00u;
#pragma unroll
        for (u32 part = 0; part < PARTS; part++)
            copy_box(to + stage * TILE_BYTES + part * PART_BYTES + lane * block_size * 128, map, 64 * part, row, full + 8 * stage);
    }

    DEVICE void feed(const TensorMap* keys, const TensorMap* values, const u32* table) const {
        for (u32 index = 0; index < tile.tiles; index++) {
            load_pages(keys, table, index, shared_k, full_k, empty_k);
            load_pages(values, table, index, shared_v, full_v, empty_v);
        }
    }

    // Puts this warpgroup's queries into shared memory as a product wants them.
    DEVICE void load_queries(const T* qkv, u32 group) const {
        const u32 thread = threadIdx.x % 128;
#pragma unroll
        for (u32 i = thread; i < 64 * DIM / 8; i += 128) {
            const u32 row = i / (DIM / 8), piece = i % (DIM / 8);
            const u32 packed = min(tile.first_packed + 64 * group + row, tile.packed - 1);
            const u32 token = packed / tile.group_size, head = tile.kv_head * tile.group_size + packed % tile.group_size;
            const uint4 x = *(const uint4*)(qkv + (size_t)(tile.first_row + token) * attention.qkv_width + head * DIM + piece * 8);
            store_shared(shared_q + group * (64 * DIM * 2) + piece / 8 * Q_PART_BYTES + row * 128 + (piece % 8 ^ row % 8) * 16, x);
        }
        publish_shared();
        named_barrier(1 + group, 128);
    }

    DEVICE void multiply_keys(f32 (&s)[KEYS / 2], u32 group, u32 stage) const {
        const u32 from_q = shared_q + group * (64 * DIM * 2), from_k = shared_k + stage * TILE_BYTES;
#pragma unroll
        for (u32 k = 0; k < DIM / 16; k++)
            multiply_shared(
                T(), s, operand(from_q + k / 4 * Q_PART_BYTES + k % 4 * 32, 0), operand(from_k + k / 4 * PART_BYTES + k % 4 * 32, 0), k);
    }

    DEVICE void multiply_values(f32 (&o)[DIM / 2], const u32 (&p)[KEYS / 4], u32 stage) const {
        const u32 from_v = shared_v + stage * TILE_BYTES;
#pragma unroll
        for (u32 k = 0; k < KEYS / 16; k++)
            multiply_registers(T(), o, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3], operand(from_v + k * 2048, PART_BYTES));
    }

    // Hides keys that rows at these positions do not see.
    DEVICE void mask(f32 (&s)[KEYS / 2], u32 index, const u32 (&position)[2]) const {
        const u32 first = (tile.first_tile + index) * KEYS, t = threadIdx.x % 4;
        if (first >= tile.clear && first + KEYS <= tile.clear_end) return;
#pragma unroll
        for (u32 i = 0; i < KEYS / 2; i++) {
            const u32 key = first + i / 4 * 8 + 2 * t + i % 2, at = position[i / 2 % 2];
            if (key > at || at - key >= attention.window) s[i] = -infinity();
        }
    }

    // Scores to weights; `shrink` is what rescales earlier sums.
    DEVICE void weigh(f32 (&s)[KEYS / 2], f32 (&m)[2], f32 (&l)[2], f32 (&shrink)[2]) const {
        const f32 scale = attention.scale * LOG2E;
#pragma unroll
        for (u32 row = 0; row < 2; row++) {
            f32 most = m[row];
#pragma unroll
            for (u32 i = 2 * row; i < KEYS / 2; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            const f32 base = most == -infinity() ? 0.0f : most * scale;
            shrink[row] = exp2_fast(m[row] * scale - base);
            m[row] = most;
            f32 sum = 0.0f;
#pragma unroll
            for (u32 i = 2 * row; i < KEYS / 2; i += 4) {
                s[i] = exp2_fast(s[i] * scale - base);
                s[i + 1] = exp2_fast(s[i + 1] * scale - base);
                sum += s[i] + s[i + 1];
            }
            l[row] = l[row] * shrink[row] + sum;
        }
    }

    DEVICE static void pack(u32 (&p)[KEYS / 4], const f32 (&s)[KEYS / 2]) {
#pragma unroll
        for (u32 i = 0; i < KEYS / 4; i++) p[i] = Tensor<T>::pack(s[2 * i], s[2 * i + 1]);
    }

    // Values past the end may never have been written: their weights are zero, but zero times NaN is not.
    DEVICE void clear_tail(u32 stage, u32 group) const {
        const u32 used = tile.end - (tile.first_tile + tile.tiles - 1) * KEYS;
        const u32 until = min(KEYS, (used + attention.block_size - 1) / attention.block_size * attention.block_size);
        for (u32 i = threadIdx.x % 128; i < (until - used) * 8 * PARTS; i += 128) {
            const u32 row = used + i / (8 * PARTS), piece = i % (8 * PARTS);
            store_shared(shared_v + stage * TILE_BYTES + piece / 8 * PART_BYTES + row * 128 + piece % 8 * 16, make_uint4(0, 0, 0, 0));
        }
        publish_shared();
        named_barrier(1 + group, 128);
    }

    DEVICE void consume(T* out, const T* qkv, u32 group) const {
        const u32 thread = threadIdx.x % 128, lane = thread % 32, g = lane / 4;
        load_queries(qkv, group);
        u32 row[2], position[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            row[i] = tile.first_packed + 64 * group + thread / 32 * 16 + g + 8 * i;
            position[i] = tile.start + min(row[i], tile.packed - 1) / tile.group_size;
        }
        f32 s[KEYS / 2], o[DIM / 2], m[2] = {-infinity(), -infinity()}, l[2] = {0.0f, 0.0f}, shrink[2];
        u32 p[KEYS / 4];
#pragma unroll
        for (u32 i = 0; i < DIM / 2; i++) o[i] = 0.0f;

        barrier_wait(full_k, 0);
        products_begin();
        multiply_keys(s, group, 0);
        products_commit();
        products_wait<0>();
        settle(s);
        if (lane == 0) barrier_arrive(empty_k);
        mask(s, 0, position);
        weigh(s, m, l, shrink);
        pack(p, s);
        for (u32 index = 1; index < tile.tiles; index++) {
            const u32 stage = index % STAGES, last_stage = (index - 1) % STAGES;
            barrier_wait(full_k + 8 * stage, index / STAGES % 2);
            settle(s);
            settle(o);
            products_begin();
            multiply_keys(s, group, stage);
            products_commit();
            barrier_wait(full_v + 8 * last_stage, (index - 1) / STAGES % 2);
            multiply_values(o, p, last_stage);
            products_commit();
            products_wait<1>();
            settle(s);
            if (lane == 0) barrier_arrive(empty_k + 8 * stage);
            mask(s, index, position);
            weigh(s, m, l, shrink);
            products_wait<0>();
            settle(o);
            if (lane == 0) barrier_arrive(empty_v + 8 * last_stage);
#pragma unroll
            for (u32 i = 0; i < DIM / 2; i++) o[i] *= shrink[i / 2 % 2];
            pack(p, s);
        }
        const u32 last_stage = (tile.tiles - 1) % STAGES;
        barrier_wait(full_v + 8 * last_stage, (tile.tiles - 1) / STAGES % 2);
        clear_tail(last_stage, group);
        products_begin();
        multiply_values(o, p, last_stage);
        products_commit();
        products_wait<0>();
        settle(o);
        write_out(out, o, row, m, l);
    }

    DEVICE void write_out(T* out, const f32 (&o)[DIM / 2], const u32 (&row)[2], const f32 (&m)[2], const f32 (&l)[2]) const {
        const u32 t = threadIdx.x % 4;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            f32 sum = l[i];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const u32 token = row[i] / tile.group_size, head = tile.kv_head * tile.group_size + row[i] % tile.group_size;
            f32 factor = 1.0f;
            if (attention.sinks) {
                const f32 most = m[i] * attention.scale * LOG2E, sink = attention.sinks[head] * LOG2E, all = fmaxf(most, sink);
                factor = exp2_fast(most - all);
                sum = sum * factor + exp2_fast(sink - all);
            }
            factor /= sum;
            if (row[i] >= tile.packed) continue;
            u32* to = (u32*)(out + ((size_t)(tile.first_row + token) * attention.q_heads + head) * DIM + 2 * t);
#pragma unroll
            for (u32 d = 0; d < DIM / 8; d++) to[4 * d] = Tensor<T>::pack(o[4 * d + 2 * i] * factor, o[4 * d + 2 * i + 1] * factor);
        }
    }

    DEVICE bool find(const Batch& batch, u32 least) {
        tile.group_size = attention.q_heads / attention.kv_heads;
        u32 inside;
        // The last tiles of a sequence see most keys: they go first.
        if (!find_tile(batch, tile.group_size, ROWS, least, gridDim.y - 1 - blockIdx.y, tile.sequence, inside)) return false;
        tile.kv_head = blockIdx.x;
        tile.start = batch.start[tile.sequence];
        tile.first_row = batch.first_row[tile.sequence];
        tile.packed = batch.num_rows[tile.sequence] * tile.group_size;
        tile.first_packed = inside * ROWS;
        tile.last_token = (min(tile.first_packed + ROWS, tile.packed) - 1) / tile.group_size;
        tile.end = tile.start + tile.last_token + 1;
        tile.clear_end = tile.start + tile.first_packed / tile.group_size + 1;
        tile.begin = tile.clear_end > attention.window ? tile.clear_end - attention.window : 0;
        tile.clear = tile.end > attention.window ? tile.end - attention.window : 0;
        tile.first_tile = tile.begin / KEYS;
        tile.tiles = (tile.end + KEYS - 1) / KEYS - tile.first_tile;
        return true;
    }

    DEVICE void run(char* shared, T* out, const T* qkv, const TensorMap* keys, const TensorMap* values, const Batch& batch, u32 least) {
        const bool found = find(batch, least);
        const u32 base = (shared_address(shared) + 1023) / 1024 * 1024;
        shared_q = base;
        shared_k = shared_q + Q_BYTES;
        shared_v = shared_k + STAGES * TILE_BYTES;
        full_k = shared_v + STAGES * TILE_BYTES;
        full_v = full_k + 8 * STAGES;
        empty_k = full_v + 8 * STAGES;
        empty_v = empty_k + 8 * STAGES;
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < STAGES; stage++) {
                barrier_init(full_k + 8 * stage, 1);
                barrier_init(full_v + 8 * stage, 1);
                // One arrival from each consuming warp.
                barrier_init(empty_k + 8 * stage, 8);
                barrier_init(empty_v + 8 * stage, 8);
            }
            barrier_init_done();
        }
        __syncthreads();
        launch_dependents();
        wait_for_inputs();
        if (!found) return;
        const u32 group = threadIdx.x / 128;
        if (group == 0) {
            give_registers<24>();
            if (threadIdx.x < 32) feed(keys, values, batch.blocks + batch.first_block[tile.sequence]);
        } else {
            take_registers<240>();
            consume(out, qkv, group - 1);
        }
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: [key heads, tiles of 128 packed rows: at least as many as there are], 384 threads. The maps describe a layer's keys and values as
// `[blocks * kv_heads * block_size][DIM]` in boxes of 64 columns and `block_size` rows, swizzled by 128 bytes.
extern "C" __global__ void __launch_bounds__(384, 1) attention_prefill_hopper(
    TYPE* out, const TYPE* qkv, const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, const Batch batch,
    const Attention attention, u32 least) {
    HopperPrefill it;
    it.attention = attention;
    it.run(dynamic_shared, out, qkv, &keys, &values, batch, least);
}
