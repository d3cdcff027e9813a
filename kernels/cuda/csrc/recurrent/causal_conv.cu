// A causal convolution of each channel and SiLU; see `ops::Conv`. Blocks (channels, chunks of a sequence's rows), a
// thread a channel or four. The block of a sequence's first chunk reads and writes the state; the others find what
// precedes them in the input.
#include "activation.cuh"
#include "prefill.cuh"
#include "recurrent.cuh"

// See src/recurrent.rs.
struct Conv {
    char* state; // [slot][kernel - 1][channel]
    const f32* taps;
    const f32* bias; // null: none
    u32 channels;
    u32 kernel;
    u32 state_type;
};
SAME_LAYOUT(Conv, Conv);

constexpr u32 CHUNK = 64;

// SiLU: exact in f32, and as what is rounded to 16 bits needs it.
DEVICE f32 silu(f32 x, f32) { return x * sigmoid(x); }
template <typename T> DEVICE f32 silu(f32 x, T) { return x * sigmoid_nearly(x); }

// Each thread has `WIDE` neighbouring channels.
template <u32 KERNEL, u32 WIDE, typename T>
DEVICE void convolve(const Columns<T>& x, const Conv& conv, const Rows& rows, u32 chunk, T* out) {
    constexpr u32 BEFORE = KERNEL - 1;
    typedef Several<T, WIDE> Inputs;
    typedef Several<f32, WIDE> Numbers;
    const u32 channels = conv.channels, channel = (blockIdx.x * blockDim.x + threadIdx.x) * WIDE;
    if (channel >= channels) return;
    const auto input_at = [&](u32 row) { return *(const Inputs*)(x.first + (u64)row * x.width + channel); };
    const auto widened = [](const Inputs& from) {
        Numbers to;
#pragma unroll
        for (u32 i = 0; i < WIDE; i++) to.x[i] = load(from.x[i]);
        return to;
    };
    Numbers taps[KERNEL], window[BEFORE], shift = {};
#pragma unroll
    for (u32 i = 0; i < KERNEL; i++) taps[i] = *(const Numbers*)(conv.taps + i * channels + channel);
    if (conv.bias) shift = *(const Numbers*)(conv.bias + channel);
    const u32 begin = chunk * CHUNK, end = min(begin + CHUNK, rows.count);
    if (chunk == 0) {
        const StatePlace state = StatePlace{conv.state, conv.state_type} + (rows.slot * BEFORE * channels + channel);
        f32 kept[BEFORE][WIDE] = {};
        if (!rows.fresh) state.read(kept, channels);
#pragma unroll
        for (u32 i = 0; i < BEFORE; i++) window[i] = *(const Numbers*)kept[i];
        // The last inputs of the window and the rows after it.
#pragma unroll
        for (u32 i = 0; i < BEFORE; i++) {
            const u32 from = rows.count + i;
            Numbers last = from >= BEFORE ? widened(input_at(rows.first + from - BEFORE)) : Numbers{};
#pragma unroll
            for (u32 j = 0; j < BEFORE; j++)
                if (j == from) last = window[j];
            (state + i * channels).write(last.x);
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < BEFORE; i++) window[i] = widened(input_at(rows.first + begin - BEFORE + i));
    }
    // Rows are read some at a time, so that many are on their way.
    constexpr u32 AT_ONCE = 8;
    for (u32 first = begin; first < end; first += AT_ONCE) {
        Inputs inputs[AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) inputs[i] = input_at(rows.first + min(first + i, end - 1));
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            if (first + i >= end) break;
            const Numbers input = widened(inputs[i]);
            Inputs result;
#pragma unroll
            for (u32 w = 0; w < WIDE; w++) {
                f32 sum = shift.x[w];
#pragma unroll
                for (u32 j = 0; j < BEFORE; j++) sum = fmaf(taps[j].x[w], window[j].x[w], sum);
                sum = fmaf(taps[BEFORE].x[w], input.x[w], sum);
                result.x[w] = Cast<T>::from(silu(sum, T{}));
            }
            *(Inputs*)(out + (u64)(rows.first + first + i) * channels + channel) = result;
#pragma unroll
            for (u32 j = 0; j + 1 < BEFORE; j++) window[j] = window[j + 1];
            window[BEFORE - 1] = input;
        }
    }
}

template <typename T> DEVICE void causal_conv(const Columns<T>& x, const Conv& conv, const Batch& batch, T* out) {
    u32 sequence, chunk;
    if (!find_tile(batch, 1, CHUNK, 1, blockIdx.y, sequence, chunk)) return;
    const Rows rows(batch, sequence);
    switch (conv.kernel) {
    case 2: return convolve<2, 1>(x, conv, rows, chunk, out);
    case 3: return convolve<3, 1>(x, conv, rows, chunk, out);
    case 4: return convolve<4, 1>(x, conv, rows, chunk, out);
    case 5: return convolve<5, 1>(x, conv, rows, chunk, out);
    case 6: return convolve<6, 1>(x, conv, rows, chunk, out);
    case 7: return convolve<7, 1>(x, conv, rows, chunk, out);
    case 8: return convolve<8, 1>(x, conv, rows, chunk, out);
    }
}

// Four channels a thread of the usual kernel size, where they lie for that.
template <typename T> DEVICE void causal_conv_fours(const Columns<T>& x, const Conv& conv, const Batch& batch, T* out) {
    u32 sequence, chunk;
    if (!find_tile(batch, 1, CHUNK, 1, blockIdx.y, sequence, chunk)) return;
    convolve<4, 4>(x, conv, Rows(batch, sequence), chunk, out);
}

#define CAUSAL_CONV(T) \
    extern "C" __global__ void causal_conv_fours_##T( \
        const Columns<T> x, const Conv conv, const Batch batch, T* out) { \
        causal_conv_fours(x, conv, batch, out); \
    } \
    extern "C" __global__ void causal_conv_##T(const Columns<T> x, const Conv conv, const Batch batch, T* out) { \
        causal_conv(x, conv, batch, out); \
    }

CAUSAL_CONV(f32)
CAUSAL_CONV(bf16)
CAUSAL_CONV(f16)
