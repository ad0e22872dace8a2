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
template <int64_t n>
struct Distances {
    Vector<double, n> sum = {};
    Vector<double, n> squares = {};

    // Adds those of elements from `from` on, or of those that the mask keeps if it is not null.
    template <class T>
    void add(const T *from, const uint8_t *mask, const Vector<double, n> &centre) {
        Vector<double, n> distance = doubles<T, n>(from) - centre;
        if (mask != nullptr) {
            const auto bytes = converted<int64_t, n, int8_t>(read<Vector<int8_t, n>>(mask));
            distance = bytes != 0 ? distance : Vector<double, n>{};
        }
        sum += distance;
        squares += distance * distance;
    }
};

double deviation(const Distances<1> &all, int64_t count, int64_t correction) {
    if (count <= correction || count == 0)
        return 0;
    const double squares = all.squares - all.sum * all.sum / double(count);
    return __builtin_sqrt((squares < 0 ? 0 : squares) / double(count - correction));
}

// Means and deviations over the rows of a set, whose means are those of `Adder`, or of contiguous
// planes of `length` elements: then numbers of channels count planes.
template <class T>
struct Statistics {
    static constexpr int64_t n = LANES<double>;
    Adder<T> adder;
    T *const deviations;
    double centre[WIDTH];
    double sums[WIDTH];
    double squares[WIDTH];

    // Adds elements [begin, end) of a row, as many vectors as they fill.
    template <int64_t width>
    void add_row(const T *from, int64_t begin, int64_t end) {
        using V = Vector<double, width>;
        for (int64_t i = begin; i + width <= end; i += width) {
            Distances<width> all = {read<V>(sums + i), read<V>(squares + i)};
            all.add(from + i, nullptr, read<V>(centre + i));
            write(all.sum, sums + i);
            write(all.squares, squares + i);
        }
    }
    Distances<1> of_plane(const T *from, const uint8_t *mask, double centre) const {
        const int64_t length = adder.s.length;
        const auto mask_at = [=](int64_t i) { return mask != nullptr ? mask + i : nullptr; };
        Distances<n> parts[4];
        Distances<1> all;
        int64_t i = 0;
        for (; i + 4 * n <= length; i += 4 * n)
#pragma GCC unroll 4
            for (int64_t k = 0; k < 4; ++k)
                parts[k].add(from + i + k * n, mask_at(i + k * n), Vector<double, n>{} + centre);
        for (; i < length; ++i)
            all.add(from + i, mask_at(i), centre);
        const auto sum = (parts[0].sum + parts[1].sum) + (parts[2].sum + parts[3].sum);
        const auto square =
            (parts[0].squares + parts[1].squares) + (parts[2].squares + parts[3].squares);
        for (int64_t k = 0; k < n; ++k) {
            all.sum += sum[k];
            all.squares += square[k];
        }
        return all;
    }
    void operator()(const Piece &piece) {
        const Segments &s = adder.s;
        const int64_t kept = piece.kept_rows();
        const T *from = reinterpret_cast<const T *>(adder.values) + piece.set * s.set_step;
        T *const mean = adder.output + piece.set * s.channels + piece.at;
        T *const to = deviations + piece.set * s.channels + piece.at;
        const auto finish = [&](int64_t i, const Distances<1> &all) {
            to[i] = narrow<T>(Wide<T>(deviation(all, kept, s.correction)));
        };
        if (s.row_step == 1) {
            from += piece.at * s.length;
            for (int64_t i = 0; i < piece.channels; ++i, from += s.length) {
                const double sum = of_plane(from, piece.mask, 0).sum;
                const double exact = sum / double(std::max<int64_t>(kept, 1));
                mean[i] = narrow<T>(Wide<T>(exact));
                finish(i, of_plane(from, piece.mask, exact));
            }
            return;
        }
        adder(piece);
        const int64_t vectors = piece.channels / n * n;
        for (int64_t i = 0; i < piece.channels; ++i) {
            centre[i] = double(widen(mean[i]));
            sums[i] = squares[i] = 0;
        }
        from += piece.at;
        for (int64_t row = 0; row < s.length; ++row, from += s.row_step)
            if (piece.keeps(row)) {
                add_row<n>(from, 0, vectors);
                add_row<1>(from, vectors, piece.channels);
            }
        for (int64_t i = 0; i < piece.channels; ++i)
            finish(i, {sums[i], squares[i]});
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
        each_piece(s, nullptr, mask, [&] {
            return Statistics<T>{{s, static_cast<const char *>(values), static_cast<T *>(means)},
                                 static_cast<T *>(deviations)};
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
