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
#include "vectors.h"

namespace dmlpool {
namespace {

// The elements of a row that are written at once, so that they and their shares stay in a cache.
constexpr int64_t WRITTEN_AT_ONCE = 1 << 15;
// make_shares(row, d, h, i, count, to) writes the shares of `count` elements of a row of outputs,
// from element i on. The row begins with element `row` of what arrives. Those of several channels
// are computed where they are written, so that memory is read and written at the same time.
template <class MakeShares>
struct DisjointGradient {
    const Problem &p;
    const int64_t element;  // bytes
    char *const gradient;
    const MakeShares &make_shares;

    const Axis w = p.w();
    const int64_t position_bytes = p.channels * element;
    const int64_t tile =
        std::clamp<int64_t>(WRITTEN_AT_ONCE / (p.row() / w.outputs + 1), 1, w.outputs);

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
    // Whether an output reads a position along an axis.
    static bool reads(const Axis &axis, int64_t output, int64_t position) {
        const int64_t at = position - axis.first(output);
        return at >= 0 && at < axis.extent() && (axis.dilation == 1 || at % axis.dilation == 0);
    }
    void run() const {
        const int64_t tiles = parts_of(w.outputs, tile);
        const int64_t rows = p.planes * p.d().outputs * p.h().outputs;
        const double cost = double(p.planes * p.plane()) / double(std::max<int64_t>(1, rows));
        parallel(rows * tiles, cost / double(tiles), [&](int64_t begin, int64_t end) {
            std::vector<char> shares(p.channels == 1 ? tile * element : 0);
            Digits<4> digits(begin, {tiles, p.h().outputs, p.d().outputs, p.planes});
            for (int64_t number = begin; number < end; ++number, ++digits) {
                const int64_t row = number / tiles * p.output_row();
                const int64_t first = digits[0] * tile;
                const Range columns = {first, std::min(first + tile, w.outputs)};
                if (p.channels == 1)
                    make_shares(row, digits[2], digits[1], first, columns.end - first,
                                shares.data());
                write_rows(row, digits[3], digits[2], digits[1], columns, shares.data());
            }
        });
    }
    // Writes all rows of the gradient that belong to outputs `columns` of a row of windows. Those
    // that windows read are equal.
    void write_rows(int64_t row_of_shares, int64_t plane, int64_t od, int64_t oh,
                    const Range &columns, const char *shares) const {
        const Range depth = positions_of(p.d(), od, od + 1);
        const Range height = positions_of(p.h(), oh, oh + 1);
        const Range width = positions_of(w, columns.begin, columns.end);
        const int64_t bytes = (width.end - width.begin) * position_bytes;
        const char *written = nullptr;
        for (int64_t z = depth.begin; z < depth.end; ++z)
            for (int64_t y = height.begin; y < height.end; ++y) {
                const int64_t row = (plane * p.d().size + z) * p.h().size + y;
                char *const out = gradient + (row * w.size + width.begin) * position_bytes;
                if (!reads(p.d(), od, z) || !reads(p.h(), oh, y)) {
                    std::memset(out, 0, bytes);
                    continue;
                }
                if (written != nullptr)
                    std::memcpy(out, written, bytes);
                else if (clear_gaps(width, columns, out); p.channels > 1)
                    write_channels(row_of_shares, od, oh, columns,
                                   out - width.begin * position_bytes);
                else
                    with_integers(int(element), [&](auto bits) {
                        using E = decltype(bits);
                        write_elements(columns, reinterpret_cast<const E *>(shares),
                                       reinterpret_cast<E *>(out) - width.begin);
                    });
                written = out;
            }
    }
    // Writes zeros to `positions` of a row, unless windows cover them.
    void clear_gaps(const Range &positions, const Range &columns, char *out) const {
        const bool have_gaps = w.dilation > 1 || w.window < w.stride;
        const int64_t end = have_gaps ? positions.begin : w.first(columns.end - 1) + w.window;
        const int64_t covered = std::clamp(end, positions.begin, positions.end);
        std::memset(out + (covered - positions.begin) * position_bytes, 0,
                    (positions.end - covered) * position_bytes);
    }
    // Writes the elements of windows of several channels. `out` begins with position 0. Each copy
    // has up to a page, because a position may be only a few bytes.
    void write_channels(int64_t row, int64_t od, int64_t oh, const Range &columns,
                        char *out) const {
        const int64_t most = w.dilation > 1 ? 1 : std::max<int64_t>(1, 4096 / position_bytes);
        for (int64_t o = columns.begin; o < columns.end; ++o) {
            const int64_t low = w.low(o);
            const int64_t count = w.high(o) - low;
            char *const share = out + (w.first(o) + low * w.dilation) * position_bytes;
            if (count > 0)
                make_shares(row, od, oh, o * p.channels, p.channels, share);
            for (int64_t done = 1, n; done < count; done += n) {
                n = std::min({done, count - done, most});
                std::memcpy(share + done * w.dilation * position_bytes, share, n * position_bytes);
            }
        }
    }
    // The same for one channel. `shares` begins with that of the first window, and `out` with
    // position 0.
    template <class E>
    void write_elements(const Range &columns, const E *__restrict shares, E *__restrict out) const {
        constexpr int64_t n = LANES<E>;
        const Range whole = w.whole();
        const int64_t first = std::clamp(whole.begin, columns.begin, columns.end);
        const int64_t count = std::clamp(whole.end, first, columns.end) - first;
        const E *__restrict from = shares + (first - columns.begin);
        E *__restrict to = out + w.first(first);
        if (w.window == 2 && w.stride == 2 && w.dilation == 1)
            for (int64_t k = 0; k < count; ++k)
                to[2 * k] = to[2 * k + 1] = from[k];
        else if (w.window >= n && w.dilation == 1)
            for (int64_t k = 0; k < count; ++k, to += w.stride) {
                const Vector<E, n> same = Vector<E, n>{} + from[k];
#pragma GCC unroll 4
                for (int64_t tap = 0; tap + n < w.window; tap += n)
                    write(same, to + tap);
                write(same, to + w.window - n);
            }
        else
            for (int64_t k = 0; k < count; ++k)
                for (int64_t tap = 0; tap < w.window; ++tap)
                    to[k * w.stride + tap * w.dilation] = from[k];
        // Windows that reach past the row.
        for (int64_t o = columns.begin; o < columns.end; ++o)
            if (whole.contains(o))
                o = first + count - 1;
            else
                for (int64_t tap = w.low(o); tap < w.high(o); ++tap)
                    out[w.first(o) + tap * w.dilation] = shares[o - columns.begin];
    }
};

}  // namespace
}  // namespace dmlpool
