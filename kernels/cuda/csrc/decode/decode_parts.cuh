// Parts of a head that blocks of decode attention leave each other in memory. Every number says itself whether it is
// there: until then it is EMPTY. So no block counts or orders anything, which would cost a way to memory and back
// for the writes, and another for the count.
#pragma once
#include "quire.cuh"

// A NaN that no instruction gives: theirs is 0x7fffffff.
#define EMPTY 0xffffffffu

DEVICE bool is_empty(f32 x) { return __float_as_uint(x) == EMPTY; }
DEVICE f32 full(f32 x) { return is_empty(x) ? __uint_as_float(0x7fffffffu) : x; }

DEVICE void leave(f32* to, f32 x) {
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(full(x)) : "memory");
}
DEVICE void leave(f32* to, const float2& x) {
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(full(x.x)), "f"(full(x.y)) : "memory");
}
DEVICE void leave(f32* to, const float4& x) {
    asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 ::"l"(to), "f"(full(x.x)), "f"(full(x.y)), "f"(full(x.z)), "f"(full(x.w))
                 : "memory");
}
DEVICE f32 peek(const f32* from) {
    f32 x;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    return x;
}
DEVICE float2 peek_two(const f32* from) {
    float2 x;
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(from) : "memory");
    return x;
}
DEVICE float4 peek_four(const f32* from) {
    float4 x;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from) : "memory");
    return x;
}

DEVICE void add_scaled(float4& sum, const float4& x, f32 factor) {
    sum.x += x.x * factor;
    sum.y += x.y * factor;
    sum.z += x.z * factor;
    sum.w += x.w * factor;
}

// Four columns of a query head over some keys: the largest score (base 2), and relative to it the sums of weights, and
// of weighted values.
struct Part {
    f32 most, weight;
    float4 sum;

    DEVICE bool is_there() const {
        return !(is_empty(most) || is_empty(weight) || is_empty(sum.x) || is_empty(sum.y) || is_empty(sum.z) ||
            is_empty(sum.w));
    }
    DEVICE void add(const Part& other) {
        const f32 all = fmaxf(most, other.most), shrink = exp2_fast(most - all), factor = exp2_fast(other.most - all);
        most = all;
        weight = weight * shrink + other.weight * factor;
        sum.x *= shrink, sum.y *= shrink, sum.z *= shrink, sum.w *= shrink;
        add_scaled(sum, other.sum, factor);
    }
};

// A block's part of the head that another block began: `HEADS` query heads of `WIDTH` columns. All EMPTY between
// launches.
template <u32 HEADS, u32 WIDTH>
struct Slot {
    static const u32 SIZE = HEADS * (WIDTH + 2);
    f32* at;

    DEVICE Slot(f32* scratch, u32 block) : at(scratch + (size_t)block * SIZE) {}

    DEVICE void set(u32 head, u32 column, const Part& part) const {
        leave(at + head * WIDTH + column, part.sum);
        if (column == 0) {
            leave(at + HEADS * WIDTH + head, part.most);
            leave(at + HEADS * (WIDTH + 1) + head, part.weight);
        }
    }
    // What is there of it.
    DEVICE Part look(u32 head, u32 column) const {
        Part part;
        part.sum = peek_four(at + head * WIDTH + column);
        part.most = peek(at + HEADS * WIDTH + head);
        part.weight = peek(at + HEADS * (WIDTH + 1) + head);
        return part;
    }
    // By all `threads` of a block, when none of them looks any more.
    DEVICE void clear(u32 threads) const {
        const f32 empty = __uint_as_float(EMPTY);
        for (u32 i = threadIdx.x * 4; i < SIZE; i += threads * 4)
            *(float4*)(at + i) = make_float4(empty, empty, empty, empty);
    }
};
