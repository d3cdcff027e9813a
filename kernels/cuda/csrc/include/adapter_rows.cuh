// Rows of adapters on tensor cores: groups of rows of one slot, and what `lora_expand.cu` and `lora_gate.cu` share.
// Rows and adapters are of one 16-bit type. Slots, ranks and groups are read from the device, so that a captured step
// serves other adapters. The order of a sum depends on its length alone.
#pragma once
#include "mma.cuh"

// Ranks that a product of tensor cores sums over, and rows of one.
constexpr u32 RANKS = 16;
// Warps of a block that expands: each has outputs of its own.
constexpr u32 EXPANDERS = 4;

// Rows of one slot: `order[first]` and those that follow it.
struct Group { u32 slot, first, count; };

// The groups of a step's rows, and ranks of a layer's slots. `src/layers/lora.rs` has its twin.
struct AdapterRows {
    const Group* groups;
    const u32* order;
    const u32* ranks; // [slots][parts]
    u32 count; // of groups, those without rows included
    u32 rows;
    u32 parts;
    u32 max_rank;

    DEVICE u32 rank(u32 slot, u32 part) const { return slot == NO_ADAPTER ? 0 : ranks[slot * parts + part]; }
};
SAME_LAYOUT(AdapterRows, AdapterRows);

// For blocks that have nothing to wait for: that one block of a kernel has waited is enough for those after it.
DEVICE void wait_for_one() {
    if (blockIdx.x == 0 && blockIdx.y == 0) wait_for_inputs();
}

// A number in two of a type, of which the second is what the first leaves.
template <typename T> DEVICE f32 bounded(f32 x) { return x; }
template <> DEVICE f32 bounded<f16>(f32 x) { return fminf(fmaxf(x, -65504.0f), 65504.0f); }

template <typename T> DEVICE void halves(f32 x, f32 y, u32& high, u32& low) {
    x = bounded<T>(x), y = bounded<T>(y);
    high = Tensor<T>::pack(x, y);
    const T* pair = (const T*)&high;
    low = Tensor<T>::pack(x - load(pair[0]), y - load(pair[1]));
}

// What a lane has of the products of RANKS * PIECES rows and 8 * N outputs: of row `lane / 4`, and 8 after it, the
// outputs from 2 * N * (lane % 4) on.
template <u32 PIECES, u32 N> struct Deltas {
    f32 c[PIECES][N][4];

    DEVICE Deltas() {
#pragma unroll
        for (u32 r = 0; r < PIECES; r++)
#pragma unroll
            for (u32 i = 0; i < N; i++)
#pragma unroll
                for (u32 e = 0; e < 4; e++) c[r][i][e] = 0.0f;
    }

    DEVICE f32 of(u32 r, u32 half, u32 output) const { return c[r][output / 2][2 * half + output % 2]; }
};

// Weights of 8 * N outputs from `first` on, of `outputs`, and RANKS of their ranks from `j` on.
template <typename T, u32 N> struct Weights {
    u32 pairs[N][2];

    DEVICE void load(const T* b, u32 rank, u32 outputs, u32 first, u32 j) {
        const u32 column = threadIdx.x % 32 / 4, k = j + threadIdx.x % 4 * 4;
#pragma unroll
        for (u32 i = 0; i < N; i++) {
            const u32 output = first + 2 * N * (column / 2) + 2 * i + column % 2;
            const T* from = b + (u64)output * rank + k;
            if (output >= outputs || k >= rank) {
                pairs[i][0] = pairs[i][1] = 0;
            } else if (rank % 4 == 0) {
                const uint2 four = *(const uint2*)from;
                pairs[i][0] = four.x, pairs[i][1] = four.y;
            } else {
                T four[4];
#pragma unroll
                for (u32 e = 0; e < 4; e++) four[e] = k + e < rank ? from[e] : T{0};
                pairs[i][0] = four[0].bits | (u32)four[1].bits << 16;
                pairs[i][1] = four[2].bits | (u32)four[3].bits << 16;
            }
        }
    }
};

// Shrunk rows: [splits][rows][parts][max_rank].
struct Shrunk {
    const f32* from;
    u32 splits;

