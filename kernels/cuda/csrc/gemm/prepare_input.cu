// Rows as products with quantized weights read them: columns in the weights' order, rounded to 8-bit codes times a
// scale where a checkpoint asks for that, in the type that is multiplied. A block has a row.
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

DEVICE f32 rounded(f32 x, f32 scale, u32 to) {
    if (to == TO_NOTHING || scale == 0.0f) return x;
    if (to == TO_E4M3) return load(Cast<e4m3>::from(x / scale)) * scale;
    return fminf(fmaxf(rintf(x / scale), -128.0f), 127.0f) * scale;
}

template <typename X, typename Out> DEVICE void prepare(const X* x, Out* out, const InputShape& shape) {
    const X* from = x + (u64)blockIdx.x * shape.k;
    Out* to = out + (u64)blockIdx.x * shape.k;
    const u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool alone = shape.group == 0 || shape.group >= shape.k;
    const u32 each = alone ? shape.k : shape.group;
    const f32 most = shape.to == TO_INT8 ? 127.0f : 448.0f;
    auto at = [&](u32 column) { return load(from[shape.columns ? shape.columns[column] : column]); };
    wait_for_inputs();
    if (alone) {
        f32 scale = shape.scale;
        const bool measures = shape.to != TO_NOTHING && shape.group;
        const f32 outliers = measures ? shape.outliers : infinity();
        if (measures) {
            f32 largest = 0.0f;
            for (u32 column = threadIdx.x; column < shape.k; column += blockDim.x) {
                const f32 size = fabsf(at(column));
                if (size < outliers) largest = fmaxf(largest, size);
            }
            scale = block_max(largest) / most;
        }
        for (u32 column = threadIdx.x; column < shape.k; column += blockDim.x) {
            const f32 value = at(column);
            to[column] = Cast<Out>::from(fabsf(value) < outliers ? rounded(value, scale, shape.to) : value);
        }
        return;
    }
    for (u32 first = warp * each; first < shape.k; first += warps * each) {
        const u32 end = min(first + each, shape.k);
        f32 largest = 0.0f;
        for (u32 column = first + lane; column < end; column += 32) largest = fmaxf(largest, fabsf(at(column)));
        const f32 scale = warp_max(largest) / most;
        for (u32 column = first + lane; column < end; column += 32)
            to[column] = Cast<Out>::from(rounded(at(column), scale, shape.to));
    }
}

#define PREPARE_OF(X, OUT) \
    extern "C" __global__ void __launch_bounds__(256) prepare_input_##X##_##OUT( \
        const X* x, OUT* out, const InputShape shape) { \
        prepare(x, out, shape); \
    }

PREPARE_OF(f32, f32)
PREPARE_OF(f32, bf16)
PREPARE_OF(f32, f16)
PREPARE_OF(bf16, bf16)
PREPARE_OF(f16, f16)

// Four numbers as codes, in a word.
DEVICE u32 codes_of(const f32 (&x)[4], u32 to) {
    u32 four = 0;
    if (to == TO_E4M3) {
#if __CUDA_ARCH__ >= 890
        u16 pairs[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pairs[i]) : "f"(x[2 * i + 1]), "f"(x[2 * i]));
        return pairs[0] | (u32)pairs[1] << 16;
#else
#pragma unroll
        for (u32 i = 0; i < 4; i++) four |= (u32)Cast<e4m3>::from(x[i]).bits << 8 * i;
        return four;
#endif
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++)
        four |= ((u32)(int)fminf(fmaxf(rintf(x[i]), -128.0f), 127.0f) & 0xffu) << 8 * i;
    return four;
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

// A row as codes of 8 bits, and the scale that they share. Four neighbours are a word; words of each 32 columns are in
// the order in which packed weights have theirs (packed.cuh), and rows end with codes of 0. A block has a row.
template <typename X>
DEVICE void quantize(const X* x, u32* codes, f32* scales, const InputShape& shape, u32 words) {
    const X* from = x + (u64)blockIdx.x * shape.k;
    u32* to = codes + (u64)blockIdx.x * words;
    const bool in_order = !shape.columns && shape.k % 4 == 0;
    const u32 some = (shape.k + 3) / 4;
    auto take = [&](f32 (&four)[4], u32 word) {
        if (in_order) return load_four(four, from + 4 * word);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 column = 4 * word + i;
            four[i] = column < shape.k ? load(from[shape.columns ? shape.columns[column] : column]) : 0.0f;
        }
    };
    f32 four[4], scale = shape.scale;
    if (shape.group) {
        f32 largest = 0.0f;
        for (u32 word = threadIdx.x; word < some; word += blockDim.x) {
            take(four, word);
#pragma unroll
            for (u32 i = 0; i < 4; i++) largest = fmaxf(largest, fabsf(four[i]));
        }
        scale = block_max(largest) / (shape.to == TO_INT8 ? 127.0f : 448.0f);
    }
    if (threadIdx.x == 0) scales[blockIdx.x] = scale;
    for (u32 word = threadIdx.x; word < words; word += blockDim.x) {
        u32 code = 0;
        if (word < some && scale != 0.0f) {
            take(four, word);
#pragma unroll
            for (u32 i = 0; i < 4; i++) four[i] /= scale;
            code = codes_of(four, shape.to);
        }
        to[word / 8 * 8 + word % 2 * 4 + word % 8 / 2] = code;
    }
}

#define QUANTIZE_OF(X) \
    extern "C" __global__ void __launch_bounds__(256) quantize_input_##X( \
        const X* x, u32* codes, f32* scales, const InputShape shape, u32 words) { \
        launch_dependents(); \
        wait_for_inputs(); \
        quantize(x, codes, scales, shape, words); \
    }

QUANTIZE_OF(f32)
QUANTIZE_OF(bf16)
QUANTIZE_OF(f16)

// Numbers of 16 bits, the columns of each chunk of 64 in the order in which `matmul_packed_wgmma.cu` multiplies them
// (packed.cuh); rows end with zeros, up to a whole chunk. A thread moves 8 columns; k is a multiple of as many.
extern "C" __global__ void __launch_bounds__(256) reorder_input(
    const uint4* x, u32* out, u32 k, u32 chunks, u32 pieces) {
    launch_dependents();
    wait_for_inputs();
    const u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pieces) return;
    const u32 row = i / 8 / chunks, chunk = i / 8 % chunks, h = i % 8 / 4, t = i % 4;
    const u32 piece = chunk * 8 + i % 8;
    const uint4 eight = piece < k / 8 ? x[(u64)row * (k / 8) + piece] : make_uint4(0, 0, 0, 0);
    // Pairs: words 4 i + 2 p + .. of a chunk's h-th half go to 8 (2 h + i) + 4 p + t.
    u32* to = out + ((u64)row * chunks + chunk) * 32 + 16 * h + t;
    to[0] = eight.x, to[4] = eight.y, to[8] = eight.z, to[12] = eight.w;
}
