// What a strategy (planes, rows, windows) knows of an operation: how elements are combined into
// values, and how values become results. Strategies know no data type and no operator.
//
// A tensor is (planes, D, H, W, channels): a contiguous one has N * C planes of one channel, a
// channels_last one N planes of C channels. All inner loops run over contiguous elements:
//
//     elements     | row 0 |  combine   | values |  combine or  | values |  finish   | results |
//     of a window  | row 1 | ---------> | of all | -----------> | of the | --------> | of a    |
//     (or a row)   | row 2 |  elements  | rows   |  reduce      | window |           | row     |
#pragma once

#include "geometry.h"
#include "memory.h"

namespace dmlpool {

[[noreturn]] inline void reject(const char *what, int64_t number) {
    throw std::invalid_argument("no " + string(what) + " " + to_string(number));
}

// Calls act with a 0 whose type is the signed integer of `bytes` bytes.
void with_integers(int64_t bytes, const auto &act) {
    if (bytes == 1)
        return act(int8_t());
    if (bytes == 2)
        return act(int16_t());
    if (bytes == 4)
        return act(int32_t());
    if (bytes == 8)
        return act(int64_t());
    reject("integer has this many bytes:", bytes);
}

// A row of elements, or of values that elements were combined into. `number` is the number of the
// tap that reads them, which only operations with winners use.
struct Row {
    const char *from;
    int64_t number;
};

// How often a combination is repeated. Each time its rows lie `step` bytes further on, and its
// result `pitch` values further on.
struct Times {
    int64_t count = 1;
    int64_t step = 0;
    int64_t pitch = 0;
    double divisor = 0;  // if it is not 0, sums of float32 elements are divided by it

    double inverse() const { return divisor != 0 ? 1 / divisor : 0; }  // infinity is no integer
};

// What a strategy calls for each window: RowOperations, or ChannelWinners in maxima.cpp and
// GatheredMaxima in gathered.h.
struct WindowOperations {
    int64_t element_size;  // bytes
    int64_t value_size;
    int64_t units[3];             // a tap's number is the sum of its coordinates times these
    int64_t steps[3];             // what the next tap of a window adds to it
    bool writes_results = false;  // combine_window writes `result`, too

    // Combines what each of `groups` groups of outputs reads of a row of one channel, into
    // `produced`. `step` is the distance of two taps. The row begins at position `origin`.
    virtual void reduce_windows(bool are_values, const Row &row, int64_t origin, const Run *runs,
                                int64_t groups, int64_t step, void *produced) const {}
    // Combines the taps of a window, each a row of elements of `channels` channels, as often as
    // `times` says. Writes a value of each channel to `produced`.
    virtual void combine_window(Row *taps, int64_t count, int64_t channels, char *produced,
                                char *result, const Times &times) const = 0;

  protected:
    WindowOperations(int64_t element_size, int64_t value_size, const int64_t (&units)[3])
        : element_size(element_size),
          value_size(value_size),
          units{units[0], units[1], units[2]},
          steps{units[0], units[1], units[2]} {}
    ~WindowOperations() = default;
};

// What a strategy calls for each row. `Rows` in reductions.h implements it, with `Sum`, `Max` or
// `Winner` that say how two values are combined.
struct RowOperations : WindowOperations {
    bool is_plain;       // elements are values
    bool is_idempotent;  // combining a value twice changes nothing

    // Fills `places` rows of `count` values, `pitch` values apart, with the operation's identity.
    virtual void fill(void *values, int64_t count, int64_t pitch = 0, int64_t places = 1) const = 0;
    // Combines `count` rows of `length` elements or values into `out`, as often as `times` says.
    virtual void combine(bool are_values, const Row *rows, int64_t count, int64_t length, void *out,
                         const Times &times = {}) const = 0;
    // Combines 1 or 3 rows of values with the values of `into`, which are the first operand.
    virtual void accumulate(const Row *rows, int64_t count, int64_t length, void *into) const = 0;
    // Combines short windows of a row of values: 2 at stride 2, 3 at stride 2 or 3, 4 at stride 4.
    virtual void combine_short(const char *values, int64_t window, int64_t stride, int64_t outputs,
                               void *out) const = 0;
    void combine_window(Row *taps, int64_t count, int64_t channels, char *produced, char *,
                        const Times &times) const override {
        count > 0 ? combine(false, taps, count, channels, produced, times)
                  : fill(produced, channels, times.pitch, times.count);
    }

