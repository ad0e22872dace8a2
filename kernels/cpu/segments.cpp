// Pools of sets of rows: tokens of a padded batch, points, nodes of graphs. Each set becomes one
// row of results, and a mask may leave rows out, which are not read then.
//
//     rows     | a b | c d | e f | g h | i j |      offsets 0, 2, 2, 5
//     sets     |     0     |        2        |      set 1 has no row
//     sums     | ac bd | 0 0 | egi fhj |
//
// The order in which rows are combined depends on nothing but how many rows of the set are kept.

#include <array>
#include <vector>

#include "maxima.h"
#include "operators.h"
#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

constexpr int64_t WIDTH = 1024;      // channels of a piece at most
constexpr int64_t LISTED = 1 << 16;  // rows that are listed at once at most
constexpr int64_t FEW = 16;          // rows for which sums have a loop of their own

// Some channels of one set, from channel `at` on, and its rows [begin, end).
struct Piece {
    int64_t set;
    int64_t at;
    int64_t count;
    int64_t begin;
    int64_t end;
    const uint8_t *mask;  // entry 0 belongs to row 0; may be null

    bool keeps(int64_t row) const { return mask == nullptr || mask[row] != 0; }
    int64_t kept() const {
        if (mask == nullptr)
            return end - begin;
        int64_t rows = 0;
        for (int64_t row = begin; row < end; ++row)
            rows += mask[row] != 0;
        return rows;
    }
};

// Calls make()(piece) for all pieces, where each part of the work makes its own. Where sets are
// fewer than threads need, channels are shared out, too.
template <class Make>
void each_piece(const Segments &s, const int64_t *offsets, const uint8_t *mask, const Make &make,
                int64_t most = WIDTH) {
    if (s.segments == 0 || s.channels == 0)
        return;
    const int64_t threads = available_threads();
    if (threads > 1 && s.segments < 4 * threads)
        most = std::min<int64_t>(most, 128);
    const int64_t pieces = parts_of(s.channels, most), width = parts_of(s.channels, pieces);
    const double rows = double(s.length) / double(offsets != nullptr ? s.segments : 1);
    parallel(s.segments * pieces, rows * double(width) + 64, [&](int64_t first, int64_t last) {
        auto act = make();
        int64_t set = first / pieces, at = first % pieces * width;
        for (int64_t k = first; k < last; ++k) {
            Piece piece = {set, at, std::min(width, s.channels - at), 0, s.length, mask};
            if (offsets != nullptr) {
                piece.begin = std::clamp<int64_t>(offsets[set], 0, s.length);
                piece.end = std::clamp(offsets[set + 1], piece.begin, s.length);
            } else if (mask != nullptr)
                piece.mask += set * s.mask_step;
            if (piece.count > 0)
                act(piece);
            at += width;
            if (at >= pieces * width) {
                at = 0;
                ++set;
            }
        }
    });
}

// The rows of a piece that its mask keeps, at most LISTED at once. A row's number counts from the
// first row of its set.
struct List {
    std::vector<Row> rows;
    int64_t count = 0;
    int64_t next = 0;  // the first row that was not asked for yet

    // Lists rows from `next` on, and returns whether there is one.
    bool fill(const Segments &s, const Piece &piece, const char *values, int64_t element) {
        const int64_t step = s.row_step * element;
        const char *const base = values + (piece.set * s.set_step + piece.at) * element;
        rows.resize(std::max<int64_t>(int64_t(rows.size()), std::min(LISTED, piece.end - next)));
        Row *const to = rows.data();
        count = 0;
        if (piece.mask == nullptr) {
            for (const int64_t end = std::min(piece.end, next + LISTED); next < end; ++next)
                to[count++] = {base + next * step, next - piece.begin};
            return count > 0;
        }
        for (; next < piece.end && count < LISTED; ++next) {
            to[count] = {base + next * step, next - piece.begin};
            count += piece.mask[next] != 0;
        }
        return count > 0;
    }
};

