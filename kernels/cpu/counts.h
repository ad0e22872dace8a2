// How many taps an average counts, and the windows of its gradient.
#pragma once

#include "choose.h"
#include "geometry.h"
#include "turned.h"

namespace dmlpool {
namespace {

// How many taps a window counts, and how many it reads, along one axis.
struct TapCount {
    int64_t counted;
    int64_t read;
};

// Windows, and what the average of each is divided by: the number of taps that it counts.
struct CountedWindows : Windows {
    bool needs_read;            // whether the caller asks for TapCount::read
    bool is_uniform = true;     // whether all windows have the same counts
    double divisor_of_all = 0;  // if they have; a double, as three axes may count 2^93 taps
    // The counts of each output along each axis; empty where all are the same or there are many.
    vector<double> counted[3];
    vector<int32_t> read[3];

    CountedWindows(const Problem &problem, bool needs_read)
        : Windows(problem), needs_read(needs_read) {
        for (int a = 0; a < 3; ++a)
            is_uniform = is_uniform && all_agree(a);
        if (is_uniform)
            divisor_of_all = divisor(0, 0, 0);
        for (int a = 0; a < 3; ++a) {
            const bool keeps = !is_uniform && p.axes[a].outputs <= 4 * TILE_OUTPUTS;
            for (int64_t o = 0; keeps && o < p.axes[a].outputs; ++o) {
                const TapCount count = count_of(a, o);
                counted[a].push_back(double(count.counted));
                read[a].push_back(int32_t(count.read));
            }
        }
    }
    // The windows of a gradient, whose sums are all divided by `divisor`: see `adjoint_sums`.
    CountedWindows(Windows &&adjoint, double divisor)
        : Windows(std::move(adjoint)), needs_read(false), divisor_of_all(divisor) {}

    // Computes the counts of output o along axis a. `known_count` looks them up first.
    TapCount count_of(int a, int64_t o) const {
        const Axis &axis = p.axes[a];
        const Counting &counting = p.counting;
        const int64_t read = at(a, o).count;
        if (counting.divisor != 0)
            return {a == 0 ? counting.divisor : 1, read};
        Axis padded = axis;
        padded.size += counting.end_padding[a];
        const int64_t counted = counting.include_padding && axis.window > 0 ? padded.high(o) : read;
        return {max(counted, 1), read};
    }
    TapCount known_count(int a, int64_t o) const {
        return counted[a].empty() ? count_of(a, o) : TapCount{int64_t(counted[a][o]), read[a][o]};
    }
    // Whether two windows count as many taps, and read as many where that matters.
    bool agree(const TapCount &one, const TapCount &other) const {
        return one.counted == other.counted && (!needs_read || one.read == other.read);
    }
    // Whether all windows agree along an axis.
    bool all_agree(int a) const {
        const Axis &axis = p.axes[a];
        const TapCount first = count_of(a, 0);
        const Range whole = axis.whole();
        for (int64_t o = 1; o < axis.outputs; ++o) {
            if (o > whole.begin && whole.contains(o))
                o = whole.end - 1;
            if (!agree(first, count_of(a, o)))
                return false;
        }
        return true;
    }

    // The taps that a row of outputs counts along D and H, and that an output counts in all.
    double rows_divisor(int64_t d, int64_t h) const {
        return double(known_count(0, d).counted) * double(known_count(1, h).counted);
    }
    double divisor(int64_t d, int64_t h, int64_t w) const {
        return rows_divisor(d, h) * double(known_count(2, w).counted);
    }
    // Calls act(at, n, o) for parts [at, at + n) of `count` elements from element i of a row of
    // outputs on. The windows of a part have the same counts as output o.
    void for_runs(int64_t i, int64_t count, auto act) const {
        if (is_uniform)
            return act(0, count, 0);
        const Range whole = p.w().whole();
        for (int64_t at = 0, n; at < count; at += n) {
            const int64_t output = (i + at) / p.channels;
            const TapCount same = known_count(2, output);
            int64_t next = output;
            do
                next = whole.contains(next) ? whole.end : next + 1;
            while (next * p.channels < i + count && agree(known_count(2, next), same));
            n = min(count, next * p.channels - i) - at;
            act(at, n, output);
        }
    }
};

// Pools planes of p by sums. `g` has their windows, or those of `turned_problem`: then planes are
// transposed first, and only then `kept` says what a mask keeps.
inline void pool_sums(const RowOperations &sums, const Finish &finish, const Problem &p,
                      const CountedWindows &g, const void *input, void *output,
                      const Kept *kept = nullptr) {
    if (g.p.channels == p.channels)
        return pool(sums, finish, input, output, g);
    const int64_t bytes = sums.element_size;
    turn_planes(p.planes, g.p.channels, 1,
                {{input, bytes, p.plane(), kept}, {output, finish.result_size, p.output_plane()}},
                [&](int64_t, void *const *blocks) {
                    pool(sums, finish, blocks[0], blocks[1], g, WINDOWS);
                });
}

// The gradient of averages as sums over the windows that read an element, all divided by `divisor`.
// Small windows with a stride along W become windows with stride 1 over rows of outputs with zeros
// inserted between them.
CountedWindows adjoint_sums(const Windows &windows, double divisor) {
    CountedWindows result(adjoint_of(windows), divisor);
    for (int a = 0; a < 3; ++a) {
        const Axis &axis = windows.p.axes[a];
        const bool has_zeros = a == 2 && windows.p.channels == 1 && puts_zeros_between(axis);
        if (has_zeros)
            result.spacing = axis.stride;
        if (has_zeros || (axis.window > 0 && axis.stride == 1))
            result.p.axes[a] = {
                axis.outputs, axis.size, axis.window, 1, axis.extent() - 1 - axis.padding,
                axis.dilation};
    }
    return result;
}

}  // namespace
}  // namespace dmlpool
