// What a block does with rows of a sum as soon as all of them are there.
#pragma once
#include "add_norm_row.cuh"

// Nothing: a message is numbers.
struct Nothing {
    static constexpr u32 STEPS = 0, CREWS = 1;

    DEVICE static u32 exchangers() { return blockDim.x; }
    DEVICE static u32 crew() { return 0; }
    template <u32 NUMBERS> DEVICE u32 unit() const { return 1; }
    DEVICE void fetch_params() const {}
    DEVICE void rows(u64, u32, u32, u32) const {}
};

// `residual += x; out = norm(residual)`, x being the sum. A block has four crews, which have a row each; where a sum
// comes in several chunks, the last crew has all rows, and the others exchange. A crew's threads are always as many, so
// that the bits of a row do not depend on how many there are.
template <typename X, typename Out> struct AddNorm {
    static constexpr u32 STEPS = 1, CREWS = 4;
    f32* residual;
    const X* x;
    Norm norm;
    Out* out;
    u32 width; // a multiple of a packet's numbers

    DEVICE static u32 exchangers() { return blockDim.x / CREWS * (CREWS - 1); }
    DEVICE static u32 crew() { return threadIdx.x / (blockDim.x / CREWS); }
    template <u32 NUMBERS> DEVICE u32 unit() const { return width / NUMBERS; }
    DEVICE void fetch_params() const { ::fetch_params(norm, width); }

    // Every `step`-th of `count` rows from `first` on, beginning with number `at`, as a thread of a crew.
    DEVICE void rows(u64 first, u32 count, u32 at, u32 step) const {
        for (; at < count; at += step) {
            const u64 row = (first + at) * width;
            add_norm_row<CREWS>(residual + row, x + row, norm, out + row, width);
        }
    }
};
