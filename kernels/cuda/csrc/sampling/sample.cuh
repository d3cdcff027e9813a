// What the kernels of `sample.cu`, `sample_cut.cu` and `sample_params.cu` share: settings, a row of logits as its
// sequence sees it, and the weights and masses of its tokens.
#pragma once
#include "ordered.cuh"

typedef double f64;

// Blocks that share a row, until one block chooses.
#define SPLITS 16
#define BINS 2048
// Keys that are ranked side by side.
#define LIST 1024
#define MOST_BIASES 512
#define MOST_TOP 20
#define NO_LOGPROBS 0xffffffffu
// Token ids are below this; half of it at most, so that masses add up in 64 bits.
#define IDS (1u << 20)

#define MASKED 1u
#define HOLDS 2u
#define PENALISED 4u
// Only some tokens are allowed; MASKED too.
#define LISTED 8u

// Settings of a slot. `src/sampling/layout.rs` sends them as numbers, see `sample_params`.
struct SampleParams {
    f64 top_p;
    f32 inverse_temperature;
    f32 min_p;
    f32 repetition;
    f32 frequency;
    f32 presence;
    u32 greedy;
    u32 top_k;
    u32 fallback;
    u32 logprobs;
    u32 biases;
    u32 flags;
};
SAME_LAYOUT(SampleParams, SampleParams);

struct Bias {
    u32 token;
    f32 value;
};

// What slots have. `src/sampling/mod.rs` has its twin.
struct Tables {
    SampleParams* params; // [slots]
    u32* masks;           // [slots][2][words]: a bit for each forbidden token; the same with stops
    u32* biased;          // [slots][words]: a bit for each token with biases
    Bias* biases;         // [slots][MOST_BIASES]
    u16* counts;          // [slots][vocab]: 0: never occurred; else 1 + occurrences in the output, at most 65535
    u32* last;            // [slots]
    u32 vocab;
    u32 words;
};
SAME_LAYOUT(Tables, Tables);

// One row. `src/sampling/layout.rs` has its twin.
struct SampleRow {
    f64 uniform;
    u32 row;
    u32 slot; // NOBODY: padding
    u32 hold_stops;
    u32 unused;
};
SAME_LAYOUT(SampleRow, SampleRow);

// Log-probabilities of a row. `src/sampling/layout.rs` has its twin.
struct Details {
    f32 logprob;
    u32 rank;
    u32 ids[MOST_TOP];
    f32 logprobs[MOST_TOP];
};
SAME_LAYOUT(Details, Details);

template <typename T> DEVICE T max_of(T a, T b) { return a > b ? a : b; }
template <typename T> DEVICE T sum_of(T a, T b) { return a + b; }

// One value of all threads, the same in each of them. `parts` is left free for the next call.
template <typename T, T (*combine)(T, T)> DEVICE T block_reduce(T x, T* parts) {
    u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x = combine(x, __shfl_xor_sync(~0u, x, lanes));
    if (lane == 0) parts[warp] = x;
    __syncthreads();
    x = parts[0];
    for (u32 i = 1; i < warps; i++) x = combine(x, parts[i]);
    __syncthreads();
    return x;
}

DEVICE u64 warp_prefix_sum(u64 x) {
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        u64 other = __shfl_up_sync(~0u, x, lanes);
        if (lane >= lanes) x += other;
    }
    return x;
}

// e^x for -87 <= x <= 0, with the bits of `sampling::math::exp`: the same steps, none of them fused.
DEVICE f32 exp_within(f32 x) {
    const f32 round = 12582912.0f;
    f32 shifted = __fadd_rn(__fmul_rn(x, 1.44269504088896340736f), round);
    f32 n = __fsub_rn(shifted, round);
    f32 r = __fsub_rn(__fsub_rn(x, __fmul_rn(n, 0.6933594f)), __fmul_rn(n, -2.1219444e-4f));
    f32 p = 1.0f / 5040.0f;
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 720.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 120.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 24.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f / 6.0f);
    p = __fadd_rn(__fmul_rn(p, r), 0.5f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    p = __fadd_rn(__fmul_rn(p, r), 1.0f);
    u32 exponent = (__float_as_uint(shifted) - __float_as_uint(round) + 127u) << 23;
    return __fmul_rn(p, __uint_as_float(exponent));
}

// The same for all x <= 0.
DEVICE f32 exp_host(f32 x) { return x >= -87.0f ? exp_within(x) : 0.0f; }

