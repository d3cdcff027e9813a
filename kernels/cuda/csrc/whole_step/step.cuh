// What a whole step in one launch is made of (`whole_step.cu`): its phases as the host describes them, and the barrier
// between two of them.
#pragma once
#include "activation.cuh"
#include "hopper.cuh"
#include "ordered.cuh"

// Compiled for one type and shape (`src/step/mod.rs`). GROUP: query heads of a key head, at most 8. TIMES: float4s of a
// normed row that a thread has, at most.
#ifndef TYPE
#define TYPE bf16
#define DIM 128
#define V_DIM 128
#define GROUP 4
#define TIMES 2
#endif

#define WARPS 16u
#define THREADS (WARPS * 32)

enum Kind : u32 { EMBED, PRODUCT, ATTENTION };
// What a product multiplies: a row of f32 after a norm, a row of TYPE, what attention left.
enum Input : u32 { NORMED, PLAIN, ATTENDED };
// Where it goes: stored, stored in f32, added to a row of f32, or the rows of w are [gate | up] and activation(gate) *
// up is stored.
enum Output : u32 { STORED, WIDE, ADDED, GATED };

struct Norm {
    const f32* weight;
    const f32* bias;
    f32 eps;
    u32 subtract_mean;

    DEVICE f32 of(f32 x, f32 mean, f32 factor, u32 i) const {
        f32 y = (x - mean) * factor;
        if (weight) y *= weight[i];
        if (bias) y += bias[i];
        return y;
    }
};
SAME_LAYOUT(Norm, Norm);

// What all blocks do between two barriers. `src/step/phase.rs` has its twin.
struct __align__(16) Phase {
    u32 kind, input, output;
    u32 matrix; // of a product: which of the step's
    const void* from; // embedding table; row that is multiplied; qkv
    void* to;
    const f32* bias;
    Norm norm; // of a product's input, or of query heads
    Norm key_norm;
    TYPE* keys;
    TYPE* values;
    const f32* inv_freq;
    u64 first_block; // which of the batch's, of the layer's block table
    Activation activation;
    f32 scale; // of scores, or of the embedding
    f32 mscale;
    u32 rotary_dim, interleaved, q_heads, kv_heads, block_shift,
        window; // a block of the cache has 2^block_shift positions
    u32 first_entry, entries; // of the embedding table
    u32 width; // of `from`
    u32 normed; // whether heads are
};

// What the step has beside its phases and weights.
struct Step {
    Batch batch;
    const u32* last; // each slot's last token
    f32* parts; // [splits][q_heads][V_DIM]: what attention leaves of a head that several blocks share
    float2* scales; // [splits][q_heads]: largest score and sum of weights of those
    // Of blocks at barriers, from 32 on of those that are done, and from 48 on the best logit's key; zeros between
    // launches.
    u32* arrivals;
    u32* joined; // [kv_heads]: blocks of a head that are done; zeros between phases
    // Where the token of the best logit goes: the slot's last, and the host's. Null where tokens are chosen otherwise.
    u32* best;
    u32* result;

    DEVICE u64* best_key() const { return (u64*)(arrivals + 48); }
};
SAME_LAYOUT(Step, Step);
SAME_PART(Step, Rest, last)
SAME_PART(Step, BestTo, best)

// 16 bytes of shared memory.
DEVICE uint4 load_shared(u32 from) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from));
    return x;
}

// An element that another block may have written since this one last looked.
DEVICE f32 load_new(const f32* from) { return __ldcg(from); }
template <typename T> DEVICE f32 load_new(const T* from) {
    const T x = {__ldcg((const u16*)from)};
    return load(x);
}

// A barrier of all blocks, in two halves: this block has come (one thread, after a barrier of its block) ...
DEVICE void step_arrive(u32* arrivals) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrivals) : "memory");
}

// ... and `count` have (all threads). What their threads wrote before can be read.
DEVICE void step_wait(const u32* arrivals, u32 count) {
    if (threadIdx.x == 0) {
        u32 come;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(come) : "l"(arrivals) : "memory");
        while (come < count);
    }
    __syncthreads();
}
