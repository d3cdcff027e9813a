// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert], or what an activation makes of it, for weights of 4 or
// 8 bits on Hopper, where experts have many rows.
//
// A block has ROWS rows of a tile and two tiles of 128 rows of w, one under the other, or of gated columns one of gates
// and one of what they gate: so that a thread has both. Weights are the left operand, as in `packed_wgmma.cuh`. A
// warpgroup gathers rows of x, and puts columns into the order of operands: 16 bytes that a thread reads are four pairs
// of columns, for four pieces of a row's 128 bytes.
//
// Blocks stay, and take one part of the product after the other: rows of the next part are gathered while this one is
// multiplied, and its first weights are on their way while sums of this one are written.

// Compiled for one type, format (packed_product.cuh) and configuration: rows of x, and stages of them.
#ifndef TYPE
#define TYPE bf16
#define ROWS 64
#define DEPTH 8
#endif
#include "experts.cuh"
#include "packed_stream.cuh"

// Threads that multiply; one warpgroup more feeds them with x.
#define MULTIPLYING 256
#define THREADS (MULTIPLYING + 128)
// Rows of w of a tile, and columns of `out` that a block has.
#define TILE_COLUMNS (MULTIPLYING / 2)
#define COLUMNS (GATED ? TILE_COLUMNS : 2 * TILE_COLUMNS)
// Sums of a row of x in shared memory, four more than there are: no two lanes meet in a bank.
#define LINE (TILE_COLUMNS + 4)
// Chunks of codes under way in each lane for each tile, as far as there are registers.
#define AHEAD ((ROWS <= 64 ? 4 : 2) / (ZEROS == OFFSETS && SPANS == 2 ? 2 : 1) / PIECES)

#include "packed_parts.cuh"

typedef PackedStream<(AHEAD > 0 ? AHEAD : 1)> Stream;
typedef Stages<ROWS * CHUNK * 2, DEPTH> RowStages;

// Rows of x on their way to shared memory, a chunk at a time.
struct Gather {
    typedef TYPE T;
    // Rows that a thread brings, 16 bytes of each.
    static constexpr u32 MINE = ROWS / 16;

    const uint4* x;
    // In pieces of 16 bytes.
    u32 from[MINE];
    u32 line, piece, rows, pieces;

    // `row_of(i)` is which of those of x row i is.
    template <typename RowOf> DEVICE Gather(const T* x, u32 rows, u32 k, RowOf row_of)
        : x((const uint4*)x), rows(rows), pieces(k / 8) {
        line = threadIdx.x % 128 / 8, piece = threadIdx.x % 8;
#pragma unroll
        for (u32 i = 0; i < MINE; i++) from[i] = row_of(min(line + 16 * i, rows - 1)) * pieces + piece;
    }

    DEVICE void fetch(uint4 (&held)[MINE], u32 chunk) const {
        const bool inside = chunk * 8 + piece < pieces;
#pragma unroll
        for (u32 i = 0; i < MINE; i++)
            held[i] = inside && line + 16 * i < rows ? x[from[i] + chunk * 8] : make_uint4(0, 0, 0, 0);
    }

    DEVICE void store(const uint4 (&held)[MINE], u32 stage) const {
        const u32 to = stage + line * 128 + piece % 4 * 4, first = piece / 4 * 4, swizzle = line % 8;
#pragma unroll
        for (u32 i = 0; i < MINE; i++) {
            if (line + 16 * i >= rows) continue;
            const u32 words[4] = {held[i].x, held[i].y, held[i].z, held[i].w};
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + i * 2048 + ((first + j) ^ swizzle) * 16),
                    "r"(words[j])
                    : "memory");
        }
    }
};

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
    // Of gates and of what they gate, or of columns one under the other.
    Stream streams[2];
    f32 c[2][ROWS / 2];
    // Of the stages.
    u32 stage, parity;

    DEVICE Product(const RowStages& stages, char* shared, const u32* table)
        : stages(stages), table(table), stage(0), parity(0) {
        sums = (f32*)(shared + (stages.begin - shared_address(shared)) + RowStages::ALL_BYTES);
        pairs = (u32*)(sums + ROWS * LINE);
    }

    // Starts reading the weights of a part.
    DEVICE void begin(u32 column, u32 width) {
        const u32 second = GATED ? column + width : column + TILE_COLUMNS, warp = threadIdx.x / 32;
        streams[0].start(w, column / TILE_ROWS + warp, 0, steps);
        streams[1].start(w, second / TILE_ROWS + warp, 0, steps);
    }

    // Multiplies all of k.
    DEVICE void multiply() {
        u32 a[2][2][4], before = 0, add = 0;
        const u64 operands = operand(stages.begin, 0);
        for (u32 step = 0; step < steps; step += AT_ONCE)
#pragma unroll
            for (u32 slot = 0; slot < AT_ONCE; slot++) {
                if (step + slot >= steps) break;
                const u64 rows = operands + stage * (ROWS * CHUNK * 2 >> 4);
                streams[0].decode_half(table, slot, 0, a[0]);
                barrier_wait(stages.full + 8 * stage, parity);
                multiply_half<T>(c[0], a[0], rows, add);
                if (add && threadIdx.x % 32 == 0) barrier_arrive(stages.empty + 8 * before);
                streams[1].decode_half(table, slot, 0, a[1]);
                multiply_half<T>(c[1], a[1], rows, add);
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    streams[i].decode_half(table, slot, 1, a[i]);
                    streams[i].load(w, slot, step + slot + AT_ONCE);
                    multiply_half<T>(c[i], a[i], rows + 4, 1);
                }
                before = stage, add = 1;
                if (++stage == DEPTH) stage = 0, parity ^= 1;
            }
        products_wait<0>();
        if (threadIdx.x % 32 == 0) barrier_arrive(stages.empty + 8 * before);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            settle(c[i]);
            if constexpr (!Stream::SCALES_CODES) scale(c[i], Side::of(w, streams[i].tile, 0));
        }
    }

    DEVICE static void scale(f32 (&sums)[ROWS / 2], const Side& side) {
#pragma unroll
        for (u32 i = 0; i < ROWS / 2; i++) sums[i] *= side.scale(i / 2 % 2) * FACTOR<T, CODE>;
    }

    // Adds the bias of columns from `column` on, of which there are `width`: those of a thread are g and g + 8 of its
    // warp's 16.
    DEVICE static void shift(f32 (&sums)[ROWS / 2], const f32* bias, u32 column, u32 width) {
        if (!bias) return;
        const u32 mine = column + threadIdx.x / 32 * TILE_ROWS + threadIdx.x % 32 / 4;
        const f32 both[2] = {bias[min(mine, width - 1)], bias[min(mine + 8, width - 1)]};
#pragma unroll
        for (u32 i = 0; i < ROWS / 2; i++) sums[i] += both[i / 2 % 2];
    }

    // Writes what is in shared memory of `rows` rows, from column `column` of `width` on.
    DEVICE void write(void* out, u32 rows, u32 column, const ExpertShape& shape) const {
        const u32 width = shape.width();
        for (u32 i = threadIdx.x; i < rows * (TILE_COLUMNS / 4); i += MULTIPLYING) {
            const u32 row = i / (TILE_COLUMNS / 4), inside = i % (TILE_COLUMNS / 4) * 4, at = column + inside;
            if (at < width)
                put_four<T>(out, (size_t)pairs[row] * width + at, *(const float4*)(sums + row * LINE + inside),
                    shape.wide, 0);
        }
    }
};

