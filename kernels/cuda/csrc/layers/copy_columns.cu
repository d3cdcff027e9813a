// Copies `heads` pieces of `width` columns of each row from x to out. One block a row.
#include "quire.cuh"

// Where pieces lie in rows; see src/groups.rs.
struct Columns {
    u32 first;
    u32 stride;
    u32 width; // of the whole row
};
SAME_LAYOUT(Columns, HeadColumns);

template <typename X, typename Out>
DEVICE void copy_columns(const X* x, Columns from, Out* out, Columns to, u32 heads, u32 width) {
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
