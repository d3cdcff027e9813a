// A causal convolution of each channel and SiLU; see `ops::Conv`. Blocks (channels, chunks of a sequence's rows), a
// thread a channel. The block of a sequence's first chunk reads and writes the state; the others find what precedes
// them in the input.
#include "activation.cuh"
#include "prefill.cuh"
#include "recurrent.cuh"

// See src/recurrent.rs.
struct Conv {
    f32* state; // [slot][kernel - 1][channel]
    const f32* taps;
    const f32* bias; // null: none
    u32 channels;
    u32 kernel;
};
SAME_LAYOUT(Conv, Conv);

constexpr u32 CHUNK = 64;

template <u32 KERNEL, typename T>
DEVICE void convolve(const Columns<T>& x, const Conv& conv, const Rows& rows, u32 chunk, T* out) {
    constexpr u32 BEFORE = KERNEL - 1;
    const u32 channels = conv.channels, channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    f32 taps[KERNEL], window[BEFORE];
#pragma unroll
    for (u32 i = 0; i < KERNEL; i++) taps[i] = conv.taps[i * channels + channel];
    const f32 shift = conv.bias ? conv.bias[channel] : 0.0f;
    const u32 begin = chunk * CHUNK, end = min(begin + CHUNK, rows.count);
    if (chunk == 0) {
        f32* state = conv.state + rows.slot * BEFORE * channels + channel;
#pragma unroll
        for (u32 i = 0; i < BEFORE; i++) window[i] = rows.fresh ? 0.0f : state[i * channels];
        // The last inputs of the window and the rows after it.
#pragma unroll
        for (u32 i = 0; i < BEFORE; i++) {
            const u32 from = rows.count + i;
            f32 kept = from >= BEFORE ? x.at(rows.first + from - BEFORE, channel) : 0.0f;
#pragma unroll
            for (u32 j = 0; j < BEFORE; j++)
                if (j == from) kept = window[j];
            state[i * channels] = kept;
        }
    } else {
#pragma unroll
        for (u32 i = 0; i < BEFORE; i++) window[i] = x.at(rows.first + begin - BEFORE + i, channel);
    }
#pragma unroll 8
    for (u32 row = begin; row < end; row++) {
        const f32 input = x.at(rows.first + row, channel);
        f32 sum = shift;
#pragma unroll
        for (u32 i = 0; i < BEFORE; i++) sum = fmaf(taps[i], window[i], sum);
        sum = fmaf(taps[BEFORE], input, sum);
        out[(u64)(rows.first + row) * channels + channel] = Cast<T>::from(sum * sigmoid(sum));
#pragma unroll
        for (u32 i = 0; i + 1 < BEFORE; i++) window[i] = window[i + 1];
        window[BEFORE - 1] = input;
    }
}

template <typename T> DEVICE void causal_conv(const Columns<T>& x, const Conv& conv, const Batch& batch, T* out) {
    u32 sequence, chunk;
    if (!find_tile(batch, 1, CHUNK, 1, blockIdx.y, sequence, chunk)) return;
    const Rows rows(batch, sequence);
    switch (conv.kernel) {
    case 2: return convolve<2>(x, conv, rows, chunk, out);
    case 3: return convolve<3>(x, conv, rows, chunk, out);
    case 4: return convolve<4>(x, conv, rows, chunk, out);
    case 5: return convolve<5>(x, conv, rows, chunk, out);
    case 6: return convolve<6>(x, conv, rows, chunk, out);
    case 7: return convolve<7>(x, conv, rows, chunk, out);
    case 8: return convolve<8>(x, conv, rows, chunk, out);
    }
}

#define CAUSAL_CONV(T) \
    extern "C" __global__ void causal_conv_##T(const Columns<T> x, const Conv conv, const Batch batch, T* out) { \
        causal_conv(x, conv, batch, out); \
    }

CAUSAL_CONV(f32)
CAUSAL_CONV(bf16)
CAUSAL_CONV(f16)