// Whether rows are read in the order of memory before loops combine several of them.
bool reads_rows_first(const Segments &s, int64_t element) {
    return !without(READ_FIRST) &&
           is_large(s.length * s.row_step * element * (s.set_step != 0 ? s.segments : 1));
}

// The sum of elements [i, i + n) of rows [from, to), as a tree.
template <class T, int64_t n, int64_t from, int64_t to>
__attribute__((always_inline)) inline Vector<Wide<T>, n> tree(const Row *rows, int64_t i) {
    constexpr int64_t middle = (from + to + 1) / 2;
    if constexpr (to - from == 1)
        return load<Wide<T>, n>(elements<T>(rows[from]) + i);
    else
        return tree<T, n, from, middle>(rows, i) + tree<T, n, middle, to>(rows, i);
}
// Sums of at most FEW rows of at least n elements.
template <class T, int64_t n, int64_t rows_count>
void add_few(const Row *rows, int64_t count, Wide<T> *out) {
    int64_t i = 0;
    for (; i + 2 * n <= count; i += 2 * n) {
        const auto first = tree<T, n, 0, rows_count>(rows, i);
        write(tree<T, n, 0, rows_count>(rows, i + n), out + i + n);
        write(first, out + i);
    }
    for (; i < count; i += n) {
        i = std::min(i, count - n);  // the last vector may overlap the one before
        write(tree<T, n, 0, rows_count>(rows, i), out + i);
    }
}
template <class T, int64_t n, size_t... k>
constexpr auto few_of(std::index_sequence<k...>) {
    return std::array<void (*)(const Row *, int64_t, Wide<T> *), FEW>{add_few<T, n, k + 1>...};
}
// The same for any number of elements of at least SHORT.
template <class L>
constexpr int64_t SHORT = 16 / sizeof(L);
template <class T>
void add_few_rows(const Row *rows, int64_t rows_count, int64_t count, Wide<T> *out) {
    using L = Wide<T>;
    static constexpr auto all = std::make_index_sequence<FEW>();
    static constexpr auto by_vectors = few_of<T, LANES<L>>(all);
    static constexpr auto by_short = few_of<T, SHORT<L>>(all);
    (count >= LANES<L> ? by_vectors : by_short)[rows_count - 1](rows, count, out);
}

template <class T>
struct Adder {
    using L = Wide<T>;
    const Segments &s;
    const char *const values;
    T *const output;
    const RowOperations &sums = row_sums(s.type);
    const bool reads_ahead = reads_rows_first(s, sizeof(T));
    List list = {};
    L grouped[16 * WIDTH];
    std::vector<L> partial = {};  // sums of LISTED rows each, where there are more

