// A block of `attention_latent.cu`: what it has in shared memory, the warps that bring it there, and products of it.
#pragma once
#include "hopper_values.cuh"
#include "latent_parts.cuh"

#define STAGES 2u
#define LOG2E 1.4426950408889634f
// How far a score may rise over what scores are taken relative to before that rises (in powers of two): 16-bit floats
// hold weights larger than 1 as exactly, and sums are seldom rescaled.
#define MOST_RISE 8.0f
#define FEED_REGISTERS 56
#define COMPUTE_REGISTERS 224

// What a block does next, as the warp that walks along the list leaves it for the others.
struct Work {
    // Tiles of keys; none: there is no more.
    u32 first, end;
    u32 first_block, start;
    // The sequence's first row in the step; the tile's first packed row, and the end of the sequence's.
    u32 first_row, first_packed, packed;
    // Keys that some row of the cluster's sees.
    u32 seen;
    // Whether this is all there is of the tile of rows, and else whether it is its begin.
    u32 whole, begins;
};

struct Latent {
    typedef TYPE T;
    static const u32 DIM = 576, HALF = WIDTH / 2;
    // Rows of shared memory are 64 columns; 8 rows of 64 columns, the same rows of the next 64, then the next 8 rows.
    static const u32 PARTS = DIM / 64, PART_BYTES = 1024, GROUP_BYTES = PARTS * 1024;
    static const u32 TILE_BYTES = TILE * DIM * 2, Q_BYTES = ROWS * DIM * 2, Q_PART_BYTES = ROWS * 128;
    static const u32 FEEDERS = 96, WARPS = 8;

    Attention attention;
    LatentList list;
    f32* parts;
    // Of the cluster's blocks.
    u32 rank;
    u32 shared_q, shared_k, shared_p, shared_f;
    u32 full_k, empty_k, full_q, empty_q, full_p, empty_p, full_work, empty_work;
    Work* works;

    DEVICE void prepare(char* shared) {
        list.heads = attention.q_heads;
        rank = BLOCKS == 1 ? 0 : cluster_rank();
        shared_q = (shared_address(shared) + 1023) / 1024 * 1024;
        shared_k = shared_q + Q_BYTES;
        shared_p = shared_k + STAGES * TILE_BYTES;
        shared_f = shared_p + ROWS * TILE * 2;
        full_k = shared_f + 128 * 8;
        empty_k = full_k + 8 * STAGES;
        full_q = empty_k + 8 * STAGES;
        empty_q = full_q + 8;
        full_p = empty_q + 8;
        empty_p = full_p + 8;
        full_work = empty_p + 8;
        empty_work = full_work + 16;
        works = (Work*)(shared + (empty_work + 16 - shared_address(shared)));
        if (threadIdx.x == 0) {
            for (u32 i = 0; i < 2; i++) {
                barrier_init(full_k + 8 * i, 1);
                barrier_init(empty_k + 8 * i, BLOCKS * WARPS);
                barrier_init(full_work + 8 * i, 1);
                barrier_init(empty_work + 8 * i, FEEDERS + 32 * WARPS);
            }
            barrier_init(full_q, FEEDERS);
            barrier_init(empty_q, 128);
            barrier_init(full_p, 128);
            barrier_init(empty_p, 128);
            barrier_init_done();
        }
        meet();
    }

    // All threads of the cluster: before they use each other's barriers, and when none will any more.
    DEVICE static void meet() {
        if constexpr (BLOCKS == 1) __syncthreads();
        else {
            __syncwarp();
            cluster_barrier();
        }
    }

    // The work of a turn, which stays where it is until all who read it have released it.
    DEVICE const Work& hold(u32 turn) const {
        barrier_wait(full_work + 8 * (turn % 2), turn / 2 % 2);
        return works[turn % 2];
    }
    DEVICE void release(u32 turn) const { barrier_arrive(empty_work + 8 * (turn % 2)); }

    // Keys of a tile that this block brings for all of its cluster; and tokens of a block of the cache that the copy
    // engine brings at once (`src/attention/attention_latent.rs`).
    static const u32 SHARE = TILE / BLOCKS;
    DEVICE u32 copied() const {
        const u32 lowest = attention.block_size & (0u - attention.block_size);
        return min(lowest, TILE / 2);
    }

    // Where this lane's rows of a tile of keys begin in the cache's matrix; past its end, where zeros come from, if no
    // row sees them.
    DEVICE u32 page(const Work& work, u32 tile) const {
        const u32 rows = copied(), first = tile * TILE + rank * SHARE + threadIdx.x % 32 * rows;
        if (threadIdx.x % 32 >= SHARE / rows || first >= work.seen) return 0x7fffff00u;
        const u32 block_size = attention.block_size;
        return list.batch.blocks[work.first_block + first / block_size] * block_size + first % block_size;
    }

