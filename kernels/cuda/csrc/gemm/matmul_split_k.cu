// out[rows, n] = x[rows, k] w[n, k]^T (+ bias) (+ out) for up to ROWS rows on Hopper, or activation(gate) * up of the
// columns [gate | up] of such a product, or an activation of each column: limited by reading w once, where a matrix has
// too few rows for a tile of them on each multiprocessor. And parts of the norms before and after it
// (`split_norm.cuh`).
//
// Weights are the left operand, 64 of their rows for each warpgroup, and all rows of x the right one: no part of a tile
// is empty, and w is read once. The blocks of a cluster have parts of k:
//
//     k            | part 0  | part 1  | ...        sums of a tile stay in the shared memory of the blocks that have
//     its parts, until each block tile 0 of w  | block 0 | block 1 |            adds up those of its share of rows, in
//     the order of parts, and writes them tile 1 of w  | block 2 | block 3 |
//
// Blocks take one tile. Where there is room two share a multiprocessor, so that one reads while another begins or ends,
// be it of the next kernel: a ring is full of weights before the input is there.
//
// What adapters add to columns that are gated is added to these sums, by the block that has the row
// (`gate_deltas.cuh`).
//
// The order of a row's sum depends on k and PARTS, not on the other rows.
#include "hopper_gemm.cuh"
#include "hopper_rows.cuh"
#include "split_norm.cuh"

// Compiled for one type and configuration (`src/gemm/matmul_split_k.rs`): what is kept (`FUNCTION`: see
// `activation.cuh`), rows of x, warpgroups that multiply, parts of k, chunks of 64 elements of k in a stage, and
// stages.
#ifndef TYPE
#define TYPE bf16
#define FUNCTION ALL
#define ROWS 64
#define GROUPS 1
#define PARTS 4
#define CHUNKS 2
#define DEPTH 3
#endif
// Whether adapters add to what is gated.
#ifndef ADAPTED
#define ADAPTED 0
#endif
#if ADAPTED
#include "gate_deltas.cuh"
#endif

// Threads that multiply; one warp more feeds them.
#define MULTIPLYING (GROUPS * 128)
#define THREADS (MULTIPLYING + 32)
// Blocks that a multiprocessor has room for, as far as that matters.
#define BLOCKS (DEPTH * CHUNKS * (GROUPS * 64 + ROWS) < 896 ? 2 : 1)

struct SplitK {
    typedef TYPE T;
    static constexpr bool GATED = FUNCTION < ALL, ACTIVATED = FUNCTION >= EACH_COLUMN;
    // Rows of w of a box, elements of a chunk, and bytes of both and of rows of x in a chunk.
    static constexpr u32 BOX = 64, CHUNK = 64, BOX_BYTES = BOX * CHUNK * 2, X_BYTES = ROWS * CHUNK * 2;
    static constexpr u32 STEP = CHUNKS * CHUNK, W_BYTES = GROUPS * CHUNKS * BOX_BYTES,
                         STAGE_BYTES = W_BYTES + CHUNKS * X_BYTES;
    // Columns of `out` that a tile has; sums of a row of x in shared memory, four more than there are: no two lanes
    // meet in a bank.
    static constexpr u32 COLUMNS = GROUPS * BOX / (GATED ? 2 : 1), LINE = GROUPS * BOX + 4;
    // Fours of columns that a thread has under way from all parts.
    static constexpr u32 LOADS = GATED ? 4 : 8, AT_ONCE = PARTS < LOADS ? LOADS / PARTS : 1;
    // Fours of a row, and rows that a block adds up at most.
    static constexpr u32 FOURS = COLUMNS / 4, MOST_ROWS = (ROWS + PARTS - 1) / PARTS;

    HopperShape shape;
    // This block's part of k, and its share of rows.
    u32 part, first_row, rows;
    // Columns of `out`, the tile's first one, and the part's stages.
    u32 width, column, first_step, steps;
    u32 stages, full, empty;
    // Where the stages lie; by what this block's rows are multiplied.
    f32 *sums, *factors;

