// Means and standard deviations of channels over the rows of a sample, and their gradient.
//
// A mean is found first. Distances from it, and their squares, are added in float64 in a second
// pass, while a cache holds what the first one has read. The sum of the distances corrects what was
// lost where the mean was rounded.

#include "segments.h"

namespace dmlpool {
namespace {

// n elements as float64, in which deviations are added.
template <class T, int64_t n>
inline Vector<double, n> doubles(const T *from) {
    if constexpr (n == 1)
        return double(widen(*from));
    else
        return __builtin_convertvector(load<Wide<T>, n>(from), Vector<double, n>);
}

// The sum of distances from a mean that was rounded, and that of their squares.
struct Distances {
    double sum = 0;
    double squares = 0;

    void add(double distance, double square) {
        sum += distance;
        squares += square;
    }
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
        const int64_t at = piece.set * s.channels + piece.at, vectors = piece.channels / n * n;
        std::fill_n(sums, piece.channels, 0.);
        std::fill_n(squares, piece.channels, 0.);
        List &list = adder.list;
        list.next = piece.begin;
        while (list.fill(s, piece, adder.values, sizeof(T)))
            for (int64_t k = 0; k < list.count; k += GROUP) {
                const int64_t count = std::min(GROUP, list.count - k);
                add<n>(list.rows.data() + k, count, adder.output + at, 0, vectors);
                add<1>(list.rows.data() + k, count, adder.output + at, vectors, piece.channels);
            }
        const int64_t kept = piece.kept_rows();
        for (int64_t i = 0; i < piece.channels; ++i)
            deviations[at + i] =
                narrow<T>(Wide<T>(Distances{sums[i], squares[i]}.deviation(kept, s.correction)));
    }
};

// The same of contiguous planes of `length` elements: numbers of channels count planes.
template <class T>
struct PlaneStatistics {
    static constexpr int64_t n = LANES<double>;
    const Segments &s;
    const T *const values;
    T *const means;
    T *const deviations;

    // The distances from `centre` of the elements that the mask keeps.
    Distances distances(const T *from, const uint8_t *mask, double centre) const {
        using V = Vector<double, n>;
        Distances all;
        V sums[4] = {}, squares[4] = {};
        int64_t i = 0;
        for (; i + 4 * n <= s.length; i += 4 * n)
#pragma GCC unroll 4
            for (int64_t k = 0; k < 4; ++k) {
                V distance = doubles<T, n>(from + i + k * n) - centre;
                if (mask != nullptr) {
                    const auto bytes = read<Vector<int8_t, n>>(mask + i + k * n);
                    const auto keeps = converted<int64_t, n, int8_t>(bytes) != 0;
                    distance = keeps ? distance : V{};
                }
                sums[k] += distance;
                squares[k] += distance * distance;
            }
        for (; i < s.length; ++i)
            if (mask == nullptr || mask[i]) {
                const double distance = double(widen(from[i])) - centre;
                all.add(distance, distance * distance);
            }
        const V sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        const V square = (squares[0] + squares[1]) + (squares[2] + squares[3]);
        for (int64_t k = 0; k < n; ++k)
            all.add(sum[k], square[k]);
        return all;
    }
    void operator()(const Piece &piece) const {
        const int64_t kept = piece.kept_rows();
        for (int64_t c = piece.at; c < piece.at + piece.channels; ++c) {
            const T *const from = values + piece.set * s.set_step + c * s.length;
            const double sum = distances(from, piece.mask, 0).sum;
            const double mean = sum / double(std::max<int64_t>(kept, 1));
            const double deviation =
                distances(from, piece.mask, mean).deviation(kept, s.correction);
            means[piece.set * s.channels + c] = narrow<T>(Wide<T>(mean));
            deviations[piece.set * s.channels + c] = narrow<T>(Wide<T>(deviation));
        }
    }
};

// The gradient of means and deviations: a + b * (element - mean) for each element that is kept.
template <class T>
struct StatisticsGradient {
    using L = Wide<T>;
    const Segments &s;
    const T *const values;
    const T *const moments;
    T *const gradient;
    L slope[WIDTH];
    L constant[WIDTH];  // a - b * mean would cancel: this is a
    L mean[WIDTH];

    void operator()(const Piece &piece) {
        const int64_t at = piece.set * s.channels + piece.at, kept = piece.kept_rows();
        for (int64_t i = 0; i < piece.channels; ++i) {
            const auto moment = [&](int64_t k) {
                return L(widen(moments[k * s.segments * s.channels + at + i]));
            };
            const L deviation = moment(1);
            mean[i] = moment(0);
            constant[i] = moment(2) / L(std::max<int64_t>(kept, 1));
            slope[i] = kept > s.correction && deviation != 0
                           ? moment(3) / (deviation * L(kept - s.correction))
                           : L(0);
        }
        // Elements of channel `channel`, or of as many channels with `step` 1.
        const auto write_row = [&](int64_t from, int64_t count, int64_t channel, auto step) {
            VECTORIZE
            for (int64_t i = 0; i < count; ++i) {
                const int64_t c = channel + step * i;
                const L distance = widen(read<T>(values + from + i)) - mean[c];
                gradient[from + i] = narrow<T>(constant[c] + slope[c] * distance);
            }
        };
        const int64_t first = piece.set * s.set_step;
        if (s.row_step != 1)
            for (int64_t row = 0; row < s.length; ++row) {
                const int64_t from = first + row * s.row_step + piece.at;
                if (piece.keeps(row))
                    write_row(from, piece.channels, 0, Count<1>());
                else
                    std::fill_n(gradient + from, piece.channels, T{});
            }
        else
            for (int64_t channel = 0; channel < piece.channels; ++channel) {
                const int64_t from = first + (piece.at + channel) * s.length;
                write_row(from, s.length, channel, Count<0>());
                for (int64_t i = 0; i < s.length && piece.mask != nullptr; ++i)
                    if (!piece.mask[i])
                        gradient[from + i] = T{};
            }
    }
};

}  // namespace

void statistics(const Segments &s, const void *values, const uint8_t *mask, void *means,
                void *deviations) {
    with_floats(s.type, "statistics of type", [&](auto element) {
        using T = decltype(element);
        T *const to = static_cast<T *>(means), *const widths = static_cast<T *>(deviations);
        const T *const from = static_cast<const T *>(values);
        if (s.row_step == 1)
            each_piece(s, nullptr, mask, [&] { return PlaneStatistics<T>{s, from, to, widths}; });
        else
            each_piece(s, nullptr, mask, [&] {
                return RowStatistics<T>{{s, static_cast<const char *>(values), to}, widths};
            });
    });
}

void statistics_grad(const Segments &s, const void *values, const uint8_t *mask,
                     const void *moments, void *gradient) {
    with_floats(s.type, "statistics of type", [&](auto element) {
        using T = decltype(element);
        each_piece(s, nullptr, mask, [&] {
            return StatisticsGradient<T>{s, static_cast<const T *>(values),
                                         static_cast<const T *>(moments),
                                         static_cast<T *>(gradient)};
        });
    });
}

}  // namespace dmlpool
