// Fibers: stacks between which one thread of the host switches, without help of the kernel of the system.
//
// A CUDA thread that waits at a barrier leaves its stack as it is, and another one goes on. On x86-64 a switch is a few
// instructions; elsewhere it is that of <ucontext.h>.
#pragma once
#include <cstddef>

namespace fake {
// A stack, and where whoever runs on it is to go on.
class Fiber {
  public:
    // The stack on which the caller runs already.
    Fiber() = default;
    // A stack of its own, on which `body` runs when somebody switches to it. It never returns.
    // `number` staggers the stacks, so that they do not all lie in the same few lines of the processor's caches.
    Fiber(void (*body)(), size_t number);
    Fiber(const Fiber &) = delete;

    // Leaves this fiber, on which the caller runs, until somebody switches back to it.
    void switch_to(Fiber &next);

  private:
    void *place = nullptr;
    // What the sanitizer of threads knows it by.
    void *shadow = nullptr;
};
} // namespace fake
