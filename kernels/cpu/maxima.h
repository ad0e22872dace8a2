// Maxima, and winners: maxima that say which tap they are.
//
//     a winner   | key of the element | number of the tap, counted down |
//
// The greater integer wins: of equal elements the first one.
#pragma once

#include "reductions.h"

namespace dmlpool {
namespace {

// Data types other than float32 and float64 are compared by keys: signed integers of the same size
// in the order of the numbers. Fields that are set at run time say how an element becomes a key, so
// that half precision, signed and unsigned integers share one kernel.

template <class S>
constexpr S LOWEST = numeric_limits<S>::min();
template <class S>
constexpr S HIGHEST = numeric_limits<S>::max();

// Elements S, of which unsigned bytes become at most `highest`: 1 for bools, whose bytes but 0 are
// all True.
template <class S, class V>
V limited(const V &elements, uint8_t highest) {
    using Bytes = Vector<uint8_t, sizeof(V)>;
    const Bytes most = Bytes{} + highest;
    return sizeof(S) > 1 ? elements : V(Bytes(elements) > most ? most : Bytes(elements));
}

// The Op of maxima without winners (see reductions.h). Float32 and float64 are compared as they
// are, others by keys. The keys of NaNs are the greatest. With `are_minima` keys have the opposite
// order, but those of NaNs.
template <class S>
struct Max : Combination<S, S> {
    static constexpr bool has_keys = !is_floating_point_v<S>;
    S inverted_bits = 0;  // the bits that are inverted in negative floats: all but the sign
    // Subtracted from the bits of a float with wraparound. It moves NaNs of both signs above
    // infinity.
    S offset = 0;
    // The bits that are inverted in all elements: the highest of unsigned integers, and for minima
    // the sign of floats and all bits of integers.
    S opposite = 0;
    S zero = 0;  // of minima, which becomes positive
    uint8_t highest = 255;

    explicit Max(const Problem &p) {
        const DataType &type = type_of(p);
        highest = type.is_bool ? 1 : 255;
        if constexpr (!is_floating_point_v<S>) {
            const S sign = LOWEST<S>;
            if (type.infinity) {
                inverted_bits = HIGHEST<S>;
                offset = S(HIGHEST<S> - type.infinity);
                opposite = zero = p.are_minima ? sign : 0;
            } else
                opposite = (type.is_unsigned ? sign : 0) ^ (p.are_minima ? -1 : 0);
        }
    }
    bool is_plain() const { return inverted_bits == 0 && opposite == 0; }
    static constexpr S identity() {
        return is_floating_point_v<S> ? -numeric_limits<S>::infinity()
                                      : numeric_limits<S>::lowest();
    }
    template <class V>
    static V of(V first, V second) {
        V larger = second > first ? second : first;  // the first where either is NaN
        if constexpr (is_same_v<V, S> && is_floating_point_v<S>) {
            using Bits = IntegerOf<S>;
            larger = bits_as<S>(
                Bits(bits_as<Bits>(larger) | -Bits(second != second)));  // all bits set: a NaN
        } else if constexpr (is_floating_point_v<S>) {
            const auto is_nan = second != second;
            larger = V(decltype(is_nan)(larger) | is_nan);
        }
        return larger;
    }
    template <int64_t n>
    Vectors<S, n> load(const S *from, int64_t) const {
        const auto element = read<Vector<S, n>>(from);
        if constexpr (is_floating_point_v<S>)
            return {{element}};
        else if constexpr (sizeof(S) == 1)  // no float
            return {{Vector<S, n>(element ^ opposite)}};
        else
            return {{difference<S, n>(flipped(element ^ opposite), Vector<S, n>{} + offset)}};
    }
    // The element of a key.
    S store(S value) const {
        if constexpr (is_floating_point_v<S>)
            return value;
        else if constexpr (sizeof(S) == 1)
            return limited<S>(S(value ^ opposite), highest);
        else {
            const S element =
                flipped(difference<S, 1>(value, difference<S, 1>(0, offset))) ^ opposite;
            return element == zero ? S(0) : element;
        }
    }
    // Inverts the bits of negative floats, whose order is reversed.
    template <class V>
    V flipped(V value) const {
        return V(value ^ (value >> (8 * sizeof(S) - 1) & inverted_bits));
    }
};

// Writes maxima as elements of the output.
template <class S>
struct Values final : Finish {
    const Max<S> op;

