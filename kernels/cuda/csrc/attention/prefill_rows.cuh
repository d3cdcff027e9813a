// What the warpgroups that compute do in `attention_prefill_hopper.cu`, and in `attention_expanded.cu`.
#pragma once
#include "prefill_scores.cuh"

struct HopperPrefill : Scores {
    // This thread's part of the queries of its group's rows, as products take them from registers.
    DEVICE void take_queries(u32 (&q)[DIM / 4], u32 group) const {
        const u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
        for (u32 k = 0; k < DIM / 16; k++) {
            u32 x[4];
            load_matrices(x, query_at(64 * group + row, 2 * k + lane / 16));
#pragma unroll
            for (u32 i = 0; i < 4; i++) q[4 * k + i] = x[i];
        }
    }

    DEVICE void multiply_keys(f32 (&s)[KEYS / 2], const u32 (&q)[DIM / 4], u32 group, u32 stage) const {
        const u32 from_q = shared_q + group * (64 * ROW_BYTES), from_k = shared_k + stage * TILE_BYTES;
#pragma unroll
        for (u32 k = 0; k < DIM / 16; k++) {
            const u64 keys = operand_in(from_k + k / 4 * PART_BYTES + k % 4 * 32, 0, GROUP_BYTES);
            if constexpr (QUERIES_IN_REGISTERS) multiply_registers(Operand(), s, q + 4 * k, keys, k);
            else multiply_shared(Operand(), s, operand(from_q + k / 4 * Q_PART_BYTES + k % 4 * 32, 0), keys, k);
        }
        products_commit();
    }

    DEVICE void multiply_values(f32 (&o)[V_DIM / 2], const u32 (&p)[KEYS / 4], u32 stage) const {
        const u32 from_v = shared_v + stage * V_TILE_BYTES;
#pragma unroll
        for (u32 k = 0; k < KEYS / 16; k++)
            multiply_transposed(
                Operand(), o, p + 4 * k, operand_in(from_v + k * 2 * V_GROUP_BYTES, PART_BYTES, V_GROUP_BYTES), true);
        products_commit();
    }

    // Values past the end may never have been written: their weights are zero, but zero times NaN is not.
    DEVICE void clear_tail(const Tile& tile, const Place& values, u32 group) const {
        const u32 used = tile.end - (tile.first_tile + tile.tiles - 1) * KEYS;
        const u32 until = min(KEYS, (used + attention.block_size - 1) / attention.block_size * attention.block_size);
        if (until == used) return;
        barrier_wait(full_v + 8 * values.stage, values.parity);
        for (u32 i = threadIdx.x % 128; i < (until - used) * 8 * PARTS; i += 128) {
            const u32 row = used + i / (8 * PARTS), piece = i % (8 * PARTS);
            const u32 to = shared_v + values.stage * TILE_BYTES + piece / 8 * PART_BYTES + row / 8 * GROUP_BYTES;
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

    // Waits for the tile of a turn and its queries; false if there is no more work.
    DEVICE bool begin(Rows& rows, u32 (&q)[DIM / 4], u32 turn, u32 group) const {
        const Tile& tile = hold(turn);
        if (tile.tiles == 0) return false;
        begin_rows(rows, tile, group);
        // Nobody reads those of the last turn any more.
        if (!QUERIES_IN_REGISTERS && turn > 0) barrier_arrive(empty_q);
        barrier_wait(full_q, turn % 2);
        if constexpr (QUERIES_IN_REGISTERS) {
            take_queries(q, group);
            barrier_arrive(empty_q);
        }
        return true;
    }

    // The product of queries and keys, and that of weights and the values of the tile of keys before.
    DEVICE void multiply(f32 (&s)[KEYS / 2], f32 (&o)[V_DIM / 2], const u32 (&q)[DIM / 4], const u32 (&p)[KEYS / 4],
        Place at, Place values, u32 group) const {
        barrier_wait(full_k + 8 * at.stage, at.parity);
        wait_for_turn(group);
        settle(s);
        settle(o);
        products_begin();
        multiply_keys(s, q, group, at.stage);
        barrier_wait(full_v + 8 * values.stage, values.parity);
        multiply_values(o, p, values.stage);
        pass_turn(group);
        products_wait<1>();
        settle(s);
        leave(empty_k + 8 * at.stage);
        products_wait<0>();
        settle(o);
        leave(empty_v + 8 * values.stage);
    }

    // The scores of the block's first tile of keys: there are no values yet.
    DEVICE void multiply_first(f32 (&s)[KEYS / 2], const u32 (&q)[DIM / 4], Place at, u32 group) const {
        barrier_wait(full_k + 8 * at.stage, at.parity);
        settle(s);
        products_begin();
        multiply_keys(s, q, group, at.stage);
        products_wait<0>();
        settle(s);
        leave(empty_k + 8 * at.stage);
    }

    // The last values: there are no more keys.
    DEVICE void multiply_last(f32 (&o)[V_DIM / 2], const u32 (&p)[KEYS / 4], Place values) const {
        barrier_wait(full_v + 8 * values.stage, values.parity);
        settle(o);
        products_begin();
        multiply_values(o, p, values.stage);
        products_wait<0>();
        settle(o);
    }

    DEVICE void consume(T* out, u32 group) const {
        f32 s[KEYS / 2], o[V_DIM / 2], shrink[2], factor[2];
        u32 p[KEYS / 4], q[DIM / 4], turn = 0, index = 1;
        Rows rows;
        Place at = {0, 0}, values = at;
        if (group == 1) pass_turn(group);
        if (!begin(rows, q, 0, group)) return;
        wait_for_inputs();
        multiply_first(s, q, at, group);
        finish_scores(s, rows, tiles[0], 0);
        start_sums(o, s, rows, tiles[0], group);
        weigh(s, p, rows, shrink);
        for (at.next();; index++) {
            const bool ends = index == rows.tiles;
#if !defined(NARROW) && !defined(EXPANDED)
            if (LAST_KEYS_FIRST ? index == 1 : ends) clear_tail(tiles[turn % 2], values, group);
#endif
            if (ends) {
                const Tile& tile = tiles[turn % 2];
                finish(factor, rows, tile, group);
                if (!begin(rows, q, turn + 1, group)) break;
                index = 0;
            }
            multiply(s, o, q, p, at, values, group);
            finish_scores(s, rows, tiles[(turn + ends) % 2], index);
            if (ends) {
                write_out(out, tiles[turn % 2], o, factor, group);
                release(turn++);
                start_sums(o, s, rows, tiles[turn % 2], group);
            }
            if (weigh(s, p, rows, shrink)) rescale(o, shrink);
            values = at;
            at.next();
        }
        multiply_last(o, p, values);
        write_out(out, tiles[turn % 2], o, factor, group);
    }
};
