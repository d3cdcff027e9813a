// A row that some of a block's threads add and norm. tests/host/add_norm_row.cuh has the same for a host.
#pragma once
#include "norm.cuh"

// One of `CREWS` equal parts of a block's threads, which meet without the others.
template <u32 CREWS> struct Crew {
    static constexpr u32 THREADS = 128;

    DEVICE static u32 thread() { return threadIdx.x % THREADS; }
    DEVICE static u32 threads() { return THREADS; }

    DEVICE static f32 sum(f32 x) {
        __shared__ f32 parts[CREWS][THREADS / 32];
        const u32 crew = threadIdx.x / THREADS, warp = thread() / 32, lane = threadIdx.x % 32;
        x = warp_sum(x);
        // The parts of the last sum have been read.
        meet(crew);
        if (lane == 0) parts[crew][warp] = x;
        meet(crew);
        return warp_sum(lane < THREADS / 32 ? parts[crew][lane] : 0.0f);
    }

    // Barrier 0 is the whole block's.
    DEVICE static void meet(u32 crew) { asm volatile("bar.sync %0, %1;" ::"r"(crew + 1), "n"(THREADS) : "memory"); }
};

// `residual += x; out = norm(residual)`, as a thread of a crew. A function of its own: inside of another's loop its
// registers would be taken from those of the exchange.
template <u32 CREWS, typename X, typename Out>
__device__ __noinline__ void add_norm_row(f32* residual, const X* x, const Norm& how, Out* out, u32 width) {
    typedef Crew<CREWS> Who;
    constexpr u32 TIMES = 16;
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
