// A sum over ranks, of numbers that travel as `TYPE`: `IS_SHORT` where they are of that type, otherwise f32. In one
// shot or in two.
#ifndef TYPE
#define TYPE bf16
#define IS_SHORT 1
#define SHOTS 2
#endif
#include "after_sum.cuh"
#include "one_shot.cuh"
#include "two_shots.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
    ranks_sum(const __grid_constant__ Ranks ranks, Numbers<IS_SHORT, TYPE>::Type* x, u64 count) {
    if constexpr (SHOTS == 1) sum<TYPE>(ranks, x, count);
    else sum_in_two_shots<TYPE>(ranks, x, count, Nothing());
}
