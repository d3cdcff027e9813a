// Chooses tokens: masks, biases and penalties, then the best logit, or a draw under temperature, min-p, top-k and
// top-p; log-probabilities. The `sampling` crate says what each of these means; `src/sampling/mod.rs` has the order.
//
// Nothing is sorted. A token's weight e^((logit - best) / temperature) has the host's bits; its mass is that weight in
// units of 2^-44, an integer, so sums do not depend on their order. Cuts keep a prefix of the ranking by (weight, lower
// id), which several blocks have found when `sample` runs (`sample_cut.cu`). Where they could not, and for the best
// log-probabilities, one block does: `narrow` counts tokens or masses in bins of ever fewer bits of that key, until
// what is left fits a list that threads rank side by side. Tokens below 2^-44 of the best one's weight are never drawn.
#include "sample_rank.cuh"

// A draw from a row that only this block has seen.
DEVICE u32 draw_alone(
    const Weights& weights, const SampleParams& params, u32 top_k, u32 vocab, f64 uniform, Shared& shared) {
    u32 count = vocab;
    u64 from = 0, total = 0;
    if (top_k < vocab) from = narrow(weights, vocab, BY_COUNT, top_k, shared, count);
    if (params.top_p < 1.0 && count > LIST) {
        total = total_mass(weights, vocab, from, shared);
        from = narrow(weights, vocab, BY_MASS, __double2ull_ru(params.top_p * __ull2double_rn(total)), shared, count);
    }
    if (count > LIST) return draw_all(weights, vocab, from, uniform, shared);
    u32 listed = gather(weights, vocab, from, shared);
    return draw_listed(listed, top_k, params.top_p, total, uniform, shared);
}

DEVICE u32 draw(
    const Weights& weights, const SampleParams& params, const Cut& cut, u32 vocab, f64 uniform, Shared& shared) {
    const u32 top_k = params.top_k == 0 || params.top_k > vocab ? vocab : params.top_k;
    if (cut.kind == MANY) return draw_regions(weights, vocab, cut, uniform, shared);
    if (cut.kind != FEW) return draw_alone(weights, params, top_k, vocab, uniform, shared);
    if (threadIdx.x < cut.listed) shared.list[threadIdx.x] = cut.list[threadIdx.x];
    __syncthreads();
    return draw_listed(cut.listed, top_k, params.top_p, cut.total, uniform, shared);
}

DEVICE f32 logprob_of(f32 logit, f64 normalizer) {
    const f32 floor = -9999.0f;
    f32 logprob = (f32)((f64)logit - normalizer);
    return logprob > floor ? fminf(logprob, 0.0f) : floor;
}

// The largest logit of an untouched row.
__device__ __noinline__ f32 largest_of(const Logits& all, Shared& shared) {
    f32 most = -infinity();
    each_logit<1>(all.raw, 0, all.vocab, threadIdx.x, THREADS, [&](u32, f32 x) { most = fmaxf(most, x); });
    return block_reduce<f32, max_of>(most, (f32*)shared.parts);
}

// A place behind which no token of the `top` best lies, if no thread has seen a better one than `best`: of groups of
// threads, the best tokens of as many are at least as good.
DEVICE u64 bound_of(u64 best, u32 top, Shared& shared) {
    const u32 GROUP = 16, GROUPS = THREADS / GROUP;
    static_assert(GROUPS >= MOST_TOP, "a group for each of the best tokens");
#pragma unroll
    for (u32 lanes = GROUP / 2; lanes > 0; lanes /= 2) best = max_of(best, __shfl_xor_sync(~0u, best, lanes));
    if (threadIdx.x % GROUP == 0) shared.list[threadIdx.x / GROUP] = best;
    __syncthreads();
    if (threadIdx.x < GROUPS) {
        const u64 own = shared.list[threadIdx.x];
        u32 better = 0;
        for (u32 j = 0; j < GROUPS; j++) better += shared.list[j] > own || (shared.list[j] == own && j < threadIdx.x);
        if (better == top - 1) shared.before = own;
    }
    __syncthreads();
    return shared.before;
}

// The `top` best tokens of an untouched row, and perhaps some more, in the list; how many those are.
DEVICE u32 list_best(const Raw& raw, u32 vocab, u64 best, u32 top, Shared& shared) {
    const u32 listed = gather(raw, vocab, bound_of(best, top, shared), shared);
    if (shared.bin <= LIST) return listed;
    __syncthreads();
    u32 count;
    const u64 from = narrow(raw, vocab, BY_COUNT, top, shared, count);
    return gather(raw, vocab, from, shared);
}

