// The gated delta rule; see `ops::DeltaRule`. Blocks (value heads and columns, sequences). A warp has COLUMNS columns
// of a value head's state in registers, its lanes along keys, and walks the sequence's rows in order.
#include "activation.cuh"
#include "recurrent.cuh"

// See src/recurrent.rs.
struct Rule {
    f32* state; // [slot][value head][key][value]
    const f32* rate;
    const f32* dt_bias;
    u32 key_heads;
    u32 value_heads;
    u32 key_dim;
    u32 value_dim;
};
SAME_LAYOUT(Rule, Rule);

constexpr u32 COLUMNS = 8;
// Added to the square of a query's or key's length.
constexpr f32 EPS = 1e-6f;

template <typename T> struct Inputs {
    Columns<T> qkv, beta, dt;
};

// KEYS: of a lane, at least key_dim / 32.
template <u32 KEYS, typename T>
DEVICE void delta_rule(const Inputs<T>& in, const Rule& rule, const Rows& rows, T* out) {
    const u32 lane = threadIdx.x % 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    const u32 key_dim = rule.key_dim, value_dim = rule.value_dim, parts = (value_dim + COLUMNS - 1) / COLUMNS;
    const u32 head = warp / parts, first = warp % parts * COLUMNS;
    if (head >= rule.value_heads) return;
    const u32 key_head = head / (rule.value_heads / rule.key_heads), keys = rule.key_heads * key_dim;
    f32* kept = rule.state + (rows.slot * rule.value_heads + head) * key_dim * value_dim + first;
    const u32 columns = min(COLUMNS, value_dim - first);
    f32 state[KEYS][COLUMNS];
#pragma unroll
    for (u32 i = 0; i < KEYS; i++)
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++)
            state[i][j] = !rows.fresh && lane + 32 * i < key_dim && j < columns ? kept[(lane + 32 * i) * value_dim + j]
                                                                                : 0.0f;
    const f32 rate = rule.rate[head], bias = rule.dt_bias[head];
    for (u32 row = rows.first; row < rows.first + rows.count; row++) {
        f32 query[KEYS], key[KEYS], query_square = 0.0f, key_square = 0.0f;
#pragma unroll
        for (u32 i = 0; i < KEYS; i++) {
            const u32 at = key_head * key_dim + lane + 32 * i;
            const bool inside = lane + 32 * i < key_dim;
            query[i] = inside ? in.qkv.at(row, at) : 0.0f;
            key[i] = inside ? in.qkv.at(row, keys + at) : 0.0f;
            query_square = fmaf(query[i], query[i], query_square);
            key_square = fmaf(key[i], key[i], key_square);
        }
        const f32 query_scale = 1.0f / (sqrtf(warp_sum(query_square) + EPS) * sqrtf((f32)key_dim));
        const f32 key_scale = 1.0f / sqrtf(warp_sum(key_square) + EPS);
        const f32 decay = expf(rate * softplus(in.dt.at(row, head) + bias)), beta = sigmoid(in.beta.at(row, head));
        f32 change[COLUMNS], sums[COLUMNS];
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) {
            f32 recalled = 0.0f;
#pragma unroll
            for (u32 i = 0; i < KEYS; i++) {
                state[i][j] *= decay;
                recalled = fmaf(state[i][j], key[i] * key_scale, recalled);
            }
            const f32 value = j < columns ? in.qkv.at(row, 2 * keys + head * value_dim + first + j) : 0.0f;
            change[j] = (value - warp_sum(recalled)) * beta;
        }
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) {
            sums[j] = 0.0f;
#pragma unroll
            for (u32 i = 0; i < KEYS; i++) {
                state[i][j] = fmaf(change[j], key[i] * key_scale, state[i][j]);
                sums[j] = fmaf(state[i][j], query[i] * query_scale, sums[j]);
            }
            sums[j] = warp_sum(sums[j]);
        }
        T* to = out + ((u64)row * rule.value_heads + head) * value_dim + first;
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++)
            if (lane == j && j < columns) to[j] = Cast<T>::from(sums[j]);
    }
#pragma unroll
    for (u32 i = 0; i < KEYS; i++)
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++)
            if (lane + 32 * i < key_dim && j < columns) kept[(lane + 32 * i) * value_dim + j] = state[i][j];
}

template <typename T> DEVICE void delta_rule(const Inputs<T>& in, const Rule& rule, const Batch& batch, T* out) {
    if (blockIdx.y >= batch.counts[1]) return;
    const Rows rows(batch, blockIdx.y);
    if (rows.count == 0) return;
    if (rule.key_dim <= 64) delta_rule<2>(in, rule, rows, out);
    else if (rule.key_dim <= 128) delta_rule<4>(in, rule, rows, out);
    else delta_rule<8>(in, rule, rows, out);
}

#define DELTA_RULE(T) \
    extern "C" __global__ void __launch_bounds__(128) delta_rule_##T( \
        const Inputs<T> in, const Rule rule, const Batch batch, T* out) { \
        delta_rule(in, rule, batch, out); \
    }

DELTA_RULE(f32)
DELTA_RULE(bf16)
DELTA_RULE(f16)