extern __shared__ __align__(1024) char dynamic_shared[];

// Multiplies a part, and writes what comes of it.
DEVICE void multiply_part(Product& product, const Parts& parts, u32* table, const Output& output) {
    const u32 rows = parts.rows(), column = parts.column(),
              pair = parts.choices.pair(parts.begin + min(threadIdx.x, rows - 1));
    const ExpertShape& shape = output.shape;
    f32(&c)[2][ROWS / 2] = product.c;
    product.multiply();
    const f32* bias = output.bias ? output.bias + (size_t)parts.now.expert * shape.n : output.bias;
    Product::shift(c[0], bias, column, shape.n);
    Product::shift(c[1], bias, GATED ? column + parts.width : column + TILE_COLUMNS, shape.n);
    if (GATED) {
#pragma unroll
        for (u32 i = 0; i < ROWS / 2; i++) c[0][i] = shape.gated(c[0][i], c[1][i]);
    }
    // Nobody decodes or writes any more what is overwritten now.
    named_barrier(1, MULTIPLYING);
    if (threadIdx.x < rows) product.pairs[threadIdx.x] = pair;
    const bool both = !GATED && column + TILE_COLUMNS < parts.width;
    if (both) {
        leave_sums<LINE>(product.sums, c[0]);
        named_barrier(1, MULTIPLYING);
        product.write(output.out, rows, column, shape);
        named_barrier(1, MULTIPLYING);
    }
    if (!parts.ends()) {
        if (!parts.goes_on()) product.w = parts.next_w;
        product.begin(parts.column_of_next(), parts.width);
        if (CODE == LEVELS) make_table<TYPE>(product.w, table);
    }
    if (both) leave_sums<LINE>(product.sums, c[1]);
    else leave_sums<LINE>(product.sums, c[0]);
    named_barrier(1, MULTIPLYING);
    product.write(output.out, rows, both ? column + TILE_COLUMNS : column, shape);
}

// Gathers the rows of all parts of a block.
DEVICE void gather_parts(const RowStages& stages, Parts& parts, u32 steps, const TYPE* x, const ExpertShape& shape) {
    u32 filled = 0;
    for (; parts.is_there(); parts.advance()) {
        const Gather gather(x, parts.rows(), shape.k,
            [&](u32 row) { return parts.choices.pair(parts.begin + row) / shape.pairs_a_row; });
        uint4 held[2][Gather::MINE];
        gather.fetch(held[0], 0);
        gather.fetch(held[1], 1);
        for (u32 first = 0; first < steps; first += 2)
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                if (first + i >= steps) break;
                gather.store(held[i], stages.await_empty(filled));
                publish_shared();
                barrier_arrive(stages.full_of(filled));
                gather.fetch(held[i], first + i + 2);
                filled++;
            }
    }
}

// Grid: as many blocks as run at once, or parts where those are fewer. k is a multiple of 8, n too, gated of 32.
extern "C" __global__ void __launch_bounds__(THREADS, 1) expert_matmul_packed_wgmma(void* out, const TYPE* x,
    const PackedWeights* weights, const f32* bias, const Choices choices, const ExpertShape shape) {
    __shared__ u32 table[CODE == LEVELS ? 256 : 1];
    run_parts<200, 104, Product, RowStages>(dynamic_shared, table, x, weights, choices, {out, bias, shape});
}
