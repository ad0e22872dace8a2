// Data types, vectors of them, and operations on rows of elements: what the drivers in pooling.cpp
// call.
#pragma once

#include <limits>
#include <type_traits>
#include <utility>

#include "pooling.h"

#if defined(__AVX512BW__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace dmlpool {
namespace {

// Vectors of the processor's width, and of n elements: one element is itself.
template <class L>
constexpr int64_t LANES = sizeof(L) > 8 ? 1 : BYTES / int64_t(sizeof(L));
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
// As wide as L.
template <class L>
using IntegerOf =
    std::conditional_t<sizeof(L) == 1, int8_t,
                       std::conditional_t<sizeof(L) == 2, int16_t,
                                          std::conditional_t<sizeof(L) == 4, int32_t, int64_t>>>;
template <int64_t count>
using Count = std::integral_constant<int64_t, count>;

template <class V>
inline V read(const void *from) {
    V vector;
    std::memcpy(&vector, from, sizeof(V));
    return vector;
}
template <class V>
inline void write(const V &vector, void *to) {
    const V copy = vector;
    std::memcpy(to, &copy, sizeof(V));
}
template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    return read<To>(&from);
}
// The lanes that `at` names of two vectors, those of the second after those of the first.
template <class L, int64_t n, class At, size_t... i>
inline Vector<L, n> shuffled(const Vector<L, n> &first, const Vector<L, n> &second, At at,
                             std::index_sequence<i...>) {
#ifdef __clang__
    return __builtin_shufflevector(first, second, at(i)...);
#else
    return __builtin_shuffle(first, second, Vector<IntegerOf<L>, n>{IntegerOf<L>(at(i))...});
#endif
}
// Without overflow.
template <class S, int64_t n>
inline Vector<S, n> difference(Vector<S, n> first, Vector<S, n> second) {
    using U = Vector<std::make_unsigned_t<S>, n>;
    return Vector<S, n>(U(first) - U(second));
}

// Data types.

struct Half {
    uint16_t bits;
};
struct BFloat16 {
    uint16_t bits;
};

// Elements as numbers to add and compare. Arithmetic on the bits, as compilers make no vectors of
// casts of _Float16.
template <class T>
inline T widen(T value) {
    return value;
}
inline float widen(BFloat16 value) {
    return bits_as<float>(uint32_t(value.bits) << 16);
}
inline float widen(Half value) {
    const int32_t bits = int32_t(uint32_t(int16_t(value.bits)) << 13 & 0x8fffe000);
    const float scaled = bits_as<float>(bits) * 0x1p112f;
    return (bits & 0x0f800000) == 0x0f800000 ? bits_as<float>(bits | 0x7f800000) : scaled;
}

template <class T>
using Wide = decltype(widen(T()));

