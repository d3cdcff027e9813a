// Products of few rows of x with weights of 4 or 8 bits, limited by reading the weights once.
//
// The weights are the left operand (16 rows of them in a tile), rows of x the right one (8 in a half). A block owns
// TILES tiles and all of k, its warps take turns along k, chunk by chunk. DEPTH loads of each tile are under way in
// each lane before the first is used. Codes are decoded in registers to the exact numbers that they stand for but for
// their scale, by which a group's sums are multiplied in f32. The order of a row's sum depends on k, the group and
// WARPS, not on the number of rows.
#pragma once
#include "packed_product.cuh"

// Compiled for one type, format (packed_product.cuh) and configuration. HALVES: 1 for up to 8 rows of x, 2 for up to
// 16, 4 for up to 32.
#ifndef TYPE
#define TYPE bf16
#define WARPS 8
#define HALVES 1
#define TILES 2
#define DEPTH 3
#endif

#if __CUDA_ARCH__ >= 800
// Blocks that a multiprocessor must have room for: with more registers than that leaves, too few loads are under way.
#define LEAST_BLOCKS ((HALVES == 1 && TILES == 1 && GROUP % 64 == 0 ? 32 : 16) / WARPS)

struct PackedSkinny {
    typedef TYPE T;
    static constexpr u32 ROWS = 8 * HALVES, COLUMNS = TILE_ROWS * TILES;
    // Stages of x, which comes from a cache.
    static constexpr u32 NEAR = DEPTH % 2 == 0 ? 2 : 1;
    // Whether codes are multiplied by scales, or sums of groups: those of a product are of one group.
    static constexpr bool SCALES_CODES = GROUP % 32 != 0;
    typedef f32 Parts[WARPS][ROWS][COLUMNS + 1];

    const PackedWeights& w;
    const u32* table;
    u32 warp, lane, chunks;
    // Chunks in which this lane's columns of either half exist.
    u32 limits[2];
    u32 tiles[TILES];
    const uint4* from_w[TILES];
    const T* from_x[HALVES];
    bool has_row[HALVES];
    uint4 b[DEPTH][TILES][PIECES], a[NEAR][HALVES][2];
    Side sides[DEPTH][TILES][SPANS];
    f32 total[HALVES][TILES][4], part[HALVES][TILES][4], sums[HALVES][4];

    DEVICE PackedSkinny(const PackedWeights& w, const u32* table) : w(w), table(table) {
        warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        chunks = w.chunks();
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 column = 32 * h + lane % 4 * 8;
            limits[h] = w.k > column ? (w.k - column + CHUNK - 1) / CHUNK : 0;
        }
#pragma unroll
        for (u32 half = 0; half < HALVES; half++) {
            clear(sums[half]);
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) clear(total[half][tile]), clear(part[half][tile]);
        }
    }

    // Starts reading tiles of w: `tile_of(i)` is the block's i-th.
    template <typename TileOf> DEVICE void start_weights(TileOf tile_of) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
            tiles[tile] = tile_of(tile);
            from_w[tile] = w.codes + ((u64)tiles[tile] * chunks + warp) * PIECES * 32 + lane;
        }
#pragma unroll
        for (u32 stage = 0; stage < DEPTH; stage++) load_weights(stage, stage, warp + stage * WARPS);
    }

    // Starts reading x. `at(i)` is where row i begins; those from `rows` on are not read and count as zeros.
    template <typename At> DEVICE void start_rows(u32 rows, At at) {
#pragma unroll
        for (u32 half = 0; half < HALVES; half++) {
            has_row[half] = 8 * half + lane / 4 < rows;
            from_x[half] = at(8 * half + lane / 4) + warp * CHUNK + lane % 4 * 8;
        }
#pragma unroll
        for (u32 stage = 0; stage < NEAR; stage++) load_rows(stage, stage, warp + stage * WARPS);
    }

    // Multiplies all of k, and leaves this warp's sums in `parts`.
    DEVICE void run(Parts& parts) {
        for (u32 chunk = warp; chunk < chunks; chunk += DEPTH * WARPS) {
#pragma unroll
            for (u32 stage = 0; stage < DEPTH; stage++) {
                const u32 here = chunk + stage * WARPS;
                if (here < chunks) multiply(stage);
                load_weights(stage, stage + DEPTH, here + DEPTH * WARPS);
                load_rows(stage % NEAR, stage + NEAR, here + NEAR * WARPS);
            }
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) from_w[tile] += DEPTH * WARPS * PIECES * 32;
#pragma unroll
            for (u32 half = 0; half < HALVES; half++) from_x[half] += DEPTH * WARPS * CHUNK;
        }
        if constexpr (GROUP == 0) {
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) fold(Side::of(w, tiles[tile], 0), tile);
        }
