// Max pooling on the CPU: values, winning taps or indices, the gradient that flows to the winners,
// and unpooling.

#include <cmath>

#include "cpu/operators.h"
#include "rows.h"

namespace dmlpool {
namespace {

// Most data types are served as signed integers in their order. What turns one into the other is
// known when it runs, so that half precision, signed and unsigned integers are one kernel.

template <class S>
constexpr S LOWEST = std::numeric_limits<S>::min();
template <class S>
constexpr S HIGHEST = std::numeric_limits<S>::max();

// Maxima alone: float32 and float64 as they are, others as integers, NaNs of half precision above
// infinity.
template <class S>
struct Max {
    using Value = S;
    using Element = S;
    static constexpr bool takes_twice = true, has_numbers = false,
                          has_keys = !std::is_floating_point_v<S>;
    static constexpr int64_t lanes = LANES<S>, few = 9;
    S number_bits = 0, offset = 0;

    Max() = default;
    explicit Max(const DataType &type) {
        if (std::is_floating_point_v<S>)
            return;
        if (type.infinity)
            number_bits = HIGHEST<S>, offset = S(HIGHEST<S> - type.infinity);
        else if (type.is_unsigned)
            offset = LOWEST<S>;
    }
    bool is_plain() const { return number_bits == 0 && offset == 0; }
    static constexpr S identity() {
        return std::is_floating_point_v<S> ? -std::numeric_limits<S>::infinity()
                                           : std::numeric_limits<S>::lowest();
    }
    template <class V>
    static V of(V first, V second) {
        V larger = second > first ? second : first;  // the first where either is NaN
        if constexpr (std::is_same_v<V, S> && std::is_floating_point_v<S>) {
            using Bits = IntegerOf<S>;
            larger = bits_as<S>(
                Bits(bits_as<Bits>(larger) | -Bits(second != second)));  // all ones are a NaN too
        } else if constexpr (std::is_floating_point_v<S>) {
            const auto is_nan = second != second;
            larger = V(decltype(is_nan)(larger) | is_nan);
        }
        return larger;
    }
    template <class V>
    static V later(V values, int64_t) {
        return values;
    }
    template <int64_t n>
    Block<S, n> load(const S *from, int64_t) const {
        const auto element = read<Vector<S, n>>(from);
        if constexpr (std::is_floating_point_v<S>)
            return {{element}};
        else
            return {{difference<S, n>(flipped(element), Vector<S, n>{} + offset)}};
    }
    S store(S value) const {
        if constexpr (std::is_floating_point_v<S>)
            return value;
        else
            return flipped(difference<S, 1>(value, difference<S, 1>(0, offset)));
    }
    template <class V>
    V flipped(V value) const {
        if constexpr (sizeof(S) == 2)
            return V(value ^ (value >> 15 & number_bits));
        else
            return value;
    }
};

// Writes them.
template <class S>
struct Values final : Finish {
    const Max<S> op;

    explicit Values(const Max<S> &op) : Finish(sizeof(S), true, op.is_plain()), op(op) {}
    void operator()(int64_t, int64_t, int64_t, int64_t, int64_t count, const void *values,
                    void *to) const override {
        const Max<S> by = op;
        const S *from = static_cast<const S *>(values);
        S *out = static_cast<S *>(to);  // may be where the values are
        VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            out[i] = by.store(from[i]);
    }
};

// Maxima and which tap they are: an integer twice as wide as the element, of which the upper part
// orders elements and the lower part, counted down, numbers: the first wins of equals. Zeros of
// both signs are equal, and so are all NaNs.
template <class S, class P>
struct Winner {
    using Value = P;
    using Element = S;
    static constexpr bool takes_twice = true, has_numbers = true, has_keys = true;
    static constexpr int64_t lanes = sizeof(P) > 8 ? 1 : LANES<S>, few = sizeof(S) == 4 ? 7 : 4;
    static constexpr int SHIFT = 8 * (sizeof(P) - sizeof(S));
    static constexpr P FIRST = (P(1) << SHIFT) - 1,
                       HALF = P(1) << (SHIFT - 1);  // a number leaves HALF set
    S negative = LOWEST<S>, infinity = HIGHEST<S>,
      flip = 0;  // numbers below `negative` count down, without their sign

