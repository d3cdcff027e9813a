// Products of a step's one row with a matrix: every block has the row in shared memory, and multiplies its outputs'
// rows of the matrix.
#pragma once
#include "step_attention.cuh"
#include "stream.cuh"

// (Row, part) pairs of a block whose sums have room.
#define SUMS 1024

// Starts bringing a norm's weights to shared memory, behind the normed row: they are there before the row is. Each
// thread brings its own.
DEVICE void fetch_scales(const Phase& phase, TYPE* row) {
    if (phase.input != NORMED || !phase.norm.weight) return;
    for (u32 at = threadIdx.x * 4; at < phase.width; at += THREADS * 4)
        copy_async(shared_address(row + phase.width) + 4 * at, phase.norm.weight + at, true);
}

// The norm of a row of f32.
DEVICE void load_normed(const Phase& phase, TYPE* row) {
    const f32* from = (const f32*)phase.from;
    float4 x[TIMES];
    f32 sum = 0.0f;
#pragma unroll
    for (u32 i = 0; i < TIMES; i++) {
        const u32 at = (i * THREADS + threadIdx.x) * 4;
        x[i] = at < phase.width ? __ldcg((const float4*)(from + at)) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    f32 mean = 0.0f;
    if (phase.norm.subtract_mean) {
#pragma unroll
        for (u32 i = 0; i < TIMES; i++) sum += x[i].x + x[i].y + x[i].z + x[i].w;
        mean = block_sum(sum) / phase.width;
        sum = 0.0f;
    }
#pragma unroll
    for (u32 i = 0; i < TIMES; i++) {
        if ((i * THREADS + threadIdx.x) * 4 >= phase.width) break;
        const f32 a = x[i].x - mean, b = x[i].y - mean, c = x[i].z - mean, d = x[i].w - mean;
        sum += a * a + b * b + c * c + d * d;
    }
    const f32 factor = 1.0f / sqrtf(block_sum(sum) / phase.width + phase.norm.eps);
    copy_wait<1>();
#pragma unroll
    for (u32 i = 0; i < TIMES; i++) {
        const u32 at = (i * THREADS + threadIdx.x) * 4;
        if (at >= phase.width) break;
        const f32* shift = phase.norm.bias;
        const float4 add = shift ? *(const float4*)(shift + at) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        const float4 scale = phase.norm.weight ? *(const float4*)((const f32*)(row + phase.width) + at)
                                               : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        store_four(
            row + at, (x[i].x - mean) * factor * scale.x + add.x, (x[i].y - mean) * factor * scale.y + add.y,
            (x[i].z - mean) * factor * scale.z + add.z, (x[i].w - mean) * factor * scale.w + add.w);
    }
}

// Brings a product's input to shared memory. `splits`: of the heads that attention left.
DEVICE void load_input(const Phase& phase, const Step& step, u32 splits, TYPE* row) {
    if (phase.input == NORMED) {
        load_normed(phase, row);
    } else if (phase.input == ATTENDED && splits > 1 && splits <= FEW_SPLITS) {
#pragma unroll 1
        for (u32 i = threadIdx.x * 4; i < phase.width; i += THREADS * 4) {
            const float4 x = join_parts(step, phase.q_heads, splits, i);
            store_four(row + i, x.x, x.y, x.z, x.w);
        }
    } else {
#pragma unroll 2
        for (u32 i = threadIdx.x * 8; i < phase.width; i += THREADS * 8)
            *(uint4*)(row + i) = __ldcg((const uint4*)((const TYPE*)phase.from + i));
    }
    __syncthreads();
}

// A warp's sum of products, by tensor cores: lane 4 g + t reads the same 16 bytes of both rows, which are a part of
// line g of one operand and of column g of the other, so the sums of a line with its own column are what is wanted.
// That the others are made too costs nothing.
struct Sums {
    f32 x[2][4];
    // A piece of the row, and where in it that begins.
    uint4 row[PIECE / 256];
    u32 at;

    DEVICE Sums() { at = ~0u; }

    DEVICE void clear() {
#pragma unroll
        for (u32 i = 0; i < 4; i++) x[0][i] = x[1][i] = 0.0f;
    }

    DEVICE static uint4 load(u32 from, u32 i, u32 len) {
        const u32 first = 256 * i + threadIdx.x % 32 * 8;
        return first < len ? load_shared(from + 2 * first) : make_uint4(0, 0, 0, 0);
    }

    // The piece of the row from `begin` on; its weights follow.
    DEVICE void turn_to(u32 from, u32 begin, u32 len) {
        if (at == begin) return;
        at = begin;
#pragma unroll
        for (u32 i = 0; i < PIECE / 256; i++) row[i] = load(from + 2 * begin, i, len);
    }

    DEVICE void add(u32 weights, u32 len) {
        uint4 w[PIECE / 256];
#pragma unroll
        for (u32 i = 0; i < PIECE / 256; i++) w[i] = load(weights, i, len);
#pragma unroll
        for (u32 i = 0; i < PIECE / 256; i++) {
            Tensor<TYPE>::multiply(x[0], w[i].x, 0, w[i].y, 0, row[i].x, row[i].y);
            Tensor<TYPE>::multiply(x[1], w[i].z, 0, w[i].w, 0, row[i].z, row[i].w);
        }
    }

    DEVICE f32 all() const {
        const u32 g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
        const f32 own = g % 2 ? x[0][1] + x[1][1] : x[0][0] + x[1][0];
        return warp_sum(g / 2 == t ? own : 0.0f);
    }
};

// This block's part of a product, and what is there before its input is.
struct Product {
    // Of this thread's output: what it is added to, and what is added.
    f32 before, bias;

    DEVICE Product(const Phase& phase, const Weights& w) {
        const u32 mine = w.first + threadIdx.x;
        const bool has = threadIdx.x < w.count;
        before = has && phase.output == ADDED ? __ldcg((const f32*)phase.to + mine) : 0.0f;
        bias = has && phase.bias ? phase.bias[mine] : 0.0f;
    }

    // Multiplies the row at `x` (shared memory) by this block's rows of the matrix. `sums` has room for them.
    DEVICE void run(const Phase& phase, const Weights& w, Stream& stream, u32 x, f32* sums) const {
        const u32 units = w.units();
        Sums lanes;
#pragma unroll 1
        for (u32 unit = threadIdx.x / 32; unit < units; unit += WARPS) {
            const u32 end = w.column(unit, 1);
            lanes.clear();
#pragma unroll 1
            for (u32 at = w.column(unit, 0); at < end; at += PIECE) {
                const u32 len = min(PIECE, end - at);
                lanes.turn_to(x, at, len);
                stream.next([&](u32 piece) { lanes.add(piece, len); });
            }
            const f32 sum = lanes.all();
            if (threadIdx.x % 32 != 0) continue;
            if (phase.output == WIDE) {
                const u32 at = w.first + unit;
                ((f32*)phase.to)[at] = sum + (phase.bias ? phase.bias[at] : 0.0f);
            } else sums[unit] = sum;
        }
        if (phase.output == WIDE) return;
        __syncthreads();
#pragma unroll 1
        for (u32 i = threadIdx.x; i < w.count; i += THREADS) finish(phase, w, sums, i);
    }

private:
    DEVICE void finish(const Phase& phase, const Weights& w, const f32* sums, u32 i) const {
        const u32 at = w.first + i;
        const auto sum_of = [&](u32 line, f32 sum) {
            const u32 begin = line << w.split, end = begin + (1u << w.split);
#pragma unroll 1
            for (u32 part = begin; part < end; part++) sum += sums[part];
            return sum;
        };
        const f32 shift = i == threadIdx.x ? bias : phase.bias ? phase.bias[at] : 0.0f;
        if (phase.output == GATED) {
            // Rounded as if they had been stored.
            const f32 gate = load(Cast<TYPE>::from(sum_of(2 * i, shift)));
            const f32 up = load(Cast<TYPE>::from(sum_of(2 * i + 1, phase.bias ? phase.bias[w.outputs + at] : 0.0f)));
            ((TYPE*)phase.to)[at] = Cast<TYPE>::from(
                activated(phase.activation, gate) * gated_half(phase.activation, up));
            return;
        }
        const f32 sum = sum_of(i, shift);
        if (phase.output == ADDED) {
            f32* to = (f32*)phase.to + at;
            *to = (i == threadIdx.x ? before : __ldcg(to)) + sum;
        } else ((TYPE*)phase.to)[at] = Cast<TYPE>::from(sum);
    }
};
