// What ranks have asked for, matched: collectives of a communicator in their order, messages of each pair in theirs.
//
// Where ranks do not agree, real NCCL hangs, or writes where it must not: here, all of their processes end with a line.
#include "world.h"
#include <algorithm>
#include <cstring>

namespace nccl {
void Link::answer(Message message, const std::string &bytes) {
    message.bytes = bytes.size();
    out.append(reinterpret_cast<const char *>(&message), sizeof message);
    out += bytes;
}

void World::end_all(const std::string &why) {
    for (auto &link : data) {
        if (link) link->answer({Kind::Wrong}, why);
    }
}

void World::lose(int rank) {
    Message lost = {Kind::Lost};
    lost.rank = rank;
    for (auto &link : data) {
        if (link) link->answer(lost);
    }
}

void World::leave(int rank) {
    left.insert(rank);
    if (left.size() < size_t(ranks)) return;
    for (auto &link : leaving) link->answer({Kind::Granted});
    leaving.clear();
}

ncclResult_t World::verdict() const {
    for (int a = 0; a < ranks; a++) {
        for (int b = 0; b < a; b++) {
            const Message &mine = controls[a]->hello, &other = controls[b]->hello;
            bool is_same = memcmp(mine.device, other.device, sizeof mine.device) == 0;
            if (is_same && !(mine.shares && other.shares)) return ncclInvalidUsage;
        }
    }
    return ncclSuccess;
}

void World::join(const Links &link) {
    const Message &hello = link->hello;
    auto &place = (hello.is_data ? data : controls)[hello.rank];
    if (hello.ranks != ranks || place) {
        Message refused = {Kind::Ready};
        refused.peer = ncclInvalidUsage;
        return link->answer(refused);
    }
    place = link;
    auto is_there = [](const Links &link) { return link != nullptr; };
    if (!std::all_of(data.begin(), data.end(), is_there)) return;
    if (!std::all_of(controls.begin(), controls.end(), is_there)) return;
    Message ready = {Kind::Ready};
    ready.peer = verdict();
    for (auto &control : controls) control->answer(ready);
}

void World::take(Work work) {
    const Message &message = work.message;
    int rank = work.link->hello.rank;
    if (message.kind == Kind::Connect) return connect(std::move(work));
    if (message.kind == Kind::Leave) {
        leaving.push_back(work.link);
        return leave(rank);
    }
    if (message.kind == Kind::Split) return splits.push_back(std::move(work));
    if (message.what == What::Send || message.what == What::Recv) {
        bool sends_it = message.what == What::Send;
        auto pair = sends_it ? std::make_pair(rank, message.peer) : std::make_pair(message.peer, rank);
        (sends_it ? sends : receives)[pair].push_back(std::move(work));
        return match_messages(pair);
    }
    collectives[rank].push_back(std::move(work));
    match_collectives();
}

static std::string text_of(int rank, const Message &message) {
    static const char *const types[] = {"int8", "uint8", "int32", "uint32", "int64",
                                        "uint64", "float16", "float32", "float64", "bfloat16"};
    return "rank " + std::to_string(rank) + " calls " + NAMES[int(message.what)] + " of " + std::to_string(message.count) +
           " " + types[message.type] + ", reduction " + std::to_string(message.reduction) + ", root or peer " +
           std::to_string(message.peer);
}

static void finish(const Work &work, const std::string &bytes = "") {
    Message done = {Kind::Done};
    done.index = work.message.index;
    work.link->answer(done, bytes);
}

void World::match_messages(std::pair<int, int> pair) {
    auto &sent = sends[pair], &wanted = receives[pair];
    while (!sent.empty() && !wanted.empty()) {
        Work from = std::move(sent.front()), to = std::move(wanted.front());
        sent.pop_front();
        wanted.pop_front();
        if (from.message.count != to.message.count || from.message.type != to.message.type) {
            return end_all(text_of(pair.first, from.message) + ", but " + text_of(pair.second, to.message));
        }
        finish(from);
        finish(to, from.bytes);
    }
}

void World::match_collectives() {
    auto has_none = [](const std::deque<Work> &queue) { return queue.empty(); };
    while (std::none_of(collectives.begin(), collectives.end(), has_none)) {
        std::vector<Work> all;
        for (auto &queue : collectives) {
            all.push_back(std::move(queue.front()));
            queue.pop_front();
        }
        const Message &first = all[0].message;
        std::vector<const std::string *> given;
        for (int rank = 0; rank < ranks; rank++) {
            const Message &other = all[rank].message;
            bool is_same = first.what == other.what && first.count == other.count && first.type == other.type;
            if (!is_same || first.reduction != other.reduction || first.peer != other.peer) {
                return end_all(text_of(0, first) + ", but " + text_of(rank, other));
            }
            given.push_back(&all[rank].bytes);
        }
        std::string result;
        size_t block = first.count * size_of(first.type);
        if (first.what == What::AllGather) {
            for (auto *bytes : given) result += *bytes;
        } else if (first.what == What::Broadcast) {
            result = *given[first.peer];
        } else {
            size_t elements = given[0]->size() / size_of(first.type);
            result = reduce(given.data(), size_t(ranks), elements, first.type, first.reduction);
        }
        for (int rank = 0; rank < ranks; rank++) {
            bool is_scattered = first.what == What::ReduceScatter;
            bool is_without = first.what == What::Reduce && rank != first.peer;
            finish(all[rank], is_scattered ? result.substr(rank * block, block) : is_without ? "" : result);
        }
    }
}

// Waits until all who are concerned use each other for the first time, as NCCL connects them then.
void World::connect(Work work) {
    int rank = work.link->hello.rank;
    std::pair<int, int> pair = {-1, -1};
    if (work.message.what == What::Send) pair = {rank, work.message.peer};
    if (work.message.what == What::Recv) pair = {work.message.peer, rank};
    auto &waiting = firsts[pair];
    waiting.push_back(std::move(work));
    if (waiting.size() < size_t(pair.first < 0 ? ranks : 2)) return;
    for (auto &one : waiting) one.link->answer({Kind::Granted});
    waiting.clear();
}

void split(World &world, Worlds &worlds) {
    if (world.splits.size() < size_t(world.ranks)) return;
    std::vector<Work> all = std::move(world.splits);
    world.splits.clear();
    auto order = [](const Work &work) {
        return std::make_tuple(work.message.peer, work.message.key, work.link->hello.rank);
    };
    std::sort(all.begin(), all.end(), [&](const Work &a, const Work &b) { return order(a) < order(b); });
    for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
        int color = all[begin].message.peer;
        while (end < all.size() && all[end].message.peer == color) end++;
        Message part = {Kind::Granted};
        part.ranks = color < 0 ? 0 : int(end - begin);
        part.world = int(worlds.size());
        if (color >= 0) worlds.emplace(part.world, World(part.ranks));
        for (size_t i = begin; i < end; i++) {
            part.rank = int(i - begin);
            all[i].link->answer(part);
        }
    }
}
} // namespace nccl
