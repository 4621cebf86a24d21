// Settings of the fake NCCL, its version, and what it says of errors. See fake.h for what can be set.
#include "fake.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <unistd.h>

namespace fake {
const char *const NAME = "fake NCCL";
const char *const VARIABLE = "HEXAGRAM_FAKE_NCCL";

void set(const std::string &key, const char *value) {
    using nccl::settings;
    struct {
        const char *key;
        uint64_t &number;
    } numbers[] = {{"seed", settings.seed},   {"version", settings.version}, {"init", settings.init},
                   {"hang", settings.hang},   {"proxy", settings.proxy},     {"abort", settings.abort},
                   {"async_error", settings.async_error.number}};
    const char *end = nullptr;
    for (auto &known : numbers) {
        if (key == known.key) end = number(value, known.number);
    }
    if (key == "init" && *end == ':') end = number(end + 1, settings.init_from);
    if (key == "async_error" && *end == ':') {
        uint64_t code;
        end = number(end + 1, code);
        settings.async_error.code = int(code);
    }
    if (end == nullptr || *end) die("no setting '%s=%s' is known", key.c_str(), value);
}

[[gnu::constructor]] static void begin() {
    read(getenv(VARIABLE));
    begin_drawing(nccl::settings.seed);
}
} // namespace fake

namespace nccl {
Settings settings;
static auto &last_mutex = *new std::mutex();
// As with the real library, one for all communicators and threads.
static char last[512];

ncclResult_t fail(ncclResult_t result, const char *format, ...) {
    std::lock_guard<std::mutex> lock(last_mutex);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last, sizeof last, format, arguments);
    va_end(arguments);
    return result;
}

void dawdle() {
    if (settings.seed) usleep(fake::draw() % 2000);
}
} // namespace nccl

// Changes settings from now on, as `HEXAGRAM_FAKE_NCCL` has them. For tests in one process.
NCCL_OF(void) hexagramFakeNcclSet(const char *text) { fake::read(text); }

NCCL ncclGetVersion(int *version) {
    *version = int(nccl::settings.version);
    return ncclSuccess;
}

NCCL_OF(const char *) ncclGetErrorString(int result) {
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}

NCCL_OF(const char *) ncclGetLastError(ncclComm_t) { return nccl::last; }
