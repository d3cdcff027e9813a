// Attention of a step's one row. A key head of a sequence has one block, or several (splits) that share its keys; in a
// block, warps take 16 keys in turn, straight from memory into the registers of tensor-core operands, each with its own
// softmax. The block with the newest position makes its key, writes key and value to the cache, and has them at hand:
// no warp waits for the cache.
//
// As in `attention_decode.cu` scores are computed transposed, S^T = K Q^T and O^T = V^T P^T, with up to 8 query heads
// as columns. Which k a fragment means by 2t, 2t + 1, 2t + 8, 2t + 9, and which dimension by a row of V^T, is free as
// long as both operands agree: so lanes read 16 bytes at a time.
#pragma once
#include "step.cuh"

#define KEYS 16u
#define LOG2E 1.4426950408889634f
// Elements of a key, and of a value, that a lane reads at a time; and of a row of 8 lanes' pieces of a value.
#define K_EACH (DIM < 32 ? DIM / 4 : 8)
#define V_EACH (V_DIM < 64 ? V_DIM / 8 : 8)
#define V_ROW (8 * V_EACH)
// A query in shared memory: padded, so that lanes of two of them read different banks.
#define Q_ROW (DIM + 32)
// Warps whose sums lie side by side before they are added.
#define ADDENDS (GROUP <= 2 ? 16u : GROUP <= 4 ? 8u : 4u)
// Splits of a head that the next product adds up; more are added by the block that is the last of a head.
#define FEW_SPLITS 4u
#define SUM_ROW (V_DIM + 4)

// The keys that a row at `position` sees, in tiles of 16; how many blocks share a head, and what is this one's part.
// Layers that see as far share it.
struct Span {
    u32 window, begin, end, splits;
    // Of this block, which may have nothing to do: a key head, and tiles of its keys.
    u32 head, split, first_tile, end_tile;

    DEVICE void set(const Phase& phase, u32 position) {
        window = phase.window;
        end = position + 1;
        begin = end > window ? end - window : 0;
        const u32 first = begin / KEYS, tiles = (end + KEYS - 1) / KEYS - first;
        // At least a tile for each warp.
        splits = max(1u, min((tiles + WARPS - 1) / WARPS, gridDim.x / phase.kv_heads));
        head = blockIdx.x / splits;
        split = blockIdx.x % splits;
        first_tile = first + tiles * split / splits;
        end_tile = first + tiles * (split + 1) / splits;
    }
    DEVICE bool has_newest() const { return split + 1 == splits; }
};

// In shared memory, in the place of a product's input.
struct Heads {
    TYPE q[GROUP * Q_ROW];
    TYPE key[DIM];
    TYPE value[V_DIM];
    f32 raw[GROUP + 1][DIM];
    // Norms' weights, for the warps that norm.
    f32 scales[GROUP + 1][DIM];
    f32 sums[ADDENDS][GROUP][SUM_ROW];
    // Largest score and sum of weights of each warp, how much its sums count, and what all of a head have.
    f32 most[WARPS][8], weight[WARPS][8], shrink[WARPS][8];
    f32 all_most[8], all_weight[8];
};

// Cosines and sines of a row's angles.
DEVICE void make_angles(const Phase& phase, u32 position, f32* angles) {
    const u32 half = phase.rotary_dim / 2;
    for (u32 i = threadIdx.x; i < half; i += THREADS) {
        f32 sine, cosine;
        sincosf((f32)position * phase.inv_freq[i], &sine, &cosine);
        angles[i] = cosine * phase.mscale;
        angles[half + i] = sine * phase.mscale;
    }
}

// Elements of a head that a lane has.
#define HEAD_EACH ((DIM + 31) / 32)

