// Attention for sequences with several rows in this step on Hopper: `attention_prefill.cu` with warpgroup products and the copy engine.
// Key and value heads of 64 or 128, without soft cap and ALiBi.
//
// A block stays on its multiprocessor and takes one tile of 128 packed rows (a row is a pair of token and query head) after another, those
// that see most keys first, from a counter that all blocks share. Of its three warpgroups the first brings what the others need: a warp finds
// the next tile and feeds pages of keys, one feeds values, two fetch queries; they are ahead of the others by what shared memory holds. The
// others own 64 rows each. While the tensor cores multiply the weights of one tile of keys with its values and the queries with the next
// tile's keys for one of the two, the other one's softmax runs: they take turns in asking for products (FlashAttention-3).
#include "hopper.cuh"
#include "prefill.cuh"

// Compiled for one type and shape (`../src/attention_prefill.rs`).
#ifndef TYPE
#define TYPE bf16
#define DIM 128
#define STAGES 2
#endif

#define KEYS 128u
#define ROWS 128u
#define CONSUMERS 8u
#define QUERY_THREADS 64u
#define LOG2E 1.4426950408889634f

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

struct HopperPrefill {
    typedef TYPE T;
    static const u32 PARTS = DIM / 64;
    static const u32 TILE_BYTES = KEYS * DIM * 2, Q_BYTES = ROWS * DIM * 2, Q_PART_BYTES = 64 * 128;
    // Keys and values: 8 rows of 64 columns, the same rows of the next 64 columns, then the next 8 rows.
    static const u32 PART_BYTES = 1024, GROUP_BYTES = PARTS * 1024;

    Attention attention;
    Batch batch;
    u32 group_size, least, row_tiles;
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

    // Hands a tile on to all other warps.
    DEVICE void give(const Tile& tile, u32 turn) const {
        const u32 slot = turn % 2;
        barrier_wait(empty_tile + 8 * slot, turn / 2 % 2 ^ 1);
        if (threadIdx.x % 32 == 0) {
            tiles[slot] = tile;
            barrier_arrive(full_tile + 8 * slot);
        }
        __syncwarp();
    }

    // The tile of a turn.
    DEVICE Tile take(u32 turn) const {
        const u32 slot = turn % 2;
        barrier_wait(full_tile + 8 * slot, turn / 2 % 2);
        const Tile tile = tiles[slot];
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(empty_tile + 8 * slot);
        return tile;
    }

    // Where this lane's page of a tile of keys begins in the cache's matrix of rows; past its end, where zeros come from, if nobody sees it.
    DEVICE u32 page(const Tile& tile, u32 index) const {
        const u32 block_size = attention.block_size, first = (tile.first_tile + index) * KEYS + threadIdx.x % 32 * block_size;
        const bool seen = threadIdx.x % 32 < KEYS / block_size && first < tile.end && first + block_size > tile.begin;
        if (!seen) return 0x7fffff00u;
        return (batch.blocks[tile.first_block + first / block_size] * attention.kv_heads + tile.kv_head) * block_size;
    }

    DEVICE void feed(const TensorMap* map, const Tile& tile, u32 shared, u32 full, u32 empty, Place& at) const {
        const u32 lane = threadIdx.x % 32, pages = KEYS / attention.block_size;
        u32 row = page(tile, 0);
        wait_for_inputs();
        for (u32 index = 0; index < tile.tiles; index++) {
            // Looked up while the stage is still in use.
            const u32 next = index + 1 < tile.tiles ? page(tile, index + 1) : 0;
            barrier_wait(empty + 8 * at.stage, at.parity ^ 1);
            if (lane == 0) barrier_expect(full + 8 * at.stage, TILE_BYTES);
            __syncwarp();
            if (lane < pages) {
                const u32 to = shared + at.stage * TILE_BYTES + lane * attention.block_size / 8 * GROUP_BYTES;
                copy_rows(to, map, row / 8, full + 8 * at.stage);
            }
            __syncwarp();
            row = next;
            at.next();
        }
    }

    // Finds tiles for everybody, and feeds keys. The first tile follows from the batch's description: it is there before the step's keys are.
    DEVICE void lead(const TensorMap* keys, u32* counter, u32 items) const {
        Place at = {0, 0};
        u32 item = blockIdx.x;
        Tile tile;
        bool found = find(item, tile);
        if (!found) wait_for_inputs();
        for (u32 turn = 0;; turn++) {
            while (!found && item < items) {
                item = next_item(counter, items);
                found = item < items && find(item, tile);
            }
            if (!found) tile.tiles = 0;
            give(tile, turn);
            if (!found) return;
            feed(keys, tile, shared_k, full_k, empty_k, at);
            found = false;
        }
    }

