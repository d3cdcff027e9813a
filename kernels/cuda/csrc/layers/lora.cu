// Adapters of a layer, each row with that of its slot: `lora_shrink` computes x[row] a[slot]^T, `lora_expand` adds its
// product with b[slot] to out[row]. One launch each for all adapters and all projections that the layer stacks. For
// an embedding, `lora_pick` takes the column of the row's token from a[slot] instead. Slots and ranks are read from
// the device, so that a captured step serves other adapters. The order of a sum depends on its length alone.
#include "quire.cuh"
#include "adapter_dots.cuh"
#include "adapter_sums.cuh"

// shrunk[row][part][j] = x[row] . a[slot][part][j] for j below the adapter's rank: blocks (rows, dots), WARPS warps for
// COUNT of a part's j. `ranks` is [slots][parts], 0 where a projection is left alone.
template <u32 ROWS, u32 COUNT, typename X, typename W>
DEVICE void shrink(
    const X* x, const W* a, const u32* slots, const u32* ranks, f32* shrunk, u32 rows, u32 inputs, u32 parts,
    u32 max_rank) {
    const u32 groups = (max_rank + COUNT - 1) / COUNT, part = blockIdx.y / groups, j = blockIdx.y % groups * COUNT;
    const u32 first = blockIdx.x * ROWS;
    u32 slot[ROWS], left = 0;
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        slot[i] = first + i < rows ? slots[first + i] : NO_ADAPTER;
        if (slot[i] != NO_ADAPTER && j < ranks[slot[i] * parts + part]) left |= 1u << i;
    }
    const auto row = [&](u32 i) { return x + (first + i) * (u64)inputs; };
    const auto weights = [&](u32 own, u32 d) {
        return a + (((u64)own * parts + part) * max_rank + min(j + d, max_rank - 1)) * inputs;
    };
    const auto store = [&](u32 own, u32 mine, const Shares<ROWS, COUNT>& shares) {
        const u32 i = threadIdx.x / COUNT, d = threadIdx.x % COUNT;
        if (i < ROWS && (mine >> i & 1u) && j + d < ranks[own * parts + part])
            shrunk[((u64)(first + i) * parts + part) * max_rank + j + d] = shares.sum(i, d);
    };
    dots_by_slot<ROWS, COUNT>(slot, left, inputs, row, weights, store);
}

// shrunk[row][j] = scale * a[slot][j][token of the row - first_entry] for j below the adapter's rank, zeros outside the
// table: a block for each row.
template <typename W>
DEVICE void pick(
    const W* a, const u32* slots, const u32* ranks, const u32* tokens, f32* shrunk, u32 first_entry, u32 entries,
    u32 max_rank, f32 scale) {
    const u32 row = blockIdx.x, slot = slots[row];
    if (slot == NO_ADAPTER) return;
    const u32 token = tokens[row], entry = token - first_entry;
    const bool known = token >= first_entry && entry < entries;
    const W* from = a + (u64)slot * max_rank * entries + entry;
    for (u32 j = threadIdx.x; j < ranks[slot]; j += blockDim.x)
        shrunk[(u64)row * max_rank + j] = known ? load(from[(u64)j * entries]) * scale : 0.0f;
}

// out[row][o] += shrunk[row][part of o] . b[slot][o]: blocks (rows, outputs), a thread for each output. `ends` is where
// each projection's outputs end.
template <u32 ROWS, typename W, typename Out>
DEVICE void expand(
    const f32* shrunk, const W* b, const u32* slots, const u32* ranks, const u32* ends, Out* out, u32 rows, u32 outputs,
    u32 parts, u32 max_rank) {
    const u32 o = blockIdx.y * blockDim.x + threadIdx.x;
    if (o >= outputs) return;
    u32 part = 0;
    while (o >= ends[part]) part++;
    // A projection's rows follow each other, as long as its rank.
    const u32 begin = part > 0 ? ends[part - 1] : 0, first = blockIdx.x * ROWS;
    KeptWeights<W> kept;
#pragma unroll 1
    for (u32 i = 0; i < ROWS && first + i < rows; i++) {
        const u32 row = first + i, slot = slots[row];
        if (slot == NO_ADAPTER) continue;
        const u32 rank = ranks[slot * parts + part];
        if (rank == 0) continue;
        const W* w = b + ((u64)slot * outputs + begin) * max_rank + (u64)(o - begin) * rank;
        const f32* t = shrunk + ((u64)row * parts + part) * max_rank;
        Out* to = out + (u64)row * outputs + o;
        *to = Cast<Out>::from(load(*to) + kept.dot(t, w, rank, slot));
    }
}

#define LORA_SHRINK(X, W) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) lora_shrink_##X##_##W( \
        const X* x, const W* a, const u32* slots, const u32* ranks, f32* shrunk, u32 rows, u32 inputs, u32 parts, \
        u32 max_rank) { \
        shrink<1, 1>(x, a, slots, ranks, shrunk, rows, inputs, parts, max_rank); \
    } \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) lora_shrink_many_##X##_##W( \
        const X* x, const W* a, const u32* slots, const u32* ranks, f32* shrunk, u32 rows, u32 inputs, u32 parts, \
        u32 max_rank) { \
        shrink<EACH, DOTS>(x, a, slots, ranks, shrunk, rows, inputs, parts, max_rank); \
    }

#define LORA_PICK(W) \
    extern "C" __global__ void lora_pick_##W( \
        const W* a, const u32* slots, const u32* ranks, const u32* tokens, f32* shrunk, u32 first_entry, u32 entries, \
        u32 max_rank, f32 scale) { \
        pick(a, slots, ranks, tokens, shrunk, first_entry, entries, max_rank, scale); \
    }

#define LORA_EXPAND(W, OUT) \
    extern "C" __global__ void lora_expand_##W##_##OUT( \
        const f32* shrunk, const W* b, const u32* slots, const u32* ranks, const u32* ends, OUT* out, u32 rows, \
        u32 outputs, u32 parts, u32 max_rank) { \
        expand<EACH>(shrunk, b, slots, ranks, ends, out, rows, outputs, parts, max_rank); \
    } \
    extern "C" __global__ void lora_expand_few_##W##_##OUT( \
        const f32* shrunk, const W* b, const u32* slots, const u32* ranks, const u32* ends, OUT* out, u32 rows, \
        u32 outputs, u32 parts, u32 max_rank) { \
        expand<1>(shrunk, b, slots, ranks, ends, out, rows, outputs, parts, max_rank); \
    }

LORA_SHRINK(f32, f32)
LORA_SHRINK(f32, bf16)
LORA_SHRINK(f32, f16)
LORA_SHRINK(bf16, f32)
LORA_SHRINK(bf16, bf16)
LORA_SHRINK(bf16, f16)
LORA_SHRINK(f16, f32)
LORA_SHRINK(f16, bf16)
LORA_SHRINK(f16, f16)
LORA_PICK(f32)
LORA_PICK(bf16)
LORA_PICK(f16)
LORA_EXPAND(f32, f32)
LORA_EXPAND(f32, bf16)
LORA_EXPAND(f32, f16)
LORA_EXPAND(bf16, f32)
LORA_EXPAND(bf16, bf16)
LORA_EXPAND(bf16, f16)
LORA_EXPAND(f16, f32)
LORA_EXPAND(f16, bf16)
LORA_EXPAND(f16, f16)
