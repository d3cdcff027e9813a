// out[rows, n] = x[rows, k] w[n, k]^T (+ bias) (+ out) for many rows on Hopper, or activation(gate) * up of the columns
// [gate | up] of such a product, or an activation of each column: as expert_matmul_wgmma.cu, with the copy engine for
// both operands and the largest products there are.
//
// Blocks stay and take tiles of 128 rows and two boxes of columns in turn: neighbours, or where columns are gated, one
// of gates and one of what they gate. Two blocks of a cluster have neighbouring rows and the same columns: each fetches
// one of the boxes for both.
//
//                boxes: | w 0 | w 1 |        warpgroup 0 feeds stages of 64 elements of k,
//     block 0, rows 128 |     |     |        1 and 2 own 64 rows each, with all columns in registers;
//     block 1, rows 128 |     |     |        while one writes its sums, the other multiplies on
//
// Where there are fewer rows, weights come from memory for one block, which has 192 rows (and three warpgroups), 128 or
// 64.
//
// Compiled with CODES, x and w are codes of 8 bits, two of which are described as one number of 16; sums are multiplied
// by the scales of their row and of their column.
//
// The order of a row's sum depends on k alone, not on the other rows.
#include "hopper_codes.cuh"
#include "hopper_gemm.cuh"

// Compiled for one type, what is kept (`FUNCTION`: see `activation.cuh`), rows of a tile, columns of a box (112 or
// 128), blocks of a cluster, and stages (`src/gemm/matmul_wgmma.rs`).
#ifndef TYPE
#define TYPE bf16
#define FUNCTION ALL
#define ROWS 128
#define BOX 128
#define BLOCKS 2
#define DEPTH 4
#endif
// What operands are, in place of numbers: INT8 or E4M3 of packed.cuh.
#ifndef CODES
#define CODES 0
#endif
#define THREADS (128 + 2 * ROWS)

// Of the rows of x and of the rows of w, where those are codes.
struct CodeScales {
    const f32* x;
    const f32* w;
};
SAME_LAYOUT(CodeScales, CodeScales);

struct HopperProduct {
    typedef TYPE T;
    typedef Operands<CODES, T>::Element Element;
    typedef Operands<CODES, T>::Sum Sum;
    static constexpr bool GATED = FUNCTION < ALL, ACTIVATED = FUNCTION >= EACH_COLUMN;
    static constexpr u32 STEP = 64;
    static constexpr u32 BOX_BYTES = BOX * STEP * 2, X_BYTES = ROWS * STEP * 2, STAGE_BYTES = X_BYTES + 2 * BOX_BYTES;
    static constexpr u32 CONSUMING_WARPS = ROWS / 16;
    // Columns of `out` that a tile has, and numbers of a row that a thread holds.
    static constexpr u32 COLUMNS = GATED ? BOX : 2 * BOX, SUMS = BOX;
    // Whether sums leave through shared memory, by the copy engine, 128 bytes of a row at a time; a warp has two places
    // of 16 rows for them.
    static constexpr bool STAGED = BOX == 128;
    static constexpr u32 PLACE_BYTES = 16 * 128;
    // Clusters' row tiles that are walked together, so that their columns of w are still in the cache.
    static constexpr u32 TOGETHER = 8;

    HopperShape shape;
    u32 rank, stages, places, full, empty;
    // Columns of `out`; tiles of a cluster.
    u32 width, row_tiles, column_tiles, total, steps;

    struct Work {
        u32 row, column;
    };

    DEVICE Work work(u32 index) const {
        const u32 first = index / (TOGETHER * column_tiles) * TOGETHER, inside = index % (TOGETHER * column_tiles);
        const u32 height = min(TOGETHER, row_tiles - first);
        return {((first + inside % height) * BLOCKS + rank) * ROWS, inside / height * COLUMNS};
    }

    // What comes next of all that this block multiplies.
    struct Turn {
        u32 index, step;
        Work work;
    };

    DEVICE Turn first() const { return {blockIdx.x / BLOCKS, 0, work(blockIdx.x / BLOCKS)}; }

    DEVICE void next(Turn& turn) const {
        if (++turn.step < steps) return;
        turn.step = 0;
        turn.index += gridDim.x / BLOCKS;
        if (turn.index < total) turn.work = work(turn.index);
    }

