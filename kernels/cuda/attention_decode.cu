// Attention for sequences with one row in this step, limited by reading their cache once. Sequences with more rows are left alone.
//
// All (sequence, head, tile of keys) of the step lie in one list, cut into equal parts, one for each block of a grid that is as large as
// the device: any mix of lengths keeps all multiprocessors equally busy, and the grid does not depend on the lengths, so the launch can
// be captured in a graph. The query heads that share a key head are one matrix operand (GQA packing), so that the cache is read once.
//
//     list    | s0 h0: tiles | s0 h1: tiles | s1 h0: tiles ......... | s1 h1: tiles ......... |
//     blocks  |      0      |      1      |      2      |      3      |      4      |      5  |
//
// A block whose part ends inside a head leaves a partial sum in `scratch`; whichever block of that head is last to do so adds them up,
// in their order along the keys. Each warp streams its own 16 keys of a tile through its own ring in shared memory, and keeps its own
// softmax until the head ends; no barrier is inside. Where the list is cut depends on the whole batch, and so does rounding.
//
// Scores are computed transposed, S^T = K Q^T and O^T = V^T P^T, so that up to 8 heads cost no padding rows.
#include "mma.cuh"

// Compiled for one type, shape and configuration (`../src/cuda/attention_decode.rs`); TILES_Q: 8 query heads of a key head each.
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
#include "cached.cuh"
#include "decode.cuh"
#include "ring.cuh"
// Tiles that a block takes at least: below, adding up parts costs more than it gains.
#define LEAST (256 / TILE)
// Keys of a block up to which adding up parts costs more than blocks that have a multiprocessor to themselves.
#define SHORT 640
// Parts of a head that are read while their scales are made.
#define EARLY 8
#define LOG2E 1.4426950408889634f

struct Decode {
    typedef TYPE T;
    static const u32 GROUP = 8 * TILES_Q;
    static const u32 K_ROW = Row<DIM>::BYTES, V_ROW = Row<V_DIM>::BYTES;
    static const u32 STAGE_BYTES = KEYS * (K_ROW + V_ROW), RING_BYTES = STAGES * STAGE_BYTES;
    static const u32 SUM_ROW = V_DIM + 4;
    // Shared memory for `group` query heads a key head and `sequences` of the launch: the warps' rings, their sums, tiles before a sequence.
    DEVICE static u32 shared_bytes(u32 group, u32 sequences) {
        return WARPS * RING_BYTES + WARPS * min(group, GROUP) * (SUM_ROW + 2) * 4 + (sequences + 1) * 4;
    }
    // f32 values that a block leaves for a part of a head.
    static const u32 SLOT = GROUP * (V_DIM + 2);

    T* out;
    const T* qkv;
    const Cached* keys;
    const Cached* values;
    // [2 * blocks][SLOT]: the end of a head that another block began, and the beginning of one that another block ends.
    f32* scratch;
    // [sequences][head groups], zero between launches.
    u32* counters;
    Batch batch;
    Attention attention;

    // Query heads of a key head; of them in one matrix operand; head groups of a sequence.
    u32 group_size, group_heads, groups_per_head, heads, sequences;
    // Tiles of the step, and the blocks they are cut among (at least a tile each).
    u32 total, blocks;
    u32 ring;
    // [warp][head of the group]
    f32* sums;
    f32* heads_m;
    f32* heads_l;
    // Tiles of one head in all sequences before each.
    u32* before;

    u32 q[TILES_Q][DIM / 16][2];
    f32 o[V_DIM / 16][TILES_Q][4];
    // Of columns 2t and 2t + 1: the largest score so far (base 2), and this lane's part of the sum of weights.
    f32 m[TILES_Q][2], l[TILES_Q][2];

    // First query head of a cursor's group, and how many there are.
    DEVICE u32 first_q(const Cursor& at) const {
        return at.head / groups_per_head * group_size + at.head % groups_per_head * GROUP;
    }
    DEVICE u32 num_q(const Cursor& at) const { return min(GROUP, group_size - at.head % groups_per_head * GROUP); }

    // The first of this warp's keys of a tile.
    DEVICE static u32 first_key(const Cursor& at) { return at.tile * TILE + threadIdx.x / 32 * KEYS; }

    // Whether this warp's keys of a tile were there before this step: all but a sequence's last one.
    DEVICE static bool is_old(const Cursor& at) { return first_key(at) + KEYS < at.end || first_key(at) >= at.end; }

