// What a block does with rows of a sum as soon as all of them are there.
#pragma once
#include "add_norm_row.cuh"

// Nothing: a message is numbers.
struct Nothing {
    DEVICE static u32 exchangers() { return blockDim.x; }
    template <u32 NUMBERS> DEVICE u32 unit() const { return 1; }
    DEVICE void fetch_params() const {}
    template <typename Who> DEVICE void rows(u64, u32) const {}
};

// `residual += x; out = norm(residual)`, x being the sum: by the whole block where all of it has been exchanged, by a
// crew of its last threads where the others still exchange.
template <typename X, typename Out> struct AddNorm {
    f32* residual;
    const X* x;
    Norm norm;
    Out* out;
    u32 width; // a multiple of a packet's numbers

    DEVICE static u32 exchangers() { return blockDim.x - CREW; }
    template <u32 NUMBERS> DEVICE u32 unit() const { return width / NUMBERS; }
    DEVICE void fetch_params() const { ::fetch_params(norm, width); }

    // As `Who`: one row after the other.
    template <typename Who> DEVICE void rows(u64 first, u32 count) const {
        for (u64 row = first * width, end = row + count * width; row < end; row += width)
            add_norm_row<Who>(residual + row, x + row, norm, out + row, width);
    }
};
