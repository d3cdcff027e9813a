// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert], or what an activation makes of it, for weights of 4
// bits on Hopper, where experts have hundreds of rows.
//
// A block has up to 256 rows of x, twice as many as in `expert_matmul_packed_wgmma.cu`, and half the columns: what a
// warpgroup decodes serves twice the products. One warpgroup has 64 rows of w, the other the next 64, or where columns
// are gated, the rows that those gate. Rows of x have their columns in the order of operands already (`reorder_input`
// of prepare_input.cu), so that asynchronous copies gather them, as far ahead as there are stages.
//
// A part is multiplied with as many rows as it has, rounded up to 64.

// Compiled for one type, format (packed_product.cuh), what is kept, stages, and whether the columns of `out` are in the
// order of codes as well, for the next product; there are whole chunks of them then.
#ifndef TYPE
#define TYPE bf16
#define DEPTH 5
#define ORDERED 0
#endif
#define ROWS 256
#include "experts.cuh"
#include "packed_stream.cuh"
#include "prepared.cuh"

// Threads that multiply; one warpgroup more feeds them with x.
#define MULTIPLYING 256
#define THREADS (MULTIPLYING + 128)
// Rows of w of a warpgroup, and of both; columns of `out` of a block.
#define GROUP_ROWS 64
#define TILE_COLUMNS (2 * GROUP_ROWS)
#define COLUMNS (GATED ? GROUP_ROWS : TILE_COLUMNS)
// Rows of sums in shared memory at once, and what a line of them has: four more than sums, so that no two lanes meet in
// a bank.
#define HELD 64
#define LINE (TILE_COLUMNS + 4)
#include "packed_parts.cuh"

typedef PackedStream<ZEROS == OFFSETS && SPANS == 2 ? 2 : 4> Stream;
typedef Stages<ROWS * CHUNK * 2, DEPTH> RowStages;

// What the threads that multiply have in common.
struct Product {
    typedef TYPE T;
    static constexpr u32 AT_ONCE = Stream::AT_ONCE;

    RowStages stages;
    u32 steps;
    const u32* table;
    f32* sums;
    // Which pair each row of the part is.
    u32* pairs;
    PackedWeights w;
    Stream stream;
    // Of the stages.
    u32 stage, parity;

    DEVICE Product(const RowStages& stages, char* shared, const u32* table)
        : stages(stages), table(table), stage(0), parity(0) {
        sums = (f32*)(shared + (stages.begin - shared_address(shared)) + RowStages::ALL_BYTES);
        pairs = (u32*)(sums + HELD * LINE);
    }

    // The first row of w of this warpgroup.
    DEVICE static u32 first_row(u32 column, u32 width) {
        const u32 group = threadIdx.x / 128;
        return column + group * (GATED ? width : GROUP_ROWS);
    }

    // Starts reading the weights of a part.
    DEVICE void begin(u32 column, u32 width) {
        stream.start(w, first_row(column, width) / TILE_ROWS + threadIdx.x % 128 / 32, 0, steps);
    }

    // Multiplies all of k with N rows.
    template <u32 N> DEVICE void multiply(f32 (&c)[ROWS / 2]) {
        f32(&sums)[N / 2] = *(f32(*)[N / 2])c;
        u32 a[2][2][4], before = 0, used = 0;
        const u64 operands = operand(stages.begin, 0);
        for (u32 step = 0; step < steps; step += AT_ONCE)
#pragma unroll
            for (u32 slot = 0; slot < AT_ONCE; slot++) {
                if (step + slot >= steps) break;
                const u64 rows = operands + stage * (ROWS * CHUNK * 2 >> 4);
                stream.decode_half(table, slot, 0, a[0]);
                barrier_wait(stages.full + 8 * stage, parity);
                // Rows of x were written by threads.
                publish_shared();
                multiply_half<T>(sums, a[0], rows, 1);
                if (used && threadIdx.x % 32 == 0) barrier_arrive(stages.empty + 8 * before);
                stream.decode_half(table, slot, 1, a[1]);
                stream.load(w, slot, step + slot + AT_ONCE);
                multiply_half<T>(sums, a[1], rows + 4, 1);
                before = stage, used = 1;
                if (++stage == DEPTH) stage = 0, parity ^= 1;
            }
        products_wait<0>();
        settle(sums);
        if (threadIdx.x % 32 == 0) barrier_arrive(stages.empty + 8 * before);
    }

    // The same with as many rows as there are.
    DEVICE void multiply_rows(f32 (&c)[ROWS / 2], u32 rows) {
        // Left undefined, products of different sizes would wait for each other.
#pragma unroll
        for (u32 i = 0; i < ROWS / 2; i++) c[i] = 0.0f;
        if (rows > 192) multiply<256>(c);
        else if (rows > 128) multiply<192>(c);
        else if (rows > 64) multiply<128>(c);
        else multiply<64>(c);
        if constexpr (!Stream::SCALES_CODES) {
            const Side side = Side::of(w, stream.tile, 0);
#pragma unroll
            for (u32 i = 0; i < ROWS / 2; i++) c[i] *= side.scale(i / 2 % 2) * FACTOR<T, CODE>;
        }
    }

