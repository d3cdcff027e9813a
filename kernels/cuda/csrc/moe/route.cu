// Chooses each row's experts and their weights, one warp a row; scores and what is chosen by lie in shared memory. Each
// block then takes places in the lists of its experts and writes its pairs of row and expert there; the last to take
// places cuts the lists into tiles, so that products read an expert once for all its rows.
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
SAME_LAYOUT(Routing, Routing);

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

// Where the best of all lanes' is.
DEVICE u32 place_of_best(Best best) {
#if __CUDA_ARCH__ >= 800
    const u32 mine = ordered(best.value), highest = __reduce_max_sync(~0u, mine);
    return __reduce_min_sync(~0u, mine == highest ? best.at : NOBODY);
#else
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        Best other = {__shfl_xor_sync(~0u, best.value, lanes), __shfl_xor_sync(~0u, best.at, lanes)};
        if (better(other, best)) best = other;
    }
    return best.at;
#endif
}

// Calls `use(i, from(i))` for this lane's share of `count` places, several of which are read before the first is used.
template <typename From, typename Use> DEVICE void each_place(u32 count, From from, Use use) {
    constexpr u32 AT_ONCE = 8;
    for (u32 first = threadIdx.x % 32; first < count; first += 32 * AT_ONCE) {
        f32 values[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) values[i] = from(min(first + 32 * i, count - 1));
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
            if (first + 32 * i < count) use(first + 32 * i, values[i]);
    }
}

// Where the best of numbers is that all are numbers, and of which places past the last have none. Of two neighbours the
// better one goes on, so that few comparisons wait for each other.
DEVICE u32 place_of_best_number(const f32* values, u32 count) {
    constexpr u32 AT_ONCE = 8;
    Best best = {-infinity(), NOBODY};
    for (u32 first = threadIdx.x % 32; first < count; first += 32 * AT_ONCE) {
        Best some[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 at = first + 32 * i;
            some[i] = {at < count ? values[at] : -infinity(), at};
        }
#pragma unroll
        for (u32 apart = 1; apart < AT_ONCE; apart *= 2)
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i += 2 * apart)
                if (some[i + apart].value > some[i].value) some[i] = some[i + apart];
        if (better(some[0], best)) best = some[0];
    }
    return place_of_best(best);
}

DEVICE u32 place_of_best(const f32* values, u32 count) {
    Best best = {-infinity(), NOBODY};
#pragma unroll 4
    for (u32 i = threadIdx.x % 32; i < count; i += 32)
        if (better({values[i], i}, best)) best = {values[i], i};
    return place_of_best(best);
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
        const u32 best = place_of_best(worth, routing.groups);
        __syncwarp();
        // A kept group's worth is replaced by NaN, which is better than nothing and by which it is known.
        if (threadIdx.x % 32 == 0) worth[best] = __uint_as_float(0x7fc00000u);
        __syncwarp();
    }
    for (u32 i = threadIdx.x % 32; i < experts; i += 32)
        if (worth[i / size] == worth[i / size]) merits[i] = -infinity();
    __syncwarp();
}

// Chooses the experts of one row. `numbers` is this warp's: scores [experts], merits [experts], worth [groups], weights
// [top_k]; `chosen` is shared memory too.
DEVICE void choose(const f32* row, const Routing& routing, u32* chosen, f32* weights, u32 experts, f32* numbers) {
    const u32 lane = threadIdx.x % 32;
    f32 *scores = numbers, *merits = numbers + experts, *worth = merits + experts, *taken = worth + routing.groups;
    f32 highest = -infinity(), sum = 0.0f;
    each_place(experts, [=](u32 i) { return row[i]; }, [&](u32, f32 x) { highest = fmaxf(highest, x); });
    highest = warp_max(highest);
    each_place(experts, [=](u32 i) { return row[i]; }, [&](u32 i, f32 x) {
        const f32 score = routing.sigmoid ? 1.0f / (1.0f + expf(-x)) : expf(x - highest);
        scores[i] = score;
        sum += score;
    });
    sum = warp_sum(sum);
    each_place(experts, [=](u32 i) { return scores[i]; }, [&](u32 i, f32 x) {
        const f32 score = routing.sigmoid ? x : x / sum;
        const f32 merit = routing.correction ? score + routing.correction[i] : score;
        scores[i] = score;
        // What is no number comes last among what can be chosen.
        merits[i] = merit >= LEAST ? merit : LEAST;
    });
    __syncwarp();
    if (routing.groups) keep_groups(routing, merits, worth, experts);
    f32 total = 0.0f;
    for (u32 slot = 0; slot < routing.top_k; ++slot) {
        const u32 at = place_of_best_number(merits, experts);
        const f32 weight = scores[at];
        total += weight;
        // Whoever looks at it again.
        if (lane == at % 32) merits[at] = -infinity();
        if (lane == 0) chosen[slot] = at, taken[slot] = weight;
    }
    __syncwarp();
    const f32 divisor = routing.renormalise ? fmaxf(total, 1.17549435e-38f) : 1.0f;
    for (u32 slot = lane; slot < routing.top_k; slot += 32) weights[slot] = taken[slot] / divisor * routing.scale;
}