    // Brings keys of some work; `count`: tiles before. What was in the cache before the step does not wait for it.
    DEVICE void feed(const TensorMap* keys, const Work& work, u32& count) const {
        const u32 lane = threadIdx.x % 32, rows = copied();
        u32 row = page(work, work.first);
#pragma unroll 1
        for (u32 tile = work.first; tile < work.end; tile++, count++) {
            const u32 stage = count % STAGES, next = tile + 1 < work.end ? page(work, tile + 1) : 0;
            if ((tile + 1) * TILE > work.start) wait_for_inputs();
            barrier_wait(empty_k + 8 * stage, count / STAGES % 2 ^ 1);
            if (lane == 0) barrier_expect(full_k + 8 * stage, TILE_BYTES);
            __syncwarp();
            if (lane < SHARE / rows) {
                const u32 to = shared_k + stage * TILE_BYTES + (rank * SHARE + lane * rows) / 8 * GROUP_BYTES;
                if constexpr (BLOCKS == 1) copy_rows(to, keys, row / 8, full_k + 8 * stage);
                else copy_rows_to(to, keys, row / 8, full_k + 8 * stage, (1 << BLOCKS) - 1);
            }
            __syncwarp();
            row = next;
        }
    }

    // Brings the tile's rows, for warps 1 to 3, which take every third. What lies where there are none is multiplied,
    // too, and not looked at.
    DEVICE void feed_queries(const T* qkv, const Work& work, u32 turn) const {
        const u32 FEEDING = FEEDERS / 32, MOST = (ROWS + FEEDING - 1) / FEEDING;
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32 - 1, mine = warp + FEEDING * lane;
        const u32 packed = work.first_packed + mine, token = packed / list.heads, head = packed - token * list.heads;
        const size_t first = (size_t)(work.first_row + token) * attention.qkv_width + head * DIM;
        const u32 rows = __popc(__ballot_sync(~0u, lane < MOST && mine < ROWS && packed < work.packed));
        wait_for_inputs();
        barrier_wait(empty_q, turn % 2 ^ 1);
#pragma unroll 4
        for (u32 i = 0; i < rows; i++) {
            const u32 row = warp + FEEDING * i;
            const T* from = qkv + __shfl_sync(~0u, first, i) + lane * 8;
            const u32 to = shared_q + lane / 8 * Q_PART_BYTES + row * 128 + (lane % 8 ^ row % 8) * 16;
#pragma unroll
            for (u32 j = 0; j < DIM / 8; j += 32)
                if (j + lane < DIM / 8) copy_async(to + j / 8 * Q_PART_BYTES, from + j * 8, true);
        }
        copy_commit();
        copy_wait<0>();
        publish_shared();
        barrier_arrive(full_q);
    }

    DEVICE Work work_of(const Piece& piece) const {
        const Batch& batch = list.batch;
        const u32 rows = batch.num_rows[piece.sequence];
        Work work;
        work.first = piece.first();
        work.end = piece.end();
        work.first_block = batch.first_block[piece.sequence];
        work.start = batch.start[piece.sequence];
        work.first_row = batch.first_row[piece.sequence];
        const u32 first = piece.row_tile * TEAM_ROWS;
        work.first_packed = first + rank * ROWS;
        work.packed = rows * list.heads;
        work.seen = work.start + (min(first + TEAM_ROWS, work.packed) - 1) / list.heads + 1;
        work.whole = piece.begins() && piece.ends();
        work.begins = piece.begins();
        return work;
    }

    DEVICE void hand_out(const Work& work, u32 turn) const {
        barrier_wait(empty_work + 8 * (turn % 2), turn / 2 % 2 ^ 1);
        if (threadIdx.x % 32 == 0) {
            works[turn % 2] = work;
            barrier_arrive(full_work + 8 * (turn % 2));
        }
        __syncwarp();
    }

    // Walks along this block's part of the list, for all others; says in `split` what the last piece is a part of.
    DEVICE void lead(const TensorMap* keys, Split* split) const {
        const u32 first = list.units_of(0), total = list.total(first),
                  teams = list.teams(total, gridDim.x / BLOCKS), team = blockIdx.x / BLOCKS;
        Split left = {0, 0, 0};
        u32 turn = 0, count = 0;
        if (team < teams) {
            const Cut cut(total, teams);
            const u32 begin = cut.first(team), end = cut.first(team + 1);
            Piece piece = list.seek(begin, end - begin, first);
            u32 unit = begin;
            while (true) {
                const Work work = work_of(piece);
                if (work.end > work.first) {
                    hand_out(work, turn++);
                    feed(keys, work, count);
                }
                unit += piece.until - piece.from;
                if (unit == end) {
                    if (piece.begins() && !piece.ends()) {
                        left.row = work.first_row * list.heads + work.first_packed;
                        left.rows = work.packed > work.first_packed ? min(ROWS, work.packed - work.first_packed) : 0;
                        left.others = cut.block_of(unit + piece.units() - piece.until - 1) - team;
                    }
                    break;
                }
                piece = list.after(piece, end - unit);
            }
        }
        Work none;
        none.first = none.end = 0;
        hand_out(none, turn);
        wait_for_inputs();
        if (threadIdx.x % 32 == 0) split[blockIdx.x] = left;
    }

