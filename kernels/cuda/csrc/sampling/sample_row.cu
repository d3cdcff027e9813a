// Chooses a row's token in one launch, on Hopper: the best one, or a draw from all tokens under temperature and min-p.
// A cluster of blocks has the row in its shared memory, so logits are read once, and what they are is found by masks,
// biases and penalties once:
//
//     a block     reads its part of the row, and finds the best of it         | all are told
//                 sums its tokens' masses, a region a warp                    | all are told
//     one block   the one in whose part the draw stops finds its token
//
// It is the token that the kernels of `sample.cu` and `sample_cut.cu` find, which do what this cannot: cuts,
// log-probabilities, older devices.
#include "sample.cuh"

#define WARPS (REGION_THREADS / 32)

#if __CUDA_ARCH__ >= 900
#include "hopper.cuh"
#define CLUSTER __cluster_dims__(SPLITS, 1, 1)

extern __shared__ __align__(16) f32 seen_logits[];

// What all blocks of a cluster tell each other once: numbers, and a barrier in shared memory at which they count.
struct Told {
    u64 all[SPLITS];
    u64 barrier;

    // One thread, before the cluster has begun.
    DEVICE void expect() {
        barrier_init(shared_address(&barrier), 1);
        barrier_expect(shared_address(&barrier), SPLITS * 8);
    }

    // Tells this block's number, and waits for those of all.
    DEVICE void tell(u64 own) {
        if (threadIdx.x < SPLITS) {
            const u32 to = address_in(shared_address(all + blockIdx.x), threadIdx.x);
            const u32 counter = address_in(shared_address(&barrier), threadIdx.x);
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
                         ::"r"(to), "l"(own), "r"(counter) : "memory");
        }
        barrier_wait_for_cluster(shared_address(&barrier), 0);
    }
};

