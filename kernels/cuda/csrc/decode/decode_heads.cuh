// What the kernels of decode attention, `attention_decode.cu` and `attention_decode_mqa.cu`, have in common: how the
// list of tiles is cut among blocks, and how a head ends. For files that say TYPE, V_DIM, WARPS, TILE, GROUP (query
// heads of a key head that a block takes at once) and BLOCK_TILES (tiles that a block takes at least: below, adding up
// parts costs more than it gains).
#pragma once
#include "cached.cuh"
#include "decode.cuh"
#include "decode_parts.cuh"
#include "mma.cuh"
#ifdef CASCADE
#include "cascade.cuh"
#endif

// Tiles of a block up to which adding up parts costs more than blocks that have a multiprocessor to themselves.
#define SHORT (640 / TILE)
// Parts of a head that are asked for at a time.
#define AT_ONCE 8
#define LOG2E 1.4426950408889634f

// What does not change while a launch is recorded and replayed; `Shares` of `src/attention/attention_decode.rs`.
struct Shares {
    // Padding included.
    u32 rows, sequences;
    u32 multiprocessors;
    // Query heads of a key head; how many groups they are, and such groups of all key heads.
    u32 group_size, groups_per_head, heads;
    // 2^35 / attention.block_size, rounded up.
    u32 block_inverse;
};
SAME_LAYOUT(Shares, Shares);

struct DecodeHeads {
    typedef TYPE T;
    typedef Slot<GROUP, V_DIM> Left;

    T* out;
    const T* qkv;
    const Cached* keys;
    const Cached* values;
    // What blocks leave each other of heads.
    f32* scratch;
    Attention attention;
    Shares shares;
    List list;
#ifdef CASCADE
    Cascade cascade;
    SharedPrefix prefix;
#endif

    // Key head of a cursor's group, its first query head, and how many there are.
    DEVICE u32 kv_head(const Cursor& at) const {
        return shares.groups_per_head == 1 ? at.head : at.head / shares.groups_per_head;
    }
    DEVICE u32 first_q(const Cursor& at) const {
        return shares.groups_per_head == 1 ? at.head * shares.group_size
                                           : kv_head(at) * shares.group_size + at.head % shares.groups_per_head * GROUP;
    }
    DEVICE u32 num_q(const Cursor& at) const {
        return shares.groups_per_head == 1 ? shares.group_size
                                           : min(GROUP, shares.group_size - at.head % shares.groups_per_head * GROUP);
    }

    DEVICE void write_out(const Cursor& at, u32 head, u32 column, Part all) const {
        const u32 q_head = first_q(at) + head;
        f32 factor = 1.0f;
        if (attention.sinks) {
            const f32 sink = attention.sinks[q_head] * LOG2E, most = fmaxf(all.most, sink);
            factor = exp2_fast(all.most - most);
            all.weight = all.weight * factor + exp2_fast(sink - most);
        }
        factor *= attention.v_scale_of<Cached>(kv_head(at)) / all.weight;
        u32* to = (u32*)(out + ((size_t)at.row * attention.q_heads + q_head) * V_DIM + column);
        const float4 sum = all.sum;
        *(uint2*)to = make_uint2(
            Tensor<T>::pack(sum.x * factor, sum.y * factor), Tensor<T>::pack(sum.z * factor, sum.w * factor));
    }

