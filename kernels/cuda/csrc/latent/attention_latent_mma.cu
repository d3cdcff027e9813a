// `attention_latent.cu` for the tensor cores of any device from compute capability 8.0 on, whose parts
// `attention_latent_merge.cu` adds up as well.
//
// TILE_ROWS is 16 or 64. Tiles of 32 keys come through two stages of shared memory, with rows of 1,152 bytes, pieces
// swizzled. A tile's scores are divided among all warps: 16 rows and 16 keys each, and where rows are few, half of the
// elements of keys. They meet in shared memory, where as many threads a row as there are make weights of them. Then
// each warp has 16 rows, and its part of the columns of values.
#ifndef TYPE
#define TYPE bf16
#define TILE_ROWS 64
#endif
#define TILE_KEYS 32
#include "latent_parts.cuh"
#include "mma.cuh"

#define LOG2E 1.4426950408889634f
// With few rows a block has fewer warps, and its scores less memory: every device has room for it.
#define THREADS (TILE_ROWS == 16 ? 128u : 256u)

struct LatentMma {
    typedef TYPE T;
    static const u32 DIM = 576, STAGES = 2, WARPS = THREADS / 32;
    static const u32 ROW_BYTES = DIM * 2, PIECES = DIM / 8;
    static const u32 TILE_BYTES = TILE * ROW_BYTES, Q_BYTES = ROWS * ROW_BYTES;
    // Warps of a tile's rows, of its keys and of the elements of these; steps of 16 elements of a warp.
    static const u32 DOWN = ROWS / 16, ACROSS = TILE / 16, SPLITS = WARPS / (DOWN * ACROSS), STEPS = DIM / 16 / SPLITS;
    // Rows of scores and of weights are padded for their banks' sake.
    static const u32 SCORE_ROW = TILE + 4, WEIGHT_BYTES = TILE * 2 + 16;
    // Columns of values of a warp; threads and keys of each of a row in its softmax.
    static const u32 COLUMNS = WIDTH / (WARPS / DOWN), SHARERS = THREADS / ROWS, EACH = TILE / SHARERS;

    Attention attention;
    LatentList list;
    f32* parts;
    u32 shared_q, shared_k, shared_p;
    f32* scores;
    // Of each row: what sums shrink by, in the end what they are multiplied by.
    f32* factors;
    // Where keys of a tile lie in the cache, for two tiles.
    u32* places;

    f32 o[COLUMNS / 8][4];

    DEVICE void prepare(char* shared) {
        list.heads = attention.q_heads;
        shared_q = shared_address(shared);
        shared_k = shared_q + Q_BYTES;
        shared_p = shared_k + STAGES * TILE_BYTES;
        scores = (f32*)(shared + Q_BYTES + STAGES * TILE_BYTES + ROWS * WEIGHT_BYTES);
        factors = scores + SPLITS * ROWS * SCORE_ROW;
        places = (u32*)(factors + ROWS);
    }

    DEVICE static u32 at(u32 row, u32 piece) {
        return row * ROW_BYTES + piece / 8 * 128 + (piece % 8 ^ row % 8) * 16;
    }

    // Some work of the block: a piece of the list, and its sequence.
    struct Work {
        Piece piece;
        u32 start, first_row, first_block, first_packed, packed, seen;
    };

    DEVICE Work work_of(const Piece& piece) const {
        const Batch& batch = list.batch;
        Work work;
        work.piece = piece;
        work.start = batch.start[piece.sequence];
        work.first_row = batch.first_row[piece.sequence];
        work.first_block = batch.first_block[piece.sequence];
        work.first_packed = piece.row_tile * ROWS;
        work.packed = batch.num_rows[piece.sequence] * list.heads;
        work.seen = work.start + (min(work.first_packed + ROWS, work.packed) - 1) / list.heads + 1;
        return work;
    }

    // Finds out where a tile's keys lie: NOBODY for those that no row sees.
    DEVICE void place(const Work& work, u32 tile) const {
        if (threadIdx.x >= TILE || tile >= work.piece.end()) return;
        const u32 key = tile * TILE + threadIdx.x, size = attention.block_size;
        places[tile % 2 * TILE + threadIdx.x] =
            key < work.seen ? list.batch.blocks[work.first_block + key / size] * size + key % size : NOBODY;
    }

    // Starts copying a tile of keys whose places are known; zeros for those that no row sees.
    DEVICE void fetch(const T* keys, const Work& work, u32 tile) const {
        if (tile < work.piece.end()) {
#pragma unroll
            for (u32 i = threadIdx.x; i < TILE * PIECES; i += THREADS) {
                const u32 key = i / PIECES, piece = i % PIECES, row = places[tile % 2 * TILE + key];
                const bool valid = row != NOBODY;
                copy_async(shared_k + tile % STAGES * TILE_BYTES + at(key, piece),
                    keys + (valid ? (size_t)row * DIM + piece * 8 : 0), valid);
            }
        }
        copy_commit();
    }