    // Sums of listed rows. Up to 16 * FEW of them are added by groups, which pays for short rows.
    void combine(const Row *rows, int64_t count, int64_t length, L *to) {
        if (count == 0 || count > 16 * FEW || length < SHORT<L>)
            return sums.combine(false, rows, count, length, to);
        const auto add = [&](int64_t first, int64_t n, L *sum) {
            for (int64_t k = first; k < first + n && reads_ahead; ++k)
                read_in_order(rows[k].from, length * int64_t(sizeof(T)));
            add_few_rows<T>(rows + first, n, length, sum);
        };
        if (count <= FEW)
            return add(0, count, to);
        Row groups[16];
        const int64_t parts = parts_of(count, FEW);
        for (int64_t k = 0; k < parts; ++k) {
            L *const sum = grouped + k * length;
            add(k * FEW, std::min(FEW, count - k * FEW), sum);
            groups[k] = {reinterpret_cast<const char *>(sum), 0};
        }
        add_few_rows<L>(groups, parts, length, to);
    }
    void operator()(const Piece &piece) {
        L wide[std::is_same_v<L, T> ? 1 : WIDTH];
        T *const out = output + piece.set * s.channels + piece.at;
        L *to;
        if constexpr (std::is_same_v<L, T>)
            to = out;
        else
            to = wide;
        list.next = piece.begin;
        list.fill(s, piece, values, sizeof(T));
        int64_t kept = list.count;
        combine(list.rows.data(), kept, piece.count, to);
        if (list.next < piece.end)
            kept = add_more(piece, to);
        const double divisor = double(s.divisor != 0 ? s.divisor : std::max<int64_t>(kept, 1));
        if (divisor != 1 || to == wide)
            divide<T>(to, piece.count, divisor, nullptr, out);
    }
    // Adds the sums of further lists to that of the first one, and returns how many rows are kept.
    int64_t add_more(const Piece &piece, L *to) {
        int64_t kept = list.count, lists = 1;
        partial.assign(to, to + piece.count);
        while (list.fill(s, piece, values, sizeof(T))) {
            kept += list.count;
            partial.resize(++lists * piece.count);
            combine(list.rows.data(), list.count, piece.count,
                    partial.data() + (lists - 1) * piece.count);
        }
        std::vector<Row> rows;
        for (int64_t k = 0; k < lists; ++k)
            rows.push_back({reinterpret_cast<const char *>(partial.data() + k * piece.count), 0});
        sums.combine(true, rows.data(), lists, piece.count, to);
        return kept;
    }
};

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
    const bool reads_ahead = reads_rows_first(s, sizeof(T));
    List list = {};
    L best[WIDTH];
    I numbers[WIDTH];

    template <int64_t n>
    __attribute__((noinline)) void compare(const Row *rows, int64_t count, int64_t length) {
        for (int64_t at = 0; at < length; at += n) {
            const int64_t i = std::min(at, length - n);
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
        const int64_t count = piece.count, to = piece.set * s.channels + piece.at;
        std::fill_n(best, count, -std::numeric_limits<L>::infinity());
        std::fill_n(numbers, count, I(-1));
        list.next = piece.begin;
        bool is_first = true;
        while (list.fill(s, piece, values, sizeof(T))) {
            if (is_first)
                std::fill_n(numbers, count, I(list.rows[0].number));
            is_first = false;
            for (int64_t k = 0; k < list.count; k += GROUP) {
                const int64_t n = std::min(GROUP, list.count - k);
                const Row *const rows = list.rows.data() + k;
                for (int64_t row = 0; row < n && reads_ahead; ++row)
                    read_in_order(rows[row].from, count * int64_t(sizeof(T)));
                if (count >= LANES<L>)
                    compare<LANES<L>>(rows, n, count);
                else if (count >= SHORT<L>)
                    compare<SHORT<L>>(rows, n, count);
                else
                    compare<1>(rows, n, count);
            }
        }
        VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            output[to + i] = narrow<T>(best[i] * sign);
        if (winners != nullptr) {
            VECTORIZE
            for (int64_t i = 0; i < count; ++i)
                winners[to + i] = numbers[i] < 0 ? -1 : piece.begin + int64_t(numbers[i]);
        }
    }
};

// Writes to each row of a set its share of what arrives at the set, and zeros where the mask leaves
// out a row. With winners, each element of what arrives goes to its winner, and zeros elsewhere.
template <class T>
struct Spreader {
    using L = Wide<T>;
    const Segments &s;
    const T *const arriving;
    T *const gradient;
    const int64_t *const winners;  // may be null
    T share[WIDTH];

    void scatter(const Piece &piece, const T *from, T *to) const {
        const int64_t *const winner = winners + (from - arriving);
        for (int64_t row = piece.begin; row < piece.end; ++row)
            std::fill_n(to + row * s.row_step, piece.count, T{});
        for (int64_t i = 0; i < piece.count; ++i)
            if (winner[i] >= piece.begin && winner[i] < piece.end)
                to[winner[i] * s.row_step + i] = from[i];
    }
    void operator()(const Piece &piece) {
        const T *const from = arriving + piece.set * s.channels + piece.at;
        T *const to = gradient + piece.set * s.set_step + piece.at;
        if (winners != nullptr)
            return scatter(piece, from, to);
        const int64_t kept = s.divisor != 0 ? s.divisor : std::max<int64_t>(1, piece.kept());
        if constexpr (std::is_same_v<L, T>)
            divide<T>(from, piece.count, double(kept), nullptr, share);
        else {
            L wide[WIDTH];
            for (int64_t i = 0; i < piece.count; ++i)
                wide[i] = widen(from[i]);
            divide<T>(wide, piece.count, double(kept), nullptr, share);
        }
        for (int64_t row = piece.begin; row < piece.end; ++row)
            if (piece.keeps(row))
                std::copy_n(share, piece.count, to + row * s.row_step);
            else
                std::fill_n(to + row * s.row_step, piece.count, T{});
    }
};

