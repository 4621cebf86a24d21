// Settings and counts of the fake driver. See fake.h for what can be set.
#include "fake.h"
#include "cuda.h"
#include <cstdlib>
#include <cstring>

namespace fake {
Settings settings;
Counts counts;
const char *const NAME = "fake CUDA";
const char *const VARIABLE = "HEXAGRAM_FAKE_CUDA";

void set(const std::string &key, const char *value) {
    if (key == "skip_place") {
        if (strlen(value) >= sizeof settings.skip_place) die("the name of a place is too long: '%s'", value);
        strcpy(settings.skip_place, value);
        return;
    }
    struct {
        const char *key;
        uint64_t &number;
    } numbers[] = {{"seed", settings.seed},           {"delay", settings.delay}, {"devices", settings.devices},
                   {"queues", settings.queues},
                   {"memory", settings.memory},       {"version", settings.version},
                   {"init", settings.init},           {"module", settings.module},
                   {"skip_wait", settings.skip_wait}, {"skip_host_wait", settings.skip_host_wait},
                   {"skip_host_waits", settings.skip_host_waits}, {"hang", settings.hang},
                   {"capture", settings.capture},         {"pools", settings.pools},
                   {"compiling", settings.compiling},     {"end", settings.end},
                   {"slices", settings.slices},
                   {"synchronises", settings.synchronises}};
    struct {
        const char *key;
        Nth &nth;
    } calls[] = {{"fault", settings.fault}, {"lost", settings.lost}, {"launch", settings.launch},
                 {"alloc", settings.alloc}, {"load", settings.load}, {"open", settings.open}};
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

[[gnu::constructor]] static void begin() {
    read(getenv(VARIABLE));
    begin_drawing(settings.seed);
}
} // namespace fake

// Changes settings from now on, as `HEXAGRAM_FAKE_CUDA` has them. For tests in one process.
API_OF(void) hexagramFakeSet(const char *text) {
    fake::read(text);
    fake::begin_drawing(fake::settings.seed);
}

// Returns a count by its name.
API_OF(uint64_t) hexagramFakeCount(const char *name) {
    struct {
        const char *name;
        uint64_t &count;
    } known[] = {{"allocations", fake::counts.allocations}, {"live", fake::counts.live},
                 {"pinned", fake::counts.pinned},           {"live_pinned", fake::counts.live_pinned},
                 {"events", fake::counts.events},
                 {"waits", fake::counts.waits},             {"host_waits", fake::counts.host_waits},
                 {"launches", fake::counts.launches},       {"works", fake::counts.works},
                 {"loads", fake::counts.loads},             {"held_up", fake::counts.held_up},
                 {"dependent_pools", fake::counts.dependent_pools}};
    for (auto &one : known) {
        if (strcmp(one.name, name) == 0) return __atomic_load_n(&one.count, __ATOMIC_RELAXED);
    }
    fake::die("no count '%s' is known", name);
}
