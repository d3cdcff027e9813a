// What csrc/comm/ranks.cu needs of CUDA and of csrc/include/quire.cuh, on a host: a thread for each thread of a block.
#pragma once
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstring>

typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef float f32;
using std::min;

#define DEVICE inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(threads)
#define SAME_LAYOUT(type, name) static_assert(sizeof(type))

struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(16) float4 { f32 x, y, z, w; };
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }

template <typename To, typename From> To bits_as(From from) {
    To to;
    static_assert(sizeof(to) == sizeof(from));
    memcpy(&to, &from, sizeof(to));
    return to;
}
inline u32 __float_as_uint(f32 x) { return bits_as<u32>(x); }
inline f32 __uint_as_float(u32 bits) { return bits_as<f32>(bits); }

struct bf16 { u16 bits; };
// Its arithmetic plays no part: a type of 16 bits.
struct f16 { u16 bits; };
inline f32 load(f32 x) { return x; }
template <typename T> f32 load(T x) { return __uint_as_float((u32)x.bits << 16); }

// To the nearest, ties to even.
template <typename T> struct Cast {
    static T from(f32 x) {
        const u32 bits = __float_as_uint(x);
        return {(u16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
    }
};
template <> struct Cast<f32> {
    static f32 from(f32 x) { return x; }
};

struct Index { u32 x; };
inline thread_local Index blockIdx, threadIdx, blockDim, gridDim;
inline thread_local std::barrier<>* block;
inline void __syncthreads() { block->arrive_and_wait(); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void wait_for_inputs() {}
inline void launch_dependents() {}
