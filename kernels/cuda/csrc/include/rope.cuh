// Rotates q and k of a row in place and writes k and v to the cache. One block a row; angles are made once a row,
// before the row is there. Caches of 8 bits have a file of their own: most starts wait for the other one.
#pragma once
#include "quire.cuh"

// Head counts, and the rotation; see src/rope_and_cache.rs.
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
    f32 key_factor, value_factor; // what is stored is multiplied by them first
    // In a cache of 8 bits, what is stored of each key head is divided by these too; null: by nothing.
    const f32* key_scales;
    const f32* value_scales;

    template <typename C> DEVICE f32 key_factor_of(u32 head) const {
        return sizeof(C) == 1 && key_scales ? key_factor / key_scales[head] : key_factor;
    }
    template <typename C> DEVICE f32 value_factor_of(u32 head) const {
        return sizeof(C) == 1 && value_scales ? value_factor / value_scales[head] : value_factor;
    }
};
SAME_LAYOUT(Layer, Layer);

// Cosines [rotary_dim / 2], then as many sines. A product of f32, as in the reference implementations. By the last
// threads: the first ones have most to do with the row.
DEVICE void make_angles(f32* angles, const Layer& layer, u32 position) {
    u32 half = layer.rotary_dim / 2;
    for (u32 i = blockDim.x - 1 - threadIdx.x; i < half; i += blockDim.x) {
        f32 sine, cosine;
        sincosf((f32)position * layer.inv_freq[i], &sine, &cosine);
        angles[i] = cosine * layer.mscale;
        angles[half + i] = sine * layer.mscale;
    }
}

template <typename T, typename C> DEVICE void rope_and_cache(
    T* qkv, const Batch& batch, const Layer& layer, C* keys, C* values) {
    extern __shared__ f32 angles[];
    u32 row = blockIdx.x, sequence = batch.row_sequence[row], half = layer.rotary_dim / 2;
    if (sequence == NOBODY) return;
    u32 position = batch.positions[row];
    make_angles(angles, layer, position);
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
        keys[(head * layer.block_size + slot) * layer.dim + i % layer.dim] = Cast<C>::from(
            load(k[i]) * layer.key_factor_of<C>(i / layer.dim));
    }
    T* v = k + layer.kv_heads * layer.dim;
    for (u32 i = threadIdx.x; i < layer.kv_heads * layer.v_dim; i += blockDim.x) {
        u64 head = block * layer.kv_heads + i / layer.v_dim;
        values[(head * layer.block_size + slot) * layer.v_dim + i % layer.v_dim] = Cast<C>::from(
            load(v[i]) * layer.value_factor_of<C>(i / layer.v_dim));
    }
}

// N numbers of 16 bits, and of 8.
template <u32 N> struct Bits;
template <> struct Bits<8> {
    typedef uint4 Short;
    typedef uint2 Narrow;
};
template <> struct Bits<4> {
    typedef uint2 Short;
    typedef u32 Narrow;
};

// As many of a 16-bit type: 16 bytes, or less.
template <typename T, u32 N> union Piece {
    typename Bits<N>::Short bits;
    T x[N];
};

template <u32 N, typename T> DEVICE Piece<T, N> load_piece(const T* from) {
    Piece<T, N> piece;
    piece.bits = *(const typename Bits<N>::Short*)from;
    return piece;
}

// Into a cache; only one of 8 bits has a factor.
template <typename T, u32 N> DEVICE void store_piece(T* to, const Piece<T, N>& piece, f32) {
    *(typename Bits<N>::Short*)to = piece.bits;
}
template <typename T, u32 N> DEVICE void store_piece(e4m3* to, const Piece<T, N>& piece, f32 factor) {
    typename Bits<N>::Narrow bits;
    e4m3* narrow = (e4m3*)&bits;
#pragma unroll
    for (u32 i = 0; i < N; i++) narrow[i] = Cast<e4m3>::from(load(piece.x[i]) * factor);
    *(typename Bits<N>::Narrow*)to = bits;
}

// A norm of each head before its rotation; as in norm.cu.
struct HeadNorm {
    const f32* weight;
    const f32* bias;
    f32 eps;
    u32 subtract_mean;

    // Brings parameters near before they are used.
    DEVICE void touch(u32 i) const {
        if (weight) ::touch(weight + i);
        if (bias) ::touch(bias + i);
    }
};
SAME_LAYOUT(HeadNorm, Norm);

struct HeadNorms {
    HeadNorm q, k;
};
SAME_LAYOUT(HeadNorms, HeadNorms);

