// Data types, and vectors of them of the processor's width: loads, conversions, shuffles.
//
//     16 bytes of int8    | a b c d e f g h i j k l m n o p |
//     converted to int16  | a b c d e f g h | i j k l m n o p |     two vectors of 16 bytes
//
// With AVX2 a vector has 32 bytes, with AVX-512 64; `lane` is one element of a vector.
#pragma once

#include <tuple>

#include "operations.h"

// The loop's iterations do not depend on each other.
#if defined(__clang__)
#define VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTORIZE _Pragma("GCC ivdep")
#endif

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wpsabi"  // no vector leaves this library
#endif

#ifdef __clang__
#if __has_builtin(__builtin_elementwise_fma)
#define HAS_FUSED  // Clang 14 does not have it
#endif
#endif

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace dmlpool {
#if defined(__AVX512F__)
constexpr int64_t BYTES = 64;  // of a vector of the processor's width
#elif defined(__AVX2__)
constexpr int64_t BYTES = 32;
#else
constexpr int64_t BYTES = 16;
#endif

namespace {

// The lanes of a vector of the processor's width; 1 for integers of 16 bytes, which have no
// vectors.
template <class L>
constexpr int64_t LANES = sizeof(L) > 8 ? 1 : BYTES / int64_t(sizeof(L));
// Vector<E, n> is a vector of n lanes, and E itself for n = 1.
template <class E, int64_t n>
struct VectorOf {
    typedef E Type __attribute__((vector_size(n * sizeof(E))));
};
template <class E>
struct VectorOf<E, 1> {
    using Type = E;
};
template <class E, int64_t n>
using Vector = typename VectorOf<E, n>::Type;
// n values: one vector, or as many of the processor's width as they fill.
template <class L, int64_t n>
struct Vectors {
    static constexpr int64_t WIDTH = min(n, LANES<L>);
    static constexpr int64_t COUNT = n / WIDTH;
    Vector<L, WIDTH> part[COUNT];
};
// The signed integer as wide as L.
template <class L>
using IntegerOf =
    std::tuple_element_t<__builtin_ctz(sizeof(L)), std::tuple<int8_t, int16_t, int32_t, int64_t>>;
// A number that is known when the library is compiled, as an argument.
template <int64_t count>
using Count = std::integral_constant<int64_t, count>;

template <class V>
inline V read(const void *from) {
    V vector;
    memcpy(&vector, from, sizeof(V));
    return vector;
}
inline void write(const auto &vector, void *to) {
    const auto copy = vector;
    memcpy(to, &copy, sizeof(copy));
}
template <class To>
inline To bits_as(auto from) {
    static_assert(sizeof(To) == sizeof(from));
    return read<To>(&from);
}
// A vector whose lane i is lane at(i) of `first`, or lane at(i) - n of `second`.
template <class L, int64_t n, class At>
inline Vector<L, n> shuffled(const Vector<L, n> &first, const Vector<L, n> &second, At at) {
    return [&]<size_t... i>(std::index_sequence<i...>) {
#ifdef __clang__
        return __builtin_shufflevector(first, second, at(i)...);
#else
        return __builtin_shuffle(first, second, Vector<IntegerOf<L>, n>{IntegerOf<L>(at(i))...});
#endif
    }(std::make_index_sequence<n>());
}
// n elements, every second one from element `first` on, in the order that costs one instruction:
// AVX2 shuffles within 16 bytes. `in_order` then puts the lanes of a result in order.
template <class L, int64_t n>
constexpr int64_t SHUFFLED = BYTES == 32 ? 16 / sizeof(L) : n;
template <int64_t n, int64_t first, class L>
inline Vector<L, n> every_second(const L *from) {
    constexpr int64_t q = SHUFFLED<L, n>;
    const auto low = read<Vector<L, n>>(from);
    const auto high = read<Vector<L, n>>(from + n);
    return shuffled<L, n>(low, high, [](int64_t i) {
        return i / q * q + 2 * i % q + (i % q < q / 2 ? 0 : n) + first;
    });
}
template <class L, int64_t n>
inline Vector<L, n> in_order(const Vector<L, n> &lanes) {
    constexpr int64_t q = SHUFFLED<L, n> / 2;
    return shuffled<L, n>(lanes, lanes, [](int64_t i) {
        return i % (n / 2) / q * 2 * q + i % q + (i < n / 2 ? 0 : q);
    });
}
// A half of two vectors, in groups of `step` lanes: every other group of each from lane `first` on,
// which is 0 or `step`.
template <class L, int64_t n, int64_t step, int64_t first>
inline Vector<L, n> every_other_group(const Vector<L, n> &one, const Vector<L, n> &other) {
    return shuffled<L, n>(one, other,
                          [](int64_t i) { return first + (i & step ? n + i - step : i); });
}
// Combines the lanes of each of n vectors by Op::of: vector k into lane k of the result. A step
// folds two vectors into one, where a half of each becomes every other group of `step` lanes.
template <class Op, int64_t n, int64_t step = n / 2, class L = typename Op::Value>
__attribute__((always_inline)) inline Vector<L, n> folded_each(Vector<L, n> (&vectors)[n]) {
    if constexpr (step > 0) {
#pragma GCC unroll 16
        for (int64_t k = 0; k < step; ++k) {
            const auto one = vectors[k];
            const auto other = vectors[k + step];
            vectors[k] = Op::of(every_other_group<L, n, step, 0>(one, other),
                                every_other_group<L, n, step, step>(one, other));
        }
        folded_each<Op, n, step / 2>(vectors);
    }
    return vectors[0];
}
// Subtracts and wraps around, where signed overflow would be undefined.
template <class S, int64_t n>
inline Vector<S, n> difference(Vector<S, n> first, Vector<S, n> second) {
    using U = Vector<make_unsigned_t<S>, n>;
    return Vector<S, n>(U(first) - U(second));
}

// Data types.

struct Half {
    uint16_t bits;
};
struct BFloat16 {
    uint16_t bits;
};

// Converts an element to the type in which it is added: half precision to float, others to
// themselves. It computes with bits where the processor has no instruction for it.
template <class T>
inline T widen(T value) {
    return value;
}
inline float widen(BFloat16 value) {
    return bits_as<float>(uint32_t(value.bits) << 16);
}
inline float widen(Half value) {
#ifdef __F16C__
    return _cvtsh_ss(value.bits);
#else
    const int32_t bits = int32_t(uint32_t(int16_t(value.bits)) << 13 & 0x8fffe000);
    const float scaled = bits_as<float>(bits) * 0x1p112f;  // its exponent's bias is 15, not 127
    return (bits & 0x0f800000) == 0x0f800000 ? bits_as<float>(bits | 0x7f800000) : scaled;
#endif
}

// The numbers of some data types in TYPES.
enum : int64_t { FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT8, UINT8 = 8 };

// The type in which averages of elements of a float type are added.
inline int64_t sum_type(int64_t type) {
    return type == FLOAT64 ? FLOAT64 : FLOAT32;
}

// Calls act with a 0 of the float data type of this number. Errors say `what` has it.
auto with_floats(int64_t type, const char *what, const auto &act) {
    if (type == FLOAT32)
        return act(float());
    if (type == FLOAT64)
        return act(double());
    if (type == FLOAT16)
        return act(Half());
    if (type == BFLOAT16)
        return act(BFloat16());
    reject(what, type);
}

template <class T>
using Wide = decltype(widen(T()));

// Converts back, and rounds to nearest, ties to even.
template <class T>
inline T narrow(Wide<T> value) {
    if constexpr (is_same_v<T, BFloat16>) {
        const uint32_t bits = bits_as<uint32_t>(value);
        return {uint16_t(value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
    } else if constexpr (is_same_v<T, Half>) {
        const uint32_t bits = bits_as<uint32_t>(value);
        const uint32_t magnitude = bits & 0x7fffffff;
        const uint32_t normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
        const uint32_t tiny =
            bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000;  // rounds to 2^-24
        const uint32_t finite = magnitude < 0x38800000 ? tiny : normal;
        const uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
        return {uint16_t((magnitude >= 0x477ff000 ? large : finite) | (bits >> 16 & 0x8000))};
    } else
        return value;
}

// A data type. Its number is its index in TYPES, and its value in DATA_TYPES in
// backends/problems.py.
struct DataType {
    int bytes;
    int64_t infinity;  // its bits, 0 for integers
    bool is_unsigned;
    bool is_bool = false;
};
// float32, float64, float16, bfloat16, int8 to int64, uint8 to uint64, bool.
constexpr DataType TYPES[] = {
    {4, 0x7f800000, false}, {8, 0x7ff0000000000000, false},
    {2, 0x7c00, false},     {2, 0x7f80, false},
    {1, 0, false},          {2, 0, false},
    {4, 0, false},          {8, 0, false},
    {1, 0, true},           {2, 0, true},
    {4, 0, true},           {8, 0, true},
    {1, 0, true, true},
};

// The processor's own conversions. `Halves` is a vector of half the processor's width. `widened`
// converts it to a full vector of elements twice as wide, and `narrowed` converts it back. GCC's
// own conversions take several instructions each.
#if defined(__AVX512BW__)
#define WIDE(conversion) _mm512_##conversion
using Halves = __m256i;
using Integers = __m512i;
#elif defined(__F16C__)
#define WIDE(conversion) _mm256_##conversion
using Halves = __m128i;
using Integers = __m256i;
#endif

#ifdef WIDE
inline auto widened(Halves halves) {
    return WIDE(cvtph_ps)(halves);
}
inline Halves narrowed(decltype(widened(Halves())) values) {
    return WIDE(cvtps_ph)(values, _MM_FROUND_TO_NEAREST_INT);
}
template <class From>
inline Integers widened(Halves halves, From) {
    if constexpr (is_same_v<From, int8_t>)
        return WIDE(cvtepi8_epi16)(halves);
    else if constexpr (is_same_v<From, uint8_t>)
        return WIDE(cvtepu8_epi16)(halves);
    else if constexpr (is_same_v<From, int16_t>)
        return WIDE(cvtepi16_epi32)(halves);
    else
        return WIDE(cvtepi32_epi64)(halves);
}
// Converts the first lanes of bytes to a full vector of elements four times as wide.
template <class V, class From>
inline Integers widened_twice(const V &vector, From) {
    __m128i bytes;
    if constexpr (sizeof(V) == 8)
        bytes = _mm_cvtsi64_si128(bits_as<int64_t>(vector));
    else
        bytes = __m128i(vector);
    if constexpr (is_same_v<From, int8_t>)
        return WIDE(cvtepi8_epi32)(bytes);
    else
        return WIDE(cvtepu8_epi32)(bytes);
}
#endif

// Converts integers to wider ones, each step to twice the width: GCC converts lane by lane where
// one step makes them four times as wide.
template <class To, int64_t n, class From>
inline Vector<To, n> converted(const Vector<From, n> &from) {
    if constexpr (sizeof(To) == sizeof(From) || n == 1)
        return Vector<To, n>(from);
#ifdef WIDE
    else if constexpr (sizeof(To) == 4 && sizeof(From) == 1 && sizeof(To) * n == BYTES)
        return Vector<To, n>(widened_twice(from, From()));
#endif
    else if constexpr (sizeof(To) > 2 * sizeof(From)) {
        using Between = conditional_t<sizeof(From) == 1, int16_t, int32_t>;
        return converted<To, n, Between>(converted<Between, n, From>(from));
    }
#ifdef WIDE
    else if constexpr (sizeof(To) * n == BYTES)
        return Vector<To, n>(widened(Halves(from), From()));
#endif
    else
        return __builtin_convertvector(from, Vector<To, n>);
}

// Reads n elements and converts them to type L.
template <class L, int64_t n, class T>
inline Vector<L, n> load(const T *from) {
    if constexpr (n == 1)
        return L(widen(read<T>(from)));
    else if constexpr (is_same_v<T, L>)
        return read<Vector<L, n>>(from);
    else if constexpr (is_same_v<T, BFloat16>)
        return Vector<L, n>(converted<int32_t, n, int16_t>(read<Vector<int16_t, n>>(from)) << 16);
    else if constexpr (is_same_v<T, Half>) {
#ifdef WIDE
        if constexpr (n == LANES<L>)
            return Vector<L, n>(widened(read<Halves>(from)));
#endif
#ifdef __F16C__
        if constexpr (n == 8)
            return Vector<L, n>(_mm256_cvtph_ps(read<__m128i>(from)));
#endif
        Vector<L, n> values = {};
        for (int64_t i = 0; i < n; ++i)
            values[i] = widen(read<T>(from + i));
        return values;
    } else
        return converted<L, n, T>(read<Vector<T, n>>(from));
}

// Converts n values back, and writes them.
template <class T, int64_t n>
inline void store(const Vector<Wide<T>, n> &values, T *to) {
    if constexpr (is_same_v<T, Wide<T>>)
        write(values, to);
#ifdef WIDE
    else if constexpr (is_same_v<T, Half> && n == LANES<float>)
        write(narrowed(values), to);
#endif
    else {
        Wide<T> from[n];
        write(values, from);
        VECTORIZE
        for (int64_t i = 0; i < n; ++i)
            to[i] = narrow<T>(from[i]);
    }
}

// first * second + third, rounded once, for float32 and vectors of it.
inline float fused(float first, float second, float third) {
    return __builtin_fmaf(first, second, third);
}
template <class V>
inline V fused(V first, V second, V third) {
#ifdef HAS_FUSED
    return __builtin_elementwise_fma(first, second, third);
#else
    V produced;
    for (size_t i = 0; i < sizeof(V) / sizeof(float); ++i)
        produced[i] = fused(first[i], second[i], third[i]);
    return produced;
#endif
}

template <class T>
inline const T *elements(const Row &row) {
    return as<T>(row.from);
}

// The data type of a problem's first tensor. Throws if there is no type of that number.
inline const DataType &type_of(const Problem &p) {
    if (p.type < 0 || p.type >= int64_t(std::size(TYPES)))
        reject("data type", p.type);
    return TYPES[p.type];
}

}  // namespace
}  // namespace dmlpool
