// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert]: blocks (pair, outputs). Every pair reads its expert's weights.
#include "product.cuh"

#define EXPERT_MATMUL(X, W, OUT) \
    extern "C" __global__ void __launch_bounds__(32 * OUTPUTS) expert_matmul_##X##_##W##_##OUT( \
        const X* x, const W* const* weights, const f32* bias, const u32* experts, OUT* out, u32 pairs_a_row, u32 n, u32 k) { \
        u64 pair = blockIdx.x, expert = experts[pair]; \
        const f32* shift = bias ? bias + expert * n : bias; \
        row_product(x + pair / pairs_a_row * k, weights[expert], shift, out + pair * n, n, k); \
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
