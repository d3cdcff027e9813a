// The gated delta rule of sequences with one row, on Hopper; see `ops::DeltaRule`. As in selective_scan_step.cu the
// copy engine reads and writes states through a ring in shared memory, a value head's at a time. A block's threads
// have the head's state in registers between: each the same columns of some keys. A row's sums are in an order that
// the shape alone sets.
#include "delta_rule.cuh"
#include "hopper.cuh"
#include "state_piece.cuh"

// Compiled for one type and shape (`src/recurrent/delta_steps.rs`). STATE: a `StateType`.
#ifndef TYPE
#define TYPE bf16
#define STATE 2
#define KEY_DIM 128
#define VALUE_DIM 128
#endif

typedef TYPE T;
typedef StatePiece<STATE> Piece;

constexpr u32 THREADS = 256, WARPS = THREADS / 32;
// Lanes that have a key's columns, keys at once, and how often.
constexpr u32 COLUMNS = Piece::COUNT, LANES = VALUE_DIM / COLUMNS, AT_ONCE = THREADS / LANES,
              PASSES = KEY_DIM / AT_ONCE;
// Heads of the ring, and how many are asked for ahead: the others are worked on, or on their way out.
constexpr u32 STAGES = 3, AHEAD = 1;
// A head in shared memory: the state, its query and key, its values.
constexpr u32 STATE_BYTES = KEY_DIM * VALUE_DIM * Piece::SIZE, QUERY_AT = STATE_BYTES, KEY_AT = QUERY_AT + 2 * KEY_DIM,
              VALUES_AT = KEY_AT + 2 * KEY_DIM, STAGE = VALUES_AT + 2 * VALUE_DIM;

static_assert(LANES <= 32 && (LANES & (LANES - 1)) == 0, "lanes of a warp share a key");
static_assert(KEY_DIM % AT_ONCE == 0 && KEY_DIM % 32 == 0 && KEY_DIM >= 64, "whole passes");

extern __shared__ __align__(128) char dynamic_shared[];

// What warps have of a sum over keys.
struct Sums {
    f32 of[WARPS][VALUE_DIM];

    // This thread's columns, over the warp's keys.
    DEVICE void put(f32 (&x)[COLUMNS]) {
#pragma unroll
        for (u32 lanes = LANES; lanes < 32; lanes *= 2)
#pragma unroll
            for (u32 j = 0; j < COLUMNS; j++) x[j] += __shfl_xor_sync(~0u, x[j], lanes);
        if (threadIdx.x % 32 >= LANES) return;
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j += 4)
            *(float4*)&of[threadIdx.x / 32][threadIdx.x % LANES * COLUMNS + j] =
                make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]);
    }

    template <u32 COUNT> DEVICE void take(f32 (&sums)[COUNT], u32 column) const {
#pragma unroll
        for (u32 j = 0; j < COUNT; j++) sums[j] = 0.0f;
#pragma unroll
        for (u32 warp = 0; warp < WARPS; warp++) {
            const Several<f32, COUNT> x = *(const Several<f32, COUNT>*)&of[warp][column];
#pragma unroll
            for (u32 j = 0; j < COUNT; j++) sums[j] += x.x[j];
        }
    }
};

// A sequence's value head.
struct Head {
    u32 row, head;
    bool fresh;
    u64 state; // the first number

    DEVICE Head(const Rule& rule, const Batch& batch, u32 number) {
        const u32 sequence = number / rule.value_heads;
        row = batch.first_row[sequence];
        fresh = batch.start[sequence] == 0;
        head = number % rule.value_heads;
        state = ((u64)batch.slots[sequence] * rule.value_heads + head) * KEY_DIM * VALUE_DIM;
    }
};

// What a row brings to a head beside vectors, as it is read.
struct Facts {
    T dt, beta;
    f32 rate, dt_bias;
};

struct Steps {
    const Inputs<T>& in;
    const Rule& rule;
    const Batch& batch;
    u32 count;

    // The first head from `number` on that is this block's, of a sequence with one row.
    DEVICE u32 find(u32 number) const {
        while (number < count && batch.num_rows[number / rule.value_heads] != 1) number += gridDim.x;
        return number;
    }

    DEVICE static u32 barrier(u32 turn) { return shared_address(dynamic_shared) + STAGES * STAGE + turn % STAGES * 8; }
    DEVICE static u32 stage(u32 turn) { return shared_address(dynamic_shared) + turn % STAGES * STAGE; }

    // The state may be fetched before the row is there.
    DEVICE void fetch_state(const Head& head, u32 turn) const {
        barrier_expect(barrier(turn), head.fresh ? STAGE - STATE_BYTES : STAGE);
        if (!head.fresh) copy_bytes(stage(turn), rule.state_at(head.state).at, STATE_BYTES, barrier(turn));
    }
    DEVICE void fetch_row(const Head& head, u32 turn) const {
        const u32 key_head = head.head / (rule.value_heads / rule.key_heads), keys = rule.key_heads * KEY_DIM;
        const T* row = in.qkv.first + (u64)head.row * in.qkv.width;
        copy_bytes(stage(turn) + QUERY_AT, row + key_head * KEY_DIM, 2 * KEY_DIM, barrier(turn));
        copy_bytes(stage(turn) + KEY_AT, row + keys + key_head * KEY_DIM, 2 * KEY_DIM, barrier(turn));
        copy_bytes(stage(turn) + VALUES_AT, row + 2 * keys + head.head * VALUE_DIM, 2 * VALUE_DIM, barrier(turn));
    }

