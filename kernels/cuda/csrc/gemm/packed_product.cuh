// What products with weights of 4 or 8 bits are compiled for and told, and scales as their lanes read them.
#pragma once
#include "packed.cuh"

// FORMAT: what codes mean, 8 times the type of scales, and 32 times what is subtracted or added (packed.cuh). GROUP:
// columns that share a scale, 0: all.
#ifndef FORMAT
#define FORMAT 8
#define GROUP 128
#endif

constexpr u32 CODE = FORMAT % 8, SCALE = FORMAT / 8 % 4, ZEROS = FORMAT / 32;
// Loads of 16 bytes for a chunk, and groups that it may have parts of.
constexpr u32 PIECES = CODE == INT8 || CODE == E4M3 ? 2 : 1, SPANS = GROUP % CHUNK == 0 ? 1 : 2;

struct PackedShape {
    u32 rows;
    u32 n;
    u32 k;
    // Whether to add to `out` instead of overwriting it.
    u32 accumulate;
    // Whether `out` is f32; else it has the input's type.
    u32 wide;
};
SAME_LAYOUT(PackedShape, GemmShape);

#if __CUDA_ARCH__ >= 800
// Scales of rows g and g + 8 of a tile, their zero points and their offsets, as they lie in memory.
struct Side {
    static constexpr bool IS_WIDE = SCALE == SCALE_F32;

    u32 scales[IS_WIDE ? 2 : 1], offsets[IS_WIDE ? 2 : 1], zeros;

    DEVICE static Side of(const PackedWeights& w, u32 tile, u32 group) {
        const u64 at = ((u64)tile * w.groups + group) * 8 + threadIdx.x % 32 / 4;
        Side side = {};
        if constexpr (IS_WIDE) *(uint2*)side.scales = ((const uint2*)w.scales)[at];
        else side.scales[0] = ((const u32*)w.scales)[at];
        if constexpr (ZEROS == ZERO_POINTS) side.zeros = ((const u16*)w.zeros)[at];
        if constexpr (ZEROS == OFFSETS && IS_WIDE) *(uint2*)side.offsets = ((const uint2*)w.zeros)[at];
        if constexpr (ZEROS == OFFSETS && !IS_WIDE) side.offsets[0] = ((const u32*)w.zeros)[at];
        return side;
    }

    // Of row g + 8 r.
    DEVICE f32 scale(u32 r) const { return number(scales, r); }
    DEVICE f32 offset(u32 r) const { return number(offsets, r); }
    // What is subtracted from its codes, where offsets are added to them as they are.
    DEVICE u32 zero(u32 r) const {
        constexpr u32 BASE = CODE == INT8 ? 128 : ZEROS == OFFSETS ? 0 : 8;
        return ZEROS == ZERO_POINTS ? zeros >> 8 * r & 0xffu : BASE;
    }

private:
    DEVICE static f32 number(const u32 (&two)[IS_WIDE ? 2 : 1], u32 r) {
        if constexpr (IS_WIDE) return __uint_as_float(two[r * (IS_WIDE ? 1 : 0)]);
        const u16 bits = (u16)(two[0] >> 16 * r);
        return SCALE == SCALE_F16 ? load(f16{bits}) : load(bf16{bits});
    }
};

// Where the group of a lane's columns of a chunk, or of a half of one, begins: lanes have groups of their own where
// those are shorter than 32.
DEVICE u32 side_column() { return GROUP % 32 ? threadIdx.x % 4 * 8 : 0; }

// What a row's codes of a group are multiplied by and what is added, for rows g and g + 8.
template <typename T> struct Scaling {
    // Whether numbers of type T hold scales.
    static constexpr bool IS_EXACT = SCALE == Pairs<T>::OWN_SCALE;
    // Codes of 4 bits count from 8 also where offsets are added, so that less is lost of what they differ by.
    static constexpr u32 MIDDLE_CODE = CODE == INT4 && ZEROS == OFFSETS ? 8 : 0;

    u32 shifts[2], high[2], low[2], offsets[2];

    DEVICE void set(const Side& side) {
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const f32 scale = side.scale(r) * FACTOR<T, CODE>, rounded = load(Cast<T>::from(scale));
            // Adding a negative zero changes nothing.
            const f32 offset = ZEROS == OFFSETS ? fmaf(scale, (f32)MIDDLE_CODE, side.offset(r)) : -0.0f;
            shifts[r] = row_shift<T, CODE>(side.zero(r) + MIDDLE_CODE);
            high[r] = Tensor<T>::pack(scale, scale);
            low[r] = Tensor<T>::pack(scale - rounded, scale - rounded);
            offsets[r] = Tensor<T>::pack(offset, offset);
        }
    }

    // Of operand registers: two of row g, at even places, and two of row g + 8.
    DEVICE void apply(u32 (&a)[4]) const {
#pragma unroll
        for (u32 at = 0; at < 4; at++) {
            u32 sum = offsets[at % 2];
            if constexpr (!IS_EXACT) sum = Pairs<T>::fma(a[at], low[at % 2], sum);
            a[at] = Pairs<T>::fma(a[at], high[at % 2], sum);
        }
    }
};

template <typename T> DEVICE void put(void* out, size_t to, f32 x, u32 wide) {
    if (wide) ((f32*)out)[to] = x;
    else ((T*)out)[to] = Cast<T>::from(x);
}

// Pairs of levels by pairs of codes, for a block: `table` has 256 words. A barrier has to follow.
template <typename T> DEVICE void make_table(const PackedWeights& w, u32* table) {
    for (u32 i = threadIdx.x; i < 256; i += blockDim.x) table[i] = Tensor<T>::pack(w.levels[i % 16], w.levels[i / 16]);
}
#endif
