// New settings of slots.
#include "sample.cuh"

// New settings of slots, one block each. `data` begins with where each block's numbers are; these are the twin of
// `Settings` in src/sampling/layout.rs.
extern "C" __global__ void sample_params(const Tables tables, const u32* data) {
    const u32* from = data + data[blockIdx.x];
    u32 slot = from[0], flags = from[11], allowed = from[13], forbidden = from[14], stops = from[15], biases = from[16];
    u32 counted = from[17], words = tables.words, t = threadIdx.x;
    const u32* list = from + 18;
    if (t == 0) {
        SampleParams params;
        params.greedy = from[1];
        params.inverse_temperature = __uint_as_float(from[2]);
        params.min_p = __uint_as_float(from[3]);
        params.top_k = from[4];
        params.top_p = __longlong_as_double((long long)((u64)from[6] << 32 | from[5]));
        params.fallback = from[7];
        params.repetition = __uint_as_float(from[8]);
        params.frequency = __uint_as_float(from[9]);
        params.presence = __uint_as_float(from[10]);
        params.flags = flags;
        params.logprobs = from[12];
        params.biases = biases;
        tables.params[slot] = params;
    }
    if (flags & (MASKED | HOLDS)) {
        u32* masks = tables.masks + slot * 2 * (u64)words;
        for (u32 i = t; i < 2 * words; i += blockDim.x) masks[i] = flags & LISTED ? ~0u : 0u;
        __syncthreads();
        for (u32 i = t; i < allowed; i += blockDim.x) {
            atomicAnd(&masks[list[i] / 32], ~(1u << list[i] % 32));
            atomicAnd(&masks[words + list[i] / 32], ~(1u << list[i] % 32));
        }
        __syncthreads();
        for (u32 i = allowed + t; i < allowed + forbidden + stops; i += blockDim.x) {
            if (i < allowed + forbidden) atomicOr(&masks[list[i] / 32], 1u << list[i] % 32);
            atomicOr(&masks[words + list[i] / 32], 1u << list[i] % 32);
        }
    }
    list += allowed + forbidden + stops;
    if (biases > 0) {
        u32* biased = tables.biased + slot * (u64)words;
        for (u32 i = t; i < words; i += blockDim.x) biased[i] = 0;
        __syncthreads();
        for (u32 i = t; i < biases; i += blockDim.x) {
            u32 token = list[2 * i];
            tables.biases[slot * (u64)MOST_BIASES + i] = {token, __uint_as_float(list[2 * i + 1])};
            atomicOr(&biased[token / 32], 1u << token % 32);
        }
    }
    list += 2 * biases;
    if (flags & PENALISED) {
        u16* counts = tables.counts + slot * (u64)tables.vocab;
        for (u32 i = t; i < tables.vocab; i += blockDim.x) counts[i] = 0;
        __syncthreads();
        for (u32 i = t; i < counted; i += blockDim.x) counts[list[2 * i]] = (u16)min(list[2 * i + 1] + 1, 65535u);
    }
}