    DEVICE void fetch_weights(const TensorMap* w, const Turn& turn, u32 filled) const {
        const u32 stage = filled % DEPTH, to = stages + stage * STAGE_BYTES + X_BYTES, barrier = full + 8 * stage;
        const u32 column = turn.work.column, jump = GATED ? width : BOX;
        barrier_expect(barrier, STAGE_BYTES);
        if constexpr (BLOCKS > 1) {
            copy_box_to(to + rank * BOX_BYTES, w, turn.step * STEP, column + rank * jump, barrier, (1 << BLOCKS) - 1);
        } else {
            copy_box(to, w, turn.step * STEP, column, barrier);
            copy_box(to + BOX_BYTES, w, turn.step * STEP, column + jump, barrier);
        }
    }

    DEVICE void fetch_rows(const TensorMap* x, const Turn& turn, u32 filled) const {
        const u32 stage = filled % DEPTH;
        copy_box(stages + stage * STAGE_BYTES, x, turn.step * STEP, turn.work.row, full + 8 * stage);
    }

    // By one thread. All stages are filled with weights before the input is waited for.
    DEVICE void feed(const TensorMap* x, const TensorMap* w) const {
        Turn turn = first(), behind = first();
        u32 filled = 0;
        for (; filled < DEPTH && turn.index < total; filled++, next(turn)) fetch_weights(w, turn, filled);
        wait_for_inputs();
        for (u32 stage = 0; stage < filled; stage++, next(behind)) fetch_rows(x, behind, stage);
        for (; turn.index < total; filled++, next(turn)) {
            barrier_wait(empty + 8 * (filled % DEPTH), filled / DEPTH % 2 ^ 1);
            fetch_weights(w, turn, filled);
            fetch_rows(x, turn, filled);
        }
    }

    // All blocks wait for all blocks' readers before they write to a stage.
    DEVICE void release(u32 used) const {
        const u32 lane = threadIdx.x % 32;
        if constexpr (BLOCKS == 1) {
            if (lane == 0) barrier_arrive(empty + 8 * (used % DEPTH));
        } else if (lane < BLOCKS) barrier_arrive_after_reading(address_in(empty + 8 * (used % DEPTH), lane));
    }

    // Of three warpgroups each multiplies box by box: the compiler has registers for no more at once.
    DEVICE static void multiply(Sum (&sums)[SUMS], u64 rows, u32 boxes, u32 add) {
        if constexpr (ROWS == 192) {
            multiply_shared(Element(), *(Sum(*)[SUMS / 2])sums, rows, operand(boxes, 0), add);
            multiply_shared(Element(), *(Sum(*)[SUMS / 2])(sums + SUMS / 2), rows, operand(boxes + BOX_BYTES, 0), add);
        } else {
            multiply_shared(Element(), sums, rows, operand(boxes, 0), add);
        }
    }

    DEVICE void consume(
        void* out, const TensorMap* to, const f32* bias, const CodeScales& scales, u32 group) const {
        const u32 lane = threadIdx.x % 32;
        u32 used = 0;
        Sum sums[SUMS];
        for (u32 index = blockIdx.x / BLOCKS; index < total; index += gridDim.x / BLOCKS) {
            for (u32 step = 0; step < steps; step++, used++) {
                const u32 stage = used % DEPTH, at = stages + stage * STAGE_BYTES;
                barrier_wait(full + 8 * stage, used / DEPTH % 2);
                products_begin();
#pragma unroll
                for (u32 k = 0; k < STEP / 16; k++)
                    multiply(sums, operand(at + group * (64 * 128) + k * 32, 0), at + X_BYTES + k * 32, step + k);
                products_commit();
                // The stage before is no longer read.
                products_wait<1>();
                if (step > 0) release(used - 1);
            }
            products_wait<0>();
            release(used - 1);
            settle(sums);
            f32 (&c)[SUMS] = as_numbers(sums);
            const Work work = this->work(index);
            const u32 row = work.row + group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
            if constexpr (CODES != 0) scale(c, row, work.column, scales);
            if (bias) add_bias(c, work.column, bias);
            if constexpr (GATED) gate(c);
            if constexpr (ACTIVATED) activate(c);
            if constexpr (STAGED) {
                if (shape.wide) hand_over<f32>(to, c, row - lane / 4, work.column);
                else hand_over<T>(to, c, row - lane / 4, work.column);
            } else if (!shape.wide) write((T*)out, c, row, work.column);
            else if (shape.accumulate) add_to((f32*)out, c, row, work.column);
            else write((f32*)out, c, row, work.column);
        }
        if (STAGED && lane == 0) copies_read<0>();
    }

