// A product for each head: out's columns of head h are x's columns of head h times w[h]^T. Blocks (row and head,
// outputs).
#include "head_columns.cuh"
#include "warp_dots.cuh"

template <typename X, typename W, typename Out>
DEVICE void head_matmul(
    const X* x, Columns from, const W* const* weights, Out* out, Columns to, u32 heads, u32 n, u32 k) {
    u32 row = blockIdx.x / heads, head = blockIdx.x % heads;
    const X* input = x + (u64)row * from.width + from.first + head * from.stride;
    Out* output = out + (u64)row * to.width + to.first + head * to.stride;
    u32 col = blockIdx.y * OUTPUTS + threadIdx.x / 32;
    if (col >= n) return;
    const X* const rows[1] = {input};
    f32 sums[1];
    warp_dots<sizeof(X)>(rows, weights[head] + (u64)col * k, k, sums);
    if (threadIdx.x % 32 == 0) output[col] = Cast<Out>::from(sums[0]);
}

#define HEAD_MATMUL(X, W, OUT) \
    extern "C" __global__ void __launch_bounds__(32 * OUTPUTS) head_matmul_##X##_##W##_##OUT( \
        const X* x, Columns from, const W* const* weights, OUT* out, Columns to, u32 heads, u32 n, u32 k) { \
        head_matmul(x, from, weights, out, to, heads, n, k); \
    }

HEAD_MATMUL(f32, f32, f32)
HEAD_MATMUL(f32, bf16, f32)
HEAD_MATMUL(f32, f16, f32)
HEAD_MATMUL(bf16, bf16, bf16)
HEAD_MATMUL(f16, f16, f16)
