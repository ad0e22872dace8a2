// The gradient of maxima: what arrives at each window is added to its winner, whose tap was saved.
//
//     arriving  | 5 | 7 |      taps  | 2 | 0 |
//                 |   +--------------------+
//                 +--------------------+   v
//     gradient  | 0   0   5   0   0   7   0   0 |

#include "choose.h"
#include "gathered.h"
#include "numbers.h"
#include "operators.h"
#include "parallel.h"
#include "sums.h"
#include "turned.h"

namespace dmlpool {
namespace {

// Where the taps of windows lie in a plane. The place of a tap is position * unit + channel *
// channel_unit. Taps come from the caller, so some may be numbers that no window has. Their place
// is NOWHERE.
struct TapPlaces {
    // It is less than any place, and the sum of three of them does not overflow.
    static constexpr int64_t NOWHERE = numeric_limits<int64_t>::min() / 4;
    const Problem &p;
    const int64_t unit;
    const int64_t channel_unit;
    const int64_t taps =
        int64_t(min(0x1p62, double(p.d().window) * double(p.h().window) * double(p.w().window)));
    bool is_any_empty = false;  // whether an output reads no position along W
    // The distance of each tap's place from that of tap 0, for the first taps: at least for those
    // of a byte.
    vector<int64_t> offsets = {};

    TapPlaces(const Problem &p, int64_t unit, int64_t channel_unit)
        : p(p), unit(unit), channel_unit(channel_unit) {
        const int64_t count = min({taps, int64_t(4096), p.planes * p.output_plane()});
        for (int64_t tap = 0; tap < max(256, count); ++tap)
            offsets.push_back(computed_offset(tap));
        for (int64_t o = 0; o < p.w().outputs; ++o)
            is_any_empty |= p.w().is_empty(o);
    }
    __attribute__((noinline)) int64_t computed_offset(int64_t tap) const {
        if (uint64_t(tap) >= uint64_t(taps))
            return NOWHERE;
        const int64_t tw = tap % p.w().window;
        const int64_t row = tap / p.w().window;
        const int64_t th = row % p.h().window;
        const int64_t y = row / p.h().window * p.d().dilation * p.h().size + th * p.h().dilation;
        return (y * p.w().size + tw * p.w().dilation) * unit;
    }
    // Calls visit(i, place) for the elements of some outputs of a row. Its taps are `which`, of
    // `bytes` bytes each. The place is below 0 if the window is empty or has no such tap. If
    // there is one channel, and no window is empty, they are one loop.
    void each(const void *which, int64_t bytes, int64_t od, int64_t oh, const Range &outputs,
              const auto &visit) const {
        if (bytes > 4)
            reject("tap has this many bytes:", bytes);
        with_integers(bytes, [&](auto type) {
            using Tap = make_unsigned_t<decltype(type)>;
            const bool is_empty = p.d().is_empty(od) || p.h().is_empty(oh);
            const int64_t y = p.d().first(od) * p.h().size + p.h().first(oh);
            const bool is_flat = p.channels == 1;
            const int64_t next_output = p.w().stride * unit;
            const int64_t step = is_flat ? next_output : channel_unit;
            for (int64_t o = outputs.begin, end; o < outputs.end; o = end) {
                end = is_any_empty ? o + 1 : outputs.end;
                int64_t from = is_empty || (is_any_empty && p.w().is_empty(o))
                                   ? NOWHERE
                                   : (y * p.w().size + p.w().first(o)) * unit;
                const int64_t count = is_flat ? end - o : p.channels;
                for (int64_t i = o * p.channels; i < end * p.channels;
                     i += count, from += next_output)
                    each_of(as<Tap>(which), {i, i + count}, from, step, visit);
            }
        });
    }
    // The innermost loop is a function of its own, so that Clang has registers for it.
    template <class Tap>
    __attribute__((noinline)) void each_of(const Tap *which, Range elements, int64_t from,
                                           int64_t step, auto visit) const {
        const int64_t *const offset = offsets.data();
        const uint64_t known = offsets.size();
        for (int64_t i = elements.begin; i < elements.end; ++i, from += step) {
            const uint64_t tap = which[i];
            const bool is_known = sizeof(Tap) == 1 || tap < known;
            visit(i, from + (is_known ? offset[tap] : computed_offset(tap)));
        }
    }
};

// Adds what arrives at each window to its winner, in the order of the windows: plane by plane, or
// part by part of a large plane.
template <class T>
struct Scatter {
    using L = Wide<T>;
    static constexpr bool is_direct = is_same_v<T, L>;
    static constexpr int64_t PART = 1 << 18;  // elements of a part, whose sums stay in a cache
    static constexpr int64_t n = LANES<L>;
    static constexpr int64_t LEAST_PAIRS = 24;  // in fewer each window costs less by itself
    const Problem &p;
    const T *const arriving;
    const char *const numbers;
    T *const gradient;

