// out = activation(gate) * up, where each row of the input is [gate | up]. One block a row.
#include "activation.cuh"

// Elements of 16 bytes of a 16-bit type.
constexpr u32 EACH = 8;

template <typename In, typename Out> struct Eight {
    static constexpr bool POSSIBLE = false;
    DEVICE static void run(const In*, const In*, Out*, const Activation&, u32) {}
};
template <typename T> struct Eight<T, T> {
    static constexpr bool POSSIBLE = sizeof(T) == 2;
    DEVICE static void run(const T* gate, const T* up, T* out, const Activation& activation, u32 at) {
        uint4 a = *(const uint4*)(gate + at), b = *(const uint4*)(up + at), c;
        const T *x = (const T*)&a, *y = (const T*)&b;
        T* z = (T*)&c;
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            z[i] = Cast<T>::from(activated(activation, load(x[i])) * gated_half(activation, load(y[i])));
        *(uint4*)(out + at) = c;
    }
};

template <typename In, typename Out> DEVICE void gated(
    const In* gate_up, Out* out, const Activation& activation, u32 width) {
    launch_dependents();
    wait_for_inputs();
    const In* gate = gate_up + blockIdx.x * 2ull * width;
    const In* up = gate + width;
    Out* row = out + blockIdx.x * (u64)width;
    u32 first = blockIdx.y * blockDim.x + threadIdx.x, step = gridDim.y * blockDim.x;
    if (Eight<In, Out>::POSSIBLE && width % EACH == 0) {
        for (u32 i = first * EACH; i < width; i += step * EACH) Eight<In, Out>::run(gate, up, row, activation, i);
    } else {
        for (u32 i = first; i < width; i += step)
            row[i] = Cast<Out>::from(activated(activation, load(gate[i])) * gated_half(activation, load(up[i])));
    }
}

#define GATED(IN, OUT) \
    extern "C" __global__ void gated_##IN##_##OUT(const IN* gate_up, OUT* out, Activation activation, u32 width) { \
        gated(gate_up, out, activation, width); \
    }

GATED(f32, f32)
GATED(f32, bf16)
GATED(f32, f16)
GATED(bf16, bf16)
GATED(f16, f16)
