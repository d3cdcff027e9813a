// Before a token is drawn: which tokens remain under top-k and top-p, by several blocks a row. `sample_best` has been
// there, `sample` follows.
//
//     sample_count    masses of regions where nothing is cut; else tokens and masses in bins of their weight's first
//     bits, and from these
//                     the bin in which the prefix ends
//     sample_gather   the list of what is behind that bin's beginning, if that is little; else of that bin alone, in
//     which the end is found sample_regions  masses of regions for those rows whose prefix is long
//
// The block of a row that is the last to be done draws the conclusion. Sums are of integers: blocks may come in any
// order.
#include "sample.cuh"

// What a block counts. A bin's tokens share exponent and first bits, so a mass is `units` of one size, below 2^24:
// their halves' sums fit 32 bits for up to 2^19 tokens, and 32-bit additions are what shared memory is fast at.
struct Bins {
    u32 counts[BINS];
    u32 low[BINS];
    u32 high[BINS];
};

// Masses in this bin are multiples of two to this.
DEVICE u32 unit_shift(u32 bin) {
    // 32 bins an octave; the lowest octave's masses are 1.xx, and 24 bits are behind the point.
    const u32 octave = bin / 32;
    return octave > 23 ? octave - 23 : 0;
}

// For one warp: the bin, from the top, in which `target` is reached, what is before it, and tokens up to and including
// it.
struct Found {
    bool reached;
    u32 bin, count;
    u64 before;
};
template <bool BY_COUNT>
DEVICE Found find(const u64* masses, const u32* counts, u64 target) {
    const u32 each = BINS / 32, lane = threadIdx.x % 32, first = BINS - 1 - lane * each;
    u64 sum = 0, count = 0;
    for (u32 i = 0; i < each; i++) {
        count += counts[first - i];
        sum += BY_COUNT ? counts[first - i] : masses[first - i];
    }
    const u64 sums = warp_prefix_sum(sum), tokens = warp_prefix_sum(count);
    const u32 reached = __ballot_sync(~0u, sums >= target);
    const u32 owner = reached == 0 ? 31 : __ffs(reached) - 1;
    Found found = {reached != 0, first, (u32)tokens, sums};
    if (reached != 0 && lane == owner) {
        found.before = sums - sum;
        found.count = (u32)(tokens - count);
        for (;; found.bin--) {
            const u64 here = BY_COUNT ? counts[found.bin] : masses[found.bin];
            found.count += counts[found.bin];
            if (found.before + here >= target) break;
            found.before += here;
        }
    }
    found.bin = __shfl_sync(~0u, found.bin, owner);
    found.count = __shfl_sync(~0u, found.count, owner);
    found.before = __shfl_sync(~0u, found.before, owner);
    return found;
}

// Whether this block is the last of its row's to come here. Everything that the others wrote before is then there.
DEVICE bool is_last(u32& counter) {
    __shared__ u32 done;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        done = atomicAdd(&counter, 1u);
        if (done + 1 == SPLITS) counter = 0;
        __threadfence();
    }
    __syncthreads();
    return done + 1 == SPLITS;
}

// This block's regions of a row.
DEVICE void sum_regions(const Weights& weights, u32 vocab, u64 from, u64* regions) {
    const u32 region = blockIdx.x * (REGION_THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    const Region part = region_of(region, vocab);
    u64 sum = 0;
    each_logit<4>(
        weights.raw(), part.first, part.past, lane, 32, [&](u32 i, f32 x) { sum += mass_from(weights, i, x, from); });
    sum = warp_prefix_sum(sum);
    if (lane == 31) regions[region] = sum;
}

// For one warp: what the histogram of a row says.
DEVICE void conclude(Cut& cut, const SampleParams& params, u32 vocab, const u64* masses, const u32* counts) {
    const u32 top_k = params.top_k == 0 || params.top_k > vocab ? vocab : params.top_k;
    Kind kind = MANY;
    u64 from = 0, total = 0, target = 0, before = 0;
    u32 bin = 0;
    bool cut_by_count = false;
    if (top_k < vocab) {
        const Found found = find<true>(masses, counts, top_k);
        cut_by_count = found.reached;
        if (found.count <= LIST) kind = FEW;
        else if (found.reached) kind = UNKNOWN;
        if (found.reached) from = (u64)found.bin << BIN_SHIFT;
    }
    if (!cut_by_count && kind == MANY && params.top_p < 1.0) {
        // Never reached: all of it.
        total = find<false>(masses, counts, ~0ull).before;
        target = __double2ull_ru(params.top_p * __ull2double_rn(total));
        const Found found = find<false>(masses, counts, target);
        if (found.reached) {
            bin = found.bin;
            before = found.before;
            from = (u64)bin << BIN_SHIFT;
        }
        if (found.count <= LIST) kind = FEW;
        else if (found.reached) kind = counts[bin] <= LIST ? EDGE : UNKNOWN;
    }
    if (threadIdx.x != 0) return;
    cut.from = from;
    cut.total = total;
    cut.target = target;
    cut.before = before;
    cut.kind = kind;
    cut.bin = bin;
    cut.listed = 0;
}

// Counts this block's tokens, adds them to the row's, and in the last block concludes.
DEVICE void count_bins(const Weights& weights, const SampleParams& params, u32 vocab, Cut& cut) {
    __shared__ union {
        Bins bins;
        struct {
            u64 masses[BINS];
            u32 counts[BINS];
        } all;
    } shared;
    for (u32 bin = threadIdx.x; bin < BINS; bin += REGION_THREADS)
        shared.bins.counts[bin] = shared.bins.low[bin] = shared.bins.high[bin] = 0;
    __syncthreads();
    const u32 first = region_of(blockIdx.x * (REGION_THREADS / 32), vocab).first;
    const u32 past = region_of((blockIdx.x + 1) * (REGION_THREADS / 32) - 1, vocab).past;
    each_logit<4>(weights.raw(), first, past, threadIdx.x, REGION_THREADS, [&](u32 i, f32 x) {
        u32 value;
        if (!weights.key(i, x, value)) return;
        const u32 bin = (u32)(place(value, i) >> BIN_SHIFT), units = (u32)(Weights::mass(value) >> unit_shift(bin));
        atomicAdd(&shared.bins.counts[bin], 1u);
        atomicAdd(&shared.bins.low[bin], units & 0xfff);
        atomicAdd(&shared.bins.high[bin], units >> 12);
    });
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < BINS; bin += REGION_THREADS) {
        if (shared.bins.counts[bin] == 0) continue;
        const u64 units = ((u64)shared.bins.high[bin] << 12) + shared.bins.low[bin];
        atomicAdd(&cut.counts[bin], shared.bins.counts[bin]);
        atomicAdd(&cut.masses[bin], units << unit_shift(bin));
    }
    if (!is_last(cut.done)) return;
    for (u32 bin = threadIdx.x; bin < BINS; bin += REGION_THREADS) {
        shared.all.masses[bin] = __ldcg(&cut.masses[bin]);
        shared.all.counts[bin] = __ldcg(&cut.counts[bin]);
        cut.masses[bin] = 0;
        cut.counts[bin] = 0;
    }
    __syncthreads();
    if (threadIdx.x < 32) conclude(cut, params, vocab, shared.all.masses, shared.all.counts);
}

