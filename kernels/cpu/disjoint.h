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

namespace dmlpool {
namespace {

// The shares of a row of one channel that are computed at once, so that they stay in the
// first-level cache.
constexpr int64_t SHARES_AT_ONCE = 4096;
// make_shares(row, d, h, i, count, to) writes the shares of `count` elements of a row of outputs,
// from element i on. The row begins with element `row` of what arrives. Those of several channels
// are computed where they are written, so that memory is read and written at the same time.
template <class MakeShares>
struct DisjointGradient {
    const Problem &p;
    const int64_t element;  // bytes
    char *const gradient;
    const MakeShares &make_shares;

    const Windows seen = adjoint_of(Windows(p));
    const int64_t position = p.channels * element;
    const int64_t tile = std::clamp<int64_t>(SHARES_AT_ONCE / p.channels, 1, p.w().outputs);

    // The positions that belong to outputs [first, last): those of their windows and those between
    // a window and the next one. The first window also has the positions before it.
    static Range positions_of(const Axis &axis, int64_t first, int64_t last) {
        const auto begin = [&](int64_t o) {
            return o == 0              ? 0
                   : o == axis.outputs ? axis.size
                                       : std::clamp<int64_t>(axis.first(o), 0, axis.size);
        };
        return {begin(first), begin(last)};
    }
    void run() const {
        const int64_t tiles = parts_of(p.w().outputs, tile);
        const int64_t rows = p.planes * p.d().outputs * p.h().outputs;
        const double cost = double(p.planes * p.plane()) / double(std::max<int64_t>(1, rows));
        parallel(rows * tiles, cost / double(tiles), [&](int64_t begin, int64_t end) {
            std::vector<char> shares(p.channels == 1 ? tile * element : 0);
            Digits<4> digits(begin, {tiles, p.h().outputs, p.d().outputs, p.planes});
            for (int64_t number = begin; number < end; ++number, ++digits) {
                const int64_t first = digits[0] * tile;
                const Range columns = {first, std::min(first + tile, p.w().outputs)};
                if (p.channels == 1)
                    make_shares(number / tiles * p.output_row(), digits[2], digits[1], first,
                                columns.end - first, shares.data());
                write_rows(number / tiles * p.output_row(), digits[3], digits[2], digits[1],
                           columns, shares.data());
            }
        });
    }
    // Writes all rows of the gradient that belong to outputs `columns` of a row of windows.
    void write_rows(int64_t row_of_shares, int64_t plane, int64_t od, int64_t oh,
                    const Range &columns, const char *shares) const {
        const Range depth = positions_of(p.d(), od, od + 1);
        const Range height = positions_of(p.h(), oh, oh + 1);
        const Range width = positions_of(p.w(), columns.begin, columns.end);
        const int64_t bytes = (width.end - width.begin) * position;
        const char *written = nullptr;
        for (int64_t z = depth.begin; z < depth.end; ++z)
            for (int64_t y = height.begin; y < height.end; ++y) {
                const int64_t row = (plane * p.d().size + z) * p.h().size + y;
                char *const out = gradient + (row * p.w().size + width.begin) * position;
                if (seen.at(0, z).count == 0 || seen.at(1, y).count == 0)
                    std::memset(out, 0, bytes);
                else if (p.channels > 1)
                    write_channels(row_of_shares, od, oh, width, columns, out);
                else if (written != nullptr)
                    std::memcpy(out, written, bytes);
                else {
                    with_integers(int(element), [&](auto bits) {
                        using E = decltype(bits);
                        write_elements(width, columns, reinterpret_cast<const E *>(shares),
                                       reinterpret_cast<E *>(out));
                    });
                    written = out;
                }
            }
    }
    // Writes `positions` of a row of the gradient.
    void write_channels(int64_t row, int64_t od, int64_t oh, const Range &positions,
                        const Range &columns, char *out) const {
        int64_t x = positions.begin;
        const auto clear = [&](int64_t stop) {
            if (x < stop)
                std::memset(out + (x - positions.begin) * position, 0, (stop - x) * position);
        };
        for (int64_t o = columns.begin; o < columns.end; ++o) {
            const char *share = nullptr;
            for (int64_t tap = p.w().low(o); tap < p.w().high(o); ++tap) {
                const int64_t at = p.w().first(o) + tap * p.w().dilation;
                clear(at);
                char *const to = out + (at - positions.begin) * position;
                if (share != nullptr)
                    std::memcpy(to, share, position);
                else
                    make_shares(row, od, oh, o * p.channels, p.channels, to);
                share = position < 2048 ? to : nullptr;  // long copies start slowly
                x = at + 1;
            }
        }
        clear(positions.end);
    }
    // The same for one channel. The elements of windows that reach past the row are written last.
    template <class E>
    void write_elements(const Range &positions, const Range &columns, const E *__restrict shares,
                        E *__restrict out) const {
        const Axis &w = p.w();
        const int64_t length = positions.end - positions.begin;
        const Range whole = w.whole();
        const int64_t first = std::clamp(whole.begin, columns.begin, columns.end);
        const int64_t count = std::clamp(whole.end, first, columns.end) - first;
        E *const inside = out + (w.first(first) - positions.begin);
        const E *const from = shares + (first - columns.begin);
        const bool are_pairs = w.window == 2 && w.stride == 2 && count > 0;
        std::fill(out, are_pairs ? inside : out + length, E(0));
        if (are_pairs) {
            for (int64_t k = 0; k < count; ++k)
                inside[2 * k] = inside[2 * k + 1] = from[k];
            std::fill(inside + 2 * count, out + length, E(0));
        } else
            for (int64_t k = 0; k < count; ++k)
                for (int64_t tap = 0; tap < w.window; ++tap)
                    inside[k * w.stride + tap * w.dilation] = from[k];
        for (int64_t o = columns.begin; o < columns.end; ++o) {
            if (o == first)
                o += count;
            const int64_t high = o < columns.end ? w.high(o) : 0;
            for (int64_t tap = w.low(o); tap < high; ++tap)
                out[w.first(o) + tap * w.dilation - positions.begin] = shares[o - columns.begin];
        }
    }
};

}  // namespace
}  // namespace dmlpool
