// out[rows, n] = x[rows, k] w[n, k]^T (+ bias) (+ out) for up to ROWS rows on Hopper, where both sides are codes of 8
// bits, and w has too few rows for a tile of them on each multiprocessor.
//
// Weights are the left operand. The copy engine brings tiles of 16 rows, 128 columns of each at a time, as they lie in
// memory (packed.cuh), and lanes hand what they read of them in shared memory to the tensor cores; so bytes that are
// under way take no registers. Rows of x are the right operand, their words in the same order (prepared.cuh).
//
//     k                       | part 0  | part 1  | ...    blocks of a cluster have parts of k; their sums stay in
//     64 rows of w for        | block 0 | block 1 |        shared memory until each block adds up those of its share of
//     each warpgroup          |         |         |        rows, in the order of parts
//
// Sums are multiplied by the scales of both rows. The order of a row's sum depends on k and PARTS, not on the other
// rows. `src/gemm/matmul_codes.rs` chooses the configuration.

// Compiled for one type, format (packed_product.cuh) and configuration: rows of x, warpgroups that multiply, parts of
// k, and stages.
#ifndef TYPE
#define TYPE bf16
#define FORMAT 2
#define GROUP 0
#define ROWS 64
#define WARPGROUPS 2
#define PARTS 3
#define DEPTH 9
#endif
#include "hopper_codes.cuh"
#include "packed_stream.cuh"

// Threads that multiply; one warp more feeds them.
#define MULTIPLYING (WARPGROUPS * 128)
#define THREADS (MULTIPLYING + 32)

struct CodesProduct {
    typedef TYPE T;
    typedef Operands<CODE, T> Both;
    // Columns of k of a stage, and bytes of what it has of a tile of w, of w and of x.
    static constexpr u32 STEP = 128, CHUNKS = STEP / CHUNK, TILE_BYTES = TILE_ROWS * STEP, TILES = WARPGROUPS * 4,
                         W_BYTES = TILES * TILE_BYTES, X_BYTES = ROWS * STEP, STAGE_BYTES = W_BYTES + X_BYTES;
    // Steps of k that parts are multiples of: what lanes hold of one is read while the one before is multiplied.
    static constexpr u32 TURN = 2;
    // Columns of `out` that a block has; sums of a row of x in shared memory, four more than there are: no two lanes
    // meet in a bank.
    static constexpr u32 COLUMNS = WARPGROUPS * 64, LINE = COLUMNS + 4, FOURS = COLUMNS / 4;
    typedef Stages<STAGE_BYTES, DEPTH> Ring;

    const PackedWeights& w;
    const PackedShape& shape;
    Ring stages;
    // This block's part of k, and the steps of that.
    u32 part, first, steps;
    // Its first column of `out`.
    u32 column;
    f32* sums;

    DEVICE CodesProduct(const PackedWeights& w, const PackedShape& shape, char* shared)
        : w(w), shape(shape), stages(shared) {
        sums = (f32*)(shared + (stages.begin - shared_address(shared)));
        part = blockIdx.x % PARTS;
        column = blockIdx.x / PARTS * COLUMNS;
        const u32 turns = (w.chunks() + TURN * CHUNKS - 1) / (TURN * CHUNKS);
        first = turns * part / PARTS * TURN;
        steps = turns * (part + 1) / PARTS * TURN - first;
    }

    // Which tile of w is the i-th of this block; past the end the last one again.
    DEVICE u32 tile_of(u32 i) const {
        return min(column / TILE_ROWS + i, (w.n + TILE_ROWS - 1) / TILE_ROWS - 1);
    }
    // Chunks of a step that there are; x is zero in those past the end.
    DEVICE u32 chunks_of(u32 step) const {
        const u32 chunk = (first + step) * CHUNKS;
        return min(max(w.chunks(), chunk) - chunk, CHUNKS);
    }

    DEVICE void fetch_weights(const char* codes, u32 step) const {
        const u32 full = stages.full_of(step), bytes = chunks_of(step) * (TILE_BYTES / CHUNKS);
        const u32 to = stages.begin + step % DEPTH * STAGE_BYTES + threadIdx.x % 32 * TILE_BYTES;
        if (threadIdx.x == MULTIPLYING) barrier_expect(full, TILES * bytes + X_BYTES);
        if (threadIdx.x % 32 < TILES && bytes) copy_bytes(to, codes + (u64)step * TILE_BYTES, bytes, full);
    }

    // By one thread.
    DEVICE void fetch_rows(const TensorMap* x, u32 step) const {
        const u32 to = stages.begin + step % DEPTH * STAGE_BYTES + W_BYTES;
        copy_box(to, x, (first + step) * CHUNK, 0, stages.full_of(step));
    }

