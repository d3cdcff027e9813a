// Latent attention of prompts on Hopper in its expanded form: `attention_prefill_hopper.cu` over keys of 192 elements
// and values of 128 that were made anew from some of the context's latent vectors. That is 0.3 times the operations of
// the absorbed form (`attention_latent.cu`) for each pair of row and key.
//
// There is room for so much of a context at a time: a round. Rows that have not seen all their keys after it leave
// their sums as they are in registers, in f32, and go on with them in the next round: the bits are those of one round.
// Rows are tokens here, since each query head has keys of its own; whole tiles of rows that see none of a round's keys
// are left out.
#ifndef TYPE
#define TYPE bf16
#define BLOCKS 2
#endif
#define EXPANDED
#define DIM 192
#define V_DIM 128
#define TILE_KEYS 128
#define STAGES 2
#include "prefill_rows.cuh"

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: as many clusters as multiprocessors have room for, at most one for each of the `q_heads * row_tiles` tiles of
// BLOCKS * 128 rows; 384 threads a block. `queries`: heads of `[unused | rest]`; `rotated`: where their first parts
// are, as `attention` says, whose key heads are as many as query heads. `rope`, `made`: maps of the round's keys and
// values. `sums`: what rows keep from round to round. `counter` is zero between launches.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(384, 1)
    attention_expanded(TYPE* out, const TYPE* queries, const TYPE* rotated, const __grid_constant__ TensorMap rope,
        const __grid_constant__ TensorMap made, f32* sums, const Batch batch, const Attention attention,
        const __grid_constant__ ExpandedRound round, u32 row_tiles, u32* counter) {
    HopperPrefill it;
    it.attention = attention;
    it.batch = batch;
    it.row_tiles = row_tiles;
    it.round = &round;
    it.queries = queries;
    it.rotated = rotated;
    it.sums = sums;
    it.prepare(dynamic_shared);
    launch_dependents();
    const u32 group = threadIdx.x / 128;
    if (group == 0) {
        give_registers<Feeder::FEED_REGISTERS>();
        it.Feeder::run(&rope, &made, counter, row_tiles * attention.kv_heads);
    } else {
        take_registers<Feeder::COMPUTE_REGISTERS>();
        it.consume(out, group - 1);
    }
    // Nobody leaves while others may still speak to it.
    it.meet();
}
