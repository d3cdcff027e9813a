// Rows of random numbers, as kernels/src/ops/noise.rs defines them: an element depends on its place alone. Elements are
// bits to this kernel.
#include "quire.cuh"

// What part of which matrix. `src/noise.rs` has its twin.
struct Noise {
    u64 key;
    u64 first_row;
    u64 size;
    u64 period;
    u64 offset;
    u64 rows;
    u64 first_col;
    u64 cols;
    u32 mask; // number of levels - 1
};
SAME_LAYOUT(Noise, Noise);

// The finaliser of splitmix64 (Steele, Lea, Flood 2014), after adding its constant.
DEVICE u64 mix(u64 x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

// Blocks take rows in turn; a thread takes four columns at a time, which share a draw.
template <typename T> DEVICE void noise(T* out, const T* levels, const Noise& noise) {
    const u64 last = noise.first_col + noise.cols;
    for (u64 row = blockIdx.x; row < noise.rows; row += gridDim.x) {
        const u64 r = noise.first_row + row;
        const u64 key = mix(noise.key ^ mix(r / noise.size * noise.period + noise.offset + r % noise.size));
        T* to = out + row * noise.cols;
        for (u64 four = noise.first_col / 4 + threadIdx.x; 4 * four < last; four += blockDim.x) {
            const u64 draw = mix(key + four);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const u64 col = 4 * four + i;
                if (col >= noise.first_col && col < last)
                    to[col - noise.first_col] = levels[(draw >> 16 * i & 0xffff) & noise.mask];
            }
        }
    }
}

#define NOISE(TYPE, BITS) \
    extern "C" __global__ void noise_##TYPE(BITS* out, const BITS* levels, const Noise part) { \
        noise(out, levels, part); \
    }

NOISE(f32, u32)
NOISE(bf16, u16)
NOISE(f16, u16)
