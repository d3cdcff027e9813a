// What adapters add to products of [gate | up] before these are gated, by the products' own blocks: no kernel of its
// own reads and writes what is gated, and an adapter's weights are read beside the product's.
#pragma once
#include "adapter_rows.cuh"

// Brings a line into the cache of all multiprocessors, and waits for nothing.
DEVICE void touch_far(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }

// The second halves of a layer's adapters: b is [slots][2][width][rank], as long as max_rank for each slot's part.
template <typename T> struct GateAdapters {
    const AdapterRows& adapters;
    const u32* slots;
    const T* b;
    u32 width;

    DEVICE const T* weights(u32 slot, u32 part) const {
        return b + ((u64)slot * 2 + part) * width * adapters.max_rank;
    }
};

// For blocks that have few columns: a thread has an output of a row, a gate and what it gates. In shared memory lie
// shrunk numbers, [rows][2][max_rank], and behind them weights of low ranks, for each thread its own.
template <typename T> struct ColumnDeltas : GateAdapters<T> {
    static constexpr u32 PIECES = RANKS * sizeof(T) / 16;

    f32* shrunk_rows;
    uint4* copies;

    DEVICE static bool is_copied(u32 rank) { return rank % 8 == 0 && rank <= RANKS; }

    // Before the input is there: weights are. `index`: of the thread's output of a row, among those of the block.
    DEVICE void copy_weights(u32 index, u32 row, u32 output) const {
        const u32 slot = this->slots[row];
        if (slot == NO_ADAPTER) return;
#pragma unroll
        for (u32 part = 0; part < 2; part++) {
            const u32 rank = this->adapters.rank(slot, part);
            if (!is_copied(rank)) continue;
            const T* from = this->weights(slot, part) + (u64)output * rank;
            const u32 to = shared_address(copies + (index * 2 + part) * PIECES);
            for (u32 k = 0; k < rank; k += 8) copy_async(to + k * sizeof(T), from + k, true);
        }
    }

    // A barrier has to follow.
    DEVICE void bring(const Shrunk& shrunk, u32 rows) const {
        const u32 line = 2 * this->adapters.max_rank;
        for (u32 i = threadIdx.x * 4; i < rows * line; i += blockDim.x * 4) {
            const u32 row = i / line, part = i % line / this->adapters.max_rank, k = i % this->adapters.max_rank;
            f32 four[4];
            shrunk.load(this->adapters, row, part, k, this->adapters.rank(this->slots[row], part), four);
            *(float4*)(shrunk_rows + i) = make_float4(four[0], four[1], four[2], four[3]);
        }
    }

    // What is added to an output of a part.
    DEVICE f32 of(u32 index, u32 slot, u32 row, u32 part, u32 output) const {
        const u32 rank = this->adapters.rank(slot, part);
        const T* w = is_copied(rank) ? (const T*)(copies + (index * 2 + part) * PIECES)
                                     : this->weights(slot, part) + (u64)output * rank;
        const f32* t = shrunk_rows + (row * 2 + part) * this->adapters.max_rank;
        f32 sum = 0.0f;
        if (rank % 8 != 0) {
            for (u32 k = 0; k < rank; k++) sum += load(w[k]) * t[k];
            return sum;
        }
        for (u32 k = 0; k < rank; k += 8) {
            const uint4 eight = *(const uint4*)(w + k);
            const T* x = (const T*)&eight;
#pragma unroll
            for (u32 e = 0; e < 8; e++) sum += load(x[e]) * t[k + e];
        }
        return sum;
    }
};

