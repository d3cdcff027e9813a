// The selective scan of sequences with many rows where a head has one decay (Mamba 2), on the tensor cores of any
// device from compute capability 8.0 on: state-space duality (Dao and Gu 2024). See `ops::Scan`, selective_scan.cu for
// few rows, and README.md.
//
// A block walks one head of a sequence in chunks of CHUNK rows. With `cum[t]` the sum of `dt decay` up to row t of the
// chunk, and `state` what the rows before it left:
//
//   out[t]  = exp(cum[t]) (state c[t]) + sum_{s <= t} (c[t] b[s]) exp(cum[t] - cum[s]) dt[s] x[s] + skip x[t]
//   state   = exp(cum[last]) state + sum_s exp(cum[last] - cum[s]) dt[s] x[s] b[s]
//
// Each is a product of matrices, and each exponent is a difference that is not positive. The state stays in registers,
// in f32, and is multiplied with `c` to at least 11 bits. Scores, and x with its weight, are rounded to bf16 where
// inputs are; f16 has too little range for them (tf32.cuh).
//
// Where few sequences have many rows, a sequence is cut into spans, each a block's: kernels with STATES_ONLY find out
// what all but the last leave of a state and add to it, and the others begin with what those before leave.
#include "scan.cuh"
#include "tf32.cuh"

// Compiled for one type and shape (`src/recurrent/scan_chunks.rs`).
#ifndef TYPE
#define TYPE bf16
#define HEAD_DIM 64
#define STATE_DIM 128
#define STATES_ONLY 0
#endif

typedef TYPE T;

constexpr u32 CHUNK = 64, TILES = CHUNK / 16;
// Warps: for each slice of 16 channels two that share its values, or one.
constexpr u32 SLICES = HEAD_DIM / 16, HALVES = HEAD_DIM <= 64 && STATE_DIM >= 128 && STATE_DIM % 32 == 0 ? 2 : 1;
constexpr u32 WARPS = SLICES * HALVES, THREADS = 32 * WARPS, VALUES = STATE_DIM / HALVES;
// Warps whose scores are in different rows.
constexpr u32 ROW_WARPS = WARPS < TILES ? WARPS : TILES;
// The warp with the fewest scores finds out what the next chunk's rows bring of decay.
constexpr u32 STEPS_WARP = WARPS > ROW_WARPS ? ROW_WARPS : 0;
// Bytes of a row in shared memory, padded so that the rows of a matrix lie in different banks.
constexpr u32 X_ROW = 2 * HEAD_DIM + 16, BC_ROW = 2 * STATE_DIM + 16;
constexpr u32 SCORE_ROW = CHUNK * Kept<T>::SIZE + Kept<T>::PAD;
// A stage holds a chunk's b, x and c.
constexpr u32 X_AT = CHUNK * BC_ROW, C_AT = X_AT + CHUNK * X_ROW, STAGE = C_AT + (STATES_ONLY ? 0 : CHUNK * BC_ROW),
              SCORES_AT = 2 * STAGE, STEPS_AT = SCORES_AT + (STATES_ONLY ? 0 : CHUNK * SCORE_ROW);
constexpr u32 BLOCKS = WARPS == 8 && VALUES <= 64 ? (STATES_ONLY ? 3 : 2) : 1;

static_assert(HEAD_DIM % 16 == 0 && STATE_DIM % 16 == 0 && (SLICES & (SLICES - 1)) == 0, "slices of 16");
static_assert(HALVES == 1 || CHUNK * BC_ROW >= SLICES * CHUNK * 16 * sizeof(f32), "sums are exchanged where c was");

// What a chunk's rows bring of decay: logarithms are of base 2.
struct Steps {
    f32 sum[CHUNK];    // of the decays' logarithms, each row's own included
    f32 grown[CHUNK];  // what is left of the state before the chunk
    f32 dt[CHUNK];
    f32 weight[CHUNK]; // dt, and what is left of it after the chunk

    DEVICE f32 left() const { return grown[CHUNK - 1]; }
};

// See src/recurrent/scan_chunks.rs.
struct Spans {
    f32* states; // [sequence][head][span][channel][value]; of the last span: what was kept before all
    f32* left;   // [sequence][head][span]: of a state, behind it
    u32 count;   // of a sequence; 1: there is nothing at `states`
    // Which sequences: from so many rows on, up to so many.
    u32 least;
    u32 below;
};
SAME_LAYOUT(Spans, Spans);

extern __shared__ __align__(128) char dynamic_shared[];

