// What ranks and the server say to each other. See wire.cpp; server.cpp has the server.
#pragma once
#include "fake.h"
#include <string>

namespace nccl {
enum class Kind : int {
    // Of a rank: it is there; it has an operation, which is matched with others'; it uses ranks for the first time; it
    // splits the communicator; it leaves once all others do; it has left.
    Hello,
    Work,
    Connect,
    Split,
    Leave,
    Bye,
    // Of the server: all ranks are there, or cannot be; an operation is done; so is what was asked for; a rank has ended
    // in the middle; the program is wrong.
    Ready,
    Done,
    Granted,
    Lost,
    Wrong,
};
enum class What : int { AllReduce, ReduceScatter, AllGather, Broadcast, Reduce, Send, Recv };
constexpr const char *const NAMES[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather", "ncclBroadcast",
                                       "ncclReduce",    "ncclSend",          "ncclRecv"};

// Head of every message; `bytes` bytes follow.
struct Message {
    Kind kind;
    // Communicator, by the server's number; rank in it, and how many there are.
    int world = 0, rank = 0, ranks = 0;
    What what = What::AllReduce;
    int type = 0, reduction = 0;
    // Root, or peer; colour and key of a split; result of what was asked for.
    int peer = 0, key = 0;
    // True for the connection that data take, and if ranks may share a device.
    bool is_data = false, shares = false;
    unsigned char device[16] = {};
    uint64_t index = 0, count = 0, bytes = 0;
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