// Sum over the threads before this one, of a block of whole warps; `all`: over all of them.
DEVICE u32 sum_before(u32 x, u32& all) {
    __shared__ u32 sums[32];
    const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 sum = x;
#pragma unroll
    for (u32 lanes = 1; lanes < 32; lanes *= 2) {
        const u32 other = __shfl_up_sync(~0u, sum, lanes);
        if (lane >= lanes) sum += other;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    u32 before = 0;
    all = 0;
    for (u32 i = 0; i < blockDim.x / 32; i++) {
        before += i < warp ? sums[i] : 0;
        all += sums[i];
    }
    return before + sum - x;
}

// Cuts the experts' lists of pairs into tiles, and leaves the numbers at zero. `counts`: shared or not.
DEVICE void cut_tiles(const Choices& to, u32* counts, u32 experts) {
    u32 before = 0;
    for (u32 base = 0; base < experts; base += blockDim.x) {
        const u32 expert = base + threadIdx.x, count = expert < experts ? atomicExch(counts + expert, 0u) : 0;
        const u32 tiles = (count + to.tile_rows - 1) / to.tile_rows, begin = expert * to.room;
        u32 all;
        const u32 first = before + sum_before(tiles, all);
        for (u32 tile = 0; tile < tiles; tile++)
            to.tiles[first + tile] = {expert, begin + tile * to.tile_rows, begin + count, first};
        before += all;
    }
    if (threadIdx.x == 0) to.counts[0] = before;
}

// Takes places for a block's pairs in the lists of all: how many its experts need become the first of each. Returns
// whether this block is the last to do so. `places`: shared, [experts].
DEVICE bool take_places(const Choices& to, u32 experts, u32* places) {
    __shared__ bool last;
    for (u32 i = threadIdx.x; i < experts; i += blockDim.x)
        if (places[i]) places[i] = atomicAdd(to.counts + 2 + i, places[i]);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(to.counts + 1, 1u) == gridDim.x - 1;
        if (last) to.counts[1] = 0;
    }
    __syncthreads();
    return last;
}

// Writes a block's pairs, from `first` on, to the lists of their experts, and cuts the lists once all blocks have
// places there. The order of a list may vary, and no result depends on it. Shared: `chosen`, the pairs' experts, and
// `places`, [experts].
DEVICE void list_pairs(const Choices& to, const u32* chosen, u32 first, u32 pairs, u32 experts, u32* places) {
    for (u32 i = threadIdx.x; i < experts; i += blockDim.x) places[i] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < pairs; i += blockDim.x) atomicAdd(places + chosen[i], 1u);
    __syncthreads();
    const bool alone = gridDim.x == 1, last = !alone && take_places(to, experts, places);
    if (alone) cut_tiles(to, places, experts);
    __syncthreads();
    for (u32 i = threadIdx.x; i < pairs; i += blockDim.x) {
        const u32 expert = chosen[i];
        to.lists[expert * to.room + atomicAdd(places + expert, 1u)] = first + i;
    }
    if (last) cut_tiles(to, to.counts + 2, experts);
}

// Grid: rows over `each`, those of a block, rounded up. Only rows below `live[0]` are listed: the others are padding.
extern "C" __global__ void route_f32(
    const f32* logits, const Routing routing, const Choices to, u32 rows, u32 each, u32 experts, const u32* live) {
    // Experts of the block's rows, places in their lists, and each warp's numbers.
    extern __shared__ u32 chosen[];
    launch_dependents();
    wait_for_inputs();
    const u32 top_k = routing.top_k, begin = blockIdx.x * each, end = min(begin + each, rows);
    u32* places = chosen + each * top_k;
    f32* numbers = (f32*)(places + experts) + threadIdx.x / 32 * (2 * experts + routing.groups + top_k);
    for (u32 row = begin + threadIdx.x / 32; row < end; row += blockDim.x / 32)
        choose(logits + (u64)row * experts, routing, chosen + (row - begin) * top_k, to.weights + (u64)row * top_k,
            experts, numbers);
    __syncthreads();
    for (u32 i = threadIdx.x; i < (end - begin) * top_k; i += blockDim.x) to.experts[begin * top_k + i] = chosen[i];
    if (!to.lists) return;
    const u32 own = min(end, live[0]), pairs = own > begin ? (own - begin) * top_k : 0;
    list_pairs(to, chosen, begin * top_k, pairs, experts, places);
}
