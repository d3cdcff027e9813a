// Instructions that CUDA C++ has no words for: tensor cores, matrix loads from shared memory, asynchronous copies. From
// compute capability 8.0 on.
#pragma once
#include "quire.cuh"

// 16 bytes that are read once: not kept in L1.
DEVICE uint4 load_streamed(const void* from) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

// The same where `valid`; else `x` stays what it is.
DEVICE void load_streamed_if(uint4& x, const void* from, bool valid) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
                 "@p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
                 : "+r"(x.x), "+r"(x.y), "+r"(x.z), "+r"(x.w)
                 : "l"(from), "r"((u32)valid));
}

DEVICE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

DEVICE void store_shared(u32 to, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}

// Copies 16 bytes from global to shared memory, or writes zeros if not `valid` (then nothing is read).
DEVICE void copy_async(u32 to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

// The same for 4 bytes.
DEVICE void copy_word_async(u32 to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `PENDING` of this thread's latest groups are under way.
template <int PENDING>
DEVICE void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// A barrier of `threads` threads (whole warps) by number, 1 to 15.
DEVICE void named_barrier(u32 number, u32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Arrives there and goes on.
DEVICE void named_barrier_arrive(u32 number, u32 threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane 8 i + r gives the address of row r of matrix i. Lane 4 g + t gets elements
// 2 t and 2 t + 1 of row g of each; transposed: of column g.
DEVICE void load_matrices(u32 (&x)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}
DEVICE void load_matrices_transposed(u32 (&x)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(from)
                 : "memory");
}

// Two of them: lanes 0 to 15 give addresses.
DEVICE void load_two_matrices(u32 (&x)[2], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1]) : "r"(from) : "memory");
}
DEVICE void load_two_matrices_transposed(u32 (&x)[2], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1]) : "r"(from) : "memory");
}

// Transposes an 8x8 matrix of 16-bit elements that lies over a warp as `load_matrices` leaves it.
DEVICE u32 transpose(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// `multiply`: c[16][8] += a[16][16] b[16][8]. Lane 4 g + t has a[g][2t..], a[g + 8][2t..], a[g][2t + 8..], a[g + 8][2t
// + 8..]; b[2t..][g], b[2t + 8..][g]; c[g][2t], c[g][2t + 1], c[g + 8][2t], c[g + 8][2t + 1]. `pack`: two elements in a
// register, the first in the low half.
template <typename T> struct Tensor;
#define TENSOR_OF(T) \
    template <> struct Tensor<T> { \
        DEVICE static void multiply(f32 (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) { \
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T \
                         ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                         : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
                         : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1)); \
        } \
        DEVICE static u32 pack(f32 low, f32 high) { \
            u32 y; \
            asm("cvt.rn." #T "x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low)); \
            return y; \
        } \
    };
TENSOR_OF(bf16)
TENSOR_OF(f16)

// The two numbers of 8 bits in the low half, as f16.
DEVICE u32 widen_pair(u32 x) {
#if __CUDA_ARCH__ >= 890
    u32 y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"((u16)x));
    return y;
#else
    return Tensor<f16>::pack(load(e4m3{(u8)x}), load(e4m3{(u8)(x >> 8)}));
#endif
}

// A pair of elements of a 16-bit type as f16. What that cannot hold becomes its largest number.
template <typename T>
DEVICE u32 to_f16(u32 pair) {
    const T* x = (const T*)&pair;
    f32 y[2];
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        y[i] = load(x[i]);
        asm("min.NaN.f32 %0, %0, %1;\nmax.NaN.f32 %0, %0, %2;" : "+f"(y[i]) : "f"(65504.0f), "f"(-65504.0f));
    }
    return Tensor<f16>::pack(y[0], y[1]);
}

// 8 numbers of 8 bits as 16-bit floats, which hold them exactly.
template <typename T>
DEVICE uint4 widen(uint2 x) {
    const e4m3* from = (const e4m3*)&x;
    u32 to[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) to[i] = Tensor<T>::pack(load(from[2 * i]), load(from[2 * i + 1]));
    return make_uint4(to[0], to[1], to[2], to[3]);
}
