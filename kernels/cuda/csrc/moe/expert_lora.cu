// Adapters of a layer of experts, each pair of row and expert with that of the row's slot for the expert:
// `expert_lora_shrink` computes x[pair] a[slot][expert]^T, `expert_lora_expand` adds its product with b[slot][expert]
// to out[pair]. One launch each for all adapters, experts and projections: a block takes some pairs of a tile, which
// are of one expert. Slots, ranks and tiles are read from the device, so that a captured step serves other adapters.
// The order of a sum depends on its length alone.
#include "experts.cuh"
#include "adapter_dots.cuh"
#include "adapter_sums.cuh"

// See src/layers/expert_lora.rs.
struct ExpertAdapters {
    const u32* slots; // of rows
    const u32* ranks; // [slots][experts][parts], 0 where a projection is left alone
    const u32* ends; // where each projection's outputs end
    f32* shrunk; // [pairs][parts][max_rank]
    u32 experts;
    u32 top_k;
    u32 parts;
    u32 inputs;
    u32 outputs;
    u32 max_rank;
    u32 pairs;
    // Pairs for which x has one row.
    u32 pairs_a_row;
    // Blocks that share a tile.
    u32 pieces;

    // The adapter of an expert in a slot, among all.
    DEVICE u64 member(u32 slot, u32 expert) const { return (u64)slot * experts + expert; }
    DEVICE u32 rank(u32 slot, u32 expert, u32 part) const { return ranks[member(slot, expert) * parts + part]; }
};
SAME_LAYOUT(ExpertAdapters, ExpertAdapters);

// A block's pairs, at most ROWS, which are of one expert.
template <u32 ROWS> struct Pairs {
    u32 expert = 0, begin = 0, count = 0;

    DEVICE Pairs(const Choices& choices, const ExpertAdapters& adapters) {
        const u32 index = blockIdx.x / adapters.pieces, first = blockIdx.x % adapters.pieces * ROWS;
        if (index >= choices.num_tiles(adapters.pairs)) return;
        const Tile tile = choices.tile(index);
        const u32 rows = choices.rows_of(tile);
        if (first >= rows) return;
        expert = tile.expert, begin = tile.begin + first, count = min(ROWS, rows - first);
    }
};

// shrunk[pair][part][j] = x[pair or row] . a[slot][expert][part][j] for j below the adapter's rank: blocks (pairs,
// dots), WARPS warps for COUNT of a part's j.
template <u32 ROWS, u32 COUNT, typename X, typename W>
DEVICE void shrink(const X* x, const W* a, const Choices& choices, const ExpertAdapters& adapters) {
    const u32 max_rank = adapters.max_rank, inputs = adapters.inputs;
    const u32 groups = (max_rank + COUNT - 1) / COUNT, part = blockIdx.y / groups, j = blockIdx.y % groups * COUNT;
    const Pairs<ROWS> pairs(choices, adapters);
    u32 pair[ROWS], slot[ROWS], left = 0;
#pragma unroll
    for (u32 i = 0; i < ROWS; i++) {
        pair[i] = i < pairs.count ? choices.pair(pairs.begin + i) : 0;
        slot[i] = i < pairs.count ? adapters.slots[pair[i] / adapters.top_k] : NO_ADAPTER;
        if (slot[i] != NO_ADAPTER && j < adapters.rank(slot[i], pairs.expert, part)) left |= 1u << i;
    }
    const auto row = [&](u32 i) { return x + (u64)(pair[i] / adapters.pairs_a_row) * inputs; };
    const auto weights = [&](u32 own, u32 d) {
        const u64 begin = (adapters.member(own, pairs.expert) * adapters.parts + part) * max_rank;
        return a + (begin + min(j + d, max_rank - 1)) * inputs;
    };
    const auto store = [&](u32 own, u32 mine, const Shares<ROWS, COUNT>& shares) {
        const u32 rank = adapters.rank(own, pairs.expert, part), d = threadIdx.x % COUNT;
        // Unrolled, so that a thread's pair is in a register.
#pragma unroll
        for (u32 i = 0; i < ROWS; i++)
            if (threadIdx.x / COUNT == i && (mine >> i & 1u) && j + d < rank)
                adapters.shrunk[((u64)pair[i] * adapters.parts + part) * max_rank + j + d] = shares.sum(i, d);
    };
    dots_by_slot<ROWS, COUNT>(slot, left, inputs, row, weights, store);
}

