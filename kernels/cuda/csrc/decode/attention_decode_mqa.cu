// Attention for sequences with one row in this step where many query heads share a key head (MQA, or GQA with groups of
// more than 16). As `attention_decode.cu`, which says how the list of tiles is cut; but here query heads are rows of
// products (S = Q K^T, O = P V), 16 of a warp, and a tile's keys and values are copied to shared memory once for all
// warps. So the cache is read once for up to 16 * WARPS query heads, where that kernel reads it once for each 16. How
// parts of a head that several blocks have are added up: `decode_exchange.cuh`.
//
// Scores of a row lie in four lanes, and a row's largest score is looked for once for all keys of a tile: a query head
// takes about half as many instructions a key as there.
#include "mma.cuh"

// Compiled for one type, shape and configuration (`src/attention/attention_decode_mqa.rs`).
#ifndef TYPE
#define TYPE bf16
#define DIM 64
#define V_DIM 64
#define WARPS 5
#define STAGES 3
#define BLOCKS 2
#endif

#define TILE 64u
#define GROUP (16u * WARPS)
#define BLOCK_TILES 1
#include "decode_exchange.cuh"
#include "ring.cuh"

struct DecodeMqa : DecodeExchange {
    static const u32 PARTS = TILE / 16;
    static const u32 K_ROW = Row<DIM>::BYTES, V_ROW = Row<V_DIM>::BYTES;
    static const u32 STAGE_BYTES = TILE * (K_ROW + V_ROW);
    static const u32 SUM_ROW = V_DIM + 4;

    u32 ring;
    // [query head of the group]
    f32* sums;
    f32* heads_m;
    f32* heads_l;
    // Where the block began, and its last tile.
    Cursor* ends;
    // Of a sequence's next 32 parts of 16 keys, a part a lane: the row of the cache where its keys of the first head
    // begin. And the tile that these begin with.
    u32 places, placed_sequence, first_placed;

    u32 q[DIM / 16][4];
    f32 o[V_DIM / 8][4];
    // Of rows g and g + 8: the largest score so far (base 2), and this lane's part of the sum of weights.
    f32 m[2], l[2];

