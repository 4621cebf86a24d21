// Streams and the order in which their work runs. See schedule.cpp; stream.cpp has the driver's functions on them.
#pragma once
#include "../cuda.h"
#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

struct Context {
    CUdevice device = 0;
    // Error that every call returns, once a kernel has broken the context.
    std::atomic<CUresult> error = SUCCESS;
    unsigned retained = 0;
    // Bytes of device memory.
    uint64_t used = 0;
    // Bytes that pools keep although they are freed.
    uint64_t kept = 0;
    std::shared_ptr<Stream> legacy;
    // Contexts whose memory this one's kernels may follow.
    std::set<Context *> peers;
};

namespace fake {
using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;
// Guards all state of the driver, except while work runs.
extern std::mutex mutex;

// A point in the work of a stream: it has passed when so many steps of it are done.
struct Point {
    std::shared_ptr<Stream> stream;
    uint64_t steps = 0;
    bool has_passed() const;
};

struct Step {
    // What to do; a result other than SUCCESS breaks the context. Empty for a wait.
    std::function<CUresult()> work;
    // What to wait for first.
    Point until;
    std::function<bool()> ready;
    // True for a function of the program, which runs on a thread of the driver's own.
    bool is_of_host = false;
    // True if it never ends.
    bool never = false;
    // When to do it although nobody waits for it.
    Clock::time_point due = {};
    uint64_t number = 0;
};
} // namespace fake

struct Stream {
    Context *context;
    // True if it waits for the legacy stream, and that for it.
    bool is_blocking;
    std::deque<fake::Step> steps = {};
    uint64_t enqueued = 0, done = 0, wanted = 0;
    // True if the schedule knows of its steps.
    bool is_busy = false;
    // True if it would wait before its next step, had that not been left out.
    bool has_left_out = false;
    // Number of the stream; streams whose numbers differ by a multiple of `settings.queues` share a work queue.
    uint64_t number = 0;
};

namespace fake {
inline bool Point::has_passed() const { return !stream || stream->done >= steps; }

// Enqueues a step, with the waits that the legacy stream brings, and returns the point after it. Under the lock.
Point enqueue(const std::shared_ptr<Stream> &stream, Step step);
// Returns the point after all that has been enqueued. Under the lock.
Point end_of(const std::shared_ptr<Stream> &stream);
// Lets work be done until the point, soon. Under the lock.
void want(const Point &point);
// Does the same although the caller will not wait. Under the lock.
void hurry(const Point &point);
// Waits until the point has passed. Returns the context's error.
CUresult await(Lock &lock, const Point &point, Context *context);
// Does some of the work up to the point, and returns true if it has passed.
bool advance(Lock &lock, const Point &point, Context *context);
// Lets every call of the context return an error from now on, and forgets its work. Under the lock.
void break_context(Context *context, CUresult error);
} // namespace fake
