// Attention for sequences with one row in this step, limited by reading their cache once. Sequences with more rows are
// left alone.
//
// All (sequence, head, tile of keys) of the step lie in one list, cut into equal parts, one for each block of a grid
// that is as large as the device: any mix of lengths keeps all multiprocessors equally busy, and the grid does not
// depend on the lengths, so the launch can be captured in a graph. The query heads that share a key head are one matrix
// operand (GQA packing), so that the cache is read once.
//
//     list    | s0 h0: tiles | s0 h1: tiles | s1 h0: tiles ......... | s1 h1: tiles ......... |
//     blocks  |      0      |      1      |      2      |      3      |      4      |      5  |
//
// Where a head's parts are in several blocks, each leaves its own in `scratch` for the one that began the head, which
// adds them up in their order along the keys (`decode_parts.cuh`). Each warp streams its own 16 keys of a tile through
// its own ring in shared memory, and keeps its own softmax until the head ends; no barrier is inside. Where the list is
// cut depends on the whole batch, and so does rounding.
//
// Where contexts are short, what counts is the way to the first keys, walked once a layer at 4 to 5 clocks an
// instruction: so it has few of them, few that wait for each other, and no barrier. All that does not come of this step
// is read before its own keys are waited for.
//
// With CASCADE, `attention_cascade.cu` has attended to what members of a group share of their keys. They leave that out
// here, and what it left is added to each of their heads by the block that began it.
//
// Scores are computed transposed, S^T = K Q^T and O^T = V^T P^T, so that up to 8 heads cost no padding rows.
#include "mma.cuh"

// Compiled for one type, shape and configuration (`src/attention_decode.rs`); TILES_Q: 8 query heads of a key head
// each.
#ifndef TYPE
#define TYPE bf16
#define DIM 128
#define V_DIM 128
#define TILES_Q 1
#define WARPS 4
#define STAGES 3
#endif

#define KEYS 16u
#define TILE (WARPS * KEYS)
#define GROUP (8u * TILES_Q)
#define BLOCK_TILES (256 / TILE)
#include "decode_heads.cuh"
#include "ring.cuh"
// Blocks that a multiprocessor has registers for: where sums are few enough, half of them are left for the kernels
// before and after this one.
#define LEAST_BLOCKS (TILES_Q * (DIM + V_DIM) <= 256 ? 16 / WARPS : 1)

struct Decode : DecodeHeads {
    static const u32 K_ROW = Row<DIM>::BYTES, V_ROW = Row<V_DIM>::BYTES;
    static const u32 STAGE_BYTES = KEYS * (K_ROW + V_ROW), RING_BYTES = STAGES * STAGE_BYTES;
    static const u32 SUM_ROW = V_DIM + 4;

    // Query heads of a key head in one matrix operand.
    u32 group_heads;
    u32 ring;
    // [warp][head of the group]
    f32* sums;
    f32* heads_m;
    f32* heads_l;
    // Of a sequence's next 32 tiles, a tile a lane: the row of the cache where this warp's keys of its first head
    // begin. And which tiles these are.
    u32 places, placed_sequence, first_placed;

    u32 q[TILES_Q][DIM / 16][2];
    f32 o[V_DIM / 16][TILES_Q][4];
    // Of columns 2t and 2t + 1: the largest score so far (base 2), and this lane's part of the sum of weights.
    f32 m[TILES_Q][2], l[TILES_Q][2];

    // The first of this warp's keys of a tile.
    DEVICE static u32 first_key(const Cursor& at) { return at.tile * TILE + threadIdx.x / 32 * KEYS; }

    // Whether this warp's keys of a tile were there before this step: all but a sequence's last one.
    DEVICE static bool is_old(const Cursor& at) { return first_key(at) + KEYS < at.end || first_key(at) >= at.end; }

