// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert], or what an activation makes of it, on Hopper, where
// experts have many rows: warpgroup products and the copy engine.
//
// Three warpgroups. The first feeds stages of shared memory: the copy engine brings weights, threads gather rows of x.
// The others own half of a tile's columns each, two boxes of weights: neighbours, or where columns are gated, one of
// gates and one of what they gate. Weights are the left operand, so that a tile may have any number of rows up to ROWS:
// it is multiplied with as many as it has, rounded up to 16.
//
//     an expert's pairs  | block 0 | block 1 | block 0 | block 1 |       blocks of a cluster share a tile's columns:
//     each brings a part of the columns 0 ..       |  tile 0           |  tile 1           |       weights to all of
//     them, and rows of its own columns COLUMNS .. |  tile 2           |  tile 3           |
//
// Clusters stay and take tiles in turn; those of one expert and the same columns are neighbours, so that its weights
// come from memory once.
#include "experts.cuh"
#include "hopper_rows.cuh"

// Compiled for one type and configuration (`src/moe/experts.rs`): rows of x in a block's tile at most, blocks of a
// cluster, and stages.
#ifndef TYPE
#define TYPE bf16
#define ROWS 160
#define BLOCKS 2
#define DEPTH 4
#endif

struct HopperExperts {
    typedef TYPE T;
    // Columns of a box of weights, boxes of a tile, elements of k in a stage.
    static constexpr u32 BOX = 64, BOXES = 4, STEP = 64;
    // Columns of `out` of a tile, and of a consuming warpgroup.
    static constexpr u32 COLUMNS = BOX * BOXES / (GATED ? 2 : 1), MY_COLUMNS = COLUMNS / 2;
    static constexpr u32 BOX_BYTES = BOX * STEP * 2, W_BYTES = BOX_BYTES * BOXES, X_BYTES = ROWS * STEP * 2,
                         STAGE_BYTES = W_BYTES + X_BYTES;
    static constexpr u32 FEEDERS = 128, CONSUMING_WARPS = 8;
    // Rows that a feeding thread brings of each stage, 16 bytes of each.
    static constexpr u32 MINE = ROWS / (FEEDERS / 8);
    // What blocks share a tile's rows by, and the most that a cluster's tile has.
    static constexpr u32 UNIT = 16, CLUSTER_ROWS = ROWS * BLOCKS;
    // Rows of out that a warpgroup holds in shared memory at once on their way to memory: 16-byte pieces, swizzled.
    static constexpr u32 HELD = 32, LINE_PIECES = MY_COLUMNS / 8;
    // With the numbers of all its pairs. `src/moe/experts.rs` has its twin.
    static constexpr u32 LEAVING_BYTES = HELD * 256 + ROWS * 4;

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

    DEVICE void feed(const T* x, const TensorMap* maps) const {
        const u32 line = threadIdx.x / 8, piece = threadIdx.x % 8, steps = (shape.k + STEP - 1) / STEP,
                  pieces = shape.k / 8;
        const u32 to = W_BYTES + line * 128 + (piece ^ line % 8) * 16;
        u32 filled = 0;
        for (u32 index = first; index < total; index += step) {
            const Work work = this->work(index, tile(index));
            const TensorMap* map = maps + work.expert;
            if (threadIdx.x == 0) acquire_map(map);
            // In pieces of 16 bytes.
            u32 from[MINE];
#pragma unroll
            for (u32 i = 0; i < MINE; i++)
                from[i] = line + 16 * i < work.rows
                    ? choices.pair(work.begin + line + 16 * i) / shape.pairs_a_row * pieces + piece
                    : 0;
            for (u32 at_k = 0; at_k < steps; at_k++, filled++) {
                const u32 stage = filled % DEPTH, at = stages + stage * STAGE_BYTES;
                barrier_wait(empty + 8 * stage, filled / DEPTH % 2 ^ 1);
                if (threadIdx.x == 0) {
                    barrier_expect(full + 8 * stage, W_BYTES);
#pragma unroll
                    for (u32 i = 0; i < BOXES / BLOCKS; i++)
                        load_box(work, rank * (BOXES / BLOCKS) + i, map, at_k, at, full + 8 * stage);
                }
                const bool inside = at_k * 8 + piece < pieces;
#pragma unroll
                for (u32 i = 0; i < MINE; i++)
                    if (line + 16 * i < work.rows)
                        copy_async(at + to + i * 2048, x + (size_t)(from[i] + at_k * 8) * 8, inside);
                barrier_arrive_after_copies(full + 8 * stage);
            }
        }
    }

