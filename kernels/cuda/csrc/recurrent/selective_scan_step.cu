// The selective scan of sequences with one row where a head has one decay (Mamba 2), on Hopper; see `ops::Scan`. Nearly
// all of it is reading states and writing them back, so the copy engine does both: a block stays, and takes parts of
// heads' states, some channels at a time, through a ring in shared memory. While one part is worked on, the next ones
// are on their way in, and the last ones on their way out. A row's sums are in an order that the shape alone sets.
#include "hopper.cuh"
#include "scan.cuh"
#include "state_piece.cuh"

// Compiled for one type and shape (`src/recurrent/scan_steps.rs`). STATE: a `StateType`.
#ifndef TYPE
#define TYPE bf16
#define STATE 2
#define HEAD_DIM 64
#define STATE_DIM 128
#endif

typedef TYPE T;
typedef StatePiece<STATE> Piece;

constexpr u32 THREADS = 128, CHANNELS = HEAD_DIM < 32 ? HEAD_DIM : 32, PARTS = HEAD_DIM / CHANNELS;
// Pieces of a channel, pieces of a lane, lanes of a channel, channels at once, and how often.
constexpr u32 PIECES = STATE_DIM / Piece::COUNT, EACH = PIECES > 32 ? PIECES / 32 : 1, LANES = PIECES / EACH;
constexpr u32 AT_ONCE = THREADS / LANES, PASSES = CHANNELS / AT_ONCE;
// Parts of the ring, and how many are asked for ahead: the others are worked on, or on their way out.
constexpr u32 STAGES = 4, AHEAD = 2;
// A part in shared memory: the state, b, c, x.
constexpr u32 STATE_BYTES = CHANNELS * STATE_DIM * Piece::SIZE, B_AT = STATE_BYTES, C_AT = B_AT + 2 * STATE_DIM,
              X_AT = C_AT + 2 * STATE_DIM, STAGE = X_AT + 2 * CHANNELS;

static_assert(LANES <= 32 && (LANES & (LANES - 1)) == 0 && LANES * EACH == PIECES, "lanes of a warp share a channel");
static_assert(CHANNELS % AT_ONCE == 0 && CHANNELS % 8 == 0 && STATE_DIM % 8 == 0, "whole passes, 16 bytes at a time");

extern __shared__ __align__(128) char dynamic_shared[];

// Some channels of a sequence's head.
struct Part {
    u32 row, head, channel;
    bool fresh;
    u64 state; // the first number

    DEVICE Part(const Scan& scan, const Batch& batch, u32 number) {
        const u32 sequence = number / (scan.heads * PARTS), rest = number % (scan.heads * PARTS);
        row = batch.first_row[sequence];
        fresh = batch.start[sequence] == 0;
        head = rest / PARTS;
        channel = head * HEAD_DIM + rest % PARTS * CHANNELS;
        state = ((u64)batch.slots[sequence] * scan.heads * HEAD_DIM + channel) * STATE_DIM;
    }
};

// What a row brings to a head, as it is read.
struct Facts {
    T dt;
    f32 bias, rate, skip;
};

struct Steps {
    const Inputs<T>& in;
    const Scan& scan;
    const Batch& batch;
    u32 count;

    // The first part from `number` on that is this block's, of a sequence with one row.
    DEVICE u32 find(u32 number) const {
        while (number < count && batch.num_rows[number / (scan.heads * PARTS)] != 1) number += gridDim.x;
        return number;
    }

    DEVICE static u32 barrier(u32 turn) { return shared_address(dynamic_shared) + STAGES * STAGE + turn % STAGES * 8; }
    DEVICE static u32 stage(u32 turn) { return shared_address(dynamic_shared) + turn % STAGES * STAGE; }

    // The state may be fetched before the row is there.
    DEVICE void fetch_state(const Part& part, u32 turn) const {
        constexpr u32 INPUTS = STAGE - STATE_BYTES;
        barrier_expect(barrier(turn), part.fresh ? INPUTS : STAGE);
        if (!part.fresh) copy_bytes(stage(turn), scan.state_at(part.state).at, STATE_BYTES, barrier(turn));
    }
    DEVICE void fetch_row(const Part& part, u32 turn) const {
        const u32 to = stage(turn), group = scan.group_column(part.head);
        const auto columns = [&](u32 at, const Columns<T>& from, u32 column, u32 count) {
            copy_bytes(to + at, from.first + (u64)part.row * from.width + column, 2 * count, barrier(turn));
        };
        columns(B_AT, in.b, group, STATE_DIM);
        columns(C_AT, in.c, group, STATE_DIM);
        columns(X_AT, in.x, part.channel, CHANNELS);
    }

    DEVICE Facts facts(const Part& part) const {
        return {in.dt.first[(u64)part.row * in.dt.width + part.head], scan.bias(part.head), scan.decay[part.head],
            scan.skip[part.head]};
    }
};

