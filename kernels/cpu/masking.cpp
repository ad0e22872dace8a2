// Pools under a mask: an element where the mask is false is not there.
//
// A part of the input is masked on its way into a thread's workspace, and pooled there while it is
// in a cache. Masked elements become 0 in sums and the lowest value in maxima. What the mask keeps
// is counted by the same windows, once for all channels that share a mask:
//
//     input   | 3 5 | 7 9 |                       sums   |  8 |  7 |
//                            masked: | 3 5 | 7 0 |  ->              ->  averages | 4 | 7 |
//     mask    | 1 1 | 1 0 |                       counts |  2 |  1 |

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "counts.h"
#include "operators.h"
#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

constexpr int64_t PART = 1 << 15;  // elements that are masked and pooled together
constexpr int64_t AHEAD = 2048;    // bytes that are prefetched before they are masked

// Copies `count` elements, but writes `fill` where the mask is false. The elements may be copied to
// where they are. There is a vector of n elements at least; the last one may overlap the one
// before.
template <int64_t n, class T, class L>
void keep(const T *from, const uint8_t *mask, int64_t count, L fill, L *to) {
    using I = IntegerOf<L>;
    for (int64_t at = 0; at < count; at += n) {
        const int64_t i = std::min(at, count - n);
        __builtin_prefetch(reinterpret_cast<const char *>(from + i) + AHEAD);
        const auto values = load<L, n>(from + i);
        const auto kept = load<I, n>(mask + i);
        write(Vector<L, n>(kept != 0 ? values : Vector<L, n>{} + fill), to + i);
    }
}

// Some planes whose masks follow each other or are one, or a band of one plane.
struct Part {
    int64_t plane;    // the first
    Range positions;  // along the axis that is cut
    Range outputs;
    bool has_same_mask;  // as the part before it that the thread worked on
    Problem problem;
    int64_t input;   // the first element
    int64_t output;  // the first result
    int64_t elements() const { return problem.planes * problem.plane(); }
    int64_t results() const { return problem.planes * problem.output_plane(); }
};

// A tensor and its mask.
struct Masked {
    const Problem &p;
    const Masking &m;
    const uint8_t *const mask;

    const Windows windows{p};
    const PlaneParts parts{p, PART, 2};
    const Axis &axis = parts.axis;
    const int64_t each = p.channels / m.channels;  // elements of a byte of the mask
    const int64_t mask_plane = p.plane() / each;
    const int64_t largest = std::max(p.plane(), p.output_plane());
    const int64_t planes =
        parts.count > 1 ? 1
                        : std::clamp<int64_t>(PART / largest, 1, std::max<int64_t>(m.planes, 1));

    const uint8_t *mask_of(int64_t plane) const {
        return mask + (plane / m.planes * m.step + m.is_own * (plane % m.planes)) * mask_plane;
    }
    // What outputs read along the axis that is cut; all outputs may read all positions.
    Range positions_of(const Range &outputs) const {
        if (outputs.end - outputs.begin == axis.outputs)
            return {0, axis.size};
        const Range reach = windows.reach(parts.cut, outputs.begin, outputs.end - outputs.begin);
        const int64_t begin = std::min(reach.begin, axis.size - 1);
        return {begin, std::max(reach.end, begin + 1)};
    }
    // The problem of some outputs of planes and of the positions that they read.
    Problem problem_of(int64_t planes, const Range &positions, const Range &outputs) const {
        Problem q = p;
        Axis &cut = q.axes[parts.cut];
        q.planes = planes;
        cut.size = positions.end - positions.begin;
        cut.outputs = outputs.end - outputs.begin;
        if (cut.window > 0)
            cut.padding += positions.begin - outputs.begin * cut.stride;
        else if (cut.outputs < axis.outputs)  // a bin that is all of the part
            cut = {cut.size, 1, cut.size, cut.size, 0, 1};
        return q;
    }
    // How planes are cut for results, and for elements.
    const int64_t step = parts.count == 1   ? axis.outputs
                         : axis.window == 0 ? 1
                                            : std::max<int64_t>(1, parts.step / axis.stride);
    const int64_t bands_of_results = parts_of(axis.outputs, step);
    const int64_t bands_of_elements = axis.window == 0 ? 1 : parts.count;