// A warp brings a head to shared memory, normed and rotated. `weight`: the norm's, which this warp began to bring
// there.
DEVICE void load_head(
    const Phase& phase, const Norm& norm, const f32* weight, const f32* angles, const TYPE* from, f32* raw, TYPE* to) {
    const u32 lane = threadIdx.x % 32, half = phase.rotary_dim / 2;
    constexpr u32 EACH = HEAD_EACH;
    f32 x[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) x[i] = 32 * i + lane < DIM ? load_new(from + 32 * i + lane) : 0.0f;
    if (phase.normed) {
        copy_wait<1>();
        __syncwarp();
        f32 mean = 0.0f, square = 0.0f;
        if (norm.subtract_mean) {
#pragma unroll
            for (u32 i = 0; i < EACH; i++) mean += x[i];
            mean = warp_sum(mean) / DIM;
        }
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            if (32 * i + lane < DIM) square += (x[i] - mean) * (x[i] - mean);
        const f32 factor = 1.0f / sqrtf(warp_sum(square) / DIM + norm.eps);
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            if (32 * i + lane < DIM) {
                x[i] = (x[i] - mean) * factor;
                if (norm.weight) x[i] *= weight[32 * i + lane];
                if (norm.bias) x[i] += norm.bias[32 * i + lane];
            }
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++)
        if (32 * i + lane < DIM) raw[32 * i + lane] = x[i];
    __syncwarp();
#pragma unroll 1
    for (u32 pair = lane; pair < half; pair += 32) {
        const u32 low = phase.interleaved ? 2 * pair : pair, high = phase.interleaved ? low + 1 : pair + half;
        const f32 a = raw[low], b = raw[high], cosine = angles[pair], sine = angles[half + pair];
        to[low] = Cast<TYPE>::from(a * cosine - b * sine);
        to[high] = Cast<TYPE>::from(b * cosine + a * sine);
    }
#pragma unroll 1
    for (u32 i = phase.rotary_dim + lane; i < DIM; i += 32) to[i] = Cast<TYPE>::from(raw[i]);
}

// EACH elements, as registers, from memory of any kind.
template <u32 EACH> DEVICE void load_some(u32 (&to)[4], const TYPE* from) {
    if (EACH == 8) {
        const uint4 x = *(const uint4*)from;
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    } else if (EACH == 4) {
        const uint2 x = *(const uint2*)from;
        to[0] = x.x, to[1] = x.y;
    } else to[0] = *(const u32*)from;
}

// 16 keys and values, on their way from the cache to a warp's registers. What the cache has beyond the newest position
// may be anything.
struct Tile {
    u32 first;
    u32 k[2][DIM / (4 * K_EACH)][4], v[4][V_DIM / V_ROW][4];

    DEVICE static u32 key_row(u32 i) { return threadIdx.x % 32 / 4 + 8 * i; }
    DEVICE static u32 value_row(u32 i) { return threadIdx.x % 4 * 2 + i % 2 + i / 2 * 8; }
    DEVICE static u32 key_at() { return K_EACH * (threadIdx.x % 4); }
    DEVICE static u32 value_at() { return V_EACH * (threadIdx.x % 32 / 4); }
    DEVICE bool visible(const Span& span, u32 row) const { return first + row >= span.begin && first + row < span.end; }
    DEVICE bool is_newest(const Span& span, u32 row) const { return first + row + 1 == span.end; }

    // `keys`, `values`: the rows of the cache from position `first` on.
    DEVICE void load_keys(const TYPE* keys) {
        const TYPE* from = keys + key_row(0) * DIM + key_at();
#pragma unroll
        for (u32 i = 0; i < 2; i++)
#pragma unroll
            for (u32 j = 0; j < DIM / (4 * K_EACH); j++)
                load_some<K_EACH>(k[i][j], from + 8 * i * DIM + 4 * K_EACH * j);
    }

    DEVICE void load_values(const TYPE* values) {
        const TYPE* from = values + value_row(0) * V_DIM + value_at();
#pragma unroll
        for (u32 i = 0; i < 4; i++)
#pragma unroll
            for (u32 j = 0; j < V_DIM / V_ROW; j++)
                load_some<V_EACH>(v[i][j], from + (i % 2 + i / 2 * 8) * V_DIM + V_ROW * j);
    }

    // Put the newest position in its place, if it is one of these.
    DEVICE void complete_keys(const Span& span, const Heads& heads) {
        if (first + KEYS < span.end) return;
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            if (is_newest(span, key_row(i)))
#pragma unroll
                for (u32 j = 0; j < DIM / (4 * K_EACH); j++)
                    load_some<K_EACH>(k[i][j], heads.key + 4 * K_EACH * j + key_at());
    }

    // And zeros in the place of keys that no query sees: a weight of zero does not make one of what is no number.
    DEVICE void complete_values(const Span& span, const Heads& heads) {
        if (first + KEYS < span.end && first >= span.begin) return;
#pragma unroll
        for (u32 i = 0; i < 4; i++)
#pragma unroll
            for (u32 j = 0; j < V_DIM / V_ROW; j++) {
                if (is_newest(span, value_row(i))) load_some<V_EACH>(v[i][j], heads.value + V_ROW * j + value_at());
                else if (!visible(span, value_row(i))) v[i][j][0] = v[i][j][1] = v[i][j][2] = v[i][j][3] = 0;
            }
    }
};

