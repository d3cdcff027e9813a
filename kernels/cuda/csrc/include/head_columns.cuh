// Where pieces of rows lie that are worked on one by one: heads, or columns.
#pragma once
#include "quire.cuh"

// See src/layers/groups.rs.
struct Columns {
    u32 first;
    u32 stride;
    u32 width; // of the whole row
};
SAME_LAYOUT(Columns, HeadColumns);