    DEVICE void follow(const T* qkv) const {
        for (u32 turn = 0;; turn++) {
            const Work work = hold(turn);
            release(turn);
            if (work.end == 0) return;
            feed_queries(qkv, work, turn);
        }
    }

    // Operands that differ in constants alone are made where they are used: there are too many of them for registers.
    struct Operands {
        u32 low, high;
        DEVICE Operands(u64 first) : low((u32)first), high((u32)(first >> 32)) { asm volatile("" : "+r"(low)); }
        DEVICE u64 at(u32 bytes) const { return (u64)high << 32 | (low + bytes / 16); }
    };

    DEVICE void multiply_keys(f32 (&s)[TILE / 2], u32 stage) const {
        const Operands q(operand(shared_q, 0)), k(operand_in(shared_k + stage * TILE_BYTES, 0, GROUP_BYTES));
#pragma unroll
        for (u32 i = 0; i < DIM / 16; i++)
            multiply_shared(
                T(), s, q.at(i / 4 * Q_PART_BYTES + i % 4 * 32), k.at(i / 4 * PART_BYTES + i % 4 * 32), i);
        products_commit();
    }

    // `half`: which columns of values. They begin after the first 64 columns of keys.
    DEVICE void multiply_values(f32 (&o)[HALF / 2], const u32 (&p)[TILE / 4], u32 stage, u32 half) const {
        const u32 from = shared_k + stage * TILE_BYTES + (1 + half * (HALF / 64)) * PART_BYTES;
        const Operands v(operand_in(from, PART_BYTES, GROUP_BYTES));
#pragma unroll
        for (u32 i = 0; i < TILE / 16; i++) multiply_transposed(T(), o, p + 4 * i, v.at(i * 2 * GROUP_BYTES), true);
        products_commit();
    }

    // Weights are there before products begin, and stay where they are until these end.
    DEVICE static void settle_weights(u32 (&p)[TILE / 4]) {
#pragma unroll
        for (u32 i = 0; i < TILE / 4; i++) asm volatile("" : "+r"(p[i])::"memory");
    }

    // All blocks of the cluster have read a stage before something else is copied there.
    DEVICE static void leave(u32 empty) {
        const u32 lane = threadIdx.x % 32;
        if constexpr (BLOCKS == 1) {
            if (lane == 0) barrier_arrive(empty);
        } else if (lane < BLOCKS) barrier_arrive_after_reading(address_in(empty, lane));
    }

    // Keys past the end may never have been written: their weights are zero, but zero times NaN is not.
    DEVICE void clear_tail(const Work& work, u32 tile, u32 stage) const {
        const u32 used = work.seen - tile * TILE, rows = copied();
        if (used >= TILE) return;
        const u32 until = min(TILE, (used + rows - 1) / rows * rows);
        if (until == used) return;
        const u32 PIECES = WIDTH / 8, to = shared_k + stage * TILE_BYTES + PART_BYTES;
        for (u32 i = threadIdx.x % 128; i < (until - used) * PIECES; i += 128) {
            const u32 row = used + i / PIECES, piece = i % PIECES;
            store_shared(to + piece / 8 * PART_BYTES + row / 8 * GROUP_BYTES + row % 8 * 128 + piece % 8 * 16,
                make_uint4(0, 0, 0, 0));
        }
        publish_shared();
        named_barrier(1, 128);
    }

    // Whether keys are there, for all of a warpgroup.
    DEVICE static bool are_there(u32 barrier, u32 parity) {
        u32 all;
        asm volatile("{\n.reg .pred p, q;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "bar.red.and.pred q, 2, 128, p;\nselp.u32 %0, 1, 0, q;\n}\n"
                     : "=r"(all) : "r"(barrier), "r"(parity) : "memory");
        return all;
    }

    // Lane 4 g + t of warp w has rows 16 w + g and 16 w + g + 8: of scores columns 8 i + 2 t and the next one, of sums
    // as many dimensions.
    DEVICE static u32 row_of(u32 i) { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * i; }
};
