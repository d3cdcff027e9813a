// What products with weights of 4 or 8 bits on Hopper are fed with: rows of x in stages, and codes of w in registers.
#pragma once
#include "hopper_registers.cuh"
#include "packed_product.cuh"

// Stages of rows of x in shared memory, COUNT of BYTES each, which are filled and multiplied in turns; two barriers for
// each of them follow.
template <u32 BYTES, u32 COUNT> struct Stages {
    // Of stages and barriers, up to what may lie behind them.
    static constexpr u32 ALL_BYTES = COUNT * BYTES + (16 * COUNT + 127) / 128 * 128;

    u32 begin, full, empty;

    DEVICE Stages(const char* shared) {
        begin = (shared_address(shared) + 1023) / 1024 * 1024;
        full = begin + COUNT * BYTES;
        empty = full + 8 * COUNT;
    }

    // By one thread. A stage is full after `arrivals` arrivals, and empty after `releases`.
    DEVICE void init_barriers(u32 arrivals, u32 releases) const {
        for (u32 stage = 0; stage < COUNT; stage++) {
            barrier_init(full + 8 * stage, arrivals);
            barrier_init(empty + 8 * stage, releases);
        }
        barrier_init_done();
    }

    // Waits until a step's stage may be overwritten: where it lies.
    DEVICE u32 await_empty(u32 step) const {
        const u32 stage = step % COUNT;
        if (step >= COUNT) barrier_wait(empty + 8 * stage, step / COUNT % 2 ^ 1);
        return begin + stage * BYTES;
    }
    // What ends its filling.
    DEVICE u32 full_of(u32 step) const { return full + 8 * (step % COUNT); }
};

// Codes of 16 rows of w on a warp's way to the tensor cores: AHEAD chunks of them are under way, and become operands of
// products as they are needed.
template <u32 AHEAD> struct PackedStream {
    typedef TYPE T;
    static constexpr u32 AT_ONCE = AHEAD;
    // Whether codes are multiplied by scales, or sums; chunks that share a scale, as far as AHEAD goes.
    static constexpr bool SCALES_CODES = GROUP != 0 || ZEROS == OFFSETS;
    static constexpr u32 SHARING =
        GROUP == 0 ? AHEAD : GROUP % (CHUNK * AHEAD) == 0 ? AHEAD : GROUP % (CHUNK * 2) == 0 && AHEAD > 2 ? 2 : 1;

    // Which 16 rows, the first chunk of this part of k, and the end of those that exist.
    u32 tile, first, end;
    // What this lane reads.
    const uint4* from;
    uint4 codes[AHEAD][PIECES];
    Side sides[AHEAD / SHARING][SPANS];
    Scaling<T> scaling;

    // Starts reading chunks `first` to `end` of a tile of `w`, or of its last tile.
    DEVICE void start(const PackedWeights& w, u32 tile, u32 first, u32 end) {
        this->first = first, this->end = end;
        this->tile = min(tile, (w.n + TILE_ROWS - 1) / TILE_ROWS - 1);
        from = w.codes + ((u64)this->tile * w.chunks() + first) * PIECES * 32 + threadIdx.x % 32;
#pragma unroll
        for (u32 slot = 0; slot < AHEAD; slot++) {
#pragma unroll
            for (u32 piece = 0; piece < PIECES; piece++) codes[slot][piece] = make_uint4(0, 0, 0, 0);
            load(w, slot, slot);
        }
    }

    // Past the end codes stay what they are: x is zero there.
    DEVICE void load(const PackedWeights& w, u32 slot, u32 step) {
        const u32 chunk = first + step;
#pragma unroll
        for (u32 piece = 0; piece < PIECES; piece++)
            load_streamed_if(codes[slot][piece], from + (step * PIECES + piece) * 32, chunk < end);
        if (slot % SHARING) return;
#pragma unroll
        for (u32 span = 0; span < SPANS; span++) {
            const u32 column = chunk * CHUNK + span * (CHUNK / SPANS) + side_column();
            const u32 group = GROUP ? column / (GROUP ? GROUP : 1) : 0;
            sides[slot / SHARING][span] = Side::of(w, tile, min(group, w.groups - 1));
        }
    }

    // Operand registers of the products of a half of a chunk.
    DEVICE void decode_half(const u32* table, u32 slot, u32 half, u32 (&a)[2][4]) {
        if (slot % SHARING == 0 && (half == 0 || SPANS == 2)) scaling.set(sides[slot / SHARING][half % SPANS]);
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            decode<T, CODE>(codes[slot], 2 * half + i, scaling.shifts, table, a[i]);
            if constexpr (SCALES_CODES) scaling.apply(a[i]);
        }
    }

    // The codes of a half of a chunk, as operand registers.
    DEVICE void codes_of_half(u32 slot, u32 half, u32 (&a)[4]) const {
        const uint4 piece = codes[slot][half % PIECES];
        const u32 words[4] = {piece.x, piece.y, piece.z, piece.w};
        order_codes(a, words, flip_of(CODE));
#pragma unroll
        // Made before the product begins.
        for (u32 at = 0; at < 4; at++) asm volatile("" : "+r"(a[at]));
    }
};

// Multiplies a half of a chunk. `rows`: the operand of the first of two products; `add`: whether there are sums
// already.
template <typename T, u32 SUMS>
DEVICE void multiply_half(f32 (&c)[SUMS], const u32 (&a)[2][4], u64 rows, u32 add) {
    products_begin();
#pragma unroll
    for (u32 i = 0; i < 2; i++) multiply_registers(T(), c, a[i], rows + 2 * i, add + i);
    products_commit();
    // The half before is multiplied: its operands may be overwritten, and a stage that ended with it.
    products_wait<1>();
}

// Writes four numbers of a row, or adds them to what is there.
template <typename T> DEVICE void put_four(void* out, size_t at, float4 x, u32 wide, u32 accumulate) {
    if (wide) {
        if (accumulate) add(x, *(const float4*)((const f32*)out + at));
        *(float4*)((f32*)out + at) = x;
        return;
    }
    T* to = (T*)out + at;
    if (accumulate) add(x, make_float4(load(to[0]), load(to[1]), load(to[2]), load(to[3])));
    *(uint2*)to = make_uint2(Tensor<T>::pack(x.x, x.y), Tensor<T>::pack(x.z, x.w));
}