    // Calls a copy of work(part) for all parts of a thread, which are whole planes or one of
    // `bands` bands of a plane. The results of bands do not overlap, or with `of_elements` their
    // elements.
    template <class Work>
    void each_part(int64_t bands, bool of_elements, const Work &of_thread) const {
        const int64_t chunks = parts_of(m.planes, planes);
        const auto run = [&](int64_t begin, int64_t end) {
            Work work = of_thread;
            Digits<3> digits(begin, {chunks, bands, m.groups});
            for (int64_t number = begin; number < end; ++number, ++digits) {
                const int64_t first = digits[0] * planes, band = digits[1];
                Part part;
                part.plane = digits[2] * m.planes + first;
                part.has_same_mask = number > begin && digits[0] > 0 && !m.is_own;
                part.outputs = {0, axis.outputs};
                part.positions = {0, axis.size};
                if (bands > 1 && of_elements) {
                    const PlanePart one = parts.of(band);
                    part.positions = one.positions;
                    part.outputs.begin = std::min(one.outputs.begin, axis.outputs - 1);
                    part.outputs.end = std::max(one.outputs.end, part.outputs.begin + 1);
                } else if (bands > 1) {
                    part.outputs = {band * step, std::min((band + 1) * step, axis.outputs)};
                    part.positions = positions_of(part.outputs);
                }
                part.problem =
                    problem_of(std::min(planes, m.planes - first), part.positions, part.outputs);
                part.input = part.plane * p.plane() + part.positions.begin * parts.slab;
                part.output = part.plane * p.output_plane() +
                              part.outputs.begin * (p.output_plane() / axis.outputs);
                work(part);
            }
        };
        const int64_t elements = planes * p.plane() / bands;
        // The threads share a part that no cache of a core holds.
        if (elements > 8 * PART)
            run(0, chunks * bands * m.groups);
        else
            parallel(chunks * bands * m.groups, 4. * double(elements), run);
    }
    // Whether each plane is pooled whole under a mask of positions: then these are rows of a set.
    bool are_sets() const {
        bool counts_padding = false;
        for (int a = 0; a < 3; ++a)
            counts_padding |= p.axes[a].padding > 0 || p.counting.end_padding[a] > 0;
        return p.channels > 1 && m.channels == 1 && windows.are_planes() &&
               !(counts_padding && p.counting.include_padding);
    }
    Segments sets() const {
        return {p.planes,  p.channels,         mask_plane,
                p.plane(), p.channels,         m.is_own ? mask_plane : 0,
                p.type,    p.counting.divisor, 0,
                0};
    }
    // Copies planes from `plane` on to `to`, but writes `fill` where the mask is false. They have
    // `count` elements each from position `begin` of their masks on.
    template <class T, class L>
    void copy(int64_t plane, int64_t planes, int64_t begin, int64_t count, const T *from, L fill,
              L *to) const {
        const RowOperations &convert = row_sums(std::is_same_v<T, L> ? 0 : p.type);
        const int64_t bytes = count / each;  // of the mask of a plane
        parallel(planes * bytes, double(each), [&](int64_t first, int64_t last) {
            for (int64_t at = first, n; at < last; at += n) {
                n = std::min(last - at, bytes - at % bytes);
                const uint8_t *const kept = mask_of(plane + at / bytes) + begin + at % bytes;
                if (each == 1)
                    n < LANES<L> ? keep<1>(from + at, kept, n, fill, to + at)
                                 : keep<LANES<L>>(from + at, kept, n, fill, to + at);
                for (int64_t i = 0; i < n && each > 1; ++i) {
                    const T *const elements = from + (at + i) * each;
                    L *const out = to + (at + i) * each;
                    if (!kept[i])
                        std::fill_n(out, each, fill);
                    else if constexpr (!std::is_same_v<T, L>) {
                        const Row row = {reinterpret_cast<const char *>(elements), 0};
                        convert.combine(false, &row, 1, each, out);
                    } else if (elements != out)
                        std::memcpy(out, elements, each * sizeof(L));
                }
            }
        });
    }
    template <class T, class L>
    void copy(const Part &part, const T *from, L fill, L *to) const {
        copy(part.plane, part.problem.planes, part.positions.begin * parts.slab / each,
             part.problem.plane(), from, fill, to);
    }
};

// The same problem for averages, which become sums of numbers of type `type`.
Problem sums_of(Problem q, int64_t type) {
    q.type = type;
    q.counting = {0, 1, {0, 0, 0}};
    return q;
}

// What the sums of a part are divided by: how many taps each window counts, without those that the
// mask leaves out.
struct Counts {
    const Masked &of;
    std::vector<double> counts = {};

