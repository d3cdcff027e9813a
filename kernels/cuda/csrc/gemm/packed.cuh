// Weights of 4 or 8 bits as products read them: codes in the order of tensor-core operands, and scales beside them.
//
// A tile is 16 rows of w, a chunk 64 columns of it. Tile i has its chunks one after the other; a chunk is 512 bytes of
// codes of 4 bits, or twice that of 8, and lane 4 g + t of a warp reads 16 bytes at 16 (4 g + t) of each 512. What it
// gets is rows g and g + 8, and of those the columns
//
//   32 h + 8 t + 4 i + 2 p + e        h, i, p, e: 0 or 1
//
// for operand registers a[2 p + r] (r: row g + 8 r) of product 2 h + i of four. x is read in the same order: 16 bytes
// at column 32 h + 8 t are what a lane needs of a row of it for two products.
//
//   4 bits: word 2 h + i, bits 4 (2 p + r) + 16 e on
//   8 bits: the h-th 512 bytes, word 2 i + p, byte 2 e + r
//
// Scales lie as [tile][group][g][r], zero points and offsets alike. Rows and columns past the last have codes of 0.
// `src/weights/packed.rs` has the host's part.
#pragma once
#include "mma.cuh"

constexpr u32 CHUNK = 64, TILE_ROWS = 16;
// Bytes of codes of a lane in a chunk of 4 bits.
constexpr u32 LANE_BYTES = 16;

// What codes mean. E2M1: a sign, two bits of exponent and one of mantissa (OCP Microscaling Formats 1.0), which are 16
// levels that need no table.
constexpr u32 INT4 = 0, INT8 = 1, E4M3 = 2, LEVELS = 3, E2M1 = 4;
// What is subtracted from codes: half of what they reach to, or a zero point of a byte; or what is added to a scaled
// code, which counts from 0 with 4 bits and from 128 with 8.
constexpr u32 MIDDLE = 0, ZERO_POINTS = 1, OFFSETS = 2;
// Types of scales.
constexpr u32 SCALE_F32 = 0, SCALE_F16 = 1, SCALE_BF16 = 2;

struct PackedWeights {
    const uint4* codes;
    const void* scales;
    // Null for MIDDLE.
    const void* zeros;
    // [16], for LEVELS and E2M1.
    const f32* levels;
    u32 n;
    u32 k;
    // Columns that share a scale; 0: all of a row.
    u32 group;
    u32 groups;
    u32 code;
    u32 scale;
    u32 zero;

    DEVICE u32 chunks() const { return (k + CHUNK - 1) / CHUNK; }
    DEVICE u32 pieces() const { return code == INT8 || code == E4M3 ? 2 : 1; }
    DEVICE u32 group_of(u32 column) const { return group ? column / group : 0; }

    // Where the scale of a row's group is.
    DEVICE u64 scale_index(u32 row, u32 group) const {
        const u32 inside = row % TILE_ROWS;
        return ((u64)(row / TILE_ROWS) * groups + group) * TILE_ROWS + inside % 8 * 2 + inside / 8;
    }
};
SAME_LAYOUT(PackedWeights, PackedWeights);

DEVICE f32 load_scale(const void* from, u32 type, u64 at) {
    if (type == SCALE_F32) return ((const f32*)from)[at];
    return type == SCALE_F16 ? load(((const f16*)from)[at]) : load(((const bf16*)from)[at]);
}

// What a code of row `row` and column `column` stands for is `code_value` times the group's scale, and an offset.
struct Group {
    f32 scale, zero, offset;

    DEVICE Group(const PackedWeights& w, u32 row, u32 column) {
        const u64 at = w.scale_index(row, w.group_of(column));
        scale = load_scale(w.scales, w.scale, at);
        zero = w.code == INT8 ? 128.0f : 8.0f;
        offset = 0.0f;
        if (w.zero == ZERO_POINTS) zero = (f32)((const u8*)w.zeros)[at];
        if (w.zero == OFFSETS) {
            offset = load_scale(w.zeros, w.scale, at);
            zero = w.code == INT8 ? 128.0f : 0.0f;
        }
    }
    DEVICE f32 value(const PackedWeights& w, u32 code) const {
        if (w.code == E4M3) return load(e4m3{(u8)code}) * scale;
        if (w.code == LEVELS || w.code == E2M1) return w.levels[code] * scale;
        return fmaf((f32)code - zero, scale, offset);
    }
};

