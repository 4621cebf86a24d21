// What the fake libraries have in common: reports, the generator that the seed begins, and how settings are read.
#include "fake.h"
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

namespace fake {
static std::atomic<uint64_t> state;

void die(const char *format, ...) {
    // In one write, so that lines of several processes do not mix; and without a lock, so that a signal may do it.
    char line[512];
    size_t used = snprintf(line, sizeof line, "%s: ", NAME);
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

void begin_drawing(uint64_t seed) { state = seed; }

uint64_t draw() {
    // SplitMix64.
    uint64_t x = state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

// Reads `64M` or `7`, and returns where it ends.
const char *number(const char *text, uint64_t &to) {
    char *end;
    to = strtoull(text, &end, 10);
    if (end == text) die("no number at '%s' in %s", text, VARIABLE);
    if (*end == 'K') to <<= 10;
    if (*end == 'M') to <<= 20;
    if (*end == 'G') to <<= 30;
    return strchr("KMG", *end) && *end ? end + 1 : end;
}

void read(const char *text) {
    std::string rest = text ? text : "";
    while (!rest.empty()) {
        size_t end = rest.find(',');
        std::string item = rest.substr(0, end);
        rest = end == std::string::npos ? "" : rest.substr(end + 1);
        size_t equals = item.find('=');
        if (equals == std::string::npos) die("%s has '%s' in place of key=value", VARIABLE, item.c_str());
        set(item.substr(0, equals), item.c_str() + equals + 1);
    }
}
} // namespace fake
