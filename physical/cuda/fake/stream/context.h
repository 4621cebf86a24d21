// Contexts: what every function of the driver looks at first. See context.cpp.
#pragma once
#include "../cuda.h"
#include "../fake.h"
#include "schedule.h"

namespace fake {
// Finds the context that is current on the calling thread. Fails as the driver does if there is none, if a kernel has
// broken it, or within a function of the host that a stream calls.
CUresult enter(Context **context);
// True on the thread that runs a function of the host for a stream.
extern thread_local bool is_in_host_function;
// Mode of the calling thread: 0 is CU_STREAM_CAPTURE_MODE_GLOBAL, as at first, 1 THREAD_LOCAL, and 2 RELAXED.
extern thread_local unsigned capture_mode;

// Returns a stream of the context by its handle, where 0 is the legacy one. Under the lock.
std::shared_ptr<Stream> stream_of(CUstream handle, const Context *context);
// Waits until all work of the context is done.
CUresult finish(Lock &lock, Context *context);
// Does so for a call that may wait for that, if it is set to, and lets no other thread's call go on meanwhile.
CUresult synchronise(Context *context);
// Forgets what belongs to a context. Under the lock.
void forget_streams(Context *context);
void forget_modules(Context *context);
void give_back_all(Context *context);
} // namespace fake

#define ENTER(context)                                                                                                 \
    Context *context;                                                                                                  \
    if (CUresult error = fake::enter(&context)) return error

// The same for a function that the capture of a graph cannot see: while there is one, only threads of a mode of their
// own may call it.
#define ENTER_UNSEEN(context)                                                                                          \
    ENTER(context);                                                                                                    \
    if (fake::settings.capture && fake::capture_mode == 0) return STREAM_CAPTURE_UNSUPPORTED
