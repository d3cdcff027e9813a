// out = x w^T (+ bias), or added to what is there, for weights that are 8-bit floats times scales.
// x is [rows, k], w is [n, k], out is [rows, n]. Of three versions the host chooses one (src/gemm/matmul_e4m3.rs):
//   skinny  up to 8 rows of 16 bits: a warp for each output reads its row of w once
//   tiles   rows of 16 bits: tensor cores; codes become 16-bit floats, which hold them exactly, in shared memory
//   plain   every type and shape, in f32: each element adds up its k products in order, whatever the other rows
#include "mma.cuh"
#include "simt_tile.cuh"

// The scale of code (n, k) is values[rows[n]][k / cols], `width` of them a row. src/gemm/matmul_e4m3.rs has its twin.
struct Scales {
    const f32* values;
    const u32* rows;
    u32 cols;
    u32 width;
};
SAME_LAYOUT(Scales, Scales);

DEVICE f32 scale_at(const Scales& scales, u32 n, u32 k) {
    const f32* line = scales.values + (u64)scales.rows[n] * scales.width;
    return line[scales.width > 1 ? k / scales.cols : 0];
}

// What every version is told: types are X and Out.
#define PRODUCT \
    const X *x, const e4m3 *w, Scales scales, const f32 *bias, Out *out, u32 rows, u32 n, u32 k, u32 accumulate

template <typename X, typename Out>
DEVICE void plain(PRODUCT) {
    simt_tile(
        x, rows, n, k, [=](u32 col, u32 at) { return load(w[(u64)col * k + at]) * scale_at(scales, col, at); },
        [=](u32 row, u32 col, f32 sum) { finish(out + (u64)row * n + col, sum, bias, col, accumulate); });
}

#define PLAIN_OF(X, OUT) \
    extern "C" __global__ void __launch_bounds__(256) matmul_e4m3_plain_##X##_##OUT( \
        const X* x, const e4m3* w, Scales scales, const f32* bias, OUT* out, u32 rows, u32 n, u32 k, u32 accumulate) { \
        plain(x, w, scales, bias, out, rows, n, k, accumulate); \
    }

PLAIN_OF(f32, f32)
PLAIN_OF(f32, bf16)
PLAIN_OF(f32, f16)
PLAIN_OF(bf16, f32)
PLAIN_OF(bf16, bf16)
PLAIN_OF(f16, f32)
PLAIN_OF(f16, f16)

#if __CUDA_ARCH__ >= 800
constexpr u32 OUTPUTS = 8; // outputs (and warps) of a block
constexpr u32 PIECE = 16;  // codes that a lane reads at a time

// k is a multiple of PIECE, and so are the columns that share a scale.
template <typename X, typename Out, u32 ROWS>
DEVICE void skinny(PRODUCT) {
    const u32 lane = threadIdx.x % 32, col = blockIdx.x * OUTPUTS + threadIdx.x / 32;
    if (col >= n) return;
    const e4m3* line = w + (u64)col * k;
    f32 sums[ROWS] = {};
    for (u32 at = lane * PIECE; at < k; at += 32 * PIECE) {
        const uint4 codes = load_streamed(line + at);
        const u32 parts[4] = {codes.x, codes.y, codes.z, codes.w};
        const f32 scale = scale_at(scales, col, at);
        f32 ws[PIECE];
#pragma unroll
        for (u32 i = 0; i < PIECE / 2; i++) {
            const u32 pair = widen_pair(parts[i / 2] >> (i % 2 * 16) & 0xffffu);
            ws[2 * i] = load(f16{(u16)pair});
            ws[2 * i + 1] = load(f16{(u16)(pair >> 16)});
        }
#pragma unroll
        for (u32 row = 0; row < ROWS; row++) {
            if (row >= rows) break;
            X xs[PIECE];
            const uint4* from = (const uint4*)(x + (u64)row * k + at);
            ((uint4*)xs)[0] = from[0];
            ((uint4*)xs)[1] = from[1];
            f32 part = 0.0f;
#pragma unroll
            for (u32 i = 0; i < PIECE; i++) part = fmaf(load(xs[i]), ws[i], part);
            sums[row] = fmaf(part, scale, sums[row]);
        }
    }
#pragma unroll
    for (u32 row = 0; row < ROWS; row++) {
        const f32 sum = warp_sum(sums[row]);
        if (lane == 0 && row < rows) finish(out + (u64)row * n + col, sum, bias, col, accumulate);
    }
}

