// out[pair] = x[pair or row] w[expert of pair]^T + bias[expert], or what an activation makes of it, for weights of 4 or
// 8 bits on Hopper, where experts have many rows: `packed_wgmma.cuh` for ROWS rows of a tile. A warpgroup gathers rows
// of x, and puts columns into the order of operands: 16 bytes that a thread reads are four pairs of columns, for four
// pieces of a row's 128 bytes.
#include "experts.cuh"
#include "packed_wgmma.cuh"

static_assert(PARTS == 1, "no cluster");

// Rows of x on their way to shared memory, a chunk at a time.
struct Gather {
    typedef TYPE T;
    // Rows that a thread brings, 16 bytes of each.
    static constexpr u32 MINE = ROWS / 16;

    const T* from[MINE];
    u32 line, piece, rows, pieces;

    // `row_of(i)` is where row i begins.
    template <typename RowOf> DEVICE Gather(u32 rows, u32 k, RowOf row_of) : rows(rows), pieces(k / 8) {
        line = threadIdx.x % 128 / 8, piece = threadIdx.x % 8;
#pragma unroll
        for (u32 i = 0; i < MINE; i++) from[i] = row_of(min(line + 16 * i, rows - 1)) + piece * 8;
    }

    DEVICE void fetch(uint4 (&held)[MINE], u32 chunk) const {
        const bool inside = chunk * 8 + piece < pieces;
#pragma unroll
        for (u32 i = 0; i < MINE; i++)
            held[i] = inside && line + 16 * i < rows ? *(const uint4*)(from[i] + chunk * CHUNK)
                                                     : make_uint4(0, 0, 0, 0);
    }

    DEVICE void store(const uint4 (&held)[MINE], u32 stage) const {
        const u32 to = stage + line * 128 + piece % 4 * 4, first = piece / 4 * 4, swizzle = line % 8;
#pragma unroll
        for (u32 i = 0; i < MINE; i++) {
            if (line + 16 * i >= rows) continue;
            const u32 words[4] = {held[i].x, held[i].y, held[i].z, held[i].w};
#pragma unroll
            for (u32 j = 0; j < 4; j++)
                asm volatile("st.shared.u32 [%0], %1;" ::"r"(to + i * 2048 + ((first + j) ^ swizzle) * 16),
                    "r"(words[j])
                    : "memory");
        }
    }
};

extern __shared__ __align__(1024) char dynamic_shared[];

// Grid: [tiles of rows, each so often as it has ROWS rows at most; columns of `out` over those of a block]. k is a
// multiple of 8, n too, gated of 32.
extern "C" __global__ void __launch_bounds__(THREADS, 1) expert_matmul_packed_wgmma(void* out, const TYPE* x,
    const PackedWeights* weights, const f32* bias, const Choices choices, const ExpertShape shape) {
    typedef PackedProduct<GATED> Product;
    __shared__ u32 table[CODE == LEVELS ? 256 : 1];
    launch_dependents();
    wait_for_inputs();
    const u32 shares = (choices.tile_rows + ROWS - 1) / ROWS, index = blockIdx.x / shares;
    if (index >= choices.num_tiles(shape.pairs)) return;
    const Tile any = choices.tile(index);
    const u32 begin = any.begin + blockIdx.x % shares * ROWS, end = any.begin + choices.rows_of(any);
    if (begin >= end) return;
    const PackedWeights w = weights[any.expert];
    const PackedTile tile = {0, min(end - begin, ROWS), blockIdx.y * Product::COLUMNS, shape.width()};
    Product product(w, table, tile, dynamic_shared);
    if (threadIdx.x == MULTIPLYING) product.init_barriers(128);
    if (threadIdx.x < MULTIPLYING) product.start_weights();
    if (CODE == LEVELS) make_table<TYPE>(w, table);
    __syncthreads();
    if (threadIdx.x < MULTIPLYING) {
        product.multiply(nullptr);
        await_sums<PARTS>(MULTIPLYING);
        auto gate = [=](f32 gate, f32 up) { return shape.gated(gate, up); };
        const f32* shifts = bias ? bias + (size_t)any.expert * shape.n : bias;
        product.finish(shifts, gate, [=](u32 row, u32 at, float4 x) {
            put_four<TYPE>(out, (size_t)choices.pair(begin + row) * tile.width + at, x, shape.wide, 0);
        });
        return;
    }
    const Gather gather(tile.rows, shape.k,
        [=](u32 row) { return x + (size_t)(choices.pair(begin + row) / shape.pairs_a_row) * shape.k; });
    uint4 held[2][Gather::MINE];
    gather.fetch(held[0], product.first);
    gather.fetch(held[1], product.first + 1);
    for (u32 first = 0; first < product.steps; first += 2)
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 step = first + i;
            if (step >= product.steps) break;
            gather.store(held[i], product.await_empty(step));
            publish_shared();
            barrier_arrive(product.full_of(step));
            gather.fetch(held[i], product.first + step + 2);
        }
}
