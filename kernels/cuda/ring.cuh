// How a warp's KEYS keys, or values, of a tile lie in shared memory, and how 8-bit ones get there. For `attention_decode.cu`.
#pragma once
#include "decode.cuh"
#include "mma.cuh"

// A key or value in shared memory. The 8 rows of a matrix must lie in different banks: 16-byte pieces are swizzled if a row is a multiple
// of 128 bytes, else rows are padded.
template <int WIDTH>
struct Row {
    static const bool SWIZZLED = WIDTH % 64 == 0;
    static const u32 BYTES = SWIZZLED ? 2 * WIDTH : 2 * WIDTH + 16;
    DEVICE static u32 at(u32 row, u32 piece) { return row * BYTES + (SWIZZLED ? piece ^ row % 8 : piece) * 16; }
};

// Eight numbers at a time of a warp's rows, from row `first` of a sequence on, into its lanes' registers; zeros where nobody sees a row.
template <int WIDTH, u32 COUNT>
DEVICE void load_rows(const Cursor& at, u32 first, const e4m3* from, uint2 (&pieces)[COUNT]) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
        const u32 piece = 32 * i + threadIdx.x % 32, key = first + piece / (WIDTH / 8);
        const bool valid = piece < KEYS * WIDTH / 8 && key >= at.begin && key < at.end;
        pieces[i] = valid ? __ldcg((const uint2*)(from + piece * 8)) : make_uint2(0, 0);
    }
}

// The same into shared memory, widened.
template <typename T, int WIDTH, u32 COUNT>
DEVICE void store_rows(const uint2 (&pieces)[COUNT], u32 to) {
#pragma unroll
    for (u32 i = 0; i < COUNT; i++) {
        const u32 piece = 32 * i + threadIdx.x % 32;
        if (KEYS * WIDTH / 8 % 32 == 0 || piece < KEYS * WIDTH / 8)
            store_shared(to + Row<WIDTH>::at(piece / (WIDTH / 8), piece % (WIDTH / 8)), widen<T>(pieces[i]));
    }
}