// A warp's part of a head.
struct Part {
    f32 o[V_DIM / 16][4], m[2], l[2];

    DEVICE Part() {
        m[0] = m[1] = -infinity();
        l[0] = l[1] = 0.0f;
    }

    // Takes in a tile of keys, the warp's FIRST one or another; `load_values` brings its values, which need not be
    // there before.
    template <bool FIRST, typename Load>
    DEVICE void add(const Phase& phase, const Span& span, const Heads& heads, Tile& tile, Load load_values) {
        const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const auto& k = tile.k;
        const auto& v = tile.v;
        f32 s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (u32 j = 0; j < DIM / (4 * K_EACH); j++) {
            u32 q[4];
            load_some<K_EACH>(q, heads.q + min(g, GROUP - 1u) * Q_ROW + 4 * K_EACH * j + K_EACH * t);
            Tensor<TYPE>::multiply(s, k[0][j][0], k[1][j][0], k[0][j][1], k[1][j][1], q[0], q[1]);
            if (K_EACH == 8) Tensor<TYPE>::multiply(s, k[0][j][2], k[1][j][2], k[0][j][3], k[1][j][3], q[2], q[3]);
        }
        load_values();
        f32 shrink[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
#pragma unroll
            for (u32 j = i; j < 4; j += 2)
                s[j] = tile.visible(span, g + 8 * (j / 2)) ? s[j] * phase.scale * LOG2E : -infinity();
            f32 most = fmaxf(s[i], s[i + 2]);
#pragma unroll
            for (u32 lanes = 4; lanes < 32; lanes *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
            // Some key of these 16 is visible, so this is finite.
            most = fmaxf(most, m[i]);
            shrink[i] = exp2_fast(m[i] - most);
            m[i] = most;
            s[i] = exp2_fast(s[i] - most);
            s[i + 2] = exp2_fast(s[i + 2] - most);
            l[i] = l[i] * shrink[i] + s[i] + s[i + 2];
        }
        const u32 low = transpose(Tensor<TYPE>::pack(s[0], s[1])), high = transpose(Tensor<TYPE>::pack(s[2], s[3]));
        // Row g of the i-th pair of rows is the dimension V_EACH g + 2 i of a row of pieces, row g + 8 the one after
        // it.
#pragma unroll
        for (u32 j = 0; j < V_DIM / V_ROW; j++)
#pragma unroll
            for (u32 i = 0; i < V_EACH / 2; i++) {
                f32(&c)[4] = o[j * (V_EACH / 2) + i];
#pragma unroll
                for (u32 e = 0; e < 4; e++) c[e] = FIRST ? 0.0f : c[e] * shrink[e % 2];
                Tensor<TYPE>::multiply(c, __byte_perm(v[0][j][i], v[1][j][i], 0x5410),
                    __byte_perm(v[0][j][i], v[1][j][i], 0x7632), __byte_perm(v[2][j][i], v[3][j][i], 0x5410),
                    __byte_perm(v[2][j][i], v[3][j][i], 0x7632), low, high);
            }
    }

    // Adds the warps' sums, of which the first `active` have any, in `heads.sums[0 ..]`, and says what all have.
    DEVICE void gather(Heads& heads, u32 active) {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
#pragma unroll
            for (u32 lanes = 4; lanes < 32; lanes *= 2) l[i] += __shfl_xor_sync(~0u, l[i], lanes);
            if (g == 0) {
                heads.most[warp][2 * t + i] = m[i];
                heads.weight[warp][2 * t + i] = l[i];
            }
        }
        __syncthreads();
        if (warp < GROUP) {
            const f32 its = lane < active ? heads.most[lane][warp] : -infinity(), all = warp_max(its),
                      factor = exp2_fast(its - all);
            const f32 weight = warp_sum(lane < active ? heads.weight[lane][warp] * factor : 0.0f);
            if (lane < WARPS) heads.shrink[lane][warp] = factor;
            if (lane == 0) {
                heads.all_most[warp] = all;
                heads.all_weight[warp] = weight;
            }
        }
        __syncthreads();
        for (u32 round = 0; round * ADDENDS < active; round++) {
            if (warp / ADDENDS == round && warp < active) {
#pragma unroll
                for (u32 i = 0; i < V_DIM / 16; i++)
#pragma unroll
                    for (u32 e = 0; e < 2; e++) {
                        const u32 head = 2 * t + e, dim = i / (V_EACH / 2) * V_ROW + g * V_EACH + i % (V_EACH / 2) * 2;
                        if (head >= GROUP) continue;
                        const f32 factor = heads.shrink[warp][head];
                        float2* to = (float2*)&heads.sums[warp % ADDENDS][head][dim];
                        float2 sum = round > 0 ? *to : make_float2(0.0f, 0.0f);
                        sum.x += o[i][e] * factor;
                        sum.y += o[i][e + 2] * factor;
                        *to = sum;
                    }
            }
            __syncthreads();
        }
    }
};

