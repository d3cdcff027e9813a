// out[rows, n] = x[rows, k] w[n, k]^T (+ bias) (+ out) for up to ROWS rows, on Hopper: limited by reading w once, as matmul_few.cu is, with
// the tensor cores' larger products.
//
// A cluster of blocks takes tiles of 64 rows of w, and each of its blocks a part of k: that part of x lies in the block's shared memory
// from beginning to end, so that w alone streams through the ring, and what blocks exchange is sums.
//
//     k        | rank 0 | rank 1 | ... | rank CLUSTER - 1 |       w is the left operand: 64 of its rows, and rows of x as columns
//     tile i   |  w  x  |  w  x  |     |  w  x            |  ->   64 x ROWS sums in each block; block r is sent all that belong to its
//     tile i+C |  w     |  w     |     |  w               |       ROWS / CLUSTER rows of x, adds them up by rank and writes them
//
// One warp feeds the ring, one warpgroup multiplies and sends, others add and write: tiles overlap.
//
// The order of a row's sum depends on k alone, not on the other rows.
#include "hopper.cuh"

// Compiled for one type and configuration (`src/matmul_cluster.rs`); BUFFERS: tiles whose sums a block has room for.
#ifndef TYPE
#define TYPE bf16
#define ROWS 64
#define CLUSTER 8
#define BUFFERS 2
#endif

#define TILE 64u
#define CHUNK 64u
#define W_BYTES (TILE * CHUNK * 2)
#define X_BYTES (ROWS * CHUNK * 2)
// Rows of x whose sums a block finishes, and how many of them lie side by side while they are sent.
#define PART (ROWS / CLUSTER)
#define LINE (PART % 8 == 0 ? 8 : PART % 4 == 0 ? 4 : 2)
// Sums of a tile from one block to another.
#define PIECE (TILE * PART)
// Threads of each warpgroup, and of the block.
#define GROUP 128u
// Warpgroups that add, which take turns, each with a buffer of its own.
#define ADDERS BUFFERS
#define FEEDER ((1 + ADDERS) * GROUP)
#define THREADS (FEEDER + 32)

struct ClusterShape {
    u32 rows;
    u32 n;
    u32 k;
    // Whether to add to `out` instead of overwriting it.
    u32 accumulate;
    // Whether `out` is f32; else it has the input's type.
    u32 wide;
    // Of the ring.
    u32 stages;
};

// Where in the ring a warp is. Each of them meets all chunks of all its block's tiles, in order.
struct Turn {
    u32 stage, parity;
    DEVICE void next(u32 stages) {
        stage = stage + 1 == stages ? 0 : stage + 1;
        parity ^= stage == 0;
    }
};

struct ClusterProduct {
    typedef TYPE T;

    ClusterShape shape;
    // This block in its cluster.
    u32 rank;
    // Tiles are `first_tile`, and every `step` from there on.
    u32 first_tile, step, tiles;
    u32 first_chunk, chunks;
    // In shared memory.
    u32 shared_x, shared_w, received;
    u32 full_x, full_w, empty_w, got, room;

    DEVICE void plan(u32 base) {
        rank = cluster_rank();
        first_tile = blockIdx.x / CLUSTER;
        step = gridDim.x / CLUSTER;
        tiles = (shape.n + TILE - 1) / TILE;
        const u32 all = (shape.k + CHUNK - 1) / CHUNK, most = (all + CLUSTER - 1) / CLUSTER;
        first_chunk = all * rank / CLUSTER;
        chunks = first_tile < tiles ? all * (rank + 1) / CLUSTER - first_chunk : 0;
        shared_x = base;
        shared_w = shared_x + most * X_BYTES;
        received = shared_w + shape.stages * W_BYTES;
        full_x = received + BUFFERS * CLUSTER * PIECE * 4;
        full_w = full_x + 8 * most;
        empty_w = full_w + 8 * shape.stages;
        got = empty_w + 8 * shape.stages;
        room = got + 8 * BUFFERS;
    }