#pragma unroll
        for (u32 half = 0; half < HALVES; half++)
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
                for (u32 i = 0; i < 4; i++)
                    parts[warp][8 * half + lane % 4 * 2 + i % 2][TILE_ROWS * tile + lane / 4 + i / 2 * 8] =
                        total[half][tile][i];
        __syncthreads();
    }

    // The sum over all warps, and a bias.
    DEVICE static f32 whole(const Parts& parts, u32 row, u32 column, f32 bias) {
        f32 sum = 0.0f;
#pragma unroll
        for (u32 part = 0; part < WARPS; part++) sum += parts[part][row][column];
        return sum + bias;
    }

private:
    DEVICE static void clear(f32 (&c)[4]) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) c[i] = 0.0f;
    }

    // The chunk `turn` turns after where `from_w` is; what lies past the last one is not read, nor multiplied.
    DEVICE void load_weights(u32 stage, u32 turn, u32 chunk) {
        if (chunk >= chunks) return;
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++) {
#pragma unroll
            for (u32 piece = 0; piece < PIECES; piece++)
                b[stage][tile][piece] = load_streamed(from_w[tile] + (turn * WARPS * PIECES + piece) * 32);
            if constexpr (GROUP != 0) {
#pragma unroll
                for (u32 span = 0; span < SPANS; span++) {
                    const u32 column = chunk * CHUNK + span * (CHUNK / SPANS) + side_column();
                    // A chunk's second half may lie past the last column.
                    const u32 group = column / (GROUP ? GROUP : 1);
                    sides[stage][tile][span] = Side::of(w, tiles[tile], SPANS == 1 ? group : min(group, w.groups - 1));
                }
            }
        }
    }

    DEVICE void load_rows(u32 stage, u32 turn, u32 chunk) {
#pragma unroll
        for (u32 half = 0; half < HALVES; half++)
#pragma unroll
            for (u32 h = 0; h < 2; h++) {
                const bool valid = has_row[half] && chunk < limits[h];
                a[stage][half][h] = valid ? *(const uint4*)(from_x[half] + turn * WARPS * CHUNK + h * 32)
                                          : make_uint4(0, 0, 0, 0);
            }
    }

    DEVICE static void shifts_of(const Side& side, u32 (&shifts)[2]) {
#pragma unroll
        for (u32 r = 0; r < 2; r++) shifts[r] = row_shift<T, CODE>(side.zero(r));
    }

    DEVICE void multiply(u32 stage) {
#pragma unroll
        for (u32 product = 0; product < 4; product++) {
            const u32 h = product / 2, span = SPANS == 2 ? h : 0;
            u32 x[HALVES][2];
#pragma unroll
            for (u32 half = 0; half < HALVES; half++) {
                const uint4 four = a[stage % NEAR][half][h];
                x[half][0] = product % 2 ? four.z : four.x, x[half][1] = product % 2 ? four.w : four.y;
                constexpr u32 ONES = Pairs<T>::ONES;
                if constexpr (ZEROS == OFFSETS && !SCALES_CODES)
                    Tensor<T>::multiply(sums[half], ONES, ONES, ONES, ONES, x[half][0], x[half][1]);
            }
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) {
                u32 shifts[2], operand[4];
                if constexpr (SCALES_CODES) {
                    Scaling<T> scaling;
                    scaling.set(sides[stage][tile][span]);
                    decode<T, CODE>(b[stage][tile], product, scaling.shifts, table, operand);
                    scaling.apply(operand);
#pragma unroll
                    for (u32 half = 0; half < HALVES; half++)
                        Tensor<T>::multiply(total[half][tile], operand[0], operand[1], operand[2], operand[3],
                            x[half][0], x[half][1]);
                    continue;
                }
                if constexpr (GROUP == 0 && ZEROS == ZERO_POINTS) shifts_of(Side::of(w, tiles[tile], 0), shifts);
                else shifts_of(sides[stage][tile][span], shifts);
                decode<T, CODE>(b[stage][tile], product, shifts, table, operand);
#pragma unroll
                for (u32 half = 0; half < HALVES; half++)
                    Tensor<T>::multiply(part[half][tile], operand[0], operand[1], operand[2], operand[3], x[half][0],
                        x[half][1]);
            }
            // A group may end here.
            if (GROUP != 0 && !SCALES_CODES && (product == 3 || (SPANS == 2 && product == 1))) {
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++) fold(sides[stage][tile][span], tile);
                if constexpr (ZEROS == OFFSETS) {
#pragma unroll
                    for (u32 half = 0; half < HALVES; half++) clear(sums[half]);
                }
            }
        }
    }

    // Adds a group's sums, times its scales, to the total.
    DEVICE void fold(const Side& side, u32 tile) {
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const f32 scale = side.scale(r) * FACTOR<T, CODE>;
#pragma unroll
            for (u32 half = 0; half < HALVES; half++)
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    f32& sum = total[half][tile][2 * r + e];
                    sum = fmaf(part[half][tile][2 * r + e], scale, sum);
                    if constexpr (ZEROS == OFFSETS) sum = fmaf(sums[half][2 * r + e], side.offset(r), sum);
                    part[half][tile][2 * r + e] = 0.0f;
                }
        }
    }
};
#endif
