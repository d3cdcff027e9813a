// Adapters of a linear layer, each row with that of its slot: `lora_shrink` computes x[row] a[slot]^T, `lora_expand`
// adds its product with b[slot] to out[row]. One launch each for all adapters and all projections that the layer
// stacks. Slots and ranks are read from the device, so that a captured step serves other adapters. The order of a sum
// depends on its length alone.
#include "quire.cuh"
#include "warp_dots.cuh"

// Slot of a row without an adapter.
constexpr u32 NO_ADAPTER = 0xffffffffu;
// Rows of a block, where neighbours share what is read of their adapter.
constexpr u32 EACH = 8;

// shrunk[row][part][j] = x[row] . a[slot][part][j] for j below the adapter's rank: blocks (rows, outputs), a warp for
// each (part, j). `ranks` is [slots][parts], 0 where a projection is left alone.
template <u32 ROWS, typename X, typename W>
DEVICE void shrink(
    const X* x, const W* a, const u32* slots, const u32* ranks, f32* shrunk, u32 rows, u32 inputs, u32 parts,
    u32 max_rank) {
    const u32 dot = blockIdx.y * OUTPUTS + threadIdx.x / 32, part = dot / max_rank, j = dot % max_rank;
    if (part >= parts) return;
    const u32 first = blockIdx.x * ROWS;
    u32 slot[ROWS];
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        slot[i] = first + i < rows ? slots[first + i] : NO_ADAPTER;
        if (slot[i] != NO_ADAPTER && j >= ranks[slot[i] * parts + part]) slot[i] = NO_ADAPTER;
    }
    // Rows of one slot are done together.
    u32 left = 0;
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) left |= (slot[i] != NO_ADAPTER ? 1u : 0u) << i;
    while (left) {
        u32 own = NO_ADAPTER;
#pragma unroll
        for (u32 i = 0; i < ROWS; i++)
            if (own == NO_ADAPTER && left >> i & 1u) own = slot[i];
        const X* from[ROWS];
        f32 sums[ROWS];
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) {
            const bool mine = (left >> i & 1u) && slot[i] == own;
            from[i] = mine ? x + (first + i) * (u64)inputs : nullptr;
            if (mine) left &= ~(1u << i);
        }
        // 16 bytes of w stand for at least as many of x, unless its elements are larger.
        constexpr u32 X_BYTES = sizeof(X) >= sizeof(W) ? 16 : sizeof(X);
        const W* w = a + (((u64)own * parts + part) * max_rank + j) * inputs;
        warp_dots<X_BYTES>(from, w, inputs, sums);
#pragma unroll
        for (u32 i = 0; i < ROWS; i++)
            if (from[i] && threadIdx.x % 32 == 0) shrunk[((u64)(first + i) * parts + part) * max_rank + j] = sums[i];
    }
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
    const u32 first = blockIdx.x * ROWS;
#pragma unroll 1
    for (u32 i = 0; i < ROWS && first + i < rows; i++) {
        const u32 row = first + i, slot = slots[row];
        if (slot == NO_ADAPTER) continue;
        const u32 rank = ranks[slot * parts + part];
        if (rank == 0) continue;
        // A projection's rows follow each other, as long as its rank.
        const u32 begin = part > 0 ? ends[part - 1] : 0;
        const W* w = b + ((u64)slot * outputs + begin) * max_rank + (u64)(o - begin) * rank;
        const f32* t = shrunk + ((u64)row * parts + part) * max_rank;
        f32 sum = 0.0f;
        for (u32 j = 0; j < rank; j++) sum = fmaf(t[j], load(w[j]), sum);
        Out* to = out + (u64)row * outputs + o;
        *to = Cast<Out>::from(load(*to) + sum);
    }
}

#define LORA_SHRINK(X, W) \
    extern "C" __global__ void __launch_bounds__(32 * OUTPUTS) lora_shrink_##X##_##W( \
        const X* x, const W* a, const u32* slots, const u32* ranks, f32* shrunk, u32 rows, u32 inputs, u32 parts, \
        u32 max_rank) { \
        shrink<1>(x, a, slots, ranks, shrunk, rows, inputs, parts, max_rank); \
    } \
    extern "C" __global__ void __launch_bounds__(32 * OUTPUTS) lora_shrink_many_##X##_##W( \
        const X* x, const W* a, const u32* slots, const u32* ranks, f32* shrunk, u32 rows, u32 inputs, u32 parts, \
        u32 max_rank) { \
        shrink<EACH>(x, a, slots, ranks, shrunk, rows, inputs, parts, max_rank); \
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
LORA_EXPAND(f32, f32)
LORA_EXPAND(f32, bf16)
LORA_EXPAND(f32, f16)
LORA_EXPAND(bf16, f32)
LORA_EXPAND(bf16, bf16)
LORA_EXPAND(bf16, f16)
LORA_EXPAND(f16, f32)
LORA_EXPAND(f16, bf16)
LORA_EXPAND(f16, f16)
