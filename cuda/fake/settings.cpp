// Settings, counts and reports of the fake driver. See fake.h for what can be set.
#include "fake.h"
#include "cuda.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace fake {
Settings settings;
Counts counts;
static uint64_t state;

void die(const char *format, ...) {
    // In one write, so that lines of several processes do not mix; and without a lock, so that a signal may do it.
    char line[512] = "fake CUDA: ";
    size_t used = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    used = strlen(line);
    line[used++] = '\n';
    if (write(2, line, used) < 0) {
    }
    abort();
}

uint64_t draw() {
    // SplitMix64.
    uint64_t x = state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// Reads `64M` or `7`, and returns where it ends.
static const char *number(const char *text, uint64_t &to) {
    char *end;
    to = strtoull(text, &end, 10);
    if (end == text) die("no number at '%s' in HEXAGRAM_FAKE_CUDA", text);
    if (*end == 'K') to <<= 10;
    if (*end == 'M') to <<= 20;
    if (*end == 'G') to <<= 30;
    return strchr("KMG", *end) && *end ? end + 1 : end;
}

static void set(const std::string &key, const char *value) {
    struct {
        const char *key;
        uint64_t &number;
    } numbers[] = {{"seed", settings.seed},           {"delay", settings.delay}, {"devices", settings.devices},
                   {"memory", settings.memory},       {"version", settings.version},
                   {"init", settings.init},           {"module", settings.module},
                   {"skip_wait", settings.skip_wait}, {"skip_host_wait", settings.skip_host_wait},
                   {"skip_host_waits", settings.skip_host_waits}, {"hang", settings.hang},
                   {"capture", settings.capture},         {"pools", settings.pools}};
    struct {
        const char *key;
        Nth &nth;
    } calls[] = {{"fault", settings.fault}, {"lost", settings.lost}, {"launch", settings.launch},
                 {"alloc", settings.alloc}};
    const char *end = nullptr;
    for (auto &known : numbers) {
        if (key == known.key) end = number(value, known.number);
    }
    for (auto &known : calls) {
        if (key != known.key) continue;
        end = number(value, known.nth.number);
        uint64_t code = known.nth.code;
        if (*end == ':') end = number(end + 1, code);
        known.nth.code = int(code);
    }
    if (end == nullptr || *end) die("no setting '%s=%s' is known", key.c_str(), value);
}

static void read(const char *text) {
    std::string rest = text ? text : "";
    while (!rest.empty()) {
        size_t end = rest.find(',');
        std::string item = rest.substr(0, end);
        rest = end == std::string::npos ? "" : rest.substr(end + 1);
        size_t equals = item.find('=');
        if (equals == std::string::npos) die("HEXAGRAM_FAKE_CUDA has '%s' in place of key=value", item.c_str());
        set(item.substr(0, equals), item.c_str() + equals + 1);
    }
    state = settings.seed;
}

[[gnu::constructor]] static void begin() { read(getenv("HEXAGRAM_FAKE_CUDA")); }
} // namespace fake

// Changes settings from now on, as `HEXAGRAM_FAKE_CUDA` has them. For tests in one process.
API_OF(void) hexagramFakeSet(const char *text) { fake::read(text); }

// Returns a count by its name.
API_OF(uint64_t) hexagramFakeCount(const char *name) {
    struct {
        const char *name;
        uint64_t &count;
    } known[] = {{"allocations", fake::counts.allocations}, {"live", fake::counts.live},
                 {"pinned", fake::counts.pinned},           {"live_pinned", fake::counts.live_pinned},
                 {"events", fake::counts.events},
                 {"waits", fake::counts.waits},             {"host_waits", fake::counts.host_waits},
                 {"launches", fake::counts.launches},       {"works", fake::counts.works}};
    for (auto &one : known) {
        if (strcmp(one.name, name) == 0) return __atomic_load_n(&one.count, __ATOMIC_RELAXED);
    }
    fake::die("no count '%s' is known", name);
}