    // Each block asks until there is no more: `items` times in all, after which the counter is zero again.
    DEVICE u32 next_item(u32* counter, u32 items) const {
        u32 before = 0;
        if (threadIdx.x % 32 == 0) before = atomicInc(counter, items - 1);
        return gridDim.x + __shfl_sync(~0u, before, 0);
    }

    DEVICE void feed_values(const TensorMap* values) const {
        Place at = {0, 0};
        for (u32 turn = 0;; turn++) {
            const Tile tile = take(turn);
            if (tile.tiles == 0) return;
            feed(values, tile, shared_v, full_v, empty_v, at);
        }
    }

    // Puts queries into shared memory as a product wants them.
    DEVICE void feed_queries(const T* qkv) const {
        const u32 thread = threadIdx.x % QUERY_THREADS;
        for (u32 turn = 0;; turn++) {
            const Tile tile = take(turn);
            if (tile.tiles == 0) return;
            barrier_wait(empty_q, turn % 2 ^ 1);
            wait_for_inputs();
#pragma unroll 4
            for (u32 i = thread; i < ROWS * DIM / 8; i += QUERY_THREADS) {
                const u32 row = i / (DIM / 8), piece = i % (DIM / 8);
                const u32 packed = min(tile.first_packed + row, tile.packed - 1);
                const u32 token = packed / group_size, head = tile.kv_head * group_size + packed % group_size;
                const T* from = qkv + (size_t)(tile.first_row + token) * attention.qkv_width + head * DIM + piece * 8;
                const u32 to = shared_q + row / 64 * (64 * DIM * 2) + piece / 8 * Q_PART_BYTES;
                copy_async(to + row % 64 * 128 + (piece % 8 ^ row % 8) * 16, from, true);
            }
            copy_commit();
            copy_wait<0>();
            publish_shared();
            barrier_arrive(full_q);
        }
    }

    DEVICE void multiply_keys(f32 (&s)[KEYS / 2], u32 group, u32 stage) const {
        const u32 from_q = shared_q + group * (64 * DIM * 2), from_k = shared_k + stage * TILE_BYTES;
#pragma unroll
        for (u32 k = 0; k < DIM / 16; k++)
            multiply_shared(
                T(), s, operand(from_q + k / 4 * Q_PART_BYTES + k % 4 * 32, 0),
                operand_in(from_k + k / 4 * PART_BYTES + k % 4 * 32, 0, GROUP_BYTES), k);
    }

