// What Hopper's products of many rows are told, and what is kept of their columns.
#pragma once
#include "activation.cuh"

// `HopperShape` of src/gemm/matmul_wgmma.rs.
struct HopperShape {
    u32 rows;
    u32 n;
    u32 k;
    // Whether to add to `out` instead of overwriting it; it is f32 then.
    u32 accumulate;
    // Whether `out` is f32; else it has the input's type.
    u32 wide;
    // Of the function.
    f32 limit;
};
SAME_LAYOUT(HopperShape, HopperShape);
SAME_PART(HopperShape, GemmShape, rows)
