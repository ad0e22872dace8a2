// The gradient of averages over windows that share no element. A share is what arrives at a window
// divided by the taps that it counts. Each element gets the share of its window, or 0.
//
//     shares    | 5 | 7 |                    one row of windows makes the rows of its elements: the
//                 |   +-------+              first from the shares, the others are copies of it
//     gradient  | 5   5 | 7   7 | 0 |
//               | 5   5 | 7   7 | 0 |
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "geometry.h"
#include "operations.h"
#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

// The most elements of a row of shares that are made at once, so that they stay in the first-level
// cache.
constexpr int64_t SHARES_AT_ONCE = 4096;

// make_shares(plane, d, h, i, count, to) writes the shares of `count` elements of a row of outputs,
// from element i on. If `floats` is not null, it is what arrives, float32 of several channels, and
// each share is computed where it is written: divisor_of(d, h, o) is what an output is divided by.
// Memory is then read and written at the same time.
template <class MakeShares, class DivisorOf>
struct DisjointGradient {
    const Problem &p;
    const int64_t element;  // bytes
    const char *const floats;
    char *const gradient;
    const MakeShares &make_shares;
    const DivisorOf &divisor_of;

    const Windows seen = adjoint_of(Windows(p));
    const int64_t position = p.channels * element;
    const int64_t tile = std::clamp<int64_t>(SHARES_AT_ONCE / p.channels, 1, p.w().outputs);

    // The first position that belongs to window o. A window also has the positions between it and
    // the next one, and the first window has the positions before it.
    static int64_t begin(const Axis &axis, int64_t o) {
        return o == 0              ? 0
               : o == axis.outputs ? axis.size
                                   : std::clamp<int64_t>(axis.first(o), 0, axis.size);
    }
    void run() const {
        const int64_t tiles = parts_of(p.w().outputs, tile);
        const int64_t rows = p.planes * p.d().outputs * p.h().outputs;
        const double cost = double(p.planes * p.plane()) / double(std::max<int64_t>(1, rows));
        parallel(rows * tiles, cost / double(tiles), [&](int64_t first, int64_t last) {
            std::vector<char> shares(tile * position);
            Digits<4> digits(first, {tiles, p.h().outputs, p.d().outputs, p.planes});
            for (int64_t number = first; number < last; ++number, ++digits) {
                const int64_t column = digits[0] * tile;
                const int64_t stop = std::min(column + tile, p.w().outputs);
                const char *from = shares.data();
                if (floats != nullptr)
                    from = floats + (number / tiles * p.w().outputs + column) * position;
                else
                    make_shares(digits[3], digits[2], digits[1], column * p.channels,
                                (stop - column) * p.channels, shares.data());
                write_rows(digits[3], digits[2], digits[1], {column, stop}, from);
            }
        });
    }
    // Writes all rows of the gradient that belong to a row of windows, below outputs `columns`.
    void write_rows(int64_t plane, int64_t od, int64_t oh, const Range &columns,
                    const char *shares) const {
        const Axis &d = p.d();
        const Axis &h = p.h();
        const int64_t from = begin(p.w(), columns.begin);
        const int64_t to = begin(p.w(), columns.end);
        const char *produced = nullptr;
        for (int64_t z = begin(d, od); z < begin(d, od + 1); ++z)
            for (int64_t y = begin(h, oh); y < begin(h, oh + 1); ++y) {
                const int64_t row = (plane * d.size + z) * h.size + y;
                char *const out = gradient + (row * p.w().size + from) * position;
                if (seen.at(0, z).count == 0 || seen.at(1, y).count == 0)
                    std::memset(out, 0, (to - from) * position);
                else if (produced != nullptr && floats == nullptr)
                    std::memcpy(out, produced, (to - from) * position);
                else {
                    write_row(od, oh, {from, to}, columns, shares, out);
                    produced = out;
                }
            }
    }
    // Writes `positions` of a row of the gradient.
    void write_row(int64_t od, int64_t oh, const Range &positions, const Range &columns,
                   const char *shares, char *out) const {
        if (p.channels == 1)
            return with_numbers(int(element), [&](auto bits) {
                using E = decltype(bits);
                write_elements(positions, columns, reinterpret_cast<const E *>(shares),
                               reinterpret_cast<E *>(out));
            });
        int64_t x = positions.begin;
        const auto clear = [&](int64_t stop) {
            if (x < stop)
                std::memset(out + (x - positions.begin) * position, 0, (stop - x) * position);
        };
        for (int64_t o = columns.begin; o < columns.end; ++o, shares += position) {
            const double divisor = floats != nullptr ? divisor_of(od, oh, o) : 1;
            for (int64_t tap = p.w().low(o); tap < p.w().high(o); ++tap) {
                const int64_t at = p.w().first(o) + tap * p.w().dilation;
                clear(at);
                char *const to = out + (at - positions.begin) * position;
                if (floats != nullptr)
                    write_share(shares, divisor, to);
                else
                    std::memcpy(to, shares, position);
                x = at + 1;
            }
        }
        clear(positions.end);
    }
    // Writes the share of an output, from what arrives there.
    void write_share(const char *from, double divisor, char *to) const {
        const float *__restrict elements = reinterpret_cast<const float *>(from);
        float *__restrict out = reinterpret_cast<float *>(to);
        const float by = float(divisor);
        const float inverse = float(1 / divisor);
        VECTORIZE
        for (int64_t i = 0; i < p.channels; ++i)
            out[i] = quotient(read<float>(elements + i), by, inverse);
    }
    // The same for one channel.
    template <class E>
    void write_elements(const Range &positions, const Range &columns, const E *__restrict shares,
                        E *__restrict out) const {
        const Axis &w = p.w();
        const int64_t length = positions.end - positions.begin;
        const Range whole = w.whole();
        const int64_t first = std::clamp(whole.begin, columns.begin, columns.end);
        const int64_t last = std::clamp(whole.end, first, columns.end);
        const int64_t count = last - first;
        E *const inside = out + (w.first(first) - positions.begin);
        const bool are_pairs = w.window == 2 && w.stride == 2 && count > 0;
        std::fill(out, are_pairs ? inside : out + length, E(0));
        const E *const from = shares + (first - columns.begin);
        if (are_pairs) {
            for (int64_t k = 0; k < count; ++k)
                inside[2 * k] = inside[2 * k + 1] = from[k];
            std::fill(inside + 2 * count, out + length, E(0));
        } else
            for (int64_t k = 0; k < count; ++k)
                for (int64_t tap = 0; tap < w.window; ++tap)
                    inside[k * w.stride + tap * w.dilation] = from[k];
        // The windows that reach past the row.
        for (int64_t o = columns.begin; o < columns.end; ++o) {
            if (o == first && count > 0)
                o = last;
            for (int64_t tap = w.low(o); o < columns.end && tap < w.high(o); ++tap)
                out[w.first(o) + tap * w.dilation - positions.begin] = shares[o - columns.begin];
        }
    }
};

}  // namespace
}  // namespace dmlpool
