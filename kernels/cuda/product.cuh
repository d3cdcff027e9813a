// Products of one row with rows of a weight matrix, a warp for each output: for grouped products, whose groups have few rows.
#pragma once
#include "quire.cuh"

constexpr u32 OUTPUTS = 8; // outputs (and warps) of a block

// Sum of x[i] * w[i], the same bits in all lanes; 16 bytes a lane at a time where rows allow it.
template <typename X, typename W> DEVICE f32 warp_dot(const X* x, const W* w, u32 k) {
    constexpr u32 N = 16 / sizeof(W);
    u32 lane = threadIdx.x % 32;
    f32 sum = 0.0f;
    if (k % N == 0 && (u64)w % 16 == 0) {
        for (u32 i = lane * N; i < k; i += 32 * N) {
            uint4 bits = *(const uint4*)(w + i);
            const W* part = (const W*)&bits;
#pragma unroll
            for (u32 j = 0; j < N; ++j) sum = fmaf(load(x[i + j]), load(part[j]), sum);
        }
    } else {
        for (u32 i = lane; i < k; i += 32) sum = fmaf(load(x[i]), load(w[i]), sum);
    }
    return warp_sum(sum);
}

// This block's outputs of `out[0 .. n] = x w^T + bias`.
template <typename X, typename W, typename Out>
DEVICE void row_product(const X* x, const W* w, const f32* bias, Out* out, u32 n, u32 k) {
    u32 col = blockIdx.y * OUTPUTS + threadIdx.x / 32;
    if (col >= n) return;
    f32 sum = warp_dot(x, w + (u64)col * k, k);
    if (threadIdx.x % 32 == 0) out[col] = Cast<Out>::from(bias ? sum + bias[col] : sum);
}