    // Adds what the next `others` blocks leave of a head, in their order.
    DEVICE void add_others(Part& all, u32 others, u32 head, u32 column) const {
#pragma unroll 1
        for (u32 first = 1; first <= others; first += AT_ONCE) {
            Part parts[AT_ONCE];
            const auto look = [&](u32 i) { parts[i] = Left(scratch, blockIdx.x + first + i).look(head, column); };
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                if (first + i <= others) look(i);
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; i++)
                if (first + i <= others) {
                    while (!parts[i].is_there()) look(i);
                    all.add(parts[i]);
                }
        }
    }

    // Adds what was left of a head's shared keys.
    DEVICE void add_shared(Part& all, const Cursor& at, u32 head, u32 column) const {
#ifdef CASCADE
        const u32 member = list.batch.member[at.sequence], kv = kv_head(at);
        if (member == NOBODY) return;
        const u32 row = (member - kv) * shares.group_size + first_q(at) + head;
        const u32 first = prefix.first_unit(kv, row / UNIT_ROWS);
#pragma unroll 4
        for (u32 i = 0; i < prefix.parts; i++) {
            const Unit<V_DIM> unit(cascade, first + i);
            Part part;
            part.sum = *(const float4*)unit.sums(row % UNIT_ROWS, column);
            part.most = unit.most(row % UNIT_ROWS);
            part.weight = unit.weight(row % UNIT_ROWS);
            all.add(part);
        }
#endif
    }

    // Ends a block's part of a head, which `others` more blocks have parts of: four columns at a time, of which
    // `part(head, column)` is what this block has seen. The one that `began` it writes the result: that is the last
    // thing it does, while the others did their part first, so that there is seldom anything to wait for. They wait for
    // no other block in doing so, and blocks start in order: of those that have started, one at most waits for some
    // that have not, and all others leave room for these.
    template <typename F>
    DEVICE void end_head(const Cursor& at, bool began, u32 others, const F& part) const {
        for (u32 i = threadIdx.x; i < num_q(at) * (V_DIM / 4); i += WARPS * 32) {
            const u32 head = i / (V_DIM / 4), column = i % (V_DIM / 4) * 4;
            Part all = part(head, column);
            if (began) {
                add_others(all, others, head, column);
                add_shared(all, at, head, column);
                write_out(at, head, column, all);
            } else {
                Left(scratch, blockIdx.x).set(head, column, all);
            }
        }
        __syncthreads();
        for (u32 other = 1; other <= others; other++) Left(scratch, blockIdx.x + other).clear(WARPS * 32);
    }

    // Counts what there is.
    DEVICE Cursor count() {
        list.window = attention.window;
        list.heads = shares.heads;
        list.sequences = shares.sequences;
#ifdef CASCADE
        prefix = SharedPrefix(list.batch, attention, cascade);
        list.shared = prefix.tokens;
#endif
        return list.count();
    }

    // Blocks that take at most `most` whole heads each.
    DEVICE static u32 whole_heads(u32 all, u32 most) {
        const u32 each = quotient(all + most - 1, most);
        return quotient(all + each - 1, each);
    }

    // How many blocks the list is cut among: as many as there are, or fewer where that leaves less to add up.
    DEVICE u32 blocks() const {
        const u32 total = list.total, most = min(gridDim.x, (total + BLOCK_TILES - 1) / BLOCK_TILES),
                  all = list.active * list.heads;
        // Heads of one length: whole ones a block, or parts of each.
        if (list.longest * all != total) return most;
        const u32 count = all <= most ? quotient(most, all) * all : whole_heads(all, most);
        const u32 least = total <= SHORT * most ? min(shares.multiprocessors, most - most / 4) : most - most / 5;
        return count >= least ? min(count, most) : most;
    }

    // What a block does that has no tiles; rows of the batch come before padding.
    DEVICE void pass(u32 own_rows) const {
        launch_dependents();
        wait_for_inputs();
        clear_padding(own_rows);
    }

    // Zeros for rows of padding.
    DEVICE void clear_padding(u32 first) const {
        for (u32 row = first + blockIdx.x; row < shares.rows; row += gridDim.x)
            for (u32 i = threadIdx.x; i < attention.q_heads * V_DIM; i += WARPS * 32)
                out[(size_t)row * attention.q_heads * V_DIM + i] = Cast<T>::from(0.0f);
    }

    // Blocks after this one that have tiles of the head that its own end in.
    DEVICE u32 others(const Cut& cut, const Cursor& at) const {
        const bool ended = at.tile + 1 == at.end_tile;
        return ended ? 0 : cut.block_of(at.before + (at.head + 1) * at.tiles() - 1) - blockIdx.x;
    }
};
