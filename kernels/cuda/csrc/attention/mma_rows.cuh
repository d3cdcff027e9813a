// 16 query rows a warp against tiles of keys and values, on the tensor cores of any device from compute capability 8.0
// on: what `attention_prefill.cu` and `attention_cascade.cu` share. For a file that says TYPE, DIM, V_DIM and WARPS.
//
// Keys and values come in tiles of 64 through two stages of shared memory; softmax goes along with them
// (FlashAttention-2).
#pragma once
#include "mma.cuh"

// What the cache keeps: with NARROW 8-bit floats, which are widened on their way to shared memory.
#ifdef NARROW
typedef e4m3 Cached;
#else
typedef TYPE Cached;
#endif

#define KEYS 64u
#define LOG2E 1.4426950408889634f

struct MmaRows {
    typedef TYPE T;
    static const u32 ROWS = 16 * WARPS, THREADS = 32 * WARPS;
    // Rows are padded by 16 bytes, so that the 8 rows of a matrix lie in different banks.
    static const u32 K_ROW = 2 * DIM + 16, V_ROW = 2 * V_DIM + 16;
    static const u32 STAGE_BYTES = KEYS * (K_ROW + V_ROW), SHARED_BYTES = 2 * STAGE_BYTES;

    const Cached* keys;
    const Cached* values;
    const u32* table;
    Attention attention;
    u32 kv_head, ring;
    // Keys that some row of the block sees; others may never have been written.
    u32 begin, end;

    u32 q[DIM / 16][4];
    f32 o[V_DIM / 8][4];
    // Of rows g and g + 8: position, query head (for ALiBi), largest score so far (base 2), this lane's part of the sum
    // of weights.
    u32 position[2], head[2];
    f32 m[2], l[2];

    // Calls `each(turn, where it goes, where it comes from, whether that is a key some row sees)` for this thread's
    // pieces of a tile.
    template <int WIDTH, typename F>
    DEVICE void for_pieces(const Cached* from, u32 first, u32 to, const F& each) const {
#pragma unroll
        for (u32 i = 0; i < KEYS * WIDTH / 8; i += THREADS) {
            const u32 piece = i + threadIdx.x, key = piece / (WIDTH / 8), column = piece % (WIDTH / 8);
            if (KEYS * WIDTH / 8 % THREADS != 0 && piece >= KEYS * WIDTH / 8) break;
            const u32 at = first + key;
            const bool valid = at >= begin && at < end;
            const u32 block = valid ? table[at / attention.block_size] : 0;
            const size_t row = ((size_t)block * attention.kv_heads + kv_head) * attention.block_size +
                at % attention.block_size;
            each(i / THREADS, to + key * (2 * WIDTH + 16) + column * 16, from + (valid ? row * WIDTH + column * 8 : 0),
                valid);
        }
    }

    template <int WIDTH>
    DEVICE void fetch_rows(const Cached* from, u32 first, u32 to) const {
#ifdef NARROW
        // All on their way before the first is stored.
        uint2 pieces[(KEYS * WIDTH / 8 + THREADS - 1) / THREADS];
        for_pieces<WIDTH>(from, first, to, [&](u32 turn, u32, const Cached* at, bool valid) {
            pieces[turn] = valid ? __ldcg((const uint2*)at) : make_uint2(0, 0);
        });
        for_pieces<WIDTH>(from, first, to,
            [&](u32 turn, u32 there, const Cached*, bool) { store_shared(there, widen<T>(pieces[turn])); });
#else
        for_pieces<WIDTH>(
            from, first, to, [](u32, u32 there, const Cached* at, bool valid) { copy_async(there, at, valid); });
#endif
    }

    DEVICE void fetch(u32 first, u32 stage) const {
        fetch_rows<DIM>(keys, first, ring + stage * STAGE_BYTES);
        fetch_rows<V_DIM>(values, first, ring + stage * STAGE_BYTES + KEYS * K_ROW);
    }