// What a thread has of the tokens from `first` on before `past`, of a row that begins at `logits`: it is the `mine`-th
// of `threads` that share them. Calls `look(i, x)` for each, in ascending order; some 16 are on their way before the
// first is looked at, and code is made for UNROLL at a time.
template <u32 UNROLL, typename Look>
DEVICE void each_logit(const f32* logits, u32 first, u32 past, u32 mine, u32 threads, Look look) {
    const u32 AHEAD = 4, step = 4 * threads;
    const bool aligned = ((u64)(logits + first) | (u64)(logits + past)) % 16 == 0;
    const auto one = [=](u32 i) { return i < past ? logits[i] : 0.0f; };
    const auto four = [=](u32 i) {
        if (!aligned || i >= past) return make_float4(one(i), one(i + 1), one(i + 2), one(i + 3));
        return *(const float4*)(logits + i);
    };
    float4 queue[AHEAD];
#pragma unroll
    for (u32 j = 0; j < AHEAD; j++) queue[j] = four(first + 4 * mine + j * step);
#pragma unroll 1
    for (u32 i = first + 4 * mine; i < past; i += step) {
        float4 x = queue[0];
#pragma unroll
        for (u32 j = 0; j + 1 < AHEAD; j++) queue[j] = queue[j + 1];
        queue[AHEAD - 1] = four(i + AHEAD * step);
        const u32 count = min(4u, past - i);
#pragma unroll UNROLL
        for (u32 j = 0; j < 4; j++) {
            if (j < count) look(i + j, x.x);
            x.x = x.y;
            x.y = x.z;
            x.z = x.w;
        }
    }
}

// The same of a row that begins at 16 bytes and has a multiple of four tokens, and `look(i, x)` gets four at a time.
// Where looking is little, what `each_logit` does for each token would count: several fours are read at once instead,
// and no bound is looked at twice.
template <typename Look> DEVICE void each_four(const f32* logits, u32 first, u32 past, u32 threads, Look look) {
    const u32 AHEAD = 4, step = 4 * threads;
#pragma unroll 1
    for (u32 base = first + 4 * threadIdx.x; base < past; base += AHEAD * step) {
        float4 x[AHEAD];
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + j * step;
            if (i < past) x[j] = __ldcs((const float4*)(logits + i));
        }
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + j * step;
            if (i >= past) break;
            look(i, x[j]);
        }
    }
}

// A row of logits as its sequence sees it.
struct Logits {
    const f32* raw;
    const u32* mask;
    const u32* biased;
    const Bias* biases;
    const u16* counts;
    u32 num_biases;
    u32 vocab;
    f32 repetition;
    f32 frequency;
    f32 presence;

    DEVICE bool is_untouched() const { return mask == nullptr && num_biases == 0 && counts == nullptr; }

    // What its sequence sees of token i with logit x.
    DEVICE f32 seen(u32 i, f32 x) const {
        if (mask != nullptr && (mask[i / 32] >> (i % 32) & 1u)) return -infinity();
        if (num_biases > 0 && (biased[i / 32] >> (i % 32) & 1u)) {
            for (u32 b = 0; b < num_biases; b++) {
                if (biases[b].token == i) x = __fadd_rn(x, biases[b].value);
            }
        }
        if (counts != nullptr && counts[i] > 0) {
            x = x > 0.0f ? __fdiv_rn(x, repetition) : __fmul_rn(x, repetition);
            if (counts[i] > 1) {
                x = __fsub_rn(x, __fmul_rn(frequency, (f32)(counts[i] - 1)));
                x = __fsub_rn(x, presence);
            }
        }
        return x;
    }
};

DEVICE Logits logits_of(const Tables& tables, const SampleRow& row, const f32* logits) {
    const SampleParams& params = tables.params[row.slot];
    const u32* masks = tables.masks + row.slot * 2 * (u64)tables.words;
    bool held = row.hold_stops && (params.flags & HOLDS);
    Logits all;
    all.raw = logits + row.row * (u64)tables.vocab;
    all.mask = held ? masks + tables.words : params.flags & MASKED ? masks : nullptr;
    all.biased = tables.biased + row.slot * (u64)tables.words;
    all.biases = tables.biases + row.slot * (u64)MOST_BIASES;
    all.counts = params.flags & PENALISED ? tables.counts + row.slot * (u64)tables.vocab : nullptr;
    all.num_biases = params.biases;
    all.vocab = tables.vocab;
    all.repetition = params.repetition;
    all.frequency = params.frequency;
    all.presence = params.presence;
    return all;
}

// The best of the logits that a thread looks at, in the order of their tokens. NaNs are none.
struct Best {
    f32 logit;
    u32 token = NOBODY;

    DEVICE void take(u32 i, f32 x) {
        const bool better = token == NOBODY ? x == x : x > logit;
        logit = better ? x : logit;
        token = better ? i : token;
    }
    DEVICE void take(u32 first, float4 x) {
        take(first, x.x);
        take(first + 1, x.y);
        take(first + 2, x.z);
        take(first + 3, x.w);
    }
    DEVICE u64 key() const { return token == NOBODY ? 0 : logit_key(logit, token); }
};