    DEVICE void multiply_values(f32 (&o)[DIM / 2], const u32 (&p)[KEYS / 4], u32 stage) const {
        const u32 from_v = shared_v + stage * TILE_BYTES;
#pragma unroll
        for (u32 k = 0; k < KEYS / 16; k++)
            multiply_registers(
                T(), o, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3],
                operand_in(from_v + k * 2 * GROUP_BYTES, PART_BYTES, GROUP_BYTES));
    }

    // Hides keys that rows at these positions do not see.
    DEVICE void mask(const Tile& tile, f32 (&s)[KEYS / 2], u32 index, const u32 (&position)[2]) const {
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
    DEVICE void clear_tail(const Tile& tile, u32 stage, u32 group) const {
        const u32 used = tile.end - (tile.first_tile + tile.tiles - 1) * KEYS;
        const u32 until = min(KEYS, (used + attention.block_size - 1) / attention.block_size * attention.block_size);
        if (until == used) return;
        for (u32 i = threadIdx.x % 128; i < (until - used) * 8 * PARTS; i += 128) {
            const u32 row = used + i / (8 * PARTS), piece = i % (8 * PARTS);
            const u32 to = shared_v + stage * TILE_BYTES + piece / 8 * PART_BYTES + row / 8 * GROUP_BYTES;
            store_shared(to + row % 8 * 128 + piece % 8 * 16, make_uint4(0, 0, 0, 0));
        }
        publish_shared();
        named_barrier(1 + group, 128);
    }

    // The two groups that consume ask for products by turns.
    DEVICE static void wait_for_turn(u32 group) {
        named_barrier(3 + group, 256);
    }
    DEVICE static void pass_turn(u32 group) {
        named_barrier_arrive(4 - group, 256);
    }

    DEVICE void consume(T* out, u32 group) const {
        Place at = {0, 0};
        if (group == 1) pass_turn(group);
        for (u32 turn = 0;; turn++) {
            const Tile tile = take(turn);
            if (tile.tiles == 0) return;
            barrier_wait(full_q, turn % 2);
            wait_for_inputs();
            attend(out, tile, group, at);
        }
    }

    DEVICE void attend(T* out, const Tile& tile, u32 group, Place& at) const {
        const u32 thread = threadIdx.x % 128, lane = thread % 32, g = lane / 4;
        u32 row[2], position[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            row[i] = tile.first_packed + 64 * group + thread / 32 * 16 + g + 8 * i;
            position[i] = tile.start + min(row[i], tile.packed - 1) / group_size;
        }
        f32 s[KEYS / 2], o[DIM / 2], m[2] = {-infinity(), -infinity()}, l[2] = {0.0f, 0.0f}, shrink[2];
        u32 p[KEYS / 4];
#pragma unroll
        for (u32 i = 0; i < DIM / 2; i++) o[i] = 0.0f;

        barrier_wait(full_k + 8 * at.stage, at.parity);
        settle(s);
        products_begin();
        multiply_keys(s, group, at.stage);
        products_commit();
        products_wait<0>();
        settle(s);
        if (lane == 0) barrier_arrive(empty_k + 8 * at.stage);
        Place values = at;
        at.next();
        mask(tile, s, 0, position);
        weigh(s, m, l, shrink);
        u32 index = 1;
        if (index < tile.tiles) {
            barrier_wait(full_k + 8 * at.stage, at.parity);
            wait_for_turn(group);
        }
        pack(p, s);
        while (index < tile.tiles) {
            settle(s);
            settle(o);
            products_begin();
            multiply_keys(s, group, at.stage);
            products_commit();
            rescale(o, shrink);
            settle(o);
            barrier_wait(full_v + 8 * values.stage, values.parity);
            multiply_values(o, p, values.stage);
            products_commit();
            pass_turn(group);
            products_wait<1>();
            settle(s);
            if (lane == 0) barrier_arrive(empty_k + 8 * at.stage);
            mask(tile, s, index, position);
            weigh(s, m, l, shrink);
            const u32 last_stage = values.stage;
            values = at;
            at.next();
            index++;
            // Here and not later, for the compiler: it would wait for the product before it makes weights of scores.
            if (index < tile.tiles) {
                barrier_wait(full_k + 8 * at.stage, at.parity);
                wait_for_turn(group);
            }
            products_wait<0>();
            settle(o);
            if (lane == 0) barrier_arrive(empty_v + 8 * last_stage);
            pack(p, s);
        }
        rescale(o, shrink);
        if (lane == 0) barrier_arrive(empty_q);
        barrier_wait(full_v + 8 * values.stage, values.parity);
        clear_tail(tile, values.stage, group);
        products_begin();
        multiply_values(o, p, values.stage);
        products_commit();
        products_wait<0>();
        settle(o);
        if (lane == 0) barrier_arrive(empty_v + 8 * values.stage);
        write_out(out, tile, o, row, m, l);
    }

    DEVICE static void rescale(f32 (&o)[DIM / 2], const f32 (&shrink)[2]) {
#pragma unroll
        for (u32 i = 0; i < DIM / 2; i++) o[i] *= shrink[i / 2 % 2];
    }

    DEVICE void write_out(T* out, const Tile& tile, const f32 (&o)[DIM / 2], const u32 (&row)[2], const f32 (&m)[2], const f32 (&l)[2]) const {
        const u32 t = threadIdx.x % 4;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            f32 sum = l[i];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            const u32 token = row[i] / group_size, head = tile.kv_head * group_size + row[i] % group_size;
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
                barrier_init(full_k + 8 * stage, 1);
                barrier_init(full_v + 8 * stage, 1);
                // One arrival from each consuming warp.
                barrier_init(empty_k + 8 * stage, CONSUMERS);
                barrier_init(empty_v + 8 * stage, CONSUMERS);
            }
            barrier_init(full_q, QUERY_THREADS);
            barrier_init(empty_q, CONSUMERS);
            for (u32 slot = 0; slot < 2; slot++) {
                barrier_init(full_tile + 8 * slot, 1);
                // From each warp but the one that gives.
                barrier_init(empty_tile + 8 * slot, CONSUMERS + 3);
            }
            barrier_init_done();
        }
        __syncthreads();
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: as many blocks as multiprocessors, at most one for each of the `kv_heads * row_tiles` tiles of 128 packed rows; 384 threads.
// `row_tiles`: at least as many as there are. `counter` is zero between launches. The maps describe a layer's keys and values.
extern "C" __global__ void __launch_bounds__(384, 1) attention_prefill_hopper(
    TYPE* out, const TYPE* qkv, const __grid_constant__ TensorMap keys, const __grid_constant__ TensorMap values, const Batch batch,
    const Attention attention, u32 least, u32 row_tiles, u32* counter) {
    HopperPrefill it;
    it.attention = attention;
    it.batch = batch;
    it.least = least;
    it.row_tiles = row_tiles;
    it.prepare(dynamic_shared);
    launch_dependents();
    const u32 group = threadIdx.x / 128, warp = threadIdx.x / 32;
    if (group == 0) {
        give_registers<40>();
        if (warp == 0) it.lead(&keys, counter, row_tiles * attention.kv_heads);
        else if (warp == 1) it.feed_values(&values);
        else it.feed_queries(qkv);
    } else {
        take_registers<232>();
        it.consume(out, group - 1);
    }
}
