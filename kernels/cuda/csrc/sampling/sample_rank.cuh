// One block ranks a row's tokens and draws among them.
#pragma once
#include "sample.cuh"

#define THREADS 1024
#define WARPS 32

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

// The place from which on the ranking's shortest prefix lies whose measure reaches `target`; all of it if none does.
// Behind that place are `count` tokens: the prefix, or at most LIST of which it is the best ones.
template <typename Source>
__device__ __noinline__ u64 narrow(
    const Source& source, u32 vocab, Measure measure, u64 target, Shared& shared, u32& count) {
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
        each_logit<1>(source.raw(), 0, vocab, threadIdx.x, THREADS, [&](u32 i, f32 x) {
            u32 value;
            if (!source.key(i, x, value)) return;
            u64 at = place(value, i);
            if (at >> above != from >> above) return;
            u32 bin = (u32)(at >> shift) & ((1u << (above - shift)) - 1);
            atomicAdd(&shared.counts[bin], 1u);
            if (measure == BY_MASS) atomicAdd(&shared.masses[bin], Source::mass(value));
        });
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
    each_logit<1>(source.raw(), 0, vocab, threadIdx.x, THREADS, [&](u32 i, f32 x) {
        u32 value;
        if (!source.key(i, x, value) || place(value, i) < from) return;
        u32 at = atomicAdd(&shared.bin, 1u);
        if (at < LIST) shared.list[at] = place(value, i);
    });
    __syncthreads();
    return shared.bin < LIST ? shared.bin : LIST;
}

// A draw from the list's `top_k` best, and of these the shortest prefix whose mass reaches top_p of `total` (0: of
// theirs).
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

// Masses of 32 equal shares of the tokens from `begin` to `end`, a warp each, into `parts`.
DEVICE void sum_shares(const Weights& weights, u32 begin, u32 end, u64 from, Shared& shared) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, size = (end - begin + WARPS - 1) / WARPS;
    const u32 first = min(begin + warp * size, end), past = min(first + size, end);
    u64 sum = 0;
    each_logit<1>(weights.raw(), first, past, lane, 32, [&](u32 i, f32 x) { sum += mass_from(weights, i, x, from); });
    sum = warp_prefix_sum(sum);
    if (lane == 31) shared.parts[warp] = sum;
    __syncthreads();
}

// Turns to the share in which `stop` lies, and counts from its beginning.
DEVICE void enter_share(u32& begin, u32& end, u64& stop, const Shared& shared) {
    const u32 size = (end - begin + WARPS - 1) / WARPS;
    u32 share = 0;
    for (; share + 1 < WARPS && shared.parts[share] <= stop; share++) stop -= shared.parts[share];
    begin = min(begin + share * size, end);
    end = min(begin + size, end);
    __syncthreads();
}

// The token from `begin` on at which masses of places from `from` on pass `stop`.
__device__ __noinline__ u32 draw_between(
    const Weights& weights, u32 begin, u32 end, u64 from, u64 stop, Shared& shared) {
    sum_shares(weights, begin, end, from, shared);
    enter_share(begin, end, stop, shared);
    const u32 lane = threadIdx.x % 32;
    if (threadIdx.x < 32) {
        for (u32 i = begin; i < end; i += 32) {
            u64 sums = warp_prefix_sum(
                i + lane < end ? mass_from(weights, i + lane, weights.raw()[i + lane], from) : 0);
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

// A draw from all places from `from` on.
DEVICE u32 draw_all(const Weights& weights, u32 vocab, u64 from, f64 uniform, Shared& shared) {
    u32 begin = 0, end = vocab;
    sum_shares(weights, begin, end, from, shared);
    u64 total = 0;
    for (u32 w = 0; w < WARPS; w++) total += shared.parts[w];
    u64 stop = stop_at(uniform, total);
    enter_share(begin, end, stop, shared);
    return draw_between(weights, begin, end, from, stop, shared);
}

// The same where masses of regions are known.
DEVICE u32 draw_regions(const Weights& weights, u32 vocab, const Cut& cut, f64 uniform, Shared& shared) {
    static const u32 EACH = REGIONS / 32;
    if (threadIdx.x < 32) {
        u64 masses[EACH], sum = 0;
        for (u32 i = 0; i < EACH; i++) sum += masses[i] = cut.regions[threadIdx.x * EACH + i];
        const u64 sums = warp_prefix_sum(sum), stop = stop_at(uniform, __shfl_sync(~0u, sums, 31));
        // `stop` is below the total, so a lane passes it.
        if (threadIdx.x == __ffs(__ballot_sync(~0u, sums > stop)) - 1) {
            u64 rest = stop - (sums - sum);
            u32 i = 0;
            for (; i + 1 < EACH && masses[i] <= rest; i++) rest -= masses[i];
            shared.bin = threadIdx.x * EACH + i;
            shared.before = rest;
        }
    }
    __syncthreads();
    const Region region = region_of(shared.bin, vocab);
    const u64 stop = shared.before;
    __syncthreads();
    return draw_between(weights, region.first, region.past, cut.from, stop, shared);
}

__device__ __noinline__ u64 total_mass(const Weights& weights, u32 vocab, u64 from, Shared& shared) {
    u64 sum = 0;
    each_logit<1>(
        weights.raw(), 0, vocab, threadIdx.x, THREADS, [&](u32 i, f32 x) { sum += mass_from(weights, i, x, from); });
    return block_reduce<u64, sum_of>(sum, shared.parts);
}