// The sum over the `lanes` neighbours (a power of two) that share a head.
DEVICE f32 head_sum(f32 x, u32 lanes) {
    u32 mask = ((1u << lanes) - 1) << (threadIdx.x % 32 / lanes * lanes);
    for (u32 distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(mask, x, distance);
    return x;
}

// Norms a head of which this lane has 8 elements from `low` on and 8 from `high` on.
DEVICE void norm_head(f32 (&x)[16], const HeadNorm& norm, u32 low, u32 high, u32 lanes) {
    f32 width = 16.0f * lanes, mean = 0.0f, square = 0.0f;
    if (norm.subtract_mean) {
        f32 sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 16; i++) sum += x[i];
        mean = head_sum(sum, lanes) / width;
    }
#pragma unroll
    for (u32 i = 0; i < 16; i++) square += (x[i] - mean) * (x[i] - mean);
    f32 factor = 1.0f / sqrtf(head_sum(square, lanes) / width + norm.eps);
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        u32 at = i < 8 ? low + i : high + i - 8;
        x[i] = (x[i] - mean) * factor;
        if (norm.weight) x[i] *= norm.weight[at];
        if (norm.bias) x[i] += norm.bias[at];
    }
}

// N pairs of a head.
template <typename T, u32 N> struct Pairs {
    // Elements from `low` on and from `high` on.
    u32 low, high;
    Piece<T, N> a, b;

    DEVICE static Pairs load(const T* head, u32 half, u32 pair, bool interleaved) {
        Pairs pairs;
        pairs.low = interleaved ? 2 * pair : pair;
        pairs.high = interleaved ? pairs.low + N : pair + half;
        pairs.a = load_piece<N>(head + pairs.low);
        pairs.b = load_piece<N>(head + pairs.high);
        return pairs;
    }
};

// Rotates them, and writes them back, and to `cache`, times a factor, if that is not null; after the norm, if there is
// one.
template <typename T, typename C, u32 N>
DEVICE void rotate(Pairs<T, N> pairs, T* head, C* cache, f32 factor, const f32* angles,
    u32 half, u32 pair, bool interleaved, const HeadNorm* norm) {
    f32 x[2 * N];
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        x[i] = load(pairs.a.x[i]);
        x[i + N] = load(pairs.b.x[i]);
    }
    if constexpr (N == 8) {
        if (norm) norm_head(x, *norm, pairs.low, pairs.high, half / 8);
    }
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        f32& first = interleaved ? x[2 * i] : x[i];
        f32& second = interleaved ? x[2 * i + 1] : x[i + N];
        f32 y = first, z = second, cosine = angles[pair + i], sine = angles[half + pair + i];
        first = y * cosine - z * sine;
        second = z * cosine + y * sine;
    }
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        pairs.a.x[i] = Cast<T>::from(x[i]);
        pairs.b.x[i] = Cast<T>::from(x[i + N]);
    }
    store_piece(head + pairs.low, pairs.a, 1.0f);
    store_piece(head + pairs.high, pairs.b, 1.0f);
    if (cache) {
        store_piece(cache + pairs.low, pairs.a, factor);
        store_piece(cache + pairs.high, pairs.b, factor);
    }
}

// Eight numbers of a row that are stored as they are, and where they go.
template <typename T, typename C> struct Kept {
    const T* from;
    C* to;
    u32 head;
    bool is_key;
};

// How many of these a thread brings at once: where each head has keys and values, they are most of what there is to do.
#define AT_ONCE 4u

