// What a thread takes of a state in shared memory at once: 16 bytes of numbers of one type. See `StatePlace` for types.
#pragma once
#include "recurrent.cuh"

template <u32 KIND> struct StatePiece;

template <> struct StatePiece<STATE_F32> {
    static constexpr u32 SIZE = 4, COUNT = 4;
    DEVICE static void widen(f32 (&to)[4], uint4 bits) {
        to[0] = __uint_as_float(bits.x), to[1] = __uint_as_float(bits.y);
        to[2] = __uint_as_float(bits.z), to[3] = __uint_as_float(bits.w);
    }
    DEVICE static uint4 round(const f32 (&x)[4]) {
        return make_uint4(
            __float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
    }
};

// Two numbers a register, the first one below.
template <typename Pair> struct StatePiece16 {
    static constexpr u32 SIZE = 2, COUNT = 8;
    DEVICE static void widen(f32 (&to)[8], uint4 bits) {
        const u32 pairs[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) Pair::widen(to[2 * i], to[2 * i + 1], pairs[i]);
    }
    DEVICE static uint4 round(const f32 (&x)[8]) {
        return make_uint4(Pair::round(x[0], x[1]), Pair::round(x[2], x[3]), Pair::round(x[4], x[5]),
            Pair::round(x[6], x[7]));
    }
};

struct Bf16Pair {
    DEVICE static void widen(f32& low, f32& high, u32 pair) {
        low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
    }
    DEVICE static u32 round(f32 low, f32 high) {
        u32 pair;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
        return pair;
    }
};

struct F16Pair {
    DEVICE static void widen(f32& low, f32& high, u32 pair) {
        low = load(f16{(u16)pair}), high = load(f16{(u16)(pair >> 16)});
    }
    // What is too large becomes the largest number; NaN stays.
    DEVICE static u32 round(f32 low, f32 high) {
        u32 pair;
        asm("{\n.reg .b32 x;\ncvt.rn.f16x2.f32 x, %1, %2;\nmin.NaN.f16x2 x, x, %3;\nmax.NaN.f16x2 %0, x, %4;\n}\n"
            : "=r"(pair)
            : "f"(high), "f"(low), "r"(0x7bff7bffu), "r"(0xfbfffbffu));
        return pair;
    }
};

template <> struct StatePiece<STATE_BF16> : StatePiece16<Bf16Pair> {};
template <> struct StatePiece<STATE_F16> : StatePiece16<F16Pair> {};
