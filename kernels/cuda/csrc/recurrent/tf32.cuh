// Products on tensor cores with a factor that is computed in f32: where 16 bits of its type keep it well enough (bf16)
// in that type, else in tf32, which has f32's range, and holds 16-bit floats exactly.
#pragma once
#include "mma.cuh"

DEVICE f32 round_tf32(f32 x) {
    u32 bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

// c[16][8] += a[16][8] b[8][8]. Lane 4 g + t has a[g][t], a[g + 8][t], a[g][t + 4], a[g + 8][t + 4]; b[t][g],
// b[t + 4][g]; c as `Tensor::multiply` has it.
DEVICE void multiply_tf32(f32 (&c)[4], f32 a0, f32 a1, f32 a2, f32 a3, f32 b0, f32 b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)),
                   "r"(__float_as_uint(a3)), "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// The two elements of a register.
template <typename T> DEVICE f32 low(u32 pair) { return load(T{(u16)pair}); }
template <typename T> DEVICE f32 high(u32 pair) { return load(T{(u16)(pair >> 16)}); }
template <> DEVICE f32 high<bf16>(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// a[16][16] of a product with elements b of type T, computed in f32: lane 4 g + t gives a[g][2t], a[g][2t + 1],
// a[g + 8][2t], a[g + 8][2t + 1], and the same of columns 8 to the right. In tf32 a product of 16 columns is two, one
// with columns 2t and 2t + 1 of the first half as its t and t + 4: any order of them does, if both factors have it.
template <typename T> struct Computed;

template <> struct Computed<bf16> {
    u32 a[4];

    DEVICE void set(const f32 (&x)[8]) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) a[i] = Tensor<bf16>::pack(x[2 * i], x[2 * i + 1]);
    }
    DEVICE void multiply(f32 (&c)[4], u32 b0, u32 b1) const {
        Tensor<bf16>::multiply(c, a[0], a[1], a[2], a[3], b0, b1);
    }
};

template <> struct Computed<f16> {
    f32 a[8];

    DEVICE void set(const f32 (&x)[8]) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) a[i] = round_tf32(x[i]);
    }
    DEVICE void multiply(f32 (&c)[4], u32 b0, u32 b1) const {
        multiply_tf32(c, a[0], a[2], a[1], a[3], low<f16>(b0), high<f16>(b0));
        multiply_tf32(c, a[4], a[6], a[5], a[7], low<f16>(b1), high<f16>(b1));
    }
};

// b[16][8] of a product with elements a of type T (as `Tensor::multiply` has them), which is kept nearly as f32 has it:
// lane 4 g + t gives b[2t][g], b[2t + 1][g], b[2t + 8][g], b[2t + 9][g]. A product has two parts.
template <typename T> struct Carried;

// To 16 bits or more: what bf16 holds of an element, and what it holds of the rest.
template <> struct Carried<bf16> {
    u32 b[2][2];

    DEVICE void set(f32 x, f32 y, f32 z, f32 w) {
        b[0][0] = Tensor<bf16>::pack(x, y);
        b[0][1] = Tensor<bf16>::pack(z, w);
        b[1][0] = Tensor<bf16>::pack(x - low<bf16>(b[0][0]), y - high<bf16>(b[0][0]));
        b[1][1] = Tensor<bf16>::pack(z - low<bf16>(b[0][1]), w - high<bf16>(b[0][1]));
    }
    DEVICE void multiply(f32 (&c)[4], const u32 (&a)[4], u32 part) const {
        Tensor<bf16>::multiply(c, a[0], a[1], a[2], a[3], b[part][0], b[part][1]);
    }
};

// To tf32's 11 bits: no sum of two f16 has the range.
template <> struct Carried<f16> {
    f32 b[4];

    DEVICE void set(f32 x, f32 y, f32 z, f32 w) {
        const f32 all[4] = {x, y, z, w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) b[i] = round_tf32(all[i]);
    }
    DEVICE void multiply(f32 (&c)[4], const u32 (&a)[4], u32 part) const {
        const u32 upper = a[2 * part], lower = a[2 * part + 1];
        multiply_tf32(c, low<f16>(upper), low<f16>(lower), high<f16>(upper), high<f16>(lower), b[2 * part],
            b[2 * part + 1]);
    }
};

// A tile of computed elements in shared memory, written pair by pair and read as `Computed`: how many bytes an element
// has, and how many between rows keep them in different banks.
template <typename T> struct Kept;

template <> struct Kept<bf16> {
    static constexpr u32 SIZE = 2, PAD = 16;

    DEVICE static void store(char* to, f32 x, f32 y) { *(u32*)to = Tensor<bf16>::pack(x, y); }

    // 16 rows of 16 from `at` on, each `ROW` bytes after the one before.
    template <u32 ROW> DEVICE static void load(Computed<bf16>& x, const char* at, u32 lane) {
        load_matrices(x.a, shared_address(at + lane % 16 * ROW + lane / 16 * 16));
    }
};

template <> struct Kept<f16> {
    static constexpr u32 SIZE = 4, PAD = 32;

    DEVICE static void store(char* to, f32 x, f32 y) { *(float2*)to = make_float2(round_tf32(x), round_tf32(y)); }

    template <u32 ROW> DEVICE static void load(Computed<f16>& x, const char* at, u32 lane) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 row = lane / 4 + i % 2 * 8, column = 2 * (lane % 4) + i / 2 * 8;
            const float2 pair = *(const float2*)(at + row * ROW + column * SIZE);
            x.a[2 * i] = pair.x;
            x.a[2 * i + 1] = pair.y;
        }
    }
};
