// Attention over the paged cache: the plain version, for every type and shape. One block a row and query head.
// Keys are taken in tiles of a block's threads from position 0 on, so that sums depend on the row alone.
#include "quire.cuh"

constexpr u32 THREADS = 128;
constexpr u32 MOST_PER_THREAD = 4; // v_dim is at most THREADS times this

// Sum of q[i] * k[i]; 16 bytes at a time where heads allow it.
template <typename C> DEVICE f32 dot(const f32* q, const C* k, u32 dim) {
    constexpr u32 N = 16 / sizeof(C);
    f32 sum = 0.0f;
    if (dim % N == 0) {
        for (u32 i = 0; i < dim; i += N) {
            uint4 bits = *(const uint4*)(k + i);
            const C* part = (const C*)&bits;
#pragma unroll
            for (u32 j = 0; j < N; ++j) sum += q[i + j] * load(part[j]);
        }
    } else {
        for (u32 i = 0; i < dim; ++i) sum += q[i] * load(k[i]);
    }
    return sum;
}

template <typename T, typename C>
DEVICE void attend(const T* qkv, const Batch& batch, const Attention& layer, const C* keys, const C* values, T* out) {
    extern __shared__ f32 q[]; // [dim]
    __shared__ f32 weights[THREADS];
    __shared__ u64 tokens[THREADS]; // where in the cache a key of the tile lies, in tokens
    u32 row = blockIdx.x, head = blockIdx.y, kv_head = head / (layer.q_heads / layer.kv_heads);
    u32 sequence = batch.row_sequence[row];
    T* to = out + (row * (u64)layer.q_heads + head) * layer.v_dim;
    if (sequence == NOBODY) {
        for (u32 i = threadIdx.x; i < layer.v_dim; i += THREADS) to[i] = Cast<T>::from(0.0f);
        return;
    }
    const T* query = qkv + row * (u64)layer.qkv_width + head * layer.dim;
    for (u32 i = threadIdx.x; i < layer.dim; i += THREADS) q[i] = load(query[i]);
    __syncthreads();

    u32 position = batch.positions[row];
    u32 end = layer.seen_end(position, batch.start[sequence] + batch.num_rows[sequence]);
    u32 first = position + 1 > layer.window ? position + 1 - layer.window : 0;
    const u32* table = batch.blocks + batch.first_block[sequence];
    f32 slope = layer.alibi ? layer.alibi[head] : 0.0f, scale = layer.scale_of<C>(kv_head);
    f32 highest = layer.sinks ? layer.sinks[head] : -infinity();
    f32 total = layer.sinks ? 1.0f : 0.0f;
    f32 sums[MOST_PER_THREAD] = {};
    for (u32 tile = first / THREADS * THREADS; tile < end; tile += THREADS) {
        u32 key = tile + threadIdx.x;
        f32 score = -infinity();
        if (key >= first && key < end) {
            u64 block = table[key / layer.block_size];
            u64 token = (block * layer.kv_heads + kv_head) * layer.block_size + key % layer.block_size;
            tokens[threadIdx.x] = token;
            score = dot(q, keys + token * layer.dim, layer.dim) * scale;
            if (layer.soft_cap > 0.0f) score = layer.soft_cap * tanhf(score / layer.soft_cap);
            score -= slope * fabsf((f32)((int)position - (int)key));
            if (layer.relative) score += layer.bias(head, position, key);
        }
        f32 before = highest;
        highest = fmaxf(highest, block_max(score));
        f32 weight = expf(score - highest), shrink = expf(before - highest);
        weights[threadIdx.x] = weight;
        total = total * shrink + block_sum(weight); // also makes the weights visible to all
        u32 from = max(tile, first) - tile, until = min(tile + THREADS, end) - tile;
#pragma unroll
        for (u32 part = 0; part < MOST_PER_THREAD; ++part) {
            u32 i = part * THREADS + threadIdx.x;
            if (i >= layer.v_dim) break;
            f32 sum = sums[part] * shrink;
            for (u32 j = from; j < until; ++j) sum += weights[j] * load(values[tokens[j] * layer.v_stride + i]);
            sums[part] = sum;
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 part = 0; part < MOST_PER_THREAD; ++part) {
        u32 i = part * THREADS + threadIdx.x;
        if (i < layer.v_dim) to[i] = Cast<T>::from(sums[part] / total * layer.v_scale_of<C>(kv_head));
    }
}

#define ATTENTION(T, C) \
    extern "C" __global__ void __launch_bounds__(THREADS) attention_##T##_##C##_##T( \
        const T* qkv, const Batch batch, const Attention layer, const C* keys, const C* values, T* out) { \
        attend(qkv, batch, layer, keys, values, out); \
    }

ATTENTION(f32, f32)
ATTENTION(f32, bf16)
ATTENTION(f32, f16)
ATTENTION(bf16, bf16)
ATTENTION(f16, f16)
ATTENTION(f32, e4m3)
ATTENTION(bf16, e4m3)
ATTENTION(f16, e4m3)
