// out[m, n] = x[m, k] w[n, k]^T (+ bias) (+ out) for up to 32 rows of x: limited by reading w once, so everything serves that.
//
// A block owns 8 * TILES rows of w and all of k, its warps take turns along k. Each lane reads 16 bytes of a row of w straight into the
// registers of a tensor-core operand: a sum does not mind its order, so the k that a fragment calls 2t, 2t + 1, 2t + 8, 2t + 9 may be
// any four as long as x uses the same. DEPTH loads per row are under way in each lane before the first is used; the first ones start
// before the kernel waits for its input, because weights are there already.
//
// The order of a row's sum depends on k alone, not on the number of rows.
#include "mma.cuh"

// Compiled for one type and configuration (`../src/cuda/matmul_few.rs`); HALVES: 1 for up to 8 rows of x, 2 for up to 16, 4
// for up to 32.
#ifndef TYPE
#define TYPE bf16
#define WARPS 8
#define HALVES 1
#define TILES 2
#define DEPTH 4
#endif

struct FewShape {
    u32 rows;
    u32 n;
    u32 k;
    // Whether to add to `out` instead of overwriting it.
    u32 accumulate;
    // Whether `out` is f32; else it has the input's type.
    u32 wide;
};

// 16 bytes of x, or zeros.
template <typename T>
DEVICE uint4 load_input(const T* from, bool valid) {
    return valid ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
}

template <typename T>
DEVICE uint4 load_weights(const T* from, bool valid) {
    return valid ? load_streamed(from) : make_uint4(0, 0, 0, 0);
}

template <typename O>
DEVICE void finish(O* to, f32 sum, u32 accumulate) {
    if (accumulate) sum += load(*to);
    *to = Cast<O>::from(sum);
}

// Grid: [n / (8 TILES), rounded up]. `k` is a multiple of 8.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    matmul_few(void* out, const TYPE* x, const TYPE* w, const f32* bias, const FewShape shape) {
    typedef TYPE T;
    __shared__ f32 parts[WARPS][8 * HALVES][8 * TILES + 1];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 first = blockIdx.x * 8 * TILES, chunks = (shape.k + 31) / 32;
    // Chunks in which this lane's columns exist.
    const u32 limit = (shape.k + 31 - 8 * t) / 32;
    const u32 stride = WARPS * 32;
    const T *from_w[TILES], *from_x[HALVES];
    bool has_row[HALVES];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        from_w[tile] = w + (size_t)min(first + 8 * tile + g, shape.n - 1) * shape.k + warp * 32 + 8 * t;
#pragma unroll
    for (int half = 0; half < HALVES; half++) {
        has_row[half] = 8 * half + g < shape.rows;
        from_x[half] = x + (size_t)(8 * half + g) * shape.k + warp * 32 + 8 * t;
    }
    uint4 a[DEPTH][HALVES], b[DEPTH][TILES];
    // Of each 16 rows of x.
    const int PAIRS = (HALVES + 1) / 2;
    f32 c[PAIRS][TILES][4];
#pragma unroll
    for (int pair = 0; pair < PAIRS; pair++)
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int i = 0; i < 4; i++) c[pair][tile][i] = 0.0f;

#pragma unroll
    for (int stage = 0; stage < DEPTH; stage++)
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
            b[stage][tile] = load_weights(from_w[tile] + stage * stride, warp + stage * WARPS < limit);
    launch_dependents();
    wait_for_inputs();
#pragma unroll
    for (int stage = 0; stage < DEPTH; stage++)
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            a[stage][half] = load_input(from_x[half] + stage * stride, has_row[half] && warp + stage * WARPS < limit);

    for (u32 chunk = warp; chunk < chunks; chunk += DEPTH * WARPS) {
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) from_w[tile] += DEPTH * stride;
#pragma unroll
        for (int half = 0; half < HALVES; half++) from_x[half] += DEPTH * stride;
#pragma unroll
        for (int stage = 0; stage < DEPTH; stage++) {
#pragma unroll
            for (int pair = 0; pair < PAIRS; pair++) {
                const uint4 low = a[stage][2 * pair];
                const uint4 high = HALVES > 1 ? a[stage][(2 * pair + 1) % HALVES] : make_uint4(0, 0, 0, 0);
#pragma unroll
                for (int tile = 0; tile < TILES; tile++) {
                    const uint4 y = b[stage][tile];
                    Tensor<T>::multiply(c[pair][tile], low.x, high.x, low.y, high.y, y.x, y.y);
                    Tensor<T>::multiply(c[pair][tile], low.z, high.z, low.w, high.w, y.z, y.w);
                }
            }
            const bool more = chunk + (stage + DEPTH) * WARPS < limit;
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) b[stage][tile] = load_weights(from_w[tile] + stage * stride, more);
#pragma unroll
            for (int half = 0; half < HALVES; half++)
                a[stage][half] = load_input(from_x[half] + stage * stride, has_row[half] && more);
        }
    }

#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int tile = 0; tile < TILES; tile++)
#pragma unroll
            for (int i = 0; i < 2; i++) parts[warp][8 * half + g][8 * tile + 2 * t + i] = c[half / 2][tile][2 * (half % 2) + i];
    __syncthreads();
    for (u32 i = threadIdx.x; i < shape.rows * 8 * TILES; i += WARPS * 32) {
        const u32 row = i / (8 * TILES), column = i % (8 * TILES), n = first + column;
        if (n >= shape.n) continue;
        f32 sum = bias ? bias[n] : 0.0f;
#pragma unroll
        for (u32 part = 0; part < WARPS; part++) sum += parts[part][row][column];
        const size_t at = (size_t)row * shape.n + n;
        if (shape.wide) finish((f32*)out + at, sum, shape.accumulate);
        else finish((T*)out + at, sum, shape.accumulate);
    }
}
