// Runs csrc/comm/ranks.cu on a host: a group of ranks exchanges messages of all kinds and sizes, one after the other, and
// each is checked. `ranks RANKS SEED MESSAGES PACKETS`, the last being the packets of a block's chunk.
#include "ranks.cu"

#include "after_sum.cuh"
#include "two_shots.cuh"

#include <memory>
#include <vector>

const u32 BLOCKS = 2, BLOCK_THREADS = 24;
const f32 EPS = 1e-5f;

enum Kind { ONE_SHOT, TWO_SHOTS, ROWS, GATHER, KINDS };

struct Message {
    Kind kind;
    u64 count; // of numbers
    u32 width; // of rows that are gathered, or added and normed
    bool travels_in_16, is_in_16;
    u32 number;

    f32 sent(u32 rank, u64 i) const {
        u32 bits = number * 2654435761u + rank * 40503u + (u32)i * 2246822519u;
        bits = (bits ^ bits >> 15) * 2246822519u;
        const f32 x = (int)((bits ^ bits >> 13) % 2001) / 64.0f - 15.0f;
        return travels_in_16 ? load(Cast<bf16>::from(x)) : x;
    }

    f32 sum(u32 ranks, u64 i) const {
        f32 sum = sent(0, i);
        for (u32 rank = 1; rank < ranks; rank++) sum += sent(rank, i);
        return travels_in_16 ? load(Cast<bf16>::from(sum)) : sum;
    }

    f32 residual(u64 i) const { return (int)((number + i) % 13) - 6.0f; }

    u32 grid() const {
        if (kind == ROWS) return std::min<u64>(count / width, BLOCKS);
        const u64 each = kind != GATHER && travels_in_16 ? 8 : 4, packets = (count + each - 1) / each;
        return std::clamp<u64>((packets + BLOCK_THREADS - 1) / BLOCK_THREADS, 1, BLOCKS);
    }
};

// What a rank has of a message.
struct Had {
    std::vector<float4> memory, gathered;
    std::vector<f32> residual;

    f32* f32s() { return (f32*)memory.data(); }
    bf16* bf16s() { return (bf16*)memory.data(); }
    f32* out() { return (f32*)gathered.data(); }

    Had(const Message& message, u32 rank, u32 ranks)
        : memory(message.count / 4 + 1), gathered(message.kind == GATHER ? ranks * message.count / 4 + 1 : message.count / 4 + 1) {
        for (u64 i = 0; i < message.count * (message.kind == ROWS); i++) residual.push_back(message.residual(i));
        for (u64 i = 0; i < message.count; i++)
            if (message.is_in_16) bf16s()[i] = Cast<bf16>::from(message.sent(rank, i));
            else f32s()[i] = message.sent(rank, i);
    }

    // What is normed is f32, or bf16 where sums travel so.
    void add_norm(const Ranks& ranks, const Message& message) {
        const auto run = [&]<typename X, typename Out>(X* x, Out* normed) {
            const AddNorm<X, Out> after{residual.data(), x, {0, 0, EPS, 0}, normed, message.width};
            sum_in_two_shots<Out>(ranks, x, message.count, after);
        };
        if (message.is_in_16) run(bf16s(), (bf16*)out());
        else if (message.travels_in_16) run(f32s(), (bf16*)out());
        else run(f32s(), out());
    }

    void exchange(const Ranks& ranks, const Message& message) {
        const u64 count = message.count;
        if (message.kind == ROWS) return add_norm(ranks, message);
        if (message.kind == GATHER)
            return ranks_gather(ranks, f32s(), out(), count / message.width, message.width, ranks.size * message.width - 1);
        const auto add = [&]<typename X, typename T>(X* x, T) {
            if (message.kind == ONE_SHOT) sum<T>(ranks, x, count);
            else sum_in_two_shots<T>(ranks, x, count, Nothing());
        };
        if (message.is_in_16) add(bf16s(), bf16());
        else if (message.travels_in_16) add(f32s(), bf16());
        else add(f32s(), f32());
    }

    bool is_normed(const Message& message, u32 ranks) {
        std::vector<f32> row(message.width);
        for (u64 first = 0; first < message.count; first += row.size()) {
            f32 square = 0.0f;
            for (u32 i = 0; i < row.size(); i++) {
                row[i] = message.residual(first + i) + message.sum(ranks, first + i);
                if (residual[first + i] != row[i]) return false;
                square += row[i] * row[i];
            }
            const f32 factor = 1.0f / sqrtf(square / row.size() + EPS);
            for (u32 i = 0; i < row.size(); i++) {
                const f32 y = row[i] * factor, got = out()[first + i], got_16 = load(((bf16*)out())[first + i]);
                if (message.travels_in_16 ? got_16 != load(Cast<bf16>::from(y)) : got != y) return false;
            }
        }
        return true;
    }

