// Rows as products with quantized weights read them: columns in the weights' order, rounded to 8-bit codes times a
// scale where a checkpoint asks for that, in the type that is multiplied. A block has a row.
#include "prepared.cuh"

DEVICE f32 rounded(f32 x, f32 scale, u32 to) {
    if (to == TO_NOTHING || scale == 0.0f) return x;
    if (to == TO_E4M3) return load(Cast<e4m3>::from(x / scale)) * scale;
    return fminf(fmaxf(rintf(x / scale), -128.0f), 127.0f) * scale;
}

DEVICE void load_four(f32 (&x)[4], const f32* from) {
    const float4 four = *(const float4*)from;
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}
template <typename X> DEVICE void load_four(f32 (&x)[4], const X* from) {
    const uint2 four = *(const uint2*)from;
    const X* elements = (const X*)&four;
#pragma unroll
    for (u32 i = 0; i < 4; i++) x[i] = load(elements[i]);
}
DEVICE void store_four(f32* to, const f32 (&x)[4]) { *(float4*)to = make_float4(x[0], x[1], x[2], x[3]); }
template <typename X> DEVICE void store_four(X* to, const f32 (&x)[4]) {
    __align__(8) X four[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) four[i] = Cast<X>::from(x[i]);
    *(uint2*)to = *(const uint2*)four;
}

// A row whose columns share a scale, in words of four neighbours; a block has it, and each thread keeps the first of
// its words in registers.
template <typename X> struct WholeRow {
    static constexpr u32 KEPT = 4;

    const X* from;
    const InputShape& shape;
    bool in_order;
    u32 words;
    f32 kept[KEPT][4];

    DEVICE WholeRow(const X* from, const InputShape& shape)
        : from(from), shape(shape), in_order(!shape.columns && shape.k % 4 == 0), words((shape.k + 3) / 4) {
#pragma unroll
        for (u32 i = 0; i < KEPT; i++)
            if (threadIdx.x + i * blockDim.x < words) take(kept[i], threadIdx.x + i * blockDim.x);
    }

    DEVICE void take(f32 (&four)[4], u32 word) const {
        if (in_order) return load_four(four, from + 4 * word);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 column = 4 * word + i;
            four[i] = column < shape.k ? load(from[shape.columns ? shape.columns[column] : column]) : 0.0f;
        }
    }

    // Calls `use(word, four)` for each word of this thread.
    template <typename Use> DEVICE void each(Use use) const {
#pragma unroll
        for (u32 i = 0; i < KEPT; i++)
            if (threadIdx.x + i * blockDim.x < words) use(threadIdx.x + i * blockDim.x, kept[i]);
        for (u32 word = threadIdx.x + KEPT * blockDim.x; word < words; word += blockDim.x) {
            f32 four[4];
            take(four, word);
            use(word, four);
        }
    }

    // Made of its largest element that is no outlier, where it has none of its own.
    DEVICE f32 scale() const {
        if (shape.group == 0) return shape.scale;
        const f32 outliers = shape.outliers;
        f32 largest = 0.0f;
        each([&](u32, const f32 (&four)[4]) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const f32 size = fabsf(four[i]);
                if (size < outliers) largest = fmaxf(largest, size);
            }
        });
        return block_max(largest) / largest_code(shape);
    }
};

template <typename X, typename Out> DEVICE void prepare_whole(const X* from, Out* to, const InputShape& shape) {
    const WholeRow<X> row(from, shape);
    const bool rounds = shape.to != TO_NOTHING, by_four = shape.k % 4 == 0;
    const f32 scale = rounds ? row.scale() : 0.0f, outliers = rounds && shape.group ? shape.outliers : infinity();
    row.each([&](u32 word, const f32 (&four)[4]) {
        f32 out[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            out[i] = fabsf(four[i]) < outliers ? rounded(four[i], scale, shape.to) : four[i];
        if (by_four) return store_four(to + 4 * word, out);
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            if (4 * word + i < shape.k) to[4 * word + i] = Cast<Out>::from(out[i]);
    });
}

template <typename X, typename Out> DEVICE void prepare(const X* x, Out* out, const InputShape& shape) {
    const X* from = x + (u64)blockIdx.x * shape.k;
    Out* to = out + (u64)blockIdx.x * shape.k;
    if (shape.group == 0 || shape.group >= shape.k) return prepare_whole(from, to, shape);
    const u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, each = shape.group;
    auto at = [&](u32 column) { return load(from[shape.columns ? shape.columns[column] : column]); };
    for (u32 first = warp * each; first < shape.k; first += warps * each) {
        const u32 end = min(first + each, shape.k);
        f32 largest = 0.0f;
        for (u32 column = first + lane; column < end; column += 32) largest = fmaxf(largest, fabsf(at(column)));
        const f32 scale = warp_max(largest) / largest_code(shape);
        for (u32 column = first + lane; column < end; column += 32)
            to[column] = Cast<Out>::from(rounded(at(column), scale, shape.to));
    }
}

#define PREPARE_OF(X, OUT) \
    extern "C" __global__ void __launch_bounds__(1024) prepare_input_##X##_##OUT( \
        const X* x, OUT* out, const InputShape shape) { \
        launch_dependents(); \
        wait_for_inputs(); \
        prepare(x, out, shape); \
    }

