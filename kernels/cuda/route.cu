// Chooses each row's experts and their weights. One warp a row; scores and what is chosen by lie in shared memory.
#include "quire.cuh"

constexpr f32 LEAST = -3.402823466e38f;

// `ops::Routing`; see kernels/src/cuda/groups.rs.
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

DEVICE Best warp_best(Best best) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        Best other = {__shfl_xor_sync(~0u, best.value, lanes), __shfl_xor_sync(~0u, best.at, lanes)};
        if (better(other, best)) best = other;
    }
    return best;
}

DEVICE Best best_of(const f32* values, u32 count) {
    Best best = {-infinity(), NOBODY};
    for (u32 i = threadIdx.x; i < count; i += 32)
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
    for (u32 group = threadIdx.x; group < routing.groups; group += 32)
        worth[group] = sum_of_best(merits + group * size, size, routing.group_best);
    __syncwarp();
    for (u32 step = 0; step < routing.groups_kept; ++step) {
        Best best = best_of(worth, routing.groups);
        __syncwarp();
        // A kept group's worth is replaced by NaN, which is better than nothing and by which it is known.
        if (threadIdx.x == 0) worth[best.at] = __uint_as_float(0x7fc00000u);
        __syncwarp();
    }
    for (u32 i = threadIdx.x; i < experts; i += 32)
        if (worth[i / size] == worth[i / size]) merits[i] = -infinity();
    __syncwarp();
}

extern "C" __global__ void route_f32(
    const f32* logits, const Routing routing, u32* chosen, f32* weights, u32 experts) {
    extern __shared__ f32 numbers[]; // scores [experts], merits [experts], worth [groups]
    f32 *scores = numbers, *merits = numbers + experts, *worth = merits + experts;
    const f32* row = logits + blockIdx.x * (u64)experts;
    f32 highest = -infinity(), sum = 0.0f;
    for (u32 i = threadIdx.x; i < experts; i += 32) highest = fmaxf(highest, row[i]);
    highest = warp_max(highest);
    for (u32 i = threadIdx.x; i < experts; i += 32) {
        scores[i] = routing.sigmoid ? 1.0f / (1.0f + expf(-row[i])) : expf(row[i] - highest);
        sum += scores[i];
    }
    sum = warp_sum(sum);
    for (u32 i = threadIdx.x; i < experts; i += 32) {
        if (!routing.sigmoid) scores[i] /= sum;
        f32 merit = routing.correction ? scores[i] + routing.correction[i] : scores[i];
        // What is no number comes last among what can be chosen.
        merits[i] = merit >= LEAST ? merit : LEAST;
    }
    __syncwarp();
    if (routing.groups) keep_groups(routing, merits, worth, experts);
    u32* experts_of_row = chosen + blockIdx.x * (u64)routing.top_k;
    f32* weights_of_row = weights + blockIdx.x * (u64)routing.top_k;
    f32 total = 0.0f;
    for (u32 slot = 0; slot < routing.top_k; ++slot) {
        Best best = best_of(merits, experts);
        f32 weight = scores[best.at];
        total += weight;
        __syncwarp();
        if (threadIdx.x == 0) {
            merits[best.at] = -infinity();
            experts_of_row[slot] = best.at;
            weights_of_row[slot] = weight;
        }
        __syncwarp();
    }
    f32 divisor = routing.renormalise ? fmaxf(total, 1.17549435e-38f) : 1.0f;
    for (u32 slot = threadIdx.x; slot < routing.top_k; slot += 32)
        weights_of_row[slot] = weights_of_row[slot] / divisor * routing.scale;
}