    explicit Winner(const DataType &type) {
        if (type.infinity)
            negative = 0, infinity = S(type.infinity);
        else if (type.is_unsigned)
            flip = LOWEST<S>;
    }
    static constexpr P identity() { return P(LOWEST<S>) * (P(1) << SHIFT) + HALF - 1; }
    static bool is_plain() { return false; }
    template <class V>
    static V of(V first, V second) {
        return second > first ? second : first;
    }
    template <class V>
    static V later(V values, int64_t number) {
        return values - P(number);
    }
    template <int64_t n>
    __attribute__((always_inline)) Vector<S, n> key(Vector<S, n> element) const {
        const Vector<S, n> highest = Vector<S, n>{} + HIGHEST<S>;
        return (element & highest) > infinity ? highest : turned<n>(element);
    }
    // Elements into keys, and back.
    template <int64_t n>
    Vector<S, n> turned(Vector<S, n> element) const {
        return (element < negative ? difference<S, n>(Vector<S, n>{} + LOWEST<S>, element)
                                   : element) ^
               flip;
    }
    static P of_key(S key, int64_t number) {
        return P(key) * (P(1) << SHIFT) + (FIRST - P(number));
    }
    template <int64_t n>
    __attribute__((always_inline)) Block<P, n> load(const S *from, int64_t number) const {
        const Vector<S, n> keys = key<n>(read<Vector<S, n>>(from));
        if constexpr (n == 1)
            return {{of_key(keys, number)}};
        else
            return packed<n>(keys, [=](int64_t) { return P(number); });
    }
    // Keys, and the numbers of each vector of winners.
    template <int64_t n, class NumbersOf>
    __attribute__((always_inline)) static Block<P, n> packed(const Vector<S, n> &keys,
                                                             const NumbersOf &numbers_of) {
        using B = Block<P, n>;
        B result;
        Vector<S, B::WIDTH> parts[B::COUNT];
        std::memcpy(parts, &keys, sizeof(keys));
#pragma GCC unroll 8
        for (int64_t k = 0; k < B::COUNT; ++k)
            result.part[k] =
                converted<P, B::WIDTH, S>(parts[k]) * (P(1) << SHIFT) + (FIRST - numbers_of(k));
        return result;
    }
    // Rows whose numbers rise and fit elements of four bytes are compared as those, and made wider
    // once: with indices, 3/2 takes .75 of the time and 7/7 .7.
    template <int64_t n, int64_t count>
    __attribute__((always_inline)) Block<P, n> first_winners(const Row *rows, int64_t i) const {
        using V = Vector<S, n>;
        using B = Block<P, n>;
        V best = key<n>(read<V>(elements<S>(rows[0]) + i)), which = V{} + S(rows[0].number);
#pragma GCC unroll 7
        for (int64_t k = 1; k < count; ++k) {
            const V challenger = key<n>(read<V>(elements<S>(rows[k]) + i));
            which = challenger > best ? V{} + S(rows[k].number) : which,
            best = challenger > best ? challenger : best;
        }
        Vector<S, B::WIDTH> numbers[B::COUNT];
        std::memcpy(numbers, &which, sizeof(which));
        return packed<n>(best, [&](int64_t k) { return converted<P, B::WIDTH, S>(numbers[k]); });
    }
    S lowest() const { return negative == 0 ? S(-infinity) : LOWEST<S>; }
    S value(P winner) const { return turned<1>(std::max(S(winner >> SHIFT), lowest())); }
    // Its number, -1 where there was no element.
    static int64_t number(P winner) {
        return winner & HALF ? int64_t(FIRST - (winner & FIRST)) : -1;
    }
    // That of contiguous elements: each lane has its best key and in which vector that was.
    P winner(const char *from, int64_t count) const {
        constexpr int64_t n = LANES<S>;
        using V = Vector<S, n>;
        const S *const row = reinterpret_cast<const S *>(from);
        const Winner op = *this;
        P result = identity();
        int64_t at = 0;
        while (count - at >= n) {  // as many vectors as their type has numbers
            const int64_t first = at;
            V best = V{} + LOWEST<S>, vector = {};
            for (S number = 0; count - at >= n && number < HIGHEST<S>; at += n, ++number) {
                const V challenger = op.template key<n>(read<V>(row + at));
                vector = challenger > best ? V{} + number : vector;
                best = challenger > best ? challenger : best;
            }
            for (int64_t i = 0; i < n; ++i)
                result = of(result, of_key(best[i], first + int64_t(vector[i]) * n + i));
        }
        for (; at < count; ++at)
            result = of(result, op.template load<1>(row + at, at).part[0]);
        return result;
    }
};

// A number for each element of a row of outputs, the sum of one for its output and one for its
// lane: kept where the row is short, else computed block by block.
struct Columns {
    static constexpr int64_t KEPT_MOST = 1 << 16;
    static constexpr int64_t BLOCK = 512;
    const Problem &p;
    const int64_t lane_unit;
    std::vector<int64_t> kept;

