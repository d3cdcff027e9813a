// The gated delta rule inside of chunks: T, A and factors; see delta_chunks.cuh. Blocks (chunks of all sequences with
// enough rows, key heads and up to HEADS of their value heads).
#include "delta_chunks.cuh"
#include "prefill.cuh"

constexpr u32 WARPS = 4;
// Most value heads of a block, and numbers of a row of L and T in shared memory.
constexpr u32 HEADS = 2, SQUARE_ROW = CHUNK + 4;
// Below it, exp is 0 in f32 to all purposes: the sums of a chunk keep their digits.
constexpr f32 LEAST_LOG = -88.0f, LOG2E = 1.4426950408889634f;

extern __shared__ __align__(16) char dynamic_shared[];

struct Shared {
    f32 scales[2 * CHUNK]; // of queries, then of keys
    f32 logs[HEADS][CHUNK];
    f32 betas[HEADS][CHUNK];
};

// A warp's 16 rows against the chunk's rows up to them.
using Products = f32[CHUNK / 8][4];

struct Intra {
    Inputs<TYPE> in;
    Rule rule;
    Chunks chunks;
    ChunkRows rows;
    u32 key_head;
    Shared& shared;

    DEVICE u64 place(u32 row, u32 head) const { return (u64)(rows.first + row) * rule.value_heads + head; }

