// A sum over ranks of rows, in two shots, which are added to a residual, and the norm of that: `[rows, width]` each.
// Numbers travel as `TYPE`, which is also that of normed rows; `IS_SHORT` where parts are of it, otherwise f32.
#ifndef TYPE
#define TYPE bf16
#define IS_SHORT 1
#endif
#include "after_sum.cuh"
#include "two_shots.cuh"

typedef Numbers<IS_SHORT, TYPE>::Type X;

extern "C" __global__ void __launch_bounds__(THREADS) ranks_sum_add_norm(const __grid_constant__ Ranks ranks, X* x,
    u64 count, f32* residual, const Norm how, TYPE* out, u32 width) {
    sum_in_two_shots<TYPE>(ranks, x, count, AddNorm<X, TYPE>{residual, x, how, out, width});
}
