// The gated delta rule from chunk to chunk; see delta_chunks.cuh. Blocks (columns of value heads, sequences). Two warps
// have 16 columns of a head's state, transposed: what one product gives is the first operand of the next as it lies in
// registers. One of them goes from state to state; the other makes the output of what that leaves in shared memory, and
// fetches the next chunk: so each quarter of a multiprocessor has something to do while one waits, and what the next
// state needs is not behind what it does not.
#include "delta_chunks.cuh"

extern __shared__ __align__(16) char dynamic_shared[];

// Threads of all warps of a kind (there are PAIRS pairs), and columns of a pair.
constexpr u32 THREADS = 32 * PAIRS, COLUMNS = 16;

// A chunk in shared memory: queries, keys, [T | A], factors, and the block's columns of values.
constexpr u32 VALUE_ROW = 2 * COLUMNS * PAIRS + 16;
constexpr u32 KEYS_AT = CHUNK * KEY_ROW, MATRICES_AT = 2 * KEYS_AT, FACTORS_AT = MATRICES_AT + CHUNK * MATRIX_ROW,
              VALUES_AT = FACTORS_AT + CHUNK * sizeof(Factors), STAGE_BYTES = VALUES_AT + CHUNK * VALUE_ROW;

// What a pair shares, as operands: the state before a chunk, by turns, and the chunk's news.
struct Pair {
    uint4 states[2][KEY_DIM / 16][32];
    uint4 news[CHUNK / 16][32];
};

// 16 columns by the rows of a chunk.
using Tile = f32[CHUNK / 8][4];

// A tile's rows from 16 k on, as the first operand of a product.
template <u32 N> DEVICE void as_operand(u32 (&a)[4], const f32 (&x)[N][4], u32 k) {
    a[0] = Tensor<TYPE>::pack(x[2 * k][0], x[2 * k][1]);
    a[1] = Tensor<TYPE>::pack(x[2 * k][2], x[2 * k][3]);
    a[2] = Tensor<TYPE>::pack(x[2 * k + 1][0], x[2 * k + 1][1]);
    a[3] = Tensor<TYPE>::pack(x[2 * k + 1][2], x[2 * k + 1][3]);
}