    DEVICE void plan(char* shared) {
        part = blockIdx.x % PARTS;
        const u32 share = (shape.rows + PARTS - 1) / PARTS;
        first_row = min(part * share, shape.rows);
        rows = min(share, shape.rows - first_row);
        width = GATED ? shape.n / 2 : shape.n;
        column = blockIdx.x / PARTS * COLUMNS;
        const u32 all = (shape.k + STEP - 1) / STEP;
        first_step = all * part / PARTS;
        steps = all * (part + 1) / PARTS - first_step;
        stages = (shared_address(shared) + 1023) / 1024 * 1024;
        full = stages + DEPTH * STAGE_BYTES;
        empty = full + 8 * DEPTH;
        sums = (f32*)(shared + (stages - shared_address(shared)));
        factors = (f32*)(shared + (empty + 8 * DEPTH - shared_address(shared)));
    }

    DEVICE void init_barriers() const {
        for (u32 stage = 0; stage < DEPTH; stage++) {
            barrier_init(full + 8 * stage, 1);
            barrier_init(empty + 8 * stage, MULTIPLYING / 32);
        }
        barrier_init_done();
    }

    // A box has all chunks of 8 rows, then those of the next 8: memory is asked for more of a row at a time than the
    // 128 bytes of a chunk.
    DEVICE void fetch_weights(const TensorMap* w, u32 step) const {
        const u32 stage = step % DEPTH, to = stages + stage * STAGE_BYTES, barrier = full + 8 * stage;
        barrier_expect(barrier, STAGE_BYTES);
#pragma unroll
        for (u32 box = 0; box < GROUPS; box++) {
            const u32 row = GATED && box >= GROUPS / 2 ? width + column + (box - GROUPS / 2) * BOX : column + box * BOX;
            copy_groups(to + box * CHUNKS * BOX_BYTES, w, (first_step + step) * CHUNKS, row / 8, barrier);
        }
    }