    const int64_t bytes = p.bytes;
    const TapPlaces places{p, p.channels, 1};
    const PlaneParts parts{p, PART, 4};
    const int64_t most = parts.step * parts.slab;  // elements of a part
    // Whether windows share no element, and pairs of columns lie beside each other in each row.
    const bool are_pairs = is_direct && bytes == 1 && p.channels == 1 && parts.cut < 2 &&
                           p.w().window == 2 && p.w().stride == 2 && p.w().dilation == 1 &&
                           p.w().padding == 0 && 2 * p.w().outputs <= p.w().size &&
                           p.w().outputs >= max(n, LEAST_PAIRS) && p.h().extent() <= p.h().stride &&
                           p.d().extent() <= p.d().stride;

    void run() const {
        for_parts(p.planes * parts.count, 1, 4. * double(most), is_direct ? 0 : most * sizeof(L),
                  [&](int64_t number, int64_t, char *memory) {
                      add_part(parts.of(number), as<L>(memory));
                  });
    }
    void add_part(const PlanePart &part, L *sums) const {
        const int64_t first = part.positions.begin * parts.slab;
        const int64_t size = part.positions.size() * parts.slab;
        T *const out = gradient + part.plane * p.plane() + first;
        if constexpr (is_direct)
            sums = out;
        std::memset(sums, 0, size * sizeof(L));  // writes lines that it does not read
        const Range depth = parts.outputs_along(part, 0);
        const Range height = parts.outputs_along(part, 1);
        const Range columns = parts.outputs_along(part, 2);
        const int64_t width = p.output_row();
        for (int64_t od = depth.begin; od < depth.end; ++od) {
            int64_t row = (part.plane * p.d().outputs + od) * p.h().outputs + height.begin;
            row *= width;
            for (int64_t oh = height.begin; oh < height.end; ++oh, row += width) {
                if constexpr (is_direct)
                    if (are_pairs) {
                        write_pairs(row, od, oh, first, size, sums);
                        continue;
                    }
                places.each(numbers + row * bytes, bytes, od, oh, columns,
                            [=, from = arriving + row](int64_t i, int64_t place) {
                                const int64_t at = place - first;
                                if (uint64_t(at) < uint64_t(size))
                                    sums[at] += widen(read<T>(from + i));
                            });
            }
        }
        if constexpr (!is_direct)
            divide<T>(sums, size, out);
    }
    // Writes all taps of a row of windows: what arrives where the tap is the winner, else 0.
    void write_pairs(int64_t row, int64_t od, int64_t oh, int64_t first, int64_t size,
                     L *sums) const {
        using V = Vector<L, n>;
        using Integer = IntegerOf<L>;
        const uint8_t *const which = as<uint8_t>(numbers) + row;
        for (int tap = 0; tap < places.taps; tap += 2) {
            const int64_t z = p.d().first(od) + tap / 2 / p.h().window * p.d().dilation;
            const int64_t y = p.h().first(oh) + tap / 2 % p.h().window * p.h().dilation;
            const int64_t at = (z * p.h().size + y) * p.w().size - first;
            if (y < 0 || y >= p.h().size || at < 0 || at >= size)
                continue;
            for (int64_t begin = 0; begin < p.w().outputs; begin += n) {
                const int64_t i = min(begin, p.w().outputs - n);
                const auto winner = load<Integer, n>(which + i);
                const V value = read<V>(arriving + row + i) + V{};  // a zero has no sign
                const V even = winner == Integer(tap) ? value : V{};
                const V odd = winner == Integer(tap + 1) ? value : V{};
                const auto low = [](int64_t k) { return k / 2 + k % 2 * n; };
                const auto high = [](int64_t k) { return k / 2 + k % 2 * n + n / 2; };
                write(shuffled<L, n>(even, odd, low), sums + at + 2 * i);
                write(shuffled<L, n>(even, odd, high), sums + at + 2 * i + n);
            }
        }
    }
};

template <class T>
void gradient_of_maxima(const Problem &p, const void *arriving, const void *taps, void *gradient) {
    const Strategy strategy = choose({WINNERS_GRADIENT, Windows(p), sizeof(T), sizeof(Wide<T>)});
    const auto gather = [](const Problem &q, const void *from, const void *which, void *to) {
        const Windows seen = adjoint_of(Windows(q));
        const GatheredMaxima<T> op(q, seen, as<T>(from), as<uint8_t>(which));
        pool_windows({op, Finish(sizeof(T), true, true), from, to, seen});
    };
    if (strategy == GATHERED)
        return gather(p, arriving, taps, gradient);
    if (strategy == TURNED) {
        const Problem q = turned_problem(p, LANES<Wide<T>>);
        return turn_planes(
            p.planes, q.channels, 2,
            {{arriving, sizeof(T), p.output_plane()},
             {taps, 1, p.output_plane()},
             {gradient, sizeof(T), p.plane()}},
            [&](int64_t, void *const *blocks) { gather(q, blocks[0], blocks[1], blocks[2]); });
    }
    // SCATTERED
    Scatter<T>{p, as<T>(arriving), as<char>(taps), as<T>(gradient)}.run();
}

}  // namespace

void max_pooling_indices(const Problem &plain, const void *taps, void *indices) {
    const Problem p = joined_maxima(plain, true, true);
    const int tap_bytes = type_of(p).bytes;  // the problem's first tensor holds taps
    const int64_t plane_size = Numbers{p, indices}.plane_size;
    const TapPlaces places(p, 1, plane_size);
    with_integers(p.bytes, [&]<class N>(N) {
        const auto write_row = [&](const auto &digits) {
            const int64_t plane_row = digits[1] * p.h().outputs + digits[0];
            const int64_t row = digits[2] * p.output_plane() + plane_row * p.output_row();
            const int64_t origin = digits[2] * p.channels * plane_size;
            N *const out = as<N>(indices) + row;
            places.each(as<char>(taps) + row * tap_bytes, tap_bytes, digits[1], digits[0],
                        {0, p.w().outputs}, [=](int64_t i, int64_t place) {
                            out[i] = N(place < 0 ? -1 : origin + place);
                        });
        };
        parallel_loops({p.h().outputs, p.d().outputs, p.planes}, 4. * double(p.output_row()),
                       [&] { return write_row; });
    });
}

void max_pooling_grad_from_taps(const Problem &plain, const void *arriving, const void *taps,
                                void *gradient) {
    const Problem p = joined_maxima(plain, true, true);
    use_large_pages(gradient, p.input_bytes(type_of(p).bytes));
    // Whether several windows may read an element. If not, nothing is added, and elements of half
    // precision are copied as integers.
    bool adds = false;
    for (const Axis &axis : p.axes)
        adds |= axis.extent() > axis.stride;
    if (!adds && (p.type == FLOAT16 || p.type == BFLOAT16))
        return gradient_of_maxima<int16_t>(p, arriving, taps, gradient);
    with_floats(p.type, "gradients of type", [&](auto element) {
        gradient_of_maxima<decltype(element)>(p, arriving, taps, gradient);
    });
}

}  // namespace dmlpool
