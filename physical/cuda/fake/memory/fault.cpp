// Faults: one line about who has touched memory that is not his, before the process ends as it would have.
#include "../fake.h"
#include "../kernel/block.h"
#include "memory.h"
#include <csignal>
#include <cstdio>
#include <cstring>
#include <unistd.h>

namespace fake {
static struct sigaction before[2];

static void report(int signal, siginfo_t *info, void *) {
    CUdeviceptr at = CUdeviceptr(info->si_addr);
    char line[200];
    int length = 0;
    if (is_of_device(at)) {
        length = snprintf(line, sizeof line, "fake CUDA: the host touches %#lx, which is memory of a device\n", at);
    } else if (is_of_work(at)) {
        const char *kernel = running_kernel();
        length = snprintf(line, sizeof line, "fake CUDA: %s is outside of its memory\n", kernel ? kernel : "a copy");
    }
    if (length && write(2, line, length) < 0) {
    }
    // The instruction runs again, and meets whoever was there before.
    sigaction(signal, &before[signal == SIGBUS], nullptr);
}

[[gnu::constructor]] static void begin() {
    struct sigaction action = {};
    action.sa_sigaction = report;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before[0]);
    sigaction(SIGBUS, &action, &before[1]);
}
} // namespace fake
