// The parts of a product with packed experts that blocks take in turn: ROWS rows of a tile, and COLUMNS columns.
//
// Parts of one expert follow each other, first those of the same columns. So blocks that run at once read the weights
// and the rows of few experts: both come from memory once. The tile that an expert's columns begin with is the next one
// each time, so that its last, which has fewer rows, is not always the same block's.
#pragma once
#include "experts.cuh"
#include "packed.cuh"

struct Parts {
    // An expert's rows, places `begin .. end` of the lists, and the first of some columns of `out`.
    struct Part {
        u32 expert, begin, end, column;
    };

    const PackedWeights* weights;
    const Choices& choices;
    u32 column_tiles, all, width;
    u32 index;
    // First row of this part.
    u32 begin;
    Part now, next, last;
    PackedWeights next_w;

    // What says where a part's weights are is asked for two parts ahead.
    DEVICE Parts(const PackedWeights* weights, const Choices& choices, const ExpertShape& shape)
        : weights(weights), choices(choices), width(shape.width()) {
        column_tiles = (width + COLUMNS - 1) / COLUMNS;
        all = choices.num_tiles(shape.pairs) * column_tiles;
        index = blockIdx.x;
        now = part(index), next = part(index + gridDim.x), last = part(index + 2 * gridDim.x);
        next_w = weights[next.expert];
        begin = now.begin;
    }

    // Where there is none, any expert has weights.
    DEVICE Part part(u32 index) const {
        if (index >= all) return {0, 0, 0, 0};
        const u32 place = index / column_tiles, tile_rows = choices.tile_rows;
        const Tile some = choices.tile(place);
        const u32 first = some.begin - (place - some.first_tile) * tile_rows,
                  inside = index - some.first_tile * column_tiles;
        const u32 tiles = (some.end - first + tile_rows - 1) / tile_rows, column = inside / tiles;
        const u32 begin = first + (inside + column) % tiles * tile_rows;
        return {some.expert, begin, min(begin + tile_rows, some.end), column * COLUMNS};
    }

    DEVICE bool is_there() const { return index < all; }
    DEVICE u32 rows() const { return min(now.end - begin, ROWS); }
    DEVICE u32 column() const { return now.column; }

    // Whether the next part has other rows of the same tile.
    DEVICE bool goes_on() const { return begin + ROWS < now.end; }
    DEVICE bool ends() const { return !goes_on() && index + gridDim.x >= all; }
    DEVICE u32 column_of_next() const { return goes_on() ? now.column : next.column; }

    DEVICE void advance() {
        if (goes_on()) {
            begin += ROWS;
            return;
        }
        index += gridDim.x;
        now = next, next = last, last = part(index + 2 * gridDim.x);
        next_w = weights[next.expert];
        begin = now.begin;
    }
};

// What a part's sums become, and where.
struct Output {
    void* out;
    const f32* bias;
    const ExpertShape& shape;
};

// All parts of a block: MULTIPLYING threads multiply, with as many registers as the first number says, and a warpgroup
// brings them rows of x. The file says how `multiply_part` does one part, and `gather_parts` has the rows of all.
template <u32 PRODUCT_REGISTERS, u32 GATHER_REGISTERS, typename Product, typename RowStages, typename X>
DEVICE void run_parts(char* shared, u32* table, const X* x, const PackedWeights* weights, const Choices& choices,
    const Output& output) {
    launch_dependents();
    wait_for_inputs();
    Parts parts(weights, choices, output.shape);
    if (!parts.is_there()) return;
    const RowStages stages(shared);
    const PackedWeights w = weights[parts.now.expert];
    const u32 steps = w.chunks();
    if (threadIdx.x == 0) stages.init_barriers(128, MULTIPLYING / 32);
    if (threadIdx.x < MULTIPLYING) {
        take_registers<PRODUCT_REGISTERS>();
        Product product(stages, shared, table);
        product.w = w, product.steps = steps;
        product.begin(parts.column(), parts.width);
        named_barrier(2, THREADS);
        if (CODE == LEVELS) {
            make_table<TYPE>(product.w, table);
            named_barrier(1, MULTIPLYING);
        }
        for (; parts.is_there(); parts.advance()) multiply_part(product, parts, table, output);
    } else {
        give_registers<GATHER_REGISTERS>();
        named_barrier(2, THREADS);
        gather_parts(stages, parts, steps, x, output.shape);
    }
}
