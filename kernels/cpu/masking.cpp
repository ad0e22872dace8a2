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

constexpr int64_t PART = 1 << 15;    // elements that are masked and pooled together
constexpr int64_t COPIED = 1 << 16;  // elements that a thread copies at once

constexpr int64_t AHEAD = 2048;  // bytes that are prefetched before they are masked

// Calls act(i, n) for blocks of n of `count` elements. The last one may overlap the one before, and
// blocks of 1 are called where there are fewer than n.
template <int64_t n, class Act>
void for_blocks(int64_t count, const Act &act) {
    if (count < n)
        for (int64_t i = 0; i < count; ++i)
            act(i, Count<1>());
    else
        for (int64_t i = 0; i < count; i += n)
            act(std::min(i, count - n), Count<n>());
}

template <class T, class L>
void convert(const T *from, int64_t count, L *to) {
    if constexpr (std::is_same_v<T, L>)
        std::memmove(to, from, count * sizeof(T));
    else
        for_blocks<LANES<L>>(count, [=](int64_t i, auto lanes) {
            write(load<L, decltype(lanes)::value>(from + i), to + i);
        });
}
// Copies elements as numbers L, but writes `fill` where the mask is false. Each of its bytes is for
// `each` elements. The elements may be copied to where they are.
template <class T, class L>
void keep(const T *from, const uint8_t *mask, int64_t each, int64_t count, L fill, L *to) {
    using I = IntegerOf<L>;
    if (each == 1)
        return for_blocks<LANES<L>>(count, [=](int64_t i, auto lanes) {
            constexpr int64_t n = decltype(lanes)::value;
            __builtin_prefetch(reinterpret_cast<const char *>(from + i) + AHEAD);
            const auto values = load<L, n>(from + i);
            const auto kept = load<I, n>(mask + i);
            const Vector<L, n> results = kept != 0 ? values : Vector<L, n>{} + fill;
            write(results, to + i);
        });
    for (int64_t i = 0; i < count; i += each)
        if (mask[i / each])
            convert(from + i, each, to + i);
        else
            std::fill_n(to + i, each, fill);
}

// The positions of a plane that outputs [begin, end) along axis `cut` read, as a problem. The axes
// before have one position.
Problem part_of(const Problem &p, int cut, int64_t planes, const Range &positions,
                const Range &outputs) {
    Problem q = p;
    Axis &axis = q.axes[cut];
    q.planes = planes;
    axis.size = positions.end - positions.begin;
    axis.outputs = outputs.end - outputs.begin;
    if (axis.window > 0)
        axis.padding += positions.begin - outputs.begin * axis.stride;
    else if (axis.outputs < p.axes[cut].outputs)  // a bin that is all of the part
        axis = {axis.size, 1, axis.size, axis.size, 0, 1};
    return q;
}
// The same for averages, which become sums of numbers of type `type`.
Problem sums_of(Problem q, int64_t type) {
    q.type = type;
    q.counting = {0, 1, {0, 0, 0}};
    return q;
}

// A tensor and its mask.
struct Masked {
    const Problem &p;
    const Masking &m;
    const uint8_t *const mask;

    const Windows windows{p};
    const int cut = p.d().size > 1 ? 0 : p.h().size > 1 ? 1 : 2;
    const Axis &axis = p.axes[cut];
    const int64_t slab = p.plane() / axis.size;  // elements of one position along `cut`
    const int64_t each = p.channels / m.channels;
    const int64_t mask_plane = p.plane() / each;
    const bool is_small = p.plane() <= PART;
    // The planes or the outputs along `cut` of a part. Neighbouring parts share little.
    const int64_t fitting = PART / std::max(p.plane(), p.output_plane());
    const int64_t planes = !is_small ? 1 : std::min(m.planes, std::max(fitting, int64_t(1)));
    const int64_t step =
        is_small ? axis.outputs
        : axis.window == 0
            ? 1
            : std::min(
                  axis.outputs,
                  (std::max(PART / slab, 3 * axis.extent()) - axis.extent()) / axis.stride + 1);