    // Starts copying 16 bytes at a time of a warp's keys, or values, from row `first` of a sequence on; zeros where nobody sees a row.
    template <int WIDTH>
    DEVICE static void copy_rows(const Cursor& at, u32 first, const Cached* from, u32 to) {
        const u32 PIECES = Row<WIDTH>::PIECES;
#pragma unroll
        for (u32 i = 0; i < KEYS * PIECES; i += 32) {
            const u32 piece = i + threadIdx.x % 32, key = piece / PIECES;
            const bool valid = first + key >= at.begin && first + key < at.end;
            if (KEYS * PIECES % 32 == 0 || piece < KEYS * PIECES)
                copy_async(to + Row<WIDTH>::at(key, piece % PIECES), from + (valid ? piece * (16 / sizeof(Cached)) : 0), valid);
        }
    }

    // Starts copying this warp's keys of a tile into a stage of its ring.
    DEVICE void fetch(const Cursor& at, u32 stage) const {
        const u32 first = first_key(at);
        if (first >= at.end || first + KEYS <= at.begin) return;
        const u32 block = at.table[first / attention.block_size];
        const size_t row = ((size_t)block * attention.kv_heads + at.head / groups_per_head) * attention.block_size
            + first % attention.block_size;
        const u32 to = ring + stage * STAGE_BYTES;
        copy_rows<DIM>(at, first, keys + row * DIM, to);
        copy_rows<V_DIM>(at, first, values + row * V_DIM, to + KEYS * K_ROW);
    }

