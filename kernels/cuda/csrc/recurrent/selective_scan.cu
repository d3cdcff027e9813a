// The selective state-space recurrence; see `ops::Scan`. Blocks (channels, sequences). Some lanes share a channel, each
// with up to EACH of its values in registers, and walk the sequence's rows in order; what a row brings is read while
// the row before is worked on.
#include "recurrent.cuh"

// See src/recurrent.rs.
struct Scan {
    f32* state; // [slot][head][channel][value]
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
    u32 lanes;      // of a channel: a power of two
};
SAME_LAYOUT(Scan, Scan);

constexpr u32 EACH = 8;

template <typename T> struct Inputs {
    Columns<T> x, dt, b, c;
};

// What a row brings to a lane.
struct Row {
    f32 x, dt, b[EACH], c[EACH];

    template <typename T> DEVICE void read(const Inputs<T>& in, const Scan& scan, u32 row, u32 channel, u32 lane) {
        const u32 head = channel / scan.head_dim, first = head / (scan.heads / scan.groups) * scan.state_dim;
        x = in.x.at(row, channel);
        dt = in.dt.at(row, head);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const u32 n = lane + i * scan.lanes;
            const bool inside = n < scan.state_dim;
            b[i] = inside ? in.b.at(row, first + n) : 0.0f;
            c[i] = inside ? in.c.at(row, first + n) : 0.0f;
        }
    }
};

template <typename T> DEVICE void selective_scan(const Inputs<T>& in, const Scan& scan, const Batch& batch, T* out) {
    if (blockIdx.y >= batch.counts[1]) return;
    const Rows rows(batch, blockIdx.y);
    if (rows.count == 0) return;
    const u32 channels = scan.heads * scan.head_dim, thread = blockIdx.x * blockDim.x + threadIdx.x,
              lane = thread % scan.lanes;
    // Lanes past the last channel help to add.
    const u32 channel = min(thread / scan.lanes, channels - 1), head = channel / scan.head_dim;
    const bool mine = thread / scan.lanes < channels;
    f32* kept = scan.state + (rows.slot * channels + channel) * scan.state_dim;
    f32 state[EACH], rate[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        const u32 n = lane + i * scan.lanes;
        const bool inside = n < scan.state_dim;
        state[i] = inside && !rows.fresh ? kept[n] : 0.0f;
        rate[i] = !inside ? 0.0f : scan.each_value ? scan.decay[head * scan.state_dim + n] : scan.decay[head];
    }
    const f32 bias = scan.dt_bias ? scan.dt_bias[head] : 0.0f, skip = scan.skip[head];
    Row next;
    next.read(in, scan, rows.first, channel, lane);
    for (u32 row = rows.first; row < rows.first + rows.count; row++) {
        const Row now = next;
        next.read(in, scan, min(row + 1, rows.first + rows.count - 1), channel, lane);
        const f32 dt = fmaxf(scan.least_dt, fminf(scan.most_dt, softplus(now.dt + bias)));
        const f32 input = dt * now.x, shared = expf(dt * rate[0]);
        f32 sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const f32 factor = scan.each_value ? expf(dt * rate[i]) : shared;
            state[i] = fmaf(state[i], factor, input * now.b[i]);
            sum = fmaf(state[i], now.c[i], sum);
        }
        for (u32 lanes = scan.lanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
        if (mine && lane == 0) out[(u64)row * channels + channel] = Cast<T>::from(sum + skip * now.x);
    }
    if (!mine) return;
#pragma unroll
    for (u32 i = 0; i < EACH; i++)
        if (lane + i * scan.lanes < scan.state_dim) kept[lane + i * scan.lanes] = state[i];
}

#define SELECTIVE_SCAN(T) \
    extern "C" __global__ void selective_scan_##T(const Inputs<T> in, const Scan scan, const Batch batch, T* out) { \
        selective_scan(in, scan, batch, out); \
    }

SELECTIVE_SCAN(f32)
SELECTIVE_SCAN(bf16)
SELECTIVE_SCAN(f16)