// n elements as float64, in which deviations are added.
template <class T, int64_t n>
inline Vector<double, n> doubles(const T *from) {
    if constexpr (n == 1)
        return double(widen(*from));
    else if constexpr (std::is_same_v<T, double>)
        return read<Vector<double, n>>(from);
    else
        return __builtin_convertvector(load<float, n>(from), Vector<double, n>);
}

// The sum of distances from a mean that was rounded, and that of their squares.
struct Distances {
    double sum = 0;
    double squares = 0;

    double deviation(int64_t count, int64_t correction) const {
        if (count <= correction || count == 0)
            return 0;
        const double all = squares - sum * sum / double(count);
        return __builtin_sqrt((all < 0 ? 0 : all) / double(count - correction));
    }
};

// Means and deviations over the rows of a set. A mean is that of `Adder`. Distances from it are
// added in a second pass, while a cache holds the rows.
template <class T>
struct RowStatistics {
    static constexpr int64_t GROUP = 4;  // rows that one loop adds
    static constexpr int64_t n = LANES<double>;
    Adder<T> adder;
    T *const deviations;
    double sums[WIDTH];
    double squares[WIDTH];

    template <int64_t width>
    __attribute__((noinline)) void add(const Row *rows, int64_t count, const T *mean, int64_t from,
                                       int64_t to) {
        for (int64_t i = from; i + width <= to; i += width) {
            const auto centre = doubles<T, width>(mean + i);
            auto sum = read<Vector<double, width>>(sums + i);
            auto square = read<Vector<double, width>>(squares + i);
            for (int64_t k = 0; k < count; ++k) {
                const auto distance = doubles<T, width>(elements<T>(rows[k]) + i) - centre;
                sum += distance;
                square += distance * distance;
            }
            write(sum, sums + i);
            write(square, squares + i);
        }
    }
    void operator()(const Piece &piece) {
        adder(piece);
        const Segments &s = adder.s;
        const int64_t at = piece.set * s.channels + piece.at, vectors = piece.count / n * n;
        std::fill_n(sums, piece.count, 0.);
        std::fill_n(squares, piece.count, 0.);
        List &list = adder.list;
        list.next = piece.begin;
        while (list.fill(s, piece, adder.values, sizeof(T)))
            for (int64_t k = 0; k < list.count; k += GROUP) {
                const int64_t count = std::min(GROUP, list.count - k);
                add<n>(list.rows.data() + k, count, adder.output + at, 0, vectors);
                add<1>(list.rows.data() + k, count, adder.output + at, vectors, piece.count);
            }
        const int64_t kept = piece.kept();
        for (int64_t i = 0; i < piece.count; ++i)
            deviations[at + i] =
                narrow<T>(Wide<T>(Distances{sums[i], squares[i]}.deviation(kept, s.correction)));
    }
};

// The same of contiguous planes of `length` elements: numbers of channels count planes.
template <class T>
struct PlaneStatistics {
    static constexpr int64_t n = LANES<double>;
    static constexpr int64_t UNROLLED = 4 * n;
    static constexpr int64_t BLOCK = 64 * UNROLLED;  // sums of blocks are added to each other
    const Segments &s;
    const T *const values;
    T *const means;
    T *const deviations;
    int64_t set = -1;  // of `kept`
    int64_t kept = 0;

