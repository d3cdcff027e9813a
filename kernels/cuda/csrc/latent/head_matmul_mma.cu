// `head_matmul.cu` on tensor cores, for rows and weights of one 16-bit type, from compute capability 8.0 on. A block
// has ROWS rows and COLS outputs of a head; steps of 64 inputs go through a ring in shared memory, weights on their way
// before the rows are there. Sums run along the inputs, whatever a block's size: a row's bits do not depend on how many
// there are. Widths, first columns and strides are multiples of 8. Blocks (outputs and heads, rows).
#ifndef TYPE
#define TYPE bf16
#define ROWS 128
#define COLS 128
#define WARP_ROWS 64
#define WARP_COLS 32
#define STAGES 3
#endif
#include "head_columns.cuh"
#include "mma.cuh"

#define WARPS_DOWN (ROWS / WARP_ROWS)
#define WARPS (WARPS_DOWN * (COLS / WARP_COLS))
#define THREADS (32 * WARPS)
// Inputs of a step; their bytes, and pieces of 16 bytes.
#define STEP 64u
#define ROW_BYTES 128u
#define PIECES 8u

struct HeadProduct {
    typedef TYPE T;
    static const u32 STAGE_BYTES = (ROWS + COLS) * ROW_BYTES;
    // Of results on their way out.
    static const u32 OUT_ROW = WARP_COLS * 2 + 16;

    const T* x;
    const T* w;
    u32 x_width, rows, n, k, shared;

    // Where a piece of a row lies: the 8 rows of a matrix in different banks.
    DEVICE static u32 at(u32 row, u32 piece) { return row * ROW_BYTES + (piece ^ row % PIECES) * 16; }

    template <u32 LINES>
    DEVICE void fetch(const T* from, u32 width, u32 lines, u32 step, u32 to) const {
#pragma unroll
        for (u32 i = threadIdx.x; i < LINES * PIECES; i += THREADS) {
            const u32 line = i / PIECES, piece = i % PIECES, column = step * STEP + piece * 8;
            const bool valid = line < lines && column < k;
            copy_async(to + at(line, piece), valid ? from + (size_t)line * width + column : from, valid);
        }
    }
    DEVICE void fetch_weights(u32 step) const {
        fetch<COLS>(w, k, n, step, shared + step % STAGES * STAGE_BYTES + ROWS * ROW_BYTES);
    }
    DEVICE void fetch_rows(u32 step) const {
        fetch<ROWS>(x, x_width, rows, step, shared + step % STAGES * STAGE_BYTES);
    }

    DEVICE void multiply(f32 (&c)[WARP_ROWS / 16][WARP_COLS / 8][4], u32 step) const {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const u32 row = warp % WARPS_DOWN * WARP_ROWS + lane % 16,
                  col = warp / WARPS_DOWN * WARP_COLS + lane % 8 + lane / 16 * 8;
        const u32 from_x = shared + step % STAGES * STAGE_BYTES, from_w = from_x + ROWS * ROW_BYTES;
#pragma unroll
        for (u32 i = 0; i < STEP / 16; i++) {
            u32 b[WARP_COLS / 16][4];
#pragma unroll
            for (u32 j = 0; j < WARP_COLS / 16; j++)
                load_matrices(b[j], from_w + at(col + 16 * j, 2 * i + lane / 8 % 2));
#pragma unroll
            for (u32 r = 0; r < WARP_ROWS / 16; r++) {
                u32 a[4];
                load_matrices(a, from_x + at(row + 16 * r, 2 * i + lane / 16));
#pragma unroll
                for (u32 j = 0; j < WARP_COLS / 8; j++)
                    Tensor<T>::multiply(
                        c[r][j], a[0], a[1], a[2], a[3], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }

    // By way of shared memory, where a row's neighbours come together.
    DEVICE void write(T* out, u32 width, const f32 (&c)[WARP_ROWS / 16][WARP_COLS / 8][4]) const {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
        const u32 own = shared + warp * WARP_ROWS * OUT_ROW;
#pragma unroll
        for (u32 r = 0; r < WARP_ROWS / 16; r++)
#pragma unroll
            for (u32 j = 0; j < WARP_COLS / 8; j++)
#pragma unroll
                for (u32 half = 0; half < 2; half++)
                    asm volatile("st.shared.u32 [%0], %1;"
                                 ::"r"(own + (16 * r + 8 * half + g) * OUT_ROW + 16 * j + 4 * t),
                                 "r"(Tensor<T>::pack(c[r][j][2 * half], c[r][j][2 * half + 1]))
                                 : "memory");
        __syncwarp();
        const u32 IN_ROW = WARP_COLS / 8;
        const u32 first_row = warp % WARPS_DOWN * WARP_ROWS, first_col = warp / WARPS_DOWN * WARP_COLS;
#pragma unroll
        for (u32 i = lane; i < WARP_ROWS * IN_ROW; i += 32) {
            const u32 row = i / IN_ROW, piece = i % IN_ROW, col = first_col + piece * 8;
            uint4 bits;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
                         : "r"(own + row * OUT_ROW + piece * 16)
                         : "memory");
            if (first_row + row < rows && col < n) *(uint4*)(out + (size_t)(first_row + row) * width + col) = bits;
        }
    }

    DEVICE void run(T* out, u32 width) const {
        f32 c[WARP_ROWS / 16][WARP_COLS / 8][4] = {};
        const u32 steps = (k + STEP - 1) / STEP;
#pragma unroll
        for (u32 step = 0; step < STAGES - 1; step++)
            if (step < steps) fetch_weights(step);
        wait_for_inputs();
#pragma unroll
        for (u32 step = 0; step < STAGES - 1; step++) {
            if (step < steps) fetch_rows(step);
            copy_commit();
        }
        for (u32 step = 0; step < steps; step++) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            const u32 next = step + STAGES - 1;
            if (next < steps) {
                fetch_weights(next);
                fetch_rows(next);
            }
            copy_commit();
            multiply(c, step);
        }
        copy_wait<0>();
        __syncthreads();
        write(out, width, c);
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

extern "C" __global__ void __launch_bounds__(THREADS) head_matmul_mma(const TYPE* x, const Columns from,
    const TYPE* const* weights, TYPE* out, const Columns to, u32 heads, u32 rows, u32 n, u32 k) {
    launch_dependents();
    const u32 tiles = (n + COLS - 1) / COLS, head = blockIdx.x / tiles, first_col = blockIdx.x % tiles * COLS,
              first_row = blockIdx.y * ROWS;
    HeadProduct it;
    it.x = x + (size_t)first_row * from.width + from.first + head * from.stride;
    it.w = weights[head] + (size_t)first_col * k;
    it.x_width = from.width;
    it.rows = rows - first_row;
    it.n = n - first_col;
    it.k = k;
    it.shared = shared_address(dynamic_shared);
    it.run(out + (size_t)first_row * to.width + to.first + head * to.stride + first_col, to.width);
}
