// Pools under a mask, where an element is not there if the mask is false.
//
// Strategies read what is kept (see kept.h): masked elements become 0 in sums, the lowest value in
// maxima and the highest one in minima. Averages are pooled in parts that stay in a cache until
// they are divided. What the mask keeps is counted by the same windows, once for all channels that
// share a mask:
//
//     input   | 3 5 | 7 9 |                       sums   |  8 |  7 |
//                            masked: | 3 5 | 7 0 |  ->              ->  averages | 4 | 7 |
//     mask    | 1 1 | 1 0 |                       counts |  2 |  1 |

#include "counts.h"
#include "kept.h"
#include "numbers.h"
#include "operators.h"
#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

constexpr int64_t PART = 1 << 17;  // elements that are pooled and divided together
constexpr int64_t AHEAD = 2048;    // bytes that are prefetched before they are masked

// Copies the elements of `count` bytes of a mask, `each` of them for a byte, but writes `fill`
// where the mask is false. There is a vector of n elements at least; the last one may overlap the
// one before.
template <int64_t n, class S>
void keep(const S *from, const uint8_t *mask, int64_t count, int64_t each, S fill, S *to) {
    const auto filled = Vector<S, n>{} + fill;
    const auto copy = [&](int64_t i, const Vector<S, n> &is_kept) {
        __builtin_prefetch(from + i + AHEAD / sizeof(S));
        const auto elements = read<Vector<S, n>>(from + i);
        write(Vector<S, n>(is_kept != 0 ? elements : filled), to + i);
    };
    if (each == 1)
        for (int64_t at = 0; at < count; at += n) {
            const int64_t i = min(at, count - n);
            copy(i, load<S, n>(mask + i));
        }
    else
        for (int64_t k = 0; k < count; ++k)
            for (int64_t at = 0; at < each; at += n)
                copy(k * each + min(at, each - n), Vector<S, n>{} + S(mask[k]));
}

// Some planes whose masks follow each other or are one, or a band of one plane.
struct Part : PlanePart {  // from the first plane on
    Problem problem;
    int64_t input;   // the first element
    int64_t output;  // the first result

    int64_t elements() const { return problem.planes * problem.plane(); }
    int64_t results() const { return problem.planes * problem.output_plane(); }
};

// A tensor and its mask.
struct MaskedAverages : Kept {
    const Windows windows{p};
    const PlaneParts parts{p, PART, 2};
    const Axis &axis = parts.axis;
    const int64_t largest = max(p.plane(), p.output_plane());
    const int64_t planes = parts.count > 1 ? 1 : clamp(PART / largest, 1, m.planes);

    // What outputs read along the axis that is cut; all outputs may read all positions.
    Range positions_of(const Range &outputs) const {
        if (outputs.size() == axis.outputs)
            return {0, axis.size};
        const Range reach = windows.reach(parts.cut, outputs.begin, outputs.size());
        const int64_t begin = min(reach.begin, axis.size - 1);
        return {begin, max(reach.end, begin + 1)};
    }
    // The mask of positions of a part's first plane.
    const uint8_t *mask_at(const PlanePart &part, const Range &positions) const {
        return mask_of(part.plane) + positions.begin * parts.slab / each;
    }
    // The outputs of a band of a plane.
    const int64_t step = parts.count == 1   ? axis.outputs
                         : axis.window == 0 ? 1
                                            : max(1, parts.step / axis.stride);

    // Calls a copy of work(part) for all parts of a thread, which are whole planes or bands of a
    // plane. The results of bands do not overlap, or with `of_elements` their elements.
    void each_part(bool of_elements, const auto &of_thread) const {
        const int64_t bands = !of_elements       ? parts_of(axis.outputs, step)
                              : axis.window == 0 ? 1
                                                 : parts.count;
        const int64_t chunks = parts_of(m.planes, planes);
        const int64_t elements = planes * p.plane() / bands;
        // The threads share a part that no cache of a core holds: without a cost there is one loop.
        const double cost = elements > 8 * PART ? 0 : 4. * double(elements);
        parallel_loops({chunks, bands, m.groups}, cost, [&] {
            return [&, work = of_thread](const auto &digits) mutable {
                const int64_t first = digits[0] * planes, band = digits[1];
                Part part = {parts.of(band), p, 0, 0};
                auto &[plane, positions, outputs] = static_cast<PlanePart &>(part);
                if (bands == 1 || !of_elements) {
                    outputs = {band * step,
                               bands == 1 ? axis.outputs : min((band + 1) * step, axis.outputs)};
                    positions = positions_of(outputs);
                }
                plane = digits[2] * m.planes + first;
                const int64_t count = min(planes, m.planes - first);
                part.problem = parts.problem(count, positions, outputs);
                part.problem.masking = {
                    1, count, m.is_own, 0, m.channels, m.fill, mask_at(part, positions)};
                part.input = plane * p.plane() + positions.begin * parts.slab;
                part.output =
                    plane * p.output_plane() + outputs.begin * (p.output_plane() / axis.outputs);
                work(part);
            };
        });
    }
    // Whether each plane is pooled whole under a mask of positions: then these are rows of a set.
    bool are_sets() const {
        bool counts_padding = false;
        for (const Axis &axis : p.axes)
            counts_padding |= axis.window > axis.size;
        return p.channels > 1 && m.channels == 1 && windows.are_planes() &&
               !(counts_padding && p.counting.include_padding);
    }
    Segments sets() const {
        const int64_t rows = p.plane() / each;
        return {p.planes, p.channels,         rows, p.plane(), p.channels, m.is_own ? rows : 0,
                p.type,   p.counting.divisor, 0,    0};
    }
    // What is kept of a part. It refers to the part.
    Kept kept(const Part &part) const {
        return {part.problem, as<char>(tensor) + part.input * bytes};
    }
};

