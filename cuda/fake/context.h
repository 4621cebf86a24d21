// Contexts: what every function of the driver looks at first. See context.cpp.
#pragma once
#include "cuda.h"
#include "schedule.h"

namespace fake {
// Finds the context that is current on the calling thread. Fails as the driver does if there is none, if a kernel has
// broken it, or within a function of the host that a stream calls.
CUresult enter(Context **context);
// True on the thread that runs a function of the host for a stream.
extern thread_local bool is_in_host_function;

// Returns a stream of the context by its handle, where 0 is the legacy one. Under the lock.
std::shared_ptr<Stream> stream_of(CUstream handle, const Context *context);
// Waits until all work of the context is done.
CUresult finish(Lock &lock, Context *context);
// Forgets what belongs to a context. Under the lock.
void forget_streams(Context *context);
void forget_modules(Context *context);
void give_back_all(Context *context);
} // namespace fake

#define ENTER(context)                                                                                                 \
    Context *context;                                                                                                  \
    if (CUresult error = fake::enter(&context)) return error