// All blocks of the cluster have begun, and have their barriers, once this thread comes back from the second.
DEVICE void cluster_begin() {
    barrier_init_done();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DEVICE void cluster_has_begun() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Brings what a sequence sees of the tokens from `first` on before `past` to shared memory, up to a multiple of four;
// the best that this thread saw.
DEVICE Best bring(const Logits& all, u32 first, u32 past) {
    Best best;
    if (!all.is_untouched() || all.vocab % 4 != 0) {
        each_logit<1>(all.raw, first, past, threadIdx.x, REGION_THREADS, [&](u32 i, f32 x) {
            x = all.seen(i, x);
            best.take(i, x);
            seen_logits[i - first] = x;
        });
        if (threadIdx.x < 3) seen_logits[past - first + threadIdx.x] = -infinity();
        return best;
    }
    each_four(all.raw, first, past, REGION_THREADS, [&](u32 i, float4 x) {
        *(float4*)(seen_logits + (i - first)) = x;
        best.take(i, x);
    });
    return best;
}

// Masses as `Weights` has them, of what a sequence sees.
struct Masses {
    f32 best, inverse_temperature, min_p;

    DEVICE u64 of(f32 seen) const {
        const f32 x = __fmul_rn(__fsub_rn(Weights::clamp(seen), best), inverse_temperature);
        // What is below 2^-44 has no mass, and neither has what is no number.
        const f32 weight = exp_within(fmaxf(x, -87.0f));
        return Weights::mass_of(weight < min_p ? 0.0f : weight);
    }
    DEVICE u64 of(float4 seen) const { return of(seen.x) + of(seen.y) + of(seen.z) + of(seen.w); }
};

DEVICE u64 warp_total(u64 x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

// The first of `parts` that ends behind `stop`, which then counts from its beginning.
DEVICE u32 part_of(const u64* parts, u32 count, u64& stop) {
    u32 part = 0;
    for (; part + 1 < count && parts[part] <= stop; part++) stop -= parts[part];
    return part;
}

// The token of a region of this block's at which masses pass `stop`; in one thread, NOBODY in all others. `parts`: room
// for the warps' sums.
DEVICE u32 draw_in(const Masses& masses, Region region, u32 first, u64 stop, u64* parts) {
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, size = (region.past - region.first + WARPS - 1) / WARPS;
    const auto begin = [&](u32 share) { return min(region.first + share * size, region.past); };
    u64 sum = 0;
    for (u32 i = begin(warp) + lane; i < begin(warp + 1); i += 32) sum += masses.of(seen_logits[i - first]);
    sum = warp_total(sum);
    if (lane == 0) parts[warp] = sum;
    __syncthreads();
    if (part_of(parts, WARPS, stop) != warp) return NOBODY;
    for (u32 i = begin(warp); i < begin(warp + 1); i += 32) {
        const u64 sums = warp_prefix_sum(i + lane < begin(warp + 1) ? masses.of(seen_logits[i + lane - first]) : 0);
        const u32 past = __ballot_sync(~0u, sums > stop);
        if (past != 0) return lane == __ffs(past) - 1 ? i + lane : NOBODY;
        stop -= __shfl_sync(~0u, sums, 31);
    }
    return NOBODY;
}
#else
#define CLUSTER
#endif

// tokens[row], and the slot's last token. Grid: [SPLITS, rows], a cluster a row; shared memory: a block's regions, and
// 3 numbers.
extern "C" __global__ void CLUSTER __launch_bounds__(REGION_THREADS, 5)
    sample_row(const Tables tables, const SampleRow* rows, const f32* logits, u32* tokens) {
#if __CUDA_ARCH__ >= 900
    __shared__ Told bests, totals;
    __shared__ u64 parts[WARPS], shares[WARPS];
    launch_dependents();
    if (threadIdx.x == 0) {
        bests.expect();
        totals.expect();
    }
    cluster_begin();
    // It was there before the step began.
    const SampleRow row = rows[blockIdx.y];
    wait_for_inputs();
    if (row.slot == NOBODY) return cluster_has_begun();
    const SampleParams& params = tables.params[row.slot];
    const Logits all = logits_of(tables, row, logits);
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x;
    const Region region = region_of(rank * WARPS + warp, all.vocab);
    const u32 first = region_of(rank * WARPS, all.vocab).first;
    const u32 past = region_of(rank * WARPS + WARPS - 1, all.vocab).past;
    const Best own = bring(all, first, past);
    cluster_has_begun();
    bests.tell(block_reduce<u64, max_of>(own.key(), parts));
    const u64 most = best_of(bests.all);
    const f32 logit = from_ordered((u32)(most >> 32));
    const bool none = most == 0 || logit == -infinity();
    u32 token = threadIdx.x != 0 || rank != 0 ? NOBODY : best_token(most, params.fallback);
    if (!none && !params.greedy) {
        const Masses masses = {Weights::clamp(logit), params.inverse_temperature, params.min_p};
        u64 sum = 0;
        for (u32 i = region.first + 4 * lane; i < region.past; i += 128)
            sum += masses.of(*(const float4*)(seen_logits + (i - first)));
        sum = warp_total(sum);
        if (lane == 0) parts[warp] = sum;
        __syncthreads();
        u64 total = 0;
#pragma unroll
        for (u32 i = 0; i < WARPS; i++) total += parts[i];
        totals.tell(total);
        total = 0;
        for (u32 i = 0; i < SPLITS; i++) total += totals.all[i];
        u64 stop = stop_at(row.uniform, total);
        if (part_of(totals.all, SPLITS, stop) != rank) return;
        const u32 within = part_of(parts, WARPS, stop);
        token = draw_in(masses, region_of(rank * WARPS + within, all.vocab), first, stop, shares);
    }
    if (token == NOBODY) return;
    tokens[blockIdx.y] = token;
    tables.last[row.slot] = token;
    if (params.flags & PENALISED) {
        u16* count = tables.counts + row.slot * (u64)tables.vocab + token;
        *count = (u16)min(max_of<u32>(*count, 1u) + 1, 65535u);
    }
#endif
}
