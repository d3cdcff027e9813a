// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert], or what an activation makes of it, on Hopper, where experts have many rows:
// warpgroup products and the copy engine.
//
// Three warpgroups. The first feeds stages of shared memory: the copy engine brings weights, threads gather rows of x. The others own half
// of a tile's columns each, of two boxes of weights: neighbours, or where columns are gated, one of gates and one of what they gate.
// Weights are the left operand, so that a tile may have few rows: 64 columns by ROWS. Blocks stay and take tiles in turn; those of one
// expert and the same columns are neighbours, so that its weights come from memory once.
#include "experts.cuh"
#include "hopper.cuh"

// Compiled for one type and configuration (`src/experts.rs`): rows of x in a tile, and stages.
#ifndef TYPE
#define TYPE bf16
#define ROWS 128
#define DEPTH 4
#endif

struct HopperExperts {
    typedef TYPE T;
    // Columns of a box of weights, boxes of a tile, elements of k in a stage.
    static constexpr u32 BOX = 128, PARTS = 2, STEP = 64;
    // Columns of a tile of `out`.
    static constexpr u32 COLUMNS = GATED ? BOX : PARTS * BOX;
    static constexpr u32 BOX_BYTES = BOX * STEP * 2, W_BYTES = BOX_BYTES * PARTS, X_BYTES = ROWS * STEP * 2, STAGE_BYTES = W_BYTES + X_BYTES;
    static constexpr u32 FEEDERS = 128, CONSUMING_WARPS = 8;
    // Rows that a feeding thread brings of each stage, 16 bytes of each.
    static constexpr u32 MINE = ROWS / (FEEDERS / 8);

    Choices choices;
    ExpertShape shape;
    u32 stages, full, empty;
    // Columns of `out`, and from a tile's first box to its second.
    u32 width, jump;
    u32 column_tiles, total;

    // A tile's expert, its pairs and its first column.
    struct Work {
        u32 expert, begin, rows, column;
    };

    DEVICE Work work(u32 index) const {
        const Tile any = choices.tile(index / column_tiles);
        const u32 begin = any.begin - (index / column_tiles - any.first_tile) * ROWS;
        const u32 tiles = (any.end - begin + ROWS - 1) / ROWS, inside = index - any.first_tile * column_tiles;
        const u32 first = begin + inside % tiles * ROWS;
        return {any.expert, first, min((u32)ROWS, any.end - first), inside / tiles * COLUMNS};
    }

    DEVICE void feed(const T* x, const TensorMap* maps) const {
        const u32 line = threadIdx.x / 8, piece = threadIdx.x % 8, steps = (shape.k + STEP - 1) / STEP;
        const u32 to = W_BYTES + line * 128 + (piece ^ line % 8) * 16;
        u32 filled = 0;
        for (u32 index = blockIdx.x; index < total; index += gridDim.x) {
            const Work work = this->work(index);
            const TensorMap* map = maps + work.expert;
            if (threadIdx.x == 0) acquire_map(map);
            const T* from[MINE];
#pragma unroll
            for (u32 i = 0; i < MINE; i++) {
                const u32 row = min(line + 16 * i, work.rows - 1);
                from[i] = x + (size_t)(choices.pair(work.begin + row) / shape.pairs_a_row) * shape.k + piece * 8;
            }
            for (u32 step = 0; step < steps; step++, filled++) {
                const u32 stage = filled % DEPTH, at = stages + stage * STAGE_BYTES;
                barrier_wait(empty + 8 * stage, filled / DEPTH % 2 ^ 1);
                if (threadIdx.x == 0) {
                    barrier_expect(full + 8 * stage, W_BYTES);
#pragma unroll
                    for (u32 part = 0; part < PARTS; part++)
                        copy_box(at + part * BOX_BYTES, map, step * STEP, work.column + part * jump, full + 8 * stage);
                }
                const bool inside = step * STEP + piece * 8 < shape.k;
#pragma unroll
                for (u32 i = 0; i < MINE; i++) copy_async(at + to + i * 2048, from[i] + step * STEP, inside && line + 16 * i < work.rows);
                barrier_arrive_after_copies(full + 8 * stage);
            }
        }
    }