// Log-probability and rank of `token` in the untouched row, of which `most` is the largest logit, and the best tokens.
__device__ __noinline__ void describe(
    const f32* logits, u32 vocab, f32 most, u32 token, u32 top, Details& out, Shared& shared) {
    const Raw raw = {logits};
    const f32 chosen = logits[token];
    f64 sum = 0.0;
    u32 better = 0;
    u64 best = 0;
    each_logit<2>(logits, 0, vocab, threadIdx.x, THREADS, [&](u32 i, f32 x) {
        sum += (f64)exp_host(__fsub_rn(x, most));
        better += x > chosen || (x == chosen && i < token);
        u32 value;
        raw.key(i, x, value);
        best = max_of(best, place(value, i));
    });
    sum = block_reduce<f64, sum_of>(sum, (f64*)shared.parts);
    better = block_reduce<u32, sum_of>(better, (u32*)shared.parts);
    f64 normalizer = fabsf(most) < infinity() ? (f64)most + log(sum) : (f64)most;
    if (threadIdx.x == 0) {
        out.logprob = logprob_of(chosen, normalizer);
        out.rank = better + 1;
    }
    if (top == 0) return;
    const u32 listed = list_best(raw, vocab, best, min(top, vocab), shared);
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
extern "C" __global__ void sample_best(const Tables tables, const SampleRow* rows, const f32* logits, u64* best) {
    __shared__ u64 parts[WARPS];
    launch_dependents();
    wait_for_inputs();
    const SampleRow row = rows[blockIdx.y];
    if (row.slot == NOBODY) return;
    const Logits all = logits_of(tables, row, logits);
    const u32 size = (all.vocab + 4 * SPLITS - 1) / (4 * SPLITS) * 4;
    const u32 first = min(blockIdx.x * size, all.vocab), past = min(first + size, all.vocab);
    Best own;
    if (all.is_untouched() && all.vocab % 4 == 0)
        each_four(all.raw, first, past, blockDim.x, [&](u32 i, float4 x) { own.take(i, x); });
    else
        each_logit<1>(
            all.raw, first, past, threadIdx.x, blockDim.x, [&](u32 i, f32 x) { own.take(i, all.seen(i, x)); });
    const u64 mine = block_reduce<u64, max_of>(own.key(), parts);
    if (threadIdx.x == 0) best[blockIdx.y * SPLITS + blockIdx.x] = mine;
}

// tokens[row], details[row] where asked for, and the slot's last token.
extern "C" __global__ void __launch_bounds__(THREADS) sample(const Tables tables, const SampleRow* rows,
    const f32* logits, const u64* best, const Cut* cuts, u32* tokens, Details* details) {
    __shared__ Shared shared;
    launch_dependents();
    wait_for_inputs();
    const SampleRow row = rows[blockIdx.x];
    if (row.slot == NOBODY) return;
    const SampleParams params = tables.params[row.slot];
    const Logits all = logits_of(tables, row, logits);
    const u64 most = best_of(best + blockIdx.x * SPLITS);
    u32 token = ~(u32)most;
    f32 logit = from_ordered((u32)(most >> 32));
    if (most == 0 || logit == -infinity()) {
        token = params.fallback;
    } else if (!params.greedy) {
        const Weights weights = {all, Weights::clamp(logit), params.inverse_temperature, params.min_p};
        token = draw(weights, params, cuts[blockIdx.x], all.vocab, row.uniform, shared);
    }
    if (params.logprobs != NO_LOGPROBS) {
        __syncthreads();
        const f32 largest = all.is_untouched() && most != 0 ? from_ordered((u32)(most >> 32)) : largest_of(all, shared);
        describe(all.raw, all.vocab, largest, token, params.logprobs, details[blockIdx.x], shared);
    }
    if (threadIdx.x == 0) {
        tokens[blockIdx.x] = token;
        tables.last[row.slot] = token;
        if (params.flags & PENALISED) {
            u16* count = tables.counts + row.slot * (u64)tables.vocab + token;
            u32 more = max_of<u32>(*count, 1u) + 1;
            *count = (u16)min(more, 65535u);
        }
    }
}
