// Latent attention on Hopper: all query heads attend to one key of 576 elements a token, of which the last 512 are its
// value. For prompts and single rows alike, without window, soft cap, ALiBi and sinks.
//
// Rows are pairs of token and query head, 64 a tile. All (sequence, tile of rows, tile of 64 keys) of the step lie in
// one list, cut into equal parts, one for each block of a grid as large as the device: any mix of prompts and single
// rows keeps all multiprocessors equally busy, and the grid does not depend on lengths, so that the launch can be
// captured in a graph. Where a tile of rows falls to several blocks, each leaves its part, and
// `attention_latent_merge.cu` adds them up. Where the list is cut depends on the whole step, and so does rounding.
//
// A tile of keys lies in shared memory once, and is both operand of scores and of sums of values (FlashMLA). Of a
// block's three warpgroups the first brings queries and keys, keys by the copy engine. The second multiplies queries
// and keys, does the softmax, and multiplies weights with the first 256 columns of values; the third, which has its
// weights from the second, with the other 256. So the tensor cores have the third's product to do, and the second's
// last one, while it does its softmax.
//
// Two blocks of a cluster have neighbouring tiles of rows and the same keys, of which each brings half for both: what
// comes from the device's cache would limit prompts. Where many second tiles would be empty, blocks are alone.
#ifndef TYPE
#define TYPE bf16
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#include "latent_rows.cuh"

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: as many clusters as multiprocessors have room for; 384 threads a block. `keys`: a map of the layer's.
// `sequences`, `rows`: of the launch, those of padding included. `parts`: `LatentPart`s of all blocks, `splits`: one of
// each block.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(384, 1)
    attention_latent(TYPE* out, const TYPE* qkv, const __grid_constant__ TensorMap keys, f32* parts, Split* splits,
        const Batch batch, const Attention attention, u32 sequences, u32 rows) {
    LatentValues it;
    it.attention = attention;
    it.list.batch = batch;
    it.list.sequences = sequences;
    it.parts = parts;
    it.prepare(dynamic_shared);
    launch_dependents();
    const u32 group = threadIdx.x / 128;
    if (group == 0) {
        give_registers<FEED_REGISTERS>();
        if (threadIdx.x < 32) it.lead(&keys, splits);
        else it.follow(qkv);
    } else if (group == 1) {
        take_registers<COMPUTE_REGISTERS>();
        it.LatentScores::run(out);
    } else {
        take_registers<COMPUTE_REGISTERS>();
        it.run(out);
        it.clear_padding(out, rows);
    }
    // Nobody leaves while others may still speak to it.
    if (BLOCKS > 1) it.meet();
}