    // Adds act(element) to totals, for elements that the mask keeps.
    template <int64_t count, class Act>
    static void add(const T *from, const uint8_t *mask, double (&totals)[count], int64_t length,
                    const Act &act) {
        using V = Vector<double, n>;
        for (int64_t at = 0; at < length; at += BLOCK) {
            const int64_t end = std::min(length, at + BLOCK);
            V block[4][count] = {};
            int64_t i = at;
            for (; i + UNROLLED <= end; i += UNROLLED)
#pragma GCC unroll 4
                for (int64_t k = 0; k < 4; ++k) {
                    const int64_t j = i + k * n;
                    V added[count];
                    act(doubles<T, n>(from + j), added);
                    for (int64_t t = 0; t < count; ++t)
                        if (mask == nullptr)
                            block[k][t] += added[t];
                        else {
                            const auto keeps =
                                converted<int64_t, n, int8_t>(read<Vector<int8_t, n>>(mask + j));
                            block[k][t] += keeps != 0 ? added[t] : V{};
                        }
                }
            for (int64_t t = 0; t < count; ++t) {
                const V all = (block[0][t] + block[1][t]) + (block[2][t] + block[3][t]);
                for (int64_t k = 0; k < n; ++k)
                    totals[t] += all[k];
            }
            for (; i < end; ++i)
                if (mask == nullptr || mask[i]) {
                    double added[count];
                    act(double(widen(from[i])), added);
                    for (int64_t t = 0; t < count; ++t)
                        totals[t] += added[t];
                }
        }
    }
    void operator()(Piece piece) {
        if (piece.set != set) {
            set = piece.set;
            kept = piece.kept();
        }
        for (int64_t c = piece.at; c < piece.at + piece.count; ++c) {
            const T *const from = values + set * s.set_step + c * s.length;
            double sum[1] = {0}, distances[2] = {0, 0};
            add<1>(from, piece.mask, sum, s.length,
                   [](const auto &x, auto &added) { added[0] = x; });
            const double mean = sum[0] / double(std::max<int64_t>(kept, 1));
            add<2>(from, piece.mask, distances, s.length, [=](const auto &x, auto &added) {
                added[0] = x - mean;
                added[1] = added[0] * added[0];
            });
            means[set * s.channels + c] = narrow<T>(Wide<T>(mean));
            deviations[set * s.channels + c] = narrow<T>(
                Wide<T>(Distances{distances[0], distances[1]}.deviation(kept, s.correction)));
        }
    }
};

// The gradient of means and deviations: a + b * (element - mean) for each element that is kept.
template <class T>
struct StatisticsGradient {
    using L = Wide<T>;
    const Segments &s;
    const T *const values;
    const T *const means;
    const T *const deviations;
    const T *const of_means;
    const T *const of_deviations;
    T *const gradient;
    L slope[WIDTH];
    L constant[WIDTH];  // a - b * mean would cancel: this is a
    L mean[WIDTH];

    void operator()(const Piece &piece) {
        const int64_t at = piece.set * s.channels + piece.at, kept = piece.kept();
        for (int64_t i = 0; i < piece.count; ++i) {
            const L deviation = widen(deviations[at + i]);
            mean[i] = widen(means[at + i]);
            constant[i] = widen(of_means[at + i]) / L(std::max<int64_t>(kept, 1));
            slope[i] = kept > s.correction && deviation != 0
                           ? widen(of_deviations[at + i]) / (deviation * L(kept - s.correction))
                           : L(0);
        }
        const bool are_planes = s.row_step == 1;
        const int64_t first = piece.set * s.set_step + piece.at * (are_planes ? s.length : 1);
        for (int64_t row = 0; row < (are_planes ? piece.count : s.length); ++row) {
            const int64_t from = first + row * (are_planes ? s.length : s.row_step);
            const T *const x = values + from;
            T *const to = gradient + from;
            if (are_planes) {
                VECTORIZE
                for (int64_t i = 0; i < s.length; ++i)
                    to[i] = narrow<T>(constant[row] + slope[row] * (widen(read<T>(x + i)) - mean[row]));
                for (int64_t i = 0; i < s.length && piece.mask != nullptr; ++i)
                    to[i] = piece.mask[i] ? to[i] : T{};
            } else if (piece.keeps(row)) {
                VECTORIZE
                for (int64_t i = 0; i < piece.count; ++i)
                    to[i] = narrow<T>(constant[i] + slope[i] * (widen(read<T>(x + i)) - mean[i]));
            } else
                std::fill_n(to, piece.count, T{});
        }
    }
};