PREPARE_OF(f32, f32)
PREPARE_OF(f32, bf16)
PREPARE_OF(f32, f16)
PREPARE_OF(bf16, bf16)
PREPARE_OF(f16, f16)

#if __CUDA_ARCH__ >= 900
// A row as codes of 8 bits, and the scale that they share (prepared.cuh). A block has a row.
template <typename X>
DEVICE void quantize(const X* x, u32* codes, f32* scales, const InputShape& shape, u32 words) {
    const WholeRow<X> row(x + (u64)blockIdx.x * shape.k, shape);
    u32* to = codes + (u64)blockIdx.x * words;
    const f32 scale = row.scale();
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    row.each([&](u32 word, const f32 (&four)[4]) {
        to[code_place(word)] = codes_of(four, scale, shape.to);
    });
    for (u32 word = row.words + threadIdx.x; word < words; word += blockDim.x) to[code_place(word)] = 0;
}

#define QUANTIZE_OF(X) \
    extern "C" __global__ void __launch_bounds__(1024) quantize_input_##X( \
        const X* x, u32* codes, f32* scales, const InputShape shape, u32 words) { \
        launch_dependents(); \
        wait_for_inputs(); \
        quantize(x, codes, scales, shape, words); \
    }

QUANTIZE_OF(f32)
QUANTIZE_OF(bf16)
QUANTIZE_OF(f16)

// The same with a scale for each 128 columns, `count` of them in all rows. A warp has them.
template <typename X> DEVICE void quantize_groups(const X* x, u32* codes, f32* scales, u32 count) {
    const u32 group = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (group >= count) return;
    f32 four[4], largest = 0.0f;
    load_four(four, x + (u64)group * 128 + 4 * lane);
#pragma unroll
    for (u32 i = 0; i < 4; i++) largest = fmaxf(largest, fabsf(four[i]));
    const f32 scale = warp_max(largest) / 448.0f;
    codes[(u64)group * 32 + code_place(lane)] = codes_of(four, scale, TO_E4M3);
    if (lane == 0) scales[group] = scale;
}

#define QUANTIZE_GROUPS_OF(X) \
    extern "C" __global__ void __launch_bounds__(256) quantize_groups_##X( \
        const X* x, u32* codes, f32* scales, u32 count) { \
        launch_dependents(); \
        wait_for_inputs(); \
        quantize_groups(x, codes, scales, count); \
    }

QUANTIZE_GROUPS_OF(bf16)
QUANTIZE_GROUPS_OF(f16)
#endif

// Numbers of 16 bits, the columns of each chunk of 64 in the order in which `matmul_packed_wgmma.cu` multiplies them
// (packed.cuh); rows end with zeros, up to a whole chunk. A thread moves 8 columns; k is a multiple of as many.
extern "C" __global__ void __launch_bounds__(256) reorder_input(
    const uint4* x, u32* out, u32 k, u32 chunks, u32 pieces) {
    launch_dependents();
    wait_for_inputs();
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pieces) return;
    const u32 row = i / 8 / chunks, piece = i / 8 % chunks * 8 + i % 8;
    const uint4 eight = piece < k / 8 ? x[(u64)row * (k / 8) + piece] : make_uint4(0, 0, 0, 0);
    u32* to = out + (u64)row * chunks * 32 + pair_place(4 * piece);
    to[0] = eight.x, to[4] = eight.y, to[8] = eight.z, to[12] = eight.w;
}
