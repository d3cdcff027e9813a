// The warpgroup of `attention_latent.cu` that has scores and the softmax, and the one that has weights from it.
#pragma once
#include "latent_block.cuh"

// A thread's two rows.
struct LatentRows {
    u32 position[2];
    // What weights are relative to (base 2), and their sum that this thread has seen.
    f32 base[2], sum[2];
};

// The warpgroup that has scores.
struct LatentScores : Latent {
    DEVICE void begin(LatentRows& rows, const Work& work) const {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            rows.position[i] = work.start + min(work.first_packed + row_of(i), work.packed - 1) / attention.q_heads;
            rows.base[i] = -infinity();
            rows.sum[i] = 0.0f;
        }
    }

    // Scores to weights, and what earlier sums shrink by.
    DEVICE void weigh(f32 (&s)[TILE / 2], u32 (&p)[TILE / 4], f32 (&shrink)[2], LatentRows& rows, u32 tile) const {
        const u32 first = tile * TILE + 2 * (threadIdx.x % 4);
        const f32 scale = attention.scale * LOG2E;
        f32 base[2], sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (u32 row = 0; row < 2; row++) {
            const int until = (int)(rows.position[row] - first);
            if (until < (int)TILE) {
#pragma unroll
                for (u32 i = 2 * row; i < TILE / 2; i += 4)
#pragma unroll
                    for (u32 j = 0; j < 2; j++)
                        if ((int)(i / 4 * 8 + j) > until) s[i + j] = -infinity();
            }
            f32 most = fmaxf(s[2 * row], s[2 * row + 1]);
#pragma unroll
            for (u32 i = 2 * row + 4; i < TILE / 2; i += 4) most = fmaxf(most, fmaxf(s[i], s[i + 1]));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
            most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * scale;
            const bool rises = most > rows.base[row] + MOST_RISE;
            shrink[row] = rises ? exp2_fast(rows.base[row] - most) : 1.0f;
            if (rises) rows.base[row] = most;
            base[row] = rows.base[row] == -infinity() ? 0.0f : rows.base[row];
        }
#pragma unroll
        for (u32 i = 0; i < TILE / 2; i += 2) {
            const u32 row = i / 2 % 2;
            const f32 a = exp2_fast(__fmaf_rn(s[i], scale, -base[row])),
                      b = exp2_fast(__fmaf_rn(s[i + 1], scale, -base[row]));
            sum[row] += a + b;
            p[i / 2] = Tensor<T>::pack(a, b);
        }
#pragma unroll
        for (u32 row = 0; row < 2; row++) rows.sum[row] = rows.sum[row] * shrink[row] + sum[row];
    }

    // Two numbers of its rows for the thread of the other warpgroup that has the same rows; `told`: how often before.
    DEVICE void tell(const f32 (&factor)[2]) const {
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};"
                     ::"r"(shared_f + threadIdx.x % 128 * 8), "f"(factor[0]), "f"(factor[1]) : "memory");
        barrier_arrive(full_p);
    }
    DEVICE void tell(const u32 (&p)[TILE / 4], const f32 (&factor)[2], u32& told) const {
        barrier_wait(empty_p, told++ % 2 ^ 1);
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            store_shared(shared_p + (i * 128 + threadIdx.x % 128) * 16,
                make_uint4(p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]));
        tell(factor);
    }

    DEVICE static void rescale(f32 (&o)[HALF / 2], const f32 (&shrink)[2]) {
        if (!__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f)) return;
