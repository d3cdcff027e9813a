// Rotation and caching for caches of floating-point numbers of 16 bits or more.
#include "rope.cuh"

ROPE_AND_CACHE(f32, f32)
ROPE_AND_CACHE(f32, bf16)
ROPE_AND_CACHE(f32, f16)
ROPE_AND_CACHE(bf16, bf16)
ROPE_AND_CACHE(f16, f16)

ROPE_AND_CACHE_WIDE(bf16, bf16)
ROPE_AND_CACHE_WIDE(f16, f16)
