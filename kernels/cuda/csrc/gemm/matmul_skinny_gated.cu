// out[m, i] = activation(g) * u for up to 32 rows of x, where g = x[m] w[i]^T and u = x[m] w[n + i]^T (+ bias): a
// product and the gate that follows it, as matmul_skinny.cu and gated.cu give them, bit for bit, and the rest of a norm
// before it. A block has as many rows of w for gates as for what they gate. What adapters add is added to what would
// have been stored.
#include "activation.cuh"
#include "skinny.cuh"
#include "split_norm.cuh"
// Whether adapters add to what is gated.
#ifndef ADAPTED
#define ADAPTED 0
#endif
#if ADAPTED
#include "gate_deltas.cuh"
extern __shared__ __align__(16) char dynamic_shared[];
#endif

// Grid: [n / (4 TILES), rounded up], TILES even. `w` is `[2 n, k]`, `k` a multiple of 8.
extern "C" __global__ void __launch_bounds__(32 * WARPS, LEAST_BLOCKS) matmul_skinny_gated(
    TYPE* out, const TYPE* x, const TYPE* w, const f32* bias, u32 rows, u32 n, u32 k, const Activation activation,
    const NormBefore before
#if ADAPTED
    , const f32* shrunk, u32 splits, const TYPE* b, const AdapterRows adapters, const u32* slots
#endif
    ) {
    __shared__ Skinny::Parts parts;
    __shared__ f32 factors[Skinny::ROWS];
    const u32 half = Skinny::COLUMNS / 2, first = blockIdx.x * half;
    Skinny product(k);
    product.start_weights(w, k, [=](u32 column) {
        const u32 i = min(first + column % half, n - 1);
        return column < half ? i : n + i;
    });
    launch_dependents();
#if ADAPTED
    f32* shrunk_rows = (f32*)dynamic_shared;
    uint4* copies = (uint4*)(shrunk_rows + rows * 2 * adapters.max_rank);
    const ColumnDeltas<TYPE> deltas = {{adapters, slots, b, n}, shrunk_rows, copies};
    for (u32 i = threadIdx.x; i < rows * half; i += WARPS * 32)
        if (first + i % half < n) deltas.copy_weights(i, i / half, first + i % half);
    copy_commit();
#endif
    wait_for_inputs();
    product.start_rows(rows, [=](u32 row) { return x + (size_t)row * k; });
#if ADAPTED
    deltas.bring({shrunk, splits}, rows);
#endif
    if (before.squares) find_factors<WARPS, Skinny::ROWS>(before, rows, product.warp, factors);
    product.run(parts);
#if ADAPTED
    // Each thread reads its own.
    copy_wait<0>();
#endif
    const f32* own = before.squares ? factors : (const f32*)0;
    for (u32 i = threadIdx.x; i < rows * half; i += WARPS * 32) {
        const u32 row = i / half, column = i % half, at = first + column;
        if (at >= n) continue;
        // Rounded as if they had been stored.
        f32 gate = load(Cast<TYPE>::from(Skinny::whole(parts, row, column, bias ? bias[at] : 0.0f, own)));
        f32 up = load(
            Cast<TYPE>::from(Skinny::whole(parts, row, half + column, bias ? bias[n + at] : 0.0f, own)));
#if ADAPTED
        if (const u32 slot = slots[row]; slot != NO_ADAPTER)
            gate += deltas.of(i, slot, row, 0, at), up += deltas.of(i, slot, row, 1, at);
#endif
        out[(size_t)row * n + at] = Cast<TYPE>::from(activated(activation, gate) * gated_half(activation, up));
    }
}
