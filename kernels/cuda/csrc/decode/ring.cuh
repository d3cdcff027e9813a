// How a warp's KEYS keys, or values, of a tile lie in shared memory, and how they become operands of products there.
// For `attention_decode.cu`, which says what the cache keeps (Cached) and what products take (Operand).
#pragma once
#include "decode.cuh"
#include "mma.cuh"

// A key or value in shared memory. The 8 rows of a matrix must lie in different banks: 16-byte pieces are swizzled if a
// row is a multiple of 128 bytes, else rows are an odd number of pieces apart.
template <int WIDTH>
struct Row {
    static const u32 DATA = WIDTH * sizeof(Cached), PIECES = DATA / 16;
    static const bool SWIZZLED = DATA % 128 == 0;
    static const u32 BYTES = SWIZZLED || PIECES % 2 == 1 ? DATA : DATA + 16;
    DEVICE static u32 at(u32 row, u32 piece) { return row * BYTES + (SWIZZLED ? piece ^ row % 8 : piece) * 16; }
    // Where this lane's piece of 32 from piece `first` (a multiple of 32) of rows at `base` on goes. `base` is a
    // multiple of 128.
    DEVICE static u32 lane_at(u32 base, u32 first) {
        const u32 lane = threadIdx.x % 32;
        if (!SWIZZLED || 32 % PIECES != 0) return base + at((first + lane) / PIECES, (first + lane) % PIECES);
        // Those of rows further on differ in constants alone.
        const u32 rows = first / PIECES;
        return ((base + at(lane / PIECES, lane % PIECES)) ^ rows % 8 * 16) + rows * BYTES;
    }
};

#ifdef NARROW

// A product's operand has 16 elements of a row as pairs: lane 4 g + t has a first and a second pair. Which elements
// those are is free, if keys and queries agree: here 4 neighbours, which are 4 bytes of a key.
DEVICE u32 pair_of(u32 t, u32 second) { return 4 * t + 2 * second; }

// Which of 16 columns of values is row `row` of the operand that has columns as rows: a pair of bytes of 8 bits each is
// one element for the transposing load, so that even columns come first.
DEVICE u32 column_of(u32 row) { return row < 8 ? 2 * row : 2 * row - 15; }

template <typename T>
DEVICE u32 as_operand(u32 pair) { return to_f16<T>(pair); }

// Elements 16 k .. of 16 keys.
template <int WIDTH>
DEVICE void load_keys(u32 (&a)[4], u32 from, u32 k) {
    const u32 lane = threadIdx.x % 32;
    u32 x[2];
    load_two_matrices(x, from + Row<WIDTH>::at(lane % 16, k));
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        a[i] = widen_pair(x[i]);
        a[i + 2] = widen_pair(x[i] >> 16);
    }
}

// Columns 16 d .. of 16 values, transposed.
template <int WIDTH>
DEVICE void load_values(u32 (&a)[4], u32 from, u32 d) {
    const u32 lane = threadIdx.x % 32;
    u32 x[2];
    load_two_matrices_transposed(x, from + Row<WIDTH>::at(lane % 16, d));
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        // Both keys' bytes of the even column, then of the odd one.
        const u32 columns = __byte_perm(x[i], 0, 0x3120);
        a[2 * i] = widen_pair(columns);
        a[2 * i + 1] = widen_pair(columns >> 16);
    }
}

#else

DEVICE u32 pair_of(u32 t, u32 second) { return 2 * t + 8 * second; }
DEVICE u32 column_of(u32 row) { return row; }
template <typename T>
DEVICE u32 as_operand(u32 pair) { return pair; }

template <int WIDTH>
DEVICE void load_keys(u32 (&a)[4], u32 from, u32 k) {
    const u32 lane = threadIdx.x % 32;
    load_matrices(a, from + Row<WIDTH>::at(lane % 16, 2 * k + lane / 16));
}

template <int WIDTH>
DEVICE void load_values(u32 (&a)[4], u32 from, u32 d) {
    const u32 lane = threadIdx.x % 32;
    load_matrices_transposed(a, from + Row<WIDTH>::at(lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
}

#endif
