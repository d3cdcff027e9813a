// A step's weights on their way to a block: each warp has a ring in shared memory, into which the copy engine brings
// what the warp will multiply, in the order in which it will, over all products of the step. What is asked for does not
// depend on what the step computes, so it is on its way while blocks wait for each other.
#pragma once
#include "step.cuh"

// Elements of a row that a stage of a ring holds at most.
#define PIECE 1024u
#define PIECE_BYTES (2 * PIECE)

// A matrix of the step. Blocks share its outputs; a block's warps take turns at (row, part of k). `src/step/phase.rs`
// has its twin.
struct Weights {
    const TYPE* rows; // [halves * outputs][k], k a multiple of 8; in shared memory from this block's outputs on
    u32 outputs;
    u32 k;
    u32 halves; // 2: output i is of the rows i and outputs + i
    u32 split; // of a row, in 2^split parts
    u32 first, count; // this block's outputs; filled in by it

    DEVICE void share() {
        first = outputs * blockIdx.x / gridDim.x;
        count = outputs * (blockIdx.x + 1) / gridDim.x - first;
        rows += (size_t)first * k;
    }

    // (Row, part) pairs of this block. Rows of an output follow each other, and so do a row's parts.
    DEVICE u32 units() const { return count * halves << split; }

    // Where the columns of a pair begin, if `after` is 0, or end.
    DEVICE u32 column(u32 unit, u32 after) const {
        const u32 part = (unit & ((1u << split) - 1)) + after, pieces = (k + PIECE - 1) / PIECE;
        return min((pieces * part >> split) * PIECE, k);
    }

    DEVICE const TYPE* row(u32 unit) const {
        const u32 line = unit >> split, second = halves - 1;
        return rows + (size_t)((line & second) * outputs + (line >> second)) * k;
    }
};

struct Stream {
    const Weights* matrices;
    u32 count;
    // This warp's stages, their barriers, how many; the next to be used, and in which turn.
    u32 ring, barriers, stages, stage, turn;
    // What is asked for next: from column `at` on, to `end`.
    u32 matrix, unit, units, at, end;
    const TYPE* row;

    // `matrices` lie in shared memory.
    DEVICE void start(const Weights* all, u32 how_many, u32 rings, u32 first_barrier, u32 each) {
        const u32 warp = threadIdx.x / 32;
        matrices = all;
        count = how_many;
        ring = rings + warp * each * PIECE_BYTES;
        barriers = first_barrier + warp * each * 8;
        stages = each;
        stage = turn = 0;
        if (threadIdx.x % 32 == 0) {
#pragma unroll 1
            for (u32 i = 0; i < stages; i++) barrier_init(barriers + 8 * i, 1);
            barrier_init_done();
            publish_shared();
        }
        __syncwarp();
        matrix = 0;
        open();
#pragma unroll 1
        for (u32 i = 0; i < stages; i++) ask(i);
    }

    // Waits for the next piece, hands its address to `use`, and asks for another in its place.
    template <typename Use> DEVICE void next(Use use) {
        barrier_wait(barriers + 8 * stage, turn);
        use(ring + stage * PIECE_BYTES);
        __syncwarp();
        ask(stage);
        if (++stage == stages) {
            stage = 0;
            turn ^= 1;
        }
    }

private:
    DEVICE void ask(u32 to) {
        if (matrix == count) return;
        const u32 bytes = 2 * min(PIECE, end - at), barrier = barriers + 8 * to;
        if (threadIdx.x % 32 == 0) {
            barrier_expect(barrier, bytes);
            copy_bytes(ring + to * PIECE_BYTES, row + at, bytes, barrier);
        }
        at += PIECE;
        if (at < end) return;
        unit += WARPS;
        if (unit >= units) {
            matrix++;
            return open();
        }
        enter();
    }

    // Goes to the first unit of this warp from `matrix` on.
    DEVICE void open() {
        unit = threadIdx.x / 32;
#pragma unroll 1
        for (; matrix < count; matrix++) {
            units = matrices[matrix].units();
            if (unit < units) return enter();
        }
    }

    DEVICE void enter() {
        const Weights& w = matrices[matrix];
        at = w.column(unit, 0);
        end = w.column(unit, 1);
        row = w.row(unit);
    }
};
