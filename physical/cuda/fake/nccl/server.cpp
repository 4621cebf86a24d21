// The server of a communicator, on a thread of the process that has drawn its id: it answers what ranks ask for once all have
// asked for the same. Where they do not agree, real NCCL hangs, or writes where it must not: here, all of their processes
// end with a line.
//
// It never waits for a single rank, so that nobody who sends much and reads late holds up the others.
#include "wire.h"
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <poll.h>
#include <set>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

NCCL ncclGetUniqueId(ncclUniqueId *);

namespace nccl {
namespace {
// Bytes that are still to be sent, by all servers of the process.
std::atomic<size_t> unsent;

// Connection to a rank, which has two.
struct Link {
    int socket;
    std::string in = {}, out = {};
    // Rank behind it, once it has said so.
    int rank = -1;
};
using Links = std::shared_ptr<Link>;

// What a rank asks for.
struct Request {
    Links link;
    Message message;
    std::string bytes;
};

void answer(const Links &link, Message message, const std::string &bytes) {
    message.bytes = bytes.size();
    link->out.append(reinterpret_cast<const char *>(&message), sizeof message);
    link->out += bytes;
}

std::string text_of(const Message &message) {
    static const char *const types[] = {"int8", "uint8", "int32", "uint32", "int64",
                                        "uint64", "float16", "float32", "float64", "bfloat16"};
    return "rank " + std::to_string(message.rank) + " calls " + NAMES[int(message.what)] + " of " +
           std::to_string(message.count) + " " + types[message.type] + ", reduction " +
           std::to_string(message.reduction) + ", root " + std::to_string(message.root);
}

// Carries out a collective.
void carry_out(const std::vector<Request> &all) {
    const Message &first = all[0].message;
    std::vector<const std::string *> given;
    for (const Request &one : all) {
        const Message &other = one.message;
        bool is_same = first.what == other.what && first.count == other.count && first.type == other.type;
        if (!is_same || first.reduction != other.reduction || first.root != other.root) {
            Message wrong = {Kind::Work};
            wrong.is_wrong = true;
            for (const Request &each : all) answer(each.link, wrong, text_of(first) + ", but " + text_of(other));
            return;
        }
        given.push_back(&one.bytes);
    }
    std::string result;
    size_t size = size_of(first.type), block = first.count * size;
    if (first.what == What::AllGather) {
        for (auto *bytes : given) result += *bytes;
    } else if (first.what == What::Broadcast) {
        result = *given[size_t(first.root)];
    } else {
        result = reduce(given.data(), given.size(), given[0]->size() / size, first.type, first.reduction);
    }
    for (size_t rank = 0; rank < all.size(); rank++) {
        bool is_scattered = first.what == What::ReduceScatter;
        bool gets_none = first.what == What::Reduce && int(rank) != first.root;
        answer(all[rank].link, {Kind::Work}, is_scattered ? result.substr(rank * block, block) : gets_none ? "" : result);
    }
}

// Gives the ranks of each color a server of their own, in the order of their keys.
void divide(const std::vector<Request> &all) {
    std::map<int, std::vector<const Request *>> groups;
    for (const Request &one : all) groups[one.message.root].push_back(&one);
    for (auto &[color, group] : groups) {
        std::stable_sort(group.begin(), group.end(),
                         [](auto *a, auto *b) { return a->message.reduction < b->message.reduction; });
        ncclUniqueId id = {};
        if (color >= 0) ncclGetUniqueId(&id);
        for (size_t rank = 0; rank < group.size(); rank++) {
            Message message = {Kind::Split, int(rank), int(group.size())};
            answer(group[rank]->link, message, std::string(id.internal, sizeof id.internal));
        }
    }
}

struct Server {
    int listener;
    std::vector<Links> links = {};
    // By kind, and by rank.
    std::map<Kind, std::vector<std::deque<Request>>> requests = {};
    std::set<int> left = {};
    // What ranks have sent, and what they wait for, by sender and receiver.
    std::map<std::pair<int, int>, std::deque<Request>> sent = {}, awaited = {};