#pragma unroll
        for (u32 i = 0; i < HALF / 2; i++) o[i] *= shrink[i / 2 % 2];
    }

    // Four lanes' numbers, each lane's in a row, transposed.
    DEVICE static uint4 transpose_four(u32 a, u32 b, u32 c, u32 d) {
        const u32 t = threadIdx.x % 4;
        const u32 first = __shfl_xor_sync(~0u, t & 1 ? a : b, 1), second = __shfl_xor_sync(~0u, t & 1 ? c : d, 1);
        if (t & 1) a = first, c = second;
        else b = first, d = second;
        const u32 third = __shfl_xor_sync(~0u, t & 2 ? a : c, 2), fourth = __shfl_xor_sync(~0u, t & 2 ? b : d, 2);
        return t & 2 ? make_uint4(third, fourth, c, d) : make_uint4(a, b, third, fourth);
    }

    // Rows' results.
    DEVICE void write_out(T* out, const Work& work, const f32 (&o)[HALF / 2], const f32 (&factor)[2], u32 half) const {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 row = row_of(i);
            const size_t at = (size_t)work.first_row * attention.q_heads + work.first_packed + row;
            uint4* to = (uint4*)(out + at * WIDTH + half * HALF + 8 * (threadIdx.x % 4));
#pragma unroll
            for (u32 d = 0; d < HALF / 8; d += 4) {
                u32 x[4];
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    const f32* pair = o + 4 * (d + j) + 2 * i;
                    x[j] = Tensor<T>::pack(pair[0] * factor[i], pair[1] * factor[i]);
                }
                const uint4 columns = transpose_four(x[0], x[1], x[2], x[3]);
                if (work.first_packed + row < work.packed) to[d] = columns;
            }
        }
    }

    // What is left of them for the merging kernel.
    DEVICE void write_part(const Work& work, const f32 (&o)[HALF / 2], u32 half) const {
        const LatentPart part =
            work.begins ? LatentPart::begun(parts, blockIdx.x) : LatentPart::ended(parts, blockIdx.x);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const u32 row = row_of(i);
            if (work.first_packed + row >= work.packed) continue;
            f32* to = part.sums(row) + half * HALF + 2 * (threadIdx.x % 4);
#pragma unroll
            for (u32 d = 0; d < HALF / 8; d++)
                *(float2*)(to + 8 * d) = make_float2(o[4 * d + 2 * i], o[4 * d + 2 * i + 1]);
        }
    }

    DEVICE void write(T* out, const Work& work, const f32 (&o)[HALF / 2], const f32 (&factor)[2], u32 half) const {
        if (work.whole) write_out(out, work, o, factor, half);
        else write_part(work, o, half);
    }

    // What sums are multiplied by; of a part, leaves what they are relative to.
    DEVICE void finish(f32 (&factor)[2], const LatentRows& rows, const Work& work) const {
        const LatentPart part =
            work.begins ? LatentPart::begun(parts, blockIdx.x) : LatentPart::ended(parts, blockIdx.x);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            f32 sum = rows.sum[i];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            factor[i] = attention.v_scale / sum;
            if (!work.whole && threadIdx.x % 4 == 0) {
                *part.base(row_of(i)) = rows.base[i];
                *part.weight(row_of(i)) = sum;
            }
        }
    }

    // The queries are not read again after the last tile of keys.
    DEVICE void leave_queries(const Work& work, u32 tile) const {
        if (tile + 1 == work.end) barrier_arrive(empty_q);
    }

    // Tiles of keys of some work; `count`: tiles before.
    DEVICE void attend(f32 (&o)[HALF / 2], LatentRows& rows, const Work& work, u32& count, u32& told) const {
        f32 s[TILE / 2], shrink[2];
        u32 p[TILE / 4], stage = count % STAGES;
        barrier_wait(full_k + 8 * stage, count / STAGES % 2);
        clear_tail(work, work.first, stage);
        settle(s);
        products_begin();
        multiply_keys(s, stage);
        products_wait<0>();
        settle(s);
        leave_queries(work, work.first);
        weigh(s, p, shrink, rows, work.first);
        tell(p, shrink, told);
#pragma unroll 1
        for (u32 tile = work.first + 1; tile < work.end; tile++) {
            u32 weights[TILE / 4];
            const u32 next = (count + 1) % STAGES, full = full_k + 8 * next, parity = (count + 1) / STAGES % 2;
            if (are_there(full, parity)) {
                clear_tail(work, tile, next);
                settle(s);
                settle(o);
                settle_weights(p);
                products_begin();
                multiply_keys(s, next);
                multiply_values(o, p, stage, 0);
                products_wait<1>();
                settle(s);
                leave_queries(work, tile);
                weigh(s, weights, shrink, rows, tile);
                products_wait<0>();
                settle(o);
                settle_weights(p);
                leave(empty_k + 8 * stage);
            } else {
                // The copy engine has a stage to fill sooner.
                settle(o);
                settle_weights(p);
                products_begin();
                multiply_values(o, p, stage, 0);
                products_wait<0>();
                settle(o);
                leave(empty_k + 8 * stage);
                barrier_wait(full, parity);
                clear_tail(work, tile, next);
                settle(s);
                products_begin();
                multiply_keys(s, next);
                products_wait<0>();
                settle(s);
                leave_queries(work, tile);
                weigh(s, weights, shrink, rows, tile);
            }
            tell(weights, shrink, told);
            rescale(o, shrink);
#pragma unroll
            for (u32 i = 0; i < TILE / 4; i++) p[i] = weights[i];
            stage = next;
            count++;
        }
        settle(o);
        settle_weights(p);
        products_begin();
        multiply_values(o, p, stage, 0);
        products_wait<0>();
        settle(o);
        leave(empty_k + 8 * stage);
        count++;
    }

    DEVICE void run(T* out) const {
        u32 count = 0, told = 0;
        wait_for_inputs();
        for (u32 turn = 0;; turn++) {
            const Work& work = hold(turn);
            if (work.end == 0) return;
            LatentRows rows;
            f32 o[HALF / 2] = {}, factor[2];
            begin(rows, work);
            barrier_wait(full_q, turn % 2);
            attend(o, rows, work, count, told);
            finish(factor, rows, work);
            barrier_wait(empty_p, told++ % 2 ^ 1);
            tell(factor);
            write(out, work, o, factor, 0);
            release(turn);
        }
    }
};

