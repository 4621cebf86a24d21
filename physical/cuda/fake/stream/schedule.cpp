// The order in which the work of all streams runs.
//
// Work of a stream runs in order, and streams run one step at a time: whoever waits does the work himself, as much as
// that takes and hardly more, so that the order is as unlike that of the program as it may be, and who has forgotten a
// wait reads too early. A worker does what nobody waits for, after a delay that the seed draws, and all functions of
// the program. With the seed 0, work is done at once, in the order of the program.
#include "schedule.h"
#include "../fake.h"
#include "context.h"
#include <condition_variable>
#include <cstdio>
#include <list>
#include <thread>
#include <utility>
#include <vector>

namespace fake {
std::mutex mutex;

// It is held for moments, and threads of several ranks ask for it all the time: to sleep would take longer.
[[gnu::constructor]] static void spin_before_sleeping() {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(mutex.native_handle(), &attributes);
}

namespace {
// Steps of a stream above which they are done although nobody waits for them.
constexpr size_t MOST = 1024;
// One choice in so many wants work that nobody waits for, unless its delay is as long as this, in microseconds.
constexpr uint64_t CHANCE = 8;
constexpr uint64_t NO_CHANCE = 1000000;
// How often a value in memory is looked at, for which a stream waits.
constexpr auto LOOK = std::chrono::microseconds(100);
// Time for which the worker leaves work that is wanted to whoever asks for it again and again.
constexpr auto LEAVE = std::chrono::microseconds(200);

struct Waiter {
    const Point &point;
    std::condition_variable wake = {};
};

// What threads may use while the process ends is never destroyed.
template <class T> T &forever() { return *new T(); }
// Streams that have steps.
auto &busy = forever<std::vector<std::shared_ptr<Stream>>>();
auto &waiters = forever<std::list<Waiter *>>();
// True while a step runs. Only one does at a time: kernels share their threads' state.
bool is_running;
uint64_t enqueued;
auto &worker_wake = forever<std::condition_variable>();
// Until when the worker sleeps.
Clock::time_point worker_until = Clock::time_point::min();

void wake_worker(Clock::time_point due) {
    if (due < worker_until) worker_wake.notify_one();
}

void wake_passed() {
    for (Waiter *waiter : waiters) {
        if (waiter->point.has_passed() || waiter->point.stream->context->error) waiter->wake.notify_one();
    }
}

// Drops waits at the head of a stream that are over. Returns false if it has no steps.
bool settle(Stream &stream) {
    while (!stream.steps.empty()) {
        Step &head = stream.steps.front();
        if (head.work || head.never || head.ready || !head.until.has_passed()) return true;
        stream.steps.pop_front();
        stream.done++;
        wake_passed();
    }
    return false;
}

struct Choice {
    std::shared_ptr<Stream> stream;
    // When there may be a step to choose, if there is none now.
    Clock::time_point next = Clock::time_point::max();
};

// Returns true if a stream has to wait for another one, the first step of which is before its own in the work queue that
// they share.
bool is_behind(const Stream &stream, bool &again) {
    if (settings.queues == 0) return false;
    for (auto &other : busy) {
        bool shares = other->context == stream.context && other->number % settings.queues == stream.number % settings.queues;
        if (other.get() == &stream || !shares || !settle(*other)) continue;
        if (other->steps.front().number > stream.steps.front().number) continue;
        again |= other->wanted <= other->done;
        want({other, other->done + 1});
        return true;
    }
    return false;
}

// Looks at the first step of a stream. Returns true if it may be done now.
bool may_run(Stream &stream, bool is_worker, Clock::time_point now, Choice &choice, bool &again) {
    Step &head = stream.steps.front();
    if (head.never) return false;
    if (stream.wanted <= stream.done && head.due > now) {
        choice.next = std::min(choice.next, head.due);
        return false;
    }
    if (is_behind(stream, again)) return false;
    if (!head.until.has_passed()) {
        again |= head.until.stream->wanted < head.until.steps;
        want(head.until);
        return false;
    }
    if (head.ready && !head.ready()) {
        choice.next = std::min(choice.next, now + LOOK);
        return false;
    }
    return is_worker || !head.is_of_host;
}

// Now and then, wants all of a stream that nobody waits for, so that it runs ahead of the others as far as it may.
void want_by_chance() {
    if (settings.seed == 0 || settings.delay >= NO_CHANCE || busy.empty() || draw() % CHANCE) return;
    want(end_of(busy[draw() % busy.size()]));
}

// Chooses the stream whose first step is done next.
Choice choose(bool is_worker) {
    Choice choice;
    want_by_chance();
    Clock::time_point now = Clock::now();
    std::vector<std::shared_ptr<Stream>> candidates;
    for (bool again = true; again && candidates.empty();) {
        again = false;
        for (size_t i = 0; i < busy.size();) {
            if (!settle(*busy[i])) {
                busy[i]->is_busy = false;
                busy[i] = busy.back();
                busy.pop_back();
                // What waits for it may have been looked at already.
                again = true;
                continue;
            }
            if (may_run(*busy[i], is_worker, now, choice, again)) candidates.push_back(busy[i]);
            i++;
        }
    }
    if (candidates.empty()) return choice;
    choice.stream = candidates[settings.seed ? draw() % candidates.size() : 0];
    if (settings.seed) return choice;
    for (auto &stream : candidates) {
        if (stream->steps.front().number < choice.stream->steps.front().number) choice.stream = stream;
    }
    return choice;
}

// Does the first step of a stream.
void run(Lock &lock, const std::shared_ptr<Stream> &stream) {
    Step step = std::move(stream->steps.front());
    stream->steps.pop_front();
    Context *context = stream->context;
    CUresult result = SUCCESS;
    if (step.work) {
        if (counts.works++ == settings.lost.number) result = CUresult(settings.lost.code);
        is_running = true;
        lock.unlock();
        if (result == SUCCESS) result = step.work();
        step = Step();
        lock.lock();
        is_running = false;
    }
    if (stream->done < stream->enqueued) stream->done++;
    if (result != SUCCESS) break_context(context, result);
    wake_passed();
}

// Leaves the work to somebody else.
void pass_on() {
    if (is_running || busy.empty()) return;
    if (!waiters.empty()) return waiters.front()->wake.notify_one();
    for (auto &stream : busy) {
        if (stream->steps.empty()) continue;
        wake_worker(stream->wanted > stream->done ? Clock::now() + LEAVE : stream->steps.front().due);
    }
}

void work() {
    Lock lock(mutex);
    for (;;) {
        Clock::time_point next = Clock::time_point::max();
        if (!is_running) {
            Choice choice = choose(true);
            if (choice.stream) {
                run(lock, choice.stream);
                continue;
            }
            next = choice.next;
        }
        worker_until = next;
        if (next == Clock::time_point::max()) {
            worker_wake.wait(lock);
        } else {
            worker_wake.wait_until(lock, next);
        }
        worker_until = Clock::time_point::min();
    }
}

void begin_worker() {
    static bool has_begun = false;
    if (has_begun) return;
    has_begun = true;
    std::thread(work).detach();
}

void push(const std::shared_ptr<Stream> &stream, Step step) {
    begin_worker();
    uint64_t delay = settings.seed ? settings.delay - draw() % (settings.delay * 3 / 4 + 1) : 0;
    step.due = Clock::now() + std::chrono::microseconds(delay);
    step.number = enqueued++;
    Clock::time_point due = step.due;
    if (!stream->is_busy) busy.push_back(stream);
    stream->is_busy = true;
    stream->steps.push_back(std::move(step));
    stream->enqueued++;
    if (stream->steps.size() > MOST) hurry(end_of(stream));
    wake_worker(due);
}
} // namespace

Point end_of(const std::shared_ptr<Stream> &stream) { return {stream, stream->enqueued}; }

Point enqueue(const std::shared_ptr<Stream> &stream, Step step) {
    Context *context = stream->context;
    // Whoever enqueues may have looked at the context a moment before it broke.
    if (context->error) return end_of(stream);
    auto wait_for = [&](const std::shared_ptr<Stream> &other) {
        Step wait;
        wait.until = end_of(other);
        if (!wait.until.has_passed()) push(stream, std::move(wait));
    };
    if (stream == context->legacy) {
        std::vector<std::shared_ptr<Stream>> others = busy;
        for (auto &other : others) {
            if (other != stream && other->context == context && other->is_blocking) wait_for(other);
        }
    } else if (stream->is_blocking) {
        wait_for(context->legacy);
    }
    if (std::exchange(stream->has_left_out, false)) {
        const char *next = step.is_of_host ? "a function of the host" : step.work ? "work" : "another wait";
        fprintf(stderr, "fake CUDA: a wait was left out before %s\n", next);
    }
    push(stream, std::move(step));
    return end_of(stream);
}

void want(const Point &point) {
    if (point.has_passed() || point.stream->wanted >= point.steps) return;
    point.stream->wanted = point.steps;
}

void hurry(const Point &point) {
    want(point);
    worker_wake.notify_one();
}

// Does work up to the point, until the rest is somebody else's.
static void help(Lock &lock, const Point &point, Context *context) {
    want(point);
    while (!point.has_passed() && !context->error && !is_running) {
        Choice choice = choose(false);
        if (!choice.stream) {
            if (!point.has_passed()) worker_wake.notify_one();
            break;
        }
        run(lock, choice.stream);
    }
}

bool advance(Lock &lock, const Point &point, Context *context) {
    help(lock, point, context);
    pass_on();
    return point.has_passed();
}

CUresult await(Lock &lock, const Point &point, Context *context) {
    for (;;) {
        help(lock, point, context);
        if (point.has_passed() || context->error) break;
        Waiter waiter{point};
        waiters.push_back(&waiter);
        waiter.wake.wait(lock);
        waiters.remove(&waiter);
    }
    pass_on();
    return context->error;
}

CUresult finish(Lock &lock, Context *context) {
    std::vector<std::shared_ptr<Stream>> all = busy;
    for (auto &stream : all) {
        if (stream->context != context) continue;
        CUresult error = await(lock, end_of(stream), context);
        if (error != SUCCESS) return error;
    }
    return context->error;
}

void break_context(Context *context, CUresult error) {
    if (context->error == SUCCESS) context->error = error;
    for (auto &stream : busy) {
        if (stream->context != context) continue;
        stream->steps.clear();
        stream->done = stream->enqueued;
    }
    wake_passed();
}
} // namespace fake