  protected:
    using WindowOperations::WindowOperations;
};

// Turns values into results: `count` of them, from element i of a row of outputs on.
struct Finish {
    int64_t result_size;  // bytes
    bool is_uniform;      // a result depends on the value alone, not on the output's coordinates
    bool is_direct;       // values are results, and nothing is left to do
    // If it is not 0, a result is a float32 value divided by it, and a strategy may divide values
    // without calling this.
    double divisor = 0;

    Finish(int64_t result_size, bool is_uniform, bool is_direct)
        : result_size(result_size), is_uniform(is_uniform), is_direct(is_direct) {}
    virtual void operator()(int64_t plane, int64_t d, int64_t h, int64_t i, int64_t count,
                            const void *values, void *to) const {}
};

enum Strategy : int64_t;

// Computes all results of a problem by a strategy. If it is AUTOMATIC, that is the one that
// `choose` returns (choose.cpp, which defines this function).
void pool(const RowOperations &op, const Finish &finish, const void *input, void *output,
          const Windows &windows, Strategy strategy = Strategy());

// What a strategy pools.
template <class Operations>
struct Pooling {
    const Operations &op;
    const Finish &finish;
    const void *const from;
    void *const to;
    const Windows &windows;

    const char *const input = as<char>(from);
    char *const output = as<char>(to);
    const Problem &p = windows.p;
    const Axis d = p.d();
    const Axis h = p.h();
    const int64_t channels = p.channels;

    // Lists the rows of a plane that a row of outputs reads, and returns how many there are.
    // `depth` and `height` are what it reads along D and H. Each listed row begins at position
    // `low` along W.
    int64_t find_rows(int64_t plane, const Span &depth, const Span &height, int64_t low,
                      Row *to) const {
        const int64_t row_bytes = p.row() * op.element_size;
        const int64_t step = h.dilation * row_bytes;
        const Row *const first = to;
        for (int64_t td = 0; td < depth.count; ++td) {
            const int64_t y =
                (plane * d.size + depth.begin + td * d.dilation) * h.size + height.begin;
            Row row = {input + y * row_bytes + low * channels * op.element_size,
                       depth.tap * op.units[0] + td * op.steps[0] + height.tap * op.units[1]};
            for (Row *const end = to + height.count; to < end;
                 row.from += step, row.number += op.steps[1])
                *to++ = row;
        }
        return to - first;
    }
    // Reads what rows [oh, oh + rows) of outputs read and the row above them does not, in the order
    // of memory: `count` elements of each row of the input, from element `low` on. The loops that
    // combine rows then find them in a cache.
    void read_new_rows(int64_t plane, int64_t od, int64_t oh, int64_t rows, int64_t low,
                       int64_t count) const {
        const Span depth = windows.at(0, od);
        const Range height = windows.reach(1, oh, rows);
        const int64_t above = oh > 0 ? windows.reach(1, oh - 1, 1).end : 0;
        for (int64_t z = 0; z < depth.count; ++z)
            for (int64_t y = max(height.begin, above); y < height.end; ++y) {
                const int64_t row = (plane * d.size + depth.begin + z * d.dilation) * h.size + y;
                read_in_order(input + (row * p.row() + low) * op.element_size,
                              count * op.element_size);
            }
    }
    // Whether a strategy calls `read_new_rows`: for inputs that no cache holds, unless windows
    // leave out rows. It pays for inputs of half that size where windows of channels share rows or
    // a position is long, and of a third for rows of one channel, if these have a small stride.
    bool reads_first() const {
        const bool pays_early = h.window > h.stride || channels * op.element_size >= 1024;
        const int64_t weight = channels > 1                    ? 1 + pays_early
                               : h.stride == 1 || h.stride > 4 ? 0
                                                               : 3;
        return is_large(p.input_bytes(op.element_size) * weight) && !windows.kept &&
               (h.window == 0 || h.extent() >= h.stride);
    }
};

// The strategies, each in its file.
void pool_planes(const Pooling<RowOperations> &pooling);
void pool_rows(const Pooling<RowOperations> &pooling, bool by_boxes);
// It also works for operations that are not RowOperations.
void pool_windows(const Pooling<WindowOperations> &pooling);

}  // namespace dmlpool
