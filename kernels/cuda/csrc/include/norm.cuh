// Normalisation of a row that a block keeps in registers, or some of its threads: what `norm.cu`, `norm_prepared.cu`
// and sums over ranks share.
#pragma once
#include "quire.cuh"

// `ops::Norm`; see src/norm.rs.
struct Norm {
    const f32* weight;
    const f32* bias;
    f32 eps;
    u32 subtract_mean;
};
SAME_LAYOUT(Norm, Norm);

DEVICE f32 normed(const Norm& norm, f32 x, f32 mean, f32 factor, u32 i) {
    f32 y = (x - mean) * factor;
    if (norm.weight) y *= norm.weight[i];
    if (norm.bias) y += norm.bias[i];
    return y;
}

// Four elements at a time. How often at most a thread takes them for a row to be kept is `TIMES`: where that is little,
// threads need few registers, a multiprocessor has more rows on their way, and many rows come at the speed of memory.
constexpr u32 EACH = 4, USUAL = 2, WIDE = 4, MOST_THREADS = 1024;

DEVICE float4 load_four(const f32* x) { return *(const float4*)x; }
template <typename T> DEVICE float4 load_four(const T* x) {
    uint2 bits = *(const uint2*)x;
    const T* y = (const T*)&bits;
    return make_float4(load(y[0]), load(y[1]), load(y[2]), load(y[3]));
}
DEVICE void store_four(f32* to, float4 x) { *(float4*)to = x; }
template <typename T> DEVICE void store_four(T* to, float4 x) {
    uint2 bits;
    T* y = (T*)&bits;
    y[0] = Cast<T>::from(x.x);
    y[1] = Cast<T>::from(x.y);
    y[2] = Cast<T>::from(x.z);
    y[3] = Cast<T>::from(x.w);
    *(uint2*)to = bits;
}

// Who has a row: all threads of a block.
struct WholeBlock {
    DEVICE static u32 thread() { return threadIdx.x; }
    DEVICE static u32 threads() { return blockDim.x; }
    DEVICE static f32 sum(f32 x) { return block_sum(x); }
};

template <u32 TIMES, typename Who = WholeBlock> DEVICE bool is_kept(u32 width) {
    return width % EACH == 0 && width <= EACH * TIMES * Who::threads();
}

// Four elements from `at` on.
DEVICE float4 normed_four(const Norm& norm, float4 x, f32 mean, f32 factor, u32 at) {
    float4 y = make_float4((x.x - mean) * factor, (x.y - mean) * factor, (x.z - mean) * factor, (x.w - mean) * factor);
    if (norm.weight) {
        const float4 weight = load_four(norm.weight + at);
        y.x *= weight.x, y.y *= weight.y, y.z *= weight.z, y.w *= weight.w;
    }
    if (norm.bias) {
        const float4 bias = load_four(norm.bias + at);
        y.x += bias.x, y.y += bias.y, y.z += bias.z, y.w += bias.w;
    }
    return y;
}

