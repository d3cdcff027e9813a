// out[rows, n] = x[rows, k] w[n, k]^T (+ bias) (+ out) on Hopper, for more rows than `matmul_packed.cu` is for, with
// weights of 4 or 8 bits; or, compiled with GATED, activation(g) * u of its columns [g | u], which may also be written
// as the next product reads them (prepared.cuh). The copy engine brings rows of x, in the order of columns that
// `reorder_input` (prepare_input.cu) leaves; the first weights are read before the kernel waits for its input.
// `src/gemm/matmul_packed_wgmma.rs` chooses the configuration.
#include "activation.cuh"
#include "packed_wgmma.cuh"
#include "prepared.cuh"

#ifndef GATED
#define GATED 0
#endif

// Blocks that a multiprocessor has room for: so one reads while the other begins or ends.
#define BLOCKS (ROWS <= 64 ? 2 : 1)
// Registers of a thread that multiplies, where two warpgroups share what a block gets.
#define REGISTERS (ROWS <= 64 ? 104 : 232)

// This block's tile; tiles of rows that have the same columns are neighbours.
DEVICE PackedTile my_tile(const PackedShape& shape, u32& first_row) {
    const u32 row_tiles = (shape.rows + ROWS - 1) / ROWS, index = blockIdx.x / PARTS;
    first_row = index % row_tiles * ROWS;
    return {blockIdx.x % PARTS, min(shape.rows - first_row, ROWS), index / row_tiles * PackedProduct<GATED>::COLUMNS,
        shape.n / (GATED ? 2 : 1)};
}

// Four numbers as the next product reads them, made of what was stored.
template <typename T> DEVICE void prepare_four(const PreparedRows& rows, u32 row, u32 at, float4 x) {
    const f32 scale = rows.shape.scale;
    const f32 four[4] = {load(Cast<T>::from(x.x)), load(Cast<T>::from(x.y)), load(Cast<T>::from(x.z)),
        load(Cast<T>::from(x.w))};
    put_prepared<T>(rows, row, at, four, scale);
    if (rows.scales && at == 0) rows.scales[row] = scale;
}

extern __shared__ __align__(1024) char dynamic_shared[];

// Grid: [PARTS * tiles of rows * tiles of columns]. The map of x has boxes of 128 bytes of ROWS rows, whose `scales`
// are given where they are codes; its rows have whole chunks. n is a multiple of 8, gated of 32; each part has a turn
// of chunks. Rows of `prepared` have whole chunks too, of codes with a scale that all rows share.
extern "C" __global__ void __cluster_dims__(PARTS, 1, 1) __launch_bounds__(THREADS, BLOCKS)
    matmul_packed_wgmma(void* out, const __grid_constant__ TensorMap x, const __grid_constant__ PackedWeights w,
        const f32* bias, const __grid_constant__ PackedShape shape, const Activation activation, const f32* scales,
        const __grid_constant__ PreparedRows prepared) {
    typedef PackedProduct<GATED> Product;
    typedef TYPE T;
    __shared__ u32 table[CODE == LEVELS ? 256 : 1];
    u32 first_row;
    const PackedTile tile = my_tile(shape, first_row);
    Product product(w, table, tile, dynamic_shared);
    if (threadIdx.x == MULTIPLYING) product.stages.init_barriers(1, MULTIPLYING / 32);
    if (threadIdx.x < MULTIPLYING) product.start_weights();
    if (CODE == LEVELS) make_table<T>(w, table);
    __syncthreads();
    launch_dependents();
    wait_for_inputs();
    if (threadIdx.x < MULTIPLYING) {
        if constexpr (WARPGROUPS == 2) take_registers<REGISTERS>();
        product.multiply(scales + first_row);
        await_sums<PARTS>(MULTIPLYING);
        auto gate = [=](f32 gate, f32 up) {
            // Rounded as if they had been stored.
            return activated(activation, load(Cast<T>::from(gate))) * gated_half(activation, load(Cast<T>::from(up)));
        };
        product.finish(bias, gate, [&](u32 row, u32 at, float4 x) {
            put_four<T>(out, (size_t)(first_row + row) * tile.width + at, x, shape.wide, shape.accumulate);
            if (GATED && prepared.to) prepare_four<T>(prepared, first_row + row, at, x);
        });
    } else {
        if constexpr (WARPGROUPS == 2) give_registers<24>();
        const u32 first = product.first / Product::STAGE_CHUNKS, steps = product.steps / Product::STAGE_CHUNKS;
        for (u32 step = 0; threadIdx.x == MULTIPLYING && step < steps; step++) {
            const u32 to = product.stages.await_empty(step), full = product.stages.full_of(step);
            barrier_expect(full, Product::STAGE_BYTES);
            copy_box(to, &x, (first + step) * CHUNK, first_row, full);
        }
        __syncwarp();
        if constexpr (PARTS > 1) await_sums<PARTS>(MULTIPLYING);
    }
    __syncwarp();
    // Nobody leaves while others read its sums.
    if constexpr (PARTS > 1) cluster_meeting();
}