    DEVICE void load_queries(const Cursor& at) {
        const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const u32 row = batch.first_row[at.sequence], have = num_q(at);
#pragma unroll
        for (u32 tile = 0; tile < TILES_Q; tile++) {
            const u32 head = 8 * tile + g;
            const T* from = qkv + (size_t)row * attention.qkv_width + (first_q(at) + head) * DIM;
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

    // Score of a key for query head `head` of the group, times log2(e); -infinity where not visible.
    DEVICE f32 score(const Cursor& at, f32 product, u32 key, u32 head) const {
        f32 s = product * attention.scale;
        if (attention.soft_cap != 0.0f) s = attention.soft_cap * tanhf(s / attention.soft_cap);
        if (attention.alibi && head < num_q(at)) s -= attention.alibi[first_q(at) + head] * (f32)(at.end - 1 - key);
        return key >= at.begin && key < at.end ? s * LOG2E : -infinity();
    }

    DEVICE void use(const Cursor& at, u32 stage) {
        const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
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
        u32 p[TILES_Q][2];
#pragma unroll
        for (u32 tile = 0; tile < TILES_Q; tile++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) s[tile][i] = score(at, s[tile][i], first + g + 8 * (i / 2), 8 * tile + 2 * t + i % 2);
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

    // Four columns of a query head's result.
    DEVICE void write_out(const Cursor& at, u32 head, u32 column, f32 most, f32 weight, float4 sum) const {
        const u32 q_head = first_q(at) + head;
        f32 factor = 1.0f;
        if (attention.sinks) {
            const f32 sink = attention.sinks[q_head] * LOG2E, all = fmaxf(most, sink);
            factor = exp2_fast(most - all);
            weight = weight * factor + exp2_fast(sink - all);
        }
        factor *= attention.v_scale / weight;
        const size_t row = batch.first_row[at.sequence];
        u32* to = (u32*)(out + (row * attention.q_heads + q_head) * V_DIM + column);
        *(uint2*)to = make_uint2(Tensor<T>::pack(sum.x * factor, sum.y * factor), Tensor<T>::pack(sum.z * factor, sum.w * factor));
    }

    DEVICE f32* slot_of(u32 block, bool began) const { return scratch + (size_t)(2 * block + (began ? 1 : 0)) * SLOT; }

    // Ends a block's part of a head: writes the result if the part is the whole head, else the block's slot.
    DEVICE void finish(const Cursor& at, bool began, bool ended) {
        gather_warps();
        f32* slot = slot_of(blockIdx.x, began);
        for (u32 i = threadIdx.x; i < num_q(at) * (V_DIM / 4); i += WARPS * 32) {
            const u32 head = i / (V_DIM / 4), column = i % (V_DIM / 4) * 4;
            f32 most = heads_m[head], weight = 0.0f;
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
            for (u32 warp = 1; warp < WARPS; warp++) most = fmaxf(most, heads_m[warp * group_heads + head]);
#pragma unroll
            for (u32 warp = 0; warp < WARPS; warp++) {
                const u32 line = warp * group_heads + head;
                const f32 shrink = exp2_fast(heads_m[line] - most);
                weight += heads_l[line] * shrink;
                add_scaled(sum, *(const float4*)(sums + line * SUM_ROW + column), shrink);
            }
            if (began && ended) write_out(at, head, column, most, weight, sum);
            else {
                *(float4*)(slot + head * V_DIM + column) = sum;
                if (column == 0) {
                    slot[GROUP * V_DIM + head] = most;
                    slot[GROUP * V_DIM + GROUP + head] = weight;
                }
            }
        }
        __syncthreads();
        if (!(began && ended)) add_parts(at);
    }

    DEVICE static void add_scaled(float4& sum, const float4& x, f32 factor) {
        sum.x += x.x * factor;
        sum.y += x.y * factor;
        sum.z += x.z * factor;
        sum.w += x.w * factor;
    }

    DEVICE u32 block_of(u32 unit) const { return (u32)((((u64)unit + 1) * blocks - 1) / total); }

    // Counts this block's part of a head as done; the last one to come adds all parts.
    DEVICE void add_parts(const Cursor& at) {
        __shared__ u32 done;
        const u32 tiles = at.end_tile - at.first_tile, unit = before[at.sequence] * heads + at.head * tiles;
        const u32 from = block_of(unit), parts = block_of(unit + tiles - 1) - from + 1;
        u32* counter = counters + at.sequence * heads + at.head;
        if (threadIdx.x == 0) {
            __threadfence();
            done = atomicAdd(counter, 1u);
            __threadfence();
        }
        __syncthreads();
        if (done + 1 != parts) return;
        if (threadIdx.x == 0) *counter = 0;
        // Parts of this thread's first columns are on their way while their scales are made.
        const auto load_part = [&](u32 i, u32 part) {
            return __ldcg((const float4*)(slot_of(from + part, part == 0) + i / (V_DIM / 4) * V_DIM + i % (V_DIM / 4) * 4));
        };
        const u32 items = num_q(at) * (V_DIM / 4);
        float4 early[EARLY];
#pragma unroll
        for (u32 part = 0; part < EARLY; part++)
            early[part] = part < parts && threadIdx.x < items ? load_part(threadIdx.x, part) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        scale_parts(at, from, parts);
        for (u32 i = threadIdx.x; i < items; i += WARPS * 32) {
            const u32 head = i / (V_DIM / 4);
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            const bool first = i == threadIdx.x;
            if (first) {
#pragma unroll
                for (u32 part = 0; part < EARLY; part++)
                    if (part < parts) add_scaled(sum, early[part], sums[head * parts + part]);
            }
#pragma unroll 8
            for (u32 part = first ? EARLY : 0; part < parts; part++) add_scaled(sum, load_part(i, part), sums[head * parts + part]);
            write_out(at, head, i % (V_DIM / 4) * 4, heads_m[head], heads_l[head], sum);
        }
        __syncthreads();
    }

    // How much each part of a head counts, in place of the warps' sums; and the head's scale and weight.
    DEVICE void scale_parts(const Cursor& at, u32 from, u32 parts) {
        for (u32 head = threadIdx.x / 32; head < num_q(at); head += WARPS) {
            f32 most = -infinity(), weight = 0.0f;
            for (u32 part = threadIdx.x % 32; part < parts; part += 32) {
                const f32* slot = slot_of(from + part, part == 0) + GROUP * V_DIM + head;
                const f32 its = __ldcg(slot), its_weight = __ldcg(slot + GROUP);
                sums[head * parts + part] = its;
                const f32 all = fmaxf(most, its);
                weight = weight * exp2_fast(most - all) + its_weight * exp2_fast(its - all);
                most = all;
            }
            const f32 all = warp_max(most);
            weight = warp_sum(most == -infinity() ? 0.0f : weight * exp2_fast(most - all));
            for (u32 part = threadIdx.x % 32; part < parts; part += 32)
                sums[head * parts + part] = exp2_fast(sums[head * parts + part] - all);
            if (threadIdx.x % 32 == 0) {
                heads_m[head] = all;
                heads_l[head] = weight;
            }
        }
        __syncthreads();
    }

    // Lays out shared memory, and cuts the step's tiles among blocks, of which each multiprocessor should have one.
    DEVICE void set(char* shared, u32 multiprocessors) {
        ring = shared_address(shared) + threadIdx.x / 32 * RING_BYTES;
        sums = (f32*)(shared + WARPS * RING_BYTES);
        group_size = attention.q_heads / attention.kv_heads;
        group_heads = min(group_size, GROUP);
        heads_m = sums + WARPS * group_heads * SUM_ROW;
        heads_l = heads_m + WARPS * group_heads;
        before = (u32*)(heads_l + WARPS * group_heads);
        groups_per_head = (group_size + GROUP - 1) / GROUP;
        heads = attention.kv_heads * groups_per_head;
        sequences = batch.counts[1];
        total = plan(batch, attention.window, sequences, before) * heads;
        // A head has no more parts than `sums` has room for their scales.
        blocks = min(min(gridDim.x, WARPS * SUM_ROW), (total + LEAST - 1) / LEAST);
        if (total > 0) blocks = even(multiprocessors);
    }

    // As many blocks as `blocks`, or fewer where that leaves less to add up.
    DEVICE u32 even(u32 multiprocessors) const {
        const u32 all = sequences * heads, share = (total + blocks - 1) / blocks, head = (total + all - 1) / all;
        if (total % all == 0 && share * TILE <= SHORT) {
            // Heads of one length, it seems: so many whole ones a block, or so many parts of each.
            const u32 each = (all + blocks - 1) / blocks, count = each > 1 ? (all + each - 1) / each : blocks / all * all;
            if (count >= min(multiprocessors, (3 * blocks + 3) / 4)) return count;
        }
        const u32 whole = (share + head - 1) / head * head;
        return whole * 4 <= share * 5 ? (total + whole - 1) / whole : blocks;
    }

    // `rows`: of the launch, padding included.
    DEVICE void run(char* shared, u32 rows, u32 multiprocessors) {
        set(shared, multiprocessors);
        const u32 window = attention.window;
        u32 begin = 0, end = 0;
        if (blockIdx.x < blocks) {
            begin = (u32)((u64)blockIdx.x * total / blocks);
            end = (u32)((u64)(blockIdx.x + 1) * total / blocks);
        }
        Cursor next, at;
        if (begin < end) at = next = seek(batch, window, heads, sequences, before, begin);
        launch_dependents();

        u32 fetched = begin;
        const auto fetch_next = [&](u32 stage) {
            if (fetched < end) {
                fetch(next, stage);
                advance(batch, window, heads, sequences, before, next);
                fetched++;
            }
            copy_commit();
        };
        // What earlier steps left in the cache can be had before this step's keys are there.
        u32 stage = 0;
        for (; stage < STAGES && fetched < end && is_old(next); stage++) fetch_next(stage);
        wait_for_inputs();
        for (; stage < STAGES; stage++) fetch_next(stage);

        if (begin < end) load_queries(at);
        for (u32 row = batch.counts[0] + blockIdx.x; row < rows; row += gridDim.x)
            for (u32 i = threadIdx.x; i < attention.q_heads * V_DIM; i += WARPS * 32)
                out[(size_t)row * attention.q_heads * V_DIM + i] = Cast<T>::from(0.0f);
        if (begin == end) return;

        bool began = at.tile == at.first_tile;
        clear();
        stage = 0;
        for (u32 unit = begin; unit < end; unit++) {
            copy_wait<STAGES - 1>();
            __syncwarp();
            use(at, stage);
            __syncwarp();
            fetch_next(stage);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            const Cursor used = at;
            const bool ended = at.tile + 1 == at.end_tile;
            advance(batch, window, heads, sequences, before, at);
            if (!ended && unit + 1 < end) continue;
            // On their way while the head that ends is written.
            if (unit + 1 < end) load_queries(at);
            finish(used, began, ended);
            clear();
            began = true;
        }
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: any number of blocks; with `2 * blocks` slots in `scratch`.
extern "C" __global__ void __launch_bounds__(32 * WARPS) attention_decode(
    TYPE* out, const TYPE* qkv, const Cached* keys, const Cached* values, f32* scratch, u32* counters, const Batch batch,
    const Attention attention, u32 rows, u32 multiprocessors) {
    Decode it;
    it.out = out;
    it.qkv = qkv;
    it.keys = keys;
    it.values = values;
    it.scratch = scratch;
    it.counters = counters;
    it.batch = batch;
    it.attention = attention;
    it.run(dynamic_shared, rows, multiprocessors);
}