    void find(const Part &part) {
        if (of.p.counting.divisor != 0 || part.has_same_mask)
            return;
        const Range positions = of.positions_of(part.outputs);
        Problem q = of.problem_of(of.m.is_own ? part.problem.planes : 1, positions, part.outputs);
        q.channels = of.m.channels;
        const uint8_t *const mask =
            of.mask_of(part.plane) + positions.begin * of.parts.slab / of.each;
        of.p.plane() <= 1 << 24 ? count<float>(q, mask) : count<double>(q, mask);
    }
    template <class L>
    void count(const Problem &q, const uint8_t *mask) {
        std::vector<L> left_out(q.planes * q.plane()), sums(q.planes * q.output_plane());
        for (size_t i = 0; i < left_out.size(); ++i)
            left_out[i] = L(mask[i] == 0);
        average_pooling(sums_of(q, sizeof(L) == 8), left_out.data(), sums.data());
        counts.assign(sums.begin(), sums.end());
        const CountedWindows windows(q, false);
        const int64_t length = q.output_row(), rows = int64_t(counts.size()) / length;
        Digits<2> digits(0, {q.h().outputs, q.d().outputs});
        for (double *row = counts.data(); row < counts.data() + rows * length;
             ++digits, row += length)
            windows.for_runs(0, length, [&](int64_t at, int64_t n, int64_t output) {
                const double counted = windows.divisor(digits[1], digits[0], output);
                for (int64_t i = at; i < at + n; ++i)
                    row[i] = std::max(1., counted - row[i]);
            });
    }
    // Divides the sums of a part, and writes them as elements T.
    template <class T>
    void divide_part(const Part &part, const Wide<T> *sums, T *out) const {
        const int64_t n = part.problem.output_plane(), each = of.each;
        if (of.p.counting.divisor != 0)
            return divide<T>(sums, part.results(), double(of.p.counting.divisor), nullptr, out);
        for (int64_t k = 0; k < part.problem.planes; ++k, sums += n, out += n) {
            const double *const by = counts.data() + (of.m.is_own ? k * n / each : 0);
            if (each == 1)
                divide<T>(sums, n, 1, by, out);
            else
                for (int64_t i = 0; i < n; i += each)
                    divide<T>(sums + i, each, by[i / each], nullptr, out + i);
        }
    }
};

template <class T>
void pool_averages(const Masked &masked, const T *input, T *output) {
    using L = Wide<T>;
    masked.each_part(masked.bands_of_results, false,
                     [&, counts = Counts{masked}, elements = std::vector<L>(),
                      sums = std::vector<L>()](const Part &part) mutable {
                         counts.find(part);
                         elements.resize(part.elements());
                         masked.copy(part, input + part.input, L(0), elements.data());
                         T *const out = output + part.output;
                         L *to;
                         if constexpr (std::is_same_v<T, L>)
                             to = out;
                         else {
                             sums.resize(part.results());
                             to = sums.data();
                         }
                         average_pooling(sums_of(part.problem, sizeof(L) == 8), elements.data(),
                                         to);
                         counts.divide_part<T>(part, to, out);
                     });
}

template <class T>
void spread_averages(const Masked &masked, const T *arriving, T *gradient) {
    using L = Wide<T>;
    using I = IntegerOf<T>;
    masked.each_part(
        masked.bands_of_elements, true,
        [&, counts = Counts{masked}, shares = std::vector<L>(),
         sums = std::vector<L>()](const Part &part) mutable {
            counts.find(part);
            shares.resize(part.results());
            const Row row = {reinterpret_cast<const char *>(arriving + part.output), 0};
            row_sums(masked.p.type).combine(false, &row, 1, part.results(), shares.data());
            counts.divide_part<L>(part, shares.data(), shares.data());
            const Problem q = sums_of(part.problem, sizeof(L) == 8);
            T *const out = gradient + part.input;
            if constexpr (std::is_same_v<T, L>)
                average_pooling_grad(q, shares.data(), out);
            else {
                sums.resize(part.elements());
                average_pooling_grad(q, shares.data(), sums.data());
                divide<T>(sums.data(), part.elements(), 1, nullptr, out);
            }
            masked.copy(part, reinterpret_cast<I *>(out), I(0), reinterpret_cast<I *>(out));
        });
}

// The numbers of winners. An element that has the lowest value ties with masked ones, which may be
// found first. Then the winner is the first element that the mask keeps: the first maximum of the
// mask.
struct WinnersUnderMask {
    const Masked &of;
    const Problem &p = of.p;
    std::vector<uint8_t> are_lowest = {};
    std::vector<uint8_t> are_there = {};
    std::vector<char> firsts = {};

