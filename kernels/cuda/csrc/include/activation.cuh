// Gate functions of MLPs, in the order of `Activation::number` (crates/model-spec/src/mlp.rs).
#pragma once
#include "quire.cuh"

enum Function : u32 { SILU, GELU, GELU_TANH, RELU, RELU_SQUARED, CLAMPED_SWIGLU, SIGMOID };

// What a product is compiled to keep, as its `FUNCTION`: activation(gate) * up of columns [gate | up] is the number of
// an activation; ALL is all columns, and from EACH_COLUMN on it is an activation of each of them.
#define ALL 7
#define EACH_COLUMN 8

// src/elementwise.rs has its twin.
struct Activation {
    u32 function;
    f32 limit; // of CLAMPED_SWIGLU
};
SAME_LAYOUT(Activation, Activation);

DEVICE f32 sigmoid(f32 x) { return 1.0f / (1.0f + expf(-x)); }

// The same to about 2^-20 of itself, where it is no less than 2^-126, with a fraction of the instructions: for what is
// rounded to 16 bits. In the largest products the exact one takes as long as 6 % of a tile.
DEVICE f32 sigmoid_nearly(f32 x) {
    f32 y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + exp2_fast(x * -1.4426950408889634f)));
    return y;
}

// x P(x) for a P with P(-x) = 1 - P(x), of which -log2 P(-|x|) is a polynomial, its lowest coefficient first: x less
// |x| P(-|x|) where x is positive, and less that alone where it is not. So what is small is a power of 2, whose digits
// all count, and there is one instruction of the slow unit.
template <u32 N> DEVICE f32 weighed_nearly(const f32 (&polynomial)[N], f32 x) {
    const f32 a = fabsf(x);
    f32 y = polynomial[N - 1];
#pragma unroll
    for (u32 i = N - 1; i > 0; i--) y = __fmaf_rn(y, a, polynomial[i - 1]);
    return __fmaf_rn(-a, exp2_fast(-y), fmaxf(x, 0.0f));
}

// As the standard library and the exponential of every bit have it.
struct Exact {
    DEVICE static f32 sigmoid_of(f32 x) { return sigmoid(x); }
    // erfc keeps the digits that 1 + erf loses for negative x.
    DEVICE static f32 gelu(f32 x) { return 0.5f * x * erfcf(x * -0.70710678f); }
    // 0.5 (1 + tanh(u)) is sigmoid(2u).
    DEVICE static f32 gelu_tanh(f32 x) { return x * sigmoid(1.5957691f * x * (1.0f + 0.044715f * x * x)); }
};

// For what is rounded to 16 bits. From -5 on GELUs are within 3e-4 and 1e-4 of themselves, by polynomials of the least
// error there.
struct Nearly {
    DEVICE static f32 sigmoid_of(f32 x) { return sigmoid_nearly(x); }
    DEVICE static f32 gelu(f32 x) {
        const f32 polynomial[] = {1.0003591f, 1.1462608f, 0.46968114f, 0.044598988f, -0.0048697691f, 0.000233251f};
        return weighed_nearly(polynomial, x);
    }
    DEVICE static f32 gelu_tanh(f32 x) {
        const f32 polynomial[] = {0.9998779f, 1.1546514f, 0.44241149f, 0.08124976f, -0.032437322f, 0.010088479f,
            -0.001232167f, 5.6174318e-05f};
        return weighed_nearly(polynomial, x);
    }
};

// `How`: which of the two.
template <typename How = Exact> DEVICE f32 activated(Activation activation, f32 x) {
    switch (activation.function) {
    case SILU: return x * How::sigmoid_of(x);
    case GELU: return How::gelu(x);
    case GELU_TANH: return How::gelu_tanh(x);
    case RELU: return fmaxf(x, 0.0f);
    case RELU_SQUARED: {
        f32 positive = fmaxf(x, 0.0f);
        return positive * positive;
    }
    case SIGMOID: return How::sigmoid_of(x);
    default: {
        // Written so that NaN stays NaN.
        f32 bounded = x > activation.limit ? activation.limit : x;
        return bounded * How::sigmoid_of(1.702f * bounded);
    }
    }
}

// What the activated gate is multiplied with.
DEVICE f32 gated_half(Activation activation, f32 up) {
    if (activation.function != CLAMPED_SWIGLU) return up;
    f32 limit = activation.limit;
    return (up > limit ? limit : up < -limit ? -limit : up) + 1.0f;
}
