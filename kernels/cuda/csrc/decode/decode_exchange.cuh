// How blocks of `attention_decode_mqa.cu` add up what each has seen of a head: all of them at once, some pieces of the
// query heads each. One block alone would read as many numbers as all of them leave, while the others idle.
//
//     blocks of a head | 0          1          2          3          | each has seen some of the keys of all pieces,
//     pieces           | 0 1 2 3 4  5 6 7 8 9  10 ... 14  15 ... 19  | and adds up all parts of some
//
// Within a block several threads add up the same columns, each what some of the blocks left, so that reading takes one
// or two ways to memory and back.
//
// Blocks that add up a head wait for all that have parts of it. Blocks start in order, and none waits before it has
// left its parts: of those that have started, as many as add up a head at most wait for some that have not, and all
// others leave room for these. So fewer add up than there are multiprocessors, of which each has room for one block at
// least, however the kernel before this one had its memory divided.
#pragma once
#include "decode_heads.cuh"

// Columns of a piece, which is what is dealt out.
#define PIECE 16u
// Parts that a thread asks for at a time.
#define AT_A_TIME 14u

// A block's part of a head that several have parts of: as `Slot`, but each piece has the two other numbers for itself,
// so that who adds it up clears them.
struct Pieces {
    static const u32 NUMBERS = GROUP * V_DIM, SIZE = NUMBERS + 2 * GROUP * (V_DIM / PIECE);
    f32* at;

    DEVICE Pieces(f32* scratch, u32 slot) : at(scratch + (size_t)slot * SIZE) {}

    // Where the sums of four columns are, and the largest score and the sum of weights that belong to them.
    DEVICE f32* sums(u32 head, u32 column) const { return at + head * V_DIM + column; }
    DEVICE f32* numbers_of(u32 piece) const { return at + NUMBERS + 2 * piece; }
    DEVICE f32* numbers(u32 head, u32 column) const { return numbers_of(head * (V_DIM / PIECE) + column / PIECE); }

    DEVICE void set(u32 head, u32 column, const Part& part) const {
        leave(sums(head, column), part.sum);
        if (column % PIECE == 0) leave(numbers(head, column), make_float2(part.most, part.weight));
    }
    // What is there of four columns.
    DEVICE static Part look(const f32* sums, const f32* numbers) {
        Part part;
        part.sum = peek_four(sums);
        const float2 two = peek_two(numbers);
        part.most = two.x, part.weight = two.y;
        return part;
    }
    DEVICE static void clear(float4* sums) {
        const f32 empty = __uint_as_float(EMPTY);
        *sums = make_float4(empty, empty, empty, empty);
    }
    DEVICE static void clear(float2* numbers) {
        const f32 empty = __uint_as_float(EMPTY);
        *numbers = make_float2(empty, empty);
    }
};

struct DecodeExchange : DecodeHeads {
    static const u32 THREADS = 32 * WARPS;

    // What a block leaves of a head: of the one that it began, or of one that another began.
    DEVICE Pieces part_of(u32 block, bool began) const { return Pieces(scratch, 2 * block + began); }

    // Leaves a block's part of a head; `part(head, column)` has four columns of it.
    template <typename F>
    DEVICE void leave_part(const Cursor& at, bool began, const F& part) const {
        const Pieces to = part_of(blockIdx.x, began);
        for (u32 i = threadIdx.x; i < num_q(at) * (V_DIM / 4); i += THREADS) {
            const u32 head = i / (V_DIM / 4), column = i % (V_DIM / 4) * 4;
            to.set(head, column, part(head, column));
        }
        __syncthreads();
    }

