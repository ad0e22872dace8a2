// What the CPU kernels share: geometry, threads, and how the drivers call operations on rows.
//
// A tensor is (planes, D, H, W, lanes): a contiguous one has N * C planes of one lane, a
// channels_last one N planes of C lanes. All inner loops run over contiguous elements, in vectors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

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

// Geometry: the structs that Python fills.

inline int64_t parts_of(int64_t count, int64_t part) {
    return (count + part - 1) / part;
}

// The positions inside the input that a window reads along an axis, every dilation-th from the
// first on, the number of the first one's tap, how many windows from this one on are known to read
// the same, or the same `step` further on each time, and how many taps an average counts.
struct Span {
    int64_t begin, count, tap, alike, counted, step = 0;

    bool reads(const Span &other) const { return begin == other.begin && count == other.count; }
};

struct Axis {
    int64_t size, outputs, window, stride, padding, dilation;

    int64_t first(int64_t output) const { return output * stride - padding; }
    int64_t extent() const { return window == 0 ? stride + 2 : (window - 1) * dilation + 1; }
    // Input positions that `count` windows in a row span, the first and the last included.
    int64_t span(int64_t count) const { return (count - 1) * stride + extent(); }
    // The first tap inside the input, and the one after the last.
    int64_t low(int64_t output) const {
        return first(output) >= 0 ? 0 : std::min(window, (dilation - 1 - first(output)) / dilation);
    }
    int64_t high(int64_t output) const {
        const int64_t room = size - first(output);
        return room >= extent() ? window : room <= 0 ? 0 : parts_of(room, dilation);
    }
    bool is_empty(int64_t output) const { return low(output) >= high(output); }
    // What an output reads. Adaptive pooling has no window but bins: from floor(o * size / outputs)
    // to ceil((o + 1) * size / outputs).
    Span span_of(int64_t output) const {
        if (window == 0) {
            const int64_t begin = output * size / outputs;
            return {begin, parts_of((output + 1) * size, outputs) - begin, 0, 1, 0};
        }
        const int64_t tap = low(output), count = high(output) - tap;
        return {count > 0 ? first(output) + tap * dilation : 0, std::max<int64_t>(count, 0), tap, 1,
                0};
    }
};

// How averages are made: end_padding has zeros before the axes that there are, and a divisor of 0
// counts taps.
struct Counting {
    int64_t include_padding, divisor, end_padding[3];
};

struct Problem {
    int64_t planes, lanes;
    Axis axes[3];
    Counting counting;
    int64_t type;              // of the first tensor: a number of DATA_TYPES in backends/cpu.py
    int64_t bytes, numbering;  // of winners, taps or positions

    const Axis &d() const { return axes[0]; }
    const Axis &h() const { return axes[1]; }
    const Axis &w() const { return axes[2]; }
    int64_t row() const { return w().size * lanes; }
    int64_t plane() const { return d().size * h().size * row(); }
    // Whether elements of so many bytes come from memory, not from a cache.
    bool is_large(int64_t element) const { return planes * plane() * element > 1 << 22; }
    int64_t output_row() const { return w().outputs * lanes; }
    int64_t output_plane() const { return d().outputs * h().outputs * output_row(); }
};

namespace dmlpool {
#if defined(__AVX512F__)
constexpr int64_t BYTES = 64;  // of a vector of the processor's width
#elif defined(__AVX2__)
constexpr int64_t BYTES = 32;
#else
constexpr int64_t BYTES = 16;
#endif

// A problem, and tables of what its windows read along those axes whose windows the problem does
// not say.
struct Windows {
    Problem p;
    std::vector<Span> spans[3];
    int64_t apart =
        1;  // the elements of a row are so far apart for windows along W, with zeros between them

    Span at(int axis, int64_t output) const {
        return spans[axis].empty() ? p.axes[axis].span_of(output) : spans[axis][output];
    }
    // Whether there is one, over all of a plane.
    bool are_planes() const {
        bool result = true;
        for (int a = 0; a < 3; ++a) {
            const Axis &axis = p.axes[a];
            result &= axis.outputs == 1 && at(a, 0).count == axis.size &&
                      (axis.dilation == 1 || axis.size == 1);
        }
        return result;
    }
    // By the table, outputs along an axis that do not read what the one before reads, and the end.
    std::vector<int64_t> distinct(int axis) const {
        std::vector<int64_t> result;
        for (int64_t o = 0; o < int64_t(spans[axis].size()); ++o)
            if (o == 0 || !spans[axis][o].reads(spans[axis][o - 1]))
                result.push_back(o);
        result.push_back(p.axes[axis].outputs);
        return result;
    }
    // The most elements that one reads along an axis.
    int64_t most(int a) const {
        const Axis &axis = p.axes[a];
        int64_t count =
            spans[a].empty() ? std::min(axis.size, axis.window ? axis.window : axis.extent()) : 0;
        for (const Span &span : spans[a])
            count = std::max(count, span.count);
        return count;
    }
};

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

// Integers in memory of 1, 2, 4 or 8 bytes.
template <class Act>
void with_numbers(int bytes, Act act) {
    if (bytes == 1)
        act(int8_t());
    if (bytes == 2)
        act(int16_t());
    if (bytes == 4)
        act(int32_t());
    if (bytes == 8)
        act(int64_t());
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
    virtual void reduce_windows(bool are_values, const Row &row, int64_t origin,
                                const Span *windows, int64_t outputs, int64_t step, void *made,
                                const char *end) const {}
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

// The windows seen from the input, along each axis: which outputs read each of its elements, and as
// which tap the first does.
Windows adjoint_of(const Windows &windows);

void pool(const RowOperations &op, const Finish &finish, const void *input, void *output,
          const Windows &windows);
// Each window for itself.
void pool_windows(const WindowOperations &op, const Finish &finish, const void *input, void *output,
                  const Windows &windows);

}  // namespace dmlpool
