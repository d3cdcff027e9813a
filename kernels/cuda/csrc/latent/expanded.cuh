// Latent attention with keys and values of each head, made anew from latent vectors of some of the context at a time
// (`src/latent/expanded.rs`): what a round's kernels are told.
#pragma once
#include "quire.cuh"

// Parts of the context of sequences that fit into a round.
#define EXPANDED_PARTS 16u

// Some rows of a sequence, and keys that they see.
struct ExpandedPart {
    u32 sequence;
    // Of the sequence's rows in this step.
    u32 first_row, rows;
    // Of the sequence's tokens: the first is a multiple of 128.
    u32 begin, keys;
    // Where the first of them lies among those of the round: a multiple of 128 as well. What follows the last one up to
    // such a multiple is zeros.
    u32 at;

    template <u32 SIZE> DEVICE u32 tiles() const { return (rows + SIZE - 1) / SIZE; }
    // With zeros.
    DEVICE u32 room() const { return (keys + 127) / 128 * 128; }
};

struct ExpandedRound {
    u32 count;
    // Keys of all parts, with zeros.
    u32 tokens;
    ExpandedPart parts[EXPANDED_PARTS];
};
SAME_LAYOUT(ExpandedPart, ExpandedPart);
SAME_LAYOUT(ExpandedRound, ExpandedRound);
