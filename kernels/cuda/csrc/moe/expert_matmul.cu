// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert], for every pair of types: blocks (tile, outputs). A
// warp reads its row of an expert's weights once for EACH rows of x. The order of a sum depends on k alone.
#include "experts.cuh"
#include "warp_dots.cuh"

constexpr u32 EACH = 8;

template <typename X, typename W, typename Out>
DEVICE void expert_matmul(
    const X* x, const W* const* weights, const f32* bias, const Choices& choices, Out* out, const ExpertShape& shape) {
    const u32 pairs_a_row = shape.pairs_a_row, n = shape.n, k = shape.k;
    const u32 column = blockIdx.y * OUTPUTS + threadIdx.x / 32;
    launch_dependents();
    wait_for_inputs();
    if (blockIdx.x >= choices.num_tiles(shape.pairs) || column >= n) return;
    const Tile tile = choices.tile(blockIdx.x);
    const u32 rows = choices.rows_of(tile);
    const W* w = weights[tile.expert] + (u64)column * k;
    const f32 shift = bias ? bias[(u64)tile.expert * n + column] : 0.0f;
    for (u32 first = 0; first < rows; first += EACH) {
        const X* from[EACH];
        f32 sums[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            from[i] = first + i < rows ? x + (u64)(choices.pair(tile.begin + first + i) / pairs_a_row) * k : nullptr;
        warp_dots<16>(from, w, k, sums);
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            if (threadIdx.x % 32 == i && first + i < rows)
                out[(u64)choices.pair(tile.begin + first + i) * n + column] = Cast<Out>::from(
                    bias ? sums[i] + shift : sums[i]);
    }
}

#define EXPERT_MATMUL(X, W, OUT) \
    extern "C" __global__ void __launch_bounds__(32 * OUTPUTS) expert_matmul_##X##_##W##_##OUT( \
        const X* x, const W* const* weights, const f32* bias, const Choices choices, OUT* out, \
        const ExpertShape shape) { \
        expert_matmul(x, weights, bias, choices, out, shape); \
    }

EXPERT_MATMUL(f32, f32, f32)
EXPERT_MATMUL(f32, bf16, f32)
EXPERT_MATMUL(f32, f16, f32)
EXPERT_MATMUL(f32, bf16, bf16)
EXPERT_MATMUL(f32, f16, f16)
EXPERT_MATMUL(bf16, bf16, bf16)
EXPERT_MATMUL(bf16, bf16, f32)
EXPERT_MATMUL(f16, f16, f16)
EXPERT_MATMUL(f16, f16, f32)
