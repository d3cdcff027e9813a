// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert], or what an activation makes of it, on Hopper, where
// experts have many rows and both sides are 8-bit floats with a scale for 128 columns of a row (expert_tiles.cuh).
//
// Weights lie as packed.cuh has them: the copy engine brings tiles of 16 rows, 128 columns of each at a time, and lanes
// read from shared memory what they hand to the tensor cores, as `packed_wgmma.cuh` does from memory. Rows of x have
// their words in the same order (prepared.cuh).
//
// The tensor cores add up 128 columns, of whose sum they keep about 14 bits; those sums, times both scales, are added
// in f32. The order of a row's sum depends on k alone, not on the other rows.

// Compiled for one type and configuration (`src/moe/experts_codes.rs`): rows of x in a block's tile at most, blocks of
// a cluster, stages, and whether what is gated becomes codes too, for the next product.
#ifndef TYPE
#define TYPE bf16
#define ROWS 128
#define BLOCKS 2
#define DEPTH 4
#define CODED 0
#endif
#include "expert_tiles.cuh"
#include "hopper_codes.cuh"
#include "packed.cuh"
#include "prepared.cuh"

struct CodeExperts : ExpertTiles<32> {
    // Columns of k in a stage: what shares a scale.
    static constexpr u32 STEP = 128;
    static constexpr u32 TILE_BYTES = TILE_ROWS * STEP, TILES = W_BYTES / TILE_BYTES, TILES_OF_BOX = TILES / BOXES;
    static constexpr u32 SCALE_BYTES = ROWS * 4;

    const PackedWeights* weights;
    u32 steps, scales;

    // Which tile of an expert's weights is number i of those of a stage; where there is none, the last one.
    DEVICE u32 tile_of(const Work& work, u32 i) const {
        return min(box_row(work, i / TILES_OF_BOX) / TILE_ROWS + i % TILES_OF_BOX, (shape.n - 1) / TILE_ROWS);
    }

    DEVICE void feed(const void* x, const f32* x_scales) const {
        u32 filled = 0;
        for (u32 index = first; index < total; index += step) {
            const Work work = this->work(index, tile(index));
            // Tiles of weights that this block brings, one each lane.
            const u32 mine = rank * (TILES / BLOCKS) + threadIdx.x;
            const bool brings = threadIdx.x < TILES / BLOCKS, scaled = threadIdx.x < work.rows;
            const char* codes = (const char*)weights[work.expert].codes;
            if (brings) codes += (size_t)tile_of(work, mine) * steps * TILE_BYTES;
            const f32* row_scales = scaled ? x_scales + (size_t)row_of(work, threadIdx.x) * steps : x_scales;
            u32 from[MINE];
            find_rows(from, work, shape.k / 16);
            for (u32 at_k = 0; at_k < steps; at_k++, filled++) {
                const u32 stage = filled % DEPTH, at = stages + stage * STAGE_BYTES, barrier = full + 8 * stage;
                barrier_wait(empty + 8 * stage, filled / DEPTH % 2 ^ 1);
                if (threadIdx.x == 0) barrier_expect(barrier, W_BYTES);
                if (brings) load_tile(at + mine * TILE_BYTES, codes + at_k * TILE_BYTES, barrier);
                gather(at, x, from, work.rows, at_k, true);
                if (scaled) copy_word_async(scales + stage * SCALE_BYTES + threadIdx.x * 4, row_scales + at_k);
                barrier_arrive_after_copies(barrier);
            }
        }
    }

    DEVICE static void load_tile(u32 to, const void* from, u32 barrier) {
        if constexpr (BLOCKS == 1) copy_bytes(to, from, TILE_BYTES, barrier);
        else copy_bytes_to(to, from, TILE_BYTES, barrier, (1 << BLOCKS) - 1);
    }

