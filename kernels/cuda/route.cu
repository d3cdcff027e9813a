// Chooses each row's experts and their weights, one warp a row; scores and what is chosen by lie in shared memory. The last block to end
// sorts the pairs of row and expert by expert, so that products read an expert once for all its rows.
#include "experts.cuh"

constexpr f32 LEAST = -3.402823466e38f;

// `ops::Routing`; see src/routing.rs.
struct Routing {
    const f32* correction; // null: none
    u32 sigmoid;
    u32 groups; // 0: none
    u32 groups_kept;
    u32 group_best;
    u32 top_k;
    u32 renormalise;
    f32 scale;
};

// A number and where it is; of equals the lower place is better.
struct Best {
    f32 value;
    u32 at;
};

DEVICE bool better(Best a, Best b) { return a.value > b.value || (a.value == b.value && a.at < b.at); }

// Bits that are ordered as numbers are; both zeros are the same.
DEVICE u32 ordered(f32 x) {
    const u32 bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

DEVICE Best warp_best(Best best) {
#if __CUDA_ARCH__ >= 800
    const u32 mine = ordered(best.value), highest = __reduce_max_sync(~0u, mine);
    const u32 at = __reduce_min_sync(~0u, mine == highest ? best.at : NOBODY);
    return {__shfl_sync(~0u, best.value, __ffs(__ballot_sync(~0u, mine == highest)) - 1), at};
#else
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        Best other = {__shfl_xor_sync(~0u, best.value, lanes), __shfl_xor_sync(~0u, best.at, lanes)};
        if (better(other, best)) best = other;
    }
    return best;
#endif
}

DEVICE Best best_of(const f32* values, u32 count) {
    Best best = {-infinity(), NOBODY};
    for (u32 i = threadIdx.x % 32; i < count; i += 32)
        if (better({values[i], i}, best)) best = {values[i], i};
    return warp_best(best);
}

// Sum of the `count` largest, largest first.
DEVICE f32 sum_of_best(const f32* values, u32 size, u32 count) {
    f32 sum = 0.0f;
    Best last = {infinity(), 0};
    for (u32 step = 0; step < count; ++step) {
        Best best = {-infinity(), NOBODY};
        for (u32 i = 0; i < size; ++i) {
            Best one = {values[i], i};
            if ((step == 0 || better(last, one)) && better(one, best)) best = one;
        }
        sum += best.value;
        last = best;
    }
    return sum >= LEAST ? sum : LEAST;
}

// Puts the experts of all but the best groups out of reach. `worth` has a number for each group.
DEVICE void keep_groups(const Routing& routing, f32* merits, f32* worth, u32 experts) {
    u32 size = experts / routing.groups;
    for (u32 group = threadIdx.x % 32; group < routing.groups; group += 32)
        worth[group] = sum_of_best(merits + group * size, size, routing.group_best);
    __syncwarp();
    for (u32 step = 0; step < routing.groups_kept; ++step) {
        Best best = best_of(worth, routing.groups);
        __syncwarp();
        // A kept group's worth is replaced by NaN, which is better than nothing and by which it is known.
        if (threadIdx.x % 32 == 0) worth[best.at] = __uint_as_float(0x7fc00000u);
        __syncwarp();
    }
    for (u32 i = threadIdx.x % 32; i < experts; i += 32)
        if (worth[i / size] == worth[i / size]) merits[i] = -infinity();
    __syncwarp();
}

// Chooses the experts of one row. `numbers` is this warp's: scores [experts], merits [experts], worth [groups].
DEVICE void choose(const f32* row, const Routing& routing, u32* chosen, f32* weights, u32 experts, f32* numbers) {
    const u32 lane = threadIdx.x % 32;
    f32 *scores = numbers, *merits = numbers + experts, *worth = merits + experts;
    f32 highest = -infinity(), sum = 0.0f;
    for (u32 i = lane; i < experts; i += 32) highest = fmaxf(highest, row[i]);
    highest = warp_max(highest);
    for (u32 i = lane; i < experts; i += 32) {
        scores[i] = routing.sigmoid ? 1.0f / (1.0f + expf(-row[i])) : expf(row[i] - highest);
        sum += scores[i];
    }
    sum = warp_sum(sum);
    for (u32 i = lane; i < experts; i += 32) {
        if (!routing.sigmoid) scores[i] /= sum;
        f32 merit = routing.correction ? scores[i] + routing.correction[i] : scores[i];
        // What is no number comes last among what can be chosen.
        merits[i] = merit >= LEAST ? merit : LEAST;
    }
    __syncwarp();
    if (routing.groups) keep_groups(routing, merits, worth, experts);
    f32 total = 0.0f;
    for (u32 slot = 0; slot < routing.top_k; ++slot) {
        Best best = best_of(merits, experts);
        f32 weight = scores[best.at];
        total += weight;
        __syncwarp();
        if (lane == 0) {
            merits[best.at] = -infinity();
            chosen[slot] = best.at;
            weights[slot] = weight;
        }
        __syncwarp();
    }
    f32 divisor = routing.renormalise ? fmaxf(total, 1.17549435e-38f) : 1.0f;
    for (u32 slot = lane; slot < routing.top_k; slot += 32) weights[slot] = weights[slot] / divisor * routing.scale;
}