struct ChunkedScan {
    Inputs<T> in;
    Scan scan;
    u32 head, first, count;
    Steps* steps;
    f32 rate, bias, skip;
    T* out;
    // Values 8 j + 2 t and the next of channels g and g + 8 of this warp's slice.
    f32 state[VALUES / 8][4];

    DEVICE u32 lane() const { return threadIdx.x % 32; }
    DEVICE u32 warp() const { return threadIdx.x / 32; }
    DEVICE u32 slice() const { return warp() % SLICES; }
    DEVICE u32 half() const { return warp() / SLICES; }
    // The address of a place in shared memory, for what takes no pointers.
    DEVICE static u32 address(u32 at) { return shared_address(dynamic_shared + at); }
    // Where a lane's row of the matrices of a 16 x 16 tile begins, of rows of so many bytes.
    DEVICE u32 tile_at(u32 row_bytes) const { return lane() % 16 * row_bytes + lane() / 16 * 16; }

    template <u32 WIDTH> DEVICE void fetch_columns(u32 to, const Columns<T>& from, u32 column, u32 chunk) const {
        // Threads beside each other bring neighbouring pieces of 16 bytes.
        constexpr u32 PIECES = WIDTH / 8, AT_ONCE = THREADS / PIECES;
        const u32 row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES, begin = chunk * CHUNK;
        const T* at = from.first + (u64)(first + begin + row) * from.width + column + 8 * piece;
        to += row * (2 * WIDTH + 16) + 16 * piece;
#pragma unroll
        for (u32 i = 0; i < (CHUNK + AT_ONCE - 1) / AT_ONCE; i++) {
            const u32 below = i * AT_ONCE;
            const bool mine = THREADS % PIECES == 0 || threadIdx.x < AT_ONCE * PIECES;
            if (mine && (CHUNK % AT_ONCE == 0 || row + below < CHUNK))
                copy_async(to + below * (2 * WIDTH + 16), at, begin + row + below < count);
            at += AT_ONCE * from.width;
        }
    }

    DEVICE void fetch(u32 chunk) const {
        const u32 to = address(chunk % 2 * STAGE), group = scan.group_column(head);
        fetch_columns<STATE_DIM>(to, in.b, group, chunk);
        if (!STATES_ONLY) fetch_columns<STATE_DIM>(to + C_AT, in.c, group, chunk);
        fetch_columns<HEAD_DIM>(to + X_AT, in.x, head * HEAD_DIM, chunk);
        copy_commit();
    }

