// Products of Hopper whose operands are codes of 8 bits: c[64][n] (+)= a[64][32] b[32][n], as those of hopper.cuh
// otherwise. Sums of integers are integers.
#pragma once
#include "hopper_registers.cuh"

// What a product's operands are, where numbers would have type T: INT8 and E4M3 of packed.cuh, or 0.
template <u32 KIND, typename T> struct Operands {
    typedef T Element;
    typedef f32 Sum;
};
struct s8 {};
template <typename T> struct Operands<1, T> {
    typedef s8 Element;
    typedef int Sum;
};
template <typename T> struct Operands<2, T> {
    typedef e4m3 Element;
    typedef f32 Sum;
};

#define SUMS_8(K, c, i) \
    K(c[i]), K(c[i + 1]), K(c[i + 2]), K(c[i + 3]), K(c[i + 4]), K(c[i + 5]), K(c[i + 6]), K(c[i + 7])
#define SUMS_16(K, c, i) SUMS_8(K, c, i), SUMS_8(K, c, i + 8)
#define SUMS_32(K, c, i) SUMS_16(K, c, i), SUMS_16(K, c, i + 16)
#define SUMS_48(K, c, i) SUMS_32(K, c, i), SUMS_16(K, c, i + 32)
#define SUMS_56(K, c, i) SUMS_48(K, c, i), SUMS_8(K, c, i + 48)
#define SUMS_64(K, c, i) SUMS_32(K, c, i), SUMS_32(K, c, i + 32)
#define SUMS_96(K, c, i) SUMS_64(K, c, i), SUMS_32(K, c, i + 64)
#define SUMS_112(K, c, i) SUMS_64(K, c, i), SUMS_48(K, c, i + 64)
#define SUMS_128(K, c, i) SUMS_64(K, c, i), SUMS_64(K, c, i + 64)

// TYPES: of sums and operands; K: how registers of sums are named; ENDS: what follows the predicate.
#define SHARED_CODES(ELEMENT, SUM, K, TYPES, ENDS, N, COUNT, A, B, P) \
    DEVICE void multiply_shared(ELEMENT, SUM (&c)[COUNT], u64 a, u64 b, u32 add) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32" TYPES " {" NAMES_##COUNT "}, %" #A ", %" #B \
                     ", p" ENDS ";\n}\n" \
                     : SUMS_##COUNT(K, c, 0) \
                     : "l"(a), "l"(b), "r"(add)); \
    }
#define REGISTER_CODES(ELEMENT, SUM, K, TYPES, ENDS, N, COUNT, A, B, C, D, E, P) \
    DEVICE void multiply_registers(ELEMENT, SUM (&c)[COUNT], const u32* a, u64 b, u32 add) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k32" TYPES " {" NAMES_##COUNT "}, {%" #A ", %" #B \
                     ", %" #C ", %" #D "}, %" #E ", p" ENDS ";\n}\n" \
                     : SUMS_##COUNT(K, c, 0) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
    }
#define CODES_OF(ELEMENT, SUM, K, TYPES, ENDS) \
    SHARED_CODES(ELEMENT, SUM, K, TYPES, ENDS, 112, 56, 56, 57, 58) \
    SHARED_CODES(ELEMENT, SUM, K, TYPES, ENDS, 128, 64, 64, 65, 66) \
    SHARED_CODES(ELEMENT, SUM, K, TYPES, ENDS, 224, 112, 112, 113, 114) \
    SHARED_CODES(ELEMENT, SUM, K, TYPES, ENDS, 256, 128, 128, 129, 130) \
    REGISTER_CODES(ELEMENT, SUM, K, TYPES, ENDS, 32, 16, 16, 17, 18, 19, 20, 21) \
    REGISTER_CODES(ELEMENT, SUM, K, TYPES, ENDS, 64, 32, 32, 33, 34, 35, 36, 37) \
    REGISTER_CODES(ELEMENT, SUM, K, TYPES, ENDS, 96, 48, 48, 49, 50, 51, 52, 53) \
    REGISTER_CODES(ELEMENT, SUM, K, TYPES, ENDS, 128, 64, 64, 65, 66, 67, 68, 69) \
    REGISTER_CODES(ELEMENT, SUM, K, TYPES, ENDS, 192, 96, 96, 97, 98, 99, 100, 101) \
    REGISTER_CODES(ELEMENT, SUM, K, TYPES, ENDS, 256, 128, 128, 129, 130, 131, 132, 133)
CODES_OF(e4m3, f32, "+f", ".f32.e4m3.e4m3", ", 1, 1")
CODES_OF(s8, int, "+r", ".s32.s8.s8", "")

// As `settle` of hopper.cuh.
template <u32 N>
DEVICE void settle(int (&c)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) asm volatile("" : "+r"(c[i])::"memory");
}

// Sums as numbers, in the registers where they are.
template <u32 N>
DEVICE f32 (&as_numbers(f32 (&c)[N]))[N] { return c; }
template <u32 N>
DEVICE f32 (&as_numbers(int (&c)[N]))[N] {
#pragma unroll
    for (u32 i = 0; i < N; i++) c[i] = __float_as_int((f32)c[i]);
    return *(f32(*)[N])c;
}
