// Puts a step's batch where its kernels look for it, from where it was sent to, with the last tokens of slots in the
// place of entries that name slots.
#include "quire.cuh"

// `to[0 .. count]`; tokens are the `rows` entries from `first` on. `last`: each slot's, may be null where no entry
// names one.
extern "C" __global__ void place(const u32* from, u32* to, u32 count, u32 first, u32 rows, const u32* last) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const u32 x = from[i];
        const bool names = i - first < rows && x >> 31 && x != NOBODY && last;
        to[i] = names ? last[x & 0x7fffffffu] : x;
    }
}
