// Tiles of products of rows with their experts on Hopper: which block has which, how its rows get to shared memory, and
// how sums leave. `expert_matmul_wgmma.cu` and `expert_matmul_codes_wgmma.cu` multiply them.
//
//     an expert's pairs  | block 0 | block 1 | block 0 | block 1 |       blocks of a cluster share a tile's columns:
//     each brings a part of the columns 0 ..       |  tile 0           |  tile 1           |       weights to all of
//     them, and rows of its own columns COLUMNS .. |  tile 2           |  tile 3           |
//
// Three warpgroups. The first feeds stages of shared memory: the copy engine brings weights, threads gather rows of x.
// The others own half of a tile's columns each, two boxes of weights: neighbours, or where columns are gated, one of
// gates and one of what they gate. Weights are the left operand, so that a tile may have any number of rows up to ROWS:
// it is multiplied with as many as it has, rounded up.
//
// Clusters stay and take tiles in turn; those of one expert and the same columns are neighbours, so that its weights
// come from memory once.
//
// Compiled for TYPE, ROWS of x in a block's tile at most, BLOCKS of a cluster, and DEPTH stages.
#pragma once
#include "experts.cuh"
#include "hopper_rows.cuh"

// UNIT: what blocks share a tile's rows by.
template <u32 UNIT> struct ExpertTiles {
    typedef TYPE T;
    // Columns of `out` of a box of weights, boxes of a tile, bytes of a row in a stage.
    static constexpr u32 BOX = 64, BOXES = 4, LINE_BYTES = 128;
    // Columns of `out` of a tile, and of a consuming warpgroup.
    static constexpr u32 COLUMNS = BOX * BOXES / (GATED ? 2 : 1), MY_COLUMNS = COLUMNS / 2;
    static constexpr u32 BOX_BYTES = BOX * LINE_BYTES, W_BYTES = BOX_BYTES * BOXES, X_BYTES = ROWS * LINE_BYTES,
                         STAGE_BYTES = W_BYTES + X_BYTES;
    static constexpr u32 FEEDERS = 128, CONSUMING_WARPS = 8;
    // Rows that a feeding thread brings of each stage, 16 bytes of each.
    static constexpr u32 MINE = ROWS / (FEEDERS / 8);
    // The most rows that a cluster's tile has.
    static constexpr u32 CLUSTER_ROWS = ROWS * BLOCKS;
    // Rows of out that a warpgroup holds in shared memory at once on their way to memory: 16-byte pieces, swizzled.
    static constexpr u32 HELD = 32, LINE_PIECES = MY_COLUMNS / 8;
    // With the numbers of all its pairs. `src/moe/experts.rs` has its twin.
    static constexpr u32 LEAVING_BYTES = HELD * 256 + ROWS * 4;

    // Of a consuming thread: sums of both boxes, and the pairs of rows i and i + 128.
    typedef f32 Sums[2][ROWS / 2];
    typedef u32 PairsOfRows[(ROWS + 127) / 128];

    Choices choices;
    ExpertShape shape;
    u32 stages, full, empty, leaving;
    // This block in its cluster; clusters.
    u32 rank, first, step;
    // Columns of `out`.
    u32 width;
    u32 column_tiles, total;

    // A block's part of a tile: its expert, its pairs and its first column.
    struct Work {
        u32 expert, begin, rows, column;
    };

    // Which tile of the lists a number of the work is for.
    DEVICE Tile tile(u32 index) const { return choices.tile(min(index, max(total, 1u) - 1) / column_tiles); }

    DEVICE Work work(u32 index, const Tile& any) const {
        const u32 begin = any.begin - (index / column_tiles - any.first_tile) * CLUSTER_ROWS, pairs = any.end - begin;
        const u32 tiles = (pairs + CLUSTER_ROWS - 1) / CLUSTER_ROWS, inside = index - any.first_tile * column_tiles;
        const u32 column_tile = inside / tiles, tile = inside - column_tile * tiles;
        // As even as units of each block allow, so that few rows are computed of padding.
        const u32 units = (pairs + UNIT * BLOCKS - 1) / (UNIT * BLOCKS), each = units / tiles,
                  more = units - each * tiles;
        const u32 share = (each + (tile < more)) * UNIT,
                  mine = (each * tile + min(tile, more)) * UNIT * BLOCKS + rank * share;
        return {any.expert, begin + mine, mine < pairs ? min(share, pairs - mine) : 0, column_tile * COLUMNS};
    }

    // The rows of an expert's weights where a tile's box begins.
    DEVICE u32 box_row(const Work& work, u32 box) const {
        return work.column + (GATED ? box / 2 * BOX + box % 2 * width : box * BOX);
    }

    // Where the rows begin that a feeding thread brings, in pieces of 16 bytes, of which a row has `pieces`.
    DEVICE void find_rows(u32 (&from)[MINE], const Work& work, u32 pieces) const {
        const u32 line = threadIdx.x / 8, piece = threadIdx.x % 8;
#pragma unroll
        for (u32 i = 0; i < MINE; i++)
            from[i] = line + 16 * i < work.rows ? row_of(work, line + 16 * i) * pieces + piece : 0;
    }

    // Which row of x is a tile's.
    DEVICE u32 row_of(const Work& work, u32 row) const { return choices.pair(work.begin + row) / shape.pairs_a_row; }

    // Brings its part of a stage of those; `inside`: whether rows are that long.
    DEVICE static void gather(u32 stage, const void* x, const u32 (&from)[MINE], u32 rows, u32 at_k, bool inside) {
        const u32 line = threadIdx.x / 8, to = stage + W_BYTES + line * 128 + (threadIdx.x % 8 ^ line % 8) * 16;
#pragma unroll
        for (u32 i = 0; i < MINE; i++)
            if (line + 16 * i < rows) copy_async(to + i * 2048, (const uint4*)x + from[i] + at_k * 8, inside);
    }

    // Each block may overwrite the stage in all of them once all have read it.
    DEVICE void release(u32 stage) const {
        if (threadIdx.x % 32 < BLOCKS) barrier_arrive_after_reading(address_in(empty + 8 * stage, threadIdx.x % 32));
    }

    // `multiply(c, work, used)` makes a tile's sums; `used`: stages so far. `leave(c, work, column, pairs)` writes
    // those of a warpgroup, from its first column on, where they are no f32.
    template <typename Multiply, typename Leave>
    DEVICE void consume(void* out, const f32* bias, u32 group, Multiply multiply, Leave leave) const {
        const u32 thread = threadIdx.x % 128;
        u32 used = 0;
        // Each is asked for before the one ahead of it is worked on.
        Tile next = tile(first);
        for (u32 index = first; index < total; index += step) {
            const Work work = this->work(index, next);
            next = tile(index + step);
            u32 pairs[(ROWS + 127) / 128];
#pragma unroll
            for (u32 i = 0; i < (ROWS + 127) / 128; i++)
                pairs[i] = thread + 128 * i < work.rows ? choices.pair(work.begin + thread + 128 * i) : 0;
            // Left undefined, products of different sizes would wait for each other.
            f32 c[2][ROWS / 2];
#pragma unroll
            for (u32 i = 0; i < ROWS / 2; i++) c[0][i] = 0.0f, c[1][i] = 0.0f;
            multiply(c, work, used);
            add_biases(c, work, group, bias);
            const u32 column = work.column + group * MY_COLUMNS;
            if (shape.wide) {
                if constexpr (GATED) gate<ROWS>(c, 0);
#pragma unroll
                for (u32 part = 0; part < (GATED ? 1 : 2); part++) write((f32*)out, c[part], work, column + part * BOX);
            } else {
                leave(c, work, column, pairs);
            }
        }
    }

    // This warp's first column of a box.
    DEVICE static u32 my_column() { return threadIdx.x % 128 / 32 * 16; }

    DEVICE void add_biases(f32 (&c)[2][ROWS / 2], const Work& work, u32 group, const f32* bias) const {
        if (!bias) return;
        const u32 g = threadIdx.x % 32 / 4;
#pragma unroll
        for (u32 part = 0; part < 2; part++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 at = box_row(work, 2 * group + part) + my_column() + g + 8 * half;
                const f32 shift = at < shape.n ? bias[(size_t)work.expert * shape.n + at] : 0.0f;
#pragma unroll
                for (u32 i = 2 * half; i < ROWS / 2; i += 4) c[part][i] += shift, c[part][i + 1] += shift;
            }
    }

    // Gates COUNT rows from `base` on, in the place of the gates.
    template <u32 COUNT> DEVICE void gate(f32 (&c)[2][ROWS / 2], u32 base) const {
#pragma unroll
        for (u32 i = 0; i < COUNT / 2; i++) c[0][base / 2 + i] = shape.gated(c[0][base / 2 + i], c[1][base / 2 + i]);
    }

    // Columns `column ..` of a box, all rows.
    DEVICE void write(f32* out, const f32 (&c)[ROWS / 2], const Work& work, u32 column) const {
        const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        column += my_column() + g;
#pragma unroll
        for (u32 i = 0; i < ROWS / 4; i++) {
            const u32 row = i / 2 * 8 + 2 * t + i % 2;
            if (row >= work.rows) continue;
            f32* to = out + (size_t)choices.pair(work.begin + row) * width + column;
            if (column < width) to[0] = c[i / 2 * 4 + i % 2];
            if (column + 8 < width) to[8] = c[i / 2 * 4 + i % 2 + 2];
        }
    }

    // All columns of the warpgroup, `column ..`, gated first if they are to be: through shared memory, so that a row's
    // are written side by side. `pairs`: of rows i, i + 128, of thread i. The width is a multiple of 8.
    DEVICE void write(
        T* out, f32 (&c)[2][ROWS / 2], const Work& work, u32 column, u32 group, char* held,
        const u32 (&pairs)[(ROWS + 127) / 128]) const {
        const u32 thread = threadIdx.x % 128;
        u32* pair_of = (u32*)(held + HELD * 256);
#pragma unroll
        for (u32 base = 0; base < ROWS; base += HELD) {
            if (base >= work.rows) break;
            if constexpr (GATED) gate<HELD>(c, base);
            // Those before have left.
            named_barrier(1 + group, 128);
            if (base == 0) {
#pragma unroll
                for (u32 i = 0; i < (ROWS + 127) / 128; i++)
                    if (thread + 128 * i < ROWS) pair_of[thread + 128 * i] = pairs[i];
            }
#pragma unroll
            for (u32 part = 0; part < (GATED ? 1 : 2); part++) hold(c[part], base, part, shared_address(held));
            named_barrier(1 + group, 128);
#pragma unroll
            for (u32 i = 0; i < HELD * LINE_PIECES / 128; i++) {
                const u32 row = (thread + 128 * i) / LINE_PIECES, piece = thread % LINE_PIECES;
                if (base + row >= work.rows || column + piece * 8 >= width) continue;
                const uint4 x = *(const uint4*)(held + row * MY_COLUMNS * 2 + (piece ^ row % 8) * 16);
                *(uint4*)(out + (size_t)pair_of[base + row] * width + column + piece * 8) = x;
            }
        }
    }

    // This warp's columns of a box, rows `base .. base + HELD`.
    DEVICE void hold(const f32 (&c)[ROWS / 2], u32 base, u32 part, u32 to) const {
        const u32 lane = threadIdx.x % 32, piece = (part * BOX + my_column()) / 8 + lane / 8 % 2;
#pragma unroll
        for (u32 rows = 0; rows < HELD; rows += 16) {
            const f32* first = c + (base + rows) / 2;
            const u32 row = rows + lane / 16 * 8 + lane % 8;
            store_matrices_transposed(to + row * MY_COLUMNS * 2 + (piece ^ row % 8) * 16,
                Tensor<T>::pack(first[0], first[1]), Tensor<T>::pack(first[2], first[3]),
                Tensor<T>::pack(first[4], first[5]), Tensor<T>::pack(first[6], first[7]));
        }
    }

    // Where things lie from `start` on, in shared memory; `beside`: bytes of each stage that do not lie in it.
    DEVICE void plan(u32 start, u32 beside) {
        stages = (start + 1023) / 1024 * 1024;
        leaving = stages + DEPTH * (STAGE_BYTES + beside);
        full = leaving + 2 * LEAVING_BYTES;
        empty = full + 8 * DEPTH;
        rank = BLOCKS == 1 ? 0 : cluster_rank();
        first = blockIdx.x / BLOCKS, step = gridDim.x / BLOCKS;
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < DEPTH; stage++) {
                // The copy engine's, and each feeding thread's.
                barrier_init(full + 8 * stage, 1 + FEEDERS);
                barrier_init(empty + 8 * stage, CONSUMING_WARPS * BLOCKS);
            }
            barrier_init_done();
        }
        __syncwarp();
        cluster_barrier();
        launch_dependents();
        wait_for_inputs();
        width = shape.width();
        column_tiles = (width + COLUMNS - 1) / COLUMNS;
        total = choices.num_tiles(shape.pairs) * column_tiles;
    }
};