// Rounds to nearest, ties to even.
template <class T>
inline T narrow(Wide<T> value) {
    if constexpr (std::is_same_v<T, BFloat16>) {
        const uint32_t bits = bits_as<uint32_t>(value);
        return {uint16_t(value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
    } else if constexpr (std::is_same_v<T, Half>) {
        const uint32_t bits = bits_as<uint32_t>(value), magnitude = bits & 0x7fffffff;
        const uint32_t normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
        const uint32_t tiny =
            bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000;  // rounds to 2^-24
        const uint32_t finite = magnitude < 0x38800000 ? tiny : normal;
        const uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
        return {uint16_t((magnitude >= 0x477ff000 ? large : finite) | (bits >> 16 & 0x8000))};
    } else
        return value;
}

// By their numbers, those of DATA_TYPES in backends/cpu.py.
struct DataType {
    int bytes;
    int64_t infinity;  // its bits, 0 for integers
    bool is_unsigned;
};
constexpr DataType TYPES[] = {
    {4, 0x7f800000, false}, {8, 0x7ff0000000000000, false},
    {2, 0x7c00, false},     {2, 0x7f80, false},
    {1, 0, false},          {2, 0, false},
    {4, 0, false},          {8, 0, false},
    {1, 0, true},           {2, 0, true},
    {4, 0, true},           {8, 0, true},
};

// The processor's own conversions of halves of a vector to whole ones.
#if defined(__AVX512BW__)
#define HAS_HALVES
using Halves = __m256i;
inline __m512 widened(Halves halves) {
    return _mm512_maskz_cvtph_ps(0xffff, halves);
}
inline Halves narrowed(__m512 values) {
    return _mm512_maskz_cvtps_ph(0xffff, values, _MM_FROUND_TO_NEAREST_INT);
}
inline __m512i widened(Halves halves, int8_t) {
    return _mm512_cvtepi8_epi16(halves);
}
inline __m512i widened(Halves halves, uint8_t) {
    return _mm512_cvtepu8_epi16(halves);
}
inline __m512i widened(Halves halves, int16_t) {
    return _mm512_cvtepi16_epi32(halves);
}
inline __m512i widened(Halves halves, int32_t) {
    return _mm512_cvtepi32_epi64(halves);
}
#elif defined(__AVX2__) && defined(__F16C__)
#define HAS_HALVES
using Halves = __m128i;
inline __m256 widened(Halves halves) {
    return _mm256_cvtph_ps(halves);
}
inline Halves narrowed(__m256 values) {
    return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
}
inline __m256i widened(Halves halves, int8_t) {
    return _mm256_cvtepi8_epi16(halves);
}
inline __m256i widened(Halves halves, uint8_t) {
    return _mm256_cvtepu8_epi16(halves);
}
inline __m256i widened(Halves halves, int16_t) {
    return _mm256_cvtepi16_epi32(halves);
}
inline __m256i widened(Halves halves, int32_t) {
    return _mm256_cvtepi32_epi64(halves);
}
#endif

// Step by step: GCC takes lanes apart where they become four times as wide.
template <class To, int64_t n, class From>
inline Vector<To, n> converted(const Vector<From, n> &from) {
    if constexpr (sizeof(To) == sizeof(From) || n == 1)
        return Vector<To, n>(from);
    else if constexpr (sizeof(To) > 2 * sizeof(From)) {
        using Between = std::conditional_t<sizeof(From) == 1, int16_t, int32_t>;
        return converted<To, n, Between>(converted<Between, n, From>(from));
    }
#ifdef HAS_HALVES
    else if constexpr (sizeof(To) * n == BYTES)
        return Vector<To, n>(widened(Halves(from), From()));
#endif
    else
        return __builtin_convertvector(from, Vector<To, n>);
}

// n elements as numbers of type L.
template <class L, int64_t n, class T>
inline Vector<L, n> load(const T *from) {
    if constexpr (n == 1)
        return L(widen(*from));
    else if constexpr (std::is_same_v<T, L>)
        return read<Vector<L, n>>(from);
    else if constexpr (std::is_same_v<T, BFloat16>)
        return Vector<L, n>(
            __builtin_convertvector(read<Vector<uint16_t, n>>(from), Vector<uint32_t, n>) << 16);
    else if constexpr (std::is_same_v<T, Half>) {
#ifdef HAS_HALVES
        if constexpr (n == LANES<L>)
            return Vector<L, n>(widened(read<Halves>(from)));
#endif
        Vector<L, n> values = {};
        for (int64_t i = 0; i < n; ++i)
            values[i] = widen(from[i]);
        return values;
    } else
        return converted<L, n, T>(read<Vector<T, n>>(from));
}

template <class T>
inline const T *elements(const Row &row) {
    return reinterpret_cast<const T *>(row.from);
}

// n values, in as many vectors as they take.
template <class L, int64_t n>
struct Block {
    static constexpr int64_t WIDTH = std::min(n, LANES<L>), COUNT = n / WIDTH;
    Vector<L, WIDTH> part[COUNT];
};

// Operations on rows, made from an Op:
//     Value, Element, lanes, few, takes_twice, has_numbers, has_keys, is_plain(), identity(),
//     of(first, second), later(values, number), load<n>(elements, number); with numbers
//     winner(elements, count), first_winners<n, count>(rows, i)
template <class Op>
struct Rows final : RowOperations {
    using L = typename Op::Value;
    using T = typename Op::Element;
    static constexpr bool are_plain = std::is_same_v<T, L> && !Op::has_keys;  // elements are values
    template <bool are_values>
    static constexpr int64_t SIZE = are_values ? sizeof(L) : sizeof(T);
    template <bool are_values>
    static constexpr int64_t MOST =
        are_values && Op::has_keys ? 4 : Op::few;  // rows at once: wider windows of values double
    const Op op;

    explicit Rows(const Op &op, const int64_t (&units)[3] = {0, 0, 0})
        : RowOperations(sizeof(T), sizeof(L), units, op.is_plain(), Op::takes_twice), op(op) {}

    void fill(void *values, int64_t count, int64_t pitch, int64_t places) const override {
        for (int64_t k = 0; k < places; ++k)
            std::fill_n(static_cast<L *>(values) + k * pitch, count, Op::identity());
    }
    void add(const Row &values, int64_t length, void *into) const override {
        combine_few<true, 1, true>(&values, 0, length, static_cast<L *>(into));
    }
    void combine(bool are_values, Row *rows, int64_t count, int64_t length, void *to,
                 const Times &times) const override {
        L *out = static_cast<L *>(to);
        for (int64_t t = 0; t < times.count; ++t, out += times.pitch) {
            times.advance(t, rows, count);
            if (are_values || are_plain)
                combine_rows<true>(rows, count, 0, length, out);
            else
                combine_rows<are_plain>(rows, count, 0, length, out);
        }
    }
    void combine_short(const char *values, int64_t window, int64_t stride, int64_t outputs,
                       void *to) const override {
        const L *__restrict row = reinterpret_cast<const L *>(values);
        L *__restrict out = static_cast<L *>(to);
        const auto run = [=](auto taps, auto step) {
            constexpr int64_t k = decltype(taps)::value, every = decltype(step)::value;
            VECTORIZE
            for (int64_t i = 0; i < outputs; ++i) {
                L result = Op::of(row[every * i], Op::later(row[every * i + 1], 1));
                if constexpr (k == 3)
                    result = Op::of(result, Op::later(row[every * i + 2], 2));
                if constexpr (k == 4)
                    result = Op::of(result, Op::of(Op::later(row[every * i + 2], 2),
                                                   Op::later(row[every * i + 3], 3)));
                out[i] = result;
            }
        };
        if (window == 2)
            run(Count<2>(), Count<2>());
        else if (window == 4)
            run(Count<4>(), Count<4>());
        else if (stride == 2)
            run(Count<3>(), Count<2>());
        else
            run(Count<3>(), Count<3>());
    }
    void reduce_windows(bool are_values, const Row &row, int64_t origin, const Run *windows,
                        int64_t outputs, int64_t step, void *made, const char *end) const override {
        (this->*(are_values ? &Rows::reduce<true> : &Rows::reduce<are_plain>))(
            row, origin, windows, outputs, step, static_cast<L *>(made), end);
    }

  private:
    // Vector by vector: GCC keeps copies of whole blocks in memory.
    template <class B>
    static B block_at(const L *from) {
        B block;
#pragma GCC unroll 8
        for (int64_t k = 0; k < B::COUNT; ++k)
            block.part[k] = read<Vector<L, B::WIDTH>>(from + k * B::WIDTH);
        return block;
    }
    template <class B>
    static void store(const B &block, L *to) {
#pragma GCC unroll 8
        for (int64_t k = 0; k < B::COUNT; ++k)
            write(block.part[k], to + k * B::WIDTH);
    }
    template <class B>
    static B combined(B first, const B &second) {
#pragma GCC unroll 8
        for (int64_t k = 0; k < B::COUNT; ++k)
            first.part[k] = Op::of(first.part[k], second.part[k]);
        return first;
    }

    // What rows [from, to) have from i on, combined as a tree: the error of a sum grows with the
    // logarithm of its terms.
    template <bool are_values, int64_t n, int64_t from, int64_t to>
    static Block<L, n> tree(const Op &op, const Row *rows, int64_t i) {
        constexpr int64_t middle = (from + to + 1) / 2;
        const char *const at = rows[from].from + i * SIZE<are_values>;
        if constexpr (to - from > 1)
            return combined(tree<are_values, n, from, middle>(op, rows, i),
                            tree<are_values, n, middle, to>(op, rows, i));
        else if constexpr (!are_values)
            return op.template load<n>(reinterpret_cast<const T *>(at), rows[from].number);
        else {
            auto values = block_at<Block<L, n>>(reinterpret_cast<const L *>(at));
#pragma GCC unroll 8
            for (auto &part : values.part)
                part = Op::later(part, rows[from].number);
            return values;
        }
    }

    // out = so many rows combined, from `begin` on, which come after what is there where that is
    // added to. In blocks of n, the last of which may begin inside the one before.
    template <bool are_values, int64_t count, bool adds = false,
              int64_t n = are_values ? LANES<L> : Op::lanes>
    void combine_few(const Row *given, int64_t begin, int64_t length, L *out) const {
        using B = Block<L, n>;
        constexpr int64_t fewer = n > 16 / SIZE<are_values> ? 16 / SIZE<are_values> : 1;
        if constexpr (n > 1)
            if (length < n)
                return combine_few<are_values, count, adds, fewer>(given, begin, length, out);
        const Op by = op;
        Row rows[count];
#pragma GCC unroll 9
        for (int64_t k = 0; k < count; ++k)
            rows[k] = {given[k].from + begin * SIZE<are_values>,
                       Op::has_numbers ? given[k].number : 0};
        const auto block =
            [&](int64_t i) __attribute__((
                always_inline)) {  // GCC makes a function of it, as two places call it
                B made;
                if constexpr (Op::has_numbers && sizeof(T) == 4 && !are_values && n > 1)
                    made = by.template first_winners<n, count>(rows, i);
                else
                    made = tree<are_values, n, 0, count>(by, rows, i);
                return adds ? combined(block_at<B>(out + i), made) : made;
            };
        const int64_t whole = length / n * n;
        B last;
        if (adds && whole < length)
            last = block(length - n);
        for (int64_t i = 0; i < whole; i += n) {
            store(block(i), out + i);
            if constexpr (n == 1)
                __asm__("");  // no vectors of these few
        }
        if (whole < length)
            store(adds ? last : block(length - n), out + length - n);
    }
    template <bool are_values, int64_t few = 1>
    __attribute__((always_inline)) void combine_rows(const Row *rows, int64_t count, int64_t begin,
                                                     int64_t length, L *out) const {
        if constexpr (few > MOST<are_values>)
            combine_many<are_values>(rows, count, begin, length, out);
        else if (count == few)
            combine_few<are_values, few>(rows, begin, length, out);
        else
            combine_rows<are_values, few + 1>(rows, count, begin, length, out);
    }
    // Sums are trees again, of parts of rows.
    template <bool are_values>
    __attribute__((noinline)) void combine_many(const Row *rows, int64_t count, int64_t begin,
                                                int64_t length, L *out) const {
        constexpr int64_t PART = 8192 / sizeof(L);
        L rest[PART];
        constexpr int64_t SEVERAL = MOST<are_values> < 8 ? 4 : 8;
        int64_t half = SEVERAL;
        if (count == 0)
            std::fill_n(out, length, Op::identity());
        else if (Op::takes_twice) {
            combine_few<are_values, SEVERAL>(rows, begin, length, out);
            for (int64_t k = SEVERAL; k < count; k += SEVERAL)
                combine_few<are_values, SEVERAL, true>(rows + std::min(k, count - SEVERAL), begin,
                                                       length, out);
        } else {
            while (2 * half < count)
                half *= 2;
            for (int64_t at = 0; at < length; at += PART) {
                const int64_t n = std::min(PART, length - at);
                for (int64_t from : {int64_t(0), half})
                    combine_rows<are_values>(rows + from, from ? count - half : half, begin + at, n,
                                             from ? rest : out + at);
                add({reinterpret_cast<const char *>(rest), 0}, n, out + at);
            }
        }
    }

    // A vector's lanes combined.
    template <class V>
    static L folded(const V &vector) {
        if constexpr (sizeof(V) == sizeof(L))
            return L(vector);
        else {
            Vector<L, sizeof(V) / sizeof(L) / 2> halves[2];
            std::memcpy(halves, &vector, sizeof(vector));
            return folded(Op::of(halves[0], halves[1]));
        }
    }
    // Of n vectors, which vector_at(k) makes, each in its lane of the result. In every step vectors
    // hold parts of twice as many of them, the first half and the second half of each: of 16 bytes
    // at first, and then inside these.
    template <int64_t n, int64_t many, class VectorAt>
    __attribute__((always_inline)) static Vector<L, n> folded_each(int64_t first,
                                                                   const VectorAt &vector_at) {
        if constexpr (many == 1)
            return vector_at(first);
        else {
            constexpr int64_t in_16 = std::min<int64_t>(n, 16 / sizeof(L)), blocks = n / in_16;
            constexpr int64_t group = many > blocks ? in_16 : n, half = n / many;
            const auto one = folded_each<n, many / 2>(first, vector_at);
            const auto other = folded_each<n, many / 2>(
                first + (many > blocks ? many / blocks / 2 : many / 2 * in_16), vector_at);
            const auto part = [&](auto which) {
                const auto lane = [](int64_t i) {
                    const int64_t in_group = i % group, in_one = in_group % (group / 2);
                    return (in_group == in_one ? 0 : n) + i - in_group + in_one +
                           (in_one / half + decltype(which)::value) * half;
                };
                return shuffled<L, n>(one, other, lane, std::make_index_sequence<n>());
            };
            return Op::of(part(Count<0>()), part(Count<1>()));
        }
    }
    // Windows of so many contiguous ones, each `step` after the one before: n of them are vectors,
    // folded together. Nothing is read from `end` on. The last n may begin inside those before.
    template <bool are_values, int64_t n>
    __attribute__((noinline)) void reduce_each(const char *from, int64_t count, int64_t step,
                                               int64_t outputs, L *out, const char *end) const {
        using V = Vector<L, n>;
        const V identity = V{} + Op::identity();
        Vector<IntegerOf<L>, n> lane;
        for (int64_t i = 0; i < n; ++i)
            lane[i] = IntegerOf<L>(i);
        const auto is_inside = lane < IntegerOf<L>(std::min(count, n)),
                   is_last = lane >= IntegerOf<L>((n - count % n) % n);
        const Op by = op;
        const int64_t pitch = step * SIZE<are_values>;
        const auto vector = [&](const char *begin, int64_t at) {
            V made;
            if constexpr (are_values)
                made = read<V>(begin + at * SIZE<true>);
            else
                made = by.template load<n>(reinterpret_cast<const T *>(begin) + at, 0).part[0];
            if constexpr (Op::has_numbers)
                made -= lane + IntegerOf<L>(at);
            return made;
        };
        for (int64_t done = 0; done < outputs; done += n) {
            const int64_t o = std::max<int64_t>(0, std::min(done, outputs - n));
            const char *const first = from + o * pitch;
            V results;
            const bool is_short = count <= 2 * n && outputs >= n &&
                                  first + (n - 1) * pitch + n * SIZE<are_values> <= end;
            if (is_short && count <= n)
                results = folded_each<n, n>(0, [&](int64_t k) {
                    const V made = vector(first + k * pitch, 0);
                    return is_inside ? made : identity;
                });
            else if (is_short)
                results = folded_each<n, n>(0, [&](int64_t k) {
                    const V rest = vector(first + k * pitch, count - n);
                    return Op::of(vector(first + k * pitch, 0),
                                  Op::takes_twice ? rest : V(is_last ? rest : identity));
                });
            else {
                V vectors[n];
                for (int64_t k = 0; k < n; ++k) {
                    const char *begin = first + std::min(k, outputs - 1) * pitch;
                    char copy[n * SIZE<are_values>];
                    if (begin + std::max(count, n) * SIZE<are_values> > end)
                        begin =
                            static_cast<char *>(std::memcpy(copy, begin, count * SIZE<are_values>));
                    V made = vector(begin, 0);
                    made = is_inside ? made : identity;
                    for (int64_t at = n; at < count; at += n) {
                        const V next = vector(begin, std::min(at, count - n));
                        made = Op::of(made, at + n <= count ? next : V(is_last ? next : identity));
                    }
                    vectors[k] = made;
                }
                results = folded_each<n, n>(0, [&](int64_t k) { return vectors[k]; });
            }
            if (outputs >= n)
                write(results, out + o);
            else
                std::memcpy(out, &results, outputs * sizeof(L));
        }
    }
    // Elements or values that lie a step apart, whose numbers do too: eight at most, and any
    // number.
    template <bool are_values>
    L combined_eight(const Row &row, int64_t count, int64_t step, int64_t unit) const {
        const auto value = [&](int64_t t) {
            const Row tap = {row.from + t * step * SIZE<are_values>, row.number + t * unit};
            return tree<are_values, 1, 0, 1>(op, &tap, 0).part[0];
        };
        L even = count & 1 ? value(count - 1) : Op::identity(), odd = Op::identity();
        for (int64_t t = 0; t + 1 < count; t += 2)
            even = Op::of(even, value(t)), odd = Op::of(odd, value(t + 1));
        return Op::of(even, odd);
    }
    template <bool are_values>
    L combined_apart(const Row &row, int64_t count, int64_t step, int64_t unit) const {
        if (count <= 8)
            return combined_eight<are_values>(row, count, step, unit);
        const int64_t half = count / 2;
        const Row rest = {row.from + half * step * SIZE<are_values>, row.number + half * unit};
        return Op::of(combined_apart<are_values>(row, half, step, unit),
                      combined_apart<are_values>(rest, count - half, step, unit));
    }
    // Contiguous ones: a tree of vectors, of which those of 1, 2, 4, ... eights that wait for as
    // many more are kept.
    template <bool are_values, int64_t n = LANES<L>>
    __attribute__((always_inline)) L combined_run(const char *from, int64_t count) const {
        using V = Vector<L, n>;
        using Integer = IntegerOf<L>;
        constexpr int64_t fewer = 16 / sizeof(L);
        if constexpr (n > fewer)
            if (count < n)
                return combined_run<are_values, fewer>(from, count);
        if (count < n)
            return combined_apart<are_values>({from, 0}, count, 1, 1);
        int64_t at = 0, eights = 0;
        const auto take = [&](auto vectors) {
            constexpr int64_t k = decltype(vectors)::value;
            Row rows[k];
#pragma GCC unroll 8
            for (int64_t v = 0; v < k; ++v)
                rows[v] = {from + (at + v * n) * SIZE<are_values>,
                           Op::has_numbers ? at + v * n : 0};
            at += k * n;
            return tree<are_values, n, 0, k>(op, rows, 0).part[0];
        };
        V kept[60], result = V{} + Op::identity();
        [[maybe_unused]] Vector<Integer, n> lane;
        if constexpr (n > 1) {
            for (int64_t i = 0; i < n; ++i)
                lane[i] = Integer(i);
            at = count - n;
            if (count % n)
                result =
                    lane < Integer(n - count % n) ? result : take(Count<1>());  // the last ones
            at = 0;
        }
        if (count >= 4 * n) {
            for (; count - at >= 8 * n; ++eights) {
                V eight = take(Count<8>());
                int level = 0;
                for (; eights >> level & 1; ++level)
                    eight = Op::of(kept[level], eight);
                kept[level] = eight;
            }
            if (count - at >= 4 * n)
                result = Op::of(result, take(Count<4>()));
            for (int level = 0; eights >> level; ++level)
                if (eights >> level & 1)
                    result = Op::of(result, kept[level]);
        }
        if (count - at >= 2 * n)
            result = Op::of(result, take(Count<2>()));
        if (count - at >= n)
            result = Op::of(result, take(Count<1>()));
        if constexpr (Op::has_numbers && n > 1)
            result -= lane;
        return folded(result);
    }
    template <bool are_values>
    void reduce(const Row &row, int64_t origin, const Run *windows, int64_t outputs, int64_t step,
                L *out, const char *end) const {
        constexpr int64_t n = LANES<L> == 1 ? 1 : std::min<int64_t>(LANES<L>, 32 / sizeof(L));
        for (int64_t o = 0; o < outputs; o += windows->outputs, ++windows) {
            const Run &run = *windows;
            const Row first = {row.from + (run.begin - origin) * SIZE<are_values>, 0};
            const auto later_of = [&](L result) {
                return run.count > 0 ? Op::later(result, row.number + run.tap * units[2]) : result;
            };
            if constexpr (n > 1)
                if (step == 1 && run.step > 0 && run.count > 0 && run.count < 8 * n &&
                    2 * run.outputs >= n) {
                    reduce_each<are_values, n>(first.from, run.count, run.step, run.outputs,
                                               out + o, end);
                    for (int64_t k = o; Op::has_numbers && k < o + run.outputs; ++k)
                        out[k] = later_of(out[k]);
                    continue;
                }
            const int64_t different = run.step > 0 ? run.outputs : 1;
            for (int64_t k = 0; k < different; ++k) {
                const Row one = {first.from + k * run.step * SIZE<are_values>, 0};
                L result;
                if (run.count < 8)
                    result = combined_eight<are_values>(one, run.count, step, units[2]);
                else if (step > 1)
                    result = combined_apart<are_values>(one, run.count, step, units[2]);
                else if constexpr (Op::has_numbers && !are_values)
                    result = op.winner(one.from, run.count);
                else
                    result = combined_run<are_values>(one.from, run.count);
                out[o + k] = later_of(result);
            }
            if (different < run.outputs)
                std::fill_n(out + o, run.outputs, L(out[o]));
        }
    }
};

template <class L, class T>
struct Sum {
    using Value = L;
    using Element = T;
    static constexpr bool takes_twice = false, has_numbers = false, has_keys = false;
    static constexpr int64_t lanes = LANES<L>, few = sizeof(L) == 4 && !std::is_floating_point_v<L>
                                                         ? 4
                                                         : 9;  // int32: of many taps
    static bool is_plain() { return std::is_same_v<L, T>; }
    static constexpr L identity() { return L(0); }
    template <class V>
    static V of(V first, V second) {
        return V(first + second);
    }
    template <class V>
    static V later(V values, int64_t) {
        return values;
    }
    template <int64_t n>
    Block<L, n> load(const T *from, int64_t) const {
        return {{dmlpool::load<L, n>(from)}};
    }
};

// Float32 sums are multiplied by the inverse and corrected by what that leaves, which takes half
// the time of a division.
inline double quotient(double sum, double by, double) {
    return sum / by;
}
inline float quotient(float sum, float by, float inverse) {
    const float near = sum * inverse, rest = __builtin_fmaf(-near, by, sum);
    return rest == rest ? __builtin_fmaf(rest, inverse, near) : near;
}

// Elements U: so many sums over one number, and over one of `columns` each where there are any.
// Sums may lie where the results go: each is read before its result is written.
template <class U>
void divide(const void *sums, int64_t count, double divisor, const double *columns, void *to) {
    using L = Wide<U>;
    const L *from = static_cast<const L *>(sums);
    U *out = static_cast<U *>(to);
    const L by = L(divisor), inverse = L(1 / divisor);
    const auto divide_all = [&](auto store) {
        if (columns)
            VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            store(i, from[i] / (by * L(columns[i])));
        else VECTORIZE for (int64_t i = 0; i < count; ++i) store(i, quotient(from[i], by, inverse));
    };
#ifdef HAS_HALVES
    if constexpr (std::is_same_v<U, Half>) {
        constexpr int64_t BLOCK = 1024, n = LANES<L>;
        L block[BLOCK];
        for (int64_t rest = count; rest > 0;
             rest -= count, from += count, out += count, columns += columns ? count : 0) {
            count = std::min(BLOCK, rest);
            divide_all([&](int64_t i, L value) { block[i] = value; });
            int64_t i = 0;
            for (; i + n <= count; i += n)
                write(narrowed(read<Vector<L, n>>(block + i)), out + i);
            for (; i < count; ++i)
                out[i] = narrow<U>(block[i]);
        }
        return;
    }
#endif
    divide_all([=](int64_t i, L value) { out[i] = narrow<U>(value); });
}

// Writes sums as elements.
template <class T>
struct Narrowed final : Finish {
    Narrowed() : Finish(sizeof(T), false, std::is_same_v<T, Wide<T>>) {}
    void operator()(int64_t, int64_t, int64_t, int64_t, int64_t count, const void *sums,
                    void *to) const override {
        if constexpr (!std::is_same_v<T, Wide<T>>)
            divide<T>(sums, count, 1, nullptr, to);
    }
};

}  // namespace
}  // namespace dmlpool
