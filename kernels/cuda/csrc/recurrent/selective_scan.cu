// The selective state-space recurrence, row by row; see `ops::Scan`. Blocks (channels, sequences). Some lanes share a
// channel, each with up to EACH neighbours of its values in registers, and walk the sequence's rows in order; what rows
// bring is read while those before are worked on.
#include "scan.cuh"

// Rows that are worked on at once, where a sequence has so many: only the states themselves wait for the row before.
constexpr u32 ROWS = 4;

template <typename T> using Four = Several<T, 4>;

// f32 is exact to a few units in the last place; for what is rounded to 16 bits, fewer instructions do. `LOG`: what
// logarithms are multiplied by before.
template <typename T> struct Decay {
    static constexpr f32 LOG = 1.4426950408889634f;
    DEVICE static f32 of(f32 log) { return exp2_fast(log); }
};
template <> struct Decay<f32> {
    static constexpr f32 LOG = 1.0f;
    DEVICE static f32 of(f32 log) { return expf(log); }
};

template <typename T, u32 EACH, bool FOURS> struct Walk {
    // What a row brings to a lane, beside dt.
    struct Row {
        T x;
        Four<T> b[EACH / 4], c[EACH / 4];
    };

    const Inputs<T>& in;
    const Scan& scan;
    T* out;
    u32 first, end, channels, channel, head, lane, from;
    bool mine, each_value;
    // Whether this lane's values are all there, to be read four at a time (FOURS); else they are one by one.
    bool whole;
    f32 bias, skip;
    f32 state[EACH], rate[EACH];

    DEVICE Walk(const Inputs<T>& in, const Scan& scan, const Rows& rows, T* out) : in(in), scan(scan), out(out) {
        const u32 thread = blockIdx.x * blockDim.x + threadIdx.x;
        first = rows.first;
        end = rows.first + rows.count;
        channels = scan.heads * scan.head_dim;
        lane = thread % scan.lanes;
        // Lanes past the last channel help to add.
        channel = min(thread / scan.lanes, channels - 1);
        mine = thread / scan.lanes < channels;
        head = channel / scan.head_dim;
        from = lane * EACH;
        whole = from + EACH <= scan.state_dim;
        each_value = scan.each_value;
    }

    DEVICE bool inside(u32 i) const { return FOURS ? whole : from + i < scan.state_dim; }

    // Lanes that have no values read those of others, so that nothing waits to know whether it was read.
    DEVICE void read_values(Four<T> (&to)[EACH / 4], const Columns<T>& columns, u32 row) const {
        const T* at = columns.first + (u64)row * columns.width + scan.group_column(head);
        if (FOURS) {
#pragma unroll
            for (u32 i = 0; i < EACH / 4; i++) to[i] = ((const Four<T>*)(at + (whole ? from : 0)))[i];
        } else {
#pragma unroll
            for (u32 i = 0; i < EACH; i++) to[i / 4].x[i % 4] = at[inside(i) ? from + i : 0];
        }
    }

    DEVICE void read(Row& to, u32 row) const {
        to.x = in.x.first[(u64)row * in.x.width + channel];
        read_values(to.b, in.b, row);
        read_values(to.c, in.c, row);
    }

    // This lane's part of the row's output.
    DEVICE f32 step(const Row& row, f32 dt) {
        const f32 input = dt * load(row.x), shared = Decay<T>::of(dt * rate[0]);
        f32 sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            const f32 factor = each_value ? Decay<T>::of(dt * rate[i]) : shared;
            state[i] = fmaf(state[i], factor, input * load(row.b[i / 4].x[i % 4]));
            if (inside(i)) sum = fmaf(state[i], load(row.c[i / 4].x[i % 4]), sum);
        }
        return sum;
    }

    DEVICE void write(u32 row, f32 sum, T x) const {
        if (mine) out[(u64)row * channels + channel] = Cast<T>::from(sum + skip * load(x));
    }

    DEVICE void walk_one_by_one(u32 row, Row& next, f32 next_dt) {
        for (; row < end; row++) {
            const Row now = next;
            const f32 dt = scan.clamped(next_dt + bias);
            if (row + 1 < end) {
                read(next, row + 1);
                next_dt = in.dt.at(row + 1, head);
            }
            f32 sum = step(now, dt);
            for (u32 lanes = scan.lanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
            if (lane == 0) write(row, sum, now.x);
        }
    }

    // Lanes take turns with dt; `lanes` >= ROWS.
    DEVICE f32 read_dt(u32 row) const { return in.dt.at(min(row + lane % ROWS, end - 1), head); }

    // As many rows as come in whole groups; where the rest begins. The same bits as one by one.
    DEVICE u32 walk_groups() {
        u32 row = first;
        if (scan.lanes < ROWS || end - first < ROWS) return row;
        const u32 first_lane = threadIdx.x % 32 - lane;
        Row next[ROWS];
#pragma unroll
        for (u32 i = 0; i < ROWS; i++) read(next[i], row + i);
        f32 next_dt = read_dt(row);
        for (; row + ROWS <= end; row += ROWS) {
            Row now[ROWS];
            const f32 dt = scan.clamped(next_dt + bias);
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) {
                now[i] = next[i];
                read(next[i], min(row + ROWS + i, end - 1));
            }
            next_dt = read_dt(row + ROWS);
            f32 sums[ROWS];
#pragma unroll
            for (u32 i = 0; i < ROWS; i++) sums[i] = step(now[i], __shfl_sync(~0u, dt, first_lane + i));
            write_group(row, sums, now);
        }
        return row;
    }

    // Adds up over lanes as one by one, but of what a lane has of four rows it soon keeps one.
    DEVICE void write_group(u32 row, const f32 (&sums)[ROWS], const Row (&rows)[ROWS]) const {
        static_assert(ROWS == 4, "two exchanges");
        const bool upper = lane & scan.lanes / 2, odd = lane & scan.lanes / 4;
        f32 halves[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const f32 given = __shfl_xor_sync(~0u, upper ? sums[i] : sums[2 + i], scan.lanes / 2);
            halves[i] = (upper ? sums[2 + i] : sums[i]) + given;
        }
        f32 sum = (odd ? halves[1] : halves[0]) + __shfl_xor_sync(~0u, odd ? halves[0] : halves[1], scan.lanes / 4);
        for (u32 lanes = scan.lanes / 8; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
        const T x = upper ? (odd ? rows[3].x : rows[2].x) : (odd ? rows[1].x : rows[0].x);
        if (lane % (scan.lanes / 4) == 0) write(row + lane / (scan.lanes / 4), sum, x);
    }

    DEVICE void read_rates() {
        const f32* rates = scan.decay + (each_value ? head * scan.state_dim + from : head);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) rate[i] = each_value && !inside(i) ? 0.0f : rates[each_value ? i : 0];
        bias = scan.bias(head);
        skip = scan.skip[head];
    }

    DEVICE void read_state(StatePlace kept, bool fresh) {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) state[i] = 0.0f;
        if (fresh) return;
        if constexpr (FOURS) {
            if (whole) kept.read(state);
        } else {
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
                if (inside(i)) state[i] = (kept + i).read();
        }
    }

    DEVICE void write_state(StatePlace kept) const {
        if constexpr (FOURS) {
            if (whole) kept.write(state);
        } else {
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
                if (inside(i)) (kept + i).write(state[i]);
        }
    }

    template <bool IN_GROUPS> DEVICE void walk(StatePlace kept, bool fresh) {
        kept = kept + from;
        // All that is read is on its way before any of it is waited for: the state last, as 16 bits are widened at
        // once.
        Row next;
        f32 next_dt = 0.0f;
        read_rates();
        if (!IN_GROUPS) {
            read(next, first);
            next_dt = in.dt.at(first, head);
        }
        read_state(kept, fresh);
#pragma unroll
        for (u32 i = 0; i < EACH; i++) rate[i] *= Decay<T>::LOG;
        u32 row = first;
        if (IN_GROUPS) {
            row = walk_groups();
            if (row < end) {
                read(next, row);
                next_dt = in.dt.at(row, head);
            }
        }
        walk_one_by_one(row, next, next_dt);
        if (mine) write_state(kept);
    }
};

