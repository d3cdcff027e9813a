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
#include "hopper_codes.cuh"
#include "packed_product.cuh"

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
    // Whether codes are multiplied by scales, or sums; chunks that share a scale, as far as AHEAD goes.
    static constexpr bool SCALES_CODES = GROUP != 0 || ZEROS == OFFSETS;
    static constexpr u32 SHARING =
        GROUP == 0 ? AHEAD : GROUP % (CHUNK * AHEAD) == 0 ? AHEAD : GROUP % (CHUNK * 2) == 0 && AHEAD > 2 ? 2 : 1;
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
    u32 stages, full, empty;
    f32* sums;
    // What this lane reads.
    u32 my_tile;
    const uint4* from;
    uint4 codes[AHEAD][PIECES];
    Side sides[AHEAD / SHARING][SPANS];
    Scaling<T> scaling;

    DEVICE PackedProduct(const PackedWeights& w, const u32* table, const PackedTile& tile, char* shared)
        : w(w), table(table), tile(tile) {
        const u32 turns = (w.chunks() + AHEAD - 1) / AHEAD;
        first = turns * tile.part / PARTS * AHEAD;
        steps = turns * (tile.part + 1) / PARTS * AHEAD - first;
        end = min(first + steps, w.chunks());
        stages = (shared_address(shared) + 1023) / 1024 * 1024;
        full = stages + DEPTH * STAGE_BYTES;
        empty = full + 8 * DEPTH;
        sums = (f32*)(shared + (stages - shared_address(shared)));
    }

    // By one thread. A stage is full after `arrivals` arrivals.
    DEVICE void init_barriers(u32 arrivals) const {
        for (u32 stage = 0; stage < DEPTH; stage++) {
            barrier_init(full + 8 * stage, arrivals);
            barrier_init(empty + 8 * stage, MULTIPLYING / 32);
        }
        barrier_init_done();
    }

    // Waits until a step's stage may be overwritten: where it lies.
    DEVICE u32 await_empty(u32 step) const {
        const u32 stage = step % DEPTH;
        if (step >= DEPTH) barrier_wait(empty + 8 * stage, step / DEPTH % 2 ^ 1);
        return stages + stage * STAGE_BYTES;
    }
    // What ends its filling.
    DEVICE u32 full_of(u32 step) const { return full + 8 * (step % DEPTH); }

    // Starts reading this warp's tile.
    DEVICE void start_weights() {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, last = (w.n + TILE_ROWS - 1) / TILE_ROWS - 1;
        const bool up = IS_GATED && warp >= MULTIPLYING / 64;
        my_tile = (tile.column + (up ? tile.width : 0)) / TILE_ROWS + (up ? warp - MULTIPLYING / 64 : warp);
        my_tile = min(my_tile, last);
        from = w.codes + ((u64)my_tile * w.chunks() + first) * PIECES * 32 + lane;
#pragma unroll
        for (u32 slot = 0; slot < AHEAD; slot++) {
#pragma unroll
            for (u32 piece = 0; piece < PIECES; piece++) codes[slot][piece] = make_uint4(0, 0, 0, 0);
            load_weights(slot, slot);
        }
    }

    // Past the end codes stay what they are: x is zero there.
    DEVICE void load_weights(u32 slot, u32 step) {
        const u32 chunk = first + step;
#pragma unroll
        for (u32 piece = 0; piece < PIECES; piece++)
            load_streamed_if(codes[slot][piece], from + (step * PIECES + piece) * 32, chunk < end);
        if (slot % SHARING) return;
#pragma unroll
        for (u32 span = 0; span < SPANS; span++) {
            const u32 column = chunk * CHUNK + span * (CHUNK / SPANS) + side_column();
            const u32 group = GROUP ? column / (GROUP ? GROUP : 1) : 0;
            sides[slot / SHARING][span] = Side::of(w, my_tile, min(group, w.groups - 1));
        }
    }

    // Operand registers of the products of a half of a chunk.
    DEVICE void decode_half(u32 slot, u32 half, u32 (&a)[2][4]) {
        if (slot % SHARING == 0 && (half == 0 || SPANS == 2)) scaling.set(sides[slot / SHARING][half % SPANS]);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            decode<T, CODE>(codes[slot], 2 * half + i, scaling.shifts, table, a[i]);
            if constexpr (SCALES_CODES) scaling.apply(a[i]);
        }
    }

    // `rows`: the operand of the first of two products; `add`: whether there are sums already.
    DEVICE static void multiply_half(f32 (&c)[ROWS / 2], const u32 (&a)[2][4], u64 rows, u32 add) {
        products_begin();
#pragma unroll
        for (u32 i = 0; i < 2; i++) multiply_registers(T(), c, a[i], rows + 2 * i, add + i);
        products_commit();
        // The half before is multiplied: its operands may be overwritten, and a stage that ended with it.
        products_wait<1>();
    }

    // Multiplies the block's part, and leaves the sums in shared memory. `scales`: of rows of x that are codes.
    DEVICE void multiply(const f32* scales) {
        if constexpr (CODES != 0) multiply_codes(scales);
        else multiply_numbers();
    }

    // The codes of a half of a chunk, as operand registers.
    DEVICE void codes_of_half(u32 slot, u32 half, u32 (&a)[4]) const {
        const uint4 piece = codes[slot][half % PIECES];
        const u32 words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (u32 at = 0; at < 4; at++) {
            a[at] = row_codes(words[at / 2 * 2], words[at / 2 * 2 + 1], at % 2) ^ (CODE == INT8 ? 0x80808080u : 0u);
            // Made before the product begins.
            asm volatile("" : "+r"(a[at]));
        }
    }

    DEVICE void multiply_codes(const f32* scales) {
        typedef Operands<CODES, T> Both;
        typename Both::Sum sums[ROWS / 2];
        u32 a[STAGE_CHUNKS][2][4], stage = 0, parity = 0, before = 0, add = 0;
        const u64 operands = operand(stages, 0);
        for (u32 step = 0; step < steps; step += AHEAD)
#pragma unroll
            for (u32 slot = 0; slot < AHEAD; slot++) {
                const u32 part = slot % STAGE_CHUNKS;
                const u64 rows = operands + stage * (STAGE_BYTES >> 4) + 4 * part;
                codes_of_half(slot, 0, a[part][0]);
                codes_of_half(slot, 1, a[part][1]);
                load_weights(slot, step + slot + AHEAD);
                if (part == 0) barrier_wait(full + 8 * stage, parity);
                products_begin();
                multiply_registers(typename Both::Element(), sums, a[part][0], rows, add);
                multiply_registers(typename Both::Element(), sums, a[part][1], rows + 2, 1);
                products_commit();
                // The chunk before is multiplied.
                products_wait<1>();
                if (part == 0 && add && threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * before);
                add = 1;
                if (part + 1 < STAGE_CHUNKS) continue;
                before = stage;
                if (++stage == DEPTH) stage = 0, parity ^= 1;
            }
        products_wait<0>();
        settle(sums);
        f32 (&c)[ROWS / 2] = as_numbers(sums);
        const Side side = Side::of(w, my_tile, 0);
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
        const u64 operands = operand(stages, 0);
        for (u32 step = 0; step < steps; step += AHEAD)
#pragma unroll
            for (u32 slot = 0; slot < AHEAD; slot++) {
                const u64 rows = operands + stage * (STAGE_BYTES >> 4);
                decode_half(slot, 0, a[0]);
                barrier_wait(full + 8 * stage, parity);
                multiply_half(c, a[0], rows, add);
                if (add && threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * before);
                decode_half(slot, 1, a[1]);
                load_weights(slot, step + slot + AHEAD);
                multiply_half(c, a[1], rows + 4, 1);
                before = stage, add = 1;
                if (++stage == DEPTH) stage = 0, parity ^= 1;
            }
        products_wait<0>();
        settle(c);
        if constexpr (!SCALES_CODES) {
            const Side side = Side::of(w, my_tile, 0);
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

// Writes four numbers of a row, or adds them to what is there.
template <typename T> DEVICE void put_four(void* out, size_t at, float4 x, u32 wide, u32 accumulate) {
    if (wide) {
        if (accumulate) add(x, *(const float4*)((const f32*)out + at));
        *(float4*)((f32*)out + at) = x;
        return;
    }
    T* to = (T*)out + at;
    if (accumulate) add(x, make_float4(load(to[0]), load(to[1]), load(to[2]), load(to[3])));
    *(uint2*)to = make_uint2(Tensor<T>::pack(x.x, x.y), Tensor<T>::pack(x.z, x.w));
}
