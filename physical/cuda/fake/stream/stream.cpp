// Streams and events: the driver's functions on them, on functions of the host, and on values that streams wait for.
//
// Waits for events and values can be left out (`skip_wait`, and `skip_place` for all waits of a place in the program), so
// that a test can show that it would have found a missing one.
#include "../fake.h"
#include "../memory/memory.h"
#include "context.h"
#include <cstring>
#include <map>

struct Event {
    Context *context;
    bool has_time;
    fake::Point point = {};
    std::shared_ptr<fake::Clock::time_point> time = {};
    // How often somebody has asked for it, without a pause, and when for the last time.
    unsigned asks = 0;
    fake::Clock::time_point asked = {};
};

namespace fake {
// Pause after which whoever asks for an event is somebody else, and how many asks without one make a wait.
constexpr auto PAUSE = std::chrono::microseconds(500);
constexpr unsigned ASKS = 8;
static auto &streams = *new std::map<CUstream, std::shared_ptr<Stream>>();
static auto &events = *new std::map<CUevent, std::shared_ptr<Event>>();

// Returns the default stream that the calling thread has to itself.
static std::shared_ptr<Stream> of_this_thread(const Context *context) {
    static thread_local std::map<const Context *, std::shared_ptr<Stream>> own;
    auto &stream = own[context];
    if (!stream) stream = std::make_shared<Stream>(Stream{const_cast<Context *>(context), true});
    return stream;
}

std::shared_ptr<Stream> stream_of(CUstream handle, const Context *context) {
    // CU_STREAM_LEGACY is 1.
    if (uintptr_t(handle) <= 1) return context->legacy;
    // CU_STREAM_PER_THREAD is 2, and another stream for each thread that asks.
    if (uintptr_t(handle) == 2) return of_this_thread(context);
    auto found = streams.find(handle);
    if (found == streams.end() || found->second->context != context) return nullptr;
    return found->second;
}

static std::shared_ptr<Event> event_of(CUevent handle) {
    auto found = events.find(handle);
    return found == events.end() ? nullptr : found->second;
}

// Place in the program at which this thread lets streams wait, if it has told one, and whether any thread ever has.
static thread_local const char *place;
static std::atomic<bool> has_places;

// Returns true if a wait that a stream is told now is left out. A program that names its places names all of them.
static bool leaves_out() {
    if (has_places && place == nullptr) die("a stream is let wait at a place that has no name");
    return place && strcmp(settings.skip_place, place) == 0;
}

void forget_streams(Context *context) {
    for (auto one = streams.begin(); one != streams.end();) {
        one = one->second->context == context ? streams.erase(one) : std::next(one);
    }
    for (auto one = events.begin(); one != events.end();) {
        one = one->second->context == context ? events.erase(one) : std::next(one);
    }
}

// Waits for a point, unless that is left out.
static CUresult wait_of_host(Lock &lock, const Point &point, Context *context) {
    bool is_left_out = settings.skip_host_waits || counts.host_waits == settings.skip_host_wait;
    counts.host_waits++;
    return is_left_out ? SUCCESS : await(lock, point, context);
}

// Answers whether a point has passed. Does work to that end if the caller is in a hurry.
static CUresult query(Lock &lock, const Point &point, bool is_hasty, Context *context) {
    if (settings.skip_host_waits) return SUCCESS;
    bool has_passed = is_hasty || settings.seed == 0 ? advance(lock, point, context) : point.has_passed();
    return context->error ? CUresult(context->error) : has_passed ? SUCCESS : NOT_READY;
}
} // namespace fake

using namespace fake;

API cuStreamCreate(CUstream *to, unsigned flags) {
    ENTER(context);
    if (to == nullptr || flags > 1) return INVALID_VALUE;
    Lock lock(mutex);
    static uint64_t created = 0;
    auto stream = std::make_shared<Stream>(Stream{context, flags == 0});
    stream->number = created++;
    streams[stream.get()] = stream;
    *to = stream.get();
    return SUCCESS;
}

API cuStreamCreateWithPriority(CUstream *to, unsigned flags, int) { return cuStreamCreate(to, flags); }

API cuStreamDestroy_v2(CUstream handle) {
    ENTER(context);
    Lock lock(mutex);
    if (streams.erase(handle) == 0) return INVALID_HANDLE;
    return SUCCESS;
}

API cuStreamGetCtx(CUstream handle, CUcontext *to) {
    ENTER(context);
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    if (!stream) return INVALID_HANDLE;
    *to = stream->context;
    return SUCCESS;
}

API cuStreamSynchronize(CUstream handle) {
    ENTER_UNSEEN(context);
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    return stream ? wait_of_host(lock, end_of(stream), context) : INVALID_HANDLE;
}

API cuStreamQuery(CUstream handle) {
    ENTER_UNSEEN(context);
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    return stream ? query(lock, end_of(stream), true, context) : INVALID_HANDLE;
}

API cuStreamIsCapturing(CUstream handle, unsigned *to) {
    ENTER(context);
    Lock lock(mutex);
    if (!stream_of(handle, context)) return INVALID_HANDLE;
    if (to == nullptr) return INVALID_VALUE;
    // CU_STREAM_CAPTURE_STATUS_ACTIVE is 1. What is captured elsewhere is captured from the legacy stream, too.
    *to = settings.capture && uintptr_t(handle) <= 1;
    return SUCCESS;
}

API cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
    ENTER(context);
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    auto event = event_of(event_handle);
    if (!stream || !event) return INVALID_HANDLE;
    if (leaves_out() || event->point.has_passed()) return SUCCESS;
    if (counts.waits++ == settings.skip_wait) {
        stream->has_left_out = true;
        return SUCCESS;
    }
    Step step;
    step.until = event->point;
    enqueue(stream, std::move(step));
    return SUCCESS;
}

