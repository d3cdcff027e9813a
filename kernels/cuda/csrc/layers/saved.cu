// Whole matrices that adapters have in place of the model's, each row with that of its slot: `saved_matmul` replaces
// the row's logits, `saved_embed` its embedding, `mask_saved` makes logits -inf that the row's matrix lacks. One launch
// for all adapters. Slots, and how many rows their matrices have, are read from the device, so that a captured step
// serves other adapters: `counts` has 0 for a slot without a matrix, else one more than its rows. The order of a sum
// depends on its length alone.
#include "quire.cuh"
#include "adapter_dots.cuh"

// out[row][o] = x[row] . w[slot][o] for rows whose slot has a matrix: blocks (outputs, rows), WARPS warps for COUNT
// outputs of ROWS rows.
template <u32 ROWS, u32 COUNT, typename X, typename W>
DEVICE void saved_matmul(
    const X* x, const W* w, const u32* slots, const u32* counts, f32* out, u32 rows, u32 inputs, u32 outputs) {
    const u32 o = blockIdx.x * COUNT, first = blockIdx.y * ROWS;
    u32 slot[ROWS], left = 0;
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        slot[i] = first + i < rows ? slots[first + i] : NO_ADAPTER;
        if (slot[i] != NO_ADAPTER && counts[slot[i]]) left |= 1u << i;
    }
    const auto row = [&](u32 i) { return x + (first + i) * (u64)inputs; };
    const auto weights = [&](u32 own, u32 d) { return w + ((u64)own * outputs + min(o + d, outputs - 1)) * inputs; };
    const auto store = [&](u32, u32 mine, const Shares<ROWS, COUNT>& shares) {
        const u32 i = threadIdx.x / COUNT, d = threadIdx.x % COUNT;
        if (i < ROWS && (mine >> i & 1u) && o + d < outputs)
            out[(u64)(first + i) * outputs + o + d] = shares.sum(i, d);
    };
    dots_by_slot<ROWS, COUNT>(slot, left, inputs, row, weights, store);
}

// out[row] = scale * w[slot][token of the row - first_entry] for rows whose slot has a matrix, zeros outside it: a
// block for each row.
template <typename W>
DEVICE void saved_embed(
    const W* w, const u32* slots, const u32* counts, const u32* tokens, f32* out, u32 first_entry, u32 entries,
    u32 width, f32 scale) {
    const u32 row = blockIdx.x, slot = slots[row];
    if (slot == NO_ADAPTER || !counts[slot]) return;
    const u32 token = tokens[row], entry = token - first_entry;
    const bool known = token >= first_entry && entry < counts[slot] - 1;
    const W* from = w + ((u64)slot * entries + (known ? entry : 0)) * width;
    f32* to = out + (u64)row * width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) to[i] = known ? load(from[i]) * scale : 0.0f;
}

// Columns that a row's matrix lacks: a block for each row. `own`: columns of the model's matrix. Null slots: no row of
// the step has an adapter.
extern "C" __global__ void mask_saved(const u32* slots, const u32* counts, f32* out, u32 own, u32 columns) {
    const u32 row = blockIdx.x, slot = slots ? slots[row] : NO_ADAPTER;
    const u32 count = slot == NO_ADAPTER ? 0 : counts[slot];
    f32* to = out + (u64)row * columns;
    for (u32 i = (count ? count - 1 : own) + threadIdx.x; i < columns; i += blockDim.x) to[i] = -infinity();
}

#define SAVED_MATMUL(X, W) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) saved_matmul_##X##_##W( \
        const X* x, const W* w, const u32* slots, const u32* counts, f32* out, u32 rows, u32 inputs, u32 outputs) { \
        saved_matmul<EACH, DOTS>(x, w, slots, counts, out, rows, inputs, outputs); \
    }

#define SAVED_EMBED(W) \
    extern "C" __global__ void saved_embed_##W( \
        const W* w, const u32* slots, const u32* counts, const u32* tokens, f32* out, u32 first_entry, u32 entries, \
        u32 width, f32 scale) { \
        saved_embed(w, slots, counts, tokens, out, first_entry, entries, width, scale); \
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