    // Adds the bias of this warpgroup's columns, of which there are `n` in all: those of a thread are g and g + 8 of
    // its warp's 16.
    DEVICE static void shift(f32 (&c)[ROWS / 2], const f32* bias, u32 column, u32 width, u32 n) {
        if (!bias) return;
        const u32 mine = first_row(column, width) + threadIdx.x % 128 / 32 * TILE_ROWS + threadIdx.x % 32 / 4;
        const f32 both[2] = {bias[min(mine, n - 1)], bias[min(mine + 8, n - 1)]};
#pragma unroll
        for (u32 i = 0; i < ROWS / 2; i++) c[i] += both[i / 2 % 2];
    }

    // Writes four numbers of a row, from column `at` on, where the next product has their columns.
    DEVICE static void put_ordered(T* row, u32 at, float4 x) {
        u32* to = (u32*)row + pair_place(at / 2);
        to[0] = Tensor<T>::pack(x.x, x.y), to[4] = Tensor<T>::pack(x.z, x.w);
    }

    // Writes what is in shared memory of `rows` rows, the first of which is row `base` of the part, from column
    // `column` on.
    DEVICE void write(void* out, u32 base, u32 rows, u32 column, const ExpertShape& shape) const {
        const u32 width = shape.width();
        for (u32 i = threadIdx.x; i < rows * (COLUMNS / 4); i += MULTIPLYING) {
            const u32 row = i / (COLUMNS / 4), inside = i % (COLUMNS / 4) * 4, at = column + inside;
            if (at >= width) continue;
            float4 kept = *(const float4*)(sums + row * LINE + inside);
            if constexpr (GATED) {
                const float4 up = *(const float4*)(sums + row * LINE + GROUP_ROWS + inside);
                kept.x = shape.gated(kept.x, up.x), kept.y = shape.gated(kept.y, up.y);
                kept.z = shape.gated(kept.z, up.z), kept.w = shape.gated(kept.w, up.w);
            }
            const size_t row_begin = (size_t)pairs[base + row] * width;
            if constexpr (ORDERED != 0) put_ordered((T*)out + row_begin, at, kept);
            else put_four<T>(out, row_begin + at, kept, shape.wide, 0);
        }
    }
};

extern __shared__ __align__(1024) char dynamic_shared[];

// Multiplies a part, and writes what comes of it.
DEVICE void multiply_part(Product& product, const Parts& parts, u32* table, const Output& output) {
    const u32 rows = parts.rows(), column = parts.column(),
              pair = parts.choices.pair(parts.begin + min(threadIdx.x, rows - 1));
    const ExpertShape& shape = output.shape;
    f32 c[ROWS / 2];
    product.multiply_rows(c, rows);
    const f32* bias = output.bias ? output.bias + (size_t)parts.now.expert * shape.n : output.bias;
    Product::shift(c, bias, column, parts.width, shape.n);
    const bool ends = parts.ends();
    if (!ends) {
        product.w = parts.next_w;
        product.begin(parts.column_of_next(), parts.width);
    }
#pragma unroll
    for (u32 base = 0; base < ROWS; base += HELD) {
        if (base >= rows) break;
        // Nobody decodes any more, or writes, what is overwritten now.
        named_barrier(1, MULTIPLYING);
        if (base == 0) {
            if (threadIdx.x < rows) product.pairs[threadIdx.x] = pair;
            if (CODE == LEVELS && !ends) make_table<TYPE>(product.w, table);
        }
        leave_sums<LINE>(product.sums, *(const f32(*)[HELD / 2])(c + base / 2));
        named_barrier(1, MULTIPLYING);
        product.write(output.out, base, min(rows - base, HELD), column, shape);
    }
}

// Gathers the rows of all parts of a block, a chunk at a time: a thread 16 bytes of every 16th row.
DEVICE void gather_parts(const RowStages& stages, Parts& parts, u32 steps, const uint4* x, const ExpertShape& shape) {
    constexpr u32 MINE = ROWS / 16;
    const u32 line = threadIdx.x % 128 / 8, piece = threadIdx.x % 8, inside = line * 128 + (piece ^ line % 8) * 16;
    u32 filled = 0;
    for (; parts.is_there(); parts.advance()) {
        const u32 rows = parts.rows();
        u32 from[MINE];
#pragma unroll
        for (u32 i = 0; i < MINE; i++) {
            const u32 row = min(line + 16 * i, rows - 1);
            from[i] = parts.choices.pair(parts.begin + row) / shape.pairs_a_row * steps * 8 + piece;
        }
        for (u32 step = 0; step < steps; step++, filled++) {
            const u32 to = stages.await_empty(filled) + inside;
#pragma unroll
            for (u32 i = 0; i < MINE; i++)
                if (line + 16 * i < rows) copy_async(to + i * 2048, x + from[i] + step * 8, true);
            barrier_arrive_after_copies(stages.full_of(filled));
        }
    }
}

// Grid: as many blocks as run at once, or parts where those are fewer. Rows of x have whole chunks, and are in the
// order of codes; tiles of the lists have 256 rows. n is a multiple of 8, gated of 32.
extern "C" __global__ void __launch_bounds__(THREADS, 1) expert_matmul_packed_many(void* out, const uint4* x,
    const PackedWeights* weights, const f32* bias, const Choices choices, const ExpertShape shape) {
    __shared__ u32 table[CODE == LEVELS ? 256 : 1];
    run_parts<224, 56, Product, RowStages>(dynamic_shared, table, x, weights, choices, {out, bias, shape});
}