    explicit Values(const Max<S> &op) : Finish(sizeof(S), true, op.is_plain()), op(op) {}
    void operator()(int64_t, int64_t, int64_t, int64_t, int64_t count, const void *values,
                    void *to) const override {
        const Max<S> by = op;
        const S *from = as<S>(values);
        S *out = as<S>(to);  // may be where the values are
        VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            out[i] = by.store(from[i]);
    }
};

// The Op of maxima with winners (see reductions.h). A value is one integer P, which is wider than
// the element. Its upper bits are the element's key, a signed integer S. Its lower bits are the
// number of the tap, counted down from FIRST, so that the first of equal elements wins. Zeros of
// both signs are equal, and so are all NaNs.
template <class S, class P>
struct Winner : Combination<P, S> {
    static constexpr bool has_numbers = true;
    static constexpr bool has_keys = true;
    static constexpr int64_t lanes = sizeof(P) > 8 ? 1 : LANES<S>;
    static constexpr int64_t rows_at_once = sizeof(S) == 4 ? 7 : 4;
    static constexpr int SHIFT = 8 * (sizeof(P) - sizeof(S));
    // The lower bits of tap 0. FIRST ^ number is FIRST - number, as FIRST has all its bits set, and
    // cannot overflow.
    static constexpr P FIRST = (P(1) << SHIFT) - 1;
    // The highest of the lower bits tells a tap from the identity, where it is not set. It is set
    // for every tap, as numbers are less than IS_TAP.
    static constexpr P IS_TAP = P(1) << (SHIFT - 1);
    S negative = LOWEST<S>;   // elements below it are negative floats, with key LOWEST - element
    S infinity = HIGHEST<S>;  // elements whose bits without the sign are greater are NaNs
    S flip = 0;  // the sign bit for unsigned integers, so that signed comparisons order them
    S lowest = LOWEST<S>;     // the key of the lowest element of the type
    S of_lowest = LOWEST<S>;  // the element whose key is LOWEST ^ flip: a NaN of floats
    uint8_t highest = 255;

    explicit Winner(const Problem &p) {
        const DataType &type = type_of(p);
        if (type.infinity) {
            negative = 0;
            infinity = S(type.infinity);
            lowest = S(p.are_minima ? ~infinity : -infinity);
            of_lowest = HIGHEST<S>;
        } else if (type.is_bool) {  // the key of 0 is -1, and that of every other byte the highest
            highest = 1;
            infinity = 0;
            flip = -1;
            lowest = -1;
        } else if (type.is_unsigned) {
            flip = LOWEST<S>;
        }
        if (p.are_minima)  // keys have the opposite order
            flip ^= -1;
    }
    static constexpr P identity() { return P(LOWEST<S>) * (P(1) << SHIFT) + IS_TAP - 1; }
    static bool is_plain() { return false; }
    static auto of(auto first, auto second) { return second > first ? second : first; }
    static auto renumbered(auto values, int64_t number) { return values - P(number); }
    // The keys of elements. All NaNs have the greatest key.
    template <int64_t n>
    __attribute__((always_inline)) Vector<S, n> key(Vector<S, n> element) const {
        const Vector<S, n> highest = Vector<S, n>{} + HIGHEST<S>;
        return (element & highest) > infinity ? highest : reordered<n>(element) ^ flip;
    }
    // The elements of keys.
    template <int64_t n>
    Vector<S, n> element(Vector<S, n> key) const {
        const Vector<S, n> turned = key ^ flip;
        const Vector<S, n> special = Vector<S, n>{} + of_lowest;
        return limited<S>(turned == LOWEST<S> ? special : reordered<n>(turned), highest);
    }
    // Reverses the order of negative floats.
    template <int64_t n>
    Vector<S, n> reordered(Vector<S, n> element) const {
        return element < negative ? difference<S, n>(Vector<S, n>{} + LOWEST<S>, element) : element;
    }
    template <int64_t n>
    __attribute__((always_inline)) Vectors<P, n> load(const S *from, int64_t number) const {
        using B = Vectors<P, n>;
        const Vector<S, n> keys = key<n>(read<Vector<S, n>>(from));
        B result;
        Vector<S, B::WIDTH> parts[B::COUNT];
        memcpy(parts, &keys, sizeof(keys));
#pragma GCC unroll 8
        for (int64_t k = 0; k < B::COUNT; ++k)
            result.part[k] =
                converted<P, B::WIDTH, S>(parts[k]) * P(P(1) << SHIFT) | P(FIRST ^ P(number));
        return result;
    }
    // The element of a winner. It is the lowest one for a window that reads no element.
    S value(P winner) const { return element<1>(max(S(winner >> SHIFT), lowest)); }
    // The number of a winner's tap, or -1 for a window that reads no element.
    static auto number(P winner) {
        using Number = conditional_t<(sizeof(P) > 8), int64_t, P>;
        return winner & IS_TAP ? Number(FIRST - (winner & FIRST)) : Number(-1);
    }
};

}  // namespace
}  // namespace dmlpool