// The same problem for averages, which become sums of numbers of type `type`, without a mask.
Problem sums_of(Problem q, int64_t type) {
    q.type = type;
    q.masking.mask = nullptr;
    q.counting = {0, 1, {0, 0, 0}};
    return q;
}

// What the sums of a part are divided by: how many taps each window counts, without those that the
// mask leaves out.
struct Counts {
    const MaskedAverages &of;
    vector<double> counts = {};
    const uint8_t *known = nullptr;  // the mask that they are of, and the first output
    int64_t begin = 0;

    void find(const Part &part) {
        const Range &outputs = part.outputs, positions = of.positions_of(outputs);
        const uint8_t *const mask = of.mask_at(part, positions);
        if (of.p.counting.divisor != 0 || (known == mask && begin == outputs.begin))
            return;
        known = mask;
        begin = outputs.begin;
        Problem q = of.parts.problem(of.m.is_own ? part.problem.planes : 1, positions, outputs);
        q.channels = of.m.channels;
        of.p.plane() <= 1 << 24 ? count<float>(q, mask) : count<double>(q, mask);
    }
    template <class L>
    void count(const Problem &q, const uint8_t *mask) {
        vector<L> left_out(q.planes * q.plane()), sums(q.planes * q.output_plane());
        for (size_t i = 0; i < left_out.size(); ++i)
            left_out[i] = L(mask[i] == 0);
        average_pooling(sums_of(q, sizeof(L) == 8 ? FLOAT64 : FLOAT32), left_out.data(),
                        sums.data());
        counts.assign(sums.begin(), sums.end());
        const CountedWindows windows(q, false);
        const int64_t length = q.output_row(), rows = int64_t(counts.size()) / length;
        Digits<2> digits(0, {q.h().outputs, q.d().outputs});
        for (double *row = counts.data(); row < counts.data() + rows * length;
             ++digits, row += length)
            windows.for_runs(0, length, [&](int64_t at, int64_t n, int64_t output) {
                const double counted = windows.divisor(digits[1], digits[0], output);
                for (int64_t i = at; i < at + n; ++i)
                    row[i] = max(1., counted - row[i]);
            });
    }
    // Divides the sums of a part, and writes them as elements U.
    template <class T, class U>
    void divide_part(const Part &part, const T *sums, U *out) const {
        const int64_t n = part.problem.output_plane(), each = of.each;
        if (of.p.counting.divisor != 0)
            return divide<U, T>(sums, part.results(), out, double(of.p.counting.divisor));
        for (int64_t k = 0; k < part.problem.planes; ++k, sums += n, out += n) {
            const double *by = counts.data() + (of.m.is_own ? k * n / each : 0);
            if (each == 1)
                divide<U, T>(sums, n, out, 1, by);
            else
                for (int64_t i = 0; i < n; i += each)
                    divide<U, T>(sums + i, each, out + i, *by++);
        }
    }
};

template <class T>
void pool_averages(const MaskedAverages &masked, T *output) {
    using L = Wide<T>;
    masked.each_part(
        false, [&, counts = Counts{masked}, sums = vector<L>()](const Part &part) mutable {
            counts.find(part);
            T *const out = output + part.output;
            L *to;
            if constexpr (is_same_v<T, L>)
                to = out;
            else {
                sums.resize(part.results());
                to = sums.data();
            }
            const Kept kept = masked.kept(part);
            pool_averages(sums_of(part.problem, masked.p.type), kept.tensor, to, &kept);
            counts.divide_part(part, to, out);
        });
}

template <class T>
void spread_averages(const MaskedAverages &masked, const T *arriving, T *gradient) {
    using L = Wide<T>;
    masked.each_part(true, [&, counts = Counts{masked}, shares = vector<L>(),
                            sums = vector<L>()](const Part &part) mutable {
        counts.find(part);
        shares.resize(part.results());
        counts.divide_part(part, arriving + part.output, shares.data());
        const Problem q = sums_of(part.problem, sum_type(masked.p.type));
        T *const out = gradient + part.input;
        if constexpr (is_same_v<T, L>)
            average_pooling_grad(q, shares.data(), out);
        else {
            sums.resize(part.elements());
            average_pooling_grad(q, shares.data(), sums.data());
            divide<T>(sums.data(), part.elements(), out);
        }
        masked.kept(part).read(out, part.elements(), out);
    });
}