// A row in registers.
template <u32 TIMES, typename Who = WholeBlock> struct Row {
    float4 x[TIMES];

    template <typename In> DEVICE void read(const In* row, u32 width) {
#pragma unroll
        for (u32 i = 0; i < TIMES; i++) {
            u32 at = (i * Who::threads() + Who::thread()) * EACH;
            if (at < width) x[i] = load_four(row + at);
        }
    }

    // The sum of two rows, of which `a` and `b` give four elements each, written too. Some are read before any is
    // written: the compiler cannot know that they are others.
    template <typename A, typename B> DEVICE void add(A a, B b, f32* to, u32 width) {
        constexpr u32 AT_ONCE = TIMES < 4 ? TIMES : 4;
        static_assert(TIMES % AT_ONCE == 0, "whole groups");
#pragma unroll
        for (u32 first = 0; first < TIMES; first += AT_ONCE) {
            float4 added[AT_ONCE];
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                const u32 i = first + j, at = (i * Who::threads() + Who::thread()) * EACH;
                if (at < width) x[i] = a(i, at), added[j] = b(i, at);
            }
#pragma unroll
            for (u32 j = 0; j < AT_ONCE; j++) {
                const u32 i = first + j, at = (i * Who::threads() + Who::thread()) * EACH;
                if (at >= width) break;
                const float4 y = x[i], z = added[j];
                x[i] = make_float4(y.x + z.x, y.y + z.y, y.z + z.z, y.w + z.w);
                store_four(to + at, x[i]);
            }
        }
    }

    DEVICE f32 square_sum(f32 mean, u32 width) const {
        f32 sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < TIMES; i++) {
            if ((i * Who::threads() + Who::thread()) * EACH >= width) break;
            f32 a = x[i].x - mean, b = x[i].y - mean, c = x[i].z - mean, d = x[i].w - mean;
            sum += a * a + b * b + c * c + d * d;
        }
        return sum;
    }

    // Calls `to` with four normed elements and where they begin.
    template <typename To> DEVICE void norm(const Norm& norm, u32 width, To to) const {
        f32 mean = 0.0f;
        if (norm.subtract_mean) {
            f32 sum = 0.0f;
#pragma unroll
            for (u32 i = 0; i < TIMES; i++)
                if ((i * Who::threads() + Who::thread()) * EACH < width) sum += x[i].x + x[i].y + x[i].z + x[i].w;
            mean = Who::sum(sum) / width;
        }
        f32 factor = 1.0f / sqrtf(Who::sum(square_sum(mean, width)) / width + norm.eps);
#pragma unroll
        for (u32 i = 0; i < TIMES; i++) {
            u32 at = (i * Who::threads() + Who::thread()) * EACH;
            if (at >= width) break;
            to(i, at, normed_four(norm, x[i], mean, factor, at));
        }
    }

    template <typename Out> DEVICE void write(const Norm& how, Out* out, u32 width) const {
        norm(how, width, [&](u32, u32 at, float4 y) { store_four(out + at, y); });
    }

    DEVICE void norm_in_place(const Norm& how, u32 width) {
        norm(how, width, [&](u32 i, u32, float4 y) { x[i] = y; });
    }
};

// `x` and `out` may be the same: an element is read and written by one thread, and all are read before any is written.
template <typename Who = WholeBlock, typename In, typename Out>
DEVICE void norm_row(const In* x, const Norm& norm, Out* out, u32 width) {
    f32 mean = 0.0f;
    if (norm.subtract_mean) {
        f32 sum = 0.0f;
        for (u32 i = Who::thread(); i < width; i += Who::threads()) sum += load(x[i]);
        mean = Who::sum(sum) / width;
    }
    f32 square = 0.0f;
    for (u32 i = Who::thread(); i < width; i += Who::threads()) {
        f32 centred = load(x[i]) - mean;
        square += centred * centred;
    }
    f32 factor = 1.0f / sqrtf(Who::sum(square) / width + norm.eps);
    for (u32 i = Who::thread(); i < width; i += Who::threads())
        out[i] = Cast<Out>::from(normed(norm, load(x[i]), mean, factor, i));
}

// Each thread reads back only what it wrote here itself.
template <typename Who = WholeBlock, typename Delta>
DEVICE void add_row(f32* residual, const Delta* delta, u32 width) {
    for (u32 i = Who::thread(); i < width; i += Who::threads()) residual[i] += load(delta[i]);
}

// To be called before the input is waited for: parameters are there already, but not in a cache near by. A register
// each would cost more.
DEVICE void fetch_params(const Norm& norm, u32 width) {
    for (u32 i = threadIdx.x * EACH; i < width; i += blockDim.x * EACH) {
        if (norm.weight) touch(norm.weight + i);
        if (norm.bias) touch(norm.bias + i);
    }
}
