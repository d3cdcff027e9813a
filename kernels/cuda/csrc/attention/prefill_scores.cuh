// What a warpgroup of `attention_prefill_hopper.cu` does with its 64 rows between products: which keys each sees, its
// softmax, its result. Lane 4 g + t of warp w has rows 16 w + g and 16 w + g + 8: of scores columns 8 i + 2 t and the
// next one, of sums as many dimensions.
#pragma once
#ifdef NARROW
#include "prefill_feed_narrow.cuh"
#elif defined(EXPANDED)
#include "expanded_feed.cuh"
#else
#include "prefill_feed.cuh"
#endif
#ifdef SOFT_CAP
#include "activation.cuh"
#endif

#define LOG2E 1.4426950408889634f
// Most that the sum of a thread's weights of a row in a tile of keys may be. Scores are taken relative to the largest
// of the first tile that a row sees, and later ones' weights may be larger than 1: 16-bit floats hold them as exactly.
// Where a sum shows that one is much larger, what scores are taken relative to rises. So no pass looks for the largest
// score of each tile (compare FlashAttention-4, which rescales as seldom).
#define MOST_WEIGHT 4096.0f

// A thread's two rows.
struct Rows {
    // Tiles of keys; the first and the end of those that all rows of the block's tile see whole.
    u32 tiles, clear, clear_end;
    u32 position[2];
    // What scores are taken relative to, and the sum of weights that this thread has seen.
    f32 most[2], sum[2];
    // What scores are multiplied by, for powers of two.
    f32 scale;
    // With SOFT_CAP: what products are multiplied by before their tanh, whose scores these are.
    f32 inside;
    // With ALIBI: what each token between takes from a score.
    f32 slope[2];
};

struct Scores : Feeder {
    DEVICE u32 row_of(const Tile& tile, u32 group, u32 i) const {
        return tile.first_packed + 64 * group + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i;
    }

    DEVICE void begin_rows(Rows& rows, const Tile& tile, u32 group) const {
        rows.tiles = tile.tiles;
        rows.clear = (tile.clear + KEYS - 1) / KEYS - tile.first_tile;
        rows.clear_end = tile.clear_end / KEYS - tile.first_tile;
        rows.scale = attention.scale_of<Cached>(tile.kv_head) * LOG2E;
#ifdef SOFT_CAP
        rows.inside = attention.scale_of<Cached>(tile.kv_head) / attention.soft_cap;
        rows.scale = attention.soft_cap * LOG2E;
#endif
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 packed = min(row_of(tile, group, i), tile.packed - 1);
            rows.position[i] = tile.start + packed / group_size;
#ifdef ALIBI
            rows.slope[i] = attention.alibi[tile.kv_head * group_size + packed % group_size] * LOG2E / rows.scale;
#endif
            rows.most[i] = -infinity();
            rows.sum[i] = 0.0f;
        }
    }

#ifdef SOFT_CAP
    // The hardware's own tanh is wrong by up to 2^-11 of it: no more than what rounding weights to bf16 is for scores
    // of 4, and 0.005 of a weight for those of 10. Rows of f16 pay for one that is exact to 2^-20.
    DEVICE static f32 tanh_nearly(bf16, f32 x) {
        f32 y;
        asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
    }
    DEVICE static f32 tanh_nearly(f16, f32 x) { return __fmaf_rn(2.0f, sigmoid_nearly(2.0f * x), -1.0f); }

    DEVICE static void cap(f32 (&s)[KEYS / 2], const Rows& rows) {
#pragma unroll
        for (u32 i = 0; i < KEYS / 2; i++) s[i] = tanh_nearly(T(), s[i] * rows.inside);
    }
