// Pools of sets of rows: tokens of a padded batch, points, nodes of graphs. Each set becomes one
// row of results, and a mask may leave rows out, which are not read then.
//
//     rows     | a b | c d | e f | g h | i j |      offsets 0, 2, 2, 5
//     sets     |     0     |        2        |      set 1 has no row
//     sums     | ac bd | 0 0 | egi fhj |
//
// The order in which rows are combined depends on nothing but how many rows of the set are kept.

#include "segments.h"

#include "maxima.h"

namespace dmlpool {
namespace {

// Finds the greatest elements of rows, or the least ones. The first of equal elements wins, and so
// does the first NaN.
template <class T>
struct Finder {
    using L = Wide<T>;
    using I = IntegerOf<L>;
    static constexpr int64_t GROUP = 8;  // rows that one loop compares
    const Segments &s;
    const char *const values;
    T *const output;
    int64_t *const winners;  // may be null
    const L sign;            // -1 for minima: the greatest of the negated elements are found
    // Whether rows, if they are shorter than a page, are read in the order of memory before a loop
    // compares several of them.
    const int64_t row_bytes = s.row_step * int64_t(sizeof(T));
    const bool reads_ahead =
        row_bytes < 4096 && is_large(s.length * row_bytes * (s.set_step != 0 ? s.segments : 1));
    List list = {};
    L best[WIDTH];
    I numbers[WIDTH];

    template <int64_t n>
    __attribute__((noinline)) void compare(const Row *rows, int64_t count, int64_t channels) {
        for (int64_t at = 0; at < channels; at += n) {
            const int64_t i = min(at, channels - n);
            auto most = read<Vector<L, n>>(best + i);
            auto which = read<Vector<I, n>>(numbers + i);
            for (int64_t k = 0; k < count; ++k) {
                const Vector<L, n> other = load<L, n>(elements<T>(rows[k]) + i) * sign;
                const Vector<I, n> is_better = Vector<I, n>(~(other <= most) & (most == most));
                which = is_better ? Vector<I, n>{} + I(rows[k].number) : which;
                most = is_better ? other : most;
            }
            write(most, best + i);
            write(which, numbers + i);
        }
    }
    void operator()(const Piece &piece) {
        const int64_t channels = piece.channels, to = piece.result;
        constexpr int64_t SHORT = 16 / sizeof(L);  // lanes of a short vector
        const auto run = channels >= LANES<L> ? &Finder::compare<LANES<L>>
                         : channels >= SHORT  ? &Finder::compare<SHORT>
                                              : &Finder::compare<1>;
        fill_n(best, channels, -numeric_limits<L>::infinity());
        list.next = piece.begin;
        bool is_any = list.fill(s, piece, values, sizeof(T));
        fill_n(numbers, channels, I(is_any ? list.rows[0].number : -1));
        for (; is_any; is_any = list.fill(s, piece, values, sizeof(T)))
            for (int64_t k = 0; k < list.count; k += GROUP) {
                const int64_t count = min(GROUP, list.count - k);
                const Row *const rows = list.rows.data() + k;
                for (int64_t row = 0; row < count && reads_ahead; ++row)
                    read_in_order(rows[row].from, channels * int64_t(sizeof(T)));
                (this->*run)(rows, count, channels);
            }
        VECTORIZE
        for (int64_t i = 0; i < channels; ++i)
            output[to + i] = narrow<T>(best[i] * sign);
        if (winners) {
            VECTORIZE
            for (int64_t i = 0; i < channels; ++i)
                winners[to + i] = numbers[i] < 0 ? -1 : piece.begin + int64_t(numbers[i]);
        }
    }
};

// Writes to each row of a set its share of what arrives at the set, and zeros where the mask leaves
// out a row. With winners, each element of what arrives goes to its winner, and zeros elsewhere.
template <class T>
struct Spreader {
    const Segments &s;
    const T *const arriving;
    T *const gradient;
    const int64_t *const winners;  // may be null
    T share[WIDTH];

    void operator()(const Piece &piece) {
        const int64_t at = piece.result, channels = piece.channels;
        T *const to = gradient + piece.set * s.set_step + piece.at;
        const int64_t kept = s.divisor != 0 ? s.divisor : max(1, piece.kept_rows());
        divide<T, T>(arriving + at, channels, share, double(kept));
        for (int64_t k = piece.begin; k < piece.end; ++k)
            if (!winners && piece.keeps(k))
                copy_n(share, channels, to + k * s.row_step);
            else
                fill_n(to + k * s.row_step, channels, T{});
        for (int64_t i = 0; i < channels && winners; ++i) {
            const int64_t winner = winners[at + i];
            if (winner >= piece.begin && winner < piece.end)
                to[winner * s.row_step + i] = arriving[at + i];
        }
    }
};

}  // namespace

void segment_sums(const Segments &s, const void *values, const int64_t *offsets,
                  const uint8_t *mask, void *output) {
    each_piece(s, "segments of type", offsets, mask,
               [&]<class T>(T) { return Adder<T>{s, as<char>(values), as<T>(output)}; });
}

void segment_maxima(const Segments &s, const void *values, const int64_t *offsets,
                    const uint8_t *mask, void *output, int64_t *winners) {
    if (s.length > HIGHEST<int32_t>)
        reject("maximum of this number of rows:", s.length);
    each_piece(s, "segments of type", offsets, mask, [&]<class T>(T) {
        return Finder<T>{s, as<char>(values), as<T>(output), winners,
                         Wide<T>(s.are_minima ? -1 : 1)};
    });
}

void segment_shares(const Segments &s, const void *arriving, const int64_t *offsets,
                    const uint8_t *mask, const int64_t *winners, void *gradient) {
    const int64_t row = with_floats(s.type, "segments of type", [&](auto element) {
        return s.channels * int64_t(sizeof(element));
    });
    use_large_pages(gradient, s.length * row * (offsets ? 1 : s.segments));
    each_piece(s, "segments of type", offsets, mask, [&]<class T>(T) {
        return Spreader<T>{s, as<T>(arriving), as<T>(gradient), winners};
    });
    if (offsets) {  // which were checked: rows before the first set, and after the last
        char *const to = as<char>(gradient);
        const int64_t end = offsets[s.segments] * row;
        fill_n(to, offsets[0] * row, char());
        fill_n(to + end, s.length * row - end, char());
    }
}

}  // namespace dmlpool