    DEVICE static void store_pair(u32 to, f32 a, f32 b, f32) {
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(a), "f"(b) : "memory");
    }
    template <typename O> DEVICE static void store_pair(u32 to, f32 a, f32 b, O) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(Tensor<O>::pack(a, b)) : "memory");
    }

    // The 16 rows of a warp from `row` on: the copy engine writes them, or adds them to what is there, while the next
    // tile is multiplied.
    template <typename O> DEVICE void hand_over(const TensorMap* out, const f32 (&c)[SUMS], u32 row, u32 column) const {
        static constexpr u32 WIDTH = 128 / sizeof(O);
        const u32 lane = threadIdx.x % 32, g = lane / 4, pair = lane % 4 * 2 * sizeof(O);
#pragma unroll
        for (u32 part = 0; part < COLUMNS / WIDTH; part++) {
            const u32 place = places + (threadIdx.x / 32 - 4) * (2 * PLACE_BYTES) + part % 2 * PLACE_BYTES;
            if (lane == 0) copies_read<1>();
            __syncwarp();
#pragma unroll
            for (u32 half = 0; half < 2; half++)
#pragma unroll
                for (u32 i = 0; i < WIDTH / 8; i++) {
                    // Swizzled by 128 bytes.
                    const u32 at = i * 8 * sizeof(O) + pair, from = 4 * (part * (WIDTH / 8) + i) + 2 * half;
                    store_pair(place + half * 1024 + g * 128 + (at ^ g * 16), c[from], c[from + 1], O());
                }
            publish_shared();
            __syncwarp();
            if (lane != 0) continue;
            if (shape.accumulate) add_box_out(out, column + part * WIDTH, row, place);
            else copy_box_out(out, column + part * WIDTH, row, place);
            copies_commit();
        }
    }

    // Sums `4 i ..` of a thread: two of its row, two of the row 8 further, at this column of w and its neighbour.
    DEVICE u32 column_of(u32 i, u32 column) const {
        return column + i % (BOX / 8) * 8 + threadIdx.x % 4 * 2 + i / (BOX / 8) * (GATED ? width : BOX);
    }

    DEVICE void scale(f32 (&c)[SUMS], u32 row, u32 column, const CodeScales& scales) const {
        const f32 first = scales.x[min(row, shape.rows - 1)], second = scales.x[min(row + 8, shape.rows - 1)];
#pragma unroll
        for (u32 i = 0; i < SUMS / 4; i++) {
            const u32 at = column_of(i, column);
            if (at >= shape.n) continue;
            const float2 factor = *(const float2*)(scales.w + at);
            c[4 * i] *= factor.x * first, c[4 * i + 1] *= factor.y * first;
            c[4 * i + 2] *= factor.x * second, c[4 * i + 3] *= factor.y * second;
        }
    }

    DEVICE void add_bias(f32 (&c)[SUMS], u32 column, const f32* bias) const {
#pragma unroll
        for (u32 i = 0; i < SUMS / 4; i++) {
            const u32 at = column_of(i, column);
            if (at >= shape.n) continue;
            const float2 shift = *(const float2*)(bias + at);
            c[4 * i] += shift.x, c[4 * i + 1] += shift.y;
            c[4 * i + 2] += shift.x, c[4 * i + 3] += shift.y;
        }
    }

    // The first half becomes what is kept.
    DEVICE void gate(f32 (&c)[SUMS]) const {
        const Activation activation = {FUNCTION, shape.limit};
#pragma unroll
        for (u32 i = 0; i < SUMS / 2; i++)
            c[i] = activated<Nearly>(activation, c[i]) * gated_half(activation, c[SUMS / 2 + i]);
    }

    DEVICE void activate(f32 (&c)[SUMS]) const {
        const Activation activation = {FUNCTION % EACH_COLUMN, shape.limit};
#pragma unroll
        for (u32 i = 0; i < SUMS; i++) c[i] = activated<Nearly>(activation, c[i]);
    }

    // 32 bytes of a row by four lanes at a time.
    DEVICE void write(f32* out, const f32 (&c)[SUMS], u32 row, u32 column) const {
        const u32 t = threadIdx.x % 4;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (row + 8 * half >= shape.rows) continue;
            f32* to = out + (size_t)(row + 8 * half) * width;
#pragma unroll
            for (u32 i = 0; i < COLUMNS / 8; i++) {
                const u32 at = column + 8 * i + 2 * t;
                if (at < width) *(float2*)(to + at) = make_float2(c[4 * i + 2 * half], c[4 * i + 2 * half + 1]);
            }
        }
    }

    // The same, added to what is there: as many loads at a time as there are registers for.
    DEVICE void add_to(f32* out, const f32 (&c)[SUMS], u32 row, u32 column) const {
        // A divisor of the groups of columns.
        static constexpr u32 AT_ONCE = BOX == 128 ? 8 : 7;
        const u32 t = threadIdx.x % 4;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (row + 8 * half >= shape.rows) continue;
            f32* to = out + (size_t)(row + 8 * half) * width;
#pragma unroll
            for (u32 first = 0; first < COLUMNS / 8; first += AT_ONCE) {
                float2 before[AT_ONCE];
#pragma unroll
                for (u32 i = 0; i < AT_ONCE; i++) {
                    const u32 at = column + 8 * (first + i) + 2 * t;
                    before[i] = at < width ? *(const float2*)(to + at) : make_float2(0.0f, 0.0f);
                }
#pragma unroll
                for (u32 i = 0; i < AT_ONCE; i++) {
                    const u32 at = column + 8 * (first + i) + 2 * t, from = 4 * (first + i) + 2 * half;
                    if (at < width) *(float2*)(to + at) = make_float2(before[i].x + c[from], before[i].y + c[from + 1]);
                }
            }
        }
    }

    // Four lanes exchange what they have of four groups of 8 columns, so that each writes 16 bytes of one.
    DEVICE void write(T* out, const f32 (&c)[SUMS], u32 row, u32 column) const {
        const u32 t = threadIdx.x % 4;
#pragma unroll
        for (u32 first = 0; first < COLUMNS / 8; first += 4)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                u32 p[4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    const u32 from = min(4 * (first + i) + 2 * half, SUMS - 2);
                    p[i] = Tensor<T>::pack(c[from], c[from + 1]);
                }
                exchange(p[0], p[1], t & 1, 1);
                exchange(p[2], p[3], t & 1, 1);
                exchange(p[0], p[2], t & 2, 2);
                exchange(p[1], p[3], t & 2, 2);
                const u32 at = column + 8 * (first + t);
                if (first + t < COLUMNS / 8 && row + 8 * half < shape.rows && at < width)
                    *(uint4*)(out + (size_t)(row + 8 * half) * width + at) = make_uint4(p[0], p[1], p[2], p[3]);
            }
    }

    // The upper lane of two gives its `a` for the lower one's `b`.
    DEVICE static void exchange(u32& a, u32& b, u32 upper, u32 distance) {
        const u32 got = __shfl_xor_sync(~0u, upper ? a : b, distance);
        if (upper) a = got;
        else b = got;
    }

    DEVICE void plan(char* shared) {
        rank = cluster_rank();
        stages = (shared_address(shared) + 1023) / 1024 * 1024;
        places = stages + DEPTH * STAGE_BYTES;
        full = places + (STAGED ? CONSUMING_WARPS * 2 * PLACE_BYTES : 0);
        empty = full + 8 * DEPTH;
        width = GATED ? shape.n / 2 : shape.n;
        row_tiles = (shape.rows + BLOCKS * ROWS - 1) / (BLOCKS * ROWS);
        column_tiles = (width + COLUMNS - 1) / COLUMNS;
        total = row_tiles * column_tiles;
        steps = (shape.k + STEP - 1) / STEP;
        if (threadIdx.x == 0) {
            for (u32 stage = 0; stage < DEPTH; stage++) {
                barrier_init(full + 8 * stage, 1);
                barrier_init(empty + 8 * stage, CONSUMING_WARPS * BLOCKS);
            }
            barrier_init_done();
        }
    }
};

extern __shared__ __align__(1024) char dynamic_shared[];

// Grid: [BLOCKS * any number]. The maps describe x and w in boxes of 64 columns and ROWS or BOX rows, and `out` in
// boxes of 128 bytes of 16 rows, swizzled by 128 bytes. k and the columns of `out` are multiples of 8.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS, 1)
    matmul_wgmma(void* out, const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w,
        const __grid_constant__ TensorMap to, const f32* bias, const HopperShape shape, const CodeScales scales) {
    HopperProduct it;
    it.shape = shape;
    it.plan(dynamic_shared);
    __syncwarp();
    cluster_barrier();
    launch_dependents();
    if (threadIdx.x < 128) {
        if constexpr (ROWS == 128) give_registers<40>();
        if constexpr (ROWS == 192) give_registers<32>();
        if (threadIdx.x == 0) it.feed(&x, &w);
        else wait_for_inputs();
    } else {
        if constexpr (ROWS == 128) take_registers<232>();
        if constexpr (ROWS == 192) take_registers<160>();
        wait_for_inputs();
        it.consume(out, &to, bias, scales, threadIdx.x / 128 - 1);
    }
    __syncwarp();
    // Nobody leaves while others may still write to its shared memory.
    cluster_barrier();
}
