// A row that a block, or some of its threads, adds and norms. tests/host/add_norm_row.cuh has the same for a host.
#pragma once
#include "norm.cuh"

#define CREW 128

// As many threads of a block as `CREW` says, from a multiple of it on, which meet without the others.
struct Crew {
    DEVICE static u32 thread() { return threadIdx.x % CREW; }
    DEVICE static u32 threads() { return CREW; }

    DEVICE static f32 sum(f32 x) {
        __shared__ f32 parts[CREW / 32];
        const u32 warp = thread() / 32, lane = thread() % 32;
        x = warp_sum(x);
        // The parts of the last sum have been read.
        meet();
        if (lane == 0) parts[warp] = x;
        meet();
        return warp_sum(lane < CREW / 32 ? parts[lane] : 0.0f);
    }

    // Barrier 0 is the whole block's.
    DEVICE static void meet() { asm volatile("bar.sync 1, %0;" ::"n"(CREW) : "memory"); }
};

// How often at most a thread takes four elements of a row that is kept in registers.
template <typename Who> constexpr u32 TIMES_OF = 4;
template <> constexpr u32 TIMES_OF<Crew> = 16;

// `residual += x; out = norm(residual)`, as a thread of those who have the row.
template <typename Who, typename X, typename Out>
DEVICE void add_norm_row(f32* residual, const X* x, const Norm& how, Out* out, u32 width) {
    constexpr u32 TIMES = TIMES_OF<Who>;
    if (!is_kept<TIMES, Who>(width)) {
        add_row<Who>(residual, x, width);
        return norm_row<Who>(residual, how, out, width);
    }
    Row<TIMES, Who> sum;
    auto stored = [&](u32, u32 at) { return load_four(residual + at); };
    auto added = [&](u32, u32 at) { return load_four(x + at); };
    sum.add(stored, added, residual, width);
    sum.write(how, out, width);
}
