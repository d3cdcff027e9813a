// The gated delta rule, row by row; see `ops::DeltaRule`. Blocks (value heads and columns, sequences). A warp has some
// columns of a value head's state in registers and walks the sequence's rows in order; what a row brings is read while
// the row before is worked on. Sequences of many rows in 16-bit types are `delta_rule_intra.cu`'s.
#include "delta_rule.cuh"

// Keys of a lane, and columns: lanes side by side have columns side by side.
constexpr u32 KEYS = 8, COLUMNS = 4;

// A lane's place: GROUPS groups of lanes share the keys.
template <u32 GROUPS> struct Place {
    static constexpr u32 LANES = 32 / GROUPS, WIDTH = LANES * COLUMNS;
    u32 group, head, key_head, column, columns;

    DEVICE Place(const Rule& rule) {
        const u32 lane = threadIdx.x % 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
        const u32 parts = (rule.value_dim + WIDTH - 1) / WIDTH;
        group = lane / LANES;
        head = warp / parts;
        key_head = head / (rule.value_heads / rule.key_heads);
        column = warp % parts * WIDTH + lane % LANES * COLUMNS;
        columns = column < rule.value_dim ? min(COLUMNS, rule.value_dim - column) : 0;
    }

    DEVICE u32 key(u32 i) const { return group + GROUPS * i; }

    DEVICE static f32 sum(f32 x) {
#pragma unroll
        for (u32 lanes = LANES; lanes < 32; lanes *= 2) x += __shfl_xor_sync(~0u, x, lanes);
        return x;
    }
};

// What a row brings to a lane, as it lies there: what is read ahead of its use is waited for where it is used.
template <u32 GROUPS, typename T> struct Row {
    T query[KEYS], key[KEYS], value[COLUMNS], dt, beta;

    // Zeros past the last key and column.
    DEVICE void read(const Inputs<T>& in, const Rule& rule, u32 row, const Place<GROUPS>& place) {
        const T* from = in.qkv.first + (u64)row * in.qkv.width;
        const T* queries = from + place.key_head * rule.key_dim + place.group;
        const T* keys = queries + rule.key_heads * rule.key_dim;
        const T* values = from + 2 * rule.key_heads * rule.key_dim + place.head * rule.value_dim + place.column;
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) {
            const bool inside = place.key(i) < rule.key_dim;
            query[i] = inside ? queries[GROUPS * i] : T{};
            key[i] = inside ? keys[GROUPS * i] : T{};
        }
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) value[j] = j < place.columns ? values[j] : T{};
        dt = in.dt.first[(u64)row * in.dt.width + place.head];
        beta = in.beta.first[(u64)row * in.beta.width + place.head];
    }
};

using Columns4 = f32[COLUMNS];

// A lane's columns of one key's row of the state: at once where they lie so.
DEVICE void read_state(Columns4& to, StatePlace from, u32 columns, bool aligned) {
    if (aligned) return from.read(to);
#pragma unroll
    for (u32 j = 0; j < COLUMNS; j++) to[j] = j < columns ? (from + j).read() : 0.0f;
}
DEVICE void write_state(const Columns4& from, StatePlace to, u32 columns, bool aligned) {
    if (aligned) return to.write(from);
#pragma unroll
    for (u32 j = 0; j < COLUMNS; j++)
        if (j < columns) (to + j).write(from[j]);
}

// Queries and keys of length 1, queries also scaled.
template <u32 GROUPS, typename T>
DEVICE void normalise(const Row<GROUPS, T>& row, u32 key_dim, f32 (&query)[KEYS], f32 (&key)[KEYS]) {
    f32 query_square = 0.0f, key_square = 0.0f;
#pragma unroll
    for (u32 i = 0; i < KEYS; i++) {
        query[i] = load(row.query[i]);
        key[i] = load(row.key[i]);
        query_square = fmaf(query[i], query[i], query_square);
        key_square = fmaf(key[i], key[i], key_square);
    }
    const f32 query_scale = 1.0f / (sqrtf(Place<GROUPS>::sum(query_square) + EPS) * sqrtf((f32)key_dim));
    const f32 key_scale = 1.0f / sqrtf(Place<GROUPS>::sum(key_square) + EPS);
#pragma unroll
    for (u32 i = 0; i < KEYS; i++) {
        query[i] *= query_scale;
        key[i] *= key_scale;
    }
}