// The warpgroup that has weights from the other one.
struct LatentValues : LatentScores {
    DEVICE void hear(f32 (&factor)[2]) const {
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(factor[0]), "=f"(factor[1]) : "r"(shared_f + threadIdx.x % 128 * 8) : "memory");
    }

    DEVICE void hear(u32 (&p)[TILE / 4]) const {
#pragma unroll
        for (u32 i = 0; i < 4; i++)
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(p[4 * i]), "=r"(p[4 * i + 1]), "=r"(p[4 * i + 2]), "=r"(p[4 * i + 3])
                         : "r"(shared_p + (i * 128 + threadIdx.x % 128) * 16) : "memory");
    }

    DEVICE void run(T* out) const {
        u32 count = 0, heard = 0;
        wait_for_inputs();
        for (u32 turn = 0;; turn++) {
            const Work& work = hold(turn);
            if (work.end == 0) return;
            f32 o[HALF / 2] = {}, factor[2];
#pragma unroll 1
            for (u32 tile = work.first; tile < work.end; tile++, count++) {
                const u32 stage = count % STAGES;
                u32 p[TILE / 4];
                barrier_wait(full_p, heard++ % 2);
                hear(p);
                hear(factor);
                barrier_arrive(empty_p);
                rescale(o, factor);
                barrier_wait(full_k + 8 * stage, count / STAGES % 2);
                settle(o);
                settle_weights(p);
                products_begin();
                multiply_values(o, p, stage, 1);
                products_wait<0>();
                settle(o);
                leave(empty_k + 8 * stage);
            }
            barrier_wait(full_p, heard++ % 2);
            hear(factor);
            barrier_arrive(empty_p);
            write(out, work, o, factor, 1);
            release(turn);
        }
    }

    // Zeros for rows of nobody.
    DEVICE void clear_padding(T* out, u32 rows) const {
        const u32 pieces = attention.q_heads * (WIDTH / 8);
        for (u32 row = list.batch.counts[0] + blockIdx.x; row < rows; row += gridDim.x)
            for (u32 i = threadIdx.x % 128; i < pieces; i += 128)
                ((uint4*)(out + (size_t)row * attention.q_heads * WIDTH))[i] = make_uint4(0, 0, 0, 0);
    }
};