    // Four numbers of a row from `k` on, summed over the splits.
    DEVICE void load(const AdapterRows& adapters, u32 row, u32 part, u32 k, u32 rank, f32 (&sums)[4]) const {
#pragma unroll
        for (u32 e = 0; e < 4; e++) sums[e] = 0.0f;
        if (k >= rank) return;
        const u64 stride = (u64)adapters.rows * adapters.parts * adapters.max_rank;
        const f32* at = from + ((u64)row * adapters.parts + part) * adapters.max_rank + k;
#pragma unroll 4
        for (u32 split = 0; split < splits; split++) {
            const float4 four = *(const float4*)(at + split * stride);
            sums[0] += four.x, sums[1] += four.y, sums[2] += four.z, sums[3] += four.w;
        }
#pragma unroll
        for (u32 e = 0; e < 4; e++)
            if (k + e >= rank) sums[e] = 0.0f;
    }
};

// RANKS shrunk numbers of a block's rows, in shared memory, each in two.
template <typename T, u32 PIECES> struct Staged {
    uint2 high[RANKS * PIECES][4], low[RANKS * PIECES][4];

    // Whose four numbers this thread brings, of those from `first` on: a row of the step, or none.
    DEVICE static u32 row(const AdapterRows& adapters, const Group& group, u32 first) {
        const u32 index = (threadIdx.x - first) / 4;
        return index < group.count && index < RANKS * PIECES ? adapters.order[group.first + index] : NO_ADAPTER;
    }

    DEVICE void fill(
        const Shrunk& shrunk, const AdapterRows& adapters, u32 row, u32 part, u32 j, u32 rank, u32 first) {
        if (row == NO_ADAPTER) return;
        const u32 index = (threadIdx.x - first) / 4, four = threadIdx.x % 4;
        f32 sums[4];
        shrunk.load(adapters, row, part, j + 4 * four, rank, sums);
        uint2 high, low;
        halves<T>(sums[0], sums[1], high.x, low.x);
        halves<T>(sums[2], sums[3], high.y, low.y);
        this->high[index][four] = high;
        this->low[index][four] = low;
    }

    // Adds products with weights. Rows past the group's last hold anything: each has sums of its own.
    template <u32 N> DEVICE void multiply(const Weights<T, N>& weights, Deltas<PIECES, N>& deltas) const {
        const u32 row = threadIdx.x % 32 / 4, four = threadIdx.x % 4;
#pragma unroll
        for (u32 r = 0; r < PIECES; r++) {
            const uint2 h0 = high[RANKS * r + row][four], h1 = high[RANKS * r + row + 8][four];
            const uint2 l0 = low[RANKS * r + row][four], l1 = low[RANKS * r + row + 8][four];
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                const u32 (&w)[2] = weights.pairs[i];
                Tensor<T>::multiply(deltas.c[r][i], h0.x, h1.x, h0.y, h1.y, w[0], w[1]);
                Tensor<T>::multiply(deltas.c[r][i], l0.x, l1.x, l0.y, l1.y, w[0], w[1]);
            }
        }
    }
};

// A lane's rows of a group, of the step; those past its last are none.
template <u32 PIECES> struct RowsOf {
    u32 at[PIECES][2];

    DEVICE RowsOf(const AdapterRows& adapters, const Group& group) {
#pragma unroll
        for (u32 r = 0; r < PIECES; r++)
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 index = RANKS * r + 8 * half + threadIdx.x % 32 / 4;
                at[r][half] = index < group.count ? adapters.order[group.first + index] : NO_ADAPTER;
            }
    }
};

// Elements of a row, 16 bytes at a time where rows and places are multiples of that.
template <typename Out, u32 COUNT> struct Elements {
    Out at[COUNT];

    DEVICE void load(const Out* from, u32 left, bool whole) {
        if (whole) {
#pragma unroll
            for (u32 i = 0; i < COUNT * sizeof(Out) / 16; i++) ((uint4*)at)[i] = ((const uint4*)from)[i];
        } else {
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) at[i] = i < left ? from[i] : Out{};
        }
    }

    DEVICE void store(Out* to, u32 left, bool whole) const {
        if (whole) {
#pragma unroll
            for (u32 i = 0; i < COUNT * sizeof(Out) / 16; i++) ((uint4*)to)[i] = ((const uint4*)at)[i];
        } else {
#pragma unroll
            for (u32 i = 0; i < COUNT; i++)
                if (i < left) to[i] = at[i];
        }
    }
};
