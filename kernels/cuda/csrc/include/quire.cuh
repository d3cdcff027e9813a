// What every kernel shares: element types with conversions, sums over a warp and a block, and the structs that launches
// pass by value. No CUDA header is included: NVRTC finds none on most servers.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;

// Sizes and offsets of the structs that the host has too; generated (src/jit/layouts.rs).
#include "layouts.cuh"

// NVRTC has no `offsetof`; this is its compiler's word for an address as a constant.
#define OFFSET_OF(type, member) __INTADDR__(&((type*)0)->member)

// `type` lies in memory as the host's struct of this name: SAME_LAYOUT(Batch, Batch);
#define SAME_LAYOUT(type, name) \
    OFFSETS_OF_##name(type, 0) static_assert( \
        sizeof(type) == SIZE_OF_##name, #type " has another size than the host's " #name)
// The members of `type` from `first` on do.
#define SAME_PART(type, name, first) OFFSETS_OF_##name(type, OFFSET_OF(type, first))

// 16-bit floats are bits; arithmetic is in f32.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };

#define DEVICE __device__ __forceinline__

DEVICE f32 load(f32 x) { return x; }
DEVICE f32 load(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE f32 load(f16 x) {
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// 8-bit floats of a cache, as `kernels::e4m3` defines them.
struct e4m3 { u8 bits; };

DEVICE f32 load(e4m3 x) {
    const u32 rest = x.bits & 0x7f;
    // Read as an f32 with the bits in their places, the number is 2^120 too small, subnormal or not.
    const f32 size = __uint_as_float(rest << 20) * __uint_as_float((120 + 127) << 23);
    return __uint_as_float((rest == 0x7f ? 0x7fffffffu : __float_as_uint(size)) | (x.bits & 0x80u) << 24);
}

template <typename T> struct Cast;
template <> struct Cast<f32> {
    DEVICE static f32 from(f32 x) { return x; }
};
template <> struct Cast<bf16> {
    // To nearest, ties to even; NaN stays NaN.
    DEVICE static bf16 from(f32 x) {
#if __CUDA_ARCH__ >= 800
        u16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
        return {y};
#else
        u32 bits = __float_as_uint(x);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return {(u16)0x7fff};
        return {(u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#endif
    }
};
template <> struct Cast<f16> {
    DEVICE static f16 from(f32 x) {
        u16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
        return {y};
    }
};

template <> struct Cast<e4m3> {
    // To nearest, ties to even; what is too large becomes 448, and NaN stays NaN.
    DEVICE static e4m3 from(f32 x) {
        const u32 bits = __float_as_uint(x), size = bits & 0x7fffffffu;
        u32 code;
        if (size > 0x7f800000u) code = 0x7f;
        else if (size >= 0x43e00000u) code = 0x7e;
        // From 2^-6 on; exponents are biased by 127 there and 7 here.
        else if (size >= 0x3c800000u) code = ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3);
        else code = __float2uint_rn(__uint_as_float(size) * 512.0f);
        return {(u8)(bits >> 24 & 0x80u | code)};
    }
};

DEVICE f32 infinity() { return __uint_as_float(0x7f800000u); }

// 2^x, to about 2 units in the last place; 0 for -infinity.
DEVICE f32 exp2_fast(f32 x) {
    f32 y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE f32 warp_sum(f32 x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_xor_sync(~0u, x, lanes);
    return x;
}

DEVICE f32 warp_max(f32 x) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, lanes));
    return x;
}

// `WARP` over all threads of a block (a multiple of 32, at most 1024), the same bits in each of them.
template <f32 (*WARP)(f32)> DEVICE f32 block_reduce(f32 x, f32 neutral) {
    __shared__ f32 parts[32];
    x = WARP(x);
    u32 warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads();
    if (lane == 0) parts[warp] = x;
    __syncthreads();
    return WARP(lane < warps ? parts[lane] : neutral);
}
DEVICE f32 block_sum(f32 x) { return block_reduce<warp_sum>(x, 0.0f); }
DEVICE f32 block_max(f32 x) { return block_reduce<warp_max>(x, -infinity()); }

// Lets the next kernel of the stream start its blocks while this one still runs, if it was launched to allow that.
DEVICE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Returns when all earlier kernels are done and what they wrote can be read. Every thread of a kernel that may be
// launched early calls it before it touches anything but weights and the batch's description: "all earlier" holds only
// if each kernel of the chain waits. Nothing below 9.0.
DEVICE void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Brings a number into the cache of this multiprocessor, and waits for nothing.
DEVICE void touch(const f32* at) {
    asm volatile("{\n.reg .f32 unused;\nld.global.f32 unused, [%0];\n}\n" ::"l"(at));
}

#define NOBODY 0xffffffffu
// Slot of a row without an adapter.
constexpr u32 NO_ADAPTER = 0xffffffffu;

// The step's rows and sequences; see README.md. `src/batch.rs` has its twin.
struct Batch {
    u32* counts;
    u32* tokens;
    u32* positions;
    u32* row_sequence;
    u32* first_row;
    u32* num_rows;
    u32* start;
    u32* first_block;
    u32* blocks;
    u32* slots;
    u32* members;
    u32* member;
    u32* shared;
};
SAME_LAYOUT(Batch, Batch);

// What attention does; see README.md. `src/attention_layer.rs` has its twin.
struct Attention {
    const f32* sinks;
    const f32* alibi;
    const f32* relative; // [q_heads, 2 * reach + 1]: biases by distance, of the key farthest before a query first
    // What a cache of 8 bits keeps keys and values of each key head divided by; null: by nothing.
    const f32* key_scales;
    const f32* value_scales;
    f32 scale;
    f32 soft_cap;
    u32 window;
    u32 q_heads;
    u32 kv_heads;
    u32 dim;
    u32 v_dim;
    u32 block_size;
    u32 qkv_width;
    u32 v_stride; // elements from one token's value to the next: more than v_dim where values are the ends of keys
    // What results are multiplied by: a cache of 8 bits keeps values divided by it (keys' factor is in `scale`).
    f32 v_scale;
    // Rows see those after them too, up to their sequence's last; sequences begin at position 0.
    u32 bidirectional;
    u32 reach;

    // The end of what a row at `position` sees of a sequence that ends at `end`.
    DEVICE u32 seen_end(u32 position, u32 end) const {
        if (!bidirectional) return position + 1;
        return window < end - position ? position + window : end;
    }

    // What scores of a key head are multiplied by, and results, where the cache keeps numbers of type C.
    template <typename C> DEVICE f32 scale_of(u32 kv_head) const {
        return sizeof(C) == 1 && key_scales ? scale * key_scales[kv_head] : scale;
    }
    template <typename C> DEVICE f32 v_scale_of(u32 kv_head) const {
        return sizeof(C) == 1 && value_scales ? v_scale * value_scales[kv_head] : v_scale;
    }

    // The learned bias of a head's query and a key.
    DEVICE f32 bias(u32 head, u32 position, u32 key) const {
        const int far = (int)key - (int)position, most = (int)reach;
        return relative[(size_t)head * (2 * reach + 1) + (far < -most ? 0 : far > most ? 2 * most : far + most)];
    }
};
SAME_LAYOUT(Attention, Attention);