API cuEventCreate(CUevent *to, unsigned flags) {
    ENTER(context);
    Lock lock(mutex);
    // CU_EVENT_DISABLE_TIMING is 2.
    auto event = std::make_shared<Event>(Event{context, (flags & 2) == 0});
    events[event.get()] = event;
    *to = event.get();
    return SUCCESS;
}

API cuEventDestroy_v2(CUevent handle) {
    ENTER(context);
    Lock lock(mutex);
    return events.erase(handle) ? SUCCESS : INVALID_HANDLE;
}

API cuEventRecord(CUevent handle, CUstream stream_handle) {
    ENTER(context);
    Lock lock(mutex);
    auto stream = stream_of(stream_handle, context);
    auto event = event_of(handle);
    if (!stream || !event || event->context != context) return INVALID_HANDLE;
    counts.events++;
    auto time = std::make_shared<Clock::time_point>();
    Step step;
    step.work = [time] {
        *time = Clock::now();
        return SUCCESS;
    };
    event->time = time;
    event->asks = 0;
    event->point = enqueue(stream, std::move(step));
    event->asked = {};
    return SUCCESS;
}

API cuEventQuery(CUevent handle) {
    ENTER_UNSEEN(context);
    Lock lock(mutex);
    auto event = event_of(handle);
    if (!event) return INVALID_HANDLE;
    // Whoever asks again and again waits for it. Who looks whether it is over, now and then, does not.
    Clock::time_point now = Clock::now();
    event->asks = now - event->asked < PAUSE ? event->asks + 1 : 0;
    event->asked = now;
    return query(lock, Point(event->point), event->asks >= ASKS, context);
}

API cuEventSynchronize(CUevent handle) {
    ENTER_UNSEEN(context);
    Lock lock(mutex);
    auto event = event_of(handle);
    return event ? wait_of_host(lock, Point(event->point), context) : INVALID_HANDLE;
}

API cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    ENTER(context);
    Lock lock(mutex);
    auto begin = event_of(from);
    auto end = event_of(to);
    if (!begin || !end || !begin->has_time || !end->has_time || !begin->time || !end->time) return INVALID_HANDLE;
    if (!begin->point.has_passed() || !end->point.has_passed()) return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(*end->time - *begin->time).count();
    return SUCCESS;
}

API cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    ENTER(context);
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    if (!stream) return INVALID_HANDLE;
    if (settings.skip_host_waits) stream = std::make_shared<Stream>(Stream{context, false});
    Step step;
    step.is_of_host = true;
    step.work = [function, data] {
        is_in_host_function = true;
        function(data);
        is_in_host_function = false;
        return SUCCESS;
    };
    // Whoever wants to be told waits, most likely.
    hurry(enqueue(stream, std::move(step)));
    return SUCCESS;
}

// True if streams may wait for a word there, and write it: an H100's driver refuses memory of a pool. Under the lock.
static bool may_be_word(CUdeviceptr at, size_t bytes) {
    auto block = block_of(at);
    return at % bytes == 0 && (block == blocks.end() || block->second.kind != Kind::Pool);
}

// Lets a stream wait until a value in memory is as the flags say.
template <class T> static CUresult wait_value(CUstream handle, CUdeviceptr at, T value, unsigned flags) {
    ENTER(context);
    const T *word = static_cast<const T *>(operand(at, sizeof value, context, "cuStreamWaitValue"));
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    if (!stream) return INVALID_HANDLE;
    if (!may_be_word(at, sizeof value) || (flags & 3) == 3) return INVALID_VALUE;
    if (leaves_out()) return SUCCESS;
    Step step;
    step.ready = [word, value, flags] {
        T seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if ((flags & 3) == 0) return std::make_signed_t<T>(seen - value) >= 0;
        return (flags & 3) == 1 ? seen == value : (seen & value) != 0;
    };
    step.work = [] { return SUCCESS; };
    enqueue(stream, std::move(step));
    return SUCCESS;
}

template <class T> static CUresult write_value(CUstream handle, CUdeviceptr at, T value) {
    ENTER(context);
    Lock lock(mutex);
    auto stream = stream_of(handle, context);
    if (!stream) return INVALID_HANDLE;
    if (!may_be_word(at, sizeof value)) return INVALID_VALUE;
    Step step;
    step.work = [at, value, context] {
        T *word = static_cast<T *>(operand(at, sizeof value, context, "cuStreamWriteValue"));
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
        return SUCCESS;
    };
    enqueue(stream, std::move(step));
    return SUCCESS;
}

API cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags) {
    return wait_value(stream, at, value, flags);
}
API cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags) {
    return wait_value(stream, at, value, flags);
}
API cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value, unsigned) {
    return write_value(stream, at, value);
}
API cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr at, uint64_t value, unsigned) {
    return write_value(stream, at, value);
}
API cuStreamWaitValue32(CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags) {
    return wait_value(stream, at, value, flags);
}
API cuStreamWaitValue64(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags) {
    return wait_value(stream, at, value, flags);
}
API cuStreamWriteValue32(CUstream stream, CUdeviceptr at, uint32_t value, unsigned) {
    return write_value(stream, at, value);
}
API cuStreamWriteValue64(CUstream stream, CUdeviceptr at, uint64_t value, unsigned) {
    return write_value(stream, at, value);
}

// Names the place in the program at which the calling thread lets streams wait from now on; null if it is none.
API_OF(void) hexagramFakePlace(const char *name) {
    fake::place = name;
    if (name) fake::has_places = true;
}
