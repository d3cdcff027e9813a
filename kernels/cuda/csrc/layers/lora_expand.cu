// Adapters of a layer by tensor cores: the second half, added to the layer's outputs.
#ifndef TYPE
#define TYPE bf16
#define ROW_TILES 1
#define WIDE 0
#endif
#include "adapter_rows.cuh"

// A group and a warp's weights for it, which come while others are multiplied.
template <typename T, u32 N> struct Ahead {
    Group group;
    u32 index, rank;
    const T* from;
    Weights<T, N> weights;

    // The next group from `index` on with an adapter of this part; false if there is none.
    DEVICE bool find(const AdapterRows& adapters, const T* b, u32 part, u32 begin, u32 outputs, u32 all, u32 first) {
        for (; index < adapters.count; index += gridDim.y) {
            group = adapters.groups[index];
            if (group.slot == NO_ADAPTER) return false;
            rank = adapters.rank(group.slot, part);
            if (rank == 0) continue;
            from = b + ((u64)group.slot * all + begin) * adapters.max_rank;
            weights.load(from, rank, outputs, first, 0);
            index += gridDim.y;
            return true;
        }
        return false;
    }
};

// out[row][o] += shrunk[row][part of o] . b[slot][o]: blocks (outputs, groups), where a warp takes 8 * N outputs of one
// part and RANKS * TILES rows of every `gridDim.y`th group. `ends` is where each part's outputs end.
template <typename T, typename Out, u32 TILES>
DEVICE void expand(
    const Shrunk& shrunk, const T* b, const AdapterRows& adapters, const u32* ends, Out* out, u32 all) {
    constexpr u32 N = 4, OWN = 2 * N, BLOCK = 8 * N * EXPANDERS;
    __shared__ Staged<T, TILES> staged;
    launch_dependents();
    u32 block = blockIdx.x, part = 0, begin = 0;
    while (block >= (ends[part] - begin + BLOCK - 1) / BLOCK) {
        block -= (ends[part] - begin + BLOCK - 1) / BLOCK;
        begin = ends[part++];
    }
    const u32 outputs = ends[part] - begin, first = block * BLOCK + threadIdx.x / 32 * 8 * N;
    const u32 own = first + threadIdx.x % 4 * OWN, left = own < outputs ? outputs - own : 0;
    const bool whole = left >= OWN && all % 8 == 0 && begin % 8 == 0;
    Ahead<T, N> ahead;
    ahead.index = blockIdx.y;
    bool more = ahead.find(adapters, b, part, begin, outputs, all, first), waited = false;
    while (more) {
        const Group group = ahead.group;
        const u32 rank = ahead.rank;
        const T* from = ahead.from;
        Weights<T, N> weights = ahead.weights;
        const RowsOf<TILES> rows(adapters, group);
        const u32 brought = staged.row(adapters, group, 0);
        // Weights come while the kernel before this one ends.
        if (!waited) wait_for_inputs();
        waited = true;
        Elements<Out, OWN> kept[TILES][2];
#pragma unroll
        for (u32 r = 0; r < TILES; r++)
#pragma unroll
            for (u32 half = 0; half < 2; half++)
                if (rows.at[r][half] != NO_ADAPTER)
                    kept[r][half].load(out + (u64)rows.at[r][half] * all + begin + own, left, whole);
        more = ahead.find(adapters, b, part, begin, outputs, all, first);
        Deltas<TILES, N> deltas;
        for (u32 j = 0; j < rank; j += RANKS) {
            if (j > 0) weights.load(from, rank, outputs, first, j);
            __syncthreads();
            staged.fill(shrunk, adapters, brought, part, j, rank, 0);
            __syncthreads();
            staged.multiply(weights, deltas);
        }
#pragma unroll
        for (u32 r = 0; r < TILES; r++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                if (rows.at[r][half] == NO_ADAPTER) continue;
                Elements<Out, OWN>& elements = kept[r][half];
#pragma unroll
                for (u32 e = 0; e < OWN; e++)
                    elements.at[e] = Cast<Out>::from(load(elements.at[e]) + deltas.of(r, half, e));
                elements.store(out + (u64)rows.at[r][half] * all + begin + own, left, whole);
            }
    }
    if (!waited) wait_for_one();
}

#if WIDE
typedef f32 Out;
#else
typedef TYPE Out;
#endif

extern "C" __global__ void __launch_bounds__(32 * EXPANDERS) lora_expand(
    const f32* shrunk, u32 splits, const TYPE* b, AdapterRows adapters, const u32* ends, Out* out, u32 all) {
    expand<TYPE, Out, ROW_TILES>({shrunk, splits}, b, adapters, ends, out, all);
}
