// out[m, n] = x[m, k] w[n, k]^T (+ bias) (+ out) for up to 32 rows of x. The first weights are read before the kernel waits for its input,
// because weights are there already. `src/matmul_few.rs` chooses the configuration.
#include "few.cuh"

struct FewShape {
    u32 rows;
    u32 n;
    u32 k;
    // Whether to add to `out` instead of overwriting it.
    u32 accumulate;
    // Whether `out` is f32; else it has the input's type.
    u32 wide;
};

// Grid: [n / (8 TILES), rounded up]. `k` is a multiple of 8.
extern "C" __global__ void __launch_bounds__(32 * WARPS, LEAST_BLOCKS)
    matmul_few(void* out, const TYPE* x, const TYPE* w, const f32* bias, const FewShape shape) {
    __shared__ Few::Parts parts;
    const u32 first = blockIdx.x * Few::COLUMNS;
    Few product(shape.k);
    product.start_weights(w, first, shape.n, shape.k);
    launch_dependents();
    wait_for_inputs();
    product.start_rows(shape.rows, [=](u32 row) { return x + (size_t)row * shape.k; });
    product.run(parts);
    Few::finish(parts, shape.rows, first, shape.n, bias, [=](u32 row, u32 column, f32 sum) {
        const size_t at = (size_t)row * shape.n + column;
        if (shape.wide) store_sum((f32*)out + at, sum, shape.accumulate);
        else store_sum((TYPE*)out + at, sum, shape.accumulate);
    });
}