template <u32 EACH, bool FOURS, bool IN_GROUPS, typename T>
DEVICE void selective_scan(const Inputs<T>& in, const Scan& scan, const Batch& batch, T* out) {
    if (blockIdx.y >= batch.counts[1]) return;
    const Rows rows(batch, blockIdx.y);
    if (rows.count == 0 || rows.count <= scan.stepped || rows.count >= scan.chunked) return;
    Walk<T, EACH, FOURS> it(in, scan, rows, out);
    it.template walk<IN_GROUPS>(scan.state_at((rows.slot * it.channels + it.channel) * scan.state_dim), rows.fresh);
}

// `fours`: where each lane's values lie for that. One by one needs few registers, so that many states come at once;
// `groups` of rows keep busy what few sequences have of threads. `wide`: eight values a lane.
#define SELECTIVE_SCAN_AS(KIND, T, EACH, FOURS, IN_GROUPS) \
    extern "C" __global__ void KIND##_##T(const Inputs<T> in, const Scan scan, const Batch batch, T* out) { \
        selective_scan<EACH, FOURS, IN_GROUPS>(in, scan, batch, out); \
    }
#define SELECTIVE_SCAN(T) \
    SELECTIVE_SCAN_AS(selective_scan, T, 4, false, false) \
    SELECTIVE_SCAN_AS(selective_scan_fours, T, 4, true, false) \
    SELECTIVE_SCAN_AS(selective_scan_groups, T, 4, true, true) \
    SELECTIVE_SCAN_AS(selective_scan_wide, T, 8, false, false) \
    SELECTIVE_SCAN_AS(selective_scan_wide_fours, T, 8, true, false)

SELECTIVE_SCAN(f32)
SELECTIVE_SCAN(bf16)
SELECTIVE_SCAN(f16)
