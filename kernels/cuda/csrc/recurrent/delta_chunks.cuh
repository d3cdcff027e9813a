// The gated delta rule in chunks of 64 rows, on tensor cores (Yang, Kautz, Hatamizadeh 2024, section 3.3). Of a chunk,
// with K and Q as they are, G the sum of its logarithms of decays up to a row, |k| and |q| lengths, and c_ij =
// exp(G_i - G_j):
//
//   L_ij = beta_i c_ij (k_i k_j) / (|k_i| |k_j|) below the diagonal     T = (I + L)^-1
//   A_ij = c_ij (q_i k_j) / (|q_i| |k_j| sqrt(key_dim)) up to the diagonal
//   R    = beta V - (beta exp(G) / |k|) (K S)                           N = T R
//   out  = (exp(G) / (|q| sqrt(key_dim))) (Q S) + A N
//   S    = exp(G_last) S + K^T ((exp(G_last - G) / |k|) N)
//
// `delta_rule_intra.cu` finds T, A and the factors of all chunks at once; `delta_rule_inter.cu` walks a sequence's
// chunks with S in registers. Exponents are never above 0: each is of a later row less an earlier one.
//
// Precision: products take operands of the 16-bit type and sum in f32; S is f32 in registers, and rounded only as an
// operand, and to what it is kept in between steps. T is solved for in f32; no entry of it or of A is above 1.
// Against the recurrence in f64, over 1,024 rows with decays of 1e-5 to 5 a row, random and repeated keys, the
// output's relative error in bf16 is 2.4e-3 to 3.5e-3 (7.8e-3 where 8 keys come again and again), where rounding it
// alone makes 1.7e-3: keeping raw K and Q as operands, and R instead of T (beta V) and T (beta K), leaves out
// roundings. Twice as many products for an exact S would gain less than a tenth of it. In f16 it is 3e-4 to 1e-3.
#pragma once
#include "delta_rule.cuh"
#include "mma.cuh"

// Compiled for one type and key size (`src/recurrent/delta_chunks.rs`).
#ifndef TYPE
#define TYPE bf16
#define KEY_DIM 128
#define PAIRS 4
#endif

constexpr u32 CHUNK = 64;
// Bytes of a row of keys or queries, and of T and A, in shared memory: the ends keep rows in different banks.
constexpr u32 KEY_ROW = 2 * KEY_DIM + 16, MATRIX_ROW = 4 * CHUNK + 16;

// A row's factors in a head.
struct Factors {
    f32 beta, recall, query, key;
};

// What is known of all chunks before they are walked; see src/recurrent/delta_chunks.rs.
struct Chunks {
    u16* matrices; // [row][value head][T of the row | A of the row]
    f32* factors;  // [row][value head]: Factors
    f32* ends;     // [first row of a chunk][value head]: see `End`
};
SAME_LAYOUT(Chunks, Chunks);

// What a chunk does to a head's state: it is multiplied by `before`, K^T N is added, and all is multiplied by `after`,
// where the factors of keys that were left out of N would take f16 out of its range.
struct End {
    f32 before, after;
};

template <typename T> constexpr bool NARROW = false;
template <> constexpr bool NARROW<f16> = true;

// A chunk of a sequence: its rows in this step.
struct ChunkRows {
    u32 first, count;

    DEVICE ChunkRows(const Batch& batch, u32 sequence, u32 chunk)
        : first(batch.first_row[sequence] + chunk * CHUNK),
          count(min(CHUNK, batch.num_rows[sequence] - chunk * CHUNK)) {}
};

// THREADS threads begin to copy the queries of a key head, then its keys, to rows of KEY_ROW bytes; zeros past the
// chunk's rows.
template <u32 THREADS, typename T>
DEVICE void fetch_keys(u32 to, const Inputs<T>& in, const Rule& rule, ChunkRows rows, u32 key_head) {
    constexpr u32 PIECES = KEY_DIM / 8, STEP = THREADS / PIECES;
    const u32 thread = threadIdx.x % THREADS, first = thread / PIECES, piece = thread % PIECES;
    const u32 keys = rule.key_heads * KEY_DIM;
    const T* from = in.qkv.first + (u64)(rows.first + first) * in.qkv.width + key_head * KEY_DIM + 8 * piece;
    to += first * KEY_ROW + 16 * piece;
#pragma unroll
    for (u32 row = 0; row < CHUNK; row += STEP) {
        const bool valid = first + row < rows.count;
        copy_async(to + row * KEY_ROW, from, valid);
        copy_async(to + (CHUNK + row) * KEY_ROW, from + keys, valid);
        from += (u64)STEP * in.qkv.width;
    }
}

// Where a lane reads its row of 16 rows' matrices for `load_matrices`, as the first operand of a product; and of 16
// rows that are the columns of the second, which become those of two products.
DEVICE u32 first_operand(u32 at, u32 row_bytes) {
    const u32 lane = threadIdx.x % 32;
    return at + lane % 16 * row_bytes + lane / 16 * 16;
}
DEVICE u32 second_operand(u32 at, u32 row_bytes) {
    const u32 lane = threadIdx.x % 32;
    return at + (lane / 16 * 8 + lane % 8) * row_bytes + lane / 8 % 2 * 16;
}
