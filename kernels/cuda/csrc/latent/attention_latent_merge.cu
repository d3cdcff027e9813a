// Adds up the parts that blocks of `attention_latent.cu` left of tiles of rows. A row's few parts are added by 128
// threads, a block having four rows; the many of a long context's by a block for a quarter of its columns, whose warps
// have some parts each, and add up what they have in shared memory.
#ifndef TYPE
#define TYPE bf16
#endif
#include "decode_parts.cuh"
#include "latent_parts.cuh"
#include "mma.cuh"

#define THREADS 512u
#define WARPS (THREADS / 32)
// Rows of a block where there are few parts, and how many these may be; and parts that a thread asks for at a time: of
// few, of many.
#define FEW_ROWS (THREADS / 128)
#define FEW 34u
#define FEW_AT_ONCE 4u
#define MANY_AT_ONCE 9u
// Of a row's columns, where there are many.
#define QUARTERS 4u

struct Merge {
    TYPE* out;
    f32* parts;
    f32 v_scale;
    // Blocks of a cluster.
    u32 team;

    // Part `i` of a row, which block `block` began: four columns.
    DEVICE Part part(u32 block, u32 i, u32 row, u32 column) const {
        const LatentPart at = i == 0 ? LatentPart::begun(parts, block) : LatentPart::ended(parts, block + i * team);
        Part part;
        part.sum = *(const float4*)(at.sums(row) + column);
        part.most = *at.base(row);
        part.weight = *at.weight(row);
        return part;
    }

    // A row that has seen no key of a part has -infinity there.
    DEVICE static void add(Part& all, const Part& other) {
        if (other.most == -infinity()) return;
        if (all.most == -infinity()) all = other;
        else all.add(other);
    }

    // Parts `first`, `first + STEP`, ... of `count`.
    template <u32 STEP, u32 SOME>
    DEVICE Part add_up(u32 block, u32 row, u32 column, u32 first, u32 count) const {
        Part all;
        all.most = -infinity(), all.weight = 0.0f, all.sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
        for (u32 i = first; i < count; i += SOME * STEP) {
            Part some[SOME];
#pragma unroll
            for (u32 j = 0; j < SOME; j++) some[j] = part(block, min(i + j * STEP, count - 1), row, column);
#pragma unroll
            for (u32 j = 0; j < SOME; j++)
                if (i + j * STEP < count) add(all, some[j]);
        }
        return all;
    }

    DEVICE void write(u32 row, u32 column, const Part& all) const {
        const f32 factor = v_scale / all.weight;
        *(uint2*)(out + (size_t)row * WIDTH + column) =
            make_uint2(Tensor<TYPE>::pack(all.sum.x * factor, all.sum.y * factor),
                Tensor<TYPE>::pack(all.sum.z * factor, all.sum.w * factor));
    }

    DEVICE void few(const Split& split, u32 block, u32 inside) const {
        const u32 row = inside * FEW_ROWS + threadIdx.x / 128, column = threadIdx.x % 128 * 4;
        if (row < split.rows)
            write(split.row + row, column, add_up<1, FEW_AT_ONCE>(block, row, column, 0, split.others + 1));
    }

    DEVICE void many(const Split& split, u32 block, u32 inside, Part (&others)[WARPS][32]) const {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const u32 row = inside / QUARTERS, column = inside % QUARTERS * (WIDTH / QUARTERS) + lane * 4;
        Part all = add_up<WARPS, MANY_AT_ONCE>(block, row, column, warp, split.others + 1);
        others[warp][lane] = all;
        __syncthreads();
        if (warp == 0) {
#pragma unroll
            for (u32 i = 1; i < WARPS; i++) add(all, others[i][lane]);
            write(split.row + row, column, all);
        }
        __syncthreads();
    }
};

// `blocks`: of `attention_latent.cu`, at most as many as threads here; `team`: of a cluster. Any grid of blocks of 512
// threads.
extern "C" __global__ void __launch_bounds__(THREADS) attention_latent_merge(
    TYPE* out, f32* parts, const Split* splits, const Attention attention, u32 blocks, u32 team) {
    __shared__ u32 ends[THREADS];
    __shared__ Part others[WARPS][32];
    const u32 thread = threadIdx.x;
    launch_dependents();
    wait_for_inputs();
    Split mine = {0, 0, 0};
    if (thread < blocks) mine = splits[thread];
    // Items of work of each.
    u32 up_to = mine.others < FEW ? (mine.rows + FEW_ROWS - 1) / FEW_ROWS : mine.rows * QUARTERS;
    up_to = LatentList::sum_up_to(up_to);
    __shared__ u32 of_warps[WARPS];
    if (thread % 32 == 31) of_warps[thread / 32] = up_to;
    __syncthreads();
    for (u32 warp = 0; warp < thread / 32; warp++) up_to += of_warps[warp];
    ends[thread] = up_to;
    __syncthreads();
    const Merge it = {out, parts, attention.v_scale, team};
    const u32 items = ends[THREADS - 1];
    for (u32 item = blockIdx.x; item < items; item += gridDim.x) {
        u32 block = 0;
#pragma unroll
        for (u32 step = THREADS / 2; step > 0; step /= 2)
            if (ends[block + step - 1] <= item) block += step;
        const Split split = splits[block];
        const u32 inside = item - (block > 0 ? ends[block - 1] : 0);
        if (split.others < FEW) it.few(split, block, inside);
        else it.many(split, block, inside, others);
    }
}
