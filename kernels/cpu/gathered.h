// The gradient of maxima of many channels. Each element adds what arrives at the windows that it
// has won. It is pooled by pool_windows as the gradient of averages is: the outputs are elements,
// and the taps of an element are the windows that may have won it. The number of such a tap is that
// of the element in the window:
//
//     window 3, stride 2, over 7 positions:
//
//     position         0 1 2 3 4 5 6
//     window 0         0 1 2                   positions 1, 3 and 5 are each read by one window, as
//     window 1             0 1 2               its tap 1, and are one run; positions 2 and 4 are
//     window 2                 0 1 2           read by two, as tap 2 of one and tap 0 of the next
#pragma once

#include "operations.h"
#include "vectors.h"

namespace dmlpool {
namespace {

// Adds what arrives at the windows of `seen` that an element has won.
template <class T>
struct GatheredMaxima final : WindowOperations {
    using L = Wide<T>;
    using Integer = IntegerOf<L>;
    static constexpr int64_t n = LANES<L>;
    const T *const arriving;
    const uint8_t *const winners;

    GatheredMaxima(const Problem &p, const Windows &seen, const T *arriving, const uint8_t *winners)
        : WindowOperations(sizeof(T), sizeof(T), {p.h().window * p.w().window, p.w().window, 1}),
          arriving(arriving),
          winners(winners) {
        for (int a = 0; a < 3; ++a)
            steps[a] *= -p.axes[a].stride / seen.seen[a]->divisor;
    }
    void combine_window(Row *taps, int64_t count, int64_t channels, char *produced, char *,
                        const Times &times) const override {
        // The number of taps is compiled where it is common, so that loops unroll.
        const auto run = [=, this](auto known) {
            const int64_t number = known;
            for (int64_t t = 0; t < times.count; ++t) {
                T *const out = as<T>(produced) + t * times.pitch;
                const int64_t first = t * times.step / int64_t(sizeof(T));
                for (int64_t begin = 0; begin < channels; begin += n) {
                    const int64_t at = min(begin, channels - n);
                    Vector<L, n> sum = {};
#pragma GCC unroll 4
                    for (int64_t k = 0; k < number; ++k) {
                        const int64_t place = elements<T>(taps[k]) - arriving + first + at;
                        const auto winner = load<Integer, n>(winners + place);
                        const auto value = load<L, n>(arriving + place);
                        sum += winner == Integer(taps[k].number) ? value : Vector<L, n>{};
                    }
                    store<T, n>(sum, out + at);
                }
            }
        };
        count == 1   ? run(Count<1>())
        : count == 2 ? run(Count<2>())
        : count == 4 ? run(Count<4>())
                     : run(count);
    }
};

}  // namespace
}  // namespace dmlpool
