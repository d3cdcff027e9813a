// What blocks of `attention_latent.cu` leave for `attention_latent_merge.cu`: their parts of tiles of rows whose keys
// several blocks took, and which those are.
#pragma once
#include "latent_list.cuh"

#define WIDTH 512u

// A tile of rows that a block began and others ended. No rows: there is none.
struct Split {
    // The first of its rows, counted in heads of the output.
    u32 row;
    u32 rows;
    // Blocks after this one that have parts of it.
    u32 others;
};
SAME_LAYOUT(Split, Split);

// A block's two parts: of the tile of rows that another block began, and of the one that another block ends.
struct LatentPart {
    static const u32 SIZE = ROWS * (WIDTH + 2);
    f32* at;

    DEVICE static LatentPart ended(f32* parts, u32 block) { return {parts + (size_t)(2 * block) * SIZE}; }
    DEVICE static LatentPart begun(f32* parts, u32 block) { return {parts + (size_t)(2 * block + 1) * SIZE}; }

    DEVICE f32* sums(u32 row) const { return at + row * WIDTH; }
    // What the row's weights are relative to (base 2), and their sum.
    DEVICE f32* base(u32 row) const { return at + ROWS * WIDTH + row; }
    DEVICE f32* weight(u32 row) const { return at + ROWS * (WIDTH + 1) + row; }
};
