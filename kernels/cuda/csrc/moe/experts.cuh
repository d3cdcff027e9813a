// The pairs of row and expert of a step, in a list for each expert, and those cut into tiles: what `route.cu` leaves
// for products of experts.
#pragma once
#include "activation.cuh"

// Pairs of one expert from place `begin` on, at most as many as a tile has rows; `end` is where the expert's list ends.
struct __align__(16) Tile {
    u32 expert;
    u32 begin;
    u32 end;
    // The expert's first tile.
    u32 first_tile;
};

// See src/routing.rs.
struct Choices {
    // Of each pair `row * top_k + slot`.
    u32* experts;
    f32* weights;
    // Lists of pairs, `room` places for each expert, and where tiles lie in them; null: each pair is a tile.
    u32* lists;
    Tile* tiles;
    // How many tiles there are; then what `route` counts with, and leaves at zero.
    u32* counts;
    u32 room;
    u32 tile_rows;

    DEVICE u32 num_tiles(u32 pairs) const { return lists ? counts[0] : pairs; }

    DEVICE Tile tile(u32 index) const {
        if (lists) return tiles[index];
        return {experts[index], index, index + 1, index};
    }

    DEVICE u32 rows_of(const Tile& tile) const { return min(tile.end - tile.begin, tile_rows); }

    // The pair at a place of the lists.
    DEVICE u32 pair(u32 at) const { return lists ? lists[at] : at; }
};
SAME_LAYOUT(Choices, Choices);

// What a kernel that is compiled for a configuration keeps of a product: all of its columns, or `function(gate) * up`
// of columns [gate | up].
#ifndef FUNCTION
#define FUNCTION ALL
#endif
constexpr bool GATED = FUNCTION != ALL;

// A product of rows with their experts.
struct ExpertShape {
    u32 pairs;
    // Pairs for which `x` has one row.
    u32 pairs_a_row;
    u32 n;
    u32 k;
    // Whether the output is f32; else it has the input's type.
    u32 wide;
    // Of the function.
    f32 limit;

    // Columns of the output.
    DEVICE u32 width() const { return GATED ? n / 2 : n; }
    DEVICE f32 gated(f32 gate, f32 up) const {
        const Activation activation = {FUNCTION, limit};
        return activated<Nearly>(activation, gate) * gated_half(activation, up);
    }
};
SAME_LAYOUT(ExpertShape, ExpertShape);