    // This warp's operands of a stage: four products of 32 columns.
    DEVICE static void load_codes(u32 (&a)[4][4], u32 tile) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            load_ordered_codes(a[i], tile, i, flip_of(E4M3));
#pragma unroll
            // Made before the products begin.
            for (u32 at = 0; at < 4; at++) asm volatile("" : "+r"(a[i][at]));
        }
    }

    // Adds a stage's sums, times the scales of their rows of x and of w.
    template <u32 N> DEVICE static void add_scaled(f32* c, const f32 (&sums)[N / 2], u32 x_scales, f32 w_scale) {
#pragma unroll
        for (u32 i = 0; i < N / 8; i++) {
            f32 first, second;
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(first), "=f"(second)
                         : "r"(x_scales + i * 32 + threadIdx.x % 4 * 8)
                         : "memory");
            first *= w_scale, second *= w_scale;
            c[4 * i] = fmaf(sums[4 * i], first, c[4 * i]);
            c[4 * i + 1] = fmaf(sums[4 * i + 1], second, c[4 * i + 1]);
            c[4 * i + 2] = fmaf(sums[4 * i + 2], first, c[4 * i + 2]);
            c[4 * i + 3] = fmaf(sums[4 * i + 3], second, c[4 * i + 3]);
        }
    }

    // Where the scales of this warp's tiles lie, of both boxes: those of a tile's rows are the same.
    DEVICE void find_scales(const f32* (&from)[2], const Work& work, u32 group) const {
        const f32* all = (const f32*)weights[work.expert].scales;
#pragma unroll
        for (u32 part = 0; part < 2; part++) {
            const u32 tile = tile_of(work, (2 * group + part) * TILES_OF_BOX + threadIdx.x % 128 / 32);
            from[part] = all + (size_t)tile * steps * TILE_ROWS;
        }
    }

    // Multiplies all of k with N rows. `used`: stages so far.
    template <u32 N> DEVICE void multiply(f32 (&c)[2][ROWS / 2], const Work& work, u32 group, u32& used) const {
        const f32* from[2];
        find_scales(from, work, group);
        f32 next[2] = {from[0][0], from[1][0]};
        for (u32 at_k = 0; at_k < steps; at_k++, used++) {
            const u32 stage = used % DEPTH, at = stages + stage * STAGE_BYTES, x_scales = scales + stage * SCALE_BYTES;
            const f32 w_scales[2] = {next[0], next[1]};
            const u32 ahead = min(at_k + 1, steps - 1) * TILE_ROWS;
            next[0] = from[0][ahead], next[1] = from[1][ahead];
            barrier_wait(full + 8 * stage, used / DEPTH % 2);
            // Rows of x were written by threads.
            publish_shared();
            const u64 rows = operand(at + W_BYTES, 0);
#pragma unroll
            for (u32 part = 0; part < 2; part++) {
                u32 a[4][4];
                load_codes(a, at + ((2 * group + part) * TILES_OF_BOX + threadIdx.x % 128 / 32) * TILE_BYTES);
                f32 sums[N / 2];
                products_begin();
#pragma unroll
                for (u32 i = 0; i < 4; i++) multiply_registers(e4m3(), sums, a[i], rows + 2 * i, i);
                products_commit();
                products_wait<0>();
                settle(sums);
                add_scaled<N>(c[part], sums, x_scales, w_scales[part]);
            }
            release(stage);
        }
    }

    // The same with as many rows as there are, rounded up to N, N + 32, ...
    template <u32 N> DEVICE void multiply_rows(f32 (&c)[2][ROWS / 2], const Work& work, u32 group, u32& used) const {
        if constexpr (N < ROWS) {
            if (work.rows > N) return multiply_rows<N + 32>(c, work, group, used);
        }
        multiply<N>(c, work, group, used);
    }

    // Columns of both warpgroups, gated, as codes with a scale for all 128 of a row, with the bits that
    // `quantize_groups` makes of them: codes of all rows of `out` first, then scales. Eight threads have a row, 16
    // columns each.
    DEVICE void write_codes(void* out, f32 (&c)[2][ROWS / 2], const Work& work, u32 group, char* held,
        const u32 (&pairs)[(ROWS + 127) / 128]) const {
        const u32 thread = threadIdx.x % 128, of_both = threadIdx.x - FEEDERS, row = of_both / 8, part = of_both % 8;
        u32* pair_of = (u32*)(held + group * LEAVING_BYTES + HELD * 256);
        const char* line = held + part / 4 * LEAVING_BYTES + row * MY_COLUMNS * 2;
        f32* all_scales = (f32*)((char*)out + (size_t)shape.pairs * width);
#pragma unroll
        for (u32 base = 0; base < ROWS; base += HELD) {
            if (base >= work.rows) break;
            gate<HELD>(c, base);
            // Those before have left.
            named_barrier(3, 256);
            if (base == 0) {
#pragma unroll
                for (u32 i = 0; i < (ROWS + 127) / 128; i++)
                    if (thread + 128 * i < ROWS) pair_of[thread + 128 * i] = pairs[i];
            }
            hold(c[0], base, 0, shared_address(held + group * LEAVING_BYTES));
            named_barrier(3, 256);
            f32 x[4][4], largest = 0.0f;
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const uint4 eight = *(const uint4*)(line + (part % 4 * 2 + i ^ row % 8) * 16);
                const T* numbers = (const T*)&eight;
#pragma unroll
                for (u32 j = 0; j < 8; j++) {
                    x[2 * i + j / 4][j % 4] = load(numbers[j]);
                    largest = fmaxf(largest, fabsf(load(numbers[j])));
                }
            }
#pragma unroll
            for (u32 lanes = 1; lanes < 8; lanes *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, lanes));
            if (base + row >= work.rows || work.column >= width) continue;
            const f32 scale = largest / 448.0f;
            const size_t pair = pair_of[base + row];
            u32* to = (u32*)out + (pair * width + work.column) / 4 + code_place(4 * part);
            *(uint2*)to = make_uint2(codes_of(x[0], scale, TO_E4M3), codes_of(x[2], scale, TO_E4M3));
            *(uint2*)(to + 4) = make_uint2(codes_of(x[1], scale, TO_E4M3), codes_of(x[3], scale, TO_E4M3));
            if (part == 0) all_scales[(pair * width + work.column) / 128] = scale;
        }
    }

    DEVICE void run(char* shared, void* out, const void* x, const f32* x_scales, const f32* bias) {
        const u32 start = shared_address(shared);
        plan(start, SCALE_BYTES);
        scales = stages + DEPTH * STAGE_BYTES;
        steps = shape.k / STEP;
        if (threadIdx.x < FEEDERS) {
            give_registers<40>();
            feed(x, x_scales);
        } else {
            take_registers<232>();
            const u32 group = threadIdx.x / 128 - 1;
            auto sums = [&](f32 (&c)[2][ROWS / 2], const Work& work, u32& used) {
                multiply_rows<32>(c, work, group, used);
            };
            char* held = shared + (leaving - start);
            consume(out, bias, group, sums, [&](Sums& c, const Work& work, u32 column, const PairsOfRows& pairs) {
                if constexpr (CODED != 0) write_codes(out, c, work, group, held, pairs);
                else write((T*)out, c, work, column, group, held + group * LEAVING_BYTES, pairs);
            });
        }
        __syncwarp();
        // Nobody leaves while others may still write to its shared memory.
        cluster_barrier();
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: as many clusters as the device has room for, 384 threads. `x` are codes, `x_scales` their scales; k is a
// multiple of 128, the columns of `out` of 8, gated of 16. The rows of a tile of weights share their scales.
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(384, 1) expert_matmul_codes_wgmma(void* out,
    const void* x, const f32* x_scales, const PackedWeights* weights, const f32* bias, const Choices choices,
    const ExpertShape shape) {
    CodeExperts it;
    it.choices = choices;
    it.shape = shape;
    it.weights = weights;
    it.run(dynamic_shared, out, x, x_scales, bias);
}