// For TEAM threads of a block whose sums of COLUMNS gates, and as many of what they gate, of up to MOST rows lie in
// shared memory, LINE apart: by tensor cores, for ranks of at most RANKS. A warp takes a group's rows and 32 columns of
// a part at a time, AHEAD of these at once.
template <typename T, u32 MOST, u32 TEAM, u32 COLUMNS, u32 LINE> struct TileDeltas : GateAdapters<T> {
    // Fours of shrunk numbers that a thread brings, of 8 for each row; and words of all, high and low.
    static constexpr u32 FOURS = 8, MINE = (MOST * FOURS + TEAM - 1) / TEAM, BYTES = MOST * FOURS * 16;
    static constexpr u32 SLICE = 32, SLICES = COLUMNS / SLICE, ITEMS = 2 * SLICES, AHEAD = 4;

    // Of the tile.
    u32 column;
    u32 row[MINE], rank[MINE];
    float4 mine[MINE];

    // Groups and their ranks, of whom there are at most as many as rows.
    struct Groups {
        Group at[MOST];
        u32 ranks[MOST][2];
    };

    // Before the input is there. Rows come in the order of their slots.
    DEVICE void prepare(Groups& groups) {
        for (u32 i = threadIdx.x; i < this->adapters.count; i += TEAM) {
            const Group group = this->adapters.groups[i];
            groups.at[i] = group;
#pragma unroll
            for (u32 part = 0; part < 2; part++) groups.ranks[i][part] = this->adapters.rank(group.slot, part);
        }
#pragma unroll
        for (u32 i = 0; i < MINE; i++) {
            const u32 index = threadIdx.x + i * TEAM, place = index / FOURS;
            row[i] = place < this->adapters.rows ? this->adapters.order[place] : 0;
            rank[i] = place < this->adapters.rows
                ? this->adapters.rank(this->slots[row[i]], index / 4 % 2) : 0;
        }
    }

    // Some time before they are used: what is read meanwhile would take their place.
    DEVICE void touch_weights() const {
        // A part's weights of a tile, in lines.
        constexpr u32 LINES = COLUMNS * RANKS * sizeof(T) / 128;
        for (u32 i = threadIdx.x; i < this->adapters.count * 2 * LINES; i += TEAM) {
            const u32 part = i / LINES % 2, slot = this->adapters.groups[i / (2 * LINES)].slot;
            if (slot == NO_ADAPTER) break;
            const u32 rank = this->adapters.rank(slot, part), at = i % LINES * (128 / sizeof(T));
            if (at < min(COLUMNS, this->width - column) * rank)
                touch_far(this->weights(slot, part) + (u64)column * rank + at);
        }
    }

    // As soon as the input is there.
    DEVICE void fetch(const Shrunk& shrunk) {
#pragma unroll
        for (u32 i = 0; i < MINE; i++) {
            const u32 index = threadIdx.x + i * TEAM;
            f32 four[4];
            shrunk.load(this->adapters, row[i], index / 4 % 2, index % 4 * 4, rank[i], four);
            mine[i] = make_float4(four[0], four[1], four[2], four[3]);
        }
    }

    // Where `staged`, of BYTES, is free. A barrier has to follow.
    DEVICE void stage(uint4* staged) const {
#pragma unroll
        for (u32 i = 0; i < MINE; i++) {
            const u32 index = threadIdx.x + i * TEAM;
            if (index >= MOST * FOURS) break;
            uint4 pairs;
            halves<T>(mine[i].x, mine[i].y, pairs.x, pairs.z);
            halves<T>(mine[i].z, mine[i].w, pairs.y, pairs.w);
            staged[index] = pairs;
        }
    }

    // An item of a warp's turn.
    struct Item {
        Group group;
        u32 part, slice, rows[2];
        Weights<T, SLICE / 8> weights;
    };

    DEVICE void begin(Item& item, const Groups& groups, u32 index) const {
        item.group.slot = NO_ADAPTER;
        if (index >= this->adapters.count * ITEMS) return;
        item.group = groups.at[index / ITEMS];
        item.part = index % ITEMS / SLICES, item.slice = index % SLICES;
        const u32 slot = item.group.slot;
        if (slot == NO_ADAPTER) return;
        const u32 rank = groups.ranks[index / ITEMS][item.part];
        item.weights.load(this->weights(slot, item.part), rank, this->width, column + item.slice * SLICE, 0);
        const RowsOf<1> rows(this->adapters, item.group);
        item.rows[0] = rows.at[0][0], item.rows[1] = rows.at[0][1];
    }

    // Adds an item to those of its rows that are among the `count` from `first` on.
    DEVICE void end(const Item& item, const uint4* staged, f32* sums, u32 first, u32 count) const {
        const u32 lane = threadIdx.x % 32, four = lane % 4;
        uint4 x[2];
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            // Past the group's last row is anything: each has sums of its own.
            const u32 place = min(item.group.first + lane / 4 + 8 * half, MOST - 1);
            x[half] = staged[(place * 2 + item.part) * 4 + four];
        }
        Deltas<1, SLICE / 8> deltas;
#pragma unroll
        for (u32 i = 0; i < SLICE / 8; i++) {
            const u32 (&w)[2] = item.weights.pairs[i];
            Tensor<T>::multiply(deltas.c[0][i], x[0].x, x[1].x, x[0].y, x[1].y, w[0], w[1]);
            Tensor<T>::multiply(deltas.c[0][i], x[0].z, x[1].z, x[0].w, x[1].w, w[0], w[1]);
        }
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            if (item.rows[half] == NO_ADAPTER || item.rows[half] - first >= count) continue;
            float4* to = (float4*)(sums + item.rows[half] * LINE + item.part * COLUMNS + item.slice * SLICE + four * 8);
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                float4 sum = to[i];
                sum.x += deltas.of(0, half, 4 * i), sum.y += deltas.of(0, half, 4 * i + 1);
                sum.z += deltas.of(0, half, 4 * i + 2), sum.w += deltas.of(0, half, 4 * i + 3);
                to[i] = sum;
            }
        }
    }

    // Adds all to rows `first` to `first + count`. A barrier has to follow.
    DEVICE void add(const Groups& groups, const uint4* staged, f32* sums, u32 first, u32 count) const {
        for (u32 index = threadIdx.x / 32; index < this->adapters.count * ITEMS; index += AHEAD * (TEAM / 32)) {
            Item items[AHEAD];
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++) begin(items[i], groups, index + i * (TEAM / 32));
            // Groups without an adapter are the last.
            if (items[0].group.slot == NO_ADAPTER) break;
#pragma unroll
            for (u32 i = 0; i < AHEAD; i++)
                if (items[i].group.slot != NO_ADAPTER) end(items[i], staged, sums, first, count);
        }
    }
};
