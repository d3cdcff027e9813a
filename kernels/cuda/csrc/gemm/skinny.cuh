// Products of few rows of x with rows of w, limited by reading w once, so everything serves that.
//
// A block owns 8 * TILES rows of w and all of k, its warps take turns along k. Each lane reads 16 bytes of a row of w
// straight into the registers of a tensor-core operand: a sum does not mind its order, so the k that a fragment calls
// 2t, 2t + 1, 2t + 8, 2t + 9 may be any four as long as x uses the same. DEPTH loads per row are under way in each lane
// before the first is used.
//
// The order of a row's sum depends on k and WARPS alone, not on the number of rows.
#pragma once
#include "mma.cuh"

// Compiled for one type and configuration. HALVES: 1 for up to 8 rows of x, 2 for up to 16, 4 for up to 32.
#ifndef TYPE
#define TYPE bf16
#define WARPS 8
#define HALVES 1
#define TILES 2
#define DEPTH 4
#endif

// Blocks that a multiprocessor must have room for: with more registers than that leaves, too few loads are under way.
#define LEAST_BLOCKS ((HALVES == 1 ? 24 : 20) / WARPS)

// `k` is a multiple of 8.
struct Skinny {
    typedef TYPE T;
    static constexpr u32 ROWS = 8 * HALVES, COLUMNS = 8 * TILES, STRIDE = WARPS * 32;
    // Of each 16 rows of x.
    static constexpr u32 PAIRS = (HALVES + 1) / 2;
    // What each warp adds up, for all of them to see.
    typedef f32 Parts[WARPS][ROWS][COLUMNS + 1];

    u32 warp, lane, chunks, limit;
    const T *from_w[TILES], *from_x[HALVES];
    bool has_row[HALVES];
    uint4 a[DEPTH][HALVES], b[DEPTH][TILES];
    f32 c[PAIRS][TILES][4];

    DEVICE Skinny(u32 k) {
        warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        chunks = (k + 31) / 32;
        // Chunks in which this lane's columns exist.
        limit = (k + 31 - 8 * (threadIdx.x % 4)) / 32;
#pragma unroll
        for (u32 pair = 0; pair < PAIRS; pair++)
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) c[pair][tile][i] = 0.0f;
    }

    // This lane's first column in a chunk, and its row of every 8.
    DEVICE u32 column() const { return lane % 4 * 8; }
    DEVICE u32 row() const { return lane / 4; }

    // Starts reading the rows of w from `first` on; rows past the last are the last again.
    DEVICE void start_weights(const T* w, u32 first, u32 n, u32 k) {
        start_weights(w, k, [=](u32 at) { return min(first + at, n - 1); });
    }

    // The same for any rows: `row_of(i)` is the block's i-th.
    template <typename RowOf> DEVICE void start_weights(const T* w, u32 k, RowOf row_of) {
#pragma unroll
        for (u32 tile = 0; tile < TILES; tile++)
            from_w[tile] = w + (size_t)row_of(8 * tile + row()) * k + warp * 32 + column();
#pragma unroll
        for (u32 stage = 0; stage < DEPTH; stage++)
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
                b[stage][tile] = load_weights(from_w[tile] + stage * STRIDE, warp + stage * WARPS < limit);
    }

    // Starts reading x. `at(i)` is where row i begins; those from `rows` on are not read and count as zeros.
    template <typename At> DEVICE void start_rows(u32 rows, At at) {
#pragma unroll
        for (u32 half = 0; half < HALVES; half++) {
            has_row[half] = 8 * half + row() < rows;
            from_x[half] = at(8 * half + row()) + warp * 32 + column();
        }
#pragma unroll
        for (u32 stage = 0; stage < DEPTH; stage++)
#pragma unroll
            for (u32 half = 0; half < HALVES; half++)
                a[stage][half] = load_row(from_x[half] + stage * STRIDE, has_row[half] && warp + stage * WARPS < limit);
    }

    // Multiplies all of k, and leaves this warp's sums in `parts`.
    DEVICE void run(Parts& parts) {
        for (u32 chunk = warp; chunk < chunks; chunk += DEPTH * WARPS) {
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) from_w[tile] += DEPTH * STRIDE;
#pragma unroll
            for (u32 half = 0; half < HALVES; half++) from_x[half] += DEPTH * STRIDE;
#pragma unroll
            for (u32 stage = 0; stage < DEPTH; stage++) {
                multiply(stage);
                const bool more = chunk + (stage + DEPTH) * WARPS < limit;
#pragma unroll
                for (u32 tile = 0; tile < TILES; tile++)
                    b[stage][tile] = load_weights(from_w[tile] + stage * STRIDE, more);
#pragma unroll
                for (u32 half = 0; half < HALVES; half++)
                    a[stage][half] = load_row(from_x[half] + stage * STRIDE, has_row[half] && more);
            }
        }
#pragma unroll
        for (u32 half = 0; half < HALVES; half++)
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++)
#pragma unroll
                for (u32 i = 0; i < 2; i++)
                    parts[warp][8 * half + row()][8 * tile + lane % 4 * 2 + i] = c[half / 2][tile][2 * (half % 2) + i];
        __syncthreads();
    }

    // Hands each sum over all warps, and `bias[n]`, to `take(row, n, sum)`.
    template <typename Take> DEVICE static void finish(
        const Parts& parts, u32 rows, u32 first, u32 n, const f32* bias, Take take) {
        for (u32 i = threadIdx.x; i < rows * COLUMNS; i += WARPS * 32) {
            const u32 row = i / COLUMNS, column = i % COLUMNS, at = first + column;
            if (at >= n) continue;
            take(row, at, add(parts, row, column, bias ? bias[at] : 0.0f));
        }
    }

    // The sum over all warps, times its row's factor where rows have such, and a bias.
    DEVICE static f32 whole(const Parts& parts, u32 row, u32 column, f32 bias, const f32* factors) {
        return factors ? add(parts, row, column, 0.0f) * factors[row] + bias : add(parts, row, column, bias);
    }

    // The sum over all warps, and something before them.
    DEVICE static f32 add(const Parts& parts, u32 row, u32 column, f32 sum) {
#pragma unroll
        for (u32 part = 0; part < WARPS; part++) sum += parts[part][row][column];
        return sum;
    }

private:
    DEVICE void multiply(u32 stage) {
#pragma unroll
        for (u32 pair = 0; pair < PAIRS; pair++) {
            const uint4 low = a[stage][2 * pair];
            const uint4 high = HALVES > 1 ? a[stage][(2 * pair + 1) % HALVES] : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (u32 tile = 0; tile < TILES; tile++) {
                const uint4 y = b[stage][tile];
                Tensor<T>::multiply(c[pair][tile], low.x, high.x, low.y, high.y, y.x, y.y);
                Tensor<T>::multiply(c[pair][tile], low.z, high.z, low.w, high.w, y.z, y.w);
            }
        }
    }

    // 16 bytes, or zeros.
    DEVICE static uint4 load_row(const T* from, bool valid) {
        return valid ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
    }
    DEVICE static uint4 load_weights(const T* from, bool valid) {
        return valid ? load_streamed(from) : make_uint4(0, 0, 0, 0);
    }
};
