// Max pooling on the CPU: values, winning taps or indices, and the gradient that flows to the winners.

#include "pooling.h"

namespace dmlpool {
namespace {

struct Max {
    static constexpr bool takes_twice = true;  // an element that is combined twice changes nothing

    template <class L>
    static constexpr L identity() {
        return std::is_floating_point_v<L> ? -std::numeric_limits<L>::infinity() : std::numeric_limits<L>::lowest();
    }
    template <class L>
    static L of(L first, L second) {
        const L larger = second > first ? second : first;  // the first where either is NaN
        if constexpr (std::is_floating_point_v<L>) {
            using Bits = std::conditional_t<sizeof(L) == 8, int64_t, int32_t>;
            return bits_as<L>(Bits(bits_as<Bits>(larger) | -Bits(second != second)));  // all ones are a NaN too
        }
        return larger;
    }
    // Half precision as integers in the order of its numbers, NaNs of both signs above infinity.
    template <class T>
    static T load(T value) {
        return value;
    }
    static int16_t load(Half half) { return key(half.bits, 0x3ff); }
    static int16_t load(BFloat16 value) { return key(value.bits, 0x7f); }
    template <class T, class L>
    static T store(L value) {
        if constexpr (std::is_same_v<T, Half>) return {bits_of_key(value, 0x3ff)};
        else if constexpr (std::is_same_v<T, BFloat16>) return {bits_of_key(value, 0x7f)};
        else return value;
    }
    static int16_t key(uint16_t bits, int16_t nans) {
        const int16_t number = int16_t(bits);
        return int16_t((number ^ (number >> 15 & 0x7fff)) - nans);
    }
    static uint16_t bits_of_key(int16_t key, int16_t nans) {
        const int16_t number = int16_t(key + nans);
        return uint16_t(number ^ (number >> 15 & 0x7fff));
    }
};

template <class T>
void max_pooling(const T *input, T *output, const Problem &p) {
    pool<Max>(input, output, p, [](int64_t, int64_t, int64_t, int64_t, auto act) {
        act([](int64_t, auto value) { return value; });
    });
}

}  // namespace
}  // namespace dmlpool

// What backends/cpu.py calls.
#pragma GCC visibility push(default)
extern "C" {

void dmlpool_use_threads(void *torch_parallel_for) {
    dmlpool::parallel_for = reinterpret_cast<dmlpool::ParallelFor>(torch_parallel_for);
}

void dmlpool_max_pooling(int type, const void *input, void *output, const Problem *p) {
    dmlpool::with_type(type, [=](auto t) {
        using T = typename decltype(t)::type;
        dmlpool::max_pooling(static_cast<const T *>(input), static_cast<T *>(output), *p);
    });
}
}
#pragma GCC visibility pop
