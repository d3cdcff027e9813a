// Whole matrices that adapters have in place of the model's, each row with that of its slot: `saved_matmul` replaces
// the row's logits, `saved_embed` its embedding. One launch for all adapters. Slots, and which of them have a matrix,
// are read from the device, so that a captured step serves other adapters. The order of a sum depends on its length
// alone.
#include "quire.cuh"
#include "adapter_dots.cuh"

// out[row][o] = x[row] . w[slot][o] for rows whose slot has a matrix: blocks (outputs, rows), WARPS warps for COUNT
// outputs of ROWS rows.
template <u32 ROWS, u32 COUNT, typename X, typename W>
DEVICE void saved_matmul(
    const X* x, const W* w, const u32* slots, const u32* present, f32* out, u32 rows, u32 inputs, u32 outputs) {
    __shared__ f32 shares[WARPS][ROWS][COUNT];
    const u32 o = blockIdx.x * COUNT, first = blockIdx.y * ROWS, warp = threadIdx.x / 32;
    u32 slot[ROWS], left = 0;
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        slot[i] = first + i < rows ? slots[first + i] : NO_ADAPTER;
        if (slot[i] != NO_ADAPTER && present[slot[i]]) left |= 1u << i;
    }
    // Rows of one slot are done together; all threads see the same slots.
    while (left) {
        u32 own = NO_ADAPTER, mine = 0;
        const X* from[ROWS];
#pragma unroll
        for (u32 i = 0; i < ROWS; i++)
            if (own == NO_ADAPTER && left >> i & 1u) own = slot[i];
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            if ((left >> i & 1u) && slot[i] == own) mine |= 1u << i;
            from[i] = x + (first + i) * (u64)inputs;
        }
        left &= ~mine;
        const W* weights[COUNT];
#pragma unroll
        for (u32 d = 0; d < COUNT; d++) weights[d] = w + ((u64)own * outputs + min(o + d, outputs - 1)) * inputs;
        f32 sums[ROWS][COUNT];
        share_of_dots(from, mine, weights, inputs, sums);
        if (threadIdx.x % 32 == 0)
#pragma unroll
            for (u32 i = 0; i < ROWS; i++)
#pragma unroll
                for (u32 d = 0; d < COUNT; d++) shares[warp][i][d] = sums[i][d];
        __syncthreads();
        const u32 i = threadIdx.x / COUNT, d = threadIdx.x % COUNT;
        if (i < ROWS && (mine >> i & 1u) && o + d < outputs) {
            f32 sum = 0.0f;
#pragma unroll
            for (u32 share = 0; share < WARPS; share++) sum += shares[share][i][d];
            out[(u64)(first + i) * outputs + o + d] = sum;
        }
        __syncthreads();
    }
}

// out[row] = scale * w[slot][token of the row - first_entry] for rows whose slot has a matrix, zeros outside it: a
// block for each row.
template <typename W>
DEVICE void saved_embed(
    const W* w, const u32* slots, const u32* present, const u32* tokens, f32* out, u32 first_entry, u32 entries,
    u32 width, f32 scale) {
    const u32 row = blockIdx.x, slot = slots[row];
    if (slot == NO_ADAPTER || !present[slot]) return;
    const u32 token = tokens[row], entry = token - first_entry;
    const bool known = token >= first_entry && entry < entries;
    const W* from = w + ((u64)slot * entries + (known ? entry : 0)) * width;
    f32* to = out + (u64)row * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) to[i] = known ? load(from[i]) * scale : 0.0f;
}

#define SAVED_MATMUL(X, W) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) saved_matmul_##X##_##W( \
        const X* x, const W* w, const u32* slots, const u32* present, f32* out, u32 rows, u32 inputs, u32 outputs) { \
        saved_matmul<EACH, DOTS>(x, w, slots, present, out, rows, inputs, outputs); \
    }

#define SAVED_EMBED(W) \
    extern "C" __global__ void saved_embed_##W( \
        const W* w, const u32* slots, const u32* present, const u32* tokens, f32* out, u32 first_entry, u32 entries, \
        u32 width, f32 scale) { \
        saved_embed(w, slots, present, tokens, out, first_entry, entries, width, scale); \
    }

SAVED_MATMUL(f32, f32)
SAVED_MATMUL(f32, bf16)
SAVED_MATMUL(f32, f16)
SAVED_MATMUL(bf16, f32)
SAVED_MATMUL(bf16, bf16)
SAVED_MATMUL(bf16, f16)
SAVED_MATMUL(f16, f32)
SAVED_MATMUL(f16, bf16)
SAVED_MATMUL(f16, f16)
SAVED_EMBED(f32)
SAVED_EMBED(bf16)
SAVED_EMBED(f16)