// One row: `sums` becomes its columns of the output.
template <u32 GROUPS, typename T>
DEVICE void step(Columns4 (&state)[KEYS], const Row<GROUPS, T>& row, const Rule& rule, const Place<GROUPS>& place,
    Columns4& sums) {
    f32 query[KEYS], key[KEYS];
    normalise(row, rule.key_dim, query, key);
    const f32 decay = expf(log_decay(rule, load(row.dt), place.head)), beta = sigmoid(load(row.beta));
    Columns4 change;
#pragma unroll
    for (u32 j = 0; j < COLUMNS; j++) {
        f32 recalled = 0.0f;
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) {
            state[i][j] *= decay;
            recalled = fmaf(state[i][j], key[i], recalled);
        }
        change[j] = (load(row.value[j]) - Place<GROUPS>::sum(recalled)) * beta;
    }
#pragma unroll
    for (u32 j = 0; j < COLUMNS; j++) {
        sums[j] = 0.0f;
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) {
            state[i][j] = fmaf(change[j], key[i], state[i][j]);
            sums[j] = fmaf(state[i][j], query[i], sums[j]);
        }
        sums[j] = Place<GROUPS>::sum(sums[j]);
    }
}

template <u32 GROUPS, typename T>
DEVICE void delta_rule(const Inputs<T>& in, const Rule& rule, const Rows& rows, T* out) {
    const Place<GROUPS> place(rule);
    if (place.head >= rule.value_heads) return;
    const u32 value_dim = rule.value_dim, key_dim = rule.key_dim;
    const bool aligned = value_dim % COLUMNS == 0 && place.columns > 0;
    const StatePlace kept =
        rule.state_at((rows.slot * rule.value_heads + place.head) * key_dim * value_dim + place.column);
    Row<GROUPS, T> next;
    next.read(in, rule, rows.first, place);
    Columns4 state[KEYS] = {};
#pragma unroll
    for (u32 i = 0; i < KEYS; i++)
        if (!rows.fresh && place.key(i) < key_dim)
            read_state(state[i], kept + place.key(i) * value_dim, place.columns, aligned);
    const u32 end = rows.first + rows.count;
    for (u32 row = rows.first; row < end; row++) {
        const Row<GROUPS, T> now = next;
        next.read(in, rule, min(row + 1, end - 1), place);
        Columns4 sums;
        step(state, now, rule, place, sums);
        T* to = out + ((u64)row * rule.value_heads + place.head) * value_dim + place.column;
        // Lanes of each group that has one of the columns.
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++)
            if (place.group == j % GROUPS && j < place.columns) to[j] = Cast<T>::from(sums[j]);
    }
#pragma unroll
    for (u32 i = 0; i < KEYS; i++)
        if (place.key(i) < key_dim)
            write_state(state[i], kept + place.key(i) * value_dim, place.columns, aligned);
}

// Sequences with `too_many` rows or more are left alone.
template <typename T>
DEVICE void delta_rule(const Inputs<T>& in, const Rule& rule, const Batch& batch, u32 too_many, T* out) {
    if (blockIdx.y >= batch.counts[1]) return;
    const Rows rows(batch, blockIdx.y);
    if (rows.count == 0 || rows.count <= rule.stepped || rows.count >= too_many) return;
    if (rule.key_dim <= 8 * KEYS) delta_rule<8>(in, rule, rows, out);
    else if (rule.key_dim <= 16 * KEYS) delta_rule<16>(in, rule, rows, out);
    else delta_rule<32>(in, rule, rows, out);
}

#define DELTA_RULE(T) \
    extern "C" __global__ void __launch_bounds__(64) delta_rule_##T( \
        const Inputs<T> in, const Rule rule, const Batch batch, u32 too_many, T* out) { \
        delta_rule(in, rule, batch, too_many, out); \
    }

DELTA_RULE(f32)
DELTA_RULE(bf16)
DELTA_RULE(f16)