    // A thread works on several planes, or on outputs of one.
    struct Part {
        int64_t plane;  // the first
        int64_t planes;
        const uint8_t *mask;  // of the first plane
        Range outputs;        // along `cut`
        Range positions;
        bool has_same_mask;  // as the part before it that the thread worked on
    };
    // What outputs read along `cut`; all outputs may read all positions.
    Range positions_of(const Range &outputs) const {
        if (outputs.end - outputs.begin == axis.outputs)
            return {0, axis.size};
        const Range reach = windows.reach(cut, outputs.begin, outputs.end - outputs.begin);
        const int64_t begin = std::min(reach.begin, axis.size - 1);
        return {begin, std::max(reach.end, begin + 1)};
    }
    // Calls work(part) for all parts. `make` makes what works for a thread.
    template <class Make>
    void each_part(const PlaneParts *parts, const Make &make) const {
        const int64_t chunks = parts_of(m.planes, planes);
        const int64_t bands = parts ? parts->count : parts_of(axis.outputs, step);
        const double cost = 4. * double(planes * p.plane() / bands);
        const auto run = [&](int64_t begin, int64_t end) {
            auto work = make();
            Digits<3> digits(begin, {chunks, bands, m.groups});
            for (int64_t number = begin; number < end; ++number, ++digits) {
                const int64_t first = digits[0] * planes;
                Part part;
                part.plane = digits[2] * m.planes + first;
                part.planes = std::min(planes, m.planes - first);
                part.mask = mask + (digits[2] * m.step + m.is_own * first) * mask_plane;
                part.has_same_mask = number > begin && digits[0] > 0 && !m.is_own;
                if (parts) {
                    const PlanePart one = parts->of(digits[1]);
                    part.positions = one.positions;
                    part.outputs.begin = std::min(one.outputs.begin, axis.outputs - 1);
                    part.outputs.end = std::max(one.outputs.end, part.outputs.begin + 1);
                } else {
                    const int64_t output = digits[1] * step;
                    part.outputs = {output, std::min(output + step, axis.outputs)};
                    part.positions = positions_of(part.outputs);
                }
                work(part);
            }
        };
        const int64_t count = chunks * bands * m.groups;
        // The threads share a part that no cache of a core holds.
        if (planes * p.plane() / bands > 8 * PART)
            run(0, count);
        else
            parallel(count, cost, run);
    }
    // The first element of a part, the elements of each of its planes, and the same of outputs.
    int64_t first(const Part &part) const {
        return part.plane * p.plane() + part.positions.begin * slab;
    }
    int64_t size(const Part &part) const {
        return (part.positions.end - part.positions.begin) * slab;
    }
    int64_t first_output(const Part &part) const {
        return part.plane * p.output_plane() +
               part.outputs.begin * (p.output_plane() / axis.outputs);
    }
    int64_t outputs(const Part &part) const {
        return (part.outputs.end - part.outputs.begin) * (p.output_plane() / axis.outputs);
    }
    bool counts_padding() const {
        bool is_padded = false;
        for (int a = 0; a < 3; ++a)
            is_padded |= p.axes[a].padding > 0 || p.counting.end_padding[a] > 0;
        return is_padded && p.counting.include_padding;
    }
    // Whether each plane is pooled whole under a mask of positions: then these are rows of a set.
    bool are_sets() const {
        return p.channels > 1 && m.channels == 1 && windows.are_planes() && !counts_padding();
    }
    Segments sets() const {
        return {p.planes,  p.channels,         mask_plane,
                p.plane(), p.channels,         m.is_own ? mask_plane : 0,
                p.type,    p.counting.divisor, 0,
                0};
    }
    Problem problem(const Part &part) const {
        return part_of(p, cut, part.planes, part.positions, part.outputs);
    }
    // Copies the elements of a part, which begin at `from`, from plane to plane.
    template <class T, class L>
    void keep_part(const Part &part, const T *from, L fill, L *to) const {
        const int64_t count = size(part);
        const int64_t pieces = parts_of(count, COPIED);
        const uint8_t *const bytes = part.mask + part.positions.begin * slab / each;
        parallel(
            part.planes * pieces, double(std::min(count, COPIED)), [&](int64_t begin, int64_t end) {
                for (int64_t k = begin; k < end; ++k) {
                    const int64_t plane = k / pieces;
                    const int64_t at = k % pieces * (COPIED / each * each);
                    const int64_t n = k % pieces + 1 == pieces ? count - at : COPIED / each * each;
                    const int64_t place = plane * count + at;
                    keep(from + place, bytes + m.is_own * plane * mask_plane + at / each, each, n,
                         fill, to + place);
                }
            });
    }
};

