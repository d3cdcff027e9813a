// What the ranks of a group exchange by writing to each other: each rank writes its part straight into the memory of
// all others, over NVLink or PCIe, and reads theirs from its own. One crossing, no barrier between ranks: a word that
// is not there yet is 0, which no word on its way is, and the reader of a word makes it 0 again (the idea of
// TensorRT-LLM's "Lamport" kernels, whose word for "not yet" is -0.0).
//
// A block talks to the block of the same number on other ranks. What it exchanges goes in chunks, each with a number
// that both count in device memory, so nothing that the host passes changes from call to call, and a CUDA graph may
// hold the launch. In a message of several chunks one half of the threads sends a chunk while the other half takes the
// one before it.
//
// Six slots take turns. Why that is enough, for chunk k to be written where chunk k - 6 was: its sender has taken all
// of chunk k - 2 in this launch, or finished the launch before. Either way it has words of the peer's chunk k - 2 (or a
// later one), which the peer sent after it had emptied chunk k - 4, or after a launch that had.
//
// In one shot (one_shot.cuh) every rank sends all its numbers to all others. In two (two_shots.cuh), for larger sums, it
// sends each its part alone, adds up the own part, and sends that sum to all others. What is done with rows of such a sum
// next may be part of the launch (after_sum.cuh).
#include "after_sum.cuh"
#include "one_shot.cuh"
#include "two_shots.cuh"

#define THREADS 512

// A sum of numbers of type `X` that travel as `T`.
#define RANKS_SUM(X, T) \
    extern "C" __global__ void __launch_bounds__(THREADS) ranks_sum_##X##_##T( \
        const __grid_constant__ Ranks ranks, X* x, u64 count) { \
        sum<T>(ranks, x, count); \
    } \
    extern "C" __global__ void __launch_bounds__(THREADS) ranks_two_shot_sum_##X##_##T( \
        const __grid_constant__ Ranks ranks, X* x, u64 count) { \
        sum_in_two_shots<T>(ranks, x, count, Nothing()); \
    }

RANKS_SUM(f32, f32)
RANKS_SUM(f32, bf16)
RANKS_SUM(f32, f16)
RANKS_SUM(bf16, bf16)

// A sum of rows, which are added to a residual, and the norm of that: `[rows, width]` each.
#define RANKS_SUM_ADD_NORM(X, T, OUT) \
    extern "C" __global__ void __launch_bounds__(THREADS) ranks_sum_add_norm_##X##_##T##_##OUT( \
        const __grid_constant__ Ranks ranks, X* x, u64 count, f32* residual, const Norm how, OUT* out, u32 width) { \
        sum_in_two_shots<T>(ranks, x, count, AddNorm<X, OUT>{residual, x, how, out, width}); \
    }

RANKS_SUM_ADD_NORM(f32, f32, f32)
RANKS_SUM_ADD_NORM(f32, bf16, bf16)
RANKS_SUM_ADD_NORM(f32, f16, f16)
RANKS_SUM_ADD_NORM(bf16, bf16, bf16)

// Column `col` of row `row` of a rank's part goes to its place in the whole row, unless it is padding.
DEVICE void place(f32* out, u32 out_width, u32 width, u64 element, u32 from, f32 value) {
    u64 row = element / width, col = from * (u64)width + element % width;
    if (col < out_width) out[row * out_width + col] = value;
}

// out[row] = [x[row] of rank 0 | x[row] of rank 1 | ...], cut to `out_width`.
extern "C" __global__ void __launch_bounds__(THREADS)
    ranks_gather(const __grid_constant__ Ranks ranks, const f32* x, f32* out, u32 rows, u32 width, u32 out_width) {
    u64 count = (u64)rows * width;
    exchange<f32>(ranks, x, count, [&](u64 first, u32 from, Packet<f32> packet) {
#pragma unroll
        for (u32 i = 0; i < Packet<f32>::NUMBERS; i++)
            if (first + i < count) place(out, out_width, width, first + i, from, packet.numbers[i]);
    });
}

// The same of parts that are all here: `parts` is [rank][row][width].
extern "C" __global__ void ranks_place(const f32* parts, f32* out, u32 size, u32 rows, u32 width, u32 out_width) {
    u64 part = (u64)rows * width;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < size * part; i += gridDim.x * (u64)blockDim.x)
        place(out, out_width, width, i % part, i / part, parts[i]);
}