// The row of the cache where a key head has a position. `table`: null for a row of no sequence.
DEVICE size_t cached_row(const Phase& phase, const u32* table, u32 head, u32 first) {
    if (!table) return 0;
    const u32 inside = first & ((1u << phase.block_shift) - 1);
    return (((size_t)table[first >> phase.block_shift] * phase.kv_heads + head) << phase.block_shift) + inside;
}

// The sum of the parts that blocks left of a head, four columns from `column` on.
DEVICE float4 join_parts(const Step& step, u32 q_heads, u32 splits, u32 column) {
    // Under way at a time.
    constexpr u32 EACH = 8;
    const u32 head = column / V_DIM;
    f32 most = -infinity(), weight = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (u32 first = 0; first < splits; first += EACH) {
        float2 scales[EACH];
        float4 parts[EACH];
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 split = first + i;
            scales[i] = make_float2(-infinity(), 0.0f);
            parts[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (split >= splits) continue;
            scales[i] = __ldcg(step.scales + split * q_heads + head);
            parts[i] = __ldcg((const float4*)(step.parts + (size_t)split * q_heads * V_DIM + column));
        }
        f32 all = most;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) all = fmaxf(all, scales[i].x);
        const f32 shrink = exp2_fast(most - all);
        weight *= shrink;
        sum = make_float4(sum.x * shrink, sum.y * shrink, sum.z * shrink, sum.w * shrink);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const f32 factor = exp2_fast(scales[i].x - all);
            weight += scales[i].y * factor;
            sum.x += parts[i].x * factor;
            sum.y += parts[i].y * factor;
            sum.z += parts[i].z * factor;
            sum.w += parts[i].w * factor;
        }
        most = all;
    }
    const f32 factor = 1.0f / weight;
    return make_float4(sum.x * factor, sum.y * factor, sum.z * factor, sum.w * factor);
}

DEVICE void store_four(TYPE* to, f32 a, f32 b, f32 c, f32 d) {
    *(uint2*)to = make_uint2(Tensor<TYPE>::pack(a, b), Tensor<TYPE>::pack(c, d));
}

// This block's part of attention: a split of a key head. There are no more of those than blocks.
struct Attend {
    const Span& span;
    bool works;
    // Null for a row of no sequence.
    const u32* table;
    // The row of the cache that this warp's first tile begins at.
    size_t first_row;

    // Before this step's queries are there: what was cached before it comes nearer, and norms' weights.
    DEVICE Attend(const Phase& phase, const Span& all, const u32* blocks, Heads& heads) : span(all), table(blocks) {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = span.first_tile + warp;
        works = span.head < phase.kv_heads;
        if (!works) return;
        const f32* from = warp < GROUP ? phase.norm.weight : phase.key_norm.weight;
        if (phase.normed && from && warp <= GROUP && lane < DIM / 4)
            copy_async(shared_address(heads.scales[warp] + 4 * lane), from + 4 * lane, true);
        if (tile >= span.end_tile) return;
        first_row = cached_row(phase, table, span.head, tile * KEYS);
        const u32 at = lane * 64;
        if (at < KEYS * DIM) asm volatile("prefetch.global.L2 [%0];" ::"l"(phase.keys + first_row * DIM + at));
        if (at < KEYS * V_DIM) asm volatile("prefetch.global.L2 [%0];" ::"l"(phase.values + first_row * V_DIM + at));
    }

