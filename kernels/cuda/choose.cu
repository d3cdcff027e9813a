// Chooses tokens: masks, biases and penalties, then the best logit, or a draw under temperature, min-p, top-k and top-p; log-probabilities.
// The `sampling` crate says what each of these means; `../src/choose.rs` has the order.
//
// Nothing is sorted. A token's weight e^((logit - best) / temperature) has the host's bits; its mass is that weight in units of 2^-44,
// an integer, so sums do not depend on their order. Cuts keep a prefix of the ranking by (weight, lower id): `narrow` finds where it ends
// by counting tokens or masses in bins of ever fewer bits of that key, until what is left fits a list that threads rank side by side.
// Tokens below 2^-44 of the best one's weight are never drawn.
#include "quire.cuh"

typedef double f64;

#define THREADS 1024
#define WARPS 32
// Blocks that look for the best logit of one row.
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

// Settings of a slot. `kernels/src/cuda/choose.rs` sends them as numbers, see `choose_set`.
struct Choice {
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

struct Bias {
    u32 token;
    f32 value;
};

// What slots have. `kernels/src/cuda/choose.rs` has its twin.
struct Tables {
    Choice* choices; // [slots]
    u32* masks;      // [slots][2][words]: a bit for each forbidden token; the same with stops
    u32* biased;     // [slots][words]: a bit for each token with biases
    Bias* biases;    // [slots][MOST_BIASES]
    u16* counts;     // [slots][vocab]: 0 for tokens that never occurred, else 1 + occurrences in the output, at most 65535
    u32* last;       // [slots]
    u32 vocab;
    u32 words;
};

// One row. `kernels/src/cuda/choose.rs` has its twin.
struct Row {
    f64 uniform;
    u32 row;
    u32 slot; // NOBODY: padding
    u32 hold_stops;
    u32 unused;
};

// Log-probabilities of a row. `kernels/src/cuda/choose.rs` has its twin.
struct Details {
    f32 logprob;
    u32 rank;
    u32 ids[MOST_TOP];
    f32 logprobs[MOST_TOP];
};

struct Shared {
    u32 counts[BINS];
    u64 masses[BINS];
    u64 list[LIST];
    u64 parts[WARPS];
    u64 before;
    u32 bin;
    u32 count_before;
    u32 reached;
    u32 token;
};

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

// Orders like the number; both zeros are equal.
DEVICE u32 ordered(f32 x) {
    u32 bits = __float_as_uint(__fadd_rn(x, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEVICE f32 from_ordered(u32 key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); }

// e^x for x <= 0, with the bits of `sampling::math::exp`: the same steps, none of them fused.
DEVICE f32 exp_host(f32 x) {
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
    return x >= -87.0f ? __fmul_rn(p, __uint_as_float(exponent)) : 0.0f;
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

    DEVICE f32 at(u32 i) const {
        f32 x = raw[i];
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

DEVICE Logits logits_of(const Tables& tables, const Row& row, const f32* logits) {
    const Choice& choice = tables.choices[row.slot];
    const u32* masks = tables.masks + row.slot * 2 * (u64)tables.words;
    bool held = row.hold_stops && (choice.flags & HOLDS);
    Logits all;
    all.raw = logits + row.row * (u64)tables.vocab;
    all.mask = held ? masks + tables.words : choice.flags & MASKED ? masks : nullptr;
    all.biased = tables.biased + row.slot * (u64)tables.words;
    all.biases = tables.biases + row.slot * (u64)MOST_BIASES;
    all.counts = choice.flags & PENALISED ? tables.counts + row.slot * (u64)tables.vocab : nullptr;
    all.num_biases = choice.biases;
    all.vocab = tables.vocab;
    all.repetition = choice.repetition;
    all.frequency = choice.frequency;
    all.presence = choice.presence;
    return all;
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

    DEVICE bool key(u32 i, u32& value) const {
        f32 distance = __fsub_rn(clamp(logits.at(i)), best);
        f32 weight = exp_host(__fmul_rn(distance, inverse_temperature));
        u32 bits = __float_as_uint(weight);
        if (bits < LEAST || weight < min_p) return false;
        value = (bits - LEAST) << 3;
        return true;
    }

    DEVICE static u64 mass(u32 value) {
        return __float2ull_rz(__uint_as_float((value >> 3) + LEAST) * 17592186044416.0f);
    }
};

// Ranks all tokens, by untouched logit.
struct Raw {
    const f32* logits;

    DEVICE bool key(u32 i, u32& value) const {
        f32 x = logits[i];
        value = ordered(x == x ? x : -infinity());
        return true;
    }

    DEVICE static u64 mass(u32) { return 0; }
};

enum Measure { BY_COUNT, BY_MASS };

// Finds the bin, from the top, in which `target` is reached. For one warp.
DEVICE void find_bin(Shared& shared, Measure measure, u64 target) {
    const u32 each = BINS / 32;
    u32 lane = threadIdx.x % 32, first = BINS - 1 - lane * each;
    u64 sum = 0, count = 0;
    for (u32 i = 0; i < each; i++) {
        count += shared.counts[first - i];
        sum += measure == BY_COUNT ? shared.counts[first - i] : shared.masses[first - i];
    }
    u64 sums = warp_prefix_sum(sum), counts = warp_prefix_sum(count);
    u32 reached = __ballot_sync(~0u, sums >= target);
    if (reached == 0) {
        if (lane == 31) {
            shared.reached = 0;
            shared.count_before = (u32)counts;
        }
        return;
    }
    if (lane != __ffs(reached) - 1) return;
    u64 before = sums - sum;
    u32 count_before = (u32)(counts - count), bin = first;
    for (;; bin--) {
        u64 here = measure == BY_COUNT ? shared.counts[bin] : shared.masses[bin];
        if (before + here >= target) break;
        before += here;
        count_before += shared.counts[bin];
    }
    shared.reached = 1;
    shared.bin = bin;
    shared.before = before;
    shared.count_before = count_before;
}

// The place from which on the ranking's shortest prefix lies whose measure reaches `target`; all of it if none does. Behind that place are
// `count` tokens: the prefix, or at most LIST of which it is the best ones.
template <typename Source>
__device__ __noinline__ u64 narrow(const Source& source, u32 vocab, Measure measure, u64 target, Shared& shared, u32& count) {
    const u32 shifts[5] = {41, 30, 20, 10, 0};
    u64 from = 0, before = 0;
    u32 above = 52, count_before = 0;
#pragma unroll 1
    for (u32 level = 0; level < 5; level++) {
        u32 shift = shifts[level];
        for (u32 bin = threadIdx.x; bin < BINS; bin += THREADS) {
            shared.counts[bin] = 0;
            shared.masses[bin] = 0;
        }
        __syncthreads();
        for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
            u32 value;
            if (!source.key(i, value)) continue;
            u64 at = place(value, i);
            if (at >> above != from >> above) continue;
            u32 bin = (u32)(at >> shift) & ((1u << (above - shift)) - 1);
            atomicAdd(&shared.counts[bin], 1u);
            if (measure == BY_MASS) atomicAdd(&shared.masses[bin], Source::mass(value));
        }
        __syncthreads();
        if (threadIdx.x < 32) find_bin(shared, measure, target - before);
        __syncthreads();
        count_before += shared.count_before;
        if (!shared.reached) {
            count = count_before;
            return 0;
        }
        before += shared.before;
        from |= (u64)shared.bin << shift;
        count = count_before + shared.counts[shared.bin];
        above = shift;
        __syncthreads();
        if (count <= LIST) break;
    }
    return from;
}

// Lists the places from `from` on, in no order; at most LIST.
template <typename Source>
__device__ __noinline__ u32 gather(const Source& source, u32 vocab, u64 from, Shared& shared) {
    if (threadIdx.x == 0) shared.bin = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
        u32 value;
        if (!source.key(i, value) || place(value, i) < from) continue;
        u32 at = atomicAdd(&shared.bin, 1u);
        if (at < LIST) shared.list[at] = place(value, i);
    }
    __syncthreads();
    return shared.bin < LIST ? shared.bin : LIST;
}

// The mass at which a draw stops: the first token past it is drawn.
DEVICE u64 stop_at(f64 uniform, u64 total) {
    u64 at = __double2ull_rz(uniform * __ull2double_rn(total));
    return at < total ? at : total - 1;
}

// A draw from the list's `top_k` best, and of these the shortest prefix whose mass reaches top_p of `total` (0: of theirs).
__device__ __noinline__ u32 draw_listed(u32 listed, u32 top_k, f64 top_p, u64 total, f64 uniform, Shared& shared) {
    u32 t = threadIdx.x;
    u64 mine = t < listed ? shared.list[t] : 0, mass_before = 0;
    u32 better = 0;
    for (u32 j = 0; j < listed; j++) {
        u64 other = shared.list[j];
        if (other > mine) {
            better++;
            mass_before += Weights::mass(value_of(other));
        }
    }
    bool kept = t < listed && better < top_k;
    u64 mass = kept ? Weights::mass(value_of(mine)) : 0;
    if (top_p < 1.0) {
        if (total == 0) total = block_reduce<u64, sum_of>(mass, shared.parts);
        kept = kept && __ull2double_rn(mass_before) < top_p * __ull2double_rn(total);
        mass = kept ? mass : 0;
    }
    shared.masses[t] = mass;
    u64 stop = stop_at(uniform, block_reduce<u64, sum_of>(mass, shared.parts));
    if (kept) {
        u64 below = 0;
        for (u32 j = 0; j < listed; j++) below += id_of(shared.list[j]) < id_of(mine) ? shared.masses[j] : 0;
        if (below <= stop && stop < below + mass) shared.token = id_of(mine);
    }
    __syncthreads();
    return shared.token;
}

DEVICE u64 mass_from(const Weights& weights, u32 i, u64 from) {
    u32 value;
    return weights.key(i, value) && place(value, i) >= from ? Weights::mass(value) : 0;
}

// A draw from all places from `from` on: which of 32 regions, which 32nd of it, which token.
__device__ __noinline__ u32 draw_all(const Weights& weights, u32 vocab, u64 from, f64 uniform, Shared& shared) {
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, begin = 0, end = vocab;
    u64 stop = 0;
#pragma unroll 1
    for (u32 level = 0; level < 2; level++) {
        u32 size = (end - begin + WARPS - 1) / WARPS;
        u32 first = min(begin + warp * size, end), past = min(first + size, end);
        u64 sum = 0;
        for (u32 i = first + lane; i < past; i += 32) sum += mass_from(weights, i, from);
        sum = warp_prefix_sum(sum);
        if (lane == 31) shared.parts[warp] = sum;
        __syncthreads();
        if (level == 0) {
            u64 total = 0;
            for (u32 w = 0; w < WARPS; w++) total += shared.parts[w];
            stop = stop_at(uniform, total);
        }
        u32 region = 0;
        for (; region + 1 < WARPS && shared.parts[region] <= stop; region++) stop -= shared.parts[region];
        begin = min(begin + region * size, end);
        end = min(begin + size, end);
        __syncthreads();
    }
    if (warp == 0) {
        for (u32 i = begin; i < end; i += 32) {
            u64 sums = warp_prefix_sum(i + lane < end ? mass_from(weights, i + lane, from) : 0);
            u32 past = __ballot_sync(~0u, sums > stop);
            if (past != 0) {
                if (lane == 0) shared.token = i + __ffs(past) - 1;
                break;
            }
            stop -= __shfl_sync(~0u, sums, 31);
        }
    }
    __syncthreads();
    return shared.token;
}

__device__ __noinline__ u64 total_mass(const Weights& weights, u32 vocab, u64 from, Shared& shared) {
    u64 sum = 0;
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) sum += mass_from(weights, i, from);
    return block_reduce<u64, sum_of>(sum, shared.parts);
}

DEVICE u32 draw(const Weights& weights, const Choice& choice, u32 vocab, f64 uniform, Shared& shared) {
    u32 count = vocab;
    u64 from = 0, total = 0;
    u32 top_k = choice.top_k == 0 || choice.top_k > vocab ? vocab : choice.top_k;
    if (top_k < vocab) from = narrow(weights, vocab, BY_COUNT, top_k, shared, count);
    if (choice.top_p < 1.0 && count > LIST) {
        total = total_mass(weights, vocab, from, shared);
        from = narrow(weights, vocab, BY_MASS, __double2ull_ru(choice.top_p * __ull2double_rn(total)), shared, count);
    }
    if (count > LIST) return draw_all(weights, vocab, from, uniform, shared);
    u32 listed = gather(weights, vocab, from, shared);
    return draw_listed(listed, top_k, choice.top_p, total, uniform, shared);
}

DEVICE f32 logprob_of(f32 logit, f64 normalizer) {
    const f32 floor = -9999.0f;
    f32 logprob = (f32)((f64)logit - normalizer);
    return logprob > floor ? fminf(logprob, 0.0f) : floor;
}

// Log-probability and rank of `token` in the untouched row, and the best tokens.
__device__ __noinline__ void describe(const f32* logits, u32 vocab, u32 token, u32 top, Details& out, Shared& shared) {
    f32 most = -infinity();
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) most = fmaxf(most, logits[i]);
    most = block_reduce<f32, max_of>(most, (f32*)shared.parts);
    f32 chosen = logits[token];
    f64 sum = 0.0;
    u32 better = 0;
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
        f32 x = logits[i];
        sum += (f64)exp_host(__fsub_rn(x, most));
        better += x > chosen || (x == chosen && i < token);
    }
    sum = block_reduce<f64, sum_of>(sum, (f64*)shared.parts);
    better = block_reduce<u32, sum_of>(better, (u32*)shared.parts);
    f64 normalizer = fabsf(most) < infinity() ? (f64)most + log(sum) : (f64)most;
    if (threadIdx.x == 0) {
        out.logprob = logprob_of(chosen, normalizer);
        out.rank = better + 1;
    }
    if (top == 0) return;
    Raw raw = {logits};
    u32 count;
    u64 from = narrow(raw, vocab, BY_COUNT, min(top, vocab), shared, count);
    u32 listed = gather(raw, vocab, from, shared);
    if (threadIdx.x >= listed) return;
    u64 mine = shared.list[threadIdx.x];
    u32 rank = 0;
    for (u32 j = 0; j < listed; j++) rank += shared.list[j] > mine;
    if (rank < top) {
        out.ids[rank] = id_of(mine);
        out.logprobs[rank] = logprob_of(logits[id_of(mine)], normalizer);
    }
}

