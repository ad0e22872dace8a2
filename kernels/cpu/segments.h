// Sets of rows, cut into pieces, and their sums: what segments.cpp and statistics.cpp share.
#pragma once

#include "operators.h"
#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

constexpr int64_t WIDTH = 1024;      // channels of a piece at most
constexpr int64_t LISTED = 1 << 16;  // rows that are listed at once at most

// Some channels of one set, from channel `at` on, and its rows [begin, end).
struct Piece {
    int64_t set;
    int64_t at;
    int64_t result;  // where its results begin
    int64_t channels;
    int64_t begin;
    int64_t end;
    const uint8_t *mask;  // entry 0 belongs to row 0; may be null

    bool keeps(int64_t row) const { return !mask || mask[row] != 0; }
    int64_t kept_rows() const {
        return end - begin - (!mask ? 0 : std::count(mask + begin, mask + end, 0));
    }
};

// Calls make(T())(piece) for all pieces, where each part of the work makes its own, and T is the
// sets' data type. Errors say `what` has it. Where sets are fewer than threads need, channels are
// shared out, too. Throws where offsets fall or lie outside.
void each_piece(const Segments &s, const char *what, const int64_t *offsets, const uint8_t *mask,
                const auto &make) {
    bool are_offsets = !offsets || (offsets[0] >= 0 && offsets[s.segments] <= s.length);
    for (int64_t k = 0; offsets && k < s.segments; ++k)
        are_offsets &= offsets[k] <= offsets[k + 1];
    if (!are_offsets)
        throw out_of_range("offsets");
    if (s.segments == 0 || s.channels == 0)
        return;
    const int64_t threads = available_threads();
    const int64_t most = threads > 1 && s.segments < 4 * threads ? 128 : WIDTH;
    const int64_t pieces = parts_of(s.channels, most), width = parts_of(s.channels, pieces);
    const double rows = double(s.length) / double(offsets ? s.segments : 1);
    with_floats(s.type, what, [&](auto element) {
        parallel_loops({pieces, s.segments}, rows * double(width) + 64, [&] {
            return [&, act = make(element)](const auto &digits) mutable {
                const int64_t set = digits[1], at = digits[0] * width;
                Piece piece = {set,      at,  set * s.channels + at, min(width, s.channels - at), 0,
                               s.length, mask};
                if (offsets) {
                    piece.begin = offsets[set];
                    piece.end = offsets[set + 1];
                } else if (mask)
                    piece.mask += set * s.mask_step;
                act(piece);
            };
        });
    });
}

// The rows of a piece that its mask keeps, at most LISTED at once. A row's number counts from the
// first row of its set.
struct List {
    vector<Row> rows;
    int64_t count = 0;
    int64_t next = 0;  // the first row that was not asked for yet

    // Lists rows from `next` on, and returns whether there is one.
    bool fill(const Segments &s, const Piece &piece, const char *values, int64_t element) {
        const int64_t step = s.row_step * element;
        const char *const base = values + (piece.set * s.set_step + piece.at) * element;
        rows.resize(max(int64_t(rows.size()), min(LISTED, piece.end - next)));
        Row *const to = rows.data();
        count = 0;
        for (; next < piece.end && count < LISTED; ++next) {
            to[count] = {base + next * step, next - piece.begin};
            count += piece.keeps(next);
        }
        return count > 0;
    }
};

// The sums of a set's rows, or their means.
template <class T>
struct Adder {
    using L = Wide<T>;
    const Segments &s;
    const char *const values;
    T *const output;
    const RowOperations &sums = row_sums(s.type);
    List list = {};

    void operator()(const Piece &piece) {
        const int64_t channels = piece.channels;
        int64_t kept = 0;
        L wide[WIDTH];
        vector<L> partial;  // the sums of several lists, which are added as a tree
        list.next = piece.begin;
        while (list.fill(s, piece, values, sizeof(T)) || kept == 0) {
            sums.combine(false, list.rows.data(), list.count, channels, wide, {});
            if (piece.end - piece.begin > LISTED)
                partial.insert(partial.end(), wide, wide + channels);
            kept += list.count;
            if (list.next == piece.end)
                break;
        }
        if (!partial.empty()) {
            vector<Row> rows;
            for (size_t k = 0; k < partial.size(); k += channels)
                rows.push_back({as<char>(&partial[k]), 0});
            sums.combine(true, rows.data(), int64_t(rows.size()), channels, wide, {});
        }
        const int64_t by = s.divisor != 0 ? s.divisor : max(kept, 1);
        divide<T>(wide, channels, output + piece.result, double(by));
    }
};

}  // namespace
}  // namespace dmlpool