    // Keeps what is sent, and answers who receives it. The sender does not wait, unlike with the real library.
    void pass_on(const Request &request) {
        const Message &message = request.message;
        bool is_sent = message.kind == Kind::Send;
        auto pair = is_sent ? std::pair(message.rank, message.root) : std::pair(message.root, message.rank);
        (is_sent ? sent : awaited)[pair].push_back(request);
        if (is_sent) answer(request.link, {Kind::Send}, "");
        auto &from = sent[pair], &to = awaited[pair];
        if (from.empty() || to.empty()) return;
        const Message &given = from.front().message, &wanted = to.front().message;
        Message message_back = {Kind::Receive};
        message_back.is_wrong = given.count != wanted.count || given.type != wanted.type;
        answer(to.front().link, message_back, message_back.is_wrong ? text_of(given) + ", but " + text_of(wanted) : from.front().bytes);
        from.pop_front();
        to.pop_front();
    }

    // Answers what all ranks have asked for.
    void match(Kind kind) {
        auto &asked = requests[kind];
        auto has_none = [&](size_t rank) { return asked[rank].empty() && !(kind == Kind::Leave && left.count(int(rank))); };
        for (;;) {
            std::vector<Request> all;
            for (size_t rank = 0; rank < asked.size(); rank++) {
                if (has_none(rank)) return;
            }
            for (auto &queue : asked) {
                if (queue.empty()) continue;
                all.push_back(std::move(queue.front()));
                queue.pop_front();
            }
            if (all.empty()) return;
            if (kind == Kind::Work) {
                carry_out(all);
            } else if (kind == Kind::Split) {
                divide(all);
            } else {
                for (auto &one : all) answer(one.link, {kind}, "");
            }
        }
    }

    void take(const Links &link, const Message &message, std::string bytes) {
        if (message.kind == Kind::Send || message.kind == Kind::Receive) return pass_on({link, message, std::move(bytes)});
        auto &asked = requests[message.kind];
        asked.resize(size_t(message.ranks));
        link->rank = message.rank;
        asked[size_t(message.rank)].push_back({link, message, std::move(bytes)});
        match(message.kind);
    }

    // Reads what has come. False once the connection is closed.
    bool read(const Links &link) {
        char some[65536];
        for (;;) {
            ssize_t got = recv(link->socket, some, sizeof some, MSG_DONTWAIT);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0 && errno == EAGAIN) break;
            if (got <= 0) return false;
            link->in.append(some, size_t(got));
        }
        size_t at = 0;
        Message message = {Kind::Hello};
        while (link->in.size() - at >= sizeof message) {
            memcpy(static_cast<void *>(&message), link->in.data() + at, sizeof message);
            if (link->in.size() - at - sizeof message < message.bytes) break;
            take(link, message, link->in.substr(at + sizeof message, message.bytes));
            at += sizeof message + message.bytes;
        }
        link->in.erase(0, at);
        return true;
    }

    void write(Link &link) {
        while (!link.out.empty()) {
            ssize_t sent = send(link.socket, link.out.data(), link.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
            if (sent < 0 && errno == EINTR) continue;
            if (sent <= 0) break;
            link.out.erase(0, size_t(sent));
        }
    }

    // Forgets a connection, whose rank has left.
    void lose(const Links &link) {
        close(link->socket);
        links.erase(std::find(links.begin(), links.end(), link));
        left.insert(link->rank);
        match(Kind::Leave);
    }

    void run() {
        bool had_some = false;
        size_t mine = 0;
        while (!had_some || !links.empty()) {
            std::vector<pollfd> polled = {{listener, POLLIN, 0}};
            std::vector<Links> open = links;
            size_t left_over = 0;
            for (auto &link : open) {
                write(*link);
                left_over += link->out.size();
                polled.push_back({link->socket, short(POLLIN | (link->out.empty() ? 0 : POLLOUT)), 0});
            }
            unsent += left_over - mine;
            mine = left_over;
            poll(polled.data(), polled.size(), -1);
            if (polled[0].revents) {
                int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
                if (socket >= 0) links.push_back(std::make_shared<Link>(Link{socket}));
                had_some |= socket >= 0;
            }
            for (size_t i = 0; i < open.size(); i++) {
                if (polled[i + 1].revents & ~POLLOUT && !read(open[i])) lose(open[i]);
            }
        }
        unsent -= mine;
        close(listener);
    }
};

// What has been computed reaches the others although this process ends.
[[gnu::destructor]] void flush() {
    for (int i = 0; i < 1000 && unsent; i++) usleep(1000);
}
} // namespace
} // namespace nccl

NCCL ncclGetUniqueId(ncclUniqueId *id) {
    int listener = nccl::listen_as(id);
    if (listener < 0) return nccl::fail(ncclSystemError, "no port: %s", strerror(errno));
    std::thread([listener] { nccl::Server{listener}.run(); }).detach();
    return ncclSuccess;
}
