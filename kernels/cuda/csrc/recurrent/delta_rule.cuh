// What the kernels of the gated delta rule share; see `ops::DeltaRule`.
#pragma once
#include "activation.cuh"
#include "recurrent.cuh"

// See src/recurrent/mod.rs.
struct Rule {
    char* state; // [slot][value head][key][value]
    const f32* rate;
    const f32* dt_bias;
    u32 key_heads;
    u32 value_heads;
    u32 key_dim;
    u32 value_dim;
    u32 stepped; // sequences with so few rows are not walked: 1, or 0
    u32 state_type;

    DEVICE StatePlace state_at(u64 value) const { return StatePlace{state, state_type} + value; }
};
SAME_LAYOUT(Rule, Rule);

template <typename T> struct Inputs {
    Columns<T> qkv, beta, dt;
};

// Added to the square of a query's or key's length.
constexpr f32 EPS = 1e-6f;

// The logarithm of what a row multiplies a head's state by: at most 0.
DEVICE f32 log_decay(const Rule& rule, f32 dt, u32 head) { return rule.rate[head] * softplus(dt + rule.dt_bias[head]); }
