// Adapters of a layer by tensor cores: the second half of [gate | up], and the gate.
#ifndef TYPE
#define TYPE bf16
#define ROW_TILES 1
#endif
#include "activation.cuh"
#include "adapter_rows.cuh"

// A group and a warp's weights for it, which come while others are multiplied.
template <typename T, u32 N> struct Ahead {
    Group group;
    u32 ranks[2];
    Weights<T, N> weights[2];

    DEVICE static const T* of(const T* b, const AdapterRows& adapters, u32 slot, u32 part, u32 width) {
        return b + ((u64)slot * 2 + part) * width * adapters.max_rank;
    }

    // The group of this index; false if there are no more rows.
    DEVICE bool find(const AdapterRows& adapters, const T* b, u32 index, u32 width, u32 first) {
        if (index >= adapters.count) return false;
        group = adapters.groups[index];
        if (group.count == 0) return false;
#pragma unroll
        for (u32 part = 0; part < 2; part++) {
            ranks[part] = adapters.rank(group.slot, part);
            weights[part].load(of(b, adapters, group.slot, part, width), ranks[part], width, first, 0);
        }
        return true;
    }
};

// out = silu(gate) * up of rows [gate | up], deltas of both added first: blocks (outputs, groups), where a warp takes 8
// * N outputs and RANKS * TILES rows of every `gridDim.y`th group.
template <typename T, u32 TILES>
DEVICE void gate(
    const Shrunk& shrunk, const T* b, const AdapterRows& adapters, const T* gate_up, T* out, u32 width) {
    constexpr u32 N = 4, OWN = 2 * N;
    __shared__ Staged<T, TILES> staged[2];
    launch_dependents();
    const u32 first = (blockIdx.x * EXPANDERS + threadIdx.x / 32) * 8 * N, own = first + threadIdx.x % 4 * OWN;
    const u32 left = own < width ? width - own : 0, second = TILES == 1 ? 64 : 0;
    const bool whole = left >= OWN && width % 8 == 0;
    Ahead<T, N> ahead;
    u32 index = blockIdx.y;
    bool more = ahead.find(adapters, b, index, width, first), waited = false;
    while (more) {
        const Group group = ahead.group;
        const u32 ranks[2] = {ahead.ranks[0], ahead.ranks[1]};
        Weights<T, N> weights[2] = {ahead.weights[0], ahead.weights[1]};
        const RowsOf<TILES> rows(adapters, group);
        const u32 brought[2] = {staged[0].row(adapters, group, 0), staged[1].row(adapters, group, second)};
        // Weights come while the kernel before this one ends.
        if (!waited) wait_for_inputs();
        waited = true;
        Elements<T, OWN> kept[TILES][2][2];
#pragma unroll
        for (u32 r = 0; r < TILES; r++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                if (rows.at[r][half] == NO_ADAPTER) continue;
                const T* from = gate_up + (u64)rows.at[r][half] * 2 * width + own;
                kept[r][half][0].load(from, left, whole);
                kept[r][half][1].load(from + width, left, whole);
            }
        more = ahead.find(adapters, b, index += gridDim.y, width, first);
        Deltas<TILES, N> deltas[2];
        for (u32 j = 0; j < max(ranks[0], ranks[1]); j += RANKS) {
#pragma unroll
            for (u32 part = 0; part < 2; part++) {
                const T* from = ahead.of(b, adapters, group.slot, part, width);
                if (j > 0) weights[part].load(from, ranks[part], width, first, j);
            }
            __syncthreads();
            staged[0].fill(shrunk, adapters, brought[0], 0, j, ranks[0], 0);
            staged[1].fill(shrunk, adapters, brought[1], 1, j, ranks[1], second);
            __syncthreads();
#pragma unroll
            for (u32 part = 0; part < 2; part++) staged[part].multiply(weights[part], deltas[part]);
        }
#pragma unroll
        for (u32 r = 0; r < TILES; r++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                if (rows.at[r][half] == NO_ADAPTER) continue;
                Elements<T, OWN> gated;
#pragma unroll
                for (u32 e = 0; e < OWN; e++) {
                    const f32 x = load(kept[r][half][0].at[e]) + deltas[0].of(r, half, e);
                    const f32 y = load(kept[r][half][1].at[e]) + deltas[1].of(r, half, e);
                    gated.at[e] = Cast<T>::from(x * sigmoid_nearly(x) * y);
                }
                gated.store(out + (u64)rows.at[r][half] * width + own, left, whole);
            }
    }
    if (!waited) wait_for_one();
}

extern "C" __global__ void __launch_bounds__(32 * EXPANDERS) lora_gate(
    const f32* shrunk, u32 splits, const TYPE* b, AdapterRows adapters, const TYPE* gate_up, TYPE* out, u32 width) {
    gate<TYPE, ROW_TILES>({shrunk, splits}, b, adapters, gate_up, out, width);
}