    DEVICE void consume(void* out, const f32* bias, u32 group) const {
        const u32 steps = (shape.k + STEP - 1) / STEP;
        u32 used = 0;
        for (u32 index = blockIdx.x; index < total; index += gridDim.x) {
            const Work work = this->work(index);
            f32 c[PARTS][ROWS / 2];
            for (u32 step = 0; step < steps; step++, used++) {
                const u32 stage = used % DEPTH, at = stages + stage * STAGE_BYTES;
                barrier_wait(full + 8 * stage, used / DEPTH % 2);
                // Rows of x were written by threads.
                publish_shared();
                products_begin();
#pragma unroll
                for (u32 k = 0; k < STEP / 16; k++)
#pragma unroll
                    for (u32 part = 0; part < PARTS; part++)
                        multiply_shared(
                            T(), c[part], operand(at + part * BOX_BYTES + group * (64 * 128) + k * 32, 0),
                            operand(at + W_BYTES + k * 32, 0), step + k);
                products_commit();
                // The stage before is no longer read.
                products_wait<1>();
                if (step > 0 && threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * ((used - 1) % DEPTH));
            }
            products_wait<0>();
            if (threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * ((used - 1) % DEPTH));
#pragma unroll
            for (u32 part = 0; part < PARTS; part++) settle(c[part]);
            const u32 column = work.column + group * 64 + threadIdx.x % 128 / 32 * 16;
            add_biases(c, work, column, bias);
            if constexpr (GATED) {
#pragma unroll
                for (u32 i = 0; i < ROWS / 2; i++) c[0][i] = shape.gated(c[0][i], c[1][i]);
                write(out, c[0], work, column);
            } else {
#pragma unroll
                for (u32 part = 0; part < PARTS; part++) write(out, c[part], work, column + part * BOX);
            }
        }
    }

    DEVICE void add_biases(f32 (&c)[PARTS][ROWS / 2], const Work& work, u32 column, const f32* bias) const {
        if (!bias) return;
        const u32 g = threadIdx.x % 32 / 4;
#pragma unroll
        for (u32 part = 0; part < PARTS; part++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 at = column + g + 8 * half + part * jump;
                const f32 shift = at < shape.n ? bias[(size_t)work.expert * shape.n + at] : 0.0f;
#pragma unroll
                for (u32 i = 2 * half; i < ROWS / 2; i += 4) c[part][i] += shift, c[part][i + 1] += shift;
            }
    }

    DEVICE void write(void* out, const f32 (&c)[ROWS / 2], const Work& work, u32 column) const {
        if (shape.wide) write((f32*)out, c, work, column);
        else write((T*)out, c, work, column);
    }

    // Columns `column ..` of 16, all rows.
    DEVICE void write(f32* out, const f32 (&c)[ROWS / 2], const Work& work, u32 column) const {
        const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (u32 i = 0; i < ROWS / 4; i++) {
            const u32 row = i / 2 * 8 + 2 * t + i % 2;
            if (row >= work.rows) continue;
            f32* to = out + (size_t)choices.pair(work.begin + row) * width + column + g;
            if (column + g < width) to[0] = c[i / 2 * 4 + i % 2];
            if (column + g + 8 < width) to[8] = c[i / 2 * 4 + i % 2 + 2];
        }
    }

    // The same; the width is a multiple of 8.
    DEVICE void write(T* out, const f32 (&c)[ROWS / 2], const Work& work, u32 column) const {
        const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (u32 i = 0; i < ROWS / 8; i++) {
            const u32 low = transpose(Tensor<T>::pack(c[4 * i], c[4 * i + 1]));
            const u32 high = transpose(Tensor<T>::pack(c[4 * i + 2], c[4 * i + 3]));
            const u32 row = 8 * i + g;
            if (row < work.rows) {
                T* to = out + (size_t)choices.pair(work.begin + row) * width + column + 2 * t;
                if (column < width) *(u32*)to = low;
                if (column + 8 < width) *(u32*)(to + 8) = high;
            }
        }
    }

    DEVICE void run(char* shared, void* out, const T* x, const TensorMap* maps, const f32* bias) {
        stages = (shared_address(shared) + 1023) / 1024 * 1024;
        full = stages + DEPTH * STAGE_BYTES;
        empty = full + 8 * DEPTH;
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < DEPTH; stage++) {
                // The copy engine's, and each feeding thread's.
                barrier_init(full + 8 * stage, 1 + FEEDERS);
                barrier_init(empty + 8 * stage, CONSUMING_WARPS);
            }
            barrier_init_done();
        }
        __syncthreads();
        launch_dependents();
        wait_for_inputs();
        width = shape.width();
        jump = GATED ? width : BOX;
        column_tiles = (width + COLUMNS - 1) / COLUMNS;
        total = choices.num_tiles(shape.pairs) * column_tiles;
        if (threadIdx.x < FEEDERS) {
            give_registers<56>();
            feed(x, maps);
        } else {
            take_registers<224>();
            consume(out, bias, threadIdx.x / 128 - 1);
        }
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: as many blocks as the device has room for, 384 threads. `maps` describe each expert's weights in boxes of 128 rows and 64 columns,
// swizzled by 128 bytes. k and the columns of `out` are multiples of 8.
extern "C" __global__ void __launch_bounds__(384, 1) expert_matmul_hopper(
    void* out, const TYPE* x, const TensorMap* maps, const f32* bias, const Choices choices, const ExpertShape shape) {
    HopperExperts it;
    it.choices = choices;
    it.shape = shape;
    it.run(dynamic_shared, out, x, maps, bias);
}