// What all three kernels begin with: this block's row. Their grid: [SPLITS, rows].
struct Turn {
    // Whether a token is drawn, and of which weights.
    Drawn it;
    const SampleParams& params;
    Cut& cut;
    // Whether fewer tokens than all remain.
    bool is_cut;
};
DEVICE Turn turn_of(const Tables& tables, const SampleRow* rows, const f32* logits, const u64* best, Cut* cuts) {
    launch_dependents();
    wait_for_inputs();
    const SampleRow row = rows[blockIdx.y];
    const Drawn it = drawn_of(tables, row, logits, best + blockIdx.y * SPLITS);
    const SampleParams& params = tables.params[row.slot];
    const bool is_cut = it.drawn && (params.top_p < 1.0 || (params.top_k > 0 && params.top_k < tables.vocab));
    return {it, params, cuts[blockIdx.y], is_cut};
}

extern "C" __global__ void __launch_bounds__(REGION_THREADS)
    sample_count(const Tables tables, const SampleRow* rows, const f32* logits, const u64* best, Cut* cuts) {
    const auto [it, params, cut, is_cut] = turn_of(tables, rows, logits, best, cuts);
    if (!it.drawn) return;
    if (is_cut) return count_bins(it.weights, params, tables.vocab, cut);
    sum_regions(it.weights, tables.vocab, 0, cut.regions);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        cut.from = 0;
        cut.kind = MANY;
    }
}

// The place in the list at which the prefix ends.
DEVICE void find_end(Cut& cut) {
    __shared__ u64 list[LIST], masses[LIST];
    const u32 listed = __ldcg(&cut.listed);
    for (u32 i = threadIdx.x; i < listed; i += REGION_THREADS) {
        list[i] = __ldcg(&cut.list[i]);
        masses[i] = Weights::mass(value_of(list[i]));
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < listed; i += REGION_THREADS) {
        u64 before = cut.before;
        for (u32 j = 0; j < listed; j++) before += list[j] > list[i] ? masses[j] : 0;
        if (before < cut.target && cut.target <= before + masses[i]) {
            cut.from = list[i];
            cut.kind = MANY;
        }
    }
}

extern "C" __global__ void __launch_bounds__(REGION_THREADS)
    sample_gather(const Tables tables, const SampleRow* rows, const f32* logits, const u64* best, Cut* cuts) {
    const Turn turn = turn_of(tables, rows, logits, best, cuts);
    const Weights& weights = turn.it.weights;
    Cut& cut = turn.cut;
    if (!turn.is_cut || (cut.kind != FEW && cut.kind != EDGE)) return;
    const bool edge = cut.kind == EDGE;
    const u64 from = cut.from;
    const u32 first = region_of(blockIdx.x * (REGION_THREADS / 32), tables.vocab).first;
    const u32 past = region_of((blockIdx.x + 1) * (REGION_THREADS / 32) - 1, tables.vocab).past;
    // In a register: what is added to `cut` would have it read again.
    const u32 edge_bin = cut.bin;
    each_logit<4>(weights.raw(), first, past, threadIdx.x, REGION_THREADS, [&](u32 i, f32 x) {
        u32 value;
        if (!weights.key(i, x, value)) return;
        const u64 at = place(value, i);
        if (at < from || (edge && at >> BIN_SHIFT != edge_bin)) return;
        cut.list[atomicAdd(&cut.listed, 1u)] = at;
    });
    if (edge && is_last(cut.done)) find_end(cut);
}

extern "C" __global__ void __launch_bounds__(REGION_THREADS)
    sample_regions(const Tables tables, const SampleRow* rows, const f32* logits, const u64* best, Cut* cuts) {
    const auto [it, params, cut, is_cut] = turn_of(tables, rows, logits, best, cuts);
    if (!is_cut || cut.kind != MANY) return;
    sum_regions(it.weights, tables.vocab, cut.from, cut.regions);
}