    // Starts copying 16 bytes at a time of a warp's keys, or values; zeros for those but `count` from `low` on, which
    // nobody sees. `from`: this lane's first piece.
    template <int WIDTH>
    DEVICE static void copy_rows(const Cached* from, u32 to, u32 low, u32 count) {
        const u32 PIECES = Row<WIDTH>::PIECES;
#pragma unroll
        for (u32 i = 0; i < KEYS * PIECES; i += 32) {
            const u32 piece = i + threadIdx.x % 32, key = piece / PIECES;
            if (KEYS * PIECES % 32 == 0 || piece < KEYS * PIECES)
                copy_async(Row<WIDTH>::lane_at(to, i), from + i * (16 / sizeof(Cached)), key - low < count);
        }
    }

    // Finds out where the warp's keys of a tile, and of those after it, lie.
    DEVICE void place(const Cursor& at) {
        placed_sequence = at.sequence;
        first_placed = at.tile;
        const u32 key = min(first_key(at) + threadIdx.x % 32 * TILE, at.end - 1) & ~(KEYS - 1);
        const u32 entry = (u32)((u64)key * shares.block_inverse >> 35);
        const u32 block = list.batch.blocks[at.table + entry];
        places = (block * attention.kv_heads - entry) * attention.block_size + key;
    }

    // Starts copying this warp's keys of a tile into a stage of its ring.
    DEVICE void fetch(const Cursor& at, u32 stage) {
        if (at.sequence != placed_sequence || at.tile - first_placed >= 32) place(at);
        const u32 row = __shfl_sync(~0u, places, at.tile - first_placed) + kv_head(at) * attention.block_size;
        const u32 first = first_key(at), low = max(at.begin, first), high = min(at.end, first + KEYS);
        if (low >= high) return;
        const u32 to = ring + stage * STAGE_BYTES, piece = threadIdx.x % 32 * (16 / sizeof(Cached));
        copy_rows<DIM>(keys + (size_t)row * DIM + piece, to, low - first, high - low);
        copy_rows<V_DIM>(values + (size_t)row * V_DIM + piece, to + KEYS * K_ROW, low - first, high - low);
    }

    DEVICE void load_queries(const Cursor& at) {
        const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const u32 have = num_q(at);
#pragma unroll
        for (u32 tile = 0; tile < TILES_Q; tile++) {
            const u32 head = 8 * tile + g;
            const T* from = qkv + (size_t)at.row * attention.qkv_width + (first_q(at) + head) * DIM;
#pragma unroll
            for (u32 k = 0; k < DIM / 16; k++) {
                q[tile][k][0] = head < have ? as_operand<T>(*(const u32*)(from + 16 * k + pair_of(t, 0))) : 0;
                q[tile][k][1] = head < have ? as_operand<T>(*(const u32*)(from + 16 * k + pair_of(t, 1))) : 0;
            }
        }
    }

    DEVICE void clear() {
#pragma unroll
        for (u32 tile = 0; tile < TILES_Q; tile++) {
            m[tile][0] = m[tile][1] = -infinity();
            l[tile][0] = l[tile][1] = 0.0f;
#pragma unroll
            for (u32 d = 0; d < V_DIM / 16; d++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) o[d][tile][i] = 0.0f;
        }
    }

    // What few models do to scores, which are times log2(e) here.
    DEVICE void bend(const Cursor& at, u32 first, f32 (&s)[TILES_Q][4]) const {
        const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first_head = first_q(at), have = num_q(at);
        const f32 cap = attention.soft_cap * LOG2E;
#pragma unroll
        for (u32 tile = 0; tile < TILES_Q; tile++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 key = first + g + 8 * (i / 2), head = 8 * tile + 2 * t + i % 2;
                if (cap != 0.0f) s[tile][i] = cap * tanhf(s[tile][i] / cap);
                if (attention.alibi && head < have)
                    s[tile][i] -= attention.alibi[first_head + head] * LOG2E * (f32)(at.end - 1 - key);
            }
    }

