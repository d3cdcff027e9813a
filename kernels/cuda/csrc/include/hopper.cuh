// Hopper's own instructions (sm_90a): warpgroup matrix products, barriers in shared memory, and the tensor copy engine.
#pragma once
#include "mma.cuh"

// How the copy engine finds a tensor: made by `cuTensorMapEncodeTiled`, passed by value as a `__grid_constant__`.
struct __align__(64) TensorMap { u64 words[16]; };

// A barrier is 8 bytes of shared memory; a phase ends when `count` arrivals and all expected bytes have come.
DEVICE void barrier_init(u32 barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// After `barrier_init`, before anyone else touches the barriers: makes them known to the copy engine.
DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
DEVICE void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives when all copies that this thread has asked for so far (`copy_async`) are done.
DEVICE void barrier_arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Waits until the phase of this parity has ended.
DEVICE void barrier_wait(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred p;\nretry:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\nbra retry;\ndone:\n}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

// To be called before a block uses a map that lies in global memory.
DEVICE void acquire_map(const TensorMap* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

// Makes a map known to the copy engine before it is needed.
DEVICE void prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

// Copies a box of a matrix to shared memory; what lies outside the matrix becomes zeros. Counts as bytes at the
// barrier.
DEVICE void copy_box(u32 to, const TensorMap* map, u32 column, u32 row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

// The same to the shared memory of every block of the cluster whose bit is set in `blocks`; each counts the bytes at
// its own barrier.
DEVICE void copy_box_to(u32 to, const TensorMap* map, u32 column, u32 row, u32 barrier, u16 blocks) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
        : "memory");
}

// Copies `bytes` bytes that lie one after the other, a multiple of 16, to shared memory; they count at the barrier.
DEVICE void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
// The same to every block of the cluster whose bit is set in `blocks`, as `copy_box_to`.
DEVICE void copy_bytes_to(u32 to, const void* from, u32 bytes, u32 barrier, u16 blocks) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "h"(blocks)
        : "memory");
}

// Copies a box of rows in groups of 8 (`tensor_map_of_groups` of `src/runtime/tensor_map.rs`), from columns
// `64 * chunk` and row `8 * group` on.
DEVICE void copy_groups(u32 to, const TensorMap* map, u32 chunk, u32 group, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2, %3, "
                 "%4}], [%5];" ::"r"(to),
        "l"(map), "r"(0), "r"(chunk), "r"(group), "r"(barrier)
        : "memory");
}
// The same for whole rows.
DEVICE void copy_rows(u32 to, const TensorMap* map, u32 group, u32 barrier) { copy_groups(to, map, 0, group, barrier); }
// The same to every block of the cluster whose bit is set in `blocks`, as `copy_box_to`.
DEVICE void copy_rows_to(u32 to, const TensorMap* map, u32 group, u32 barrier, u16 blocks) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%2, %2, %2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(0), "r"(group), "r"(barrier), "h"(blocks)
        : "memory");
}

// Copies a box from shared memory to a matrix, or adds it to what is there; what lies outside the matrix is left out.
// `copies_commit` closes a group of a thread's such copies, `copies_read` returns when all but the latest `PENDING`
// groups have left shared memory.
DEVICE void copy_box_out(const TensorMap* map, u32 column, u32 row, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(map), "r"(column), "r"(row), "r"(from)
                 : "memory");
}
DEVICE void add_box_out(const TensorMap* map, u32 column, u32 row, u32 from) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];"
                 ::"l"(map), "r"(column),
                 "r"(row), "r"(from)
                 : "memory");
}
// The same of `bytes` bytes that lie one after the other, a multiple of 16.
DEVICE void copy_bytes_out(void* to, u32 from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
                 : "memory");
}
DEVICE void copies_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <u32 PENDING>
DEVICE void copies_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory"); }

