// The gradient of maxima: what arrives at each window is added to its winner, which a tap says.
//
//     arriving  | 5 | 7 |      taps  | 2 | 0 |
//                 |   +--------------------+
//                 +--------------------+   v
//     gradient  | 0   0   5   0   0   7   0   0 |

#include <cmath>
#include <limits>

#include "choose.h"
#include "numbers.h"
#include "operators.h"
#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

// Where the taps of windows lie: `unit` for each position in the plane, and `channel_unit` for each
// channel. Taps come from outside: one that no window has lies nowhere.
struct Taps {
    // Less than any place, and three of them together are still a number.
    static constexpr int64_t NOWHERE = std::numeric_limits<int64_t>::min() / 4;
    const Problem &p;
    const int64_t unit;
    const int64_t taps;
    Columns columns;  // from the first tap of the first window on
    // Of each tap from its window's first, where they are few, and of every number that a byte can
    // be: taps of one byte need no check.
    std::vector<int64_t> offsets;

    __attribute__((noinline)) Taps(const Problem &p, int64_t unit, int64_t channel_unit)
        : p(p),
          unit(unit),
          taps(int64_t(std::min(
              0x1p62, double(p.d().window) * double(p.h().window) * double(p.w().window)))),
          columns(p, channel_unit) {
        columns.keep([this](int64_t output) { return column(output); });
        if (taps > std::min<int64_t>(4096, p.planes * p.output_plane()))
            return;
        offsets.assign(std::max<int64_t>(taps, 256), NOWHERE);
        for (int64_t tap = 0; tap < taps; ++tap)
            offsets[tap] = computed_offset(tap);
    }
    int64_t column(int64_t output) const {
        return p.w().is_empty(output) ? NOWHERE : output * p.w().stride * unit;
    }
    int64_t computed_offset(int64_t tap) const {
        const int64_t tw = tap % p.w().window, row = tap / p.w().window, th = row % p.h().window;
        const int64_t y = row / p.h().window * p.d().dilation * p.h().size + th * p.h().dilation;
        return (y * p.w().size + tw * p.w().dilation) * unit;
    }
    // Calls visit(i, place) for elements [from, to) of a row of outputs, the place counted from the
    // plane's first element; below 0 where a window is empty or has no such tap.
    template <class Visit>
    void each(const void *which, int bytes, int64_t od, int64_t oh, int64_t from, int64_t to,
              Visit visit) const {
        if (bytes == 1)
            visit_all(static_cast<const uint8_t *>(which), od, oh, from, to, visit);
        else if (bytes == 2)
            visit_all(static_cast<const int16_t *>(which), od, oh, from, to, visit);
        else if (bytes == 4)
            visit_all(static_cast<const int32_t *>(which), od, oh, from, to, visit);
        else
            refuse("tap has this many bytes:", bytes);
    }

  private:
    template <class Tap, class Visit>
    void visit_all(const Tap *which, int64_t od, int64_t oh, int64_t from, int64_t to,
                   Visit visit) const {
        const bool is_empty = p.d().is_empty(od) || p.h().is_empty(oh);
        const int64_t y = p.d().first(od) * p.h().size + p.h().first(oh);
        const int64_t first = is_empty ? NOWHERE : (y * p.w().size - p.w().padding) * unit;
        if (!columns.kept.empty() && !offsets.empty()) {
            const int64_t *__restrict column = columns.kept.data();
            const int64_t *__restrict offset = offsets.data();
            const uint64_t known = offsets.size();
            for (int64_t i = from; i < to; ++i) {
                const int64_t tap = which[i];
                const bool is_known = sizeof(Tap) == 1 || uint64_t(tap) < known;
                visit(i, first + column[i] + (is_known ? offset[tap] : NOWHERE));
            }
            return;
        }
        columns.each(
            from, to, [this](int64_t output) { return column(output); },
            [&](int64_t at, int64_t n, const int64_t *column) {
                for (int64_t k = 0; k < n; ++k)
                    visit(at + k, first + column[k] + checked_offset(which[at + k]));
            });
    }
    int64_t checked_offset(int64_t tap) const {
        return uint64_t(tap) < uint64_t(taps) ? computed_offset(tap) : NOWHERE;
    }
};