    DEVICE void use(const Cursor& at, u32 stage) {
        const u32 first = first_key(at);
        if (first >= at.end || first + KEYS <= at.begin) return;
        const u32 from_k = ring + stage * STAGE_BYTES;
        f32 s[TILES_Q][4];
#pragma unroll
        for (u32 tile = 0; tile < TILES_Q; tile++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) s[tile][i] = 0.0f;
#pragma unroll
        for (u32 k = 0; k < DIM / 16; k++) {
            u32 a[4];
            load_keys<DIM>(a, from_k, k);
#pragma unroll
            for (u32 tile = 0; tile < TILES_Q; tile++)
                Tensor<Operand>::multiply(s[tile], a[0], a[1], a[2], a[3], q[tile][k][0], q[tile][k][1]);
        }
        const f32 scale = attention.scale_of<Cached>(kv_head(at)) * LOG2E;
#pragma unroll
        for (u32 tile = 0; tile < TILES_Q; tile++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) s[tile][i] *= scale;
        if (attention.soft_cap != 0.0f || attention.alibi) bend(at, first, s);
        if (first < at.begin || first + KEYS > at.end) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 key = first + threadIdx.x % 32 / 4 + 8 * (i / 2);
                const bool visible = key >= at.begin && key < at.end;
#pragma unroll
                for (u32 tile = 0; tile < TILES_Q; tile++)
                    if (!visible) s[tile][i] = -infinity();
            }
        }
        u32 p[TILES_Q][2];
