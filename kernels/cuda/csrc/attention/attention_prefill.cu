// Attention for sequences with several rows in this step, on the tensor cores of any device from compute capability 8.0
// on.
//
// A block has 16 query rows for each of its warps, where "row" is a pair (token, query head of one key head's group):
// the heads that share keys also share the copies of them, and a short chunk fills a block. A row's sums follow
// absolute key positions, so they depend on neither the batch nor on how its prompt was cut into chunks.
#include "prefill.cuh"

// Compiled for one type and shape (`src/attention/attention_prefill.rs`).
#ifndef TYPE
#define TYPE bf16
#define DIM 128
#define V_DIM 128
#define WARPS 8
#endif
#include "mma_rows.cuh"

struct Prefill : MmaRows {
    u32 sequence_end;

    DEVICE void run(char* shared, T* out, const T* qkv, const Batch& batch, u32 least) {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
        const u32 group_size = attention.q_heads / attention.kv_heads;
        u32 sequence, tile;
        // The last tiles of a sequence see most keys: they go first.
        const bool found = find_tile(batch, group_size, ROWS, least, gridDim.y - 1 - blockIdx.y, sequence, tile);
        launch_dependents();
        wait_for_inputs();
        if (!found) return;
        kv_head = blockIdx.x;
        ring = shared_address(shared);
        table = batch.blocks + batch.first_block[sequence];
        const u32 start = batch.start[sequence], num_rows = batch.num_rows[sequence], packed = num_rows * group_size;
        const u32 first_token = tile * ROWS / group_size,
                  last_token = (min((tile + 1) * ROWS, packed) - 1) / group_size;
        sequence_end = start + num_rows;
        end = attention.seen_end(start + last_token, sequence_end);
        const u32 after_first = start + first_token + 1, after_last = start + last_token + 1;
        begin = after_first > attention.window ? after_first - attention.window : 0;
        fetch_first();

        u32 row[2];
        bool valid[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 mine = tile * ROWS + warp * 16 + g + 8 * i;
            valid[i] = mine < packed;
            const u32 token = valid[i] ? mine / group_size : last_token;
            row[i] = batch.first_row[sequence] + token;
            position[i] = start + token;
            head[i] = kv_head * group_size + (valid[i] ? mine % group_size : 0);
            begin_row(i, qkv, row[i]);
        }

        // Keys from `clear` to `clear_end` are seen by all rows of the block.
        const u32 clear = after_last > attention.window ? after_last - attention.window : 0,
                  clear_end = attention.seen_end(start + first_token, sequence_end);
        const auto sees = [&](u32 i, u32 key) {
            const u32 at = position[i];
            return (key > at || at - key < attention.window) && key < attention.seen_end(at, sequence_end);
        };
        attend(true, [&](f32 (&s)[KEYS / 8][4], u32 first) {
            finish_scores(s, first, first >= clear && first + KEYS <= clear_end, sees);
        });

#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            f32 sum = weight(i), factor = 1.0f;
            if (attention.sinks) {
                const f32 sink = attention.sinks[head[i]] * LOG2E, all = fmaxf(m[i], sink);
                factor = exp2_fast(m[i] - all);
                sum = sum * factor + exp2_fast(sink - all);
            }
            factor *= attention.v_scale_of<Cached>(kv_head) / sum;
            if (!valid[i]) continue;
            u32* to = (u32*)(out + ((size_t)row[i] * attention.q_heads + head[i]) * V_DIM + 2 * t);
#pragma unroll
            for (u32 d = 0; d < V_DIM / 8; d++)
                to[4 * d] = Tensor<T>::pack(o[d][2 * i] * factor, o[d][2 * i + 1] * factor);
        }
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: [key heads, tiles of 16 WARPS packed rows: at least as many as there are]. Sequences with fewer than `least`
// rows are left alone.
extern "C" __global__ void __launch_bounds__(32 * WARPS) attention_prefill(TYPE* out, const TYPE* qkv,
    const Cached* keys, const Cached* values, const Batch batch, const Attention attention, u32 least) {
    Prefill it;
    it.keys = keys;
    it.values = values;
    it.attention = attention;
    it.run(dynamic_shared, out, qkv, batch, least);
}
