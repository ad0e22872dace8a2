// The divisors of averages under a mask: how many elements of each window the mask keeps, and its
// padding if that counts.
//
// Windows of few taps are counted over a whole plane at once, as if it were one row. A count that
// crosses the end of a row belongs to no window and is not used:
//
//     mask, 2 rows of 4, windows 2x3      added along W        along H      rows
//     | 1 0 1 1 | 1 1 0 1 |         ->   | 2 2 3 3 2 2 . . |  ->  | 4 4 . . |  ->  | 4 4 |
//
// If there is padding, or if the length of rows is no multiple of the stride, the plane is copied
// with zeros around it. Windows of more taps are pooled as sums of the mask's bools.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "counts.h"
#include "operators.h"
#include "parallel.h"
#include "strides.h"
#include "sums.h"

namespace dmlpool {
namespace {

// Adds the padding that counts to each window's sum of the mask, and writes the result, or 1 if it
// is 0. Sums have type S and counts type N. They may share memory if both types are the same.
template <class S, class N>
struct Counted final : Finish {
    const Geometry &g;

    explicit Counted(const Geometry &g)
        : Finish(sizeof(N), !g.p.counting.include_padding, false), g(g) {}
    void operator()(int64_t, int64_t d, int64_t h, int64_t i, int64_t count, const void *sums,
                    void *to) const override {
        const S *const from = static_cast<const S *>(sums);
        N *const out = static_cast<N *>(to);
        if (is_uniform)
            return add(from, count, 0, out);
        const int64_t counted = int64_t(g.rows_divisor(d, h));
        const int64_t read = g.known_count(0, d).read * g.known_count(1, h).read;
        if (g.p.channels > 1)
            return g.for_runs(i, count, [&](int64_t at, int64_t n, int64_t output) {
                const TapCount taps = g.known_count(2, output);
                add(from + at, n, counted * taps.counted - read * taps.read, out + at);
            });
        g.for_columns(i, count, [&](int64_t at, int64_t n, const TapCount *taps) {
            for (int64_t k = 0; k < n; ++k)
                add(from + at + k, 1, counted * taps[k].counted - read * taps[k].read,
                    out + at + k);
        });
    }
    static void add(const S *from, int64_t count, int64_t padding, N *out) {
        VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            out[i] = std::max(N(from[i] + S(padding)), N(1));
    }
};

// Counts windows of few taps over planes that a cache holds. Reason: 2.1x on 3/2 and 3.1x on 3/1
// over pooling bytes row by row (1x64x56x56, one thread, Zen 4).
struct FlatCounting {
    // The most taps of a window along an axis, and the most elements of a plane. Not measured
    // separately.
    static constexpr int64_t MOST_TAPS = 16;
    static constexpr int64_t MOST_PLANE = 1 << 18;
    // The bytes of planes that are counted at a time, so that they and their counts stay in a
    // cache.
    static constexpr int64_t TOGETHER = 1 << 14;

    const Problem &p;
    const Counted<uint8_t, uint8_t> &finish;
    const uint8_t *const mask;
    uint8_t *const divisors;

    const int64_t channels = p.channels;
    // With one channel, every stride-th count is copied to contiguous memory first.
    const int64_t every = channels == 1 ? p.w().stride : 1;
    const bool is_copied = !lies_inside(p.d()) || !lies_inside(p.h()) || !lies_inside(p.w()) ||
                           p.w().size % every != 0;
    // The sizes of the plane, or of its copy with all padding that windows read.
    const int64_t depth = is_copied ? p.d().span(p.d().outputs) : p.d().size;
    const int64_t height = is_copied ? p.h().span(p.h().outputs) : p.h().size;
    const int64_t width =
        is_copied ? parts_of(p.w().span(p.w().outputs), every) * every : p.w().size;
    const int64_t row = width * channels;
    const int64_t plane = depth * height * row;

