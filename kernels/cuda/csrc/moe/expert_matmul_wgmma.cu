// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert], or what an activation makes of it, on Hopper, where
// experts have many rows: warpgroup products of numbers of 16 bits (expert_tiles.cuh).

// Compiled for one type and configuration (`src/moe/experts.rs`): rows of x in a block's tile at most, blocks of a
// cluster, and stages.
#ifndef TYPE
#define TYPE bf16
#define ROWS 160
#define BLOCKS 2
#define DEPTH 4
#endif
#include "expert_tiles.cuh"

struct HopperExperts : ExpertTiles<16> {
    // Elements of k in a stage.
    static constexpr u32 STEP = 64;

    DEVICE void feed(const T* x, const TensorMap* maps) const {
        const u32 steps = (shape.k + STEP - 1) / STEP, pieces = shape.k / 8;
        u32 filled = 0;
        for (u32 index = first; index < total; index += step) {
            const Work work = this->work(index, tile(index));
            const TensorMap* map = maps + work.expert;
            if (threadIdx.x == 0) acquire_map(map);
            u32 from[MINE];
            find_rows(from, work, pieces);
            for (u32 at_k = 0; at_k < steps; at_k++, filled++) {
                const u32 stage = filled % DEPTH, at = stages + stage * STAGE_BYTES;
                barrier_wait(empty + 8 * stage, filled / DEPTH % 2 ^ 1);
                if (threadIdx.x == 0) {
                    barrier_expect(full + 8 * stage, W_BYTES);
#pragma unroll
                    for (u32 i = 0; i < BOXES / BLOCKS; i++)
                        load_box(work, rank * (BOXES / BLOCKS) + i, map, at_k, at, full + 8 * stage);
                }
                gather(at, x, from, work.rows, at_k, at_k * 8 + threadIdx.x % 8 < pieces);
                barrier_arrive_after_copies(full + 8 * stage);
            }
        }
    }

    DEVICE void load_box(const Work& work, u32 box, const TensorMap* map, u32 at_k, u32 stage, u32 barrier) const {
        const u32 to = stage + box * BOX_BYTES, row = box_row(work, box);
        if constexpr (BLOCKS == 1) copy_box(to, map, at_k * STEP, row, barrier);
        else copy_box_to(to, map, at_k * STEP, row, barrier, (1 << BLOCKS) - 1);
    }
    // Multiplies all of k with N rows. `used`: stages so far.
    template <u32 N> DEVICE void multiply(f32 (&c)[2][ROWS / 2], u32 group, u32& used) const {
        const u32 steps = (shape.k + STEP - 1) / STEP;
        for (u32 at_k = 0; at_k < steps; at_k++, used++) {
            const u32 stage = used % DEPTH, at = stages + stage * STAGE_BYTES;
            barrier_wait(full + 8 * stage, used / DEPTH % 2);
            // Rows of x were written by threads.
            publish_shared();
            products_begin();
#pragma unroll
            for (u32 k = 0; k < STEP / 16; k++)
#pragma unroll
                for (u32 part = 0; part < 2; part++)
                    multiply_shared(
                        T(), *(f32(*)[N / 2])c[part], operand(at + (2 * group + part) * BOX_BYTES + k * 32, 0),
                        operand(at + W_BYTES + k * 32, 0), 1);
            products_commit();
            // The stage before is no longer read.
            products_wait<1>();
            if (at_k > 0) release((used - 1) % DEPTH);
        }
        products_wait<0>();
#pragma unroll
        for (u32 part = 0; part < 2; part++) settle(*(f32(*)[N / 2])c[part]);
        release((used - 1) % DEPTH);
    }

    // The same with as many rows as there are, rounded up to N, N + 16, ...
    template <u32 N> DEVICE void multiply_rows(f32 (&c)[2][ROWS / 2], u32 rows, u32 group, u32& used) const {
        if constexpr (N < ROWS) {
            if (rows > N) return multiply_rows<N + 16>(c, rows, group, used);
        }
        multiply<N>(c, group, used);
    }

    DEVICE void run(char* shared, void* out, const T* x, const TensorMap* maps, const f32* bias) {
        const u32 start = shared_address(shared);
        plan(start, 0);
        if (threadIdx.x < FEEDERS) {
            give_registers<40>();
            feed(x, maps);
        } else {
            take_registers<232>();
            const u32 group = threadIdx.x / 128 - 1;
            auto sums = [&](f32 (&c)[2][ROWS / 2], const Work& work, u32& used) {
                multiply_rows<32>(c, work.rows, group, used);
            };
            char* held = shared + (leaving - start) + group * LEAVING_BYTES;
            consume(out, bias, group, sums, [&](Sums& c, const Work& work, u32 column, const PairsOfRows& pairs) {
                write((T*)out, c, work, column, group, held, pairs);
            });
        }
        __syncwarp();
        // Nobody leaves while others may still write to its shared memory.
        cluster_barrier();
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: as many clusters as the device has room for, 384 threads. `maps` describe each expert's weights in boxes of 64
// rows and 64 columns, swizzled by 128 bytes. k and the columns of `out` are multiples of 8.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(384, 1) expert_matmul_wgmma(
    void* out, const TYPE* x, const TensorMap* maps, const f32* bias, const Choices choices, const ExpertShape shape) {
    HopperExperts it;
    it.choices = choices;
    it.shape = shape;
    it.run(dynamic_shared, out, x, maps, bias);
}