    DEVICE void init_barriers() const {
        for (u32 chunk = 0; chunk < chunks; chunk++) barrier_init(full_x + 8 * chunk, 1);
        for (u32 stage = 0; stage < shape.stages; stage++) {
            barrier_init(full_w + 8 * stage, 1);
            // One arrival from each multiplying warp.
            barrier_init(empty_w + 8 * stage, GROUP / 32);
        }
        for (u32 buffer = 0; buffer < BUFFERS; buffer++) {
            barrier_init(got + 8 * buffer, 1);
            barrier_init(room + 8 * buffer, CLUSTER);
        }
        barrier_init_done();
        for (u32 buffer = 0; buffer < BUFFERS; buffer++) expect_sums(buffer);
    }

    DEVICE void expect_sums(u32 buffer) const { barrier_expect(got + 8 * buffer, CLUSTER * PIECE * 4); }

    DEVICE void load_weights(const TensorMap* w, u32 tile, u32 chunk, u32 stage) const {
        barrier_expect(full_w + 8 * stage, W_BYTES);
        copy_box(shared_w + stage * W_BYTES, w, (first_chunk + chunk) * CHUNK, tile * TILE, full_w + 8 * stage);
    }

    // Streams the block's parts of x and w. The ring is filled once before the input is waited for: weights are there already.
    DEVICE void feed(const TensorMap* x, const TensorMap* w) const {
        Turn turn = {0, 0};
        bool ahead = true;
        for (u32 tile = first_tile; tile < tiles; tile += step)
            for (u32 chunk = 0; chunk < chunks; chunk++) {
                if (ahead && turn.parity == 1) {
                    load_input(x);
                    ahead = false;
                }
                if (!ahead) barrier_wait(empty_w + 8 * turn.stage, turn.parity ^ 1);
                load_weights(w, tile, chunk, turn.stage);
                turn.next(shape.stages);
            }
        if (ahead) load_input(x);
    }

    DEVICE void load_input(const TensorMap* x) const {
        wait_for_inputs();
        for (u32 chunk = 0; chunk < chunks; chunk++) {
            barrier_expect(full_x + 8 * chunk, X_BYTES);
            copy_box(shared_x + chunk * X_BYTES, x, (first_chunk + chunk) * CHUNK, 0, full_x + 8 * chunk);
        }
    }

    // Sends each block of the cluster its part of a tile's sums.
    DEVICE void send(const f32 (&c)[ROWS / 2], u32 buffer) const {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const u32 mine = received + (buffer * CLUSTER + rank) * PIECE * 4;
#pragma unroll
        for (u32 i = 0; i < ROWS / 8; i++) {
            const u32 row = 8 * i + 2 * t, owner = row / PART, inside = row % PART;
            const u32 to = address_in(mine, owner) + (inside / LINE * TILE * LINE + inside % LINE) * 4;
            const u32 barrier = address_in(got + 8 * buffer, owner);
#pragma unroll
            for (u32 half = 0; half < 2; half++)
                send_pair(to + (16 * warp + g + 8 * half) * LINE * 4, c[4 * i + 2 * half], c[4 * i + 2 * half + 1], barrier);
        }
    }