    DEVICE void multiply_keys(f32 (&s)[KEYS / 8][4], u32 stage) const {
        const u32 lane = threadIdx.x % 32;
        const u32 from = ring + stage * STAGE_BYTES + (lane % 8 + lane / 16 * 8) * K_ROW + lane / 8 % 2 * 16;
#pragma unroll
        for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) s[i][j] = 0.0f;
#pragma unroll
        for (u32 k = 0; k < DIM / 16; k++)
#pragma unroll
            for (u32 pair = 0; pair < KEYS / 16; pair++) {
                u32 b[4];
                load_matrices(b, from + pair * 16 * K_ROW + 32 * k);
                Tensor<T>::multiply(s[2 * pair], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[1]);
                Tensor<T>::multiply(s[2 * pair + 1], q[k][0], q[k][1], q[k][2], q[k][3], b[2], b[3]);
            }
    }

    // Scores times log2(e); -infinity where not visible: where `sees(i, key)` is false for row g + 8 i.
    template <typename F>
    DEVICE void finish_scores(f32 (&s)[KEYS / 8][4], u32 first, bool all_visible, const F& sees) const {
        const u32 t = threadIdx.x % 4;
        const f32 scale = attention.scale_of<Cached>(kv_head);
#pragma unroll
        for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                const u32 key = first + 8 * i + 2 * t + j % 2, at = position[j / 2];
                f32 x = s[i][j] * scale;
                if (attention.soft_cap != 0.0f) x = attention.soft_cap * tanhf(x / attention.soft_cap);
                if (attention.alibi) x -= attention.alibi[head[j / 2]] * fabsf((f32)((int)at - (int)key));
                if (attention.relative) x += attention.bias(head[j / 2], at, key);
                x *= LOG2E;
                s[i][j] = all_visible || sees(j / 2, key) ? x : -infinity();
            }
    }

    // Turns scores into weights and rescales what was summed.
    DEVICE void weigh(f32 (&s)[KEYS / 8][4]) {
#pragma unroll
        for (u32 row = 0; row < 2; row++) {
            f32 most = m[row];
#pragma unroll
            for (u32 i = 0; i < KEYS / 8; i++) most = fmaxf(most, fmaxf(s[i][2 * row], s[i][2 * row + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            const f32 base = most == -infinity() ? 0.0f : most, shrink = exp2_fast(m[row] - base);
            m[row] = most;
            l[row] *= shrink;
#pragma unroll
            for (u32 i = 0; i < KEYS / 8; i++)
#pragma unroll
                for (u32 j = 2 * row; j < 2 * row + 2; j++) {
                    s[i][j] = exp2_fast(s[i][j] - base);
                    l[row] += s[i][j];
                }
#pragma unroll
            for (u32 d = 0; d < V_DIM / 8; d++) {
                o[d][2 * row] *= shrink;
                o[d][2 * row + 1] *= shrink;
            }
        }
    }

    DEVICE void multiply_values(const f32 (&s)[KEYS / 8][4], u32 stage) {
        const u32 lane = threadIdx.x % 32;
        const u32 from = ring + stage * STAGE_BYTES + KEYS * K_ROW + lane % 16 * V_ROW + lane / 16 * 16;
#pragma unroll
        for (u32 pair = 0; pair < KEYS / 16; pair++) {
            const u32 a0 = Tensor<T>::pack(s[2 * pair][0], s[2 * pair][1]),
                      a1 = Tensor<T>::pack(s[2 * pair][2], s[2 * pair][3]);
            const u32 a2 = Tensor<T>::pack(s[2 * pair + 1][0], s[2 * pair + 1][1]);
            const u32 a3 = Tensor<T>::pack(s[2 * pair + 1][2], s[2 * pair + 1][3]);
#pragma unroll
            for (u32 d = 0; d < V_DIM / 16; d++) {
                u32 b[4];
                load_matrices_transposed(b, from + pair * 16 * V_ROW + 32 * d);
                Tensor<T>::multiply(o[2 * d], a0, a1, a2, a3, b[0], b[1]);
                Tensor<T>::multiply(o[2 * d + 1], a0, a1, a2, a3, b[2], b[3]);
            }
        }
    }

    // Takes query row g + 8 i, and clears its sums.
    DEVICE void begin_row(u32 i, const T* qkv, u32 row) {
        const T* from = qkv + (size_t)row * attention.qkv_width + head[i] * DIM + 2 * (threadIdx.x % 4);
        m[i] = -infinity();
        l[i] = 0.0f;
#pragma unroll
        for (u32 k = 0; k < DIM / 16; k++) {
            q[k][i] = *(const u32*)(from + 16 * k);
            q[k][i + 2] = *(const u32*)(from + 16 * k + 8);
        }
#pragma unroll
        for (u32 d = 0; d < V_DIM / 8; d++) o[d][2 * i] = o[d][2 * i + 1] = 0.0f;
    }

    // Asks for the first tile.
    DEVICE void fetch_first() const {
        fetch(begin / KEYS * KEYS, 0);
        copy_commit();
    }

    // Goes through all tiles, of which the first was asked for; `finish(s, first)` finishes a tile's scores. A warp
    // that does not `compute` brings keys and values for the others.
    template <typename F>
    DEVICE void attend(bool computes, const F& finish) {
        u32 stage = 0;
        for (u32 first = begin / KEYS * KEYS; first < end; first += KEYS) {
            if (first + KEYS < end) fetch(first + KEYS, stage ^ 1);
            copy_commit();
            copy_wait<1>();
            __syncthreads();
            if (computes) {
                f32 s[KEYS / 8][4];
                multiply_keys(s, stage);
                finish(s, first);
                weigh(s);
                multiply_values(s, stage);
            }
            __syncthreads();
            stage ^= 1;
        }
    }

    // This row's sum of weights, in each lane that has a part of it.
    DEVICE f32 weight(u32 i) const {
        f32 sum = l[i];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        return sum;
    }
};
