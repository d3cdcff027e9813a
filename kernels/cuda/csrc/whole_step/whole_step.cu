// A decode step of one row as one kernel: as many blocks as there are multiprocessors, all of them running at once,
// walk through the step's phases (`step.cuh`) with a barrier between two of them. Weights stream into shared memory all
// the while (`stream.cuh`), so the memory works on while blocks wait, and a step takes little longer than reading its
// weights once.
//
//     phases of a layer   norm, qkv | norms of heads, rotation, cache, attention | o, added | norm, gate and up, gate |
//     down, added
//
// Every block norms the row for itself: it is short, and in the cache. Sums are in an order that depends on the shapes
// alone.
#include "step_product.cuh"

extern __shared__ __align__(128) char dynamic_shared[];

// The row's embedding, from the table of a type as wide as a row's. Every block writes all of it, so that none waits
// for the others.
DEVICE void embed(const Phase& phase, u32 token) {
    const u32 entry = token - phase.first_entry;
    const bool known = token >= phase.first_entry && entry < phase.entries;
    const TYPE* from = (const TYPE*)phase.from + (known ? entry : 0) * (size_t)phase.width;
    for (u32 i = threadIdx.x; i < phase.width; i += THREADS)
        ((f32*)phase.to)[i] = known ? load(from[i]) * phase.scale : 0.0f;
}

// Starts bringing a phase's description to shared memory.
DEVICE void fetch_phase(Phase* to, const Phase* from) {
    constexpr u32 PIECES = sizeof(Phase) / 16;
    if (threadIdx.x < PIECES) copy_async(shared_address(to) + 16 * threadIdx.x, (const uint4*)from + threadIdx.x, true);
}

// Tells all blocks the best of this block's logits, which lie behind each other.
DEVICE void offer_best(const f32* logits, u32 first, u32 count, u64* to) {
    __shared__ u64 parts[WARPS];
    u64 best = 0;
#pragma unroll 1
    for (u32 i = threadIdx.x; i < count; i += THREADS)
        best = max(best, logit_key(__ldcg(logits + first + i), first + i));
#pragma unroll
    for (u32 lanes = 16; lanes > 0; lanes /= 2) best = max(best, __shfl_xor_sync(~0u, best, lanes));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
#pragma unroll 1
    for (u32 i = 1; i < WARPS; i++) best = max(best, parts[i]);
    atomicMax(to, best);
    __threadfence();
}

// By each block that has ended: the last of them makes the barriers' counts zero, and has the token, if it is the one
// with the best logit.
DEVICE void end_step(const Step& step, const Phase& last, const Weights* all) {
    if (step.best) {
        const Weights& matrix = all[last.matrix];
        offer_best((const f32*)last.to, matrix.first, matrix.count, step.best_key());
    }
    // Nobody waits any more once all are here.
    if (threadIdx.x != 0 || atomicAdd(step.arrivals + 32, 1u) + 1 != gridDim.x) return;
    step.arrivals[0] = step.arrivals[32] = 0;
    if (step.best) {
        __threadfence();
        *step.best = *step.result = best_token(__ldcg(step.best_key()), 0);
        *step.best_key() = 0;
    }
}

// Where a block is in the step.
struct Walk {
    const Phase* phases; // all, and in shared memory this one and the next in turn
    Phase* current;
    u32 index, count;

    DEVICE const Phase& phase() const { return current[index % 2]; }

    // Between what does not depend on the phase before, and what does.
    DEVICE void meet(const Step& step) const {
        copy_commit();
        if (index > 1) step_wait(step.arrivals, (index - 1) * gridDim.x);
        if (index + 1 < count) fetch_phase(current + (index + 1) % 2, phases + index + 1);
        copy_commit();
    }
};

// Grid: no more blocks than run at once. Shared memory: rings of `stages` pieces, the matrices, and room for a row or
// for heads.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    whole_step(const Phase* phases, u32 count, const Weights* weights, u32 matrices, u32 stages, const Step step) {
    __shared__ Phase current[2];
    __shared__ __align__(8) u64 barriers[WARPS * 16];
    __shared__ f32 angles[DIM], sums[SUMS];
    // Made once for layers that rotate alike, and for those that see as far.
    __shared__ const f32* rotation;
    __shared__ Span span;
    const u32 ring_bytes = WARPS * stages * PIECE_BYTES;
    Weights* all = (Weights*)(dynamic_shared + ring_bytes);
    const u32 room = ring_bytes + (matrices * sizeof(Weights) + 127) / 128 * 128;
    TYPE* row = (TYPE*)(dynamic_shared + room);
    Heads& heads = *(Heads*)(dynamic_shared + room);

    fetch_phase(current, phases);
    if (threadIdx.x == 0) {
        rotation = nullptr;
        span.splits = 0;
    }
#pragma unroll 1
    for (u32 i = threadIdx.x; i < matrices; i += THREADS) {
        Weights w = weights[i];
        w.share();
        all[i] = w;
    }
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    Stream stream;
    stream.start(all, matrices, shared_address(dynamic_shared), shared_address(barriers), stages);
    const u32 position = step.batch.positions[0];
    const bool live = step.batch.row_sequence[0] != NOBODY;

    for (u32 i = 0; i < count; i++) {
        const Walk walk = {phases, current, i, count};
        // What chooses among the logits may come as soon as blocks go.
        if (i + 1 == count) launch_dependents();
        const Phase& phase = walk.phase();
        if (phase.kind == PRODUCT) {
            const Weights& matrix = all[phase.matrix];
            fetch_scales(phase, row);
            const Product product(phase, matrix);
            walk.meet(step);
            load_input(phase, step, span.splits, row);
            product.run(phase, matrix, stream, shared_address(row), sums);
        } else if (phase.kind == ATTENTION) {
            const bool turns = phase.inv_freq != rotation, sees = span.splits == 0 || phase.window != span.window;
            if (turns || sees) {
                if (turns) make_angles(phase, position, angles);
                __syncthreads();
                if (threadIdx.x == 0) {
                    rotation = phase.inv_freq;
                    if (sees) span.set(phase, position);
                }
                __syncthreads();
            }
            Attend attend(
                phase, span, live ? step.batch.blocks + step.batch.first_block[phase.first_block] : nullptr, heads);
            walk.meet(step);
            attend.run(phase, step, position, angles, heads);
        } else {
            walk.meet(step);
            const u32 entry = step.batch.tokens[0];
            embed(phase, entry >> 31 && entry != NOBODY ? step.last[entry & 0x7fffffffu] : entry);
        }
        copy_wait<0>();
        __syncthreads();
        if (threadIdx.x == 0 && i > 0 && i + 1 < count) step_arrive(step.arrivals);
    }
    end_step(step, current[(count - 1) % 2], all);
}
