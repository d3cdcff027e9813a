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
