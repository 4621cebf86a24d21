// Communicators as their server has them: who is in one, and what its ranks have asked for. See world.cpp.
#pragma once
#include "wire.h"
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

namespace nccl {
// Connection to a rank, which has two for each communicator.
struct Link {
    int socket;
    std::string in = {}, out = {};
    Message hello = {Kind::Hello};
    bool is_open = true, has_left = false;
    void answer(Message message, const std::string &bytes = "");
};
using Links = std::shared_ptr<Link>;

// An operation of one rank.
struct Work {
    Links link;
    Message message;
    std::string bytes;
};

struct World {
    int ranks;
    // Connections for control and for data, by rank.
    std::vector<Links> controls, data;
    // Collectives that wait for other ranks', by rank; and messages, by sender and receiver.
    std::vector<std::deque<Work>> collectives;
    std::map<std::pair<int, int>, std::deque<Work>> sends, receives;
    // Who uses which others for the first time: all of them as −1 and −1.
    std::map<std::pair<int, int>, std::vector<Work>> firsts;
    std::vector<Work> splits;
    // Who leaves, or has left, and who waits for the others to.
    std::set<int> left;
    std::vector<Links> leaving;

    explicit World(int ranks) : ranks(ranks), controls(ranks), data(ranks), collectives(ranks) {}
    void join(const Links &link);
    void take(Work work);
    void lose(int rank);
    void leave(int rank);

  private:
    void match_collectives();
    void match_messages(std::pair<int, int> pair);
    void connect(Work work);
    void end_all(const std::string &why);
    ncclResult_t verdict() const;
};

// All communicators of a server, by number.
using Worlds = std::map<int, World>;
// Makes new communicators of one, once all of its ranks have said which they want. Returns their number.
void split(World &world, Worlds &worlds);
} // namespace nccl
