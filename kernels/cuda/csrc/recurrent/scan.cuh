// What the two ways of a selective scan share; see `ops::Scan`.
#pragma once
#include "recurrent.cuh"

// See src/recurrent/selective_scan.rs.
struct Scan {
    char* state; // [slot][head][channel][value]
    const f32* decay;
    const f32* skip;
    const f32* dt_bias; // null: none
    f32 least_dt;
    f32 most_dt;
    u32 heads;
    u32 head_dim;
    u32 groups;
    u32 state_dim;
    u32 each_value; // whether each value has a decay of its own
    u32 lanes;      // of a channel, where rows are walked: a power of two
    u32 stepped;    // sequences with so few rows are not walked: 1, or 0
    u32 chunked;    // sequences with so many rows or more are scanned in chunks
    u32 state_type;

    DEVICE StatePlace state_at(u64 value) const { return StatePlace{state, state_type} + value; }

    // The first column of a head's `b` and `c`.
    DEVICE u32 group_column(u32 head) const { return head / (heads / groups) * state_dim; }

    DEVICE f32 bias(u32 head) const { return dt_bias ? dt_bias[head] : 0.0f; }

    DEVICE f32 clamped(f32 dt) const { return fmaxf(least_dt, fminf(most_dt, softplus(dt))); }
};
SAME_LAYOUT(Scan, Scan);

template <typename T> struct Inputs {
    Columns<T> x, dt, b, c;
};

// The sequence that is number `index` of those with `least` rows or more, and fewer than `below`; whether there is one.
// All threads of a warp call it.
DEVICE bool find_sequence(const Batch& batch, u32 least, u32 below, u32 index, u32& sequence) {
    const u32 lane = threadIdx.x % 32, sequences = batch.counts[1];
    for (u32 base = 0; base < sequences; base += 32) {
        const u32 rows = base + lane < sequences ? batch.num_rows[base + lane] : 0;
        u32 found = __ballot_sync(~0u, rows >= least && rows < below);
        const u32 count = __popc(found);
        if (index < count) {
            for (; index > 0; index--) found &= found - 1;
            sequence = base + __ffs(found) - 1;
            return true;
        }
        index -= count;
    }
    return false;
}