    DEVICE Facts facts(const Head& head) const {
        return {in.dt.first[(u64)head.row * in.dt.width + head.head],
            in.beta.first[(u64)head.row * in.beta.width + head.head], rule.rate[head.head], rule.dt_bias[head.head]};
    }
};

// What a query or key of this length is multiplied by to have length 1; each warp finds it out for itself.
DEVICE f32 inverse_length(const T* x) {
    const u32 lane = threadIdx.x % 32;
    f32 square = 0.0f;
#pragma unroll
    for (u32 i = 0; i < KEY_DIM / 64; i++) {
        const Several<T, 2> pair = ((const Several<T, 2>*)x)[lane + 32 * i];
        square = fmaf(load(pair.x[0]), load(pair.x[0]), square);
        square = fmaf(load(pair.x[1]), load(pair.x[1]), square);
    }
    return rsqrtf(warp_sum(square) + EPS);
}

// Up to the state in shared memory as it is to be kept, and sums of outputs in `given`.
DEVICE void do_head(const Rule& rule, const Head& head, const Facts& facts, char* stage, Sums& recall, Sums& given) {
    const u32 lane = threadIdx.x % LANES, first = threadIdx.x / LANES;
    const T *queries = (const T*)(stage + QUERY_AT), *keys = (const T*)(stage + KEY_AT);
    uint4* pieces = (uint4*)stage + first * LANES + lane;
    const f32 decay = expf(facts.rate * softplus(load(facts.dt) + facts.dt_bias)), beta = sigmoid(load(facts.beta));
    const f32 key_scale = inverse_length(keys), query_scale = inverse_length(queries) * rsqrtf((f32)KEY_DIM);
    f32 state[PASSES][COLUMNS] = {}, sums[COLUMNS] = {};
    if (!head.fresh) {
#pragma unroll
        for (u32 pass = 0; pass < PASSES; pass++) {
            Piece::widen(state[pass], pieces[pass * AT_ONCE * LANES]);
            const f32 key = load(keys[pass * AT_ONCE + first]) * key_scale;
#pragma unroll
            for (u32 j = 0; j < COLUMNS; j++) {
                state[pass][j] *= decay;
                sums[j] = fmaf(state[pass][j], key, sums[j]);
            }
        }
    }
    recall.put(sums);
    __syncthreads();
    f32 change[COLUMNS];
    recall.take(change, lane * COLUMNS);
    const Several<T, COLUMNS> values = ((const Several<T, COLUMNS>*)(stage + VALUES_AT))[lane];
#pragma unroll
    for (u32 j = 0; j < COLUMNS; j++) {
        change[j] = (load(values.x[j]) - change[j]) * beta;
        sums[j] = 0.0f;
    }
#pragma unroll
    for (u32 pass = 0; pass < PASSES; pass++) {
        const u32 at = pass * AT_ONCE + first;
        const f32 key = load(keys[at]) * key_scale, query = load(queries[at]) * query_scale;
#pragma unroll
        for (u32 j = 0; j < COLUMNS; j++) {
            state[pass][j] = fmaf(change[j], key, state[pass][j]);
            sums[j] = fmaf(state[pass][j], query, sums[j]);
        }
        pieces[pass * AT_ONCE * LANES] = Piece::round(state[pass]);
    }
    given.put(sums);
}

// Grid: as many blocks as run at once, or as there are heads.
extern "C" __global__ void __launch_bounds__(THREADS, STATE == STATE_F32 ? 1 : 2)
    delta_rule_step(const Inputs<T> in, const Rule rule, const Batch batch, T* out) {
    __shared__ Sums recall, given;
    const Steps steps{in, rule, batch, batch.counts[1] * rule.value_heads};
    const bool leads = threadIdx.x == 0;
    u32 number = steps.find(blockIdx.x), ahead = number;
    if (leads) {
        for (u32 turn = 0; turn < STAGES; turn++) barrier_init(Steps::barrier(turn), 1);
        barrier_init_done();
        if (number < steps.count) {
            steps.fetch_state(Head(rule, batch, number), 0);
            ahead = steps.find(number + gridDim.x);
        }
    }
    __syncthreads();
    launch_dependents();
    wait_for_inputs();
    if (number >= steps.count) return;
    Head next(rule, batch, number);
    if (leads) steps.fetch_row(next, 0);
    Facts next_facts = steps.facts(next);
    for (u32 turn = 0; number < steps.count; turn++) {
        const Head head = next;
        const Facts facts = next_facts;
        if (leads && ahead < steps.count) {
            // What was in this stage before has left it but for the last head.
            copies_read<STAGES - AHEAD - 1>();
            const Head fetched(rule, batch, ahead);
            steps.fetch_state(fetched, turn + AHEAD);
            steps.fetch_row(fetched, turn + AHEAD);
            ahead = steps.find(ahead + gridDim.x);
        }
        number = steps.find(number + gridDim.x);
        if (number < steps.count) {
            next = Head(rule, batch, number);
            next_facts = steps.facts(next);
        }
        barrier_wait(Steps::barrier(turn), turn / STAGES % 2);
        do_head(rule, head, facts, dynamic_shared + turn % STAGES * STAGE, recall, given);
        publish_shared();
        __syncthreads();
        if (leads) {
            copy_bytes_out(rule.state_at(head.state).at, Steps::stage(turn), STATE_BYTES);
            copies_commit();
        }
        if (threadIdx.x < VALUE_DIM) {
            f32 sum[1];
            given.take(sum, threadIdx.x);
            out[((u64)head.row * rule.value_heads + head.head) * VALUE_DIM + threadIdx.x] = Cast<T>::from(sum[0]);
        }
    }
    if (leads) copies_read<0>();
}