    Columns(const Problem &p, int64_t lane_unit) : p(p), lane_unit(lane_unit) {}
    // number_of(output), which must not change between calls.
    template <class NumberOf>
    void keep(const NumberOf &number_of) {
        if (p.output_row() > KEPT_MOST)
            return;
        kept.resize(p.output_row());
        fill(0, p.output_row(), number_of, kept.data());
    }
    // Calls act(at, n, numbers) for parts of [from, to).
    template <class NumberOf, class Act>
    void each(int64_t from, int64_t to, const NumberOf &number_of, const Act &act) const {
        if (!kept.empty())
            return act(from, to - from, kept.data() + from);
        int64_t block[BLOCK];
        for (int64_t at = from, n; at < to; at += n) {
            n = std::min(BLOCK, to - at);
            fill(at, n, number_of, block);
            act(at, n, block);
        }
    }

  private:
    template <class NumberOf>
    void fill(int64_t from, int64_t count, const NumberOf &number_of, int64_t *out) const {
        int64_t output = from / p.lanes;
        int64_t lane = from % p.lanes;
        for (int64_t i = 0; i < count; ++output, lane = 0) {
            const int64_t number = number_of(output);
            for (; lane < p.lanes && i < count; ++lane, ++i)
                out[i] = number + lane * lane_unit;
        }
    }
};

// Where the taps of windows lie: `unit` for each position in the plane, and `lane_unit` for each
// lane. Taps come from outside: one that no window has lies nowhere.
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

