// Which positions of an axis each output reads, computed where it is asked for: no table grows with
// an axis.
//
//     window 3, stride 2, padding 1 over 8 positions:
//
//     position      -1 0 1 2 3 4 5 6 7
//     output 0       . x x                reads 2 positions from 0 on, beginning with tap 1
//     output 1           x x x            whole: from 1 on  \  a run of three outputs,
//     output 2               x x x        whole: from 3 on   } each of which begins
//     output 3                   x x x    whole: from 5 on  /  2 positions after the last
//
// An axis whose window is 0 has bins: output o of n reads positions floor(o * size / n) to
// ceil((o + 1) * size / n). A gradient sees the same windows from the input: its outputs are the
// input's positions, and what they read are the outputs whose windows hold them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace dmlpool {

// Names of the standard library that all files use.
using std::atomic, std::clamp, std::conditional_t, std::copy_n, std::fill_n, std::gcd,
    std::is_floating_point_v, std::is_same_v, std::make_unsigned_t, std::max, std::memcpy, std::min,
    std::numeric_limits, std::out_of_range, std::string, std::to_string, std::vector;

// std::max and std::clamp of numbers of which one may be a plain constant.
inline int64_t max(int64_t one, int64_t other) {
    return std::max(one, other);
}
inline int64_t clamp(int64_t number, int64_t low, int64_t high) {
    return std::clamp(number, low, high);
}
// How many parts of at most `part` elements `count` elements have: the quotient, rounded up.
inline int64_t parts_of(int64_t count, int64_t part) {
    return (count + part - 1) / part;
}

// What an output reads along an axis. It reads `count` positions inside the input, `dilation` apart
// from `begin` on. `tap` is the number of the tap that reads the first one.
struct Span {
    int64_t begin;
    int64_t count;
    int64_t tap;

    // Whether both spans have the same positions.
    bool matches(const Span &other) const { return begin == other.begin && count == other.count; }
};

// Groups of outputs of a row that read equally many positions. A group has `each` consecutive
// outputs, which all read the same `count` positions. The positions of the next group begin `step`
// later, and its outputs `apart` later. Output `first` of a tile is the run's first one.
struct Run {
    int64_t begin;
    int64_t count;
    int64_t tap;
    int64_t groups;
    int64_t step;
    int64_t first = 0;
    int64_t each = 1;
    int64_t apart = 1;
};

// The outputs or positions from begin to end.
struct Range {
    int64_t begin;
    int64_t end;

    int64_t size() const { return end - begin; }
    bool contains(int64_t i) const { return begin <= i && i < end; }
};

// Declares the fields of a struct that Python fills, each of 8 bytes or of several numbers of 8
// bytes. DECLARED is their text: backends/library.py compares it with its own fields.
#define FIELDS(...) \
    __VA_ARGS__     \
    static constexpr const char *DECLARED = #__VA_ARGS__;

// One spatial axis of the tensor that is pooled, and the windows along it. An axis of bins has
// `window` 0 and no padding. Its stride and its extent are estimates for plans.
struct Axis {
    FIELDS(int64_t size, outputs, window, stride, padding, dilation;)

