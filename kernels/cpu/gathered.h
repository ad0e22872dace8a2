// The gradient of maxima of many channels. Each element adds what arrives at the windows that it
// has won. Positions of a row that lie a stride apart are read by the same taps of successive
// windows. They form a group, and one loop writes all of a group:
//
//     window 3, stride 2, over 7 positions:
//
//     position         0 1 2 3 4 5 6
//     window 0         0 1 2                   group b: positions 1, 3 and 5, each read by one
//     window 1             0 1 2               window, as its tap 1
//     window 2                 0 1 2           group c: positions 2 and 4, each read by two
//     group            a b c b c b d           windows, as tap 2 of one and tap 0 of the next
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

// The gradient of maxima.
template <class T>
struct GatheredMaxima {
    using L = Wide<T>;
    using Integer = IntegerOf<L>;
    static constexpr int64_t n = LANES<L>;
    static constexpr bool is_direct = std::is_same_v<T, L>;
    // The sums of a tile of a row stay in the first-level cache.
    static constexpr int64_t TILE_BYTES = 32768;
    // A window, or a row of windows: its place in the tensor of what arrives, and the number of the
    // tap by which it reads an element.
    struct Reader {
        int64_t place;
        int64_t number;
    };
    // A thread's memory.
    struct Memory {
        std::vector<Run> groups;  // of positions a stride apart, read by the same taps
        std::vector<Reader> rows;
        std::vector<Reader> windows;
        std::unique_ptr<L[]> sums;  // of a tile
    };

    const Problem &p;
    const T *const arriving;
    const uint8_t *const winners;
    T *const gradient;
    const Windows seen = adjoint_of(Windows(p));
    const int64_t channels = p.channels;
    const Axis &w = p.w();

    // The distance along an axis of the taps by which consecutive windows read an element.
    int64_t tap_step(int a) const { return p.axes[a].stride / seen.seen[a][0].divisor; }
    void run() const {
        const int64_t tile =
            std::clamp<int64_t>(TILE_BYTES / int64_t(sizeof(L)) / channels, 1, w.size);
        const int64_t tiles = parts_of(w.size, tile);
        const int64_t rows = p.planes * p.d().size * p.h().size;
        parallel(rows * tiles, 4. * double(tile * channels), [&](int64_t begin, int64_t end) {
            Memory m;
            m.sums.reset(new L[is_direct ? 1 : tile * channels]);
            // Rows come before tiles, so that groups are found once for many rows.
            Digits<4> digits(begin, {p.h().size, tiles, p.d().size, p.planes});
            for (int64_t number = begin; number < end; ++number, ++digits) {
                const int64_t first = digits[1] * tile;
                const int64_t stop = std::min(first + tile, w.size);
                if (number == begin || digits[0] == 0) {
                    m.groups.clear();
                    for (int64_t x = first; x < std::min(first + w.stride, stop); ++x)
                        find_runs(seen, true, x, stop, m.groups, w.stride);
                }
                find_rows(digits[3], digits[2], digits[0], m);
                const int64_t row = (digits[3] * p.d().size + digits[2]) * p.h().size + digits[0];
                T *const out = gradient + (row * w.size + first) * channels;
                L *sums = m.sums.get();
                if constexpr (is_direct)
                    sums = out;
                for (const Run &group : m.groups)
                    write_group(group, m, sums + (group.first - first) * channels);
                if constexpr (!is_direct)
                    divide<T>(sums, (stop - first) * channels, 1, nullptr, out);
            }
        });
    }
    // Lists the rows of windows that read row (plane, z, y) of elements.
    __attribute__((noinline)) void find_rows(int64_t plane, int64_t z, int64_t y, Memory &m) const {
        const Span d = seen.at(0, z);
        const Span h = seen.at(1, y);
        m.rows.clear();
        for (int64_t i = 0; i < d.count; ++i)
            for (int64_t j = 0; j < h.count; ++j) {
                const int64_t od = d.begin + i * seen.seen[0][0].step;
                const int64_t oh = h.begin + j * seen.seen[1][0].step;
                const int64_t tap =
                    (d.tap - i * tap_step(0)) * p.h().window + (h.tap - j * tap_step(1));
                const int64_t row = (plane * p.d().outputs + od) * p.h().outputs + oh;
                m.rows.push_back({row * p.output_row(), tap * w.window});
            }
    }
    // Lists the windows that read the first position of a group.
    __attribute__((noinline)) void find_windows(const Run &run, Memory &m) const {
        m.windows.clear();
        for (const Reader &row : m.rows)
            for (int64_t k = 0; k < run.count; ++k)
                m.windows.push_back({row.place + (run.begin + k * seen.seen[2][0].step) * channels,
                                     row.number + run.tap - k * tap_step(2)});
    }
    void write_group(const Run &group, Memory &m, L *out) const {
        find_windows(group, m);
        const int64_t count = int64_t(m.windows.size());
        const auto run = count == 1   ? &GatheredMaxima::gather<1>
                         : count == 2 ? &GatheredMaxima::gather<2>
                         : count == 4 ? &GatheredMaxima::gather<4>
                                      : &GatheredMaxima::gather<0>;
        (this->*run)(m.windows.data(), count, group, out);
    }
    // `number` is how many windows each position has. It is compiled as `fixed` where it is common,
    // so that loops unroll; a `fixed` of 0 is any number.
    template <int64_t fixed>
    void gather(const Reader *readers, int64_t number, const Run &group, L *out) const {
        const int64_t count = fixed ? fixed : number;
        const T *from = arriving;
        const uint8_t *which = winners;
        // A copy stays in registers, because nothing else can change it.
        Reader copies[std::max<int64_t>(fixed, 1)];
        std::copy_n(readers, fixed, copies);
        const Reader *const windows = fixed ? copies : readers;
        const int64_t positions = group.groups, step = group.step * channels;
        for (int64_t i = 0; i < positions; ++i) {
            for (int64_t begin = 0; begin < channels; begin += n) {
                const int64_t at = std::min(begin, channels - n);
                Vector<L, n> sum = {};
#pragma GCC unroll 4
                for (int64_t k = 0; k < count; ++k) {
                    const auto winner = load<Integer, n>(which + (windows[k].place + at));
                    const auto value = load<L, n>(from + (windows[k].place + at));
                    sum += winner == Integer(windows[k].number) ? value : Vector<L, n>{};
                }
                write(sum, out + at);
            }
            out += w.stride * channels;
            from += step;
            which += step;
        }
    }
};

}  // namespace
}  // namespace dmlpool
