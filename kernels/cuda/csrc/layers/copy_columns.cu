// Copies `heads` pieces of `width` columns of each row from x to out. One block a row.
#include "head_columns.cuh"

template <typename X, typename Out>
DEVICE void copy_columns(const X* x, Columns from, Out* out, Columns to, u32 heads, u32 width) {
    launch_dependents();
    wait_for_inputs();
    const X* input = x + blockIdx.x * (u64)from.width + from.first;
    Out* output = out + blockIdx.x * (u64)to.width + to.first;
    for (u32 i = threadIdx.x; i < heads * width; i += blockDim.x) {
        u32 head = i / width, col = i % width;
        output[head * to.stride + col] = Cast<Out>::from(load(input[head * from.stride + col]));
    }
}

#define COPY_COLUMNS(X, OUT) \
    extern "C" __global__ void copy_columns_##X##_##OUT( \
        const X* x, Columns from, OUT* out, Columns to, u32 heads, u32 width) { \
        copy_columns(x, from, out, to, heads, width); \
    }

COPY_COLUMNS(f32, f32)
COPY_COLUMNS(bf16, bf16)
COPY_COLUMNS(f16, f16)
COPY_COLUMNS(f32, bf16)
COPY_COLUMNS(f32, f16)
COPY_COLUMNS(bf16, f32)
COPY_COLUMNS(f16, f32)

// The same of 16 bytes at a time, as which everything is counted.
extern "C" __global__ void copy_columns_wide(
    const uint4* x, Columns from, uint4* out, Columns to, u32 heads, u32 width) {
    launch_dependents();
    wait_for_inputs();
    const uint4* input = x + blockIdx.x * (u64)from.width + from.first;
    uint4* output = out + blockIdx.x * (u64)to.width + to.first;
    for (u32 i = threadIdx.x; i < heads * width; i += blockDim.x)
        output[i / width * to.stride + i % width] = input[i / width * from.stride + i % width];
}