    // The position of a window's first tap. It lies before 0 in the padding.
    int64_t first(int64_t output) const { return output * stride - padding; }
    // The number of positions from a window's first tap to its last one, both included.
    int64_t extent() const { return window == 0 ? stride + 2 : (window - 1) * dilation + 1; }
    // The number of positions from the first tap of a window to the last tap of `count` windows.
    int64_t span(int64_t count) const { return (count - 1) * stride + extent(); }
    // The number of a window's first tap inside the input, and 1 + that of its last such tap.
    __attribute__((always_inline)) int64_t low(int64_t output) const {
        return first(output) >= 0 ? 0 : min(window, (dilation - 1 - first(output)) / dilation);
    }
    __attribute__((always_inline)) int64_t high(int64_t output) const {
        const int64_t room = size - first(output);
        return room >= extent() ? window : room <= 0 ? 0 : parts_of(room, dilation);
    }
    __attribute__((always_inline)) bool is_empty(int64_t output) const {
        return low(output) >= high(output);
    }
    Span span_of(int64_t output) const {
        if (window == 0) {
            const int64_t begin = output * size / outputs;
            return {begin, parts_of((output + 1) * size, outputs) - begin, 0};
        }
        const int64_t tap = low(output);
        const int64_t count = high(output) - tap;
        return {count > 0 ? first(output) + tap * dilation : 0, max(count, 0), tap};
    }
    // The outputs whose windows begin at or before position x and end after it.
    Range outputs_around(int64_t x) const {
        const int64_t place = x + padding;
        const int64_t before = place - extent() + 1;
        const int64_t begin = before <= 0 ? 0 : parts_of(before, stride);
        return {min(begin, outputs), place < 0 ? 0 : min(outputs, place / stride + 1)};
    }
    // The outputs whose windows lie inside the input; none of bins.
    Range whole() const {
        const int64_t last = size + padding - extent();
        if (window == 0 || last < 0)
            return {0, 0};
        const int64_t begin = clamp(parts_of(padding, stride), 0, outputs);
        return {begin, max(begin, min(outputs, last / stride + 1))};
    }
};

// How averages count taps. A divisor of 0 means that each window divides by the taps it counts.
// `end_padding` has three entries: with fewer spatial dimensions the first ones are 0.
struct Counting {
    FIELDS(int64_t include_padding, divisor, end_padding[3];)
};

// How a mask lies beside the tensor that windows read. It is a bool in the tensor's layout for each
// element that it covers, and any byte but 0 keeps an element; `mask` is null where there is none.
// `groups` times `planes` planes of the tensor share a mask of one plane, or with `is_own` have one
// each. The masks of a group begin `step` planes after those of the group before. A mask has
// `channels` channels: those of the tensor's planes, or one for all, as it has where there is none.
// `fill` has the bits of what stands for masked elements.
//
//     contiguous (N, C, H, W), mask (N, 1, H, W):   groups N, planes C, is_own 0, step 1
//                              mask (N, C, H, W):   groups 1, planes N * C, is_own 1
//                              mask (1, 1, H, W):   groups 1, planes N * C, is_own 0
struct Masking {
    FIELDS(int64_t groups, planes, is_own, step, channels, fill; const uint8_t *mask;)
};

// The sizes of a call. A contiguous tensor has N * C planes of 1 channel. A channels_last one has
// N planes of C channels. `type` is that of the first tensor, a number of DATA_TYPES in
// backends/problems.py. Winners, taps or positions have `bytes` bytes, and `numbering` says what
// winners are numbered by: TAPS, POSITIONS or INDICES. With `are_minima` maxima are minima.
struct Problem {
    FIELDS(int64_t planes, channels; Axis axes[3]; Counting counting;
           int64_t type, bytes, numbering, are_minima; Masking masking;)

    const Axis &d() const { return axes[0]; }
    const Axis &h() const { return axes[1]; }
    const Axis &w() const { return axes[2]; }
    // Elements of all channels in a row and in a plane, of the input and of the output.
    int64_t row() const { return w().size * channels; }
    int64_t plane() const { return d().size * h().size * row(); }
    int64_t output_row() const { return w().outputs * channels; }
    int64_t output_plane() const { return d().outputs * h().outputs * output_row(); }
    // The size of the input in bytes. `element` is the size of an element.
    int64_t input_bytes(int64_t element) const { return planes * plane() * element; }
};

struct Kept;

// The windows of an axis seen from the input: which outputs read position x. They lie `step` apart.
struct SeenAxis {
    Axis axis;
    int64_t divisor;  // of stride and dilation, the greatest common one
    int64_t step;

    explicit SeenAxis(const Axis &axis);
    // The outputs whose windows have a tap on position x. Its `begin` and `count` number outputs,
    // and `tap` is the tap with which the first of them reads x.
    Span span_of(int64_t x) const;
};

// Positions of a plane along one axis, and the outputs whose windows may read them, at least one.
struct PlanePart {
    int64_t plane;
    Range positions;
    Range outputs;
};

