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