// The code at a row and column, wherever it lies.
DEVICE u32 code_at(const PackedWeights& w, u32 row, u32 column) {
    const u32 tile = row / TILE_ROWS, g = row % 8, r = row / 8 % 2, chunk = column / CHUNK, inside = column % CHUNK;
    const u32 h = inside / 32, t = inside / 8 % 4, i = inside / 4 % 2, p = inside / 2 % 2, e = inside % 2;
    const u32 pieces = w.pieces();
    const u64 block = ((u64)tile * w.chunks() + chunk) * pieces;
    if (pieces == 1) {
        const u32* words = (const u32*)(w.codes + block * 32 + 4 * g + t);
        return words[2 * h + i] >> (4 * (2 * p + r) + 16 * e) & 15u;
    }
    const u8* bytes = (const u8*)(w.codes + (block + h) * 32 + 4 * g + t);
    return bytes[4 * (2 * i + p) + 2 * e + r];
}

// Codes of 8 bits of four neighbours of row g + 8 r, from the two words that have them.
DEVICE u32 row_codes(u32 first, u32 second, u32 r) { return __byte_perm(first, second, r ? 0x7531 : 0x6420); }

// What makes integers that count from their middle ones that count from 0, four of them; floats stay as they are.
DEVICE constexpr u32 flip_of(u32 code) { return code == INT8 ? 0x80808080u : 0u; }

// A lane's operand of 32 columns of a tile of codes of 8 bits, from the words that it has of them.
DEVICE void order_codes(u32 (&a)[4], const u32 (&words)[4], u32 flip) {
#pragma unroll
    for (u32 at = 0; at < 4; at++) a[at] = row_codes(words[at / 2 * 2], words[at / 2 * 2 + 1], at % 2) ^ flip;
}

// The same of the i-th 32 columns of a tile that lies in shared memory.
DEVICE void load_ordered_codes(u32 (&a)[4], u32 tile, u32 i, u32 flip) {
    u32 words[4];
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(tile + i * 512 + threadIdx.x % 32 * 16)
                 : "memory");
    order_codes(a, words, flip);
}

#if __CUDA_ARCH__ >= 800
template <typename T> struct Pairs;

// Pairs of 16-bit numbers in a register.
template <> struct Pairs<bf16> {
    // a * b + c
    DEVICE static u32 fma(u32 a, u32 b, u32 c) {
        u32 y;
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
        return y;
    }
    DEVICE static u32 add(u32 a, u32 b) { return fma(a, 0x3f803f80u, b); }
    // Codes of up to 7 bits, in the low bits of each half, are so much more than `BASE`.
    static constexpr u32 BASE_BITS = 0x43004300u, ONES = 0x3f803f80u;
    DEVICE static u32 negative_base(u32 zero) { return (0xc300u | zero) * 0x10001u; }
    // Codes of 8 bits, less 128: those are exact, where 128 + code is not.
    DEVICE static u32 middle(u32 codes) {
        const u32 low = codes & 0x007f007fu | BASE_BITS, less = ~codes & 0x00800080u | BASE_BITS;
        return fma(less, 0xbf80bf80u, low);
    }
    DEVICE static u32 less_zero(u32 codes, u32 shift) { return add(middle(codes), shift); }
    // 128 - zero, twice.
    DEVICE static u32 shift_of(u32 zero) { return Tensor<bf16>::pack(128.0f - zero, 128.0f - zero); }
    // 8-bit floats in the high bytes.
    DEVICE static u32 floats(u32 sign, u32 rest) {
        return fma(sign & 0x80008000u | rest & 0x07f007f0u, 0x7b807b80u, 0x80008000u);
    }
    static constexpr u32 FLOAT_SHIFT = 4, OWN_SCALE = SCALE_BF16;
    static constexpr f32 FLOAT_FACTOR = 1.0f;
    // Floats of 4 bits: what follows the sign is this far above the code's low bits, and what a number that is made so
    // is multiplied by, 2^126, is exact also where it has no exponent.
    static constexpr u32 SHORT_SHIFT = 6, SHORT_MASK = 0x01c001c0u;
    DEVICE static u32 short_floats(u32 bits) { return fma(bits, 0x7e807e80u, 0x80008000u); }
};