// What the sums of a part are divided by: how many elements each window has. They are those that
// the mask keeps, and the padding where it counts, which follows from geometry.
struct Counts {
    const Masked &of;
    const Problem &p = of.p;
    CountedWindows windows{p, true};
    std::vector<double> counts = {};

    void find(const Masked::Part &part) {
        if (p.counting.divisor != 0 || part.has_same_mask)
            return;
        const Range positions = of.positions_of(part.outputs);
        Problem q = part_of(p, of.cut, of.m.is_own ? part.planes : 1, positions, part.outputs);
        q.channels = of.m.channels;
        const uint8_t *const bytes = part.mask + positions.begin * of.slab / of.each;
        if (windows.are_planes() && q.channels == 1 && p.plane() == q.plane() * of.each) {
            counts.assign(q.planes, 0);
            for (int64_t i = 0; i < q.planes; ++i)
                counts[i] = double(of.mask_plane - std::count(bytes + i * of.mask_plane,
                                                              bytes + (i + 1) * of.mask_plane, 0));
        } else if (p.plane() <= 1 << 24)
            pool_ones<float>(q, bytes);
        else
            pool_ones<double>(q, bytes);
        if (of.counts_padding())
            add_padding(part, q.planes);
        for (double &count : counts)
            count = std::max(1., count);
    }
    template <class L>
    void pool_ones(const Problem &q, const uint8_t *bytes) {
        std::vector<L> ones(q.planes * q.plane()), sums(q.planes * q.output_plane());
        for (size_t i = 0; i < ones.size(); ++i)
            ones[i] = L(bytes[i] != 0);
        average_pooling(sums_of(q, sizeof(L) == 8), ones.data(), sums.data());
        counts.assign(sums.begin(), sums.end());
    }
    // Adds the padding that counts, and counts at least 1.
    void add_padding(const Masked::Part &part, int64_t planes) {
        const auto outputs = [&](int a) {
            return a == of.cut ? part.outputs : Range{0, p.axes[a].outputs};
        };
        const Range columns = outputs(2);
        double *count = counts.data();
        for (int64_t k = 0; k < planes; ++k)
            for (int64_t d = outputs(0).begin; d < outputs(0).end; ++d)
                for (int64_t h = outputs(1).begin; h < outputs(1).end; ++h) {
                    const TapCount along_d = windows.known_count(0, d);
                    const TapCount along_h = windows.known_count(1, h);
                    const double counted = double(along_d.counted) * double(along_h.counted);
                    const double read = double(along_d.read) * double(along_h.read);
                    for (int64_t w = columns.begin; w < columns.end; ++w) {
                        const TapCount along_w = windows.known_count(2, w);
                        const double padding =
                            counted * double(along_w.counted) - read * double(along_w.read);
                        for (int64_t c = 0; c < of.m.channels; ++c)
                            *count++ += padding;
                    }
                }
    }
    // Divides the sums of a part, and writes them as elements T.
    template <class T>
    void divide_part(const Masked::Part &part, const Wide<T> *sums, T *out) const {
        const int64_t n = of.outputs(part);
        if (p.counting.divisor != 0)
            return divide<T>(sums, part.planes * n, double(p.counting.divisor), nullptr, out);
        for (int64_t k = 0; k < part.planes; ++k, sums += n, out += n) {
            const double *const by = counts.data() + (of.m.is_own ? k * n / of.each : 0);
            if (of.each == 1)
                divide<T>(sums, n, 1, by, out);
            else
                for (int64_t i = 0; i < n; i += of.each)
                    divide<T>(sums + i, of.each, by[i / of.each], nullptr, out + i);
        }
    }
};