// best[row][split]: the best logit of a part of a row and its token, the lowest of equals; 0 where there are only NaNs.
extern "C" __global__ void choose_best(const Tables tables, const Row* rows, const f32* logits, u64* best) {
    __shared__ u64 parts[WARPS];
    const Row row = rows[blockIdx.y];
    if (row.slot == NOBODY) return;
    const Logits all = logits_of(tables, row, logits);
    u32 size = (all.vocab + SPLITS - 1) / SPLITS;
    u32 first = blockIdx.x * size, past = min(first + size, all.vocab);
    u64 mine = 0;
    for (u32 i = first + threadIdx.x; i < past; i += blockDim.x) {
        f32 x = all.at(i);
        if (x == x) mine = max_of(mine, (u64)ordered(x) << 32 | (u32)~i);
    }
    mine = block_reduce<u64, max_of>(mine, parts);
    if (threadIdx.x == 0) best[blockIdx.y * SPLITS + blockIdx.x] = mine;
}

// tokens[row], details[row] where asked for, and the slot's last token.
extern "C" __global__ void __launch_bounds__(THREADS)
    choose(const Tables tables, const Row* rows, const f32* logits, const u64* best, u32* tokens, Details* details) {
    __shared__ Shared shared;
    const Row row = rows[blockIdx.x];
    if (row.slot == NOBODY) return;
    const Choice choice = tables.choices[row.slot];
    const Logits all = logits_of(tables, row, logits);
    u64 most = 0;
    for (u32 split = 0; split < SPLITS; split++) most = max_of(most, best[blockIdx.x * SPLITS + split]);
    u32 token = ~(u32)most;
    f32 logit = from_ordered((u32)(most >> 32));
    if (most == 0 || logit == -infinity()) {
        token = choice.fallback;
    } else if (!choice.greedy) {
        const Weights weights = {all, Weights::clamp(logit), choice.inverse_temperature, choice.min_p};
        token = draw(weights, choice, all.vocab, row.uniform, shared);
    }
    if (choice.logprobs != NO_LOGPROBS) {
        __syncthreads();
        describe(all.raw, all.vocab, token, choice.logprobs, details[blockIdx.x], shared);
    }
    if (threadIdx.x == 0) {
        tokens[blockIdx.x] = token;
        tables.last[row.slot] = token;
        if (choice.flags & PENALISED) {
            u16* count = tables.counts + row.slot * (u64)tables.vocab + token;
            u32 more = max_of<u32>(*count, 1u) + 1;
            *count = (u16)min(more, 65535u);
        }
    }
}