// Of channels: what arrives at the windows that an element wins, added in their order. To each of
// them it is another tap.
template <class T>
struct ChannelGradient final : WindowOperations {
    using L = Wide<T>;
    using Integer = IntegerOf<L>;
    const char *arriving;
    const uint8_t *winners;

    ChannelGradient(const Problem &p, const void *arriving, const void *winners)
        : WindowOperations(sizeof(T), sizeof(L), {p.h().window * p.w().window, p.w().window, 1}),
          arriving(static_cast<const char *>(arriving)),
          winners(static_cast<const uint8_t *>(winners)) {
        is_separable = false;
        for (int a = 0; a < 3; ++a)
            steps[a] =
                -units[a] * (p.axes[a].stride / std::gcd(p.axes[a].stride, p.axes[a].dilation));
    }
    void combine_window(bool, Row *windows, int64_t count, int64_t channels, char *made,
                        char *) const override {
        constexpr int64_t n = LANES<L>;
        for (int64_t begin = 0; begin < channels; begin += n) {
            const int64_t at = std::min(begin, channels - n);
            Vector<L, n> sum = {};
            for (int64_t k = 0; k < count; ++k) {
                const T *const from = elements<T>(windows[k]);
                const auto winner =
                    load<Integer, n>(winners + (from - reinterpret_cast<const T *>(arriving)) + at);
                sum +=
                    winner == Integer(windows[k].number) ? load<L, n>(from + at) : Vector<L, n>{};
            }
            write(sum, made + at * sizeof(L));
        }
    }
};

// What arrives at each window, added to its winner in the order of the windows: a plane at a time,
// or where that is large a part of one, whose neighbours then visit the windows on the border too.
template <class T>
void spread(const Problem &p, const void *arriving, const void *numbers, void *gradient) {
    using L = Wide<T>;
    constexpr bool is_direct = std::is_same_v<T, L>;
    const int bytes = int(p.bytes);
    if (gathers_channels(p, sizeof(L))) {
        const ChannelGradient<T> op(p, arriving, numbers);
        return pool_windows(op, Narrowed<T>(), arriving, gradient, adjoint_of(Windows(p)));
    }
    const Taps places(p, p.channels, 1);
    const Rows<Sum<L, T>> as_they_are({});
    const Axis &d = p.d(), &h = p.h(), &w = p.w();
    const int64_t number = d.size > 1 ? 0 : h.size > 1 ? 1 : 2;
    const Axis &parted = p.axes[number];
    const int64_t slab = p.plane() / parted.size;
    const int64_t step = std::clamp<int64_t>(
        (1 << 18) / slab, std::min(parted.size, 4 * parted.extent()), parted.size);
    const int64_t parts = parts_of(parted.size, step);
    parallel(p.planes * parts, 4. * double(step * slab), [&](int64_t begin, int64_t end) {
        const int64_t block = std::min<int64_t>(4096, p.output_row());
        std::vector<L> sums(is_direct ? 0 : step * slab), loaded(is_direct ? 0 : block);
        for (int64_t task = begin; task < end; ++task) {
            const int64_t plane = task / parts, start = task % parts * step,
                          stop = std::min(parted.size, start + step);
            const int64_t size = (stop - start) * slab, origin = plane * p.plane() + start * slab;
            L *const sum = is_direct ? static_cast<L *>(gradient) + origin : sums.data();
            std::fill_n(sum, size, L(0));
            int64_t low[3] = {0, 0, 0}, high[3] = {d.outputs, h.outputs, w.outputs};
            const int64_t before = start + parted.padding - parted.extent() + parted.stride;
            low[number] = before < 0 ? 0 : std::min(before / parted.stride, parted.outputs);
            high[number] = std::clamp((stop - 1 + parted.padding) / parted.stride + 1, low[number],
                                      parted.outputs);
            for (int64_t od = low[0]; od < high[0]; ++od)
                for (int64_t oh = low[1]; oh < high[1]; ++oh) {
                    const int64_t row =
                        ((plane * d.outputs + od) * h.outputs + oh) * p.output_row();
                    const void *const which = static_cast<const char *>(numbers) + row * bytes;
                    Row shares = {static_cast<const char *>(arriving) + row * int64_t(sizeof(T)),
                                  0};
                    const auto add_from = [=](const L *from) {
                        return [=](int64_t i, int64_t place) {
                            const int64_t at = place - start * slab;
                            if (uint64_t(at) < uint64_t(size))
                                sum[at] += from[i];
                        };
                    };
                    const int64_t first = low[2] * p.channels, end = high[2] * p.channels;
                    if constexpr (is_direct) {
                        const L *const from = elements<L>(shares);
                        prefetch(from + 4 * p.output_row(), p.output_row());
                        places.each(which, bytes, od, oh, first, end, add_from(from));
                        continue;
                    }
                    shares.from += first * int64_t(sizeof(T));
                    for (int64_t at = first, n; at < end; at += n) {
                        n = std::min(block, end - at);
                        as_they_are.combine(false, &shares, 1, n, loaded.data(), {});
                        places.each(which, bytes, od, oh, at, at + n, add_from(loaded.data() - at));
                        shares.from += n * int64_t(sizeof(T));
                    }
                }
            if constexpr (!is_direct)
                divide<T>(sum, size, 1, nullptr, static_cast<T *>(gradient) + origin);
        }
    });
}

}  // namespace

