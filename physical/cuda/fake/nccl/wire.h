// What ranks and the server of their communicator say to each other. See wire.cpp; server.cpp has the server.
#pragma once
#include "fake.h"
#include <string>

namespace nccl {
// What a rank asks for, and gets once all ranks have asked for the same.
enum class Kind : int {
    // It is there.
    Hello,
    // It uses the others for the first time.
    Connect,
    // A collective.
    Work,
    // Memory for another rank, and of another rank, whose number is the root. Not asked for by all.
    Send,
    Receive,
    // A communicator of the ranks of its color, which is the root; its key is the reduction.
    Split,
    // It leaves. Whoever closes its connection has left, too.
    Leave,
};
enum class What : int { AllReduce, ReduceScatter, AllGather, Broadcast, Reduce, Send, Receive };
constexpr const char *const NAMES[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
                                       "ncclReduce",    "ncclSend",          "ncclRecv"};

// Head of every message; `bytes` bytes follow.
struct Message {
    Kind kind;
    int rank = 0, ranks = 0;
    What what = What::AllReduce;
    int type = 0, reduction = 0, root = 0;
    // Of an answer: true if the ranks do not agree, and the bytes say how.
    bool is_wrong = false;
    uint64_t count = 0, bytes = 0;
};

// Bytes of an element.
size_t size_of(int type);

// Listens for ranks, and says in the id where.
int listen_as(ncclUniqueId *id);
// Connect to whoever listens there, send and receive. False or −1 if there is nobody any more.
int connect_to(const ncclUniqueId &id);
bool put(int socket, const void *from, size_t bytes);
bool get(int socket, void *to, size_t bytes);

// Combines the contributions of all ranks, `count` elements each.
std::string reduce(const std::string *const *contributions, size_t ranks, size_t count, int type, int reduction);
} // namespace nccl