template <class T>
void pool_averages(const Masked &masked, const T *input, T *output) {
    using L = Wide<T>;
    masked.each_part(nullptr, [&] {
        return [&, counts = Counts{masked}, elements = std::vector<L>(),
                sums = std::vector<L>()](const Masked::Part &part) mutable {
            counts.find(part);
            elements.resize(part.planes * masked.size(part));
            masked.keep_part(part, input + masked.first(part), L(0), elements.data());
            T *const out = output + masked.first_output(part);
            L *to;
            if constexpr (std::is_same_v<T, L>)
                to = out;
            else {
                sums.resize(part.planes * masked.outputs(part));
                to = sums.data();
            }
            average_pooling(sums_of(masked.problem(part), sizeof(L) == 8), elements.data(), to);
            counts.divide_part<T>(part, to, out);
        };
    });
}

template <class T>
void spread_averages(const Masked &masked, const T *arriving, T *gradient) {
    using L = Wide<T>;
    using I = IntegerOf<T>;
    const bool is_whole = masked.is_small || masked.axis.window == 0;
    const PlaneParts parts{masked.p, is_whole ? masked.p.plane() : PART, 2};
    masked.each_part(&parts, [&] {
        return [&, counts = Counts{masked}, shares = std::vector<L>(),
                sums = std::vector<L>()](const Masked::Part &part) mutable {
            counts.find(part);
            shares.resize(part.planes * masked.outputs(part));
            convert(arriving + masked.first_output(part), int64_t(shares.size()), shares.data());
            counts.divide_part<L>(part, shares.data(), shares.data());
            const Problem q = sums_of(masked.problem(part), sizeof(L) == 8);
            T *const out = gradient + masked.first(part);
            if constexpr (std::is_same_v<T, L>)
                average_pooling_grad(q, shares.data(), out);
            else {
                sums.resize(part.planes * masked.size(part));
                average_pooling_grad(q, shares.data(), sums.data());
                divide<T>(sums.data(), int64_t(sums.size()), 1, nullptr, out);
            }
            masked.keep_part(part, reinterpret_cast<I *>(out), I(0), reinterpret_cast<I *>(out));
        };
    });
}

// The numbers of winners. An element that has the lowest value ties with masked ones, which may be
// found first. Then the winner is the first element that the mask keeps: the first maximum of the
// mask.
template <class S, class N>
struct WinnersUnderMask {
    const Masked &of;
    const Problem &p = of.p;
    const bool are_taps = p.numbering == TAPS;
    std::vector<uint8_t> are_there = {};
    std::vector<N> firsts = {};

