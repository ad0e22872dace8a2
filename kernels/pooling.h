// What the CPU kernels share: geometry, threads, and how the drivers call operations on rows.
//
// A tensor is (planes, D, H, W, lanes): a contiguous one has N * C planes of one lane, a
// channels_last one N planes of C lanes. All inner loops run over contiguous elements, in vectors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "cpu/geometry.h"
#include "cpu/parallel.h"

// The loop's iterations do not depend on each other.
#if defined(__clang__)
#define VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTORIZE _Pragma("GCC ivdep")
#endif

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector leaves this library
#endif

namespace dmlpool {
#if defined(__AVX512F__)
constexpr int64_t BYTES = 64;  // of a vector of the processor's width
#elif defined(__AVX2__)
constexpr int64_t BYTES = 32;
#else
constexpr int64_t BYTES = 16;
#endif

// The digits of numbers in turn, the lowest first: to divide for each takes as long as to pool a
// short row.
template <int n>
struct Digits {
    int64_t limits[n], digits[n];

    Digits(int64_t number, const int64_t (&of)[n]) {
        for (int k = 0; k < n; ++k)
            limits[k] = of[k], digits[k] = number % of[k], number /= of[k];
    }
    int64_t operator[](int k) const { return digits[k]; }
    void operator++() {
        for (int k = 0; k < n && ++digits[k] == limits[k]; ++k)
            digits[k] = 0;
    }
};

// The operations that a row costs, however short it is: with them 10,000 to 400,000 elements take
// .88 of the time.
constexpr double ROW_COST = 64;

// All of this memory is about to be written. So much of it is new from the system, page by page:
// large pages take a third of the time (the gradient of 100 MB of max 3/2).
inline void expect_all([[maybe_unused]] void *memory, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t PAGE = 1 << 21;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + PAGE - 1) / PAGE * PAGE;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + uintptr_t(bytes)) / PAGE * PAGE;
    if (bytes >= 32 << 20)
        madvise(reinterpret_cast<void *>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// The processor's own prefetching stops at the end of a short row: reads ahead what the next output
// rows need first. Inlined: GCC takes a call that only prefetches for pure, and drops it. Half of
// the first-level cache: with rows of 28 KB, 3/1 in channels_last takes 1.2 times as long on Zen 3
// and .9 on Zen 4. Slowly from memory, as Zen 4 drops what memory cannot follow: 2/2 and 3/2 take
// .65 to .9 of the time.
template <bool is_slow = false, class T>
__attribute__((always_inline)) inline void prefetch(const T *row, int64_t elements) {
    const int64_t bytes = elements * int64_t(sizeof(T));
    if (bytes > 16384)
        return;
    for (int64_t byte = 0; byte < bytes; byte += 64) {
        __builtin_prefetch(reinterpret_cast<const char *>(row) + byte);
        if constexpr (is_slow)
            __asm__ volatile(".rept 16\n\tnop\n\t.endr");
    }
}

[[noreturn]] inline void refuse(const char *what, int64_t number) {
    throw std::invalid_argument("no " + std::string(what) + " " + std::to_string(number));
}

// Integers in memory of 1, 2, 4 or 8 bytes.
template <class Act>
void with_numbers(int bytes, Act act) {
    if (bytes == 1)
        return act(int8_t());
    if (bytes == 2)
        return act(int16_t());
    if (bytes == 4)
        return act(int32_t());
    if (bytes == 8)
        return act(int64_t());
    refuse("integer has this many bytes:", bytes);
}

// Elements, or the values that elements are combined as; where winners are numbered, so far after
// the first tap of a window.
struct Row {
    const char *from;
    int64_t number;
};

// So many combinations: the rows of each lie `step` bytes after those of the one before, itself
// `pitch` values after it.
struct Times {
    int64_t count = 1, step = 0, pitch = 0;
    bool reads_ahead = false;  // from memory, what the next ones need

    void advance(int64_t t, Row *rows, int64_t taps) const {
        for (int64_t k = 0; t > 0 && k < taps; ++k)
            rows[k].from += step;
        if (reads_ahead)
            prefetch<true>(rows[taps - 1].from + 2 * step, step);
    }
};

// What the drivers in pooling.cpp call for each window.
struct WindowOperations {
    int64_t element_size, value_size;  // bytes
    int64_t units[3],
        steps[3];  // of the numbers along each axis, from one that a window reads to the next
    bool writes_results = false;  // beside what is made
    bool is_separable = true;     // what windows share can be combined first

    // Along a row of elements or values, of which the first is position `origin`, what windows read
    // of it: of one lane. Memory can be read until `end`.
    virtual void reduce_windows(bool are_values, const Row &row, int64_t origin, const Run *windows,
                                int64_t outputs, int64_t step, void *made, const char *end) const {}
    // The combination of so many taps, elements or values, for all lanes.
    virtual void combine_window(bool are_values, Row *taps, int64_t count, int64_t lanes,
                                char *made, char *result) const = 0;

  protected:
    WindowOperations(int64_t element_size, int64_t value_size, const int64_t (&units)[3])
        : element_size(element_size),
          value_size(value_size),
          units{units[0], units[1], units[2]},
          steps{units[0], units[1], units[2]} {}
    ~WindowOperations() = default;
};

// And for each row.
struct RowOperations : WindowOperations {
    bool is_plain;     // elements are values
    bool takes_twice;  // what is combined twice changes nothing

    // The value that changes nothing, so many times at places `pitch` values apart.
    virtual void fill(void *values, int64_t count, int64_t pitch, int64_t places) const = 0;
    // out = the combination of rows, one at least, which advance with the times.
    virtual void combine(bool are_values, Row *rows, int64_t count, int64_t length, void *out,
                         const Times &times = {}) const = 0;
    // A row of values combined with what is there already, which comes before them.
    virtual void add(const Row &values, int64_t length, void *into) const = 0;
    // out = windows of two or three values, every second of which begins one, or of three or four
    // that lie side by side.
    virtual void combine_short(const char *values, int64_t window, int64_t stride, int64_t outputs,
                               void *out) const = 0;
    void combine_window(bool are_values, Row *taps, int64_t count, int64_t lanes, char *made,
                        char *) const override {
        count > 0 ? combine(are_values, taps, count, lanes, made) : fill(made, lanes, 0, 1);
    }

  protected:
    RowOperations(int64_t element_size, int64_t value_size, const int64_t (&units)[3],
                  bool is_plain, bool takes_twice)
        : WindowOperations(element_size, value_size, units),
          is_plain(is_plain),
          takes_twice(takes_twice) {}
};

// Makes results of values: so many, from element i of a row of outputs on.
struct Finish {
    int64_t result_size;  // bytes
    bool is_uniform;      // whatever row and output they belong to
    bool is_direct;       // values are results

    virtual void operator()(int64_t plane, int64_t d, int64_t h, int64_t i, int64_t count,
                            const void *values, void *to) const = 0;

  protected:
    Finish(int64_t result_size, bool is_uniform, bool is_direct)
        : result_size(result_size), is_uniform(is_uniform), is_direct(is_direct) {}
    ~Finish() = default;
};

void pool(const RowOperations &op, const Finish &finish, const void *input, void *output,
          const Windows &windows);
// Each window for itself.
void pool_windows(const WindowOperations &op, const Finish &finish, const void *input, void *output,
                  const Windows &windows);

}  // namespace dmlpool