    DEVICE void fetch_queries(const T* qkv, const Work& work) const {
        for (u32 i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
            const u32 row = i / PIECES, piece = i % PIECES;
            // Rows past the sequence's end are its last one.
            const u32 packed = min(work.first_packed + row, work.packed - 1);
            const T* from = qkv + (size_t)(work.first_row + packed / list.heads) * attention.qkv_width +
                packed % list.heads * DIM + piece * 8;
            copy_async(shared_q + at(row, piece), from, true);
        }
    }

    // This warp's scores, to shared memory.
    DEVICE void multiply_keys(u32 tile) const {
        const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
        const u32 down = warp % DOWN, across = warp / DOWN % ACROSS, split = warp / (DOWN * ACROSS);
        const u32 row = down * 16 + lane % 16, key = across * 16 + lane % 8 + lane / 16 * 8;
        const u32 from = shared_k + tile % STAGES * TILE_BYTES;
        f32 s[2][4] = {};
#pragma unroll 6
        for (u32 i = 0; i < STEPS; i++) {
            const u32 step = split * STEPS + i;
            u32 a[4], b[4];
            load_matrices(a, shared_q + at(row, 2 * step + lane / 16));
            load_matrices(b, from + at(key, 2 * step + lane / 8 % 2));
            Tensor<T>::multiply(s[0], a[0], a[1], a[2], a[3], b[0], b[1]);
            Tensor<T>::multiply(s[1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
        f32* to = scores + (split * ROWS + down * 16 + g) * SCORE_ROW + across * 16 + 2 * t;
#pragma unroll
        for (u32 j = 0; j < 2; j++)
#pragma unroll
            for (u32 half = 0; half < 2; half++)
                *(float2*)(to + half * 8 * SCORE_ROW + 8 * j) = make_float2(s[j][2 * half], s[j][2 * half + 1]);
    }

    // This thread's part of a row's softmax: what weights are relative to (base 2), and the sum of those it has seen.
    struct Softmax {
        u32 position;
        f32 base, sum;
    };

    DEVICE void weigh(Softmax& softmax, u32 tile) const {
        const u32 row = threadIdx.x / SHARERS, first = threadIdx.x % SHARERS * EACH;
        const f32 scale = attention.scale * LOG2E;
        f32 s[EACH], most = -infinity();
#pragma unroll
        for (u32 i = 0; i < EACH; i++) {
            f32 x = 0.0f;
#pragma unroll
            for (u32 split = 0; split < SPLITS; split++) x += scores[(split * ROWS + row) * SCORE_ROW + first + i];
            s[i] = tile * TILE + first + i > softmax.position ? -infinity() : x * scale;
            most = fmaxf(most, s[i]);
        }
#pragma unroll
        for (u32 lanes = 1; lanes < SHARERS; lanes *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, lanes));
        most = fmaxf(most, softmax.base);
        const f32 base = most == -infinity() ? 0.0f : most, shrink = exp2_fast(softmax.base - base);
        softmax.base = most;
        softmax.sum *= shrink;
        u32 p[EACH / 2];
#pragma unroll
        for (u32 i = 0; i < EACH; i += 2) {
            const f32 a = exp2_fast(s[i] - base), b = exp2_fast(s[i + 1] - base);
            softmax.sum += a + b;
            p[i / 2] = Tensor<T>::pack(a, b);
        }
#pragma unroll
        for (u32 i = 0; i < EACH / 2; i++)
            asm volatile("st.shared.u32 [%0], %1;"
                         ::"r"(shared_p + row * WEIGHT_BYTES + first * 2 + i * 4), "r"(p[i]) : "memory");
        if (threadIdx.x % SHARERS == 0) factors[row] = shrink;
    }

    // Of this lane's two rows.
    DEVICE void rescale() {
        const u32 row = threadIdx.x / 32 % DOWN * 16 + threadIdx.x % 32 / 4;
        const f32 shrink[2] = {factors[row], factors[row + 8]};
        if (!__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) return;
#pragma unroll
        for (u32 d = 0; d < COLUMNS / 8; d++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) o[d][i] *= shrink[i / 2];
    }

    DEVICE u32 first_column() const { return threadIdx.x / 32 / DOWN * COLUMNS; }

    DEVICE void multiply_values(u32 tile) {
        const u32 lane = threadIdx.x % 32, row = threadIdx.x / 32 % DOWN * 16 + lane % 16;
        // Values are the ends of keys.
        const u32 from = shared_k + tile % STAGES * TILE_BYTES, first = (DIM - WIDTH + first_column()) / 8 + lane / 16;
#pragma unroll
        for (u32 k = 0; k < TILE / 16; k++) {
            u32 a[4];
            load_matrices(a, shared_p + row * WEIGHT_BYTES + k * 32 + lane / 16 * 16);
#pragma unroll
            for (u32 d = 0; d < COLUMNS / 16; d++) {
                u32 b[4];
                load_matrices_transposed(b, from + at(k * 16 + lane % 16, first + 2 * d));
                Tensor<T>::multiply(o[2 * d], a[0], a[1], a[2], a[3], b[0], b[1]);
                Tensor<T>::multiply(o[2 * d + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
            }
        }
    }

    // Rows' results, or what is left of them for the merging kernel.
    DEVICE void write(T* out, const Work& work, const Softmax& softmax) {
        const bool whole = work.piece.begins() && work.piece.ends();
        const LatentPart part = work.piece.begins() ? LatentPart::begun(parts, blockIdx.x)
                                                    : LatentPart::ended(parts, blockIdx.x);
        f32 sum = softmax.sum;
#pragma unroll
        for (u32 lanes = 1; lanes < SHARERS; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
        __syncthreads();
        if (threadIdx.x % SHARERS == 0) {
            const u32 row = threadIdx.x / SHARERS;
            factors[row] = attention.v_scale / sum;
            if (!whole) {
                *part.base(row) = softmax.base;
                *part.weight(row) = sum;
            }
        }
        __syncthreads();
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 row = threadIdx.x / 32 % DOWN * 16 + threadIdx.x % 32 / 4 + 8 * i;
            const u32 column = first_column() + 2 * (threadIdx.x % 4);
            if (work.first_packed + row >= work.packed) continue;
            const size_t at = (size_t)work.first_row * list.heads + work.first_packed + row;
            u32* to = (u32*)(out + at * WIDTH + column);
            f32* left = part.sums(row) + column;
            const f32 factor = factors[row];
#pragma unroll
            for (u32 d = 0; d < COLUMNS / 8; d++) {
                if (whole) to[4 * d] = Tensor<T>::pack(o[d][2 * i] * factor, o[d][2 * i + 1] * factor);
                else *(float2*)(left + 8 * d) = make_float2(o[d][2 * i], o[d][2 * i + 1]);
            }
        }
    }

    DEVICE void attend(T* out, const T* qkv, const T* keys, const Work& work) {
        const u32 first = work.piece.first(), end = work.piece.end();
        // Nobody reads what the last piece had.
        __syncthreads();
        place(work, first);
        place(work, first + 1);
        __syncthreads();
        fetch_queries(qkv, work);
        fetch(keys, work, first);
        Softmax softmax = {0, -infinity(), 0.0f};
        softmax.position =
            work.start + min(work.first_packed + threadIdx.x / SHARERS, work.packed - 1) / list.heads;
#pragma unroll
        for (u32 d = 0; d < COLUMNS / 8; d++)
#pragma unroll
            for (u32 i = 0; i < 4; i++) o[d][i] = 0.0f;
#pragma unroll 1
        for (u32 tile = first; tile < end; tile++) {
            copy_wait<0>();
            __syncthreads();
            fetch(keys, work, tile + 1);
            place(work, tile + 2);
            multiply_keys(tile);
            __syncthreads();
            weigh(softmax, tile);
            __syncthreads();
            rescale();
            multiply_values(tile);
        }
        write(out, work, softmax);
    }

    // Zeros for rows of nobody.
    DEVICE void clear_padding(T* out, u32 rows) const {
        const u32 pieces = list.heads * (WIDTH / 8);
        for (u32 row = list.batch.counts[0] + blockIdx.x; row < rows; row += gridDim.x)
            for (u32 i = threadIdx.x; i < pieces; i += THREADS)
                ((uint4*)(out + (size_t)row * list.heads * WIDTH))[i] = make_uint4(0, 0, 0, 0);
    }

    // This block's part of the list.
    DEVICE void run(T* out, const T* qkv, const T* keys, Split* split) {
        const u32 first = list.units_of(0), total = list.total(first), blocks = list.teams(total, gridDim.x);
        Split left = {0, 0, 0};
        if (blockIdx.x < blocks) {
            const Cut cut(total, blocks);
            u32 unit = cut.first(blockIdx.x);
            const u32 end = cut.first(blockIdx.x + 1);
            Piece piece = list.seek(unit, end - unit, first);
            wait_for_inputs();
            while (true) {
                const Work work = work_of(piece);
                if (piece.end() > piece.first()) attend(out, qkv, keys, work);
                unit += piece.until - piece.from;
                if (unit == end) {
                    if (piece.begins() && !piece.ends()) {
                        left.row = work.first_row * list.heads + work.first_packed;
                        left.rows = min(ROWS, work.packed - work.first_packed);
                        left.others = cut.block_of(unit + piece.units() - piece.until - 1) - blockIdx.x;
                    }
                    break;
                }
                piece = list.after(piece, end - unit);
            }
        }
        wait_for_inputs();
        if (threadIdx.x == 0) split[blockIdx.x] = left;
    }
};

extern __shared__ __align__(128) char dynamic_shared[];

// Grid: as many blocks as multiprocessors; the rest as in `attention_latent.cu`.
extern "C" __global__ void __launch_bounds__(THREADS) attention_latent_mma(TYPE* out, const TYPE* qkv,
    const TYPE* keys, f32* parts, Split* splits, const Batch batch, const Attention attention, u32 sequences,
    u32 rows) {
    LatentMma it;
    it.attention = attention;
    it.list.batch = batch;
    it.list.sequences = sequences;
    it.parts = parts;
    it.prepare(dynamic_shared);
    launch_dependents();
    it.run(out, qkv, keys, splits);
    it.clear_padding(out, rows);
}