#endif

    // This thread's first key of a tile of keys.
    DEVICE static u32 first_key(const Tile& tile, u32 index) {
        return key_tile(tile, index) * KEYS + 2 * (threadIdx.x % 4);
    }

    // What ALiBi takes from scores.
    DEVICE static void add_distances(f32 (&s)[KEYS / 2], const Rows& rows, u32 first) {
        f32 from[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) from[i] = (f32)(int)(first - rows.position[i]);
#pragma unroll
        for (u32 i = 0; i < KEYS / 2; i++) {
            const f32 distance = from[i / 2 % 2] + (f32)(i / 4 * 8 + i % 2);
            s[i] = __fmaf_rn(-rows.slope[i / 2 % 2], fabsf(distance), s[i]);
        }
    }

    // Products to scores.
    DEVICE void finish_scores(f32 (&s)[KEYS / 2], const Rows& rows, const Tile& tile, u32 index) const {
#ifdef SOFT_CAP
        cap(s, rows);
#endif
#ifdef ALIBI
        add_distances(s, rows, first_key(tile, index));
#endif
        mask(s, rows, tile, index);
    }

    // Hides keys that rows do not see.
    DEVICE void mask(f32 (&s)[KEYS / 2], const Rows& rows, const Tile& tile, u32 index) const {
        const u32 nth = key_tile(tile, index) - tile.first_tile;
        if (nth >= rows.clear && nth < rows.clear_end) return;
        const u32 first = first_key(tile, index);
        int from[2], until[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 at = rows.position[i];
            from[i] = (int)((at >= attention.window ? at - attention.window + 1 : 0) - first);
            until[i] = (int)(attention.seen_end(at, tile.start + tile.packed / group_size) - 1 - first);
        }
#pragma unroll
        for (u32 i = 0; i < KEYS / 2; i++) {
            const int key = i / 4 * 8 + i % 2;
            if (key > until[i / 2 % 2] || key < from[i / 2 % 2]) s[i] = -infinity();
        }
    }

    // Scores to weights, given what they are relative to, times the scale; and this thread's sums.
    DEVICE static void weigh_by(
        const f32 (&s)[KEYS / 2], u32 (&p)[KEYS / 4], f32 scale, const f32 (&base)[2], f32 (&sum)[2]) {
        sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (u32 i = 0; i < KEYS / 2; i += 2) {
            const u32 row = i / 2 % 2;
            const f32 a = exp2_fast(__fmaf_rn(s[i], scale, -base[row])),
                      b = exp2_fast(__fmaf_rn(s[i + 1], scale, -base[row]));
            sum[row] += a + b;
            p[i / 2] = Tensor<Operand>::pack(a, b);
        }
    }

    // The largest score of a row.
    DEVICE static f32 most_of(const f32 (&s)[KEYS / 2], u32 row) {
        f32 most = fmaxf(s[2 * row], s[2 * row + 1]);
#pragma unroll
        for (u32 i = 2 * row + 4; i < KEYS / 2; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        return fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    }

    // For rows of which a thread's sum is too large, takes the largest score as what scores are relative to; `shrink`
    // rescales earlier sums.
    DEVICE static void raise(
        const f32 (&s)[KEYS / 2], Rows& rows, f32 scale, f32 (&base)[2], const f32 (&sum)[2], f32 (&shrink)[2]) {
        const u32 four = 15u << (threadIdx.x & 28);
#pragma unroll
        for (u32 row = 0; row < 2; row++) {
            const bool needed = __ballot_sync(~0u, !(sum[row] <= MOST_WEIGHT)) & four;
            const f32 most = fmaxf(rows.most[row], most_of(s, row));
            if (!needed) continue;
            base[row] = most == -infinity() ? 0.0f : most * scale;
            shrink[row] = exp2_fast(rows.most[row] * scale - base[row]);
            rows.most[row] = most;
        }
    }

    // Scores to weights; true if `shrink` must rescale earlier sums. Of a row that has seen no key yet, weights are no
    // numbers before it is raised.
    DEVICE bool weigh(const f32 (&s)[KEYS / 2], u32 (&p)[KEYS / 4], Rows& rows, f32 (&shrink)[2]) const {
        const f32 scale = rows.scale;
        f32 base[2] = {rows.most[0] * scale, rows.most[1] * scale}, sum[2];
        bool raised = false;
        shrink[0] = shrink[1] = 1.0f;
#pragma unroll 1
        while (true) {
            weigh_by(s, p, scale, base, sum);
            if (raised || __all_sync(~0u, sum[0] <= MOST_WEIGHT && sum[1] <= MOST_WEIGHT)) break;
            raise(s, rows, scale, base, sum, shrink);
            raised = true;
        }
#pragma unroll
        for (u32 row = 0; row < 2; row++) rows.sum[row] = rows.sum[row] * shrink[row] + sum[row];
        return raised;
    }

    DEVICE static void rescale(f32 (&o)[V_DIM / 2], const f32 (&shrink)[2]) {
#pragma unroll
        for (u32 i = 0; i < V_DIM / 2; i++) o[i] *= shrink[i / 2 % 2];
    }

    // The sums of a tile's rows as they are before the first of its keys, whose scores there are.
    DEVICE void start_sums(
        f32 (&o)[V_DIM / 2], const f32 (&s)[KEYS / 2], Rows& rows, const Tile& tile, u32 group) const {
#ifdef EXPANDED
        if (tile.continues) return resume(o, rows.most, rows.sum, tile, group);
#endif
#pragma unroll
        for (u32 i = 0; i < V_DIM / 2; i++) o[i] = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 2; i++) rows.most[i] = most_of(s, i);
    }

    // What sums of a tile are multiplied by, once all their keys have been seen.
    DEVICE void finish(f32 (&factor)[2], const Rows& rows, const Tile& tile, u32 group) const {
#ifdef EXPANDED
        if (tile.goes_on) keep_numbers(rows.most, rows.sum, tile, group);
#endif
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            f32 sum = rows.sum[i];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            factor[i] = 1.0f;
            if (attention.sinks) {
                const u32 head = tile.kv_head * group_size + row_of(tile, group, i) % group_size;
                const f32 most = rows.most[i] * rows.scale, sink = attention.sinks[head] * LOG2E,
                          all = fmaxf(most, sink);
                factor[i] = exp2_fast(most - all);
                sum = sum * factor[i] + exp2_fast(sink - all);
            }
            factor[i] *= attention.v_scale_of<Cached>(tile.kv_head) / sum;
        }
    }

    DEVICE void write_out(
        T* out, const Tile& tile, const f32 (&o)[V_DIM / 2], const f32 (&factor)[2], u32 group) const {
#ifdef EXPANDED
        if (tile.goes_on) return keep_sums(o, tile, group);
#endif
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 row = row_of(tile, group, i), head = tile.kv_head * group_size + row % group_size;
            if (row >= tile.packed) continue;
            T* from = out + ((size_t)(tile.first_row + row / group_size) * attention.q_heads + head) * V_DIM;
            u32* to = (u32*)(from + 2 * (threadIdx.x % 4));
#pragma unroll
            for (u32 d = 0; d < V_DIM / 8; d++)
                to[4 * d] = Tensor<T>::pack(o[4 * d + 2 * i] * factor[i], o[4 * d + 2 * i + 1] * factor[i]);
        }
    }
};
