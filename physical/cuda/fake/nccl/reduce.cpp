// Reductions as NCCL has them: each step is rounded to the type, floats' minima and maxima leave out NaN, a NaN that a
// sum makes is the GPU's, and means multiply before they sum.
#include "wire.h"
#include "../kernel/kernel.h"
#include "../../device.cuh"
#include <cmath>
#include <type_traits>
#include <vector>

namespace nccl {
// Conversions between what is stored and what is computed with.
static float load(f16 x) { return f32_of(x); }
static float load(bf16 x) { return f32_of(x); }
template <class T> static T load(T x) { return x; }
static void store(f16 &to, float x) { to = x != x ? f16{0x7fff} : f16_of(x); }
static void store(bf16 &to, float x) { to = x != x ? bf16{0x7fff} : bf16_of(x); }
static void store(float &to, float x) { to = x != x ? __uint_as_float(0x7fffffff) : x; }
template <class T> static void store(T &to, T x) { to = x; }

template <class N> static N combine(N a, N b, int reduction) {
    if constexpr (std::is_floating_point_v<N>) {
        if (reduction == Max) return std::fmax(a, b);
        if (reduction == Min) return std::fmin(a, b);
        return reduction == Prod ? a * b : a + b;
    } else {
        using U = std::make_unsigned_t<N>;
        if (reduction == Max) return a > b ? a : b;
        if (reduction == Min) return a < b ? a : b;
        return N(reduction == Prod ? U(a) * uint64_t(U(b)) : uint64_t(U(a)) + U(b));
    }
}

// One element's contributions, and the order in which they are combined.
template <class T> struct Element {
    std::vector<T> of;
    int reduction;

    // Combines all, one after the other, from `begin` on.
    T combined(size_t begin) const {
        T result = of[begin % of.size()];
        for (size_t i = 1; i < of.size(); i++) {
            store(result, combine(load(result), load(of[(begin + i) % of.size()]), reduction));
        }
        return result;
    }
};

template <class T>
static std::string reduce_as(const std::string *const *contributions, size_t ranks, size_t count, int reduction) {
    using N = decltype(load(T()));
    std::string result(count * sizeof(T), 0);
    T *to = reinterpret_cast<T *>(&result[0]);
    T part;
    store(part, N(1.0 / double(ranks)));
    Element<T> element = {std::vector<T>(ranks), reduction};
    for (size_t i = 0; i < count; i++) {
        for (size_t rank = 0; rank < ranks; rank++) {
            T x = reinterpret_cast<const T *>(contributions[rank]->data())[i];
            if (reduction == Avg && std::is_floating_point_v<N>) store(x, N(load(x) * load(part)));
            element.of[rank] = x;
        }
        // Around the ring, from the rank behind a chunk's.
        to[i] = element.combined(i * ranks / count + 1);
        if constexpr (std::is_integral_v<N>) {
            if (reduction == Avg) to[i] = N(to[i] / N(ranks));
        }
    }
    return result;
}

std::string reduce(const std::string *const *contributions, size_t ranks, size_t count, int type, int reduction) {
    switch (type) {
    case Int8: return reduce_as<int8_t>(contributions, ranks, count, reduction);
    case Uint8: return reduce_as<uint8_t>(contributions, ranks, count, reduction);
    case Int32: return reduce_as<int32_t>(contributions, ranks, count, reduction);
    case Uint32: return reduce_as<uint32_t>(contributions, ranks, count, reduction);
    case Int64: return reduce_as<int64_t>(contributions, ranks, count, reduction);
    case Uint64: return reduce_as<uint64_t>(contributions, ranks, count, reduction);
    case Float16: return reduce_as<f16>(contributions, ranks, count, reduction);
    case Float32: return reduce_as<float>(contributions, ranks, count, reduction);
    case Float64: return reduce_as<double>(contributions, ranks, count, reduction);
    default: return reduce_as<bf16>(contributions, ranks, count, reduction);
    }
}
} // namespace nccl
