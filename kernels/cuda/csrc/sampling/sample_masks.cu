// Which tokens masked slots may sample next.
#include "sample.cuh"

// `data`: a slot and its fallback for each of `rows` masks, then their words, a bit for each token that is allowed. The
// slot's mask has a bit for each token that is not. Grid: [blocks, rows], each thread a word or several.
extern "C" __global__ void sample_masks(const Tables tables, const u32* data, u32 rows) {
    const u32 mask = blockIdx.y, slot = data[2 * mask], words = tables.words;
    const u32* allowed = data + 2 * rows + mask * (u64)words;
    u32* forbidden = tables.masks + slot * 2 * (u64)words;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x)
        forbidden[i] = ~allowed[i];
    if (blockIdx.x == 0 && threadIdx.x == 0) tables.params[slot].fallback = data[2 * mask + 1];
}