    __attribute__((noinline)) Taps(const Problem &p, int64_t unit, int64_t lane_unit)
        : p(p),
          unit(unit),
          taps(int64_t(std::min(
              0x1p62, double(p.d().window) * double(p.h().window) * double(p.w().window)))),
          columns(p, lane_unit) {
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

template <class From>
void write_numbers(const From *__restrict from, int64_t count, void *numbers, int bytes,
                   int64_t at) {
    with_numbers(bytes, [=](auto number) {
        using N = decltype(number);
        N *__restrict out = static_cast<N *>(numbers) + at;
        if constexpr (sizeof(N) < 8 || sizeof(From) == 8)  // taps have four bytes at most
            VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            out[i] = N(from[i]);
    });
}

struct Numbers {
    static constexpr int64_t PART = 512;  // elements whose numbers are computed at once
    const Problem &p;
    void *numbers;
    int64_t units[3] = {1, 1, 1};
    int64_t plane_size;  // what indices count for a plane, 0 for positions
    Columns columns;     // what they count for each element in a row of outputs

    Numbers(const Problem &p, void *numbers)
        : p(p),
          numbers(numbers),
          plane_size(p.numbering == INDICES ? p.plane() / p.lanes : 0),
          columns(p, plane_size) {
        if (p.numbering == TAPS) {
            units[1] = p.w().window, units[0] = p.h().window * units[1];
            return;
        }
        units[0] = p.d().dilation * p.h().size * p.w().size, units[1] = p.h().dilation * p.w().size,
        units[2] = p.w().dilation;
        columns.keep([&](int64_t output) { return begin(p.w(), output); });
    }
    // The position that numbers along an axis count from.
    static int64_t begin(const Axis &axis, int64_t output) {
        return axis.window == 0 ? axis.span_of(output).begin : axis.first(output);
    }
    template <class N, class Number>
    static void write_positions(const Number *__restrict which, int64_t count, int64_t origin,
                                const int64_t *__restrict column, N *__restrict out) {
        if constexpr (sizeof(N) >= 4)
            VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            out[i] = N(which[i] < 0 ? -1 : origin + column[i] + which[i]);
    }
    // The number of windows without an element.
    int none() const { return p.numbering == TAPS ? 0 : -1; }
    // Writes the numbers of so many elements of a row of outputs, which count along the axes in
    // units, or are none().
    template <class Number>
    void write(int64_t plane, int64_t od, int64_t oh, int64_t from, int64_t count,
               const Number *__restrict which) const {
        const int64_t row =
            plane * p.output_plane() + (od * p.h().outputs + oh) * p.output_row() + from;
        const int64_t origin = (begin(p.d(), od) * p.h().size + begin(p.h(), oh)) * p.w().size +
                               plane * p.lanes * plane_size;
        if (p.numbering == TAPS)
            return write_numbers(which, count, numbers, int(p.bytes), row);
        with_numbers(int(p.bytes), [=](auto position) {
            using N = decltype(position);
            columns.each(
                from, from + count, [this](int64_t output) { return begin(p.w(), output); },
                [=](int64_t at, int64_t n, const int64_t *__restrict column) {
                    write_positions(which + (at - from), n, origin, column,
                                    static_cast<N *>(numbers) + row + (at - from));
                });
        });
    }
};

template <class S, class P>
struct Winners final : Finish {
    const Numbers &numbers;
    const Winner<S, P> op;
    bool has_values;

    Winners(const Numbers &numbers, const Winner<S, P> &op, bool has_values)
        : Finish(sizeof(S), numbers.p.numbering == TAPS, false),
          numbers(numbers),
          op(op),
          has_values(has_values) {}
    void operator()(int64_t plane, int64_t od, int64_t oh, int64_t first, int64_t count,
                    const void *values, void *to) const override {
        const Winner<S, P> by = op;
        const P *__restrict winners = static_cast<const P *>(values);
        S *__restrict out = static_cast<S *>(to);
        if (has_values)
            VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            out[i] = by.value(winners[i]);
        const int64_t least = numbers.none();
        int64_t found[Numbers::PART];
        for (int64_t at = 0, n; at < count; at += n) {
            n = std::min(Numbers::PART, count - at);
            VECTORIZE
            for (int64_t i = 0; i < n; ++i)
                found[i] = std::max(least, by.number(winners[at + i]));
            numbers.write(plane, od, oh, first + at, n, found);
        }
    }
};

// Windows over many lanes, each compared as a whole: the numbers of winning taps are in lanes as
// wide as elements.

// Whether that suits: sharing rows between windows saves little, lanes fill vectors and hold the
// numbers of all taps. With AVX2 3 in place of 2: 5/1 takes .6 of the time.
__attribute__((noinline)) bool suits_lanes(const Numbers &numbers, int size) {
    const Problem &p = numbers.p;
    const int64_t n = BYTES / size;
    const auto window_of = [](const Axis &axis) {
        return double(axis.window ? axis.window : std::min(axis.extent(), axis.size));
    };
    double taps = 1, last = 0;
    for (int a = 0; a < 3; ++a)
        taps *= window_of(p.axes[a]), last += (window_of(p.axes[a]) - 1) * double(numbers.units[a]);
    if (p.lanes < n || taps > 1 << 14 || last >= std::ldexp(1., 8 * size - 1))
        return false;
    const double vectors = double(parts_of(p.lanes, n) * n) / double(p.lanes), w = window_of(p.w());
    // One window has no next one. From memory its lanes are read too far apart: 7/1 of 32x2048x7x7
    // would take twice as long.
    const double stride = p.w().outputs == 1 && !p.is_large(size) ? w : double(p.w().stride);
    return vectors * taps < (size == 8 ? 8 : BYTES == 64 ? 2 : 3) * (taps / w * stride + w);
}

// E: float32 as it is, others by their keys.
template <class E, class S, class P>
struct Lane final : WindowOperations {
    static constexpr int64_t n = LANES<S>;
    using V = Vector<E, n>;
    using N = Vector<S, n>;
    const Winner<S, P> op;
    const int none;
    const bool has_values;

    Lane(const Numbers &numbers, const Winner<S, P> &op, bool has_values)
        : WindowOperations(sizeof(S), sizeof(S), numbers.units),
          op(op),
          none(numbers.none()),
          has_values(has_values) {
        writes_results = true, is_separable = false;
    }

    V load(const Row &tap, int64_t at) const {
        const V element = read<V>(tap.from + at * sizeof(E));
        if constexpr (std::is_same_v<E, S>)
            return op.template key<n>(element);
        else
            return element;
    }
    // Whether the challenger is better, or the first NaN.
    static auto wins(const V &challenger, const V &best) {
        if constexpr (std::is_same_v<E, S>)
            return challenger > best;
        else
            return ~(challenger <= best) & (best == best);
    }
    void combine_window(bool, Row *taps, int64_t count, int64_t lanes, char *made,
                        char *result) const override {
        S *const which = reinterpret_cast<S *>(made);
        if (count >= 16 && lanes % (4 * n) == 0)
            return combine_parts<1, 4>(taps, count, lanes, which, result);
        if (count >= 16)
            return combine_parts<2, 2>(taps, count, lanes, which, result);
        if (count > 0)
            return combine_parts<1, 2>(taps, count, lanes, which, result);
        std::fill_n(which, lanes, S(none));
        if (has_values)
            std::fill_n(reinterpret_cast<S *>(result), lanes, op.template turned<1>(op.lowest()));
    }
    // Vectors take turns, the last of which may begin inside those before: two, or of many taps
    // four, or two in two parts: 32/32 takes .7 of the time. Four read the table of taps less
    // often: 112/112 over 32 lanes takes .6 to .7 of two in two parts.
    template <int64_t parts, int64_t vectors>
    void combine_parts(const Row *taps, int64_t count, int64_t lanes, S *which,
                       char *result) const {
        constexpr int64_t chains = parts * vectors;
        const int64_t each = count / parts;
        for (int64_t begin = 0; begin < lanes; begin += vectors * n) {
            const int64_t first = std::min(begin, std::max(lanes - vectors * n, int64_t(0)));
            const auto at = [=](int64_t v) { return std::min(first + v % vectors * n, lanes - n); };
            V best[chains];
            N winning[chains];
            const auto challenge = [&](const V &challenger, const N &number, int64_t c) {
                const N is_better = wins(challenger, best[c]);
                winning[c] = is_better ? number : winning[c];
                best[c] = is_better ? challenger : best[c];
            };
#pragma GCC unroll 4
            for (int64_t c = 0; c < chains; ++c)
                best[c] = load(taps[c / vectors * each], at(c)),
                winning[c] = N{} + S(taps[c / vectors * each].number);
            for (int64_t t = 1; t < each; ++t)
#pragma GCC unroll 4
                for (int64_t c = 0; c < chains; ++c)
                    challenge(load(taps[c / vectors * each + t], at(c)),
                              N{} + S(taps[c / vectors * each + t].number), c);
#pragma GCC unroll 4
            for (int64_t v = 0; v < vectors; ++v) {
                if (parts * each < count)
                    challenge(load(taps[count - 1], at(v)), N{} + S(taps[count - 1].number),
                              chains - vectors + v);
                if constexpr (parts > 1)
                    challenge(best[vectors + v], winning[vectors + v], v);
                if constexpr (std::is_same_v<E, S>)
                    best[v] = op.template turned<n>(best[v]);
                if (has_values)
                    write(best[v], result + at(v) * sizeof(E));
                write(winning[v], which + at(v));
            }
        }
    }
};

// Writes the numbers of their winners.
template <class S>
struct WinningTaps final : Finish {
    const Numbers &numbers;

    explicit WinningTaps(const Numbers &numbers)
        : Finish(sizeof(S), false, false), numbers(numbers) {}
    void operator()(int64_t plane, int64_t od, int64_t oh, int64_t first, int64_t count,
                    const void *winning, void *) const override {
        numbers.write(plane, od, oh, first, count, static_cast<const S *>(winning));
    }
};

// Of lanes: what arrives at the windows that an element wins, added in their order. To each of them
// it is another tap.
template <class T>
struct LaneGradient final : WindowOperations {
    using L = Wide<T>;
    using Integer = IntegerOf<L>;
    const char *arriving;
    const uint8_t *winners;

    LaneGradient(const Problem &p, const void *arriving, const void *winners)
        : WindowOperations(sizeof(T), sizeof(L), {p.h().window * p.w().window, p.w().window, 1}),
          arriving(static_cast<const char *>(arriving)),
          winners(static_cast<const uint8_t *>(winners)) {
        is_separable = false;
        for (int a = 0; a < 3; ++a)
            steps[a] =
                -units[a] * (p.axes[a].stride / std::gcd(p.axes[a].stride, p.axes[a].dilation));
    }
    void combine_window(bool, Row *windows, int64_t count, int64_t lanes, char *made,
                        char *) const override {
        constexpr int64_t n = LANES<L>;
        for (int64_t begin = 0; begin < lanes; begin += n) {
            const int64_t at = std::min(begin, lanes - n);
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
    // Nanoseconds for an element of the gradient, from all windows that read it or from the winners
    // of all windows.
    double taps = 1, strides = 1;
    for (const Axis &axis : p.axes)
        taps *= double(axis.window), strides *= double(axis.stride);
    const double vectors = double(parts_of(p.lanes, LANES<L>)), lanes = double(p.lanes);
    if (bytes == 1 && taps <= 64 && p.lanes >= LANES<L> &&
        18 + 1.3 * vectors * taps / strides < lanes * (1.5 / strides + .4)) {
        const LaneGradient<T> op(p, arriving, numbers);
        return pool_windows(op, Narrowed<T>(), arriving, gradient, adjoint_of(Windows(p)));
    }
    const Taps places(p, p.lanes, 1);
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
                    const int64_t first = low[2] * p.lanes, end = high[2] * p.lanes;
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

// Max unpooling, and what gathers and scatters by indices: elements by their positions.

// Positions of 4 or 8 bytes in a plane of `size`, or -1.
struct Positions {
    const void *positions;
    int64_t bytes;
    int64_t size;

    Positions(const void *positions, int64_t bytes, int64_t size)
        : positions(positions), bytes(bytes), size(size) {
        if (bytes != 4 && bytes != 8)
            refuse("position has this many bytes:", bytes);
    }
    int64_t operator[](int64_t i) const {
        const int64_t position = bytes == 4 ? static_cast<const int32_t *>(positions)[i]
                                            : static_cast<const int64_t *>(positions)[i];
        return uint64_t(position) < uint64_t(size) ? position : -1;
    }
};

// Calls visit(plane, places) for each plane, and for parts of those with more elements than PLACES:
// what is counted for each place takes so much memory at most.
constexpr int64_t PLACES = 1 << 21;
template <class Visit>
void for_places(const Problem &p, Visit visit) {
    const int64_t parts = parts_of(p.plane(), PLACES);
    const double cost = 4. * double(p.output_plane() + std::min(PLACES, p.plane()));
    parallel(p.planes * parts, cost, [&](int64_t begin, int64_t end) {
        for (int64_t number = begin; number < end; ++number) {
            const int64_t first = number % parts * PLACES;
            visit(number / parts, Range{first, std::min(p.plane(), first + PLACES)});
        }
    });
}
// Calls act(i, place, position) for each of a plane's positions, with the element's place or -1.
template <class Act>
void for_positions(const Problem &p, const Positions &positions, int64_t plane, Act act) {
    const int64_t lanes = p.lanes, begin = plane * p.output_plane();
    for (int64_t i = begin; i < begin + p.output_plane(); i += lanes)
        for (int64_t lane = 0; lane < lanes; ++lane) {
            const int64_t position = positions[i + lane];
            act(i + lane, position < 0 ? -1 : position * lanes + lane, position);
            __asm__("");  // no vectors of what lies anywhere
        }
}

// Zeros with each element added at its position.
template <class T>
void scatter(const T *input, const Positions &positions, T *output, const Problem &p) {
    using L = Wide<T>;
    constexpr bool is_direct = std::is_same_v<T, L>;
    for_places(p, [&](int64_t plane, const Range &places) {
        const int64_t size = places.end - places.begin;
        std::vector<L> sums(is_direct ? 0 : size);
        T *const out = output + plane * p.plane() + places.begin;
        L *const to = is_direct ? reinterpret_cast<L *>(out) : sums.data();
        std::fill_n(to, size, L(0));
        for_positions(p, positions, plane, [=](int64_t i, int64_t at, int64_t) {
            if (uint64_t(at - places.begin) < uint64_t(size))
                to[at - places.begin] += widen(input[i]);
        });
        if constexpr (!is_direct)
            divide<T>(to, size, 1, nullptr, out);
    });
}

// The number of a data type, checked.
const DataType &type_of(const Problem &p) {
    if (p.type < 0 || p.type >= int64_t(std::size(TYPES)))
        refuse("data type", p.type);
    return TYPES[p.type];
}

}  // namespace

void max_pooling(const Problem &p, const void *input, void *output, void *winners) {
    const DataType &data_type = type_of(p);
    const int64_t outputs = p.planes * p.output_plane();
    if (output != nullptr)
        expect_all(output, outputs * data_type.bytes);
    if (winners != nullptr)
        expect_all(winners, outputs * p.bytes);
    const auto pool_values = [&](auto element) {
        using S = decltype(element);
        const Max<S> op(data_type);
        pool(Rows<Max<S>>(op), Values<S>(op), input, output, Windows(p));
    };
    if (winners != nullptr) {
        const Numbers numbers(p, winners);
        const auto pool_as = [&](auto element_of_lanes, auto element, auto wide) {
            using S = decltype(element);
            using P = decltype(wide);
            const Winner<S, P> op(data_type);
            void *const to = output != nullptr
                                 ? output
                                 : winners;  // an address, not used where there is no output
            if (suits_lanes(numbers, sizeof(S))) {
                const Lane<decltype(element_of_lanes), S, P> lanes(numbers, op, output != nullptr);
                return pool_windows(lanes, WinningTaps<S>(numbers), input, to, Windows(p));
            }
            pool(Rows<Winner<S, P>>(op, numbers.units),
                 Winners<S, P>(numbers, op, output != nullptr), input, to, Windows(p));
        };
        if (p.type == 0)
            pool_as(float(), int32_t(), int64_t());
        else if (data_type.bytes == 1)
            pool_as(int8_t(), int8_t(), int32_t());
        else if (data_type.bytes == 2)
            pool_as(int16_t(), int16_t(), int32_t());
        else if (data_type.bytes == 4)
            pool_as(int32_t(), int32_t(), int64_t());
        else
            pool_as(int64_t(), int64_t(), __int128());
    } else if (p.type == 0)
        pool_values(float());
    else if (p.type == 1)
        pool_values(double());
    else
        with_numbers(data_type.bytes, pool_values);
}

void max_pooling_indices(const Problem &p, const void *taps, void *indices) {
    constexpr int64_t BLOCK = 4096;
    const int tap_bytes = type_of(p).bytes;
    const int64_t plane_size = p.numbering == INDICES ? p.plane() / p.lanes : 0;
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
            const int64_t origin = digits[3] * p.lanes * plane_size;
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

void unique_positions(const Problem &p, const void *positions, void *unique) {
    const Positions all(positions, type_of(p).bytes, p.plane() / p.lanes);
    if (p.bytes != 4 && p.bytes != 8)
        refuse("position has this many bytes:", p.bytes);
    for_places(p, [&](int64_t plane, const Range &places) {
        const int64_t size = places.end - places.begin;
        std::vector<int64_t> last(size_t(size), -1);
        for_positions(p, all, plane, [&](int64_t i, int64_t at, int64_t) {
            if (uint64_t(at - places.begin) < uint64_t(size))
                last[size_t(at - places.begin)] = i;
        });
        for_positions(p, all, plane, [&](int64_t i, int64_t at, int64_t position) {
            // The first part writes what lies nowhere.
            if (at < 0 ? places.begin > 0 : !places.contains(at))
                return;
            position = at >= 0 && last[size_t(at - places.begin)] == i ? position : -1;
            if (p.bytes == 4)
                static_cast<int32_t *>(unique)[i] = int32_t(position);
            else
                static_cast<int64_t *>(unique)[i] = position;
        });
    });
}

void gather_positions(const Problem &p, const void *input, const void *positions, void *output) {
    const Positions all(positions, p.bytes, p.plane() / p.lanes);
    const double cost = 4. * double(p.output_plane() + p.plane());
    with_numbers(type_of(p).bytes, [&](auto element) {
        using T = decltype(element);
        T *const to = static_cast<T *>(output);
        parallel(p.planes, cost, [&](int64_t begin, int64_t end) {
            for (int64_t plane = begin; plane < end; ++plane) {
                const T *const from = static_cast<const T *>(input) + plane * p.plane();
                for_positions(p, all, plane, [=](int64_t i, int64_t at, int64_t) {
                    to[i] = at < 0 ? T(0) : from[at];
                });
            }
        });
    });
}

void scatter_positions(const Problem &p, const void *input, const void *positions, void *output) {
    const Positions all(positions, p.bytes, p.plane() / p.lanes);
    const auto run = [&](auto element) {
        using T = decltype(element);
        scatter(static_cast<const T *>(input), all, static_cast<T *>(output), p);
    };
    if (p.type == 0)
        run(float());
    else if (p.type == 1)
        run(double());
    else if (p.type == 2)
        run(Half());
    else if (p.type == 3)
        run(BFloat16());
    else
        with_numbers(type_of(p).bytes, run);  // one at a position: nothing is added
}

}  // namespace dmlpool
