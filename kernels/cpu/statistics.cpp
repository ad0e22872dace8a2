// Means and standard deviations of channels over the rows of a sample.
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

    // Adds those of elements from number i on, or of those that the mask keeps if it is not null.
    template <class T>
    void add(const T *from, const uint8_t *mask, int64_t i, const Vector<double, n> &centre) {
        Vector<double, n> distance = doubles<T, n>(from + i) - centre;
        if (mask) {
            const auto bytes = converted<int64_t, n, int8_t>(read<Vector<int8_t, n>>(mask + i));
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
    return __builtin_sqrt(max(squares, 0.) / double(count - correction));
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

    // Adds elements [i, end) of a row: vectors, and then what they leave.
    template <int64_t width>
    void add_row(const T *from, int64_t i, int64_t end) {
        using V = Vector<double, width>;
        for (; i + width <= end; i += width) {
            Distances<width> all = {read<V>(sums + i), read<V>(squares + i)};
            all.add(from, nullptr, i, read<V>(centre + i));
            write(all.sum, sums + i);
            write(all.squares, squares + i);
        }
        if constexpr (width > 1)
            add_row<1>(from, i, end);
    }
    Distances<1> of_plane(const T *from, const uint8_t *mask, double centre) const {
        const int64_t length = adder.s.length;
        Distances<n> parts[4];
        Distances<1> all;
        int64_t i = 0;
        for (; i + 4 * n <= length; i += 4 * n)
#pragma GCC unroll 4
            for (int64_t k = 0; k < 4; ++k)
                parts[k].add(from, mask, i + k * n, Vector<double, n>{} + centre);
        for (; i < length; ++i)
            all.add(from, mask, i, centre);
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
        const T *from = as<T>(adder.values) + piece.set * s.set_step;
        T *const mean = adder.output + piece.result;
        T *const to = deviations + piece.result;
        const auto finish = [&](int64_t i, const Distances<1> &all) {
            to[i] = narrow<T>(Wide<T>(deviation(all, kept, s.correction)));
        };
        if (s.row_step == 1) {
            from += piece.at * s.length;
            for (int64_t i = 0; i < piece.channels; ++i, from += s.length) {
                const double sum = of_plane(from, piece.mask, 0).sum;
                const double exact = sum / double(max(kept, 1));
                mean[i] = narrow<T>(Wide<T>(exact));
                finish(i, of_plane(from, piece.mask, exact));
            }
            return;
        }
        adder(piece);
        for (int64_t i = 0; i < piece.channels; ++i) {
            centre[i] = double(widen(mean[i]));
            sums[i] = squares[i] = 0;
        }
        from += piece.at;
        for (int64_t row = 0; row < s.length; ++row, from += s.row_step)
            if (piece.keeps(row))
                add_row<n>(from, 0, piece.channels);
        for (int64_t i = 0; i < piece.channels; ++i)
            finish(i, {sums[i], squares[i]});
    }
};

// The gradient of means and deviations. `line` has the means of all sets, then what distances from
// these are multiplied by, and then what is added.
template <class T>
struct StatisticsGradient {
    using L = Wide<T>;
    const Segments &s;
    const T *const values;
    const L *const line;
    T *const gradient;

    void operator()(const Piece &piece) const {
        const int64_t all = s.segments * s.channels;
        // Elements of one channel and their bytes of the mask, or with `step` 1 of as many
        // channels.
        const auto write_row = [&](int64_t from, int64_t count, const L *mean, const uint8_t *mask,
                                   auto step) {
            VECTORIZE
            for (int64_t i = 0; i < count; ++i) {
                const L *const of = mean + step * i;
                const L distance = widen(read<T>(values + from + i)) - of[0];
                const bool is_kept = !mask || mask[i - step * i];
                gradient[from + i] = narrow<T>(is_kept ? of[2 * all] + of[all] * distance : 0);
            }
        };
        const L *const mean = line + piece.result;
        const bool are_planes = s.row_step == 1;
        const int64_t rows = are_planes ? piece.channels : s.length;
        const int64_t apart = are_planes ? s.length : s.row_step;
        int64_t from = piece.set * s.set_step + piece.at * (are_planes ? s.length : 1);
        for (int64_t k = 0; k < rows; ++k, from += apart)
            if (are_planes)
                write_row(from, s.length, mean + k, piece.mask, Count<0>());
            else
                write_row(from, piece.channels, mean, piece.mask ? piece.mask + k : nullptr,
                          Count<1>());
    }
};

}  // namespace

void statistics(const Segments &s, const void *values, const uint8_t *mask, void *means,
                void *deviations) {
    each_piece(s, "statistics of type", nullptr, mask, [&]<class T>(T) {
        return Statistics<T>{{s, as<char>(values), as<T>(means)}, as<T>(deviations)};
    });
}

void statistics_grad(const Segments &s, const void *values, const uint8_t *mask, const void *line,
                     void *gradient) {
    each_piece(s, "statistics of type", nullptr, mask, [&]<class T>(T) {
        return StatisticsGradient<T>{s, as<T>(values), as<Wide<T>>(line), as<T>(gradient)};
    });
}

}  // namespace dmlpool