// The numbers of winners. An element that has the value that masked ones are read as, which is the
// lowest of maxima and the highest of minima, ties with these, and they may be found first. Then
// the winner is the first element that the mask keeps.
template <class S>
struct FirstKept {
    const Kept &kept;
    const S *const values;
    void *const winners;

    const Problem &p = kept.p;
    const Windows windows{p};
    const Numbers numbers{p, winners};

    // What `Numbers` knows of the first element of a window that the mask keeps: the sum of its
    // tap's coordinates times units, or -1. The mask has `step` bytes for each position.
    int64_t first(const int64_t (&output)[3], const uint8_t *mask, int64_t step) const {
        Span spans[3];
        for (int a = 0; a < 3; ++a)
            spans[a] = windows.at(a, output[a]);
        int64_t left = spans[0].count * spans[1].count * spans[2].count;
        if (left == 0)
            return -1;
        for (Digits taps(0, {spans[2].count, spans[1].count, spans[0].count}); left > 0;
             --left, ++taps) {
            int64_t position = 0, number = 0;
            for (int a = 0; a < 3; ++a) {
                const int64_t tap = taps[2 - a];
                position = position * p.axes[a].size + spans[a].begin + tap * p.axes[a].dilation;
                number += (spans[a].tap + tap) * numbers.units[a];
            }
            if (mask[position * step])
                return number;
        }
        return -1;
    }
    void find_row(int64_t plane, int64_t d, int64_t h) const {
        const S fill = S(kept.m.fill);
        const int64_t length = p.output_row();
        const S *const row = values + plane * p.output_plane() + (d * p.h().outputs + h) * length;
        if (std::find(row, row + length, fill) == row + length)
            return;
        const uint8_t *const mask = kept.mask_of(plane);
        int64_t known = -1, found = -1;  // the output that `found` belongs to
        for (int64_t i = 0; i < length; ++i) {
            const int64_t output = i / p.channels;
            if (row[i] != fill)
                continue;
            if (kept.m.channels > 1 || output != known)
                found = first({d, h, output}, mask + i % kept.m.channels, kept.m.channels);
            known = output;
            numbers.write(plane, d, h, i, 1, &found);
        }
    }
    void find() const {
        parallel_loops({p.h().outputs, p.d().outputs, p.planes}, double(p.output_row()),
                       [&] { return [&](const auto &at) { find_row(at[2], at[1], at[0]); }; });
    }
};

}  // namespace

void Kept::read(const void *from, int64_t count, void *to) const {
    with_integers(bytes, [&]<class S>(S) {
        const S *elements = as<S>(from);
        S *out = as<S>(to);
        const int64_t size = p.plane(), first = elements - as<S>(tensor);
        int64_t plane = first / size, at = first % size;
        for (int64_t n; count > 0; ++plane, at = 0, count -= n, elements += n, out += n) {
            n = min(count, size - at);
            const uint8_t *const mask = mask_of(plane) + at / each;
            const auto run = (each == 1 ? n : each) < LANES<S> ? &keep<1, S> : &keep<LANES<S>, S>;
            run(elements, mask, n / each, each, S(m.fill), out);
        }
    });
}

vector<char> Kept::filled(int64_t count) const {
    vector<char> row(count * bytes);
    with_integers(bytes, [&]<class S>(S) { fill_n(as<S>(row.data()), count, S(m.fill)); });
    return row;
}

void masked(const Problem &p, const void *input, void *output) {
    const Kept kept{p, input};
    use_large_pages(output, p.input_bytes(kept.bytes));
    parallel(p.planes * p.plane() / kept.each, double(kept.each), [&](int64_t begin, int64_t end) {
        const int64_t first = begin * kept.each * kept.bytes;
        kept.read(as<char>(input) + first, (end - begin) * kept.each, as<char>(output) + first);
    });
}

void masked_averages(const Problem &p, const void *input, void *output) {
    const MaskedAverages masked{{p, input}};
    if (masked.are_sets())
        return segment_sums(masked.sets(), input, nullptr, masked.m.mask, output);
    with_floats(p.type, "averages of type",
                [&]<class T>(T) { pool_averages(masked, as<T>(output)); });
}

void masked_averages_grad(const Problem &p, const void *arriving, void *gradient) {
    const MaskedAverages masked{{p, gradient}};
    if (masked.are_sets())
        return segment_shares(masked.sets(), arriving, nullptr, masked.m.mask, nullptr, gradient);
    with_floats(p.type, "averages of type",
                [&]<class T>(T) { spread_averages(masked, as<T>(arriving), as<T>(gradient)); });
}

void find_first_kept(const Kept &kept, const void *maxima, void *winners) {
    with_integers(kept.bytes,
                  [&]<class S>(S) { FirstKept<S>{kept, as<S>(maxima), winners}.find(); });
}

}  // namespace dmlpool