DEVICE void multiply(f32 (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    Tensor<TYPE>::multiply(c, a[0], a[1], a[2], a[3], b0, b1);
}

// A tile's rows from 16 k on, as the first operand of a product.
template <u32 N> DEVICE uint4 as_operand(const f32 (&x)[N][4], u32 k) {
    return make_uint4(Tensor<TYPE>::pack(x[2 * k][0], x[2 * k][1]), Tensor<TYPE>::pack(x[2 * k][2], x[2 * k][3]),
        Tensor<TYPE>::pack(x[2 * k + 1][0], x[2 * k + 1][1]), Tensor<TYPE>::pack(x[2 * k + 1][2], x[2 * k + 1][3]));
}

DEVICE void multiply(f32 (&c)[4], uint4 a, u32 b0, u32 b1) { Tensor<TYPE>::multiply(c, a.x, a.y, a.z, a.w, b0, b1); }

// to += x M^T for rows from 16 k on, where M is T or A of the chunk: zero above the diagonal.
DEVICE void multiply_lower(Tile& to, uint4 x, u32 k, u32 matrix) {
    const u32 rows = second_operand(matrix, MATRIX_ROW) + 32 * k;
#pragma unroll
    for (u32 n = 0; n < CHUNK / 8; n += 2) {
        if (n < 2 * k) continue;
        u32 y[4];
        load_matrices(y, rows + 8 * n * MATRIX_ROW);
        multiply(to[n], x, y[0], y[1]);
        multiply(to[n + 1], x, y[2], y[3]);
    }
}

// to += x M^T for elements from 16 k on, where M is the chunk's queries or keys.
DEVICE void multiply_rows(Tile& to, uint4 x, u32 k, u32 matrix) {
    const u32 rows = second_operand(matrix, KEY_ROW) + 32 * k;
#pragma unroll
    for (u32 n = 0; n < CHUNK / 8; n += 2) {
        u32 y[4];
        load_matrices(y, rows + 8 * n * KEY_ROW);
        multiply(to[n], x, y[0], y[1]);
        multiply(to[n + 1], x, y[2], y[3]);
    }
}

// What both warps of a pair know.
struct Inter {
    Inputs<TYPE> in;
    Rule rule;
    Chunks chunks;
    // The value head, the block's first column of it, and the pair's.
    u32 head, column, mine;
    Pair& pair;

    DEVICE u64 place(u32 row) const { return (u64)row * rule.value_heads + head; }
    DEVICE u32 barrier() const { return 1 + (mine - column) / COLUMNS; }
};

// The warp that goes from state to state.
struct StateWarp : Inter {
    f32 state[KEY_DIM / 8][4];

    DEVICE explicit StateWarp(const Inter& it) : Inter(it) {}

    // `rest`: what is recalled becomes what is new of values.
    DEVICE void compare(Tile& rest, const char* stage) const {
        const Factors* factors = (const Factors*)(stage + FACTORS_AT) + threadIdx.x % 4 * 2;
        // Rows of 8 by columns of 8, transposed on their way.
        const u32 values = second_operand(shared_address(stage) + VALUES_AT + 2 * (mine - column), VALUE_ROW);
#pragma unroll
        for (u32 n = 0; n < CHUNK / 8; n += 2) {
            u32 x[4];
            load_matrices_transposed(x, values + 8 * n * VALUE_ROW);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                const TYPE* value = (const TYPE*)&x[i];
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    const Factors& row = factors[8 * (n + i / 2) + e];
                    f32& to = rest[n + i / 2][i % 2 * 2 + e];
                    to = row.beta * load(value[e]) - row.recall * to;
                }
            }
        }
    }

    DEVICE void scale_state(f32 factor) {
#pragma unroll
        for (u32 n = 0; n < KEY_DIM / 8; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) state[n][e] *= factor;
    }

    // Adds the chunk's news to the state.
    DEVICE void learn(Tile& news, const char* stage, End end) {
        const Factors* factors = (const Factors*)(stage + FACTORS_AT) + threadIdx.x % 4 * 2;
#pragma unroll
        for (u32 n = 0; n < CHUNK / 8; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) news[n][e] *= factors[8 * n + e % 2].key;
        scale_state(end.before);
        // As for `first_operand`: 16 rows by 16 keys, transposed on their way.
        const u32 keys = first_operand(shared_address(stage) + KEYS_AT, KEY_ROW);
#pragma unroll
        for (u32 k = 0; k < CHUNK / 16; k++) {
            const uint4 a = as_operand(news, k);
#pragma unroll
            for (u32 n = 0; n < KEY_DIM / 8; n += 2) {
                u32 x[4];
                load_matrices_transposed(x, keys + 16 * k * KEY_ROW + 16 * n);
                multiply(state[n], a, x[0], x[1]);
                multiply(state[n + 1], a, x[2], x[3]);
            }
        }
        if (NARROW<TYPE>) scale_state(end.after);
    }

    // The state before a chunk, for the other warp.
    DEVICE void publish(u32 chunk) const {
#pragma unroll
        for (u32 k = 0; k < KEY_DIM / 16; k++) pair.states[chunk % 2][k][threadIdx.x % 32] = as_operand(state, k);
    }

    DEVICE void advance(const char* stage, u32 chunk, End end) {
        const u32 at = shared_address(stage);
        Tile rest = {}, news = {};
#pragma unroll
        for (u32 k = 0; k < KEY_DIM / 16; k++) multiply_rows(rest, as_operand(state, k), k, at + KEYS_AT);
        compare(rest, stage);
#pragma unroll
        for (u32 k = 0; k < CHUNK / 16; k++) multiply_lower(news, as_operand(rest, k), k, at + MATRICES_AT);
#pragma unroll
        for (u32 k = 0; k < CHUNK / 16; k++) pair.news[k][threadIdx.x % 32] = as_operand(news, k);
        named_barrier_arrive(barrier(), 64);
        learn(news, stage, end);
        publish(chunk + 1);
    }

    // Where a number of the state is kept.
    DEVICE StatePlace kept(u64 slot, u32 n, u32 e) const {
        const u32 lane = threadIdx.x % 32, key = 8 * n + lane % 4 * 2 + e % 2, value = mine + lane / 4 + e / 2 * 8;
        return rule.state_at(((slot * rule.value_heads + head) * KEY_DIM + key) * rule.value_dim + value);
    }

    DEVICE void run(const Batch& batch, u32 sequence, u32 stages) {
        const bool works = mine < rule.value_dim;
        const Rows rows(batch, sequence);
#pragma unroll
        for (u32 n = 0; n < KEY_DIM / 8; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) state[n][e] = works && !rows.fresh ? kept(rows.slot, n, e).read() : 0.0f;
        publish(0);
        for (u32 chunk = 0; CHUNK * chunk < rows.count; chunk++) {
            const float2 end = ((const float2*)chunks.ends)[place(rows.first + CHUNK * chunk)];
            __syncthreads();
            if (works) advance(dynamic_shared + chunk % stages * STAGE_BYTES, chunk, {end.x, end.y});
            if (stages == 1) __syncthreads();
        }
        if (!works) return;
#pragma unroll
        for (u32 n = 0; n < KEY_DIM / 8; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) kept(rows.slot, n, e).write(state[n][e]);
    }
};

// The warp that fetches chunks and gives the output.
struct OutputWarp : Inter {
    DEVICE explicit OutputWarp(const Inter& it) : Inter(it) {}

