// Codes and scales as files have them, row by row, in the order of `packed.cuh`.
#include "packed.cuh"

// The code at a row and column of row-major codes, or 0 outside; of 4 bits the low half comes first.
DEVICE u32 source_code(const u8* from, const PackedWeights& w, u32 pitch, u32 row, u32 column) {
    if (row >= w.n || column >= w.k) return 0;
    if (w.pieces() == 2) return from[(u64)row * pitch + column];
    return from[(u64)row * pitch + column / 2] >> (column % 2 * 4) & 15u;
}

// A thread makes a word. `pitch`: bytes from one row to the next.
extern "C" __global__ void __launch_bounds__(256) pack_codes(
    u32* to, const u8* from, const PackedWeights w, u32 pitch, u64 words) {
    const u32 pieces = w.pieces(), chunks = w.chunks();
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < words; at += (u64)gridDim.x * blockDim.x) {
        const u32 word = at % 4, lane = at / 4 % 32, g = lane / 4, t = lane % 4;
        const u64 block = at / 128;
        const u32 piece = block % pieces;
        const u32 chunk = block / pieces % chunks, tile = block / pieces / chunks;
        u32 bits = 0;
        if (pieces == 1) {
            for (u32 nibble = 0; nibble < 8; nibble++) {
                const u32 r = nibble % 2, p = nibble / 2 % 2, e = nibble / 4;
                const u32 column = chunk * CHUNK + word / 2 * 32 + 8 * t + word % 2 * 4 + 2 * p + e;
                bits |= source_code(from, w, pitch, tile * TILE_ROWS + g + 8 * r, column) << 4 * nibble;
            }
        } else {
            for (u32 byte = 0; byte < 4; byte++) {
                const u32 r = byte % 2, e = byte / 2, i = word / 2, p = word % 2;
                const u32 column = chunk * CHUNK + piece * 32 + 8 * t + 4 * i + 2 * p + e;
                bits |= source_code(from, w, pitch, tile * TILE_ROWS + g + 8 * r, column) << 8 * byte;
            }
        }
        to[at] = bits;
    }
}

// A thread moves a number of `size` bytes from [n, groups] to its place; rows past the last get zeros.
template <typename T> DEVICE void pack_side(T* to, const T* from, const PackedWeights& w, u64 count) {
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (u64)gridDim.x * blockDim.x) {
        const u64 row = at / w.groups, group = at % w.groups;
        to[w.scale_index(row, group)] = row < w.n ? from[at] : (T)0;
    }
}

extern "C" __global__ void __launch_bounds__(256) pack_sides(
    void* to, const void* from, const PackedWeights w, u32 size, u64 count) {
    if (size == 1) pack_side((u8*)to, (const u8*)from, w, count);
    else if (size == 2) pack_side((u16*)to, (const u16*)from, w, count);
    else pack_side((u32*)to, (const u32*)from, w, count);
}

// Scales of rows that share them: row r of `to` is row `rows[r]` of `from`.
extern "C" __global__ void __launch_bounds__(256) pack_shared_scales(
    f32* to, const f32* from, const u32* rows, const PackedWeights w, u64 count) {
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (u64)gridDim.x * blockDim.x) {
        const u64 row = at / w.groups, group = at % w.groups;
        to[w.scale_index(row, group)] = row < w.n ? from[(u64)rows[row] * w.groups + group] : 0.0f;
    }
}
