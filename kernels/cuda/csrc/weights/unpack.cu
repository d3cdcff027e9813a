// Weights of 4 or 8 bits as the 16-bit numbers that they stand for, [n, k]: what products of many rows read.
#include "packed.cuh"

// 8 neighbours of a row; fewer where the row ends, which is no multiple of 8 then.
template <typename T> DEVICE void put(T* to, const T (&values)[8], u32 columns, u32 k) {
    if (columns >= 8 && k % 8 == 0) *(uint4*)to = *(const uint4*)values;
    else
        for (u32 i = 0; i < 8 && i < columns; i++) to[i] = values[i];
}

// Up to 8 neighbours of a row that have groups of their own. Not unrolled: 64 copies took the compiler half a minute.
template <typename T> DEVICE void unpack_apart(T* to, const PackedWeights& w, u32 row, u32 column) {
#pragma unroll 1
    for (u32 i = 0; i < 8 && column + i < w.k; i++)
        to[i] = Cast<T>::from(Group(w, row, column + i).value(w, code_at(w, row, column + i)));
}

// A thread has what a lane of a product reads of a piece: 16 columns or 32 of two rows. Eight neighbours are of one
// group where groups are multiples of 8, otherwise each is asked for its own.
template <typename T> DEVICE void unpack(T* to, const PackedWeights& w, u64 lanes) {
    const u32 pieces = w.pieces(), chunks = w.chunks();
    const bool shares = w.group % 8 == 0;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < lanes; at += (u64)gridDim.x * blockDim.x) {
        const u32 lane = at % 32, g = lane / 4, t = lane % 4;
        const u64 block = at / 32;
        const u32 piece = block % pieces, chunk = block / pieces % chunks, tile = block / pieces / chunks;
        const uint4 codes = w.codes[at];
        const u32 words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (u32 part = 0; part < 4; part++) {
            const u32 r = part % 2, h = pieces == 2 ? piece : part / 2;
            const u32 row = tile * TILE_ROWS + g + 8 * r, column = chunk * CHUNK + 32 * h + 8 * t;
            if (row >= w.n || column >= w.k || (pieces == 2 && part >= 2)) continue;
            T* line = to + (u64)row * w.k + column;
            if (!shares) {
                unpack_apart(line, w, row, column);
                continue;
            }
            const Group group(w, row, column);
            __align__(16) T values[8];
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                const u32 p = i / 2 % 2, e = i % 2;
                u32 code;
                if (pieces == 1) code = words[2 * (part / 2) + i / 4] >> (4 * (2 * p + r) + 16 * e) & 15u;
                else code = words[2 * (i / 4) + p] >> 8 * (2 * e + r) & 0xffu;
                values[i] = Cast<T>::from(group.value(w, code));
            }
            put(line, values, w.k - column, w.k);
        }
    }
}

#define UNPACK_OF(T) \
    extern "C" __global__ void __launch_bounds__(256) unpack_##T(T* to, const PackedWeights w, u64 lanes) { \
        unpack(to, w, lanes); \
    }

UNPACK_OF(bf16)
UNPACK_OF(f16)

// Codes of 8 bits row by row, [n, 4 * words], and the scale of each row: what products of codes of many rows read.
// Words of each 32 columns are in the order in which lanes have them; integers count from 0; rows end with codes of 0.
// A thread has what a lane of a product reads of a piece: eight columns of two rows.
extern "C" __global__ void __launch_bounds__(256) unpack_codes(
    u32* to, f32* scales, const PackedWeights w, u32 words, u64 lanes) {
    const u32 chunks = w.chunks(), flip = flip_of(w.code);
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < lanes; at += (u64)gridDim.x * blockDim.x) {
        const u32 lane = at % 32, g = lane / 4, t = lane % 4, h = at / 32 % 2;
        const u32 chunk = at / 64 % chunks, tile = at / 64 / chunks;
        const uint4 codes = w.codes[at];
        const u32 from[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            const u32 row = tile * TILE_ROWS + g + 8 * r;
            if (row >= w.n) continue;
            u32* line = to + (u64)row * words + chunk * (CHUNK / 4) + 8 * h + t;
#pragma unroll
            for (u32 i = 0; i < 2; i++) line[4 * i] = row_codes(from[2 * i], from[2 * i + 1], r) ^ flip;
            if (chunk == 0 && h == 0 && t == 0) scales[row] = load_scale(w.scales, w.scale, w.scale_index(row, 0));
            // Where the last chunk is the first half of what a product takes at a time.
            if (chunk + 1 == chunks && chunks % 2)
#pragma unroll
                for (u32 i = 0; i < 2; i++) line[CHUNK / 4 + 4 * i] = 0;
        }
    }
}