template <> struct Pairs<f16> {
    DEVICE static u32 fma(u32 a, u32 b, u32 c) {
        u32 y;
        asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
        return y;
    }
    DEVICE static u32 add(u32 a, u32 b) {
        u32 y;
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
        return y;
    }
    static constexpr u32 BASE_BITS = 0x64006400u, ONES = 0x3c003c00u;
    DEVICE static u32 negative_base(u32 zero) { return (0xe400u | zero) * 0x10001u; }
    DEVICE static u32 middle(u32 codes) { return less_zero(codes, negative_base(128)); }
    DEVICE static u32 less_zero(u32 codes, u32 shift) { return add(codes | BASE_BITS, shift); }
    DEVICE static u32 shift_of(u32 zero) { return negative_base(zero); }
    DEVICE static u32 floats(u32 sign, u32 rest) { return sign & 0x80008000u | rest & 0x3f803f80u; }
    // Their exponents are biased by 15 instead of 7: what is left is in the scale.
    static constexpr u32 FLOAT_SHIFT = 1, OWN_SCALE = SCALE_F16;
    static constexpr f32 FLOAT_FACTOR = 256.0f;
    // By 2^14.
    static constexpr u32 SHORT_SHIFT = 9, SHORT_MASK = 0x0e000e00u;
    DEVICE static u32 short_floats(u32 bits) { return fma(bits, 0x74007400u, 0x80008000u); }
};

// a & b | c in one instruction: of two constants the compiler makes two.
DEVICE u32 masked_or(u32 a, u32 b, u32 c) {
    u32 y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

// Bits of a word moved up, or down where `by` is negative.
DEVICE constexpr u32 moved(u32 bits, int by) { return by < 0 ? bits >> -by : bits << by; }

// Operand registers of one product. `shifts`: what is added to rows g and g + 8 (see `row_shift`); `table`: pairs of
// levels by pairs of codes.
template <typename T, u32 KIND>
DEVICE void decode(const uint4 (&codes)[KIND == INT8 || KIND == E4M3 ? 2 : 1], u32 product, const u32 (&shifts)[2],
    const u32* table, u32 (&a)[4]) {
    typedef Pairs<T> P;
    const u32 h = product / 2, i = product % 2;
    if constexpr (KIND == INT4 || KIND == LEVELS || KIND == E2M1) {
        const u32 word = h == 0 ? (i == 0 ? codes[0].x : codes[0].y) : (i == 0 ? codes[0].z : codes[0].w);
#pragma unroll
        for (u32 at = 0; at < 4; at++) {
            if constexpr (KIND == INT4) {
                a[at] = P::add(masked_or(word >> 4 * at, 0x000f000fu, P::BASE_BITS), shifts[at % 2]);
            } else if constexpr (KIND == E2M1) {
                const int low = 4 * (int)at;
                const u32 rest = moved(word, (int)P::SHORT_SHIFT - low) & P::SHORT_MASK;
                a[at] = P::short_floats(masked_or(moved(word, 12 - low), 0x80008000u, rest));
            } else {
                const u32 two = word >> 4 * at & 0x000f000fu;
                a[at] = table[(two | two >> 12) & 0xffu];
            }
        }
    } else {
        constexpr u32 LAST = KIND == INT8 || KIND == E4M3 ? 1 : 0;
        const uint4 piece = codes[h * LAST];
        const u32 words[2] = {i == 0 ? piece.x : piece.z, i == 0 ? piece.y : piece.w};
#pragma unroll
        for (u32 p = 0; p < 2; p++) {
            const u32 word = words[p];
            if constexpr (KIND == INT8) {
                a[2 * p] = P::less_zero(word & 0x00ff00ffu, shifts[0]);
                a[2 * p + 1] = P::less_zero(word >> 8 & 0x00ff00ffu, shifts[1]);
            } else {
                a[2 * p] = P::floats(word << 8, word << 8 >> P::FLOAT_SHIFT);
                a[2 * p + 1] = P::floats(word, word >> P::FLOAT_SHIFT);
            }
        }
    }
}

// What `decode` adds to codes of a row whose zero point is `zero`.
template <typename T, u32 KIND> DEVICE u32 row_shift(u32 zero) {
    if constexpr (KIND == INT4) return Pairs<T>::negative_base(zero);
    if constexpr (KIND == INT8) return Pairs<T>::shift_of(zero);
    return 0;
}

// What sums of decoded weights are multiplied by beside their scales.
template <typename T, u32 KIND> constexpr f32 FACTOR = 1.0f;
template <> constexpr f32 FACTOR<f16, E4M3> = Pairs<f16>::FLOAT_FACTOR;
#endif