    static bool lies_inside(const Axis &axis) {
        return axis.padding == 0 && axis.span(axis.outputs) <= axis.size;
    }
    bool can_compute() const {
        for (const Axis &axis : p.axes)
            if (axis.window == 0 || axis.window > MOST_TAPS || axis.extent() > 2 * axis.size ||
                axis.stride > axis.size)
                return false;
        return plane <= MOST_PLANE;
    }
    void run() const {
        const int64_t most = std::max<int64_t>(1, TOGETHER / plane);
        parallel(p.planes, double(plane), [&](int64_t begin, int64_t end) {
            const int64_t size = std::min(most, end - begin) * plane;
            std::vector<uint8_t> copy(is_copied ? size : 0);
            std::vector<uint8_t> made(2 * size);
            for (int64_t first = begin; first < end; first += most) {
                const int64_t planes = std::min(most, end - first);
                const uint8_t *from = mask + first * p.plane();
                if (is_copied) {
                    for (int64_t k = 0; k < planes; ++k)
                        copy_plane(from + k * p.plane(), copy.data() + k * plane);
                    from = copy.data();
                }
                const uint8_t *const counts =
                    count(from, planes * plane, made.data(), made.data() + size);
                for (int64_t k = 0; k < planes; ++k)
                    take_windows(counts + k * (plane / every), first + k);
            }
        });
    }
    // Copies a plane to where it lies between the zeros of padding, which are there already.
    void copy_plane(const uint8_t *from, uint8_t *to) const {
        const Axis &d = p.d();
        const Axis &h = p.h();
        const Axis &w = p.w();
        const int64_t count = std::min(w.size, width - w.padding) * channels;
        for (int64_t z = 0; z < std::min(d.size, depth - d.padding) && count > 0; ++z)
            for (int64_t y = 0; y < std::min(h.size, height - h.padding); ++y) {
                const int64_t in_copy = (z + d.padding) * height + y + h.padding;
                std::memcpy(to + (in_copy * width + w.padding) * channels,
                            from + (z * h.size + y) * w.size * channels, count);
            }
    }
    // Returns the counts of windows that begin at each element, or at every stride-th one. They are
    // written to `to` or to `other`.
    const uint8_t *count(const uint8_t *from, int64_t length, uint8_t *to, uint8_t *other) const {
        const int64_t steps[3] = {height * row, row, channels};
        bool are_bools = true;  // until they are counted, if only as windows of one tap
        for (int a = 2; a >= 0; --a) {
            const Axis &axis = p.axes[a];
            if (axis.window == 1 && !(are_bools && a == 0))
                continue;
            const int64_t step = axis.dilation * steps[a];
            length -= (axis.window - 1) * step;
            (are_bools ? add_taps<true> : add_taps<false>)(from, axis.window, step, length, to);
            are_bools = false;
            from = to;
            std::swap(to, other);
        }
        if (every == 1)
            return from;
        take_each(1, every, from, parts_of(length, every), to);
        return to;
    }
    // Adds `taps` elements, `step` apart, from each of `count` elements on.
    template <bool are_bools>
    static void add_taps(const uint8_t *from, int64_t taps, int64_t step, int64_t count,
                         uint8_t *to) {
        const auto add = [=](auto number, int64_t i) {
            using V = Vector<uint8_t, decltype(number)::value>;
            const auto tap = [=](int64_t t) {
                const V bytes = read<V>(from + i + t * step);
                return are_bools ? truth_of(bytes) : bytes;
            };
            V sum = tap(0);
            for (int64_t t = 1; t < taps; ++t)
                sum += tap(t);
            write(sum, to + i);
        };
        int64_t i = 0;
        for (; i + BYTES <= count; i += BYTES)
            add(Count<BYTES>(), i);
        for (; i < count; ++i)
            add(Count<1>(), i);
    }
    // Copies the counts of the windows of plane `number`, and finishes them.
    void take_windows(const uint8_t *counts, int64_t number) const {
        const Axis &d = p.d();
        const Axis &h = p.h();
        const Axis &w = p.w();
        const int64_t length = p.output_row();
        uint8_t *const begin = divisors + number * p.output_plane();
        uint8_t *out = begin;
        for (int64_t z = 0; z < d.outputs; ++z)
            for (int64_t y = 0; y < h.outputs; ++y, out += length) {
                const uint8_t *const from =
                    counts + (z * d.stride * height + y * h.stride) * (row / every);
                if (every == w.stride || w.outputs == 1)
                    std::memcpy(out, from, length);
                else
                    for (int64_t x = 0; x < w.outputs; ++x)
                        std::memcpy(out + x * channels, from + x * w.stride * channels, channels);
                if (!finish.is_uniform)
                    finish(number, z, y, 0, length, out, out);
            }
        if (finish.is_uniform)
            finish(number, 0, 0, 0, p.output_plane(), begin, begin);
    }
};

}  // namespace

void masked_divisors(const Problem &p, const void *mask, void *divisors) {
    const Geometry g(p, true);
    if (p.bytes != 1)
        return pool(bool_sums(), Counted<int32_t, int32_t>(g), mask, divisors, g);
    const Counted<uint8_t, uint8_t> finish(g);
    const FlatCounting flat{p, finish, static_cast<const uint8_t *>(mask),
                            static_cast<uint8_t *>(divisors)};
    if (flat.can_compute())
        flat.run();
    else
        pool(bool_sums(), Counted<int32_t, uint8_t>(g), mask, divisors, g);
}

}  // namespace dmlpool