// Cuts planes into parts of about `elements` elements, and of at least `extents` extents of a
// window, along the first axis that has more than one position. A window that reads two parts is
// visited for each of them.
struct PlaneParts {
    const Problem &p;
    const int64_t elements;
    const int64_t extents;

    const int cut = p.d().size > 1 ? 0 : p.h().size > 1 ? 1 : 2;
    const Axis &axis = p.axes[cut];
    const int64_t slab = p.plane() / axis.size;  // elements of one position along that axis
    const int64_t step = clamp(elements / slab, min(axis.size, extents *axis.extent()), axis.size);
    const int64_t count = parts_of(axis.size, step);  // of a plane

    // Part `number`, counted over all planes.
    PlanePart of(int64_t number) const {
        const int64_t start = number % count * step;
        const int64_t stop = min(axis.size, start + step);
        if (count == 1)
            return {number, {start, stop}, {0, axis.outputs}};
        const int64_t low = min(axis.outputs_around(start).begin, axis.outputs - 1);
        const int64_t high = max(axis.outputs_around(stop - 1).end, low + 1);
        return {number / count, {start, stop}, {low, high}};
    }
    // The problem of some outputs of planes and of the positions that they read.
    Problem problem(int64_t planes, const Range &positions, const Range &outputs) const {
        Problem q = p;
        Axis &part = q.axes[cut];
        q.planes = planes;
        part.size = positions.size();
        part.outputs = outputs.size();
        if (part.window > 0)
            part.padding += positions.begin - outputs.begin * part.stride;
        else if (part.outputs < axis.outputs)  // a bin that is all of the part
            part = {part.size, 1, part.size, part.size, 0, 1};
        return q;
    }
    Range outputs_along(const PlanePart &part, int a) const {
        return a == cut ? part.outputs : Range{0, p.axes[a].outputs};
    }
};

// The most outputs of a tile of a row, so that what is listed for each of them stays small.
constexpr int64_t TILE_OUTPUTS = 4096;
// A problem and what each of its outputs reads. For a gradient the outputs are positions of the
// input, and `seen` has the windows that `p` does not describe.
struct Windows {
    Problem p;
    // The distance between two elements of a row for the windows along W. A gradient inserts zeros
    // between arriving elements, so that its windows have stride 1.
    int64_t spacing = 1;
    // An entry for each axis whose windows are seen from the input.
    std::optional<SeenAxis> seen[3];
    // What a mask keeps of the tensor that is read, or null.
    const Kept *kept = nullptr;

    explicit Windows(const Problem &problem) : p(problem) {}
    // What an output reads along an axis: 0 for D, 1 for H, 2 for W.
    Span at(int axis, int64_t output) const {
        return seen[axis] ? seen[axis]->span_of(output) : p.axes[axis].span_of(output);
    }
    // Axis W whose size counts the inserted zeros.
    Axis spaced_w() const {
        Axis w = p.w();
        w.size = (w.size - 1) * spacing + 1;
        return w;
    }
    // A range that has all positions that outputs [output, output + outputs) read.
    Range reach(int axis, int64_t output, int64_t outputs) const;
    // The most positions that an output reads, at least 1.
    int64_t most_taps(int axis) const;
    // Whether there is one output, which reads all of a plane.
    bool are_planes() const;
    // Whether several outputs of a row may read the same: elements of a gradient between two edges
    // of windows, or of bins. The numbers of their taps would differ.
    bool form_groups() const;
};

// The windows of a gradient: the outputs become what is read, and the input's positions the
// outputs. Bins seen from the input are bins again.
Windows adjoint_of(const Windows &windows);

// Adds to `runs` the runs of the outputs of [output, end) along W, each output a group of its own.
// Those of a run lie `apart`, which is 1 unless windows are seen from the input. Without
// `are_numbered` the tap of each run is 0.
void find_runs(const Windows &windows, bool are_numbered, int64_t output, int64_t end,
               vector<Run> &runs, int64_t apart = 1);
// The same for windows that form groups. Where their pattern repeats, groups that lie a stride
// apart are a run.
void find_groups(const Windows &windows, int64_t output, int64_t end, vector<Run> &runs);

}  // namespace dmlpool
