// The choice between strategies, with the numbers that were measured for it.

#include "choose.h"

#include <algorithm>
#include <atomic>

#include "vectors.h"

namespace dmlpool {
namespace {

// Tuned numbers. Each has the reason, the request and the processor that measured it.

// From so many taps an axis is wide. Reason: a window of 2^n taps costs n steps. Request and
// processor not measured separately.
constexpr int64_t WIDE_MAXIMA = 4;
constexpr int64_t WIDE_SUMS = 5;
constexpr int64_t WIDE_MAXIMA_OF_CHANNELS = 5;
constexpr int64_t WIDE_SUMS_OF_CHANNELS = 9;
// A window spans more than the input by so much that nothing may cost what it spans. Not measured
// separately.
constexpr int64_t HUGE_BESIDE = 64;
constexpr int64_t HUGE_TIMES = 4;
// The bytes that a tap of a window counts beside those that it loads. Reason: within 2 % of the
// better of two ways over 1,092 requests of channels_last tensors; processor not noted.
constexpr double TAP_BYTES = 128;
// In vectors of 32 bytes rows cost less than they seem to: 7/7 over 64 channels 0.4 of the time,
// 4/4 over 256 channels 0.5, 3/3 0.8, with AVX2; processor not noted.
constexpr double ROWS_IN_NARROW_VECTORS = 1.6;
// From so many taps a window of one channel is reduced for itself. Reason: windows of 64 take as
// long either way; those of 20 whose elements are converted take 0.7 of it as windows. Processor
// not noted.
constexpr double LONG_PLAIN = 64;
constexpr double LONG_CONVERTED = 16;

std::atomic<int64_t> forced = AUTOMATIC;
std::atomic<int64_t> forced_calls = 0;

// Bins, or windows of which little lies inside what is pooled: nothing may cost what they span.
bool is_huge(const Axis &axis) {
    return axis.window == 0 ||
           std::max(axis.extent(), axis.stride) > HUGE_BESIDE + HUGE_TIMES * axis.size;
}

bool has_huge_axis(const Problem &p) {
    return is_huge(p.d()) || is_huge(p.h()) || is_huge(p.w());
}

// Rows along D and then along H cost less than all rows of a window at once: 3x3x3 takes 0.7 of the
// time, with indices 0.6.
bool is_separate(const Axis &d, const Axis &h) {
    return double(d.window + 1) * double(h.stride) + double(h.window) < double(d.window * h.window);
}

// Rows first, and then what a window reads of them, or all taps of a window at once: of channels
// the one that loads and stores fewer bytes.
bool costs_less_by_rows(const Question &question) {
    const Problem &p = question.windows.p;
    const Axis &w = p.w();
    const double window = double(w.window);
    if (p.channels == 1)
        return window <
                   (question.element_size == question.value_size ? LONG_PLAIN : LONG_CONVERTED) ||
               w.dilation > 1;
    const double bytes = double(p.channels * question.element_size);
    const double rows = double(p.d().window * p.h().window);
    const double by_rows =
        ((rows + 2) * double(w.stride) + window) * bytes + (w.stride > 1 ? window * TAP_BYTES : 0);
    return by_rows <
           (BYTES == 64 ? 1 : ROWS_IN_NARROW_VECTORS) * rows * window * (bytes + TAP_BYTES);
}

}  // namespace

bool is_wide(bool is_idempotent, int64_t channels, const Axis &axis) {
    const int64_t least = channels == 1
                              ? (is_idempotent ? WIDE_MAXIMA : WIDE_SUMS)
                              : (is_idempotent ? WIDE_MAXIMA_OF_CHANNELS : WIDE_SUMS_OF_CHANNELS);
    if (axis.window <= least)
        return false;
    int64_t steps = 1;
    while ((int64_t(1) << steps) < axis.window)
        ++steps;
    return (steps + 1) * axis.span(axis.outputs) < axis.window * axis.outputs;
}

bool can_serve(Strategy strategy, const Question &question) {
    const Windows &windows = question.windows;
    const Problem &p = windows.p;
    if (strategy == PLANES) {
        // Numbers of taps are those of elements where windows have as many.
        const bool are_elements = p.d().window == p.d().size && p.h().window == p.h().size &&
                                  p.w().window == p.w().size && p.channels == 1;
        return question.is_uniform && windows.are_planes() &&
               (!question.has_numbers || are_elements);
    }
    if (strategy == BOXES)
        return windows.apart == 1 && !has_huge_axis(p);
    if (strategy == WINDOWS)
        return windows.apart == 1;
    return strategy == ROWS && (windows.apart > 1 || !is_huge(p.w()));
}

Strategy choose(const Question &question) {
    const Problem &p = question.windows.p;
    if (can_serve(PLANES, question))
        return PLANES;
    if (question.windows.apart > 1)
        return ROWS;
    const bool has_wide_w = is_wide(question.is_idempotent, p.channels, p.w());
    if (can_serve(BOXES, question) && (is_wide(question.is_idempotent, p.channels, p.h()) ||
                                       (p.channels > 1 && has_wide_w) || is_separate(p.d(), p.h())))
        return BOXES;
    if (!can_serve(ROWS, question))
        return WINDOWS;
    const bool doubles = has_wide_w && can_serve(BOXES, question);
    return costs_less_by_rows(question) || doubles ? ROWS : WINDOWS;
}

void force(Strategy strategy) {
    forced = strategy;
    forced_calls = 0;
}

int64_t calls_forced() {
    return forced_calls;
}

void pool(const RowOperations &op, const Finish &finish, const void *from, void *to,
          const Windows &windows) {
    const char *const input = static_cast<const char *>(from);
    char *const output = static_cast<char *>(to);
    const Question question = {windows,           op.takes_twice,  op.units[2] != 0,
                               finish.is_uniform, op.element_size, op.value_size};
    const Strategy wanted = Strategy(forced.load(std::memory_order_relaxed));
    Strategy strategy;
    if (wanted != AUTOMATIC && can_serve(wanted, question)) {
        strategy = wanted;
        ++forced_calls;
    } else
        strategy = choose(question);
    if (strategy == PLANES)
        pool_planes(op, finish, input, output, windows.p);
    else if (strategy == WINDOWS)
        pool_windows(op, finish, input, output, windows);
    else
        pool_rows(op, finish, input, output, windows, strategy == BOXES);
}

}  // namespace dmlpool
