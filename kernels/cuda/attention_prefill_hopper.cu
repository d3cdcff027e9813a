// Attention for sequences with several rows in this step on Hopper: `attention_prefill.cu` with warpgroup products and the copy engine.
// Key and value heads of 64 or 128, without soft cap and ALiBi.
//
// A block stays on its multiprocessor and takes one tile of 128 packed rows (a row is a pair of token and query head) after another, those
// that see most keys first, from a counter that all blocks share. Of its three warpgroups the first brings what the others need: a warp finds
// the next tile, and all feed queries, keys and values (`prefill_feed.cuh`); they are ahead of the others by what shared memory holds. The
// others own 64 rows each. While the tensor cores multiply the weights of one tile of keys with its values and the queries with the next
// tile's keys for one of the two, the other one's softmax runs: they take turns in asking for products (FlashAttention-3).
// Compiled for one type and shape (`../src/attention_prefill.rs`).
#ifndef TYPE
#define TYPE bf16
#define DIM 128
#define STAGES 2
#endif

#ifdef NARROW
#include "prefill_feed_narrow.cuh"
#else
#include "prefill_feed.cuh"
#endif

#define LOG2E 1.4426950408889634f

struct HopperPrefill : Feeder {
    DEVICE void multiply_keys(f32 (&s)[KEYS / 2], u32 group, u32 stage) const {
        const u32 from_q = shared_q + group * (64 * DIM * 2), from_k = shared_k + stage * TILE_BYTES;
#pragma unroll
        for (u32 k = 0; k < DIM / 16; k++)
            multiply_shared(
                Operand(), s, operand(from_q + k / 4 * Q_PART_BYTES + k % 4 * 32, 0),
                operand_in(from_k + k / 4 * PART_BYTES + k % 4 * 32, 0, GROUP_BYTES), k);
    }

    DEVICE void multiply_values(f32 (&o)[DIM / 2], const u32 (&p)[KEYS / 4], u32 stage) const {
        const u32 from_v = shared_v + stage * TILE_BYTES;
#pragma unroll
        for (u32 k = 0; k < KEYS / 16; k++)
            multiply_registers(
                Operand(), o, p[4 * k], p[4 * k + 1], p[4 * k + 2], p[4 * k + 3],
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
        for (u32 i = 0; i < KEYS / 4; i++) p[i] = Tensor<Operand>::pack(s[2 * i], s[2 * i + 1]);
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
        follow([&](const Tile& tile, u32 turn) {
            barrier_wait(full_q, turn % 2);
            wait_for_inputs();
            attend(out, tile, group, at);
        });
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
#ifndef NARROW
        clear_tail(tile, values.stage, group);
#endif
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
            factor *= attention.v_scale / sum;
            if (row[i] >= tile.packed) continue;
            u32* to = (u32*)(out + ((size_t)(tile.first_row + token) * attention.q_heads + head) * DIM + 2 * t);
#pragma unroll
            for (u32 d = 0; d < DIM / 8; d++) to[4 * d] = Tensor<T>::pack(o[4 * d + 2 * i] * factor, o[4 * d + 2 * i + 1] * factor);
        }
    }

};

extern __shared__ __align__(128) char dynamic_shared[];

#ifdef NARROW
#define PAGES const e4m3*
#define AT(pages) pages
#else
#define PAGES const __grid_constant__ TensorMap
#define AT(pages) &pages
#endif

// Grid: as many blocks as multiprocessors, at most one for each of the `kv_heads * row_tiles` tiles of 128 packed rows; 384 threads.
// `row_tiles`: at least as many as there are. `counter` is zero between launches. `keys`, `values`: a layer's, or maps of them.
extern "C" __global__ void __launch_bounds__(384, 1) attention_prefill_hopper(
    TYPE* out, const TYPE* qkv, PAGES keys, PAGES values, const Batch batch, const Attention attention, u32 least, u32 row_tiles, u32* counter) {
    HopperPrefill it;
    it.attention = attention;
    it.batch = batch;
    it.least = least;
    it.row_tiles = row_tiles;
    it.prepare(dynamic_shared);
    launch_dependents();
    const u32 group = threadIdx.x / 128;
    if (group == 0) {
        give_registers<Feeder::FEED_REGISTERS>();
        it.Feeder::run(AT(keys), AT(values), qkv, counter, row_tiles * attention.kv_heads);
    } else {
        take_registers<Feeder::COMPUTE_REGISTERS>();
        it.consume(out, group - 1);
    }
}
