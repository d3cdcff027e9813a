// Normalisation of rows, alone or after a residual add (one block a row), and of heads inside a row (one warp a head).
// Sums run over a block or warp whose size depends on the width alone. A row that fits is read once and kept in
// registers.
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

template <u32 TIMES> DEVICE bool is_kept(u32 width) { return width % EACH == 0 && width <= EACH * TIMES * blockDim.x; }

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
template <u32 TIMES> struct Row {
    float4 x[TIMES];

    template <typename In> DEVICE void read(const In* row, u32 width) {
#pragma unroll
        for (u32 i = 0; i < TIMES; i++) {
            u32 at = (i * blockDim.x + threadIdx.x) * EACH;
            if (at < width) x[i] = load_four(row + at);
        }
    }

    // The sum of two rows, of which `a` and `b` give four elements each, written too.
    template <typename A, typename B> DEVICE void add(A a, B b, f32* to, u32 width) {
#pragma unroll
        for (u32 i = 0; i < TIMES; i++) {
            u32 at = (i * blockDim.x + threadIdx.x) * EACH;
            if (at >= width) break;
            float4 y = a(i, at), z = b(i, at);
            x[i] = make_float4(y.x + z.x, y.y + z.y, y.z + z.z, y.w + z.w);
            store_four(to + at, x[i]);
        }
    }

    DEVICE f32 square_sum(f32 mean, u32 width) const {
        f32 sum = 0.0f;
#pragma unroll
        for (u32 i = 0; i < TIMES; i++) {
            if ((i * blockDim.x + threadIdx.x) * EACH >= width) break;
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
                if ((i * blockDim.x + threadIdx.x) * EACH < width) sum += x[i].x + x[i].y + x[i].z + x[i].w;
            mean = block_sum(sum) / width;
        }
        f32 factor = 1.0f / sqrtf(block_sum(square_sum(mean, width)) / width + norm.eps);
#pragma unroll
        for (u32 i = 0; i < TIMES; i++) {
            u32 at = (i * blockDim.x + threadIdx.x) * EACH;
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

// To be called before the input is waited for: parameters are there already, but not in a cache near by. A register
// each would cost more.
DEVICE void fetch_params(const Norm& norm, u32 width) {
    for (u32 i = threadIdx.x * EACH; i < width; i += blockDim.x * EACH) {
        if (norm.weight) touch(norm.weight + i);
        if (norm.bias) touch(norm.bias + i);
    }
}

// `x` and `out` may be the same: an element is read and written by one thread, and all are read before any is written.
template <typename In, typename Out> DEVICE void norm_row(const In* x, const Norm& norm, Out* out, u32 width) {
    f32 mean = 0.0f;
    if (norm.subtract_mean) {
        f32 sum = 0.0f;
        for (u32 i = threadIdx.x; i < width; i += blockDim.x) sum += load(x[i]);
        mean = block_sum(sum) / width;
    }
    f32 square = 0.0f;
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) {
        f32 centred = load(x[i]) - mean;
        square += centred * centred;
    }
    f32 factor = 1.0f / sqrtf(block_sum(square) / width + norm.eps);
    for (u32 i = threadIdx.x; i < width; i += blockDim.x)
        out[i] = Cast<Out>::from(normed(norm, load(x[i]), mean, factor, i));
}

template <u32 TIMES, typename In, typename Out> DEVICE void norm(const In* x, const Norm& norm, Out* out, u32 width) {
    launch_dependents();
    fetch_params(norm, width);
    wait_for_inputs();
    u64 row = blockIdx.x * (u64)width;
    if (!is_kept<TIMES>(width)) return norm_row(x + row, norm, out + row, width);
    Row<TIMES> kept;
    kept.read(x + row, width);
    kept.write(norm, out + row, width);
}

// Each thread reads back only what it wrote here itself.
template <typename Delta> DEVICE void add_row(f32* residual, const Delta* delta, u32 width) {
    for (u32 i = threadIdx.x; i < width; i += blockDim.x) residual[i] += load(delta[i]);
}

template <u32 TIMES, typename Delta, typename Out>
DEVICE void add_norm(f32* residual, const Delta* delta, const Norm& norm, Out* out, u32 width) {
    launch_dependents();
    fetch_params(norm, width);
    wait_for_inputs();
    u64 row = blockIdx.x * (u64)width;
    if (!is_kept<TIMES>(width)) {
        add_row(residual + row, delta + row, width);
        return norm_row(residual + row, norm, out + row, width);
    }
    Row<TIMES> sum;
    auto stored = [&](u32, u32 at) { return load_four(residual + row + at); };
    auto added = [&](u32, u32 at) { return load_four(delta + row + at); };
    sum.add(stored, added, residual + row, width);
    sum.write(norm, out + row, width);
}

// `residual += norm(delta); out = norm(residual)`: a norm of the addend comes first, which is as if it were written.
template <u32 TIMES, typename Out>
DEVICE void norm_add_norm(f32* residual, f32* delta, const Norm& first, const Norm& norm, Out* out, u32 width) {
    launch_dependents();
    fetch_params(first, width);
    fetch_params(norm, width);
    wait_for_inputs();
    u64 row = blockIdx.x * (u64)width;
    if (!is_kept<TIMES>(width)) {
        norm_row(delta + row, first, delta + row, width);
        add_row(residual + row, delta + row, width);
        return norm_row(residual + row, norm, out + row, width);
    }
    Row<TIMES> sum, added;
    added.read(delta + row, width);
    sum.read(residual + row, width);
    added.norm_in_place(first, width);
    auto stored = [&](u32 i, u32) { return sum.x[i]; };
    sum.add(stored, [&](u32 i, u32) { return added.x[i]; }, residual + row, width);
    sum.write(norm, out + row, width);
}

// `stride`: from one head's parameters to the next one's; 0 where all share theirs.
template <typename T> DEVICE void head_norm(
    T* x, const Norm& norm, u32 first_col, u32 heads, u32 dim, u32 width, u32 stride) {
    launch_dependents();
    wait_for_inputs();
    u32 head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head >= heads) return;
    T* values = x + blockIdx.x * (u64)width + first_col + head * dim;
    f32 mean = 0.0f;
    if (norm.subtract_mean) {
        f32 sum = 0.0f;
        for (u32 i = lane; i < dim; i += 32) sum += load(values[i]);
        mean = warp_sum(sum) / dim;
    }
    f32 square = 0.0f;
    for (u32 i = lane; i < dim; i += 32) {
        f32 centred = load(values[i]) - mean;
        square += centred * centred;
    }
    f32 factor = 1.0f / sqrtf(warp_sum(square) / dim + norm.eps);
    for (u32 i = lane; i < dim; i += 32)
        values[i] = Cast<T>::from(normed(norm, load(values[i]), mean, factor, head * stride + i));
}

#define NORM(IN, OUT) \
    extern "C" __global__ void norm_##IN##_##OUT(const IN* x, const Norm how, OUT* out, u32 width) { \
        norm<USUAL>(x, how, out, width); \
    } \
    extern "C" __global__ void norm_wide_##IN##_##OUT(const IN* x, const Norm how, OUT* out, u32 width) { \
        norm<WIDE>(x, how, out, width); \
    } \
    extern "C" __global__ void add_norm_##IN##_##OUT( \
        f32* residual, const IN* delta, const Norm how, OUT* out, u32 width) { \
        add_norm<USUAL>(residual, delta, how, out, width); \
    } \
    extern "C" __global__ void add_norm_wide_##IN##_##OUT( \
        f32* residual, const IN* delta, const Norm how, OUT* out, u32 width) { \
        add_norm<WIDE>(residual, delta, how, out, width); \
    }