// Channels of a piece whose rows a cache holds.
int64_t cached_width(const Segments &s, int64_t element) {
    return std::clamp<int64_t>((256 << 10) / std::max<int64_t>(s.length * element, 1) / 16 * 16, 16,
                               WIDTH);
}

}  // namespace

bool are_offsets(const Segments &s, const int64_t *offsets) {
    if (offsets == nullptr)
        return true;
    bool are = offsets[0] >= 0 && offsets[s.segments] <= s.length;
    for (int64_t k = 0; k < s.segments; ++k)
        are &= offsets[k] <= offsets[k + 1];
    return are;
}

void segment_sums(const Segments &s, const void *values, const int64_t *offsets,
                  const uint8_t *mask, void *output) {
    with_floats(s.type, "segments of type", [&](auto element) {
        using T = decltype(element);
        each_piece(s, offsets, mask, [&] {
            return Adder<T>{s, static_cast<const char *>(values), static_cast<T *>(output)};
        });
    });
}

void segment_maxima(const Segments &s, const void *values, const int64_t *offsets,
                    const uint8_t *mask, void *output, int64_t *winners) {
    if (s.length > HIGHEST<int32_t>)
        reject("maximum of so many rows:", s.length);
    with_floats(s.type, "segments of type", [&](auto element) {
        using T = decltype(element);
        each_piece(s, offsets, mask, [&] {
            return Finder<T>{s, static_cast<const char *>(values), static_cast<T *>(output),
                             winners, Wide<T>(s.are_minima ? -1 : 1)};
        });
    });
}

void segment_shares(const Segments &s, const void *arriving, const int64_t *offsets,
                    const uint8_t *mask, const int64_t *winners, void *gradient) {
    with_floats(s.type, "segments of type", [&](auto element) {
        using T = decltype(element);
        T *const to = static_cast<T *>(gradient);
        use_large_pages(gradient, s.length * s.channels * int64_t(sizeof(T)) *
                                      (offsets != nullptr ? 1 : s.segments));
        if (offsets != nullptr) {  // rows before the first set, and after the last
            const int64_t end = offsets[s.segments] * s.channels;
            std::fill_n(to, offsets[0] * s.channels, T{});
            std::fill_n(to + end, s.length * s.channels - end, T{});
        }
        each_piece(s, offsets, mask,
                   [&] { return Spreader<T>{s, static_cast<const T *>(arriving), to, winners}; });
    });
}

void statistics(const Segments &s, const void *values, const uint8_t *mask, void *means,
                void *deviations) {
    with_floats(s.type, "statistics of type", [&](auto element) {
        using T = decltype(element);
        T *const to = static_cast<T *>(means), *const widths = static_cast<T *>(deviations);
        const T *const from = static_cast<const T *>(values);
        if (s.row_step == 1)
            each_piece(s, nullptr, mask, [&] { return PlaneStatistics<T>{s, from, to, widths}; });
        else
            each_piece(
                s, nullptr, mask,
                [&] {
                    return RowStatistics<T>{{s, static_cast<const char *>(values), to}, widths};
                },
                cached_width(s, sizeof(T)));
    });
}

void statistics_grad(const Segments &s, const void *values, const uint8_t *mask,
                     const void *moments, void *gradient) {
    with_floats(s.type, "statistics of type", [&](auto element) {
        using T = decltype(element);
        const T *const means = static_cast<const T *>(moments);
        const int64_t n = s.segments * s.channels;
        each_piece(s, nullptr, mask, [&] {
            return StatisticsGradient<T>{s,
                                         static_cast<const T *>(values),
                                         means,
                                         means + n,
                                         means + 2 * n,
                                         means + 3 * n,
                                         static_cast<T *>(gradient)};
        });
    });
}

}  // namespace dmlpool
