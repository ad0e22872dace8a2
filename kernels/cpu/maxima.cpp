// Max pooling: values, and the taps, positions or indices of the winners.
//
// Where channels fill vectors and windows share little, `ChannelWinners` compares the elements of
// each window in vectors of channels. Elsewhere `Winner` makes an integer of each element and its
// tap, and a strategy finds the greatest one.

#include "maxima.h"

#include "choose.h"
#include "kept.h"
#include "numbers.h"
#include "operators.h"
#include "turned.h"

namespace dmlpool {
namespace {

// Writes the elements and the numbers of winners that are integers.
template <class S, class P>
struct Winners final : Finish {
    const Numbers &numbers;
    const Winner<S, P> op;
    bool has_values;

    Winners(const Numbers &numbers, const Winner<S, P> &op, bool has_values)
        : Finish(sizeof(S), numbers.are_taps, false),
          numbers(numbers),
          op(op),
          has_values(has_values) {}
    void operator()(int64_t plane, int64_t od, int64_t oh, int64_t first, int64_t count,
                    const void *values, void *to) const override {
        const Winner<S, P> by = op;
        const P *__restrict winners = as<P>(values);
        S *__restrict out = as<S>(to);
        if (has_values)
            VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            out[i] = by.value(winners[i]);
        using Number = decltype(by.number(0));
        const Number least = numbers.none();
        Number found[Numbers::PART];
        for (int64_t at = 0, n; at < count; at += n) {
            n = min(Numbers::PART, count - at);
            VECTORIZE
            for (int64_t i = 0; i < n; ++i)
                found[i] = max(least, by.number(winners[at + i]));
            numbers.write(plane, od, oh, first + at, n, found);
        }
    }
};

// Finds the winners of a window in vectors of channels. The numbers of taps are integers as wide as
// elements. E is float for float32, whose elements are compared as they are. It is S for all
// others, which are compared by keys.
template <class E, class S, class P>
struct ChannelWinners final : WindowOperations {
    static constexpr int64_t n = LANES<S>;
    static constexpr int64_t CHAINS = 4;  // comparisons that do not wait for each other
    using V = Vector<E, n>;
    using N = Vector<S, n>;
    const Winner<S, P> op;
    const int none;
    const bool has_values;

    ChannelWinners(const Numbers &numbers, const Winner<S, P> &op, bool has_values)
        : WindowOperations(sizeof(S), sizeof(S), numbers.units),
          op(op),
          none(numbers.none()),
          has_values(has_values) {
        writes_results = true;
    }

    // The elements of a tap from `at` on, as they are compared.
    V load(const Row &tap, int64_t at) const {
        const V element = read<V>(tap.from + at * int64_t(sizeof(E)));
        if constexpr (is_same_v<E, S>)
            return op.template key<n>(element);
        else
            return element;
    }
    // Whether the challenger is better, or the first NaN.
    static auto wins(const V &challenger, const V &best) {
        if constexpr (is_same_v<E, S>)
            return challenger > best;
        else
            return ~(challenger <= best) & (best == best);
    }
    void combine_window(Row *taps, int64_t count, int64_t channels, char *produced, char *result,
                        const Times &times) const override {
        S *which = as<S>(produced);
        S *values = as<S>(result);
        if (count == 0) {
            fill_n(which, times.count * channels, S(none));
            if (has_values)
                fill_n(values, times.count * channels, op.template element<1>(op.lowest));
            return;
        }
        const auto run =
            channels < CHAINS * n ? &ChannelWinners::compare<1> : &ChannelWinners::compare<CHAINS>;
        for (int64_t t = 0; t < times.count; ++t, which += channels, values += channels)
            (this->*run)(taps, count, channels, t * times.step / element_size, which, values);
    }
    // Compares `chains` vectors of channels at a time. The last vectors may overlap those before.
    template <int64_t chains>
    void compare(const Row *taps, int64_t count, int64_t channels, int64_t offset, S *which,
                 S *values) const {
        for (int64_t begin = 0; begin < channels; begin += chains * n) {
            const int64_t first = min(begin, channels - chains * n);
            V best[chains];
            N winning[chains];
#pragma GCC unroll 4
            for (int64_t v = 0; v < chains; ++v) {
                best[v] = load(taps[0], offset + first + v * n);
                winning[v] = N{} + S(taps[0].number);
            }
            for (int64_t t = 1; t < count; ++t)
#pragma GCC unroll 4
                for (int64_t v = 0; v < chains; ++v)
                    take(load(taps[t], offset + first + v * n), N{} + S(taps[t].number), best[v],
                         winning[v]);
#pragma GCC unroll 4
            for (int64_t v = 0; v < chains; ++v) {
                const int64_t at = first + v * n;
                if constexpr (is_same_v<E, S>)
                    best[v] = op.template element<n>(best[v]);
                if (has_values)
                    write(best[v], values + at);
                write(winning[v], which + at);
            }
        }
    }
    // Takes the challenger and its tap where it wins.
    static void take(const V &challenger, const N &tap, V &best, N &winning) {
        const N is_better = wins(challenger, best);
        winning = is_better ? tap : winning;
        best = is_better ? challenger : best;
    }
};

// Writes the numbers of the winners that ChannelWinners has found.
template <class S>
struct WinningTaps final : Finish {
    const Numbers &numbers;

