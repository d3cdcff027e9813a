// Adapters of a layer by tensor cores: the first half. `lora_expand.cu` and `lora_gate.cu` have the second.
#ifndef TYPE
#define TYPE bf16
#define ROW_TILES 2
#endif
#include "adapter_rows.cuh"

// Warps of a block: each has a share of the inputs.
constexpr u32 SHARES = 8;
// Inputs of a warp's step.
constexpr u32 STEP = 64;

DEVICE uint4 load_if(const void* from, bool valid) { return valid ? *(const uint4*)from : make_uint4(0, 0, 0, 0); }

// A lane's 16 bytes, from `at` and from 32 after it on, of each of N rows; zeros from `end` on.
template <typename T, u32 N> DEVICE void load_step(uint4 (&x)[2][N], const T* const (&rows)[N], u32 at, u32 end) {
#pragma unroll
    for (u32 s = 0; s < 2; s++)
#pragma unroll
        for (u32 i = 0; i < N; i++) x[s][i] = load_if(rows[i] + at + 32 * s, at + 32 * s < end);
}

// shrunk[split][row][part][j] = the split's share of x[row] . a[slot][part][j]: blocks (parts of the output and inputs,
// groups), where a block takes RANKS outputs of at most 8 * TILES rows of every `gridDim.y`th group. A split has
// `length` inputs. Where `gridDim.x` leaves splits to no block of their own, each block sums all of them.
template <typename T, u32 TILES>
DEVICE void shrink(const T* x, const T* a, const AdapterRows& adapters, f32* shrunk, u32 inputs, u32 length) {
    constexpr u32 ROWS = 8 * TILES, EACH = RANKS * ROWS / (32 * SHARES);
    __shared__ f32 shares[SHARES][RANKS][ROWS];
    launch_dependents();
    const u32 tiles = (adapters.max_rank + RANKS - 1) / RANKS, tile = blockIdx.x % (adapters.parts * tiles);
    const u32 part = tile / tiles, j = tile % tiles * RANKS, splits = (inputs + length - 1) / length;
    const bool alone = gridDim.x == adapters.parts * tiles;
    const u32 first_split = alone ? 0 : blockIdx.x / (adapters.parts * tiles);
    const u32 end_split = alone ? splits : first_split + 1, share = length / SHARES;
    const u32 warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 8;
    bool waited = false;
    for (u32 index = blockIdx.y; index < adapters.count; index += gridDim.y) {
        const Group group = adapters.groups[index];
        if (group.slot == NO_ADAPTER) break;
        const u32 rank = adapters.rank(group.slot, part);
        if (j >= rank) continue;
        // What is past the last rank or row is computed from the last, and not kept.
        const T* weights[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u64 first = ((u64)group.slot * adapters.parts + part) * adapters.max_rank;
            weights[i] = a + (first + min(j + 8 * i + row, rank - 1)) * inputs;
        }
        const T* from[TILES];
#pragma unroll
        for (u32 i = 0; i < TILES; i++)
            from[i] = x + (u64)adapters.order[group.first + min(8 * i + row, group.count - 1)] * inputs;
        f32 total[EACH];
#pragma unroll
        for (u32 e = 0; e < EACH; e++) total[e] = 0.0f;
        for (u32 split = first_split; split < end_split; split++) {
            const u32 begin = split * length + warp * share, end = min(begin + share, inputs);
            f32 c[TILES][4] = {};
            // Two steps' weights are under way; the first of them come while the kernel before this one ends.
            uint4 w[2][2][2];
#pragma unroll
            for (u32 turn = 0; turn < 2; turn++) load_step(w[turn], weights, begin + STEP * turn + column, end);
            if (!waited) wait_for_inputs();
            waited = true;
            for (u32 at = begin; at < end; at += 2 * STEP) {
                uint4 v[2][2][TILES];
#pragma unroll
                for (u32 turn = 0; turn < 2; turn++) load_step(v[turn], from, at + STEP * turn + column, end);
#pragma unroll
                for (u32 turn = 0; turn < 2; turn++) {
#pragma unroll
                    for (u32 s = 0; s < 2; s++)
#pragma unroll
                        for (u32 i = 0; i < TILES; i++) {
                            const uint4 (&a)[2] = w[turn][s];
                            const uint4& x = v[turn][s][i];
                            // The same places of both are multiplied, whichever they are in the tile.
                            Tensor<T>::multiply(c[i], a[0].x, a[1].x, a[0].y, a[1].y, x.x, x.y);
                            Tensor<T>::multiply(c[i], a[0].z, a[1].z, a[0].w, a[1].w, x.z, x.w);
                        }
                    load_step(w[turn], weights, at + STEP * (turn + 2) + column, end);
                }
            }
            const u32 to = threadIdx.x % 4 * 2;
#pragma unroll
            for (u32 i = 0; i < TILES; i++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) shares[warp][row + e / 2 * 8][8 * i + to + e % 2] = c[i][e];
            __syncthreads();
#pragma unroll
            for (u32 e = 0; e < EACH; e++) {
                const u32 at = threadIdx.x + 32 * SHARES * e;
                f32 sum = 0.0f;
#pragma unroll
                for (u32 share = 0; share < SHARES; share++) sum += shares[share][at / ROWS][at % ROWS];
                total[e] += sum;
            }
            __syncthreads();
        }
        const u64 stored = alone ? 0 : first_split;
#pragma unroll
        for (u32 e = 0; e < EACH; e++) {
            const u32 at = threadIdx.x + 32 * SHARES * e, output = j + at / ROWS;
            if (at % ROWS >= group.count || output >= rank) continue;
            const u64 to = stored * adapters.rows + adapters.order[group.first + at % ROWS];
            shrunk[(to * adapters.parts + part) * adapters.max_rank + output] = total[e];
        }
    }
    if (!waited) wait_for_one();
}

extern "C" __global__ void __launch_bounds__(32 * SHARES) lora_shrink(
    const TYPE* x, const TYPE* a, AdapterRows adapters, f32* shrunk, u32 inputs, u32 length) {
    shrink<TYPE, ROW_TILES>(x, a, adapters, shrunk, inputs, length);
}
