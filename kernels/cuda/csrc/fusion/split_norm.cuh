// A norm by the root of the mean square, done by the products around it in place of a kernel of its own. The product
// before it adds its sums to the residual, and leaves rows of that times the norm's weight, rounded, and sums of their
// squares. What is left of the norm is one factor for all of a row, by which the product after it multiplies its own
// sums: so it may come late.
//
// A row's squares are added as a tree over each PIECE columns by the product before, and then in an order that depends
// on the row's width alone. `src/split_norm.rs` has the twins of the structs.
#pragma once
#include "quire.cuh"

constexpr u32 PIECE = 16;

// What rows still lack that a product reads; no squares: nothing.
struct NormBefore {
    // [rows][2 * pairs]: of PIECE columns each
    const f32* squares;
    u32 pairs;
    f32 eps;
};
SAME_LAYOUT(NormBefore, NormBefore);

// What a product leaves beside the residual that it adds to, of as many columns as it has outputs; no squares: nothing.
struct NormAfter {
    void* scaled;
    // Null: ones.
    const f32* weight;
    // [rows][columns / PIECE]
    f32* squares;
};
SAME_LAYOUT(NormAfter, NormAfter);

// The sum over PIECE neighbours.
DEVICE f32 piece_sum(f32 x) {
#pragma unroll
    for (u32 lanes = 1; lanes < PIECE; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

// By TEAM warps, of which this is one: what rows, at most MOST, are to be multiplied by. All rows of a warp are read at
// a time; a barrier has to follow.
template <u32 TEAM, u32 MOST> DEVICE void find_factors(const NormBefore& norm, u32 rows, u32 warp, f32* factors) {
    constexpr u32 EACH = (MOST + TEAM - 1) / TEAM, AT_ONCE = EACH < 8 ? 8 / EACH : 1;
    const u32 lane = threadIdx.x % 32;
    if (warp >= rows) return;
    f32 sums[EACH];
    const float2* from[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        sums[i] = 0.0f;
        from[i] = (const float2*)norm.squares + (size_t)min(warp + i * TEAM, rows - 1) * norm.pairs;
    }
#pragma unroll AT_ONCE
    for (u32 pair = lane; pair < norm.pairs; pair += 32)
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const float2 squares = from[i][pair];
            sums[i] += squares.x + squares.y;
        }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const f32 factor = 1.0f / sqrtf(warp_sum(sums[i]) / (norm.pairs * 2 * PIECE) + norm.eps);
        if (lane == 0 && warp + i * TEAM < rows) factors[warp + i * TEAM] = factor;
    }
}