    explicit WinningTaps(const Numbers &numbers)
        : Finish(sizeof(S), false, false), numbers(numbers) {}
    void operator()(int64_t plane, int64_t od, int64_t oh, int64_t first, int64_t count,
                    const void *winning, void *) const override {
        numbers.write(plane, od, oh, first, count, as<S>(winning));
    }
};

// Pools a problem, or a block of turned planes, from plane `first` on.
void pool_by(const Windows &windows, Strategy strategy, int64_t first, const void *input,
             void *output, void *winners) {
    const Problem &p = windows.p;
    const Strategy by = strategy == TURNED ? WINDOWS : AUTOMATIC;
    const auto pool_values = [&]<class S>(S) {
        const Max<S> op(p);
        pool(Rows<Max<S>>(op), Values<S>(op), input, output, windows, by);
    };
    const Numbers numbers{p, winners, first};
    const auto pool_winners = [&]<class E, class S, class P>(E, S, P) {
        const Winner<S, P> op(p);
        void *const to = output ? output : winners;  // nothing is written where it is winners
        if (strategy == COMPARED || (strategy == TURNED && p.channels >= LANES<S>)) {
            const ChannelWinners<E, S, P> channels(numbers, op, output != nullptr);
            return pool_windows({channels, WinningTaps<S>(numbers), input, to, windows});
        }
        pool(Rows<Winner<S, P>>(op, numbers.units), Winners<S, P>(numbers, op, output != nullptr),
             input, to, windows, by);
    };
    // Wide windows combine values so often that it pays to turn floats into keys, which are
    // compared by one instruction in place of four.
    const bool compares_keys = is_wide(true, p.channels, p.h());
    const int64_t as_it_is = p.are_minima ? -1 : p.type;  // the type of elements without keys
    if (winners) {
        if (as_it_is == FLOAT32)
            return pool_winners(float(), int32_t(), int64_t());
        with_integers(type_of(p).bytes, [&]<class S>(S element) {
            if constexpr (sizeof(S) == 1)
                if (last_number(p, numbers.units) < 128)
                    return pool_winners(element, element, int16_t());
            pool_winners(element, element,
                         conditional_t<sizeof(S) == 8, __int128,
                                       conditional_t<sizeof(S) == 4, int64_t, int32_t>>());
        });
    } else if (as_it_is == FLOAT32 && !compares_keys)
        pool_values(float());
    else if (as_it_is == FLOAT64)
        pool_values(double());
    else
        with_integers(type_of(p).bytes, pool_values);
}

}  // namespace

void max_pooling(const Problem &plain, const void *input, void *output, void *winners) {
    const Kept under_mask{plain, input};
    const Kept *const kept = plain.masking.mask ? &under_mask : nullptr;
    const Problem p = joined_maxima(plain, false, winners != nullptr);
    const int64_t bytes = type_of(p).bytes;
    const int64_t outputs = p.planes * p.output_plane();
    if (output)
        use_large_pages(output, outputs * bytes);
    if (winners)
        use_large_pages(winners, outputs * p.bytes);
    Windows windows(p);
    windows.kept = kept;
    const Numbers numbers{p, winners};
    const Strategy strategy = choose({.operation = winners ? WINNERS : MAXIMA,
                                      .windows = windows,
                                      .element_size = bytes,
                                      .units = numbers.units});
    if (strategy == TURNED) {
        const Windows turned(turned_problem(p));
        turn_planes(p.planes, turned.p.channels, 1,
                    {{input, bytes, p.plane(), kept},
                     {output, bytes, output ? p.output_plane() : 0},
                     {winners, winners ? p.bytes : 1, winners ? p.output_plane() : 0}},
                    [&](int64_t first, void *const *blocks) {
                        pool_by(turned, TURNED, first, blocks[0], output ? blocks[1] : nullptr,
                                winners ? blocks[2] : nullptr);
                    });
    } else
        pool_by(windows, strategy, 0, input, output, winners);
    if (kept && winners)
        find_first_kept(*kept, output, winners);
}

}  // namespace dmlpool