// New settings of slots, one block each. `data` begins with where each block's numbers are; these are the twin of `Settings` in
// kernels/src/cuda/choose.rs.
extern "C" __global__ void choose_set(const Tables tables, const u32* data) {
    const u32* from = data + data[blockIdx.x];
    u32 slot = from[0], flags = from[11], allowed = from[13], forbidden = from[14], stops = from[15], biases = from[16];
    u32 counted = from[17], words = tables.words, t = threadIdx.x;
    const u32* list = from + 18;
    if (t == 0) {
        Choice choice;
        choice.greedy = from[1];
        choice.inverse_temperature = __uint_as_float(from[2]);
        choice.min_p = __uint_as_float(from[3]);
        choice.top_k = from[4];
        choice.top_p = __longlong_as_double((long long)((u64)from[6] << 32 | from[5]));
        choice.fallback = from[7];
        choice.repetition = __uint_as_float(from[8]);
        choice.frequency = __uint_as_float(from[9]);
        choice.presence = __uint_as_float(from[10]);
        choice.flags = flags;
        choice.logprobs = from[12];
        choice.biases = biases;
        tables.choices[slot] = choice;
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

// Puts tokens in the place of batch entries that name slots.
extern "C" __global__ void choose_inputs(u32* tokens, const u32* last, u32 rows) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows && tokens[i] >> 31 && tokens[i] != NOBODY) tokens[i] = last[tokens[i] & 0x7fffffffu];
}
