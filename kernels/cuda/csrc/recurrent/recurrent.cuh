// What operations with a state share: a sequence's rows and its place in the state; see `ops::State`.
#pragma once
#include "quire.cuh"

// Some columns of a buffer: the first of row 0, and the width of a row.
template <typename T> struct Columns {
    const T* first;
    u32 width;

    DEVICE f32 at(u32 row, u32 column) const { return load(first[(u64)row * width + column]); }
};
SAME_LAYOUT(Columns<f32>, Columns);

// Neighbours as they lie in memory, read and written at once.
template <typename T, u32 COUNT> struct alignas(COUNT * sizeof(T)) Several { T x[COUNT]; };

// What states are kept as; see `State` in src/recurrent/mod.rs.
enum StateType : u32 { STATE_F32, STATE_BF16, STATE_F16 };

// A place in the memory of states. Arithmetic is in f32; 16-bit numbers are rounded when a sequence's rows of a step
// are done. Whole steps have one type, so no threads part ways here.
struct StatePlace {
    char* at;
    u32 type;

    DEVICE StatePlace operator+(u64 values) const { return {at + values * (type == STATE_F32 ? 4 : 2), type}; }

    DEVICE f32 widened(u16 bits) const { return type == STATE_BF16 ? load(bf16{bits}) : load(f16{bits}); }
    // What is too large for f16 becomes the largest that is not; NaN stays.
    DEVICE u16 rounded(f32 x) const {
        constexpr f32 MOST = 65504.0f;
        if (type == STATE_BF16) return Cast<bf16>::from(x).bits;
        return Cast<f16>::from(x > MOST ? MOST : x < -MOST ? -MOST : x).bits;
    }

    // COUNT neighbours, which lie at a multiple of their size; in groups that are `stride` values apart.
    template <u32 COUNT, u32 GROUPS> DEVICE void read(f32 (&to)[GROUPS][COUNT], u64 stride) const {
        if (type == STATE_F32) {
#pragma unroll
            for (u32 g = 0; g < GROUPS; g++)
                *(Several<f32, COUNT>*)to[g] = *((const Several<f32, COUNT>*)((const f32*)at + g * stride));
            return;
        }
        Several<u16, COUNT> kept[GROUPS];
#pragma unroll
        for (u32 g = 0; g < GROUPS; g++) kept[g] = *(const Several<u16, COUNT>*)((const u16*)at + g * stride);
#pragma unroll
        for (u32 g = 0; g < GROUPS; g++)
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) to[g][i] = widened(kept[g].x[i]);
    }
    template <u32 COUNT> DEVICE void read(f32 (&to)[COUNT]) const { read((f32(&)[1][COUNT])to, 0); }
    DEVICE f32 read() const { return type == STATE_F32 ? *(const f32*)at : widened(*(const u16*)at); }

    template <u32 COUNT> DEVICE void write(const f32 (&from)[COUNT]) const {
        if (type == STATE_F32) {
            Several<f32, COUNT> x;
#pragma unroll
            for (u32 i = 0; i < COUNT; i++) x.x[i] = from[i];
            *(Several<f32, COUNT>*)at = x;
            return;
        }
        Several<u16, COUNT> x;
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) x.x[i] = rounded(from[i]);
        *(Several<u16, COUNT>*)at = x;
    }
    DEVICE void write(f32 from) const {
        if (type == STATE_F32) *(f32*)at = from;
        else *(u16*)at = rounded(from);
    }
};

// A sequence's rows in this step.
struct Rows {
    u32 first, count;
    // Whether the sequence begins here: from a state of zeros.
    bool fresh;
    u64 slot;

    DEVICE Rows(const Batch& batch, u32 sequence)
        : first(batch.first_row[sequence]), count(batch.num_rows[sequence]), fresh(batch.start[sequence] == 0),
          slot(batch.slots[sequence]) {}
};

DEVICE f32 softplus(f32 x) { return x > 20.0f ? x : log1pf(expf(x)); }
