// Rows as products with quantized weights read them: what `prepare_input.cu` makes of rows that are there, and kernels
// that make rows write beside them.
//
// Codes of 8 bits: four neighbours are a word; words of each 32 columns are in the order in which packed weights have
// theirs (packed.cuh). Numbers of 16 bits: two neighbours are a word, and words of each chunk of 64 columns are in the
// same order. Rows end with zeros, up to whole chunks.
#pragma once
#include "quire.cuh"

// What columns are rounded to: nothing, 8-bit floats, or integers.
constexpr u32 TO_NOTHING = 0, TO_E4M3 = 1, TO_INT8 = 2;

struct InputShape {
    // Column i of the result is column columns[i]; null: i.
    const u32* columns;
    u32 k;
    u32 to;
    // Columns that share a scale, which is made of their largest; 0: all columns have `scale`.
    u32 group;
    f32 scale;
    // Elements of at least this size, where scales are made of elements, stay as they are and do not count.
    f32 outliers;
};
SAME_LAYOUT(InputShape, InputShape);

// Where a kernel that makes rows writes them for a product, too: as codes, with a scale a row, or as numbers.
struct PreparedRows {
    // Null: nowhere.
    u32* to;
    // Null: numbers.
    f32* scales;
    InputShape shape;
    // Of a row.
    u32 words;
};
SAME_LAYOUT(PreparedRows, PreparedRows);

DEVICE f32 largest_code(const InputShape& shape) { return shape.to == TO_INT8 ? 127.0f : 448.0f; }

// Where a word of codes goes, and one of numbers.
DEVICE u32 code_place(u32 word) { return word / 8 * 8 + word % 2 * 4 + word % 8 / 2; }
DEVICE u32 pair_place(u32 word) { return word / 16 * 16 + word % 4 * 4 + word % 16 / 4; }

#if __CUDA_ARCH__ >= 900
// Four numbers as codes times a scale, in a word.
DEVICE u32 codes_of(const f32 (&x)[4], f32 scale, u32 to) {
    f32 levels[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) levels[i] = scale == 0.0f ? 0.0f : x[i] / scale;
    if (to == TO_E4M3) {
        u16 pairs[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
                : "=h"(pairs[i])
                : "f"(levels[2 * i + 1]), "f"(levels[2 * i]));
        return pairs[0] | (u32)pairs[1] << 16;
    }
    u32 four = 0;
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        four |= ((u32)(int)fminf(fmaxf(rintf(levels[i]), -128.0f), 127.0f) & 0xffu) << 8 * i;
    return four;
}

// Writes four numbers of type T, of a row and columns from `at` on, that all have `scale` if they become codes.
template <typename T>
DEVICE void put_prepared(const PreparedRows& rows, u32 row, u32 at, const f32 (&x)[4], f32 scale) {
    u32* to = rows.to + (u64)row * rows.words;
    if (rows.scales) {
        to[code_place(at / 4)] = codes_of(x, scale, rows.shape.to);
        return;
    }
    __align__(8) T four[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) four[i] = Cast<T>::from(x[i]);
    const uint2 pairs = *(const uint2*)four;
    to += pair_place(at / 2);
    to[0] = pairs.x, to[4] = pairs.y;
}
#endif
