// The server of a unique id, on a thread of the process that has drawn it: it reads what ranks say, and sends answers.
//
// It never waits for a single rank, so that nobody who sends much and reads late holds up the others.
#include "world.h"
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace nccl {
namespace {
// Bytes that are still to be sent, by all servers of the process.
std::atomic<size_t> unsent;

struct Server {
    int listener;
    Worlds worlds = {};
    std::vector<Links> links = {};

    void run();
    void handle(const Links &link, Message message, std::string bytes);
    void read(const Links &link);
    void write(Link &link);
    void close_link(const Links &link);
};

void Server::handle(const Links &link, Message message, std::string bytes) {
    if (message.kind == Kind::Hello) {
        link->hello = message;
        // Only the first one is made by whoever comes.
        auto world = worlds.emplace(message.world, World(message.ranks)).first;
        return world->second.join(link);
    }
    if (message.kind == Kind::Bye) {
        link->has_left = true;
        return;
    }
    World &world = worlds.at(link->hello.world);
    world.take({link, message, std::move(bytes)});
    split(world, worlds);
}

void Server::read(const Links &link) {
    char some[65536];
    for (;;) {
        ssize_t got = recv(link->socket, some, sizeof some, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) break;
        if (got <= 0) return close_link(link);
        link->in.append(some, size_t(got));
    }
    size_t at = 0;
    Message message = {Kind::Bye};
    while (link->in.size() - at >= sizeof message) {
        memcpy(static_cast<void *>(&message), link->in.data() + at, sizeof message);
        if (link->in.size() - at - sizeof message < message.bytes) break;
        handle(link, message, link->in.substr(at + sizeof message, message.bytes));
        at += sizeof message + message.bytes;
    }
    link->in.erase(0, at);
}

void Server::write(Link &link) {
    size_t at = 0;
    while (at < link.out.size()) {
        ssize_t sent = send(link.socket, link.out.data() + at, link.out.size() - at, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) break;
        at += size_t(sent);
    }
    link.out.erase(0, at);
}

void Server::close_link(const Links &link) {
    close(link->socket);
    link->is_open = false;
    link->out.clear();
    auto world = worlds.find(link->hello.world);
    if (world == worlds.end()) return;
    if (!link->has_left && settings.remote) world->second.lose(link->hello.rank);
    if (!link->hello.is_data) world->second.leave(link->hello.rank);
}

void Server::run() {
    bool had_some = false;
    size_t mine = 0;
    for (;;) {
        std::vector<pollfd> polled = {{listener, POLLIN, 0}};
        std::vector<Links> open;
        size_t left = 0;
        for (auto &link : links) {
            if (link->is_open) write(*link);
        }
        for (auto &link : links) {
            if (!link->is_open) continue;
            open.push_back(link);
            left += link->out.size();
            polled.push_back({link->socket, short(POLLIN | (link->out.empty() ? 0 : POLLOUT)), 0});
        }
        links = open;
        unsent += left - mine;
        mine = left;
        if (links.empty() && had_some) break;
        poll(polled.data(), polled.size(), -1);
        if (polled[0].revents) {
            int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (socket >= 0) links.push_back(std::make_shared<Link>(Link{socket}));
            had_some |= socket >= 0;
        }
        for (size_t i = 0; i < open.size(); i++) {
            if (polled[i + 1].revents & ~POLLOUT && open[i]->is_open) read(open[i]);
        }
    }
    close(listener);
}

// What has been computed reaches the others although this process ends.
[[gnu::destructor]] void flush() {
    for (int i = 0; i < 1000 && unsent; i++) usleep(1000);
}
} // namespace
} // namespace nccl

NCCL ncclGetUniqueId(ncclUniqueId *id) {
    using namespace nccl;
    if (id == nullptr) return fail(ncclInvalidArgument, "GetUniqueId : uniqueId argument is NULL");
    int listener = listen_as(id);
    if (listener < 0) return fail(ncclSystemError, "no port: %s", strerror(errno));
    std::thread([listener] { Server{listener}.run(); }).detach();
    return ncclSuccess;
}