    DEVICE void multiply() const {
        f32 c[ROWS / 2];
        const bool speaks = threadIdx.x % 32 == 0;
        Turn turn = {0, 0};
        u32 count = 0;
        for (u32 tile = first_tile; tile < tiles; tile += step, count++) {
            u32 last_stage = 0;
            for (u32 chunk = 0; chunk < chunks; chunk++) {
                if (count == 0) barrier_wait(full_x + 8 * chunk, 0);
                barrier_wait(full_w + 8 * turn.stage, turn.parity);
                const u32 from_w = shared_w + turn.stage * W_BYTES, from_x = shared_x + chunk * X_BYTES;
                settle(c);
                products_begin();
#pragma unroll
                for (u32 k = 0; k < CHUNK / 16; k++)
                    multiply_shared(T(), c, operand(from_w + 32 * k, 0), operand(from_x + 32 * k, 0), chunk | k);
                products_commit();
                // Those of the chunk before are done.
                products_wait<1>();
                if (chunk > 0 && speaks) barrier_arrive(empty_w + 8 * last_stage);
                last_stage = turn.stage;
                turn.next(shape.stages);
            }
            products_wait<0>();
            settle(c);
            if (speaks) barrier_arrive(empty_w + 8 * last_stage);
            const u32 buffer = count % BUFFERS;
            barrier_wait_for_cluster(room + 8 * buffer, count / BUFFERS % 2 ^ 1);
            send(c, buffer);
        }
    }

    // Four sums of this block's rows of x.
    DEVICE float4 add_up(u32 buffer, u32 four, const f32* shared) const {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (u32 from = 0; from < CLUSTER; from++) add(sum, *(const float4*)(shared + (buffer * CLUSTER + from) * PIECE + 4 * four));
        return sum;
    }

    DEVICE void write_out(void* out, const f32* bias, u32 tile, u32 four, float4 sum) const {
        const f32 sums[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 at = 4 * four + i, row = rank * PART + at / (TILE * LINE) * LINE + at % LINE;
            const u32 column = tile * TILE + at % (TILE * LINE) / LINE;
            if (row >= shape.rows || column >= shape.n) continue;
            const f32 value = bias ? sums[i] + bias[column] : sums[i];
            const size_t to = (size_t)row * shape.n + column;
            if (shape.wide) store_sum((f32*)out + to, value, shape.accumulate);
            else store_sum((T*)out + to, value, shape.accumulate);
        }
    }

    DEVICE void finish(u32 adder, void* out, const f32* bias, const f32* shared) const {
        static const u32 FOURS = PIECE / 4, EACH = (FOURS + GROUP - 1) / GROUP;
        const u32 thread = threadIdx.x % GROUP;
        u32 parity = 0;
        for (u32 tile = first_tile + adder * step; tile < tiles; tile += ADDERS * step, parity ^= 1) {
            barrier_wait_for_cluster(got + 8 * adder, parity);
            float4 sums[EACH];
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
                if (i * GROUP + thread < FOURS) sums[i] = add_up(adder, i * GROUP + thread, shared);
            named_barrier(1 + adder, GROUP);
            if (thread == 0) expect_sums(adder);
            __syncwarp();
            if (thread < CLUSTER) barrier_arrive_in(address_in(room + 8 * adder, thread));
#pragma unroll
            for (u32 i = 0; i < EACH; i++)
                if (i * GROUP + thread < FOURS) write_out(out, bias, tile, i * GROUP + thread, sums[i]);
        }
    }
};

extern __shared__ __align__(1024) char dynamic_shared[];

// Grid: [CLUSTER * any number]. The maps describe x and w in boxes of 64 columns and ROWS or 64 rows, swizzled by 128 bytes.
extern "C" __global__ void __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1) matmul_cluster(
    void* out, const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const f32* bias,
    const ClusterShape shape) {
    ClusterProduct it;
    it.shape = shape;
    const u32 start = shared_address(dynamic_shared), base = (start + 1023) / 1024 * 1024;
    it.plan(base);
    const f32* received = (const f32*)(dynamic_shared + (it.received - start));
    if (threadIdx.x == FEEDER) it.init_barriers();
    __syncwarp();
    cluster_barrier();
    launch_dependents();
    if (threadIdx.x == FEEDER) {
        it.feed(&x, &w);
    } else {
        wait_for_inputs();
        if (threadIdx.x < GROUP) it.multiply();
        else if (threadIdx.x < FEEDER) it.finish(threadIdx.x / GROUP - 1, out, bias, received);
    }
    __syncwarp();
    // Nobody leaves while others may still write to its shared memory.
    cluster_barrier();
}