// A lane's numbers of b or c.
DEVICE void read_values(f32 (&to)[EACH * Piece::COUNT], const char* from) {
    const u32 lane = threadIdx.x % LANES;
#pragma unroll
    for (u32 e = 0; e < EACH; e++) {
        const T* at = (const T*)from + (lane + e * LANES) * Piece::COUNT;
        const Several<T, Piece::COUNT> x = *(const Several<T, Piece::COUNT>*)at;
#pragma unroll
        for (u32 i = 0; i < Piece::COUNT; i++) to[e * Piece::COUNT + i] = load(x.x[i]);
    }
}

DEVICE void do_part(const Scan& scan, const Part& part, const Facts& facts, char* stage, T* out) {
    constexpr f32 LOG2E = 1.4426950408889634f;
    const u32 lane = threadIdx.x % LANES, first = threadIdx.x / LANES;
    const f32 dt = scan.clamped(load(facts.dt) + facts.bias), factor = exp2_fast(dt * (facts.rate * LOG2E));
    f32 b[EACH * Piece::COUNT], c[EACH * Piece::COUNT], sums[PASSES];
    read_values(b, stage + B_AT);
    read_values(c, stage + C_AT);
    const T* x = (const T*)(stage + X_AT);
#pragma unroll
    for (u32 pass = 0; pass < PASSES; pass++) {
        const u32 channel = pass * AT_ONCE + first;
        const f32 input = dt * load(x[channel]);
        f32 sum = 0.0f;
#pragma unroll
        for (u32 e = 0; e < EACH; e++) {
            uint4* at = (uint4*)stage + channel * PIECES + e * LANES + lane;
            f32 state[Piece::COUNT] = {};
            if (!part.fresh) Piece::widen(state, *at);
#pragma unroll
            for (u32 i = 0; i < Piece::COUNT; i++) {
                state[i] = fmaf(state[i], factor, input * b[e * Piece::COUNT + i]);
                sum = fmaf(state[i], c[e * Piece::COUNT + i], sum);
            }
            *at = Piece::round(state);
        }
        sums[pass] = sum;
    }
#pragma unroll
    for (u32 lanes = LANES / 2; lanes > 0; lanes /= 2)
#pragma unroll
        for (u32 pass = 0; pass < PASSES; pass++) sums[pass] += __shfl_xor_sync(~0u, sums[pass], lanes);
    if (lane != 0) return;
    T* to = out + (u64)part.row * scan.heads * HEAD_DIM + part.channel;
#pragma unroll
    for (u32 pass = 0; pass < PASSES; pass++) {
        const u32 channel = pass * AT_ONCE + first;
        to[channel] = Cast<T>::from(sums[pass] + facts.skip * load(x[channel]));
    }
}

// Grid: as many blocks as run at once, or as there are parts.
extern "C" __global__ void __launch_bounds__(THREADS)
    selective_scan_step(const Inputs<T> in, const Scan scan, const Batch batch, T* out) {
    const Steps steps{in, scan, batch, batch.counts[1] * scan.heads * PARTS};
    const bool leads = threadIdx.x == 0;
    u32 number = steps.find(blockIdx.x), ahead = number;
    if (leads) {
        for (u32 turn = 0; turn < STAGES; turn++) barrier_init(Steps::barrier(turn), 1);
        barrier_init_done();
        for (u32 turn = 0; turn < AHEAD && ahead < steps.count; turn++) {
            steps.fetch_state(Part(scan, batch, ahead), turn);
            ahead = steps.find(ahead + gridDim.x);
        }
    }
    __syncthreads();
    launch_dependents();
    wait_for_inputs();
    if (number >= steps.count) return;
    if (leads) {
        u32 fetched = number;
        for (u32 turn = 0; turn < AHEAD && fetched < steps.count; turn++) {
            steps.fetch_row(Part(scan, batch, fetched), turn);
            fetched = steps.find(fetched + gridDim.x);
        }
    }
    Part next(scan, batch, number);
    Facts next_facts = steps.facts(next);
    for (u32 turn = 0; number < steps.count; turn++) {
        const Part part = next;
        const Facts facts = next_facts;
        if (leads && ahead < steps.count) {
            // What was in this stage before has left it but for the last part.
            copies_read<STAGES - AHEAD - 1>();
            const Part fetched(scan, batch, ahead);
            steps.fetch_state(fetched, turn + AHEAD);
            steps.fetch_row(fetched, turn + AHEAD);
            ahead = steps.find(ahead + gridDim.x);
        }
        number = steps.find(number + gridDim.x);
        if (number < steps.count) {
            next = Part(scan, batch, number);
            next_facts = steps.facts(next);
        }
        barrier_wait(Steps::barrier(turn), turn / STAGES % 2);
        do_part(scan, part, facts, dynamic_shared + turn % STAGES * STAGE, out);
        publish_shared();
        __syncthreads();
        if (leads) {
            copy_bytes_out(scan.state_at(part.state).at, Steps::stage(turn), STATE_BYTES);
            copies_commit();
        }
    }
    if (leads) copies_read<0>();
}
