// Products of many rows of x with weights of 4 or 8 bits on Hopper.
//
// Weights are the left operand, which comes from registers: a lane reads codes from memory in the order in which the
// tensor cores want them (packed.cuh), AHEAD chunks before it needs them, and decodes a half of a chunk while the one
// before is multiplied. Rows of x are the right operand, in shared memory, their columns in the same order: each chunk
// of 64 columns is a stage of ROWS rows of 128 bytes, swizzled by 128 bytes, that a warpgroup of its own fills.
//
//     k                  | part 0  | part 1  | ...      blocks of a cluster have parts of k; their sums stay in shared
//     64 rows of w       | block 0 | block 1 |          memory until each block adds up those of its share of rows, in
//     for a warpgroup    |         |         |          the order of parts
//
// Codes are multiplied by their scales as numbers of 16 bits, which are two where one would lose bits of a scale, so
// that a weight is rounded once; a scale that all of a row share is left to the sums. The order of a row's sum depends
// on k, PARTS and the group, not on the other rows.
//
// Compiled with CODES, rows of x are codes of 8 bits too (`quantize_input` of prepare_input.cu): those of w are
// multiplied as they are, a stage has two chunks, and sums are multiplied by the scales of both rows.
#pragma once

// Compiled for one type, format (packed_product.cuh) and configuration: whether columns are gated, rows of x,
// warpgroups that multiply, parts of k, and stages of x.
#ifndef TYPE
#define TYPE bf16
#define ROWS 64
#define WARPGROUPS 2
#define PARTS 1
#define DEPTH 8
#endif
#ifndef CODES
#define CODES 0
#endif
#include "hopper_codes.cuh"
#include "packed_stream.cuh"

// Threads that multiply; one warpgroup more feeds them with x.
#define MULTIPLYING (WARPGROUPS * 128)
#define THREADS (MULTIPLYING + 128)

// What a block multiplies.
struct PackedTile {
    // Of k.
    u32 part;
    // Rows of x.
    u32 rows;
    // Its first column of `out`, and all of those.
    u32 column;
    u32 width;
};

