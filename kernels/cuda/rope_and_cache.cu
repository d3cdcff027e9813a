// Rotates q and k of a row in place and writes k and v to the cache. One block a row; angles are made once a row.
#include "quire.cuh"

// Head counts, and the rotation; see kernels/src/cuda/rope_and_cache.rs.
struct Layer {
    const f32* inv_freq;
    f32 mscale;
    u32 rotary_dim; // 0: no rotation
    u32 interleaved;
    u32 q_heads;
    u32 kv_heads;
    u32 dim;
    u32 v_dim;
    u32 block_size;
    u32 qkv_width;
};

template <typename T, typename C> DEVICE void rope_and_cache(T* qkv, const Batch& batch, const Layer& layer, C* keys, C* values) {
    extern __shared__ f32 angles[]; // [rotary_dim / 2] cosines, then as many sines
    u32 row = blockIdx.x, sequence = batch.row_sequence[row];
    if (sequence == NOBODY) return;
    u32 position = batch.positions[row], half = layer.rotary_dim / 2;
    for (u32 i = threadIdx.x; i < half; i += blockDim.x) {
        // A product of f32, as in the reference implementations.
        f32 sine, cosine;
        sincosf((f32)position * layer.inv_freq[i], &sine, &cosine);
        angles[i] = cosine * layer.mscale;
        angles[half + i] = sine * layer.mscale;
    }
    __syncthreads();
    T* x = qkv + row * (u64)layer.qkv_width;
    for (u32 i = threadIdx.x; i < (layer.q_heads + layer.kv_heads) * half; i += blockDim.x) {
        u32 pair = i % half;
        T* head = x + i / half * layer.dim;
        T* first = head + (layer.interleaved ? 2 * pair : pair);
        T* second = layer.interleaved ? first + 1 : first + half;
        f32 a = load(*first), b = load(*second), cosine = angles[pair], sine = angles[half + pair];
        *first = Cast<T>::from(a * cosine - b * sine);
        *second = Cast<T>::from(b * cosine + a * sine);
    }
    __syncthreads();
    u64 block = batch.blocks[batch.first_block[sequence] + position / layer.block_size];
    u32 slot = position % layer.block_size;
    T* k = x + layer.q_heads * layer.dim;
    for (u32 i = threadIdx.x; i < layer.kv_heads * layer.dim; i += blockDim.x) {
        u64 head = block * layer.kv_heads + i / layer.dim;
        keys[(head * layer.block_size + slot) * layer.dim + i % layer.dim] = Cast<C>::from(load(k[i]));
    }
    T* v = k + layer.kv_heads * layer.dim;
    for (u32 i = threadIdx.x; i < layer.kv_heads * layer.v_dim; i += blockDim.x) {
        u64 head = block * layer.kv_heads + i / layer.v_dim;
        values[(head * layer.block_size + slot) * layer.v_dim + i % layer.v_dim] = Cast<C>::from(load(v[i]));
    }
}

#define ROPE_AND_CACHE(T, C) \
    extern "C" __global__ void rope_and_cache_##T##_##C( \
        T* qkv, const Batch batch, const Layer layer, C* keys, C* values) { \
        rope_and_cache(qkv, batch, layer, keys, values); \
    }

ROPE_AND_CACHE(f32, f32)
ROPE_AND_CACHE(f32, bf16)
ROPE_AND_CACHE(f32, f16)
ROPE_AND_CACHE(bf16, bf16)
ROPE_AND_CACHE(f16, f16)