#define NORM_ADD_NORM(OUT) \
    extern "C" __global__ void norm_add_norm_f32_##OUT( \
        f32* residual, f32* delta, const Norm first, const Norm how, OUT* out, u32 width) { \
        norm_add_norm<USUAL>(residual, delta, first, how, out, width); \
    } \
    extern "C" __global__ void __launch_bounds__(MOST_THREADS) norm_add_norm_wide_f32_##OUT( \
        f32* residual, f32* delta, const Norm first, const Norm how, OUT* out, u32 width) { \
        norm_add_norm<WIDE>(residual, delta, first, how, out, width); \
    }
#define HEAD_NORM(T) \
    extern "C" __global__ void head_norm_##T( \
        T* x, const Norm how, u32 first_col, u32 heads, u32 dim, u32 width, u32 stride) { \
        head_norm(x, how, first_col, heads, dim, width, stride); \
    }

NORM(f32, f32)
NORM(f32, bf16)
NORM(f32, f16)
NORM(bf16, f32)
NORM(f16, f32)
NORM(bf16, bf16)
NORM(f16, f16)
NORM_ADD_NORM(f32)
NORM_ADD_NORM(bf16)
NORM_ADD_NORM(f16)
HEAD_NORM(f32)
HEAD_NORM(bf16)
HEAD_NORM(f16)