    bool is_right(const Message& message, u32 ranks) {
        if (message.kind == ROWS && !is_normed(message, ranks)) return false;
        if (message.kind != GATHER) {
            for (u64 i = 0; i < message.count; i++)
                if ((message.is_in_16 ? load(bf16s()[i]) : f32s()[i]) != message.sum(ranks, i)) return false;
            return true;
        }
        const u32 width = message.width, out_width = ranks * width - 1;
        for (u64 i = 0; i < message.count / width * out_width; i++) {
            const u64 row = i / out_width, col = i % out_width;
            if (out()[i] != message.sent(col / width, row * width + col % width)) return false;
        }
        return true;
    }
};

// A row is whole packets, and a chunk has room for one at least.
Message drawn_rows(u32 number, u32 packets, u32 ranks) {
    const bool in_16 = rand() % 2;
    const u32 width = (1 + rand() % (packets * ranks)) * (in_16 ? 8 : 4);
    return {ROWS, (1 + rand() % 40) * (u64)width, width, in_16, in_16 && rand() % 2, number};
}

Message drawn(u32 number, u32 packets, u32 ranks) {
    const Kind kind = (Kind)(rand() % KINDS);
    if (kind == ROWS) return drawn_rows(number, packets, ranks);
    const u64 most = (u64)packets * BLOCKS * 8 * (1 + rand() % 16), count = 1 + rand() % most;
    const u32 width = 1 + rand() % std::min<u64>(count, 50);
    const bool sums = kind != GATHER, in_16 = sums && rand() % 2;
    return {kind, sums ? count : count / width * width, width, in_16, in_16 && rand() % 2, number};
}

int main(int, char** words) {
    const u32 size = atoi(words[1]), packets = atoi(words[4]);
    srand(atoi(words[2]));
    std::vector<Message> messages;
    for (int i = 0; i < atoi(words[3]); i++) messages.push_back(drawn(i, packets, size));

    std::vector<Ranks> ranks(size);
    std::vector<std::vector<uint4>> inboxes(size, std::vector<uint4>(2 * SLOTS * (size - 1) * BLOCKS * packets));
    std::vector<std::vector<u32>> chunks(size, std::vector<u32>(BLOCKS));
    std::vector<std::vector<Had>> numbers(size);
    std::vector<std::unique_ptr<std::barrier<>>> barriers;
    std::vector<std::thread> threads;
    auto barrier = [&](u32 of) { return barriers.emplace_back(std::make_unique<std::barrier<>>(of)).get(); };
    for (u32 rank = 0; rank < size; rank++) {
        for (const Message& message : messages) numbers[rank].emplace_back(message, rank, size);
        ranks[rank] = {{}, chunks[rank].data(), rank, size, BLOCKS, packets};
        for (u32 other = 0; other < size; other++) ranks[rank].inbox[other] = inboxes[other].data();
    }
    for (u32 rank = 0; rank < size; rank++) {
        std::barrier<>* stream = barrier(BLOCKS * BLOCK_THREADS);
        for (u32 at = 0; at < BLOCKS; at++) {
            std::barrier<>* of_block = barrier(BLOCK_THREADS);
            for (u32 thread = 0; thread < BLOCK_THREADS; thread++)
                threads.emplace_back([&, rank, stream, at, of_block, thread] {
                    block = of_block, blockIdx.x = at, threadIdx.x = thread, blockDim.x = BLOCK_THREADS;
                    for (const Message& message : messages) {
                        gridDim.x = message.grid();
                        if (at < gridDim.x) numbers[rank][message.number].exchange(ranks[rank], message);
                        // A launch begins when the one before it has ended.
                        stream->arrive_and_wait();
                    }
                });
        }
    }
    for (std::thread& thread : threads) thread.join();
    for (u32 rank = 0; rank < size; rank++) {
        for (const Message& message : messages)
            if (!numbers[rank][message.number].is_right(message, size)) {
                printf("rank %u: message %u of kind %d, %lu numbers\n", rank, message.number, message.kind, message.count);
                return 1;
            }
        for (uint4 packet : inboxes[rank])
            if (packet.x || packet.y || packet.z || packet.w) return puts("a packet is left"), 1;
    }
}