void max_pooling_indices(const Problem &p, const void *taps, void *indices) {
    constexpr int64_t BLOCK = 4096;
    const int tap_bytes = type_of(p).bytes;
    const int64_t plane_size = p.numbering == INDICES ? p.plane() / p.channels : 0;
    const Taps places(p, 1, plane_size);
    const int64_t width = p.output_row();
    const int64_t blocks = parts_of(width, BLOCK);
    const int64_t rows = p.planes * p.d().outputs * p.h().outputs;
    parallel(rows * blocks, 4. * double(std::min(BLOCK, width)), [&](int64_t begin, int64_t end) {
        int64_t found[BLOCK];
        Digits<4> digits(begin, {blocks, p.h().outputs, p.d().outputs, p.planes});
        for (int64_t number = begin; number < end; ++number, ++digits) {
            const int64_t row = number / blocks * width;
            const int64_t from = digits[0] * BLOCK;
            const int64_t to = std::min(width, from + BLOCK);
            const int64_t origin = digits[3] * p.channels * plane_size;
            places.each(static_cast<const char *>(taps) + row * tap_bytes, tap_bytes, digits[2],
                        digits[1], from, to, [&](int64_t i, int64_t place) {
                            found[i - from] = place < 0 ? -1 : origin + place;
                        });
            write_numbers(found, to - from, indices, int(p.bytes), row + from);
        }
    });
}

void max_pooling_grad(const Problem &p, const void *arriving, const void *taps, void *gradient) {
    expect_all(gradient, p.planes * p.plane() * type_of(p).bytes);
    const auto is_apart = [](const Axis &axis) { return axis.extent() <= axis.stride; };
    // Where one window at most reads an element, nothing is added.
    const bool adds = !is_apart(p.d()) || !is_apart(p.h()) || !is_apart(p.w());
    if (p.type == 0)
        spread<float>(p, arriving, taps, gradient);
    else if (p.type == 1)
        spread<double>(p, arriving, taps, gradient);
    else if (p.type == 2 && adds)
        spread<Half>(p, arriving, taps, gradient);
    else if (p.type == 3 && adds)
        spread<BFloat16>(p, arriving, taps, gradient);
    else if (p.type == 2 || p.type == 3)
        spread<int16_t>(p, arriving, taps, gradient);
    else
        refuse("gradients of type", p.type);
}

}  // namespace dmlpool