    // This lane's `i`-th query head of the group.
    DEVICE static u32 head_of(u32 i) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i; }

    // Whether a tile's keys were there before this step: all but a sequence's last one.
    DEVICE static bool is_old(const Cursor& at) { return (at.tile + 1) * TILE < at.end; }

    // Finds out where the keys of a tile, and of those after it, lie.
    DEVICE void place(const Cursor& at) {
        placed_sequence = at.sequence;
        first_placed = at.tile;
        const u32 key = min(at.tile * TILE + threadIdx.x % 32 * 16, at.end - 1) & ~15u;
        const u32 entry = (u32)((u64)key * shares.block_inverse >> 35);
        const u32 block = list.batch.blocks[at.table + entry];
        places = (block * attention.kv_heads - entry) * attention.block_size + key;
    }

    // Starts copying this thread's pieces of a tile's keys, or values; zeros for those but `count` from `low` on, which
    // are masked. `from`: the cache's, of the key head; `part`: which place is the tile's first.
    template <int WIDTH>
    DEVICE void copy_rows(const Cached* from, u32 to, u32 part, u32 low, u32 count) const {
        const u32 PIECES = Row<WIDTH>::PIECES;
#pragma unroll
        for (u32 i = 0; i < TILE * PIECES; i += THREADS) {
            const u32 at = i + threadIdx.x, key = at / PIECES, piece = at % PIECES;
            // The same for a whole warp.
            if (TILE * PIECES % THREADS != 0 && at >= TILE * PIECES) break;
            const u32 row = __shfl_sync(~0u, places, part + key / 16) + key % 16;
            copy_async(to + Row<WIDTH>::at(key, piece), from + (size_t)row * WIDTH + piece * (16 / sizeof(Cached)),
                key - low < count);
        }
    }

    // Starts copying a tile into a stage of the ring.
    DEVICE void fetch(const Cursor& at, u32 stage) {
        if (at.sequence != placed_sequence || at.tile - first_placed >= 32 / PARTS) place(at);
        const u32 first = at.tile * TILE, low = max(at.begin, first), count = min(at.end, first + TILE) - low;
        const u32 to = ring + stage * STAGE_BYTES, part = (at.tile - first_placed) * PARTS;
        const size_t skipped = (size_t)kv_head(at) * attention.block_size;
        copy_rows<DIM>(keys + skipped * DIM, to, part, low - first, count);
        copy_rows<V_DIM>(values + skipped * V_DIM, to + TILE * K_ROW, part, low - first, count);
    }

    DEVICE void load_queries(const Cursor& at) {
        const u32 t = threadIdx.x % 4, have = num_q(at);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const T* from = qkv + (size_t)at.row * attention.qkv_width + (first_q(at) + head_of(i)) * DIM;
            const bool is_there = head_of(i) < have;
#pragma unroll
            for (u32 k = 0; k < DIM / 16; k++)
#pragma unroll
                for (u32 second = 0; second < 2; second++)
                    q[k][i + 2 * second] =
                        is_there ? as_operand<T>(*(const u32*)(from + 16 * k + pair_of(t, second))) : 0;
        }
    }

    DEVICE void clear() {
        m[0] = m[1] = -infinity();
        l[0] = l[1] = 0.0f;
#pragma unroll
        for (u32 d = 0; d < V_DIM / 8; d++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) o[d][i] = 0.0f;
    }

    // This lane's first key of a tile: of its scores, that of index 0.
    DEVICE static u32 first_key(const Cursor& at) { return at.tile * TILE + 2 * (threadIdx.x % 4); }

    DEVICE void multiply_keys(f32 (&s)[TILE / 8][4], u32 stage) const {
        const u32 from = ring + stage * STAGE_BYTES;
#pragma unroll
        for (u32 n = 0; n < TILE / 8; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) s[n][i] = 0.0f;
#pragma unroll
        for (u32 k = 0; k < DIM / 16; k++)
#pragma unroll
            for (u32 part = 0; part < PARTS; part++) {
                u32 b[4];
                load_keys<DIM>(b, from + part * 16 * K_ROW, k);
                Tensor<Operand>::multiply(s[2 * part], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[2]);
                Tensor<Operand>::multiply(s[2 * part + 1], q[k][0], q[k][1], q[k][2], q[k][3], b[1], b[3]);
            }
    }

    // What few models do to scores, which become those of base 2.
    DEVICE void bend(f32 (&s)[TILE / 8][4], const Cursor& at, f32 scale) const {
        const f32 cap = attention.soft_cap * LOG2E;
        f32 slope[2] = {0.0f, 0.0f};
#pragma unroll
        for (u32 i = 0; i < 2; i++)
            if (attention.alibi && head_of(i) < num_q(at))
                slope[i] = attention.alibi[first_q(at) + head_of(i)] * LOG2E;
#pragma unroll
        for (u32 n = 0; n < TILE / 8; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                f32 x = s[n][i] * scale;
                if (cap != 0.0f) x = cap * tanhf(x / cap);
                s[n][i] = x - slope[i / 2] * (f32)(int)(at.end - 1 - first_key(at) - 8 * n - i % 2);
            }
    }

    // Masks keys that a query does not attend to.
    DEVICE static void mask(f32 (&s)[TILE / 8][4], const Cursor& at) {
#pragma unroll
        for (u32 n = 0; n < TILE / 8; n++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u32 key = first_key(at) + 8 * n + i % 2;
                if (key < at.begin || key >= at.end) s[n][i] = -infinity();
            }
    }

    // Turns scores, which times `scale` are those of base 2, into weights, and rescales what was summed.
    DEVICE void weigh(f32 (&s)[TILE / 8][4], f32 scale) {
        f32 shrink[2];
#pragma unroll
        for (u32 row = 0; row < 2; row++) {
            f32 most = fmaxf(s[0][2 * row], s[0][2 * row + 1]);
#pragma unroll
            for (u32 n = 1; n < TILE / 8; n++) most = fmaxf(most, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
            // Some key of a tile is visible, so this is finite.
            most = fmaxf(m[row], most * scale);
            shrink[row] = exp2_fast(m[row] - most);
            m[row] = most;
            l[row] *= shrink[row];
#pragma unroll
            for (u32 n = 0; n < TILE / 8; n++)
#pragma unroll
                for (u32 i = 2 * row; i < 2 * row + 2; i++) {
                    s[n][i] = exp2_fast(__fmaf_rn(s[n][i], scale, -most));
                    l[row] += s[n][i];
                }
        }
        // The largest score is seldom a new one.
        if (__all_sync(~0u, shrink[0] == 1.0f && shrink[1] == 1.0f)) return;
#pragma unroll
        for (u32 d = 0; d < V_DIM / 8; d++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) o[d][i] *= shrink[i / 2];
    }

    DEVICE void multiply_values(const f32 (&s)[TILE / 8][4], u32 stage) {
        const u32 from = ring + stage * STAGE_BYTES + TILE * K_ROW;
#pragma unroll
        for (u32 part = 0; part < PARTS; part++) {
            u32 p[4];
#pragma unroll
            for (u32 i = 0; i < 4; i++)
                p[i] = Tensor<Operand>::pack(s[2 * part + i / 2][2 * (i % 2)], s[2 * part + i / 2][2 * (i % 2) + 1]);
#pragma unroll
            for (u32 d = 0; d < V_DIM / 16; d++) {
                u32 b[4];
                load_values<V_DIM>(b, from + part * 16 * V_ROW, d);
                Tensor<Operand>::multiply(o[2 * d], p[0], p[1], p[2], p[3], b[0], b[2]);
                Tensor<Operand>::multiply(o[2 * d + 1], p[0], p[1], p[2], p[3], b[1], b[3]);
            }
        }
    }

    DEVICE void use(const Cursor& at, u32 stage) {
        f32 s[TILE / 8][4];
        multiply_keys(s, stage);
        f32 scale = attention.scale_of<Cached>(kv_head(at)) * LOG2E;
        if (attention.soft_cap != 0.0f || attention.alibi) {
            bend(s, at, scale);
            scale = 1.0f;
        }
        if (at.tile * TILE < at.begin || (at.tile + 1) * TILE > at.end) mask(s, at);
        weigh(s, scale);
        multiply_values(s, stage);
    }

    // Puts sums in shared memory.
    DEVICE void gather() const {
        const u32 t = threadIdx.x % 4;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            f32 sum = l[i];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            if (t == 0) {
                heads_m[head_of(i)] = m[i];
                heads_l[head_of(i)] = sum;
            }
            f32* to = sums + head_of(i) * SUM_ROW;
#pragma unroll
            for (u32 d = 0; d < V_DIM / 16; d++)
#pragma unroll
                for (u32 j = 0; j < 2; j++) {
                    to[16 * d + column_of(2 * t + j)] = o[2 * d][2 * i + j];
                    to[16 * d + column_of(2 * t + j + 8)] = o[2 * d + 1][2 * i + j];
                }
        }
        __syncthreads();
    }

    // Ends a block's part of a head: writes the result of one that it has all of, or leaves it.
    DEVICE void finish(const Cursor& at, bool began, bool ended) const {
        gather();
        const auto part = [&](u32 head, u32 column) {
            Part part;
            part.most = heads_m[head], part.weight = heads_l[head];
            part.sum = *(const float4*)(sums + head * SUM_ROW + column);
            return part;
        };
        if (began && ended) end_head(at, true, 0, part);
        else leave_part(at, began, part);
    }

    // Lays out shared memory, and counts what there is.
    DEVICE Cursor set(char* shared) {
        ring = shared_address(shared);
        sums = (f32*)(shared + STAGES * STAGE_BYTES);
        heads_m = sums + GROUP * SUM_ROW;
        heads_l = heads_m + GROUP;
        ends = (Cursor*)(heads_l + GROUP);
        placed_sequence = NOBODY;
        return count();
    }

    // Starts copying the first tiles; what earlier steps left in the cache can be had before this step's keys are
    // there. `next` becomes the first tile that was not asked for, if there is one.
    DEVICE void fetch_first(Cursor& next, u32 tiles) {
#pragma unroll 1
        for (u32 turn = 0; turn + 1 < STAGES; turn++) {
            if (turn < tiles) {
                if (!is_old(next)) wait_for_inputs();
                fetch(next, turn);
                if (turn + 1 < tiles) list.advance(next);
            }
            copy_commit();
        }
    }

    DEVICE void run(char* shared) {
        const u32 own_rows = list.batch.counts[0];
        const Cursor mine = set(shared);
        const Cut cut(list.total, list.total > 0 ? blocks() : 1);
        if (list.total == 0 || blockIdx.x >= cut.blocks) {
            pass(own_rows);
            return;
        }
        const u32 begin = cut.first(blockIdx.x), tiles = cut.first(blockIdx.x + 1) - begin;
        Cursor next = list.seek(begin, mine), at = next;
        launch_dependents();
        const bool begins = at.tile == at.first_tile;
        bool began = begins;
        if (threadIdx.x == 0) ends[0] = at;
        clear();
        fetch_first(next, tiles);
        wait_for_inputs();
        load_queries(at);
        clear_padding(own_rows);
        for (u32 turn = 0, stage = 0;; turn++) {
            copy_wait<STAGES - 2>();
            // The tile is there, and the one before it was used by all.
            __syncthreads();
            if (turn + STAGES - 1 < tiles) {
                fetch(next, stage == 0 ? STAGES - 1 : stage - 1);
                if (turn + STAGES < tiles) list.advance(next);
            }
            copy_commit();
            use(at, stage);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            const bool ended = at.tile + 1 == at.end_tile, last = turn + 1 == tiles;
            if (last && threadIdx.x == 0) ends[1] = at;
            if (ended || last) finish(at, began, ended);
            if (last) break;
            list.advance(at);
            if (!ended) continue;
            load_queries(at);
            clear();
            began = true;
        }
        // Only now, when all that others wait for is there: the head that another block began, and the one that others
        // end.
        const bool leaves = began && at.tile + 1 < at.end_tile;
#pragma unroll 1
        for (u32 i = begins; i < 1 + leaves; i++) add_up(ends[i], cut, sums);
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: as many blocks as run at once; with two slots each in `scratch`.
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) attention_decode_mqa(
    TYPE* out, const TYPE* qkv, const Cached* keys, const Cached* values, f32* scratch, const Batch batch,
    const Attention attention, const Shares shares) {
    DecodeMqa it;
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
