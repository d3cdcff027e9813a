// What the ranks of a group exchange in small pieces: each rank writes its part straight into the memory of all others,
// over NVLink or PCIe, and reads theirs from its own. One crossing, no barrier: every number travels in one 8-byte word
// with the number of the call that it belongs to, so that a word is either of this call or not there yet (the idea of
// NCCL's "LL" protocol).
//
// A block counts its calls in device memory and talks to the block of the same number on other ranks, so nothing that
// the host passes changes from call to call, and a CUDA graph may hold the launch. Two halves take turns. Why that is
// enough: a block that writes call k has finished call k - 1, so it has the peer's words of k - 1, which the peer wrote
// after it had finished reading those of k - 2.
#include "quire.cuh"

#define MOST_RANKS 8

// Twin: src/one_shot.rs. An inbox is `[half][from rank][block][packet]`, a packet two words.
struct Ranks {
    u64* inbox[MOST_RANKS];
    u32* calls; // that each block has made
    u32 rank;
    u32 size;
    u32 blocks;  // in an inbox
    u32 packets; // of a block
};
SAME_LAYOUT(Ranks, Ranks);

// Words of a rank's packets for a block.
DEVICE u64* packets_of(const Ranks& ranks, u32 at, u32 from, u32 call) {
    u64 place = ((call & 1) * ranks.size + from) * (u64)ranks.blocks + blockIdx.x;
    return ranks.inbox[at] + place * ranks.packets * 2;
}

// An 8-byte access at system scope is one access to every device (PTX ISA, memory consistency model), also as half of a
// vector.
DEVICE void put(u64* packet, f32 x, f32 y, u32 call) {
    u64 first = (u64)call << 32 | __float_as_uint(x), second = (u64)call << 32 | __float_as_uint(y);
    asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(packet), "l"(first), "l"(second) : "memory");
}

DEVICE float2 take(const u64* packet, u32 call) {
    u64 first, second;
    do {
        asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
                     : "=l"(first), "=l"(second) : "l"(packet) : "memory");
    } while ((u32)(first >> 32) != call || (u32)(second >> 32) != call);
    return make_float2(__uint_as_float((u32)first), __uint_as_float((u32)second));
}

// Numbers 2i and 2i + 1 of `count`; what lies beyond the end is 0.
DEVICE float2 pair(const f32* x, u64 i, u64 count) {
    return make_float2(x[2 * i], 2 * i + 1 < count ? x[2 * i + 1] : 0.0f);
}

// Calls `got(pair, from, values)` for each of this block's pairs and each rank in order, this one included.
template <typename Got> DEVICE void exchange(const Ranks& ranks, const f32* x, u64 count, Got got) {
    wait_for_inputs();
    u32 call = ranks.calls[blockIdx.x] + 1;
    u64 pairs = (count + 1) / 2, share = (pairs + gridDim.x - 1) / gridDim.x;
    u64 first = blockIdx.x * share, end = first + share < pairs ? first + share : pairs;
    for (u64 i = first + threadIdx.x; i < end; i += blockDim.x) {
        float2 mine = pair(x, i, count);
        for (u32 step = 1; step < ranks.size; step++) {
            u32 to = (ranks.rank + step) % ranks.size;
            put(packets_of(ranks, to, ranks.rank, call) + 2 * (i - first), mine.x, mine.y, call);
        }
    }
    launch_dependents();
    for (u64 i = first + threadIdx.x; i < end; i += blockDim.x) {
        float2 mine = pair(x, i, count);
        for (u32 from = 0; from < ranks.size; from++) {
            const u64* packet = packets_of(ranks, ranks.rank, from, call) + 2 * (i - first);
            got(i, from, from == ranks.rank ? mine : take(packet, call));
        }
    }
    // The last look at the counter was every thread's first.
    __syncthreads();
    if (threadIdx.x == 0) ranks.calls[blockIdx.x] = call;
}

// x = sum over ranks of x, added in rank order: the same bits everywhere.
extern "C" __global__ void ranks_sum(Ranks ranks, f32* x, u64 count) {
    float2 sum;
    exchange(ranks, x, count, [&](u64 i, u32 from, float2 values) {
        sum = from == 0 ? values : make_float2(sum.x + values.x, sum.y + values.y);
        if (from + 1 < ranks.size) return;
        x[2 * i] = sum.x;
        if (2 * i + 1 < count) x[2 * i + 1] = sum.y;
    });
}

// Column `col` of row `row` of a rank's part goes to its place in the whole row, unless it is padding.
DEVICE void place(f32* out, u32 out_width, u32 width, u64 element, u32 from, f32 value) {
    u64 row = element / width, col = from * (u64)width + element % width;
    if (col < out_width) out[row * out_width + col] = value;
}

// out[row] = [x[row] of rank 0 | x[row] of rank 1 | ...], cut to `out_width`.
extern "C" __global__ void ranks_gather(Ranks ranks, const f32* x, f32* out, u32 rows, u32 width, u32 out_width) {
    u64 count = (u64)rows * width;
    exchange(ranks, x, count, [&](u64 i, u32 from, float2 values) {
        place(out, out_width, width, 2 * i, from, values.x);
        if (2 * i + 1 < count) place(out, out_width, width, 2 * i + 1, from, values.y);
    });
}

// The same of parts that are all here: `parts` is [rank][row][width].
extern "C" __global__ void ranks_place(const f32* parts, f32* out, u32 size, u32 rows, u32 width, u32 out_width) {
    u64 part = (u64)rows * width;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < size * part; i += gridDim.x * (u64)blockDim.x)
        place(out, out_width, width, i % part, i / part, parts[i]);
}
