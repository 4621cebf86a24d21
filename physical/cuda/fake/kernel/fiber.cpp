// Fibers: see fiber.h. The switch, and what the sanitizers have to be told of it.
#include "fiber.h"
#include "../fake.h"
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace fake {
static constexpr size_t STACK = 128 << 10;
static constexpr size_t PAGE = 4096;

#if defined(__x86_64__)
// Keeps the registers that a call keeps, and the stack, and takes those of the next fiber.
extern "C" void fake_switch(void **from, void *to);
asm(R"(
.text
.type fake_switch, @function
.hidden fake_switch
.globl fake_switch
fake_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size fake_switch, . - fake_switch
)");

// Lays out a stack as `fake_switch` leaves one, so that the first switch to it begins `body`.
static void *first_place(char *top, void (*body)()) {
    void **at = reinterpret_cast<void **>(top) - 1; // As if `body` had been called: the stack is 8 past a multiple of 16.
    *at = nullptr;
    *--at = reinterpret_cast<void *>(body);
    for (int registers = 0; registers < 6; registers++) *--at = nullptr;
    return at;
}
static void change(void **from, void **to) { fake_switch(from, *to); }
#else
static ucontext_t *context(void **place) {
    if (*place == nullptr) *place = new ucontext_t();
    return static_cast<ucontext_t *>(*place);
}
static void change(void **from, void **to) { swapcontext(context(from), context(to)); }
#endif

Fiber::Fiber(void (*body)(), size_t number) {
    void *low = mmap(nullptr, STACK + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (low == MAP_FAILED || mprotect(low, PAGE, PROT_NONE) != 0) die("no memory for the stack of a CUDA thread");
    char *bottom = static_cast<char *>(low) + PAGE;
    char *top = bottom + STACK - number * 320 % 8192 / 64 * 64;
#if defined(__x86_64__)
    place = first_place(top, body);
#else
    ucontext_t *begin = context(&place);
    getcontext(begin);
    begin->uc_stack.ss_sp = bottom;
    begin->uc_stack.ss_size = top - bottom;
    makecontext(begin, body, 0);
#endif
#if defined(__SANITIZE_THREAD__)
    shadow = __tsan_create_fiber(0);
#endif
}

void Fiber::switch_to(Fiber &next) {
#if defined(__SANITIZE_THREAD__)
    shadow = __tsan_get_current_fiber(); // Every thread of the host that runs kernels has one of its own.
    __tsan_switch_to_fiber(next.shadow, 0);
#endif
    change(&place, &next.place);
}
} // namespace fake