    // Of the row of queries and keys that is this thread's.
    DEVICE void find_scale() const {
        const uint4* row = (const uint4*)(dynamic_shared + threadIdx.x * KEY_ROW);
        f32 square = 0.0f;
        for (u32 piece = 0; piece < KEY_DIM / 8; piece++) {
            const uint4 x = row[piece];
            const TYPE* elements = (const TYPE*)&x;
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                const f32 element = load(elements[i]);
                square = fmaf(element, element, square);
            }
        }
        const f32 scale = 1.0f / sqrtf(square + EPS);
        // What an empty key is multiplied by is nothing anyhow, and shall not count as the largest.
        shared.scales[threadIdx.x] = threadIdx.x < CHUNK ? scale / sqrtf((f32)KEY_DIM) : square > 0.0f ? scale : 0.0f;
    }

    DEVICE void multiply(Products& queries, Products& keys) const {
        const u32 warp = threadIdx.x / 32, at = shared_address(dynamic_shared), of_keys = at + CHUNK * KEY_ROW;
        const u32 mine = first_operand(at + 16 * warp * KEY_ROW, KEY_ROW), other = second_operand(of_keys, KEY_ROW);
        for (u32 k = 0; k < KEY_DIM / 16; k++) {
            u32 q[4], x[4];
            load_matrices(q, mine + 32 * k);
            load_matrices(x, mine + CHUNK * KEY_ROW + 32 * k);
#pragma unroll
            for (u32 n = 0; n < WARPS; n++) {
                if (n > warp) break;
                u32 y[4];
                load_matrices(y, other + 16 * n * KEY_ROW + 32 * k);
#pragma unroll
                for (u32 half = 0; half < 2; half++) {
                    Tensor<TYPE>::multiply(queries[2 * n + half], q[0], q[1], q[2], q[3], y[2 * half], y[2 * half + 1]);
                    Tensor<TYPE>::multiply(keys[2 * n + half], x[0], x[1], x[2], x[3], y[2 * half], y[2 * half + 1]);
                }
            }
        }
    }

    // A warp finds a head's sums of logarithms, and writes all factors. Rows past the chunk's change nothing.
    DEVICE void find_factors(u32 index, u32 head) const {
        const u32 lane = threadIdx.x % 32;
        f32 sum = 0.0f, sums[2], betas[2], most = 0.0f;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 row = lane + 32 * half;
            const bool valid = row < rows.count;
            f32 log = valid ? fmaxf(log_decay(rule, in.dt.at(rows.first + row, head), head), LEAST_LOG) : 0.0f;
            betas[half] = valid ? sigmoid(in.beta.at(rows.first + row, head)) : 0.0f;
            most = valid ? fmaxf(most, shared.scales[CHUNK + row]) : most;
#pragma unroll
            for (u32 lanes = 1; lanes < 32; lanes *= 2) {
                const f32 before = __shfl_up_sync(~0u, log, lanes);
                if (lane >= lanes) log += before;
            }
            sums[half] = sum + log;
            sum = __shfl_sync(~0u, sums[half], 31);
            shared.logs[index][row] = sums[half];
            shared.betas[index][row] = betas[half];
        }
        most = NARROW<TYPE> ? fmaxf(warp_max(most), 1e-6f) : 1.0f;
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 row = lane + 32 * half;
            if (row >= rows.count) continue;
            const f32 decay = expf(sums[half]), key = shared.scales[CHUNK + row];
            const float4 factors = make_float4(betas[half], betas[half] * decay * key,
                decay * shared.scales[row], expf(sum - sums[half]) * key / most);
            ((float4*)chunks.factors)[place(row, head)] = factors;
        }
        if (lane == 0) ((float2*)chunks.ends)[place(0, head)] = make_float2(expf(sum) / most, most);
    }

    // L to shared memory, transposed, and A.
    DEVICE void finish(const Products& queries, const Products& keys, u32 index, u32 head) const {
        const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const f32 *logs = shared.logs[index], *key_scales = shared.scales + CHUNK;
        f32* square = (f32*)dynamic_shared + index * CHUNK * SQUARE_ROW;
#pragma unroll
        for (u32 part = 0; part < 2; part++) {
            const u32 i = 16 * warp + g + 8 * part;
            const f32 query_scale = shared.scales[i], key_scale = key_scales[i] * shared.betas[index][i], log = logs[i];
            u32* to = (u32*)(chunks.matrices + 2 * CHUNK * place(i, head) + CHUNK) + t;
#pragma unroll
            for (u32 n = 0; n < CHUNK / 8; n++) {
                if (n >= 2 * (warp + 1)) break;
                f32 upto[2];
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    const u32 j = 8 * n + 2 * t + e;
                    const f32 factor = exp2_fast(fminf(log - logs[j], 0.0f) * LOG2E) * key_scales[j];
                    if (j < i) square[j * SQUARE_ROW + i] = keys[n][2 * part + e] * (factor * key_scale);
                    upto[e] = j <= i ? queries[n][2 * part + e] * (factor * query_scale) : 0.0f;
                }
                if (i < rows.count) to[4 * n] = Tensor<TYPE>::pack(upto[0], upto[1]);
            }
        }
    }

    // A thread's column of T, by 16 rows at a time: (I + L) T = I. Above the diagonal of `square` lies L transposed; on
    // it and below, columns of T take their places. A warp begins at its first column.
    DEVICE void solve(f32* square, u32 column, u32 head) const {
        constexpr u32 ROWS = 16;
        TYPE* to = (TYPE*)chunks.matrices + 2 * CHUNK * place(0, head) + column;
        const u32 begin = column / 32 * 32;
        for (u32 first = begin; first < CHUNK; first += ROWS) {
            f32 x[ROWS];
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) x[r] = first + r == column ? 1.0f : 0.0f;
#pragma unroll 4
            for (u32 k = begin; k < first; k++)
                subtract<0>(x, square + k * SQUARE_ROW + first, k >= column ? square[k * SQUARE_ROW + column] : 0.0f);
            solve_block(x, square + first * SQUARE_ROW + first);
#pragma unroll
            for (u32 r = 0; r < ROWS; r++) {
                const u32 row = first + r;
                if (row >= column) square[row * SQUARE_ROW + column] = x[r];
                if (row < rows.count) to[(u64)row * 2 * CHUNK * rule.value_heads] = Cast<TYPE>::from(x[r]);
            }
        }
    }

    // x -= l known, from element FIRST on.
    template <u32 FIRST> DEVICE static void subtract(f32 (&x)[16], const f32* l, f32 known) {
#pragma unroll
        for (u32 i = FIRST / 4 * 4; i < 16; i += 4) {
            const float4 y = *(const float4*)(l + i);
            if (i >= FIRST) x[i] = fmaf(-y.x, known, x[i]);
            if (i + 1 >= FIRST) x[i + 1] = fmaf(-y.y, known, x[i + 1]);
            if (i + 2 >= FIRST) x[i + 2] = fmaf(-y.z, known, x[i + 2]);
            x[i + 3] = fmaf(-y.w, known, x[i + 3]);
        }
    }

    template <u32 R = 0> DEVICE static void solve_block(f32 (&x)[16], const f32* diagonal) {
        if constexpr (R < 15) {
            subtract<R + 1>(x, diagonal + R * SQUARE_ROW, x[R]);
            solve_block<R + 1>(x, diagonal);
        }
    }

    // The value heads are `heads` from `first` on.
    DEVICE void run(u32 first, u32 heads) const {
        const u32 warp = threadIdx.x / 32, index = threadIdx.x / CHUNK;
        // Columns in front take longest: in turns, they are those of other quarters of a multiprocessor.
        const u32 column = (threadIdx.x + blockIdx.x % 2 * (CHUNK / 2)) % CHUNK;
        fetch_keys<32 * WARPS>(shared_address(dynamic_shared), in, rule, rows, key_head);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        find_scale();
        Products queries = {}, keys = {};
        multiply(queries, keys);
        __syncthreads();
        if (warp < heads) find_factors(warp, first + warp);
        __syncthreads();
        for (u32 i = 0; i < heads; i++) finish(queries, keys, i, first + i);
        __syncthreads();
        if (index >= heads) return;
        solve((f32*)dynamic_shared + index * CHUNK * SQUARE_ROW, column, first + index);
    }
};

// Sequences with fewer than `least` rows are left alone.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 4) delta_rule_intra(
    const Inputs<TYPE> in, const Rule rule, const Batch batch, const Chunks chunks, u32 least) {
    __shared__ Shared shared;
    u32 sequence, chunk;
    const bool found = find_tile(batch, 1, CHUNK, least, blockIdx.x, sequence, chunk);
    launch_dependents();
    wait_for_inputs();
    if (!found) return;
    const u32 ratio = rule.value_heads / rule.key_heads, parts = (ratio + HEADS - 1) / HEADS;
    const u32 key_head = blockIdx.y / parts, part = blockIdx.y % parts * HEADS;
    const Intra it{in, rule, chunks, ChunkRows(batch, sequence, chunk), key_head, shared};
    it.run(key_head * ratio + part, min(HEADS, ratio - part));
}
