// out[m, n] = x[m, k] w[n, k]^T (+ bias) (+ out) for up to 32 rows of x, and parts of the norms before and after it.
// The first weights are read before the kernel waits for its input, because weights are there already.
// `src/gemm/matmul_skinny.rs` chooses the configuration.
#include "skinny.cuh"
#include "split_norm.cuh"

struct SkinnyShape {
    u32 rows;
    u32 n;
    u32 k;
    // Whether to add to `out` instead of overwriting it.
    u32 accumulate;
    // Whether `out` is f32; else it has the input's type.
    u32 wide;
};
SAME_LAYOUT(SkinnyShape, GemmShape);

// Sums of a thread.
constexpr u32 SUMS = (Skinny::ROWS * Skinny::COLUMNS + WARPS * 32 - 1) / (WARPS * 32);

// A sum's place in the block's tile and in `out`.
struct Place {
    u32 row, column, at;
    bool exists;

    DEVICE Place(u32 turn, const SkinnyShape& shape) {
        const u32 i = turn * WARPS * 32 + threadIdx.x;
        row = i / Skinny::COLUMNS, column = i % Skinny::COLUMNS, at = blockIdx.x * Skinny::COLUMNS + column;
        exists = row < shape.rows && at < shape.n;
    }
    DEVICE size_t index(const SkinnyShape& shape) const { return (size_t)row * shape.n + at; }
};

// Grid: [n / (8 TILES), rounded up]. `k` is a multiple of 8. With a norm after it TILES is 2, n a multiple of 32, and
// `out` an f32 residual that is added to.
extern "C" __global__ void __launch_bounds__(32 * WARPS, LEAST_BLOCKS) matmul_skinny(void* out, const TYPE* x,
    const TYPE* w, const f32* bias, const SkinnyShape shape, const NormBefore before, const NormAfter after) {
    __shared__ Skinny::Parts parts;
    __shared__ f32 factors[Skinny::ROWS];
    const u32 first = blockIdx.x * Skinny::COLUMNS;
    Skinny product(shape.k);
    product.start_weights(w, first, shape.n, shape.k);
    if (after.squares && after.weight && threadIdx.x == 0) touch(after.weight + first);
    launch_dependents();
    wait_for_inputs();
    product.start_rows(shape.rows, [=](u32 row) { return x + (size_t)row * shape.k; });
    // What is added to is on its way while the product is made.
    f32 addends[SUMS];
#pragma unroll
    for (u32 turn = 0; turn < SUMS; turn++) {
        const Place place(turn, shape);
        addends[turn] = 0.0f;
        if (shape.accumulate && place.exists)
            addends[turn] = shape.wide ? ((const f32*)out)[place.index(shape)]
                                       : load(((const TYPE*)out)[place.index(shape)]);
    }
    if (before.squares) find_factors<WARPS, Skinny::ROWS>(before, shape.rows, product.warp, factors);
    product.run(parts);
#pragma unroll
    for (u32 turn = 0; turn < SUMS; turn++) {
        const Place place(turn, shape);
        f32 sum = 0.0f;
        if (place.exists) {
            const size_t to = place.index(shape);
            sum = Skinny::whole(
                parts, place.row, place.column, bias ? bias[place.at] : 0.0f, before.squares ? factors : (const f32*)0);
            if (shape.accumulate) sum += addends[turn];
            if (shape.wide) ((f32*)out)[to] = sum;
            else ((TYPE*)out)[to] = Cast<TYPE>::from(sum);
            if (after.squares)
                ((TYPE*)after.scaled)[to] = Cast<TYPE>::from(after.weight ? sum * after.weight[place.at] : sum);
        }
        if (after.squares) {
            const f32 squares = piece_sum(sum * sum);
            if (place.exists && place.column == 0) after.squares[place.row * gridDim.x + blockIdx.x] = squares;
        }
    }
}