    DEVICE void fetch(u32 to, ChunkRows rows) const {
        fetch_keys<THREADS>(to, in, rule, rows, head / (rule.value_heads / rule.key_heads));
        const u32 thread = threadIdx.x % THREADS, row = thread / 16, piece = thread % 16;
        const u16* matrix = chunks.matrices + place(rows.first + row) * 2 * CHUNK + 8 * piece;
        const u32 matrices = to + MATRICES_AT + row * MATRIX_ROW + 16 * piece;
#pragma unroll
        for (u32 i = 0; i < CHUNK; i += THREADS / 16) {
            copy_async(matrices + i * MATRIX_ROW, matrix, row + i < rows.count);
            matrix += (u64)(THREADS / 16) * rule.value_heads * 2 * CHUNK;
        }
        if (thread < CHUNK) {
            const f32* factors = chunks.factors + place(rows.first + thread) * 4;
            copy_async(to + FACTORS_AT + thread * sizeof(Factors), factors, thread < rows.count);
        }
        fetch_values(to, rows);
        copy_commit();
    }

    DEVICE void fetch_values(u32 to, ChunkRows rows) const {
        // 16 bytes at a time.
        constexpr u32 PIECES = 2 * PAIRS, STEP = THREADS / PIECES;
        const u32 thread = threadIdx.x % THREADS, row = thread / PIECES, first = column + thread % PIECES * 8;
        const u32 before = 2 * rule.key_heads * KEY_DIM + head * rule.value_dim;
        const TYPE* from = in.qkv.first + (u64)(rows.first + row) * in.qkv.width + before + first;
        to += VALUES_AT + row * VALUE_ROW + 2 * (first - column);
#pragma unroll
        for (u32 i = 0; i < CHUNK; i += STEP) {
            copy_async(to + i * VALUE_ROW, from, row + i < rows.count && first < rule.value_dim);
            from += (u64)STEP * in.qkv.width;
        }
    }

    DEVICE void store(const Tile& out, ChunkRows rows, TYPE* to) const {
        const u32 lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        const u64 width = (u64)rule.value_heads * rule.value_dim;
        to += (rows.first + g) * width + head * rule.value_dim + mine + 2 * t;
#pragma unroll
        for (u32 n = 0; n < CHUNK / 8; n++) {
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 x = transpose(Tensor<TYPE>::pack(out[n][2 * half], out[n][2 * half + 1]));
                if (8 * n + g < rows.count) *(u32*)(to + 8 * half) = x;
            }
            to += 8 * width;
        }
    }

    DEVICE void give(const char* stage, u32 chunk, ChunkRows rows, TYPE* to) const {
        const u32 at = shared_address(stage), lane = threadIdx.x % 32;
        const Factors* factors = (const Factors*)(stage + FACTORS_AT) + lane % 4 * 2;
        Tile out = {};
#pragma unroll
        for (u32 k = 0; k < KEY_DIM / 16; k++) multiply_rows(out, pair.states[chunk % 2][k][lane], k, at);
#pragma unroll
        for (u32 n = 0; n < CHUNK / 8; n++)
#pragma unroll
            for (u32 e = 0; e < 4; e++) out[n][e] *= factors[8 * n + e % 2].query;
        named_barrier(barrier(), 64);
#pragma unroll
        for (u32 k = 0; k < CHUNK / 16; k++)
            multiply_lower(out, pair.news[k][lane], k, at + MATRICES_AT + 2 * CHUNK);
        store(out, rows, to);
    }

    // With two stages, a chunk is on its way while one is worked on.
    DEVICE void run(const Batch& batch, u32 sequence, u32 stages, TYPE* out) const {
        const bool works = mine < rule.value_dim;
        const u32 end = (batch.num_rows[sequence] + CHUNK - 1) / CHUNK, at = shared_address(dynamic_shared);
        ChunkRows now(batch, sequence, 0);
        fetch(at, now);
        for (u32 chunk = 0; chunk < end; chunk++) {
            const bool more = chunk + 1 < end;
            const ChunkRows next(batch, sequence, more ? chunk + 1 : chunk);
            copy_wait<0>();
            __syncthreads();
            if (stages > 1 && more) fetch(at + (chunk + 1) % 2 * STAGE_BYTES, next);
            if (works) give(dynamic_shared + chunk % stages * STAGE_BYTES, chunk, now, out);
            if (stages == 1) {
                __syncthreads();
                if (more) fetch(at, next);
            }
            now = next;
        }
    }
};

// Sequences with fewer than `least` rows are left alone.
extern "C" __global__ void __launch_bounds__(2 * THREADS) delta_rule_inter(const Inputs<TYPE> in, const Rule rule,
    const Batch batch, const Chunks chunks, u32 least, u32 stages, TYPE* out) {
    constexpr u32 WIDTH = PAIRS * COLUMNS;
    const u32 parts = (rule.value_dim + WIDTH - 1) / WIDTH, sequence = blockIdx.y;
    const bool mine = sequence < batch.counts[1] && batch.num_rows[sequence] >= least;
    launch_dependents();
    wait_for_inputs();
    if (!mine) return;
    const u32 column = blockIdx.x % parts * WIDTH, pair = threadIdx.x % THREADS / 32;
    Pair* pairs = (Pair*)(dynamic_shared + stages * STAGE_BYTES);
    const Inter it{in, rule, chunks, blockIdx.x / parts, column, column + pair * COLUMNS, pairs[pair]};
    if (threadIdx.x < THREADS) StateWarp(it).run(batch, sequence, stages);
    else OutputWarp(it).run(batch, sequence, stages, out);
}