// out[pair][o] += shrunk[pair][part of o] . b[slot][expert][o]: blocks (pairs, outputs), a thread for each output.
template <u32 ROWS, typename W, typename Out>
DEVICE void expand(const W* b, Out* out, const Choices& choices, const ExpertAdapters& adapters) {
    const u32 o = blockIdx.y * blockDim.x + threadIdx.x, max_rank = adapters.max_rank;
    if (o >= adapters.outputs) return;
    const Pairs<ROWS> pairs(choices, adapters);
    u32 part = 0;
    while (o >= adapters.ends[part]) part++;
    // A projection's rows follow each other, as long as its rank.
    const u32 begin = part > 0 ? adapters.ends[part - 1] : 0;
    KeptWeights<W> kept;
#pragma unroll 1
    for (u32 i = 0; i < pairs.count; i++) {
        const u32 pair = choices.pair(pairs.begin + i), slot = adapters.slots[pair / adapters.top_k];
        if (slot == NO_ADAPTER) continue;
        const u32 rank = adapters.rank(slot, pairs.expert, part);
        if (rank == 0) continue;
        const W* w = b + (adapters.member(slot, pairs.expert) * adapters.outputs + begin) * max_rank;
        const f32* t = adapters.shrunk + ((u64)pair * adapters.parts + part) * max_rank;
        Out* to = out + (u64)pair * adapters.outputs + o;
        *to = Cast<Out>::from(load(*to) + kept.dot(t, w + (u64)(o - begin) * rank, rank, slot));
    }
}

#define EXPERT_LORA_SHRINK(X, W) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) expert_lora_shrink_##X##_##W( \
        const X* x, const W* a, const Choices choices, const ExpertAdapters adapters) { \
        shrink<1, 1>(x, a, choices, adapters); \
    } \
    extern "C" __global__ void __launch_bounds__(32 * WARPS) expert_lora_shrink_many_##X##_##W( \
        const X* x, const W* a, const Choices choices, const ExpertAdapters adapters) { \
        shrink<EACH, DOTS>(x, a, choices, adapters); \
    }

#define EXPERT_LORA_EXPAND(W, OUT) \
    extern "C" __global__ void expert_lora_expand_##W##_##OUT( \
        const W* b, OUT* out, const Choices choices, const ExpertAdapters adapters) { \
        expand<1>(b, out, choices, adapters); \
    } \
    extern "C" __global__ void expert_lora_expand_many_##W##_##OUT( \
        const W* b, OUT* out, const Choices choices, const ExpertAdapters adapters) { \
        expand<EACH>(b, out, choices, adapters); \
    }

EXPERT_LORA_SHRINK(f32, f32)
EXPERT_LORA_SHRINK(f32, bf16)
EXPERT_LORA_SHRINK(f32, f16)
EXPERT_LORA_SHRINK(bf16, f32)
EXPERT_LORA_SHRINK(bf16, bf16)
EXPERT_LORA_SHRINK(bf16, f16)
EXPERT_LORA_SHRINK(f16, f32)
EXPERT_LORA_SHRINK(f16, bf16)
EXPERT_LORA_SHRINK(f16, f16)
EXPERT_LORA_EXPAND(f32, f32)
EXPERT_LORA_EXPAND(f32, bf16)
EXPERT_LORA_EXPAND(f32, f16)
EXPERT_LORA_EXPAND(bf16, f32)
EXPERT_LORA_EXPAND(bf16, bf16)
EXPERT_LORA_EXPAND(bf16, f16)
EXPERT_LORA_EXPAND(f16, f32)
EXPERT_LORA_EXPAND(f16, bf16)
EXPERT_LORA_EXPAND(f16, f16)