    DEVICE void fetch_rows(const TensorMap* x, u32 step) const {
        const u32 stage = step % DEPTH, to = stages + stage * STAGE_BYTES + W_BYTES;
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++)
            copy_box(to + chunk * X_BYTES, x, (first_step + step) * STEP + chunk * CHUNK, 0, full + 8 * stage);
    }

    // By one thread. All stages are filled with weights before the input is waited for.
    DEVICE void feed(const TensorMap* x, const TensorMap* w) const {
        prefetch_map(x);
        const u32 ahead = min((u32)DEPTH, steps);
        for (u32 step = 0; step < ahead; step++) fetch_weights(w, step);
        wait_for_inputs();
        for (u32 step = 0; step < ahead; step++) fetch_rows(x, step);
        for (u32 step = ahead; step < steps; step++) {
            barrier_wait(empty + 8 * (step % DEPTH), step / DEPTH % 2 ^ 1);
            fetch_weights(w, step);
            fetch_rows(x, step);
        }
    }

    DEVICE void multiply_stage(f32 (&c)[ROWS / 2], u32 step) const {
        const u32 group = threadIdx.x / 128, at = stages + step % DEPTH * STAGE_BYTES;
        const u32 from_w = at + group * CHUNKS * BOX_BYTES, from_x = at + W_BYTES;
        products_begin();
#pragma unroll
        for (u32 chunk = 0; chunk < CHUNKS; chunk++)
#pragma unroll
            for (u32 k = 0; k < CHUNK / 16; k++) {
                const u64 a = operand_in(from_w + chunk * 1024 + k * 32, 0, CHUNKS * 1024);
                multiply_shared(T(), c, a, operand(from_x + chunk * X_BYTES + k * 32, 0), step + chunk + k);
            }
        products_commit();
    }

    // What the norm before leaves to do of this block's rows.
    DEVICE void find(const NormBefore& before) const {
        const NormBefore own = {before.squares + (size_t)first_row * 2 * before.pairs, before.pairs, before.eps};
        find_factors<MULTIPLYING / 32, MOST_ROWS>(own, rows, threadIdx.x / 32, factors);
    }

    // Multiplies the block's part, and leaves the sums in shared memory. `near_end` is called near the last step.
    template <typename NearEnd> DEVICE void multiply(NearEnd near_end) const {
        f32 c[ROWS / 2];
        for (u32 step = 0; step < steps; step++) {
            barrier_wait(full + 8 * (step % DEPTH), step / DEPTH % 2);
            multiply_stage(c, step);
            // Its stage is free as soon as can be: what is waited for is memory, not the products.
            products_wait<0>();
            if (step + DEPTH < steps && threadIdx.x % 32 == 0) barrier_arrive(empty + 8 * (step % DEPTH));
            if (step + 3 == max(steps, 3u)) near_end();
        }
        settle(c);
        named_barrier(1, MULTIPLYING);
        leave_sums<LINE>(sums, c);
    }

    // Where a four of this block's rows lies.
    DEVICE u32 column_of(u32 four) const { return column + four % FOURS * 4; }
    DEVICE size_t index_of(u32 four) const { return (size_t)(first_row + four / FOURS) * width + column_of(four); }
    DEVICE bool has(u32 four) const { return four < rows * FOURS && column_of(four) < width; }

    // What is added to the fours from `first` on.
    DEVICE void fetch_addends(float4 (&addends)[AT_ONCE], const void* out, u32 first) const {
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++) {
            const u32 four = first + j * MULTIPLYING;
            addends[j] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (shape.accumulate && has(four)) addends[j] = *(const float4*)((const f32*)out + index_of(four));
        }
    }

    // Adds up all parts of this block's share of rows, and writes what is kept of them. `addends`: of the first fours.
    DEVICE void finish(
        void* out, const f32* bias, float4 (&addends)[AT_ONCE], bool scaled, const NormAfter& after) const {
        for (u32 i = threadIdx.x; i < rows * FOURS; i += AT_ONCE * MULTIPLYING) {
            if (i != threadIdx.x) fetch_addends(addends, out, i);
            float4 kept[AT_ONCE], up[AT_ONCE];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                // Past the end the last ones again.
                const u32 four = min(i + j * MULTIPLYING, rows * FOURS - 1), row = four / FOURS;
                const f32* from = sums + (first_row + row) * LINE + four % FOURS * 4;
                kept[j] = add_parts(from);
                if constexpr (GATED) up[j] = add_parts(from + COLUMNS);
                if (!scaled) continue;
                scale(kept[j], factors[row]);
                if constexpr (GATED) scale(up[j], factors[row]);
            }
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                const u32 four = i + j * MULTIPLYING, at = column_of(four);
                if (!has(four)) continue;
                if (bias) add(kept[j], *(const float4*)(bias + at));
                if constexpr (GATED) {
                    if (bias) add(up[j], *(const float4*)(bias + width + at));
                    gate(kept[j], up[j]);
                }
                if constexpr (ACTIVATED) activate(kept[j]);
                add(kept[j], addends[j]);
                write(out, index_of(four), kept[j]);
                if (!GATED && after.squares) leave_normed(after, four, kept[j]);
            }
        }
    }

    // The first part of a norm of what was written. Four lanes have a piece; they are all here.
    DEVICE void leave_normed(const NormAfter& after, u32 four, float4 x) const {
        const u32 lanes = 0xfu << threadIdx.x % 32 / 4 * 4;
        f32 squares = (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
        squares += __shfl_xor_sync(lanes, squares, 1);
        squares += __shfl_xor_sync(lanes, squares, 2);
        const size_t at = index_of(four);
        if (four % 4 == 0) after.squares[at / PIECE] = squares;
        if (after.weight) {
            const float4 weight = *(const float4*)(after.weight + column_of(four));
            x.x *= weight.x, x.y *= weight.y, x.z *= weight.z, x.w *= weight.w;
        }
        *(uint2*)((T*)after.scaled + at) = packed(x);
    }

    DEVICE static void scale(float4& x, f32 factor) { x.x *= factor, x.y *= factor, x.z *= factor, x.w *= factor; }
    DEVICE static uint2 packed(float4 x) { return make_uint2(Tensor<T>::pack(x.x, x.y), Tensor<T>::pack(x.z, x.w)); }

    DEVICE float4 add_parts(const f32* from) const {
        if constexpr (PARTS == 1) return *(const float4*)from;
        float4 sum = load_four_in(shared_address(from), 0);
#pragma unroll
        for (u32 other = 1; other < PARTS; other++) add(sum, load_four_in(shared_address(from), other));
        return sum;
    }

    DEVICE void gate(float4& x, float4 up) const {
        const Activation activation = {FUNCTION, shape.limit};
        x.x = activated<Nearly>(activation, x.x) * gated_half(activation, up.x);
        x.y = activated<Nearly>(activation, x.y) * gated_half(activation, up.y);
        x.z = activated<Nearly>(activation, x.z) * gated_half(activation, up.z);
        x.w = activated<Nearly>(activation, x.w) * gated_half(activation, up.w);
    }

    DEVICE void activate(float4& x) const {
        const Activation activation = {FUNCTION % EACH_COLUMN, shape.limit};
        x.x = activated<Nearly>(activation, x.x), x.y = activated<Nearly>(activation, x.y);
        x.z = activated<Nearly>(activation, x.z), x.w = activated<Nearly>(activation, x.w);
    }

    DEVICE void write(void* out, size_t at, float4 x) const {
        if (shape.wide) *(float4*)((f32*)out + at) = x;
        else *(uint2*)((T*)out + at) = packed(x);
    }
};