// Sum over the lanes before this one; `all`: over all of them.
DEVICE u32 sum_before(u32 x, u32& all) {
    u32 sum = x;
#pragma unroll
    for (u32 lanes = 1; lanes < 32; lanes *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, lanes);
        if (threadIdx.x % 32 >= lanes) sum += other;
    }
    all = __shfl_sync(~0u, sum, 31);
    return sum - x;
}

// Where each expert's pairs begin, and its tiles. By one warp.
DEVICE void cut_tiles(const Choices& to, const u32* counts, u32* begins, u32 experts) {
    u32 pairs_before = 0, tiles_before = 0;
    for (u32 base = 0; base < experts; base += 32) {
        const u32 expert = base + threadIdx.x % 32, count = expert < experts ? counts[expert] : 0;
        const u32 tiles = (count + to.tile_rows - 1) / to.tile_rows;
        u32 all_pairs, all_tiles;
        const u32 begin = pairs_before + sum_before(count, all_pairs), first = tiles_before + sum_before(tiles, all_tiles);
        for (u32 tile = 0; tile < tiles; tile++) to.tiles[first + tile] = {expert, begin + tile * to.tile_rows, begin + count, first};
        if (expert < experts) begins[expert] = begin;
        pairs_before += all_pairs;
        tiles_before += all_tiles;
    }
    if (threadIdx.x % 32 == 0) to.counts[0] = tiles_before;
}

// Hands each pair and its expert to `take`, by all threads of a block: eight at a time, so that few loads are waited for.
template <typename Take> DEVICE void each_pair(const u32* chosen, u32 pairs, Take take) {
    for (u32 base = threadIdx.x * 4; base < pairs; base += blockDim.x * 8) {
        u32 experts[2][4];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 at = base + i * blockDim.x * 4;
            // Other blocks have just written them: they come from the cache that all share.
            const uint4 four = at < pairs ? __ldcg((const uint4*)(chosen + at)) : make_uint4(0, 0, 0, 0);
            experts[i][0] = four.x, experts[i][1] = four.y, experts[i][2] = four.z, experts[i][3] = four.w;
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            const u32 pair = base + i / 4 * blockDim.x * 4 + i % 4;
            if (pair < pairs) take(pair, experts[i / 4][i % 4]);
        }
    }
}

// Adds this block's choices to what all rows chose. `chosen`: of the warp's row, null for none; `counts`: shared, [experts].
DEVICE void count(const u32* chosen, u32 top_k, u32* totals, u32 experts, u32* counts) {
    __syncthreads();
    for (u32 i = threadIdx.x; i < experts; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    if (chosen)
        for (u32 slot = threadIdx.x % 32; slot < top_k; slot += 32) atomicAdd(counts + chosen[slot], 1u);
    __syncthreads();
    for (u32 i = threadIdx.x; i < experts; i += blockDim.x)
        if (counts[i]) atomicAdd(totals + i, counts[i]);
}

// Sorts pairs by expert. The order of an expert's pairs may vary, and no result depends on it. `counts`, `begins`: shared, [experts].
DEVICE void sort(const Choices& to, u32 pairs, u32* totals, u32 experts, u32* counts, u32* begins) {
    for (u32 i = threadIdx.x; i < experts; i += blockDim.x) {
        counts[i] = __ldcg(totals + i);
        totals[i] = 0;
    }
    __syncthreads();
    if (threadIdx.x < 32) cut_tiles(to, counts, begins, experts);
    __syncthreads();
    each_pair(to.experts, pairs, [=](u32 pair, u32 expert) { to.order[atomicAdd(begins + expert, 1u)] = pair; });
}

// Grid: rows over warps of a block, rounded up. Only rows below `live[0]` are sorted: the others are padding.
extern "C" __global__ void route_f32(
    const f32* logits, const Routing routing, const Choices to, u32 rows, u32 experts, const u32* live) {
    extern __shared__ f32 numbers[];
    __shared__ bool last;
    launch_dependents();
    wait_for_inputs();
    const u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, row = blockIdx.x * warps + warp, own = min(rows, live[0]);
    const u64 first = (u64)row * routing.top_k;
    if (row < rows)
        choose(logits + (u64)row * experts, routing, to.experts + first, to.weights + first, experts,
               numbers + warp * (2 * experts + routing.groups));
    if (!to.order) return;
    u32 *counts = (u32*)numbers, *totals = to.counts + 2;
    count(row < own ? to.experts + first : nullptr, routing.top_k, totals, experts, counts);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(to.counts + 1, 1u) == gridDim.x - 1;
        if (last) to.counts[1] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    sort(to, own * routing.top_k, totals, experts, counts, counts + experts);
}