// The mass at which a draw stops: the first token past it is drawn.
DEVICE u64 stop_at(f64 uniform, u64 total) {
    u64 at = __double2ull_rz(uniform * __ull2double_rn(total));
    return at < total ? at : total - 1;
}

// A token's place in a ranking: 32 bits of value, then lower ids first. 52 bits.
DEVICE u64 place(u32 value, u32 id) { return (u64)value << 20 | (IDS - 1 - id); }
DEVICE u32 value_of(u64 place) { return (u32)(place >> 20); }
DEVICE u32 id_of(u64 place) { return IDS - 1 - (u32)(place & (IDS - 1)); }

// Ranks tokens that may be drawn, by weight.
struct Weights {
    // 2^-44; above it, 32 bins of the first level in each octave.
    static constexpr u32 LEAST = 83u << 23;
    Logits logits;
    f32 best;
    f32 inverse_temperature;
    f32 min_p;

    DEVICE static f32 clamp(f32 x) { return x > 3.40282347e38f ? 3.40282347e38f : x; }

    DEVICE const f32* raw() const { return logits.raw; }

    // The value of token i with logit x; false if it is never drawn.
    DEVICE bool key(u32 i, f32 x, u32& value) const {
        f32 distance = __fsub_rn(clamp(logits.seen(i, x)), best);
        f32 weight = exp_host(__fmul_rn(distance, inverse_temperature));
        u32 bits = __float_as_uint(weight);
        if (bits < LEAST || weight < min_p) return false;
        value = (bits - LEAST) << 3;
        return true;
    }

    // Of a weight; of a value.
    DEVICE static u64 mass_of(f32 weight) { return __float2ull_rz(weight * 17592186044416.0f); }
    DEVICE static u64 mass(u32 value) { return mass_of(__uint_as_float((value >> 3) + LEAST)); }
};

// Ranks all tokens, by untouched logit.
struct Raw {
    const f32* logits;

    DEVICE const f32* raw() const { return logits; }

    DEVICE bool key(u32, f32 x, u32& value) const {
        value = ordered(x == x ? x : -infinity());
        return true;
    }

    DEVICE static u64 mass(u32) { return 0; }
};

// Tokens of which a row's token is drawn, as the kernels of `sample_cut.cu` find them.
enum Kind : u32 {
    // Those in the list: the best ones.
    FEW,
    // All places from `from` on; masses of regions are known.
    MANY,
    // As before, but where the prefix ends inside `bin` is not known yet; the list has that bin.
    EDGE,
    // Not known: one block must find out.
    UNKNOWN,
};

// Regions of a row, in the order of tokens: a warp's share of a block's share.
#define REGIONS (SPLITS * 8)
#define REGION_THREADS 256

// What is found out about a row. `src/sampling/layout.rs` knows its size. `done` and `histogram` are zero between
// steps.
struct Cut {
    u64 from;
    // Mass of all tokens; 0: that of the tokens drawn from.
    u64 total;
    // What the prefix must reach, and what it has before `bin`.
    u64 target, before;
    Kind kind;
    u32 bin;
    u32 listed;
    u32 done;
    u64 masses[BINS];
    u32 counts[BINS];
    u64 list[LIST];
    u64 regions[REGIONS];
};
SAME_LAYOUT(Cut, Cut);

// Tokens of a region, of `vocab` in all.
struct Region {
    u32 first, past;
};
DEVICE Region region_of(u32 region, u32 vocab) {
    const u32 size = (vocab + 4 * REGIONS - 1) / (4 * REGIONS) * 4, first = min(region * size, vocab);
    return {first, min(first + size, vocab)};
}

// A row of the step with all that its token depends on. Not `drawn`: greedy, masked as a whole, or padding.
struct Drawn {
    Weights weights;
    bool drawn;
};

// Largest of the parts' best logits; 0 where there are only NaNs.
DEVICE u64 best_of(const u64* best) {
    u64 most = 0;
    for (u32 split = 0; split < SPLITS; split++) most = max_of(most, best[split]);
    return most;
}

DEVICE Drawn drawn_of(const Tables& tables, const SampleRow& row, const f32* logits, const u64* best) {
    Drawn it;
    it.drawn = false;
    if (row.slot == NOBODY) return it;
    const SampleParams& params = tables.params[row.slot];
    const u64 most = best_of(best);
    const f32 logit = from_ordered((u32)(most >> 32));
    it.drawn = !params.greedy && most != 0 && logit != -infinity();
    it.weights = {logits_of(tables, row, logits), Weights::clamp(logit), params.inverse_temperature, params.min_p};
    return it;
}

DEVICE u64 mass_from(const Weights& weights, u32 i, f32 x, u64 from) {
    u32 value;
    return weights.key(i, x, value) && place(value, i) >= from ? Weights::mass(value) : 0;
}

// Top bits of a place, which fall into BINS bins.
#define BIN_SHIFT 41
