// The same as rope_and_cache.cu for caches of 8 bits.
#include "rope.cuh"

ROPE_AND_CACHE(f32, e4m3)
ROPE_AND_CACHE(bf16, e4m3)
ROPE_AND_CACHE(f16, e4m3)

ROPE_AND_CACHE_WIDE(bf16, e4m3)
ROPE_AND_CACHE_WIDE(f16, e4m3)
