// Attention for sequences with several rows in this step on Hopper: `attention_prefill.cu` with warpgroup products and
// the copy engine. Key and value heads of 64, 80, 96, 112, 128, 160, 192 or 256, without relative biases.
//
// A block stays on its multiprocessor and takes one tile of 128 packed rows (a row is a pair of token and query head)
// after another, those that see most keys first, from a counter that all blocks share. Of its three warpgroups the
// first brings what the others need: a warp finds the next tile, and all feed queries, keys and values
// (`prefill_feed.cuh`); they are ahead of the others by what shared memory holds. The others own 64 rows each. While
// the tensor cores multiply the weights of one tile of keys with its values and the queries with the next tile's keys
// for one of the two, the other one's softmax runs: they take turns in asking for products (FlashAttention-3). The next
// tile of keys may be the first one of the next tile of rows: nothing stops where one ends. Two blocks of a cluster
// have neighbouring tiles of rows, so nearly all their keys are the same: each fetches half of them for both. What
// comes from the device's cache is what the chip's power goes to beside the products. A prompt too short for two tiles
// is a lone block's. Queries stay in registers where there is room: reading them from shared memory for every product
// would take a third of what that gives. Compiled for one type and shape (`src/attention/attention_prefill.rs`).
#ifndef TYPE
#define TYPE bf16
#define DIM 128
#define TILE_KEYS 128
#define STAGES 3
#define BLOCKS 2
#endif
#include "prefill_rows.cuh"

extern __shared__ __align__(128) char dynamic_shared[];

#ifdef NARROW
#define PAGES const e4m3*
#define AT(pages) pages
#else
#define PAGES const __grid_constant__ TensorMap
#define AT(pages) &pages
#endif

// Grid: as many clusters as multiprocessors have room for, at most one for each of the `kv_heads * row_tiles` tiles of
// BLOCKS * 128 packed rows; 384 threads a block. `row_tiles`: at least as many as there are. `counter` is zero between
// launches. `keys`, `values`: a layer's, or maps of them.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(384, 1)
    attention_prefill_hopper(TYPE* out, const TYPE* qkv, PAGES keys, PAGES values, const Batch batch,
        const Attention attention, u32 least, u32 row_tiles, u32* counter) {
    HopperPrefill it;
    it.attention = attention;
    it.batch = batch;
    it.least = least;
    it.row_tiles = row_tiles;
    it.prepare(dynamic_shared);
    launch_dependents();
    const u32 group = threadIdx.x / 128;
    if (group == 0) {
        give_registers<Feeder::FEED_REGISTERS>();
        it.Feeder::run(AT(keys), AT(values), qkv, counter, row_tiles * attention.kv_heads);
    } else {
        take_registers<Feeder::COMPUTE_REGISTERS>();
        it.consume(out, group - 1);
    }
    // Nobody leaves while others may still speak to it.
    it.meet();
}