    template <class S>
    void find(const Part &part, const S *values) {
        const int64_t count = part.results();
        are_lowest.resize(count);
        uint8_t is_any = 0;
        for (int64_t i = 0; i < count; ++i)
            is_any |= are_lowest[i] = values[i] == S(of.m.fill);
        if (!part.has_same_mask)
            firsts.clear();
        if (!is_any)
            return are_lowest.clear();
        if (!firsts.empty())
            return;
        Problem q = part.problem;
        q.planes = of.m.is_own ? part.problem.planes : 1;
        q.channels = of.m.channels;
        q.type = int64_t(std::size(TYPES)) - 1;  // bool
        are_there.resize(q.planes * q.output_plane());
        firsts.resize(are_there.size() * p.bytes);
        const int64_t begin = part.positions.begin * of.parts.slab / of.each;
        max_pooling(q, of.mask_of(part.plane) + begin, are_there.data(), firsts.data());
    }
    template <class N>
    void write(const Part &part, N *numbers) const {
        const bool are_taps = p.numbering == TAPS;
        const int64_t n = part.problem.output_plane();
        for (int64_t i = 0; i < int64_t(are_lowest.size()); ++i)
            if (are_lowest[i]) {
                const int64_t at = (of.m.is_own ? i : i % n) / of.each;
                const N first = read<N>(firsts.data() + at * int64_t(sizeof(N)));
                numbers[i] = are_taps || are_there[at] ? first : N(-1);
            }
        if (are_taps)
            return;
        // Positions count from the beginning of the plane, or of the tensor, on.
        const int64_t begin = part.positions.begin * of.parts.slab / p.channels;
        const int64_t size = p.numbering == INDICES ? p.plane() / p.channels : 0;
        const int64_t length = p.channels > 1 ? p.channels : n;
        const int64_t step = p.channels > 1 ? size : 0;
        for (int64_t i = 0; i < part.results(); i += length) {
            const int64_t origin = begin + (part.plane + i / n) * p.channels * size;
            VECTORIZE
            for (int64_t k = 0; k < length; ++k)
                if (numbers[i + k] != N(-1))
                    numbers[i + k] += N(origin + k * step);
        }
    }
};

template <class S>
void pool_maxima(const Masked &masked, const S *input, S *output, char *winners) {
    const Problem &p = masked.p;
    masked.each_part(
        masked.bands_of_results, false,
        [&, by = WinnersUnderMask{masked}, elements = std::vector<S>()](Part part) mutable {
            part.problem.numbering = p.numbering == TAPS ? TAPS : POSITIONS;
            elements.resize(part.elements());
            masked.copy(part, input + part.input, S(masked.m.fill), elements.data());
            S *const values = output + part.output;
            char *const numbers = winners ? winners + part.output * p.bytes : nullptr;
            max_pooling(part.problem, elements.data(), values, numbers);
            if (numbers == nullptr)
                return;
            by.find(part, values);
            with_integers(int(p.bytes), [&](auto number) {
                by.write(part, reinterpret_cast<decltype(number) *>(numbers));
            });
        });
}

}  // namespace

void masked(const Problem &p, const Masking &m, const void *input, const void *mask, void *output) {
    const Masked masked{p, m, static_cast<const uint8_t *>(mask)};
    const int bytes = type_of(p).bytes;
    use_large_pages(output, p.input_bytes(bytes));
    with_integers(bytes, [&](auto number) {
        using S = decltype(number);
        masked.copy(0, p.planes, 0, p.plane(), static_cast<const S *>(input), S(m.fill),
                    static_cast<S *>(output));
    });
}

void masked_average_pooling(const Problem &p, const Masking &m, const void *input, const void *mask,
                            void *output) {
    const Masked masked{p, m, static_cast<const uint8_t *>(mask)};
    if (masked.are_sets())
        return segment_sums(masked.sets(), input, nullptr, masked.mask, output);
    with_floats(p.type, "averages of type", [&](auto element) {
        using T = decltype(element);
        pool_averages(masked, static_cast<const T *>(input), static_cast<T *>(output));
    });
}

void masked_average_pooling_grad(const Problem &p, const Masking &m, const void *arriving,
                                 const void *mask, void *gradient) {
    const Masked masked{p, m, static_cast<const uint8_t *>(mask)};
    if (masked.are_sets())
        return segment_shares(masked.sets(), arriving, nullptr, masked.mask, nullptr, gradient);
    with_floats(p.type, "averages of type", [&](auto element) {
        using T = decltype(element);
        spread_averages(masked, static_cast<const T *>(arriving), static_cast<T *>(gradient));
    });
}

void masked_max_pooling(const Problem &p, const Masking &m, const void *input, const void *mask,
                        void *output, void *winners) {
    const Masked masked{p, m, static_cast<const uint8_t *>(mask)};
    with_integers(type_of(p).bytes, [&](auto element) {
        using S = decltype(element);
        pool_maxima(masked, static_cast<const S *>(input), static_cast<S *>(output),
                    static_cast<char *>(winners));
    });
}

void masked_max_pooling_grad(const Problem &p, const Masking &m, const void *arriving,
                             const void *taps, const void *mask, void *gradient) {
    const Masked masked{p, m, static_cast<const uint8_t *>(mask)};
    with_integers(type_of(p).bytes, [&](auto element) {
        using S = decltype(element);
        masked.each_part(1, true, [&](const Part &part) {
            S *const out = static_cast<S *>(gradient) + part.input;
            max_pooling_grad(part.problem, static_cast<const S *>(arriving) + part.output,
                             static_cast<const char *>(taps) + part.output * p.bytes, out);
            masked.copy(part, out, S(0), out);
        });
    });
}

}  // namespace dmlpool
