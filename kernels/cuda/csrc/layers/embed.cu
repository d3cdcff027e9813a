// out[row] = table[tokens[row] - first_entry] * scale, zeros outside the table. One block a row.
#include "quire.cuh"

template <typename T, typename Out>
DEVICE void embed(const T* table, const u32* tokens, Out* out, u32 first_entry, u32 entries, u32 width, f32 scale) {
    u32 entry = tokens[blockIdx.x] - first_entry;
    bool known = tokens[blockIdx.x] >= first_entry && entry < entries;
    const T* from = table + (known ? entry : 0) * (u64)width;
    Out* to = out + blockIdx.x * (u64)width;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) to[i] = Cast<Out>::from(known ? load(from[i]) * scale : 0.0f);
}

#define EMBED(T, OUT) \
    extern "C" __global__ void embed_##T##_##OUT( \
        const T* table, const u32* tokens, OUT* out, u32 first_entry, u32 entries, u32 width, f32 scale) { \
        embed(table, tokens, out, first_entry, entries, width, scale); \
    }

EMBED(f32, f32)
EMBED(bf16, f32)
EMBED(f16, f32)