template <bool IS_GATED> struct PackedProduct {
    typedef TYPE T;
    // Chunks of codes under way in each lane, as far as there are registers; parts of k are multiples of as many.
    static constexpr u32 AHEAD = CODES ? 4 : (ZEROS == OFFSETS && SPANS == 2 ? 2 : 4) / PIECES;
    typedef PackedStream<AHEAD> Stream;
    static constexpr u32 STAGE_BYTES = ROWS * CHUNK * 2, STAGE_CHUNKS = CODES ? 2 : 1;
    // Columns of `out` that a block has; sums of a row of x in shared memory, four more than there are: no two lanes
    // meet in a bank.
    static constexpr u32 COLUMNS = WARPGROUPS * 64 / (IS_GATED ? 2 : 1), LINE = WARPGROUPS * 64 + 4,
                         FOURS = COLUMNS / 4;

    const PackedWeights& w;
    const u32* table;
    PackedTile tile;
    // Chunks of its part, whole AHEADs of them, and the end of those that exist.
    u32 first, steps, end;
    Stages<STAGE_BYTES, DEPTH> stages;
    f32* sums;
    // What this lane reads.
    Stream stream;

    DEVICE PackedProduct(const PackedWeights& w, const u32* table, const PackedTile& tile, char* shared)
        : w(w), table(table), tile(tile), stages(shared) {
        const u32 turns = (w.chunks() + AHEAD - 1) / AHEAD;
        first = turns * tile.part / PARTS * AHEAD;
        steps = turns * (tile.part + 1) / PARTS * AHEAD - first;
        end = min(first + steps, w.chunks());
        sums = (f32*)(shared + (stages.begin - shared_address(shared)));
    }

    // Starts reading this warp's tile.
    DEVICE void start_weights() {
        const u32 warp = threadIdx.x / 32;
        const bool up = IS_GATED && warp >= MULTIPLYING / 64;
        const u32 mine = (tile.column + (up ? tile.width : 0)) / TILE_ROWS + (up ? warp - MULTIPLYING / 64 : warp);
        stream.start(w, mine, first, end);
    }

    // Multiplies the block's part, and leaves the sums in shared memory. `scales`: of rows of x that are codes.
    DEVICE void multiply(const f32* scales) {
        if constexpr (CODES != 0) multiply_codes(scales);
        else multiply_numbers();
    }

    DEVICE void multiply_codes(const f32* scales) {
        typedef Operands<CODES, T> Both;
        typename Both::Sum sums[ROWS / 2];
        u32 a[STAGE_CHUNKS][2][4], stage = 0, parity = 0, before = 0, add = 0;
        const u64 operands = operand(stages.begin, 0);
        for (u32 step = 0; step < steps; step += AHEAD)
#pragma unroll
            for (u32 slot = 0; slot < AHEAD; slot++) {
                const u32 part = slot % STAGE_CHUNKS;
                const u64 rows = operands + stage * (STAGE_BYTES >> 4) + 4 * part;
                stream.codes_of_half(slot, 0, a[part][0]);
                stream.codes_of_half(slot, 1, a[part][1]);
                stream.load(w, slot, step + slot + AHEAD);
                if (part == 0) barrier_wait(stages.full + 8 * stage, parity);
                products_begin();
                multiply_registers(typename Both::Element(), sums, a[part][0], rows, add);
                multiply_registers(typename Both::Element(), sums, a[part][1], rows + 2, 1);
                products_commit();
                // The chunk before is multiplied.
                products_wait<1>();
                if (part == 0 && add && threadIdx.x % 32 == 0) barrier_arrive(stages.empty + 8 * before);
                add = 1;
                if (part + 1 < STAGE_CHUNKS) continue;
                before = stage;
                if (++stage == DEPTH) stage = 0, parity ^= 1;
            }
        products_wait<0>();
        settle(sums);
        f32 (&c)[ROWS / 2] = as_numbers(sums);
        const Side side = Side::of(w, stream.tile, 0);
#pragma unroll
        for (u32 i = 0; i < ROWS / 2; i++) {
            // As `leave_sums` has them.
            const u32 row = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
            c[i] *= side.scale(i / 2 % 2) * scales[min(row, tile.rows - 1)];
        }
        named_barrier(1, MULTIPLYING);
        leave_sums<LINE>(this->sums, c);
    }

    DEVICE void multiply_numbers() {
        f32 c[ROWS / 2];
        u32 a[2][2][4], stage = 0, parity = 0, before = 0, add = 0;
        const u64 operands = operand(stages.begin, 0);
        for (u32 step = 0; step < steps; step += AHEAD)
#pragma unroll
            for (u32 slot = 0; slot < AHEAD; slot++) {
                const u64 rows = operands + stage * (STAGE_BYTES >> 4);
                stream.decode_half(table, slot, 0, a[0]);
                barrier_wait(stages.full + 8 * stage, parity);
                multiply_half<T>(c, a[0], rows, add);
                if (add && threadIdx.x % 32 == 0) barrier_arrive(stages.empty + 8 * before);
                stream.decode_half(table, slot, 1, a[1]);
                stream.load(w, slot, step + slot + AHEAD);
                multiply_half<T>(c, a[1], rows + 4, 1);
                before = stage, add = 1;
                if (++stage == DEPTH) stage = 0, parity ^= 1;
            }
        products_wait<0>();
        settle(c);
        if constexpr (!Stream::SCALES_CODES) {
            const Side side = Side::of(w, stream.tile, 0);
#pragma unroll
            for (u32 i = 0; i < ROWS / 2; i++) c[i] *= side.scale(i / 2 % 2) * FACTOR<T, CODE>;
        }
        named_barrier(1, MULTIPLYING);
        leave_sums<LINE>(sums, c);
    }

    // Adds up all parts of this block's share of rows, and hands what is kept of them to `take(row, column, four
    // sums)`; of gated columns what `gate` makes of their sums.
    template <typename Gate, typename Take> DEVICE void finish(const f32* bias, Gate gate, Take take) const {
        const u32 share = (tile.rows + PARTS - 1) / PARTS, begin = min(tile.part * share, tile.rows);
        const u32 count = (min(begin + share, tile.rows) - begin) * FOURS;
        for (u32 i = threadIdx.x; i < count; i += MULTIPLYING) {
            const u32 row = begin + i / FOURS, inside = i % FOURS * 4, at = tile.column + inside;
            if (at >= tile.width) continue;
            f32 kept[4], up[4];
            add_parts(kept, row, inside, bias ? bias + at : bias);
            if constexpr (IS_GATED) {
                add_parts(up, row, COLUMNS + inside, bias ? bias + tile.width + at : bias);
#pragma unroll
                for (u32 j = 0; j < 4; j++) kept[j] = gate(kept[j], up[j]);
            }
            take(row, at, make_float4(kept[0], kept[1], kept[2], kept[3]));
        }
    }

    DEVICE void add_parts(f32 (&sum)[4], u32 row, u32 inside, const f32* bias) const {
        const f32* from = sums + row * LINE + inside;
        float4 all = PARTS == 1 ? *(const float4*)from : load_four_in(shared_address(from), 0);
#pragma unroll
        for (u32 other = 1; other < PARTS; other++) add(all, load_four_in(shared_address(from), other));
        if (bias) add(all, *(const float4*)bias);
        sum[0] = all.x, sum[1] = all.y, sum[2] = all.z, sum[3] = all.w;
    }
};