#pragma unroll
        for (u32 tile = 0; tile < TILES_Q; tile++) {
            f32 shrink[2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                f32 most = fmaxf(s[tile][i], s[tile][i + 2]);
#pragma unroll
                for (u32 lanes = 4; lanes < 32; lanes *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
                // Some key of these 16 is visible, so this is finite.
                most = fmaxf(most, m[tile][i]);
                shrink[i] = exp2_fast(m[tile][i] - most);
                m[tile][i] = most;
                s[tile][i] = exp2_fast(s[tile][i] - most);
                s[tile][i + 2] = exp2_fast(s[tile][i + 2] - most);
                l[tile][i] = l[tile][i] * shrink[i] + s[tile][i] + s[tile][i + 2];
            }
            p[tile][0] = transpose(Tensor<Operand>::pack(s[tile][0], s[tile][1]));
            p[tile][1] = transpose(Tensor<Operand>::pack(s[tile][2], s[tile][3]));
#pragma unroll
            for (u32 d = 0; d < V_DIM / 16; d++)
#pragma unroll
                for (u32 i = 0; i < 4; i++) o[d][tile][i] *= shrink[i % 2];
        }
        const u32 from_v = ring + stage * STAGE_BYTES + KEYS * K_ROW;
#pragma unroll
        for (u32 d = 0; d < V_DIM / 16; d++) {
            u32 a[4];
            load_values<V_DIM>(a, from_v, d);
#pragma unroll
            for (u32 tile = 0; tile < TILES_Q; tile++)
                Tensor<Operand>::multiply(o[d][tile], a[0], a[1], a[2], a[3], p[tile][0], p[tile][1]);
        }
    }

    // Puts the warps' sums side by side in shared memory.
    DEVICE void gather_warps() {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (u32 tile = 0; tile < TILES_Q; tile++) {
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                f32 sum = l[tile][i];
#pragma unroll
                for (u32 lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
                const u32 head = 8 * tile + 2 * t + i;
                if (head >= group_heads) continue;
                const u32 line = warp * group_heads + head;
                if (g == 0) {
                    heads_m[line] = m[tile][i];
                    heads_l[line] = sum;
                }
#pragma unroll
                for (u32 d = 0; d < V_DIM / 16; d++) {
                    sums[line * SUM_ROW + 16 * d + column_of(g)] = o[d][tile][i];
                    sums[line * SUM_ROW + 16 * d + column_of(g + 8)] = o[d][tile][i + 2];
                }
            }
        }
        __syncthreads();
    }

    // Four columns of a query head over what all warps of the block have seen.
    DEVICE Part add_warps(u32 head, u32 column) const {
        Part all;
        all.most = heads_m[head], all.weight = 0.0f, all.sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (u32 warp = 1; warp < WARPS; warp++) all.most = fmaxf(all.most, heads_m[warp * group_heads + head]);
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) {
            const u32 line = warp * group_heads + head;
            const f32 shrink = exp2_fast(heads_m[line] - all.most);
            all.weight += heads_l[line] * shrink;
            add_scaled(all.sum, *(const float4*)(sums + line * SUM_ROW + column), shrink);
        }
        return all;
    }

    DEVICE void finish(const Cursor& at, bool began, u32 others) {
        gather_warps();
        end_head(at, began, others, [&](u32 head, u32 column) { return add_warps(head, column); });
    }

    // Lays out shared memory, and counts what there is.
    DEVICE Cursor set(char* shared) {
        ring = shared_address(shared) + threadIdx.x / 32 * RING_BYTES;
        sums = (f32*)(shared + WARPS * RING_BYTES);
        group_heads = min(shares.group_size, GROUP);
        heads_m = sums + WARPS * group_heads * SUM_ROW;
        heads_l = heads_m + WARPS * group_heads;
        placed_sequence = NOBODY;
        return count();
    }

    DEVICE void run(char* shared) {
        const u32 own_rows = list.batch.counts[0];
        const Cursor mine = set(shared);
        const Cut cut(list.total, list.total > 0 ? blocks() : 1);
        if (list.total == 0 || blockIdx.x >= cut.blocks) {
            pass(own_rows);
            return;
        }
        const u32 begin = cut.first(blockIdx.x), count = cut.first(blockIdx.x + 1) - begin;
        Cursor next = list.seek(begin, mine), at = next;
        launch_dependents();
        bool began = at.tile == at.first_tile;
        clear();
        // A tile is asked for STAGES turns before it is used.
        for (u32 turn = 0, stage = 0; turn < count + STAGES; turn++) {
            const bool uses = turn >= STAGES, last = turn + 1 == count + STAGES;
            if (turn == STAGES) {
                wait_for_inputs();
                load_queries(at);
                clear_padding(own_rows);
            }
            if (uses) {
                copy_wait<STAGES - 1>();
                __syncwarp();
                use(at, stage);
                __syncwarp();
            }
            if (turn < count) {
                // What earlier steps left in the cache can be had before this step's keys are there.
                if (!uses && !is_old(next)) wait_for_inputs();
                fetch(next, stage);
                if (turn + 1 < count) list.advance(next);
            }
            copy_commit();
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            if (!uses) continue;
            if (last) break;
            const Cursor used = at;
            list.advance(at);
            if (used.tile + 1 < used.end_tile) continue;
            // On their way while the head that ends is written.
            load_queries(at);
            finish(used, began, 0);
            clear();
            began = true;
        }
        finish(at, began, began ? others(cut, at) : 0);
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: as many blocks as run at once; with as many slots in `scratch`.
#ifdef CASCADE
#define CASCADE_PARAMETER , const Cascade cascade
#else
#define CASCADE_PARAMETER
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS, LEAST_BLOCKS) attention_decode(
    TYPE* out, const TYPE* qkv, const Cached* keys, const Cached* values, f32* scratch, const Batch batch,
    const Attention attention, const Shares shares CASCADE_PARAMETER) {
    Decode it;
#ifdef CASCADE
    it.cascade = cascade;
#endif
    it.out = out;
    it.qkv = qkv;
    it.keys = keys;
    it.values = values;
    it.scratch = scratch;
    it.attention = attention;
    it.shares = shares;
    it.list.batch = batch;
    it.run(dynamic_shared);
}