    // By one warp. All stages are filled with weights before the input is waited for.
    DEVICE void feed(const TensorMap* x) const {
        const u32 lane = threadIdx.x % 32, ahead = min((u32)DEPTH, steps);
        const char* codes = (const char*)w.codes;
        codes += ((u64)tile_of(lane) * w.chunks() + first * CHUNKS) * (TILE_BYTES / CHUNKS);
        if (lane == 0) prefetch_map(x);
        for (u32 step = 0; step < ahead; step++) fetch_weights(codes, step);
        wait_for_inputs();
        for (u32 step = 0; lane == 0 && step < ahead; step++) fetch_rows(x, step);
        __syncwarp();
#pragma unroll 1
        for (u32 step = ahead; step < steps; step++) {
            stages.await_empty(step);
            fetch_weights(codes, step);
            if (lane == 0) fetch_rows(x, step);
            __syncwarp();
        }
    }

    // This warp's operands of a stage: four products of 32 columns.
    DEVICE void load_codes(u32 (&a)[4][4], u32 step) const {
        const u32 tile = stages.begin + step % DEPTH * STAGE_BYTES + threadIdx.x / 32 * TILE_BYTES;
        const u32 products = 2 * chunks_of(step);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            load_ordered_codes(a[i], tile, i, flip_of(CODE));
#pragma unroll
            for (u32 at = 0; at < 4; at++) {
                // What was there before may be no number.
                if (i >= products) a[i][at] = 0;
                // Made before the products begin.
                asm volatile("" : "+r"(a[i][at]));
            }
        }
    }

    // Begins a step's products.
    template <u32 N> DEVICE void begin_products(typename Both::Sum (&sums)[N], const u32 (&a)[4][4], u32 step) const {
        const u64 rows = operand(stages.begin + step % DEPTH * STAGE_BYTES + W_BYTES, 0);
        products_begin();
#pragma unroll
        for (u32 i = 0; i < 4; i++) multiply_registers(typename Both::Element(), sums, a[i], rows + 2 * i, step + i);
        products_commit();
    }

    // Which row of a tile of x a sum is of: as `leave_sums` has them.
    DEVICE static u32 row_of(u32 i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

    DEVICE void multiply(f32* to, const f32* x_scales) const {
        typename Both::Sum sums[ROWS / 2];
        u32 a[2][4][4];
        for (u32 two = 0; two < steps; two += 2)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u32 step = two + i;
                barrier_wait(stages.full_of(step), step / DEPTH % 2);
                load_codes(a[i], step);
                begin_products(sums, a[i], step);
                // The step before is multiplied.
                products_wait<1>();
                if (step && threadIdx.x % 32 == 0) barrier_arrive(stages.empty + 8 * ((step - 1) % DEPTH));
            }
        products_wait<0>();
        settle(sums);
        f32 (&c)[ROWS / 2] = as_numbers(sums);
        const Side side = Side::of(w, tile_of(threadIdx.x / 32), 0);
#pragma unroll
        for (u32 i = 0; i < ROWS / 2; i++)
            c[i] *= side.scale(i / 2 % 2) * x_scales[min(row_of(i), shape.rows - 1)];
        named_barrier(1, MULTIPLYING);
        leave_sums<LINE>(to, c);
    }

    // Adds up all parts of this block's share of rows, and hands them to `take(row, column, four sums)`.
    template <typename Take> DEVICE void finish(const f32* bias, Take take) const {
        const u32 each = (shape.rows + PARTS - 1) / PARTS, begin = min(part * each, shape.rows);
        const u32 count = (min(begin + each, shape.rows) - begin) * FOURS;
        for (u32 i = threadIdx.x; i < count; i += MULTIPLYING) {
            const u32 row = begin + i / FOURS, inside = i % FOURS * 4, at = column + inside;
            if (at >= shape.n) continue;
            const u32 from = shared_address(sums + row * LINE + inside);
            float4 all = load_four_in(from, 0);
#pragma unroll
            for (u32 other = 1; other < PARTS; other++) add(all, load_four_in(from, other));
            if (bias) add(all, *(const float4*)(bias + at));
            take(row, at, all);
        }
    }
};

extern __shared__ __align__(1024) char dynamic_shared[];

// Grid: [PARTS * tiles of columns]. The map of x has boxes of 128 bytes of ROWS rows; its rows have whole steps. n is a
// multiple of 8; each part has a turn of steps.
extern "C" __global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(THREADS, 1)
    matmul_codes(void* out, const __grid_constant__ TensorMap x, const __grid_constant__ PackedWeights w,
        const f32* bias, const __grid_constant__ PackedShape shape, const f32* scales) {
    typedef TYPE T;
    CodesProduct product(w, shape, dynamic_shared);
    if (threadIdx.x == MULTIPLYING) product.stages.init_barriers(1, MULTIPLYING / 32);
    __syncthreads();
    launch_dependents();
    if (threadIdx.x < MULTIPLYING) {
        wait_for_inputs();
        product.multiply(product.sums, scales);
        await_sums<PARTS>(MULTIPLYING);
        product.finish(bias, [&](u32 row, u32 at, float4 x) {
            put_four<T>(out, (size_t)row * shape.n + at, x, shape.wide, shape.accumulate);
        });
    } else {
        product.feed(&x);
        await_sums<PARTS>(MULTIPLYING);
    }
    __syncwarp();
    // No block leaves while others read its sums.
    cluster_meeting();
}
