// Cascade attention: what decoding sequences see of the blocks that all their tables begin with, whose keys and values
// are read once for all of them (as in Hydragen). `attention_decode.cu` follows, with CASCADE: it adds what this leaves
// to what each row sees of the rest.
//
// All members' query heads of a key head are the rows of a tensor-core product, 128 of them in a unit. There is no
// causal mask: all of the prefix was there before this step. It is cut in parts along the keys, for all multiprocessors
// to have some (`cascade.cuh`). A part's softmax is relative to its own largest score.
#include "cascade.cuh"

// Compiled for one type and shape (`src/attention/attention_cascade.rs`).
#ifndef TYPE
#define TYPE bf16
#define DIM 128
#define V_DIM 128
#define WARPS 8
#endif
#include "mma_rows.cuh"

static_assert(16 * WARPS == UNIT_ROWS && KEYS == UNIT_KEYS, "units are cut for this block");

struct CascadeBlock : MmaRows {
    Batch batch;
    Cascade cascade;
    u32 group_size, packed;

    // Which of a key head's rows this lane's `i`-th is.
    DEVICE static u32 row_of(u32 row_tile, u32 i) {
        return row_tile * ROWS + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i;
    }

    DEVICE void begin_rows(u32 row_tile, const T* qkv) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            // Rows past the last are computed like it, and left out.
            const u32 mine = min(row_of(row_tile, i), packed - 1), sequence = batch.members[mine / group_size];
            position[i] = batch.start[sequence];
            head[i] = kv_head * group_size + mine % group_size;
            begin_row(i, qkv, batch.first_row[sequence]);
        }
    }

    DEVICE void leave_rows(u32 row_tile, const Unit<V_DIM>& unit) const {
        const u32 t = threadIdx.x % 4;
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 mine = row_of(row_tile, i), row = mine % ROWS;
            const f32 sum = weight(i);
            if (mine >= packed) continue;
            if (t == 0) {
                unit.most(row) = m[i];
                unit.weight(row) = sum;
            }
#pragma unroll
            for (u32 d = 0; d < V_DIM / 8; d++)
                *(float2*)unit.sums(row, 8 * d + 2 * t) = make_float2(o[d][2 * i], o[d][2 * i + 1]);
        }
    }

    DEVICE void run(char* shared, const T* qkv) {
        const SharedPrefix prefix(batch, attention, cascade);
        launch_dependents();
        const u32 tiles = prefix.row_tiles * attention.kv_heads, units = prefix.parts * tiles;
        ring = shared_address(shared);
        group_size = attention.q_heads / attention.kv_heads;
        packed = prefix.members * group_size;
        if (units > 0) table = batch.blocks + batch.first_block[batch.members[0]];
        bool waited = false;
        // Neighbours have the same keys.
        for (u32 unit = blockIdx.x; unit < units; unit += gridDim.x) {
            const u32 part = unit / tiles, row_tile = unit % tiles % prefix.row_tiles;
            kv_head = unit % tiles / prefix.row_tiles;
            begin = part * prefix.part_keys;
            end = min(begin + prefix.part_keys, prefix.tokens);
            // Earlier steps left them.
            fetch_first();
            if (!waited) wait_for_inputs();
            waited = true;
            begin_rows(row_tile, qkv);
            const auto sees = [&](u32, u32 key) { return key < end; };
            const bool has_rows = row_tile * ROWS + threadIdx.x / 32 * 16 < packed;
            attend(has_rows, [&](f32 (&s)[KEYS / 8][4], u32 first) {
                finish_scores(s, first, first + KEYS <= end, sees);
            });
            leave_rows(row_tile, Unit<V_DIM>(cascade, prefix.first_unit(kv_head, row_tile) + part));
        }
        if (!waited) wait_for_inputs();
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: `cascade.blocks`.
extern "C" __global__ void __launch_bounds__(32 * WARPS) attention_cascade(const TYPE* qkv, const Cached* keys,
    const Cached* values, const Batch batch, const Attention attention, const Cascade cascade) {
    CascadeBlock it;
    it.keys = keys;
    it.values = values;
    it.attention = attention;
    it.batch = batch;
    it.cascade = cascade;
    it.run(dynamic_shared, qkv);
}