// Makes this thread's writes to shared memory visible to the tensor cores and the copy engine.
DEVICE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Blocks of a cluster, which read and write each other's shared memory. `address_in`: what lies at `address` in the
// block of a rank.
DEVICE u32 cluster_rank() {
    u32 rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
DEVICE u32 address_in(u32 address, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
// Of all threads of all blocks.
DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The same where nothing that was written before has to be seen: it waits for no write on its way to memory.
DEVICE void cluster_meeting() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Writes 4 bytes to some block, and counts them at a barrier of that block.
DEVICE void send(u32 to, u32 x, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                 ::"r"(to), "r"(x), "r"(barrier) : "memory");
}
// Reads 16 bytes at `address` in the block of a rank.
DEVICE float4 load_four_in(u32 address, u32 rank) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address_in(address, rank))
                 : "memory");
    return x;
}
// Arrives at a barrier of some block, where what it waits for is that something was read: no write is made known, which
// would take longer.
DEVICE void barrier_arrive_after_reading(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// `barrier_wait` for what other blocks of the cluster did.
DEVICE void barrier_wait_for_cluster(u32 barrier, u32 parity) {
    asm volatile("{\n.reg .pred p;\nretry:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\nbra retry;\ndone:\n}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

template <u32 REGISTERS>
DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <u32 REGISTERS>
DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }

// Around products: registers and shared memory are ready; a group is closed; at most `PENDING` groups are unfinished.
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <u32 PENDING>
DEVICE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }
// Keeps the compiler from moving uses of an accumulator over a wait.
template <u32 N>
DEVICE void settle(f32 (&c)[N]) {
#pragma unroll
    for (u32 i = 0; i < N; i++) asm volatile("" : "+f"(c[i])::"memory");
}

// Leaves an accumulator in shared memory, a line for each of its columns: sums `4 i ..` of a thread are in places g and
// g + 8 of its warp, of the lines 8 i + 2 t and its neighbour.
template <u32 LINE, u32 N>
DEVICE void leave_sums(f32* sums, const f32 (&c)[N]) {
    const u32 lane = threadIdx.x % 32, t = lane % 4, at = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (u32 i = 0; i < N / 4; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) sums[(8 * i + 2 * t + j % 2) * LINE + at + j / 2 * 8] = c[4 * i + j];
}

// Waits until the blocks of a cluster have left all sums; a block alone waits for `threads` threads.
template <u32 CLUSTER>
DEVICE void await_sums(u32 threads) {
    if constexpr (CLUSTER == 1) named_barrier(1, threads);
    else cluster_barrier();
}

// Where an operand lies in shared memory: rows of 128 bytes, swizzled by 128 bytes, in groups of 8 rows (1,024 bytes,
// aligned so). For an operand whose rows run along k, the groups follow each other; `next_part` is unused. For one
// whose rows run along n (a transposed operand), rows are k, and columns from 64 on lie `next_part` bytes further.
// `operand_in`: the same where groups of 8 rows lie `next_group` bytes apart.
DEVICE u64 operand_in(u32 address, u32 next_part, u32 next_group) {
    return (u64)(address >> 4 & 0x3fff) | (u64)(next_part >> 4 & 0x3fff) << 16 | (u64)(next_group >> 4) << 32 |
        (u64)1 << 62;
}
DEVICE u64 operand(u32 address, u32 next_part) { return operand_in(address, next_part, 1024); }

// The registers of an accumulator, as an instruction names them and as C++ hands them over.
#define NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_32 NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 \
    NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_112 \
    NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_128 \
    NAMES_112 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define REGISTERS_8(c, i) \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
        "+f"(c[i + 7])
#define REGISTERS_16(c) REGISTERS_8(c, 0), REGISTERS_8(c, 8)
#define REGISTERS_32(c) REGISTERS_16(c), REGISTERS_8(c, 16), REGISTERS_8(c, 24)
#define REGISTERS_64(c) REGISTERS_32(c), REGISTERS_8(c, 32), REGISTERS_8(c, 40), REGISTERS_8(c, 48), REGISTERS_8(c, 56)
#define REGISTERS_112(c) \
    REGISTERS_64(c), REGISTERS_8(c, 64), REGISTERS_8(c, 72), REGISTERS_8(c, 80), REGISTERS_8(c, 88), \
        REGISTERS_8(c, 96), REGISTERS_8(c, 104)
#define REGISTERS_128(c) REGISTERS_112(c), REGISTERS_8(c, 112), REGISTERS_8(c, 120)

// c[64][n] (+)= a[64][16] b[16][n] by a warpgroup. Warp w has rows 16 w ..; its lanes hold c and a as in
// `Tensor::multiply`, 8 columns of c after another; c is cleared first unless `add`. `multiply_shared`: both from
// shared memory, rows along k. `multiply_registers`: a from registers, b from shared memory, rows along k;
// `multiply_transposed`: the same with rows of b along n. A, B, C, D, E, P: the operands' numbers, after those of the
// accumulator.
#define SHARED_PRODUCT(T, N, COUNT, A, B, P) \
    DEVICE void multiply_shared(T, f32 (&c)[COUNT], u64 a, u64 b, u32 add) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" NAMES_##COUNT "}, %" #A ", %" #B \
                     ", p, 1, 1, 0, 0;\n}\n" \
                     : REGISTERS_##COUNT(c) \
                     : "l"(a), "l"(b), "r"(add)); \
    }
#define REGISTER_PRODUCT(NAME, T, N, COUNT, TRANSPOSED, A, B, C, D, E, P) \
    DEVICE void NAME(T, f32 (&c)[COUNT], const u32* a, u64 b, u32 add) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" NAMES_##COUNT \
                     "}, {%" #A ", %" #B ", %" #C ", %" #D "}, %" #E ", p, 1, 1, " #TRANSPOSED ";\n}\n" \
                     : REGISTERS_##COUNT(c) \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)); \
    }
#define PRODUCTS_OF(T) \
    SHARED_PRODUCT(T, 32, 16, 16, 17, 18) \
    SHARED_PRODUCT(T, 64, 32, 32, 33, 34) \
    SHARED_PRODUCT(T, 128, 64, 64, 65, 66) \
    SHARED_PRODUCT(T, 224, 112, 112, 113, 114) \
    SHARED_PRODUCT(T, 256, 128, 128, 129, 130) \
    REGISTER_PRODUCT(multiply_registers, T, 128, 64, 0, 64, 65, 66, 67, 68, 69) \
    REGISTER_PRODUCT(multiply_transposed, T, 64, 32, 1, 32, 33, 34, 35, 36, 37) \
    REGISTER_PRODUCT(multiply_transposed, T, 128, 64, 1, 64, 65, 66, 67, 68, 69)
PRODUCTS_OF(bf16)
PRODUCTS_OF(f16)

// Four 8x8 matrices of 16-bit elements from registers that hold them as `load_matrices` leaves them, transposed: lane 8
// i + r gives the address of what was column r of matrix i.
DEVICE void store_matrices_transposed(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// Adds up four sums at a time.
DEVICE void add(float4& sum, float4 x) { sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w; }
