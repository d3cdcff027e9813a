// Norms that also write their rows as the product that reads them wants them (prepared.cuh): what `prepare_input.cu`
// would make of them in a pass of its own, bit for bit. A block has a row, in registers.
//
// Compiled for the type of normed rows, what is normed (x, or x with y added to it, or with a norm of y), whether rows
// that are not the residual are f32 or of that type too, and how often at most a thread takes four elements.
#include "norm.cuh"
#include "prepared.cuh"

#ifndef TYPE
#define TYPE bf16
#define KIND 1
#define SHORT 0
#define FOURS 2
#endif

// Kinds; 1: x with y added to it.
constexpr u32 PLAIN = 0, SUM_WITH_NORM = 2;
template <bool IS_SHORT> struct Input { typedef f32 Element; };
template <> struct Input<true> { typedef TYPE Element; };

// As elements of type T keep them.
template <typename T> DEVICE float4 stored(float4 x) {
    return make_float4(load(Cast<T>::from(x.x)), load(Cast<T>::from(x.y)), load(Cast<T>::from(x.z)),
        load(Cast<T>::from(x.w)));
}

// The largest element of a block's row that counts for a scale.
template <u32 N> DEVICE f32 largest(const Row<N>& row, f32 outliers, u32 width) {
    f32 largest = 0.0f;
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        if ((i * blockDim.x + threadIdx.x) * EACH >= width) break;
        const f32 four[4] = {row.x[i].x, row.x[i].y, row.x[i].z, row.x[i].w};
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            if (fabsf(four[j]) < outliers) largest = fmaxf(largest, fabsf(four[j]));
    }
    return block_max(largest);
}

// The block's row, which is `width` elements of type T.
template <typename T, u32 N> DEVICE void prepare(const Row<N>& row, const PreparedRows& to, u32 width) {
    f32 scale = to.shape.scale;
    if (to.scales) {
        if (to.shape.group) scale = largest(row, to.shape.outliers, width) / largest_code(to.shape);
        if (threadIdx.x == 0) to.scales[blockIdx.x] = scale;
    }
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        const u32 at = (i * blockDim.x + threadIdx.x) * EACH;
        if (at >= width) break;
        const f32 four[4] = {row.x[i].x, row.x[i].y, row.x[i].z, row.x[i].w};
        put_prepared<T>(to, blockIdx.x, at, four, scale);
    }
    const f32 zeros[4] = {};
    const u32 end = to.words * (to.scales ? 4 : 2);
    for (u32 at = width + threadIdx.x * EACH; at < end; at += blockDim.x * EACH)
        put_prepared<T>(to, blockIdx.x, at, zeros, 0.0f);
}

// Norms a row, and writes it in both ways.
template <u32 N, typename Out>
DEVICE void finish(Row<N>& row, const Norm& how, Out* out, const PreparedRows& to, u32 width) {
    row.norm(how, width, [&](u32 i, u32 at, float4 y) {
        store_four(out + at, y);
        row.x[i] = stored<Out>(y);
    });
    prepare<Out>(row, to, width);
}

// One row a block; widths are multiples of four and at most what a block keeps.
extern "C" __global__ void __launch_bounds__(MOST_THREADS) norm_prepared(void* x, const void* y, const Norm first,
    const Norm how, TYPE* out, const __grid_constant__ PreparedRows to, u32 width) {
    typedef Input<SHORT>::Element In;
    launch_dependents();
    if (KIND == SUM_WITH_NORM) fetch_params(first, width);
    fetch_params(how, width);
    wait_for_inputs();
    const u64 at = blockIdx.x * (u64)width;
    Row<FOURS> row;
    if constexpr (KIND == PLAIN) {
        row.read((const In*)x + at, width);
    } else {
        f32* residual = (f32*)x + at;
        const In* delta = (const In*)y + at;
        Row<FOURS> added;
        row.read(residual, width);
        added.read(delta, width);
        if constexpr (KIND == SUM_WITH_NORM) added.norm_in_place(first, width);
        auto before = [&](u32 i, u32) { return row.x[i]; };
        row.add(before, [&](u32 i, u32) { return added.x[i]; }, residual, width);
    }
    finish(row, how, out + at, to, width);
}
