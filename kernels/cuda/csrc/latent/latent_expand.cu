// What is done around the product that makes keys and values of each head anew from latent vectors: latent vectors of
// some of the context gathered before it, and its matrix put together when a model is loaded. 16-bit numbers are only
// moved.
#include "expanded.cuh"

#define RANK 512u
#define ROPE_DIM 64u
// Numbers that are moved at once.
#define PIECE 8u

// A round's latent vectors, and what rotates of its keys, each to rows of their own. `keys`: a layer's, `[rope |
// latent]`. A warp has a row; any grid.
extern "C" __global__ void __launch_bounds__(256) latent_gather(const uint4* keys, uint4* latent, uint4* rope,
    const Batch batch, u32 block_size, const __grid_constant__ ExpandedRound round) {
    const u32 lane = threadIdx.x % 32;
    launch_dependents();
    wait_for_inputs();
    u32 i = 0;
    for (u32 row = blockIdx.x * 8 + threadIdx.x / 32; row < round.tokens; row += gridDim.x * 8) {
        while (row >= round.parts[i].at + round.parts[i].room()) i++;
        const ExpandedPart& part = round.parts[i];
        const u32 inside = row - part.at, key = part.begin + inside;
        const bool is_there = inside < part.keys;
        size_t from = 0;
        if (is_there) {
            const u32 block = batch.blocks[batch.first_block[part.sequence] + key / block_size];
            from = ((size_t)block * block_size + key % block_size) * ((ROPE_DIM + RANK) / PIECE);
        }
#pragma unroll
        for (u32 j = 0; j < 3; j++) {
            const u32 piece = j * 32 + lane;
            if (piece >= (ROPE_DIM + RANK) / PIECE) continue;
            const uint4 x = is_there ? keys[from + piece] : make_uint4(0, 0, 0, 0);
            if (piece < ROPE_DIM / PIECE) rope[(size_t)row * (ROPE_DIM / PIECE) + piece] = x;
            else latent[(size_t)row * (RANK / PIECE) + piece - ROPE_DIM / PIECE] = x;
        }
    }
}

// The matrix that makes `[rest of a key | value]` of each head: `key_dim` rows that are the columns of `absorb[head]`
// `[rank, key_dim]`, then the rows of `restore[head]` `[value_dim, rank]`. Blocks (row); any number of threads.
extern "C" __global__ void latent_join(
    u16* out, const u16* const* absorb, const u16* const* restore, u32 key_dim, u32 value_dim, u32 rank) {
    launch_dependents();
    wait_for_inputs();
    const u32 head = blockIdx.x / (key_dim + value_dim), row = blockIdx.x % (key_dim + value_dim);
    u16* to = out + (size_t)blockIdx.x * rank;
    for (u32 i = threadIdx.x; i < rank; i += blockDim.x)
        to[i] = row < key_dim ? absorb[head][(size_t)i * key_dim + row] :
                                restore[head][(size_t)(row - key_dim) * rank + i];
}
