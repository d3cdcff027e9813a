// Numbers that order as logits do.
#pragma once
#include "quire.cuh"

// Orders like the number; both zeros are equal.
DEVICE u32 ordered(f32 x) {
    u32 bits = __float_as_uint(__fadd_rn(x, 0.0f));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEVICE f32 from_ordered(u32 key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); }

// A logit and its token as one number: the larger, the better; of equals, the lower token. NaN: 0, which is less than
// all others.
DEVICE u64 logit_key(f32 x, u32 token) { return x == x ? (u64)ordered(x) << 32 | (u32)~token : 0; }

// The token of the largest key; `fallback` where there are only NaNs and -inf.
DEVICE u32 best_token(u64 key, u32 fallback) {
    return key == 0 || from_ordered((u32)(key >> 32)) == -infinity() ? fallback : ~(u32)key;
}