    // Four columns of a query head, of `count` blocks from `first` on, in their order. `of_head`: the head's first
    // block.
    DEVICE Part take(u32 of_head, u32 first, u32 count, u32 head, u32 column) const {
        const u32 APART = 2 * Pieces::SIZE;
        Part all;
        all.most = -infinity(), all.weight = 0.0f, all.sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        f32* sums = part_of(first, false).sums(head, column);
        f32* numbers = part_of(first, false).numbers(head, column);
        // From there to the first part.
        u32 skip = first == of_head ? Pieces::SIZE : 0;
#pragma unroll 1
        for (u32 taken = 0; taken < count; taken += AT_A_TIME) {
            // So that places are these pointers and constants: the compiler would keep each in registers otherwise.
            asm volatile("" : "+l"(sums), "+l"(numbers));
            const auto place = [&](u32 i) { return i == 0 ? skip : i * APART; };
            const auto look = [&](u32 i) { return Pieces::look(sums + place(i), numbers + place(i)); };
            Part parts[AT_A_TIME];
#pragma unroll
            for (u32 i = 0; i < AT_A_TIME; i++)
                if (taken + i < count) parts[i] = look(i);
#pragma unroll
            for (u32 i = 0; i < AT_A_TIME; i++)
                if (taken + i < count) {
                    while (!parts[i].is_there()) parts[i] = look(i);
                    all.add(parts[i]);
                    Pieces::clear((float4*)(sums + place(i)));
                }
            sums += AT_A_TIME * APART, numbers += AT_A_TIME * APART;
            skip = 0;
        }
        return all;
    }

    // Adds up what the `ways` threads that have the same columns took, for the first of them. `shared`: room for a Part
    // a thread.
    DEVICE static void add_ways(Part& all, f32* shared, u32 way, u32 ways, u32 apart) {
        float4* sums = (float4*)shared + threadIdx.x;
        float2* numbers = (float2*)(shared + 4 * THREADS) + threadIdx.x;
        if (way > 0) *sums = all.sum, *numbers = make_float2(all.most, all.weight);
        __syncthreads();
        if (way > 0) return;
        for (u32 other = 1; other < ways; other++) {
            Part part;
            part.sum = sums[other * apart];
            part.most = numbers[other * apart].x, part.weight = numbers[other * apart].y;
            all.add(part);
        }
    }

    // Does this block's share of adding up a head that several have parts of. `shared`: room for a Part a thread.
    DEVICE void add_up(const Cursor& at, const Cut& cut, f32* shared) const {
        const u32 unit = at.before + at.head * at.tiles(), first = cut.block_of(unit);
        const u32 end = cut.block_of(unit + at.tiles() - 1) + 1, blocks = end - first;
        // The last ones.
        const u32 adders = min(blocks, max(shares.multiprocessors / 2, 1));
        if (blockIdx.x + adders < end) return;
        const u32 index = blockIdx.x + adders - end, pieces = num_q(at) * (V_DIM / PIECE);
        const u32 from = pieces * index / adders, count = pieces * (index + 1) / adders - from;
        if (count == 0) return;
        // Threads of the same columns, and how far these are apart.
        const u32 fours = count * (PIECE / 4), ways = min(max(THREADS / fours, 1), blocks), apart = THREADS / ways;
        const u32 way = threadIdx.x / apart;
        for (u32 turn = 0; turn < fours; turn += apart) {
            const u32 four = turn + threadIdx.x % apart, place = from * PIECE + 4 * four;
            const u32 head = place / V_DIM, column = place % V_DIM;
            const bool takes = way < ways && four < fours;
            const u32 nth = blocks * way / ways, to_take = takes ? blocks * (way + 1) / ways - nth : 0;
            Part all = take(first, first + nth, to_take, head, column);
            // Then this is the only turn.
            if (ways > 1) add_ways(all, shared, way, ways, apart);
            if (takes && way == 0) write_out(at, head, column, all);
        }
        // All threads have read the numbers of pieces.
        __syncthreads();
        for (u32 i = threadIdx.x; i < blocks * count; i += THREADS) {
            const u32 block = first + i / count;
            Pieces::clear((float2*)part_of(block, block == first).numbers_of(from + i % count));
        }
    }
};