    // What a lane's two rows of a chunk have as dt, to be read long before it is used.
    DEVICE void read_steps(f32 (&raw)[2], u32 chunk) const {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 row = chunk * CHUNK + 2 * lane() + i;
            raw[i] = row < count ? in.dt.at(first + row, head) : 0.0f;
        }
    }

    // One warp does it for all.
    DEVICE void write_steps(const f32 (&raw)[2], u32 chunk) const {
        // What decays below any f32 in one row is as good as gone; and sums stay small enough to be told apart.
        constexpr f32 LOG2E = 1.4426950408889634f, LEAST = -150.0f;
        f32 dt[2], log[2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const bool valid = chunk * CHUNK + 2 * lane() + i < count;
            dt[i] = valid ? scan.clamped(raw[i] + bias) : 0.0f;
            log[i] = valid ? fmaxf(LEAST, dt[i] * rate * LOG2E) : 0.0f;
        }
        f32 sum = log[0] + log[1];
#pragma unroll
        for (u32 lanes = 1; lanes < 32; lanes *= 2) {
            const f32 before = __shfl_up_sync(~0u, sum, lanes);
            if (lane() >= lanes) sum += before;
        }
        const f32 before = __shfl_up_sync(~0u, sum, 1), all = __shfl_sync(~0u, sum, 31);
        const f32 sums[2] = {lane() > 0 ? before + log[0] : log[0], sum};
        Steps& to = steps[chunk % 2];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 row = 2 * lane() + i;
            to.sum[row] = sums[i];
            to.grown[row] = exp2_fast(sums[i]);
            to.dt[row] = dt[i];
            to.weight[row] = dt[i] * exp2_fast(fminf(all - sums[i], 0.0f));
        }
    }

    // (c[t] b[s]) exp(cum[t] - cum[s]) dt[s] of rows s <= t, a tile at a time.
    DEVICE void write_scores(u32 stage, const Steps& step) const {
        const u32 b_at = address(stage), c_at = b_at + C_AT;
#pragma unroll
        for (u32 m = warp() % ROW_WARPS; m < TILES; m += ROW_WARPS) {
            u32 c[STATE_DIM / 16][4];
#pragma unroll
            for (u32 k = 0; k < STATE_DIM / 16; k++)
                load_matrices(c[k], c_at + 16 * m * BC_ROW + tile_at(BC_ROW) + 32 * k);
            for (u32 s = warp() / ROW_WARPS; s <= m; s += WARPS / ROW_WARPS) {
                // Two sums each, so that products do not wait for the one before.
                f32 dots[2][2][4] = {};
                const u32 from = b_at + (16 * s + lane() % 8 + lane() / 16 * 8) * BC_ROW + lane() / 8 % 2 * 16;
#pragma unroll
                for (u32 k = 0; k < STATE_DIM / 16; k++) {
                    u32 b[4];
                    load_matrices(b, from + 32 * k);
#pragma unroll
                    for (u32 n = 0; n < 2; n++)
                        Tensor<T>::multiply(
                            dots[k % 2][n], c[k][0], c[k][1], c[k][2], c[k][3], b[2 * n], b[2 * n + 1]);
                }
#pragma unroll
                for (u32 i = 0; i < 8; i++) dots[0][i / 4][i % 4] += dots[1][i / 4][i % 4];
                store_scores(dots[0], m, s, step);
            }
        }
    }

    DEVICE void store_scores(const f32 (&dots)[2][4], u32 m, u32 s, const Steps& step) const {
        const u32 g = lane() / 4, t = lane() % 4;
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            const u32 col = 16 * s + 8 * n + 2 * t;
            const f32 sum[2] = {step.sum[col], step.sum[col + 1]}, dt[2] = {step.dt[col], step.dt[col + 1]};
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u32 row = 16 * m + g + 8 * i;
                f32 score[2];
#pragma unroll
                for (u32 j = 0; j < 2; j++) {
                    const f32 decayed = dots[n][2 * i + j] * exp2_fast(fminf(step.sum[row] - sum[j], 0.0f)) * dt[j];
                    score[j] = col + j <= row ? decayed : 0.0f;
                }
                Kept<T>::store(dynamic_shared + SCORES_AT + row * SCORE_ROW + col * Kept<T>::SIZE, score[0], score[1]);
            }
        }
    }

    // y[t][channel] of this warp's values: what the state before the chunk gives.
    DEVICE void add_state(f32 (&y)[TILES][2][4], u32 stage, const Steps& step) const {
        const u32 from = address(stage + C_AT) + tile_at(BC_ROW) + half() * VALUES * 2;
#pragma unroll
        for (u32 k = 0; k < VALUES / 16; k++) {
            Carried<T> kept[2];
#pragma unroll
            for (u32 n = 0; n < 2; n++)
                kept[n].set(state[2 * k][2 * n], state[2 * k][2 * n + 1], state[2 * k + 1][2 * n],
                    state[2 * k + 1][2 * n + 1]);
#pragma unroll
            for (u32 m = 0; m < TILES; m += 2) {
                u32 c[2][4];
#pragma unroll
                for (u32 i = 0; i < 2; i++) load_matrices(c[i], from + 16 * (m + i) * BC_ROW + 32 * k);
#pragma unroll
                for (u32 part = 0; part < 2; part++)
#pragma unroll
                    for (u32 i = 0; i < 4; i++) kept[i % 2].multiply(y[m + i / 2][i % 2], c[i / 2], part);
            }
        }
#pragma unroll
        for (u32 m = 0; m < TILES; m++)
#pragma unroll
            for (u32 i = 0; i < 8; i++) y[m][i / 4][i % 4] *= step.grown[16 * m + lane() / 4 + i % 4 / 2 * 8];
    }

    // What rows of the chunk give each other; warps of a slice take turns with tiles of them.
    DEVICE void add_scores(f32 (&y)[TILES][2][4], const u32 (&x)[TILES][4]) const {
#pragma unroll
        for (u32 s = 0; s < TILES; s++) {
            if (s % HALVES != half()) continue;
#pragma unroll
            for (u32 m = s; m < TILES; m++) {
                Computed<T> scores;
                const u32 at = SCORES_AT + 16 * m * SCORE_ROW + 16 * s * Kept<T>::SIZE;
                Kept<T>::template load<SCORE_ROW>(scores, dynamic_shared + at, lane());
#pragma unroll
                for (u32 n = 0; n < 2; n++) scores.multiply(y[m][n], x[s][2 * n], x[s][2 * n + 1]);
            }
        }
    }

    DEVICE void advance(u32 stage, const u32 (&x)[TILES][4], const Steps& step) {
        const f32 left = step.left();
#pragma unroll
        for (u32 i = 0; i < VALUES / 2; i++) state[i / 4][i % 4] *= left;
        const u32 from = address(stage) + tile_at(BC_ROW) + half() * VALUES * 2;
#pragma unroll
        for (u32 k = 0; k < TILES; k++) {
            const f32* weight = step.weight + 16 * k + 2 * (lane() % 4);
            f32 fed[8];
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                // As a left factor, channels come before rows.
                const u32 pair = x[k][i % 2 * 2 + i / 2];
                fed[2 * i] = low<T>(pair) * weight[i / 2 * 8];
                fed[2 * i + 1] = high<T>(pair) * weight[i / 2 * 8 + 1];
            }
            Computed<T> left_factor;
            left_factor.set(fed);
#pragma unroll
            for (u32 j = 0; j < VALUES / 16; j++) {
                u32 b[4];
                load_matrices_transposed(b, from + 16 * k * BC_ROW + 32 * j);
                left_factor.multiply(state[2 * j], b[0], b[1]);
                left_factor.multiply(state[2 * j + 1], b[2], b[3]);
            }
        }
    }

    // The sums of the two warps of a slice; each finishes half of the rows. `c` of the chunk is used up by then.
    DEVICE void give_sums(const f32 (&y)[TILES][2][4], u32 stage) const {
#pragma unroll
        for (u32 m = 0; m < TILES; m++) {
            if (m / 2 == half()) continue;
#pragma unroll
            for (u32 n = 0; n < 2; n++)
                *sums_at(stage, 1 - half(), m, n) = make_float4(y[m][n][0], y[m][n][1], y[m][n][2], y[m][n][3]);
        }
    }
    DEVICE void take_sums(f32 (&y)[TILES][2][4], u32 stage) const {
#pragma unroll
        for (u32 m = 0; m < TILES; m++) {
            if (m / 2 != half()) continue;
#pragma unroll
            for (u32 n = 0; n < 2; n++) {
                const float4 x = *sums_at(stage, half(), m, n);
                y[m][n][0] += x.x;
                y[m][n][1] += x.y;
                y[m][n][2] += x.z;
                y[m][n][3] += x.w;
            }
        }
    }
    DEVICE float4* sums_at(u32 stage, u32 of, u32 m, u32 n) const {
        return (float4*)(dynamic_shared + stage + C_AT) + ((slice() * 2 + of) * 4 + m % 2 * 2 + n) * 32 + lane();
    }
    // The two warps of a slice.
    DEVICE void meet_beside() const { asm volatile("bar.sync %0, 64;" ::"r"(1 + slice()) : "memory"); }

    DEVICE void write_rows(const f32 (&y)[TILES][2][4], u32 stage, u32 chunk) const {
        const u32 g = lane() / 4, width = scan.heads * HEAD_DIM, column = 16 * slice() + 2 * (lane() % 4);
        const u32 begin = chunk * CHUNK + g, x_at = stage + X_AT + g * X_ROW + 2 * column;
        T* to = out + (u64)(first + begin) * width + head * HEAD_DIM + column;
#pragma unroll
        for (u32 m = 0; m < TILES; m++) {
            if (HALVES == 2 && m / 2 != half()) continue;
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const u32 row = 16 * m + 8 * i;
                if (begin + row >= count) continue;
#pragma unroll
                for (u32 n = 0; n < 2; n++) {
                    const u32 x = *(const u32*)(dynamic_shared + x_at + row * X_ROW + 16 * n);
                    const f32 one = y[m][n][2 * i] + skip * low<T>(x), other = y[m][n][2 * i + 1] + skip * high<T>(x);
                    *(u32*)(to + row * width + 8 * n) = Tensor<T>::pack(one, other);
                }
            }
        }
    }

    DEVICE void do_chunk(u32 chunk, u32 end) {
        copy_wait<0>();
        __syncthreads();
        const u32 stage = chunk % 2 * STAGE;
        const Steps& step = steps[chunk % 2];
        f32 raw[2];
        const bool more = chunk + 1 < end;
        if (more) {
            fetch(chunk + 1);
            if (warp() == STEPS_WARP) read_steps(raw, chunk + 1);
        }
        f32 y[TILES][2][4] = {};
        if (!STATES_ONLY) write_scores(stage, step);
        if (more && warp() == STEPS_WARP) write_steps(raw, chunk + 1);
        if (!STATES_ONLY) {
            add_state(y, stage, step);
            __syncthreads();
        }
        u32 x[TILES][4];
#pragma unroll
        for (u32 k = 0; k < TILES; k++)
            load_matrices_transposed(x[k], address(stage + X_AT) + 16 * k * X_ROW + tile_at(X_ROW) + 32 * slice());
        if (!STATES_ONLY) {
            add_scores(y, x);
            if (HALVES == 2) give_sums(y, stage);
        }
        advance(stage, x, step);
        if (STATES_ONLY) return;
        if (HALVES == 2) {
            meet_beside();
            take_sums(y, stage);
        }
        write_rows(y, stage, chunk);
    }

    // Calls what is given with where each pair of neighbouring values that this thread keeps lies in a head's state.
    template <typename Each> DEVICE void each_pair(StatePlace at, Each each) {
        at = at + ((16 * slice() + lane() / 4) * STATE_DIM + half() * VALUES + 2 * (lane() % 4));
#pragma unroll
        for (u32 j = 0; j < VALUES / 8; j++)
#pragma unroll
            for (u32 i = 0; i < 2; i++) each(at + (i * 8 * STATE_DIM + 8 * j), state[j] + 2 * i);
    }

    // The state times `left`, and one more.
    DEVICE void add_pairs(StatePlace at, f32 left) {
        each_pair(at, [&](StatePlace kept, f32* mine) {
            f32 more[2];
            kept.read(more);
            mine[0] = mine[0] * left + more[0];
            mine[1] = mine[1] * left + more[1];
        });
    }
    DEVICE void store_pairs(StatePlace at) {
        each_pair(at, [&](StatePlace kept, const f32* mine) { kept.write({mine[0], mine[1]}); });
    }

    DEVICE void run(const Rows& rows, const Spans& spans, u32 span) {
        constexpr u32 SIZE = HEAD_DIM * STATE_DIM;
        rate = scan.decay[head];
        bias = scan.bias(head);
        skip = scan.skip[head];
        first = rows.first;
        count = rows.count;
        const u32 chunks = (count + CHUNK - 1) / CHUNK, begin = span * chunks / spans.count,
                  end = (span + 1) * chunks / spans.count;
        fetch(begin);
        if (warp() == STEPS_WARP) {
            f32 raw[2];
            read_steps(raw, begin);
            write_steps(raw, begin);
        }
        const StatePlace kept = scan.state_at((rows.slot * scan.heads + head) * SIZE);
        // Those of this sequence's spans.
        const u64 parts = (blockIdx.y * (u64)scan.heads + head) * spans.count;
        const StatePlace states = StatePlace{(char*)spans.states, STATE_F32} + parts * SIZE;
        f32* left = spans.left + parts;
        const StatePlace first_state = STATES_ONLY || spans.count == 1 ? kept : states + (spans.count - 1) * SIZE;
#pragma unroll
        for (u32 i = 0; i < VALUES / 2; i++) state[i / 4][i % 4] = 0.0f;
        if (span == 0) {
            if (!rows.fresh) add_pairs(first_state, 0.0f);
            if (STATES_ONLY) store_pairs(states + (spans.count - 1) * SIZE);
        } else if (!STATES_ONLY) {
            for (u32 i = 0; i < span; i++) add_pairs(states + i * SIZE, left[i]);
        }
        f32 all_left = 1.0f;
        for (u32 chunk = begin; chunk < end; chunk++) {
            do_chunk(chunk, end);
            if (STATES_ONLY) all_left *= steps[chunk % 2].left();
        }
        if (STATES_ONLY) {
            store_pairs(states + span * SIZE);
            if (threadIdx.x == 0) left[span] = all_left;
        } else if (end == chunks) {
            store_pairs(kept);
        }
    }
};

// Grid: [spans of heads, all of a span together and the last one only where that is more than its state; sequences].
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    selective_scan_chunks(const Inputs<TYPE> in, const Scan scan, const Batch batch, const Spans spans, TYPE* out) {
    u32 sequence;
    const bool found = find_sequence(batch, spans.least, spans.below, blockIdx.y, sequence);
    launch_dependents();
    wait_for_inputs();
    if (!found) return;
    ChunkedScan it;
    it.in = in;
    it.scan = scan;
    it.head = blockIdx.x % scan.heads;
    it.steps = (Steps*)(dynamic_shared + STEPS_AT);
    it.out = out;
    it.run(Rows(batch, sequence), spans, blockIdx.x / scan.heads);
}