// The same for rows of 16 bits in a cache of the same type or of 8 bits, where `rotary_dim` is a multiple of 2 N, `dim`
// and `v_dim` of 8. With `norms`, the rotary dimension is the head's, and a power of two from 16 to 256.
template <u32 N, typename T, typename C>
DEVICE void rope_and_cache_wide(
    T* qkv, const Batch& batch, const Layer& layer, C* keys, C* values, const HeadNorms* norms) {
    extern __shared__ f32 angles[];
    launch_dependents();
    u32 row = blockIdx.x, sequence = batch.row_sequence[row], position = batch.positions[row],
        half = layer.rotary_dim / 2;
    make_angles(angles, layer, position);
    u64 block = sequence == NOBODY ? 0 : batch.blocks[batch.first_block[sequence] + position / layer.block_size];
    u32 slot = position % layer.block_size;
    if (norms && threadIdx.x < layer.dim) {
        norms->q.touch(threadIdx.x);
        norms->k.touch(threadIdx.x);
    }
    wait_for_inputs();
    if (sequence == NOBODY) return;
    T* x = qkv + row * (u64)layer.qkv_width;
    T* k = x + layer.q_heads * layer.dim;
    T* v = k + layer.kv_heads * layer.dim;
    auto cached = [&](C* cache, u32 head, u32 dim) {
        return cache + ((block * layer.kv_heads + head) * layer.block_size + slot) * dim;
    };
    u32 turns = half / N, rest = (layer.dim - layer.rotary_dim) / 8, pieces = layer.v_dim / 8;
    u32 rotated = (layer.q_heads + layer.kv_heads) * turns;
    auto load_pairs = [&](u32 i) {
        return Pairs<T, N>::load(x + i / turns * layer.dim, half, i % turns * N, layer.interleaved);
    };
    // Nothing up to the barrier needs angles: where the row was there first, it comes while they are made.
    Pairs<T, N> pairs;
    if (threadIdx.x < rotated) pairs = load_pairs(threadIdx.x);
    // What is kept as it is: values, and the rest of keys.
    const u32 kept = layer.kv_heads * (pieces + rest);
    auto kept_at = [&](u32 i) -> Kept<T, C> {
        const bool is_key = i >= layer.kv_heads * pieces;
        if (is_key) i -= layer.kv_heads * pieces;
        const u32 each = is_key ? rest : pieces, head = i / each, at = i % each * 8;
        if (!is_key) return {v + head * layer.v_dim + at, cached(values, head, layer.v_dim) + at, head, false};
        const u32 column = layer.rotary_dim + at;
        return {k + head * layer.dim + column, cached(keys, head, layer.dim) + column, head, true};
    };
    for (u32 i = threadIdx.x; i < kept; i += AT_ONCE * blockDim.x) {
        Kept<T, C> piece[AT_ONCE];
        Piece<T, 8> numbers[AT_ONCE];
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++)
            if (i + j * blockDim.x < kept) {
                piece[j] = kept_at(i + j * blockDim.x);
                numbers[j] = load_piece<8>(piece[j].from);
            }
#pragma unroll
        for (u32 j = 0; j < AT_ONCE; j++)
            if (i + j * blockDim.x < kept) {
                const u32 head = piece[j].head;
                const f32 factor = piece[j].is_key ? layer.key_factor_of<C>(head) : layer.value_factor_of<C>(head);
                store_piece(piece[j].to, numbers[j], factor);
            }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < rotated; i += blockDim.x) {
        if (i >= blockDim.x) pairs = load_pairs(i);
        u32 head = i / turns, pair = i % turns * N;
        const bool is_key = head >= layer.q_heads;
        C* cache = is_key ? cached(keys, head - layer.q_heads, layer.dim) : (C*)0;
        f32 factor = is_key ? layer.key_factor_of<C>(head - layer.q_heads) : 1.0f;
        const HeadNorm* norm = !norms ? (const HeadNorm*)0 : is_key ? &norms->k : &norms->q;
        if (layer.interleaved) rotate(pairs, x + head * layer.dim, cache, factor, angles, half, pair, true, norm);
        else rotate(pairs, x + head * layer.dim, cache, factor, angles, half, pair, false, norm);
    }
}

#define ROPE_AND_CACHE(T, C) \
    extern "C" __global__ void rope_and_cache_##T##_##C( \
        T* qkv, const Batch batch, const Layer layer, C* keys, C* values) { \
        rope_and_cache(qkv, batch, layer, keys, values); \
    }

// By eight pairs, and by four, for a part of a head that is a multiple of 8 alone.
#define ROPE_AND_CACHE_BY(N, NAME, T, C) \
    extern "C" __global__ void rope_and_cache_##NAME##_##T##_##C( \
        T* qkv, const Batch batch, const Layer layer, C* keys, C* values) { \
        rope_and_cache_wide<N>(qkv, batch, layer, keys, values, (const HeadNorms*)0); \
    }

#define ROPE_AND_CACHE_WIDE(T, C) \
    ROPE_AND_CACHE_BY(8, wide, T, C) \
    ROPE_AND_CACHE_BY(4, by_fours, T, C) \
    extern "C" __global__ void rope_and_cache_normed_##T##_##C( \
        T* qkv, const Batch batch, const Layer layer, C* keys, C* values, const HeadNorms norms) { \
        rope_and_cache_wide<8>(qkv, batch, layer, keys, values, &norms); \
    }