    // Of the row whose q, k and v lie in `phase.from`; its k and v go to the cache.
    DEVICE void run(const Phase& phase, const Step& step, u32 position, const f32* angles, Heads& heads) {
        if (!works) return;
        load(phase, angles, heads);
        __syncthreads();
        const u32 tiles = span.end_tile - span.first_tile;
        Part part;
        multiply(phase, heads, part);
        if (span.has_newest() && table) {
            const size_t row = cached_row(phase, table, span.head, position);
            if (threadIdx.x < DIM) phase.keys[row * DIM + threadIdx.x] = heads.key[threadIdx.x];
            if (threadIdx.x < V_DIM) phase.values[row * V_DIM + threadIdx.x] = heads.value[threadIdx.x];
        }
        part.gather(heads, min(tiles, WARPS));
        const u32 addends = min(tiles, ADDENDS), first = span.head * GROUP * V_DIM;
#pragma unroll 1
        for (u32 i = threadIdx.x; i < GROUP * V_DIM; i += THREADS) {
            const u32 of = i / V_DIM;
            f32 sum = 0.0f;
#pragma unroll 4
            for (u32 j = 0; j < addends; j++) sum += heads.sums[j][of][i % V_DIM];
            if (span.splits == 1) ((TYPE*)phase.to)[first + i] = Cast<TYPE>::from(sum / heads.all_weight[of]);
            else {
                step.parts[(size_t)span.split * phase.q_heads * V_DIM + first + i] = sum;
                if (i % V_DIM == 0)
                    step.scales[span.split * phase.q_heads + span.head * GROUP + of] = make_float2(
                        heads.all_most[of], heads.all_weight[of]);
            }
        }
        if (span.splits > FEW_SPLITS) join(phase, step, first);
    }

private:
    // Queries, and the newest key and value where they are this block's.
    DEVICE void load(const Phase& phase, const f32* angles, Heads& heads) const {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const TYPE* qkv = (const TYPE*)phase.from;
        const TYPE *k = qkv + phase.q_heads * DIM, *v = k + phase.kv_heads * DIM;
        const bool is_query = warp < GROUP;
        if (is_query || (warp == GROUP && span.has_newest())) {
            const TYPE* from = is_query ? qkv + (span.head * GROUP + warp) * DIM : k + span.head * DIM;
            load_head(
                phase, is_query ? phase.norm : phase.key_norm, heads.scales[warp], angles, from, heads.raw[warp],
                is_query ? heads.q + warp * Q_ROW : heads.key);
        } else if (warp == GROUP + 1 && span.has_newest()) {
            for (u32 i = lane; i < V_DIM; i += 32)
                heads.value[i] = Cast<TYPE>::from(load_new(v + span.head * V_DIM + i));
        }
    }

    // This warp's tiles.
    DEVICE void multiply(const Phase& phase, const Heads& heads, Part& part) const {
        u32 index = span.first_tile + threadIdx.x / 32;
        if (index >= span.end_tile) return;
        Tile tile;
        tile.first = index * KEYS;
        tile.load_keys(phase.keys + first_row * DIM);
        tile.load_values(phase.values + first_row * V_DIM);
        tile.complete_keys(span, heads);
        tile.complete_values(span, heads);
        part.add<true>(phase, span, heads, tile, [] {});
#pragma unroll 1
        for (index += WARPS; index < span.end_tile; index += WARPS) {
            tile.first = index * KEYS;
            const size_t row = cached_row(phase, table, span.head, tile.first);
            tile.load_keys(phase.keys + row * DIM);
            tile.complete_keys(span, heads);
            part.add<false>(phase, span, heads, tile, [&] {
                tile.load_values(phase.values + row * V_DIM);
                tile.complete_values(span, heads);
            });
        }
    }

    // The last of a head's blocks to come adds up what all of them left.
    DEVICE void join(const Phase& phase, const Step& step, u32 first) const {
        __shared__ u32 come;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            come = atomicAdd(step.joined + span.head, 1u) + 1;
            __threadfence();
        }
        __syncthreads();
        if (come != span.splits) return;
        if (threadIdx.x == 0) step.joined[span.head] = 0;
#pragma unroll 1
        for (u32 i = threadIdx.x * 4; i < GROUP * V_DIM; i += THREADS * 4) {
            const float4 x = join_parts(step, phase.q_heads, span.splits, first + i);
            store_four((TYPE*)phase.to + first + i, x.x, x.y, x.z, x.w);
        }
    }
};