    DEVICE void load_box(const Work& work, u32 box, const TensorMap* map, u32 at_k, u32 stage, u32 barrier) const {
        const u32 to = stage + box * BOX_BYTES, row = box_row(work, box);
        if constexpr (BLOCKS == 1) copy_box(to, map, at_k * STEP, row, barrier);
        else copy_box_to(to, map, at_k * STEP, row, barrier, (1 << BLOCKS) - 1);
    }

    // Each block may overwrite the stage in all of them once all have read it.
    DEVICE void release(u32 stage) const {
        if (threadIdx.x % 32 < BLOCKS) barrier_arrive_after_reading(address_in(empty + 8 * stage, threadIdx.x % 32));
    }

    // Multiplies all of k with N rows. `used`: stages so far.
    template <u32 N> DEVICE void multiply(f32 (&c)[2][ROWS / 2], u32 group, u32& used) const {
        const u32 steps = (shape.k + STEP - 1) / STEP;
        for (u32 at_k = 0; at_k < steps; at_k++, used++) {
            const u32 stage = used % DEPTH, at = stages + stage * STAGE_BYTES;
            barrier_wait(full + 8 * stage, used / DEPTH % 2);
            // Rows of x were written by threads.
            publish_shared();
            products_begin();
#pragma unroll
            for (u32 k = 0; k < STEP / 16; k++)
#pragma unroll
                for (u32 part = 0; part < 2; part++)
                    multiply_shared(
                        T(), *(f32(*)[N / 2])c[part], operand(at + (2 * group + part) * BOX_BYTES + k * 32, 0),
                        operand(at + W_BYTES + k * 32, 0), 1);
            products_commit();
            // The stage before is no longer read.
            products_wait<1>();
            if (at_k > 0) release((used - 1) % DEPTH);
        }
        products_wait<0>();
#pragma unroll
        for (u32 part = 0; part < 2; part++) settle(*(f32(*)[N / 2])c[part]);
        release((used - 1) % DEPTH);
    }

    // The same with as many rows as there are, rounded up to N, N + 16, ...
    template <u32 N> DEVICE void multiply_rows(f32 (&c)[2][ROWS / 2], u32 rows, u32 group, u32& used) const {
        if constexpr (N < ROWS) {
            if (rows > N) return multiply_rows<N + UNIT>(c, rows, group, used);
        }
        multiply<N>(c, group, used);
    }

    DEVICE void consume(char* shared, void* out, const f32* bias, u32 group) const {
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
            multiply_rows<32>(c, work.rows, group, used);
            add_biases(c, work, group, bias);
            const u32 column = work.column + group * MY_COLUMNS;
            if (shape.wide) {
                if constexpr (GATED) gate<ROWS>(c, 0);
#pragma unroll
                for (u32 part = 0; part < (GATED ? 1 : 2); part++) write((f32*)out, c[part], work, column + part * BOX);
            } else {
                write((T*)out, c, work, column, group, shared + group * LEAVING_BYTES, pairs);
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

    DEVICE void run(char* shared, void* out, const T* x, const TensorMap* maps, const f32* bias) {
        const u32 start = shared_address(shared);
        stages = (start + 1023) / 1024 * 1024;
        leaving = stages + DEPTH * STAGE_BYTES;
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
        if (threadIdx.x < FEEDERS) {
            give_registers<40>();
            feed(x, maps);
        } else {
            take_registers<232>();
            consume(shared + (leaving - start), out, bias, threadIdx.x / 128 - 1);
        }
        __syncwarp();
        // Nobody leaves while others may still write to its shared memory.
        cluster_barrier();
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: as many clusters as the device has room for, 384 threads. `maps` describe each expert's weights in boxes of 64
// rows and 64 columns, swizzled by 128 bytes. k and the columns of `out` are multiples of 8.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(384, 1) expert_matmul_wgmma(
    void* out, const TYPE* x, const TensorMap* maps, const f32* bias, const Choices choices, const ExpertShape shape) {
    HopperExperts it;
    it.choices = choices;
    it.shape = shape;
    it.run(dynamic_shared, out, x, maps, bias);
}