    void find_firsts(const Masked::Part &part) {
        Problem q = problem(part);
        q.planes = of.m.is_own ? part.planes : 1;
        q.channels = of.m.channels;
        q.type = int64_t(std::size(TYPES)) - 1;  // bool
        are_there.resize(q.planes * q.output_plane());
        firsts.resize(are_there.size());
        const int64_t begin = part.positions.begin * of.slab / of.each;
        max_pooling(q, part.mask + begin, are_there.data(), firsts.data());
    }
    Problem problem(const Masked::Part &part) const {
        Problem q = of.problem(part);
        q.numbering = are_taps ? TAPS : POSITIONS;
        return q;
    }
    void write(const Masked::Part &part, const S *values, N *numbers) {
        const int64_t n = of.outputs(part);
        const S lowest = S(of.m.fill);
        if (!part.has_same_mask)
            firsts.clear();
        for (int64_t k = 0; k < part.planes; ++k, values += n, numbers += n) {
            if (std::find(values, values + n, lowest) != values + n) {
                if (firsts.empty())
                    find_firsts(part);
                for (int64_t i = 0; i < n; ++i) {
                    const int64_t at = (of.m.is_own * k * n + i) / of.each;
                    if (values[i] == lowest)
                        numbers[i] = are_taps || are_there[at] ? firsts[at] : N(-1);
                }
            }
            if (!are_taps)
                write_positions(part, part.plane + k, n, numbers);
        }
    }
    // Counts positions from the beginning of the plane, or of the tensor, on.
    void write_positions(const Masked::Part &part, int64_t plane, int64_t n, N *numbers) const {
        const int64_t begin = part.positions.begin * of.slab / p.channels;
        const int64_t size = p.numbering == INDICES ? p.plane() / p.channels : 0;
        for (int64_t i = 0; i < n; i += p.channels)
            for (int64_t c = 0; c < p.channels; ++c)
                if (N &number = numbers[i + c]; number != N(-1))
                    number = N(number + begin + (plane * p.channels + c) * size);
    }
};

template <class S, class N>
void pool_winners(const Masked &masked, const S *input, S *output, N *winners) {
    masked.each_part(nullptr, [&] {
        return [&, by = WinnersUnderMask<S, N>{masked},
                elements = std::vector<S>()](const Masked::Part &part) mutable {
            elements.resize(part.planes * masked.size(part));
            masked.keep_part(part, input + masked.first(part), S(masked.m.fill), elements.data());
            S *const values = output + masked.first_output(part);
            N *const numbers = winners ? winners + masked.first_output(part) : nullptr;
            max_pooling(by.problem(part), elements.data(), values, numbers);
            if (numbers != nullptr)
                by.write(part, values, numbers);
        };
    });
}

}  // namespace

void masked(const Problem &p, const Masking &m, const void *input, const void *mask, void *output) {
    const int bytes = type_of(p).bytes;
    const Masked masked{p, m, static_cast<const uint8_t *>(mask)};
    const PlaneParts parts{p, PART, 1};
    use_large_pages(output, p.input_bytes(bytes));
    with_integers(bytes, [&](auto number) {
        using S = decltype(number);
        masked.each_part(&parts, [&] {
            return [&](const Masked::Part &part) {
                const int64_t first = masked.first(part);
                masked.keep_part(part, static_cast<const S *>(input) + first, S(m.fill),
                                 static_cast<S *>(output) + first);
            };
        });
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
        with_integers(int(p.bytes), [&](auto number) {
            pool_winners(masked, static_cast<const S *>(input), static_cast<S *>(output),
                         static_cast<decltype(number) *>(winners));
        });
    });
}

void masked_max_pooling_grad(const Problem &p, const Masking &m, const void *arriving,
                             const void *taps, const void *mask, void *gradient) {
    const Masked masked{p, m, static_cast<const uint8_t *>(mask)};
    const PlaneParts whole{p, p.plane(), 1};
    const int bytes = type_of(p).bytes;
    with_integers(bytes, [&](auto number) {
        using S = decltype(number);
        masked.each_part(&whole, [&] {
            return [&](const Masked::Part &part) {
                const int64_t first = masked.first_output(part);
                S *const out = static_cast<S *>(gradient) + masked.first(part);
                max_pooling_grad(masked.problem(part), static_cast<const S *>(arriving) + first,
                                 static_cast<const char *>(taps) + first * p.bytes, out);
                masked.keep_part(part, out, S(0), out);
            };
        });
    });
}

}  // namespace dmlpool