constexpr u32 TILE = 64;         // rows, columns and k of a block's tile
constexpr u32 PITCH = TILE + 8;  // elements from one row of a tile to the next: eight rows begin in different banks

// k is a multiple of 16; the columns that share a scale are a multiple of TILE.
template <typename X, typename Out>
DEVICE void tiles(PRODUCT) {
    __shared__ __align__(16) X xs[TILE][PITCH], ws[TILE][PITCH];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u32 first_row = blockIdx.y * TILE, first_col = blockIdx.x * TILE;
    const u32 my_row = warp / 2 * 32, my_col = warp % 2 * 32;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    f32 total[2][4][4] = {}, sums[2][4][4] = {};
    for (u32 step = 0; step < k; step += TILE) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 piece = threadIdx.x + i * 128, line = piece / 8, at = piece % 8 * 8;
            const bool inside = first_row + line < rows && step + at < k;
            *(uint4*)&xs[line][at] = inside ? *(const uint4*)(x + (u64)(first_row + line) * k + step + at) : zero;
        }
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 piece = threadIdx.x + i * 128, line = piece / 4, at = piece % 4 * 16;
            const bool inside = first_col + line < n && step + at < k;
            const uint4 codes = inside ? load_streamed(w + (u64)(first_col + line) * k + step + at) : zero;
            *(uint4*)&ws[line][at] = widen<X>(make_uint2(codes.x, codes.y));
            *(uint4*)&ws[line][at + 8] = widen<X>(make_uint2(codes.z, codes.w));
        }
        __syncthreads();
#pragma unroll
        for (u32 at = 0; at < TILE; at += 16) {
            u32 a[2][4], b[2][4];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                load_matrices(a[i], shared_address(&xs[my_row + i * 16 + lane % 16][at + lane / 16 * 8]));
                const u32 line = my_col + i * 16 + lane / 16 * 8 + lane % 8;
                load_matrices(b[i], shared_address(&ws[line][at + lane / 8 % 2 * 8]));
            }
#pragma unroll
            for (u32 i = 0; i < 2; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    const u32* two = b[j / 2] + j % 2 * 2;
                    Tensor<X>::multiply(sums[i][j], a[i][0], a[i][1], a[i][2], a[i][3], two[0], two[1]);
                }
        }
        __syncthreads();
        const u32 next = step + TILE;
        if (next < k && (scales.width <= 1 || next % scales.cols)) continue;
        // Sums of weights that share scales end here.
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                const u32 col = first_col + my_col + j * 8 + lane % 4 * 2 + e % 2;
                const f32 scale = col < n ? scale_at(scales, col, step) : 0.0f;
#pragma unroll
                for (u32 i = 0; i < 2; i++) {
                    total[i][j][e] = fmaf(sums[i][j][e], scale, total[i][j][e]);
                    sums[i][j][e] = 0.0f;
                }
            }
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                const u32 row = first_row + my_row + i * 16 + lane / 4 + e / 2 * 8;
                const u32 col = first_col + my_col + j * 8 + lane % 4 * 2 + e % 2;
                if (row < rows && col < n) finish(out + (u64)row * n + col, total[i][j][e], bias, col, accumulate);
            }
        }
    }
}
#define SHORT_OF(X, OUT) \
    extern "C" __global__ void __launch_bounds__(256) matmul_e4m3_skinny_##X##_##OUT( \
        const X* x, const e4m3* w, Scales scales, const f32* bias, OUT* out, u32 rows, u32 n, u32 k, u32 accumulate) { \
        if (rows == 1) skinny<X, OUT, 1>(x, w, scales, bias, out, rows, n, k, accumulate); \
        else skinny<X, OUT, 8>(x, w, scales, bias, out, rows, n, k, accumulate); \
    } \
    extern "C" __global__ void __launch_bounds__(128) matmul_e4m3_tiles_##X##_##OUT( \
        const X* x, const e4m3* w, Scales scales, const f32* bias, OUT* out, u32 rows, u32 n, u32 k, u32 accumulate) { \
        tiles(x, w, scales, bias, out, rows, n, k, accumulate); \
    }
#else
// Never launched there: older GPUs take the plain version.
#define SHORT_OF(X, OUT) \
    extern "C" __global__ void matmul_e4m3_skinny_##X##_##OUT() {} \
    extern "C" __global__ void matmul_e4m3_tiles_##X##_##OUT() {}
#endif

SHORT_OF(bf16, f32)
SHORT_OF(bf16, bf16)
SHORT_OF(f16, f32)
SHORT_OF(f16, f16)