#if ADAPTED
typedef TileDeltas<TYPE, ROWS, MULTIPLYING, SplitK::COLUMNS, SplitK::LINE> Added;
static_assert(SplitK::GATED, "adapters of what is gated");
static_assert(ROWS * SplitK::LINE * 4 + Added::BYTES <= DEPTH * SplitK::STAGE_BYTES, "room behind the sums");
#endif

extern __shared__ __align__(1024) char dynamic_shared[];

// Grid: [PARTS * any number that covers w]. The map of x has boxes of 64 columns and ROWS rows, that of w is one of
// groups (`src/runtime/tensor_map.rs`) with boxes of CHUNKS * 64 columns and 64 rows. k is a multiple of 64, n of 8 and
// the columns of `out` of 4; each part has a step of k. With a norm after it n is a multiple of 32, and `out` an f32
// residual that is added to.
extern "C" __global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(THREADS, BLOCKS)
    matmul_split_k(void* out, const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const f32* bias,
        const HopperShape shape, const NormBefore before, const NormAfter after
#if ADAPTED
        , const f32* shrunk, u32 splits, const TYPE* b, const AdapterRows adapters, const u32* slots
#endif
        ) {
    SplitK it;
    it.shape = shape;
    it.plan(dynamic_shared);
    if (threadIdx.x == MULTIPLYING) it.init_barriers();
    __syncthreads();
    launch_dependents();
    if (threadIdx.x < MULTIPLYING) {
        if (after.squares && after.weight && threadIdx.x < SplitK::FOURS && it.has(threadIdx.x))
            touch(after.weight + it.column_of(threadIdx.x));
#if ADAPTED
        __shared__ Added::Groups groups;
        Added added = {{adapters, slots, b, it.width}, it.column};
        added.prepare(groups);
#endif
        wait_for_inputs();
        // What is added to is on its way while the product is made.
        float4 addends[SplitK::AT_ONCE];
        it.fetch_addends(addends, out, threadIdx.x);
        if (before.squares) it.find(before);
#if ADAPTED
        added.fetch({shrunk, splits});
        it.multiply([&] { added.touch_weights(); });
        // Behind the sums, where stages were.
        uint4* staged = (uint4*)(it.sums + ROWS * SplitK::LINE);
        added.stage(staged);
#else
        it.multiply([] {});
#endif
        await_sums<PARTS>(MULTIPLYING);
#if ADAPTED
        added.add(groups, staged, it.sums, it.first_row, it.rows);
        named_barrier(1, MULTIPLYING);
#endif
        it.finish(out, bias, addends, before.squares, after);
    } else {
        if (threadIdx.x == MULTIPLYING) it.feed(&x, &w);
        else wait_for_inputs();
        __syncwarp();
        if constexpr (PARTS > 1) await_sums<PARTS>(MULTIPLYING);
    }
    __syncwarp();
    // Nobody leaves while others read its sums.
    if constexpr (PARTS > 1) cluster_meeting();
}
