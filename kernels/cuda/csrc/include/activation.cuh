// Gate functions of MLPs, in the order of `Activation::number` (crates/model-spec/src/mlp.rs).
#pragma once
#include "quire.cuh"

enum Function : u32 { SILU, GELU, GELU_TANH, RELU, RELU_SQUARED, CLAMPED_SWIGLU, SIGMOID };

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

// `SIGMOID_OF`: which of the two.
template <f32 (*SIGMOID_OF)(f32) = sigmoid> DEVICE f32 activated(Activation activation, f32 x) {
    switch (activation.function) {
    case SILU: return x * SIGMOID_OF(x);
    // erfc keeps the digits that 1 + erf loses for negative x.
    case GELU: return 0.5f * x * erfcf(x * -0.70710678f);
    // 0.5 (1 + tanh(u)) is sigmoid(2u).
    case GELU_TANH: return x * SIGMOID_OF(1.5957691f * x * (1.0f + 0.044715f * x * x));
    case RELU: return fmaxf(x, 0.0f);
    case RELU_SQUARED: {
        f32 positive = fmaxf(x, 0.0f);
        return positive * positive;
    }
    case SIGMOID: return SIGMOID_OF(x);
    default: {
        // Written so that NaN stays NaN.
        f32 bounded = x > activation.limit ? activation.limit : x;
        return bounded * SIGMOID_OF(1.702f * bounded);
    }
    }
}

// What the activated gate is multiplied with.
DEVICE f32 gated_half(Activation activation, f32 up) {
    if (activation.function != CLAMPED_SWIGLU) return up;
    f32 limit = activation.limit;
    return (up > limit ? limit : up < -limit ? -limit : up) + 1.0f;
}
