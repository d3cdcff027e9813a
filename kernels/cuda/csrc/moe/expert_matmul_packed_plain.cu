// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert] for weights of 4 or 8 bits, of every type and shape, in
// f32. A warp has an output, whose k products its lanes share.
#include "experts.cuh"
#include "packed.cuh"

constexpr u32 OUTPUTS = 8;

// Grid: [tiles of rows, outputs over OUTPUTS, rounded up].
template <typename X, typename Out>
DEVICE void plain(const X* x, const PackedWeights* weights, const f32* bias, const Choices& choices, Out* out,
    const ExpertShape& shape) {
    const u32 column = blockIdx.y * OUTPUTS + threadIdx.x / 32, lane = threadIdx.x % 32;
    wait_for_inputs();
    if (blockIdx.x >= choices.num_tiles(shape.pairs) || column >= shape.n) return;
    const Tile tile = choices.tile(blockIdx.x);
    const PackedWeights w = weights[tile.expert];
    const f32 shift = bias ? bias[(size_t)tile.expert * shape.n + column] : 0.0f;
    for (u32 row = 0; row < choices.rows_of(tile); row++) {
        const u32 pair = choices.pair(tile.begin + row);
        const X* from = x + (size_t)(pair / shape.pairs_a_row) * shape.k;
        f32 sum = 0.0f;
        for (u32 at = lane; at < shape.k; at += 32)
            sum = fmaf(load(from[at]), Group(w, column, at).value(w, code_at(w, column, at)), sum);
        sum = warp_sum(sum);
        if (lane == 0) out[(size_t)pair * shape.n + column] = Cast<Out>::from(bias ? sum + shift : sum);
    }
}

#define EXPERTS_OF(X, OUT) \
    extern "C" __global__ void __launch_bounds__(32 * OUTPUTS) expert_matmul_packed_plain_##X##_##OUT( \
        const X* x, const PackedWeights* weights, const f32* bias, const Choices choices, OUT* out, \
        const ExpertShape shape) { \
        plain(x, weights, bias, choices, out, shape); \
    }

EXPERTS_OF(f32, f32)
EXPERTS_OF(f32, bf16)
EXPERTS_OF(f32, f16)
EXPERTS_OF(bf16, f32)
EXPERTS_OF(bf16, bf16)
EXPERTS_OF(f16, f32)
EXPERTS_OF(f16, f16)
