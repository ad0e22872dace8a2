// Sums of rows of elements on the CPU, in vectors of the processor's width, and their division.
#pragma once

#include "pooling.h"

#if defined(__AVX512BW__) || defined(__F16C__)
#include <immintrin.h>
#endif

namespace dmlpool {
namespace {

// The processor's own conversions of a vector of half precision, and of bytes to 16 bits and those to 32.
#if defined(__AVX512BW__)
#define HAS_HALVES
using Halves = __m256i;
inline __m512 widened(Halves halves) { return _mm512_maskz_cvtph_ps(0xffff, halves); }
inline Halves narrowed(__m512 values) { return _mm512_maskz_cvtps_ph(0xffff, values, _MM_FROUND_TO_NEAREST_INT); }
inline __m512i signed_words(Halves bytes) { return _mm512_cvtepi8_epi16(bytes); }
inline __m512i unsigned_words(Halves bytes) { return _mm512_cvtepu8_epi16(bytes); }
inline __m512i integers(Halves words) { return _mm512_cvtepi16_epi32(words); }
#elif defined(__AVX2__) && defined(__F16C__)
#define HAS_HALVES
using Halves = __m128i;
inline __m256 widened(Halves halves) { return _mm256_cvtph_ps(halves); }
inline Halves narrowed(__m256 values) { return _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT); }
inline __m256i signed_words(Halves bytes) { return _mm256_cvtepi8_epi16(bytes); }
inline __m256i unsigned_words(Halves bytes) { return _mm256_cvtepu8_epi16(bytes); }
inline __m256i integers(Halves words) { return _mm256_cvtepi16_epi32(words); }
#endif

// As wide as L.
template <class L>
using IntegerOf = std::conditional_t<sizeof(L) == 2, int16_t, std::conditional_t<sizeof(L) == 4, int32_t, int64_t>>;

template <class L, class T>
inline Vector<L> load(const T *from) {
    constexpr int64_t n = LANES<L>;
    if constexpr (std::is_same_v<T, L>) return vector_at<Vector<L>>(from);
    else if constexpr (std::is_same_v<T, BFloat16>)
        return Vector<L>(__builtin_convertvector(vector_at<Lanes<uint16_t, n>>(from), Lanes<uint32_t, n>) << 16);
    else if constexpr (std::is_same_v<T, Half>) {
#ifdef HAS_HALVES
        return Vector<L>(widened(vector_at<Halves>(from)));
#else
        Vector<L> values;
        for (int64_t i = 0; i < n; ++i) values[i] = widen(from[i]);
        return values;
#endif
#ifdef HAS_HALVES
    } else if constexpr (std::is_same_v<L, int16_t>) {
        const auto bytes = vector_at<Halves>(from);
        return Vector<L>(std::is_signed_v<T> ? signed_words(bytes) : unsigned_words(bytes));
#endif
    } else {
        // Step by step: GCC takes lanes apart where they become four times as wide.
        const auto twice = __builtin_convertvector(vector_at<Lanes<T, n>>(from), Lanes<int16_t, n>);
        if constexpr (sizeof(L) == 2) return twice;
        else if constexpr (sizeof(L) == 4) return __builtin_convertvector(twice, Vector<L>);
        else return __builtin_convertvector(__builtin_convertvector(twice, Lanes<int32_t, n>), Vector<L>);
    }
}

template <int count>
using Count = std::integral_constant<int, count>;

template <class V, class L, int from, int to, class T>
inline V tree(const T *const *rows, int64_t i) {
    constexpr int middle = (from + to + 1) / 2;
    if constexpr (to - from > 1) return V(tree<V, L, from, middle>(rows, i) + tree<V, L, middle, to>(rows, i));
    else if constexpr (std::is_same_v<V, L>) return L(widen(rows[from][i]));
    else return load<L>(rows[from] + i);
}

// out = the sums of elements [begin, begin + length) of so many rows, or is added to. The last vector may begin inside the
// one before.
template <class L, int count, class T, bool adds = false>
inline void sum_few(const Row *rows, int64_t begin, int64_t length, L *__restrict out) {
    constexpr int64_t n = LANES<L>;
    const T *each[count];
    for (int k = 0; k < count; ++k) each[k] = reinterpret_cast<const T *>(rows[k].from) + begin;
    const auto sum_at = [&](int64_t i) {
        const auto sum = tree<Vector<L>, L, 0, count>(each, i);
        return adds ? vector_at<Vector<L>>(out + i) + sum : sum;
    };
    const auto store = [out](int64_t i, Vector<L> sum) { std::memcpy(out + i, &sum, sizeof(sum)); };
    if (length < n) {
        for (int64_t i = 0; i < length; ++i) {
            out[i] = L((adds ? out[i] : L(0)) + tree<L, L, 0, count>(each, i));
            __asm__("");  // no vectors of these few
        }
        return;
    }
    const int64_t whole = length / n * n;
    Vector<L> last = {};
    if (adds && whole < length) last = sum_at(length - n);
    for (int64_t i = 0; i < whole; i += n) store(i, sum_at(i));
    if (whole < length) store(length - n, adds ? last : sum_at(length - n));
}

template <class L, class T, int few = 1>
void sum_rows(const Row *rows, int64_t count, int64_t begin, int64_t length, L *__restrict out);

// Trees of many rows: the error of a sum grows with the logarithm of their number.
template <class L, class T>
__attribute__((noinline)) void sum_many(const Row *rows, int64_t count, int64_t begin, int64_t length, L *__restrict out) {
    constexpr int64_t BLOCK = 1024;
    L rest[BLOCK];
    if (count == 0) return void(std::fill_n(out, length, L(0)));
    int64_t half = 8;
    while (2 * half < count) half *= 2;
    for (int64_t at = 0; at < length; at += BLOCK) {
        const int64_t n = std::min(BLOCK, length - at);
        for (int64_t from : {int64_t(0), half})
            sum_rows<L, T>(rows + from, from ? count - half : half, begin + at, n, from ? rest : out + at);
        const Row row = {reinterpret_cast<const char *>(rest), 0};
        sum_few<L, 1, L, true>(&row, 0, n, out + at);
    }
}

template <class L, class T, int few>
__attribute__((always_inline)) inline void sum_rows(const Row *rows, int64_t count, int64_t begin, int64_t length, L *__restrict out) {
    if constexpr (few > 9) sum_many<L, T>(rows, count, begin, length, out);
    else if (count == few) sum_few<L, few, T>(rows, begin, length, out);
    else sum_rows<L, T, few + 1>(rows, count, begin, length, out);
}

// The sum of a vector, and of a few elements, which are used up: trees.
template <class L, int64_t n>
inline L sum_of(const Lanes<L, n> &vector) {
    if constexpr (n == 2) return L(vector[0] + vector[1]);
    else {
        Lanes<L, n / 2> halves[2];
        std::memcpy(halves, &vector, sizeof(vector));
        return sum_of<L, n / 2>(halves[0] + halves[1]);
    }
}
template <class L>
inline L sum_of(L *elements, int64_t count) {
    for (int64_t half; count > 1; count = half) {
        half = (count + 1) / 2;
        for (int64_t i = 0; i < count - half; ++i) elements[i] += elements[half + i];
    }
    return elements[0];
}

// The last `count` of a vector of elements, after zeros.
template <class L, class T>
inline Vector<L> load_last(const T *end, int64_t count) {
    using Integer = IntegerOf<L>;
    constexpr int64_t n = LANES<L>;
    Lanes<Integer, n> lane;
    for (int64_t i = 0; i < n; ++i) lane[i] = Integer(i);
    return lane < Integer(n - count) ? Vector<L>{} : load<L>(end - n);
}

// The sum of contiguous elements: a tree of vectors, of which those of 1, 2, 4, ... eights that wait for as many more are kept.
template <class L, class T>
L sum_elements(const T *elements, int64_t count) {
    constexpr int64_t n = LANES<L>;
    if (count < n) {
        L part[n];
        for (int64_t i = 0; i < count; ++i) {
            part[i] = L(widen(elements[i]));
            __asm__("");  // no vectors of these few
        }
        return count == 0 ? L(0) : sum_of(part, count);
    }
    const auto take = [&](auto vectors) {
        constexpr int k = decltype(vectors)::value;
        const T *each[k];
        for (T const *&from : each) from = elements, elements += n;
        count -= k * n;
        return tree<Vector<L>, L, 0, k>(each, 0);
    };
    Vector<L> kept[60], sum = {};
    int64_t eights = 0;
    for (; count >= 8 * n; ++eights) {
        Vector<L> eight = take(Count<8>());
        int level = 0;
        for (; eights >> level & 1; ++level) eight += kept[level];
        kept[level] = eight;
    }
    if (count > 0 && count % n) sum = load_last<L>(elements + count, count % n);
    if (count >= 4 * n) sum += take(Count<4>());
    if (count >= 2 * n) sum += take(Count<2>());
    if (count >= n) sum += take(Count<1>());
    for (int level = 0; eights >> level; ++level)
        if (eights >> level & 1) sum += kept[level];
    return sum_of<L, n>(sum);
}
// And of elements that lie a step apart.
template <class L>
L sum_apart(const L *elements, int64_t count, int64_t step) {
    if (count > 8) return L(sum_apart(elements, count / 2, step) + sum_apart(elements + count / 2 * step, count - count / 2, step));
    L even = 0, odd = 0;
    for (int64_t t = 0; t + 1 < count; t += 2) even += elements[t * step], odd += elements[(t + 1) * step];
    return L((count & 1 ? even + elements[(count - 1) * step] : even) + odd);
}

template <class L>
struct Sum {
    using Value = L;
    static constexpr bool takes_twice = false;
    static constexpr L identity() { return L(0); }
    static L of(L first, L second) { return L(first + second); }
    static L later(L value, int64_t) { return value; }
};

// Operations on rows of sums: they combine any number of rows.
struct SumOperations : RowOperations {
    using RowOperations::RowOperations;
    // The sums of contiguous elements: of so many runs of `count`, one after the other.
    virtual void sum_runs(const char *row, int64_t count, int64_t runs, void *out) const = 0;
};
template <class L>
void sum_windows(const L *row, int64_t origin, const Span *windows, int64_t outputs, int64_t step, L *out) {
    for (int64_t o = 0; o < outputs; ++o) {
        const L *const first = row + (windows[o].begin - origin);
        const int64_t count = windows[o].count;
        out[o] = step == 1 && count >= 8 ? sum_elements<L>(first, count) : sum_apart(first, count, step);
        if (windows[o].alike < 8) continue;
        const int64_t alike = std::min(windows[o].alike, outputs - o);
        std::fill_n(out + o, alike, out[o]);
        o += alike - 1;
    }
}

template <class L, class T>
struct Sums final : RowsOfValues<Sum<L>, SumOperations> {
    Sums() : RowsOfValues<Sum<L>, SumOperations>({}, sizeof(T), std::is_same_v<T, L>) {
        this->reduces_elements = this->is_plain;
    }
    void combine(bool are_values, Row *rows, int64_t count, int64_t length, void *to, const Times &times) const override {
        L *out = static_cast<L *>(to);
        for (int64_t t = 0; t < times.count; ++t, out += times.pitch) {
            times.advance(t, rows, count);
            (are_values ? sum_rows<L, L> : sum_rows<L, T>)(rows, count, 0, length, out);
        }
    }
    void combine_window(bool are_values, Row *taps, int64_t count, int64_t lanes, char *made, char *) const override {
        combine(are_values, taps, count, lanes, made, {});
    }
    void sum_runs(const char *row, int64_t count, int64_t runs, void *out) const override {
        const T *const from = reinterpret_cast<const T *>(row);
        for (int64_t run = 0; run < runs; ++run) static_cast<L *>(out)[run] = sum_elements<L>(from + run * count, count);
    }
    void reduce_windows(bool, const Row &row, int64_t origin, const Span *windows, int64_t outputs, int64_t step, void *made) const override {
        sum_windows(elements<L>(row), origin, windows, outputs, step, static_cast<L *>(made));
    }
};

// Float32 sums are multiplied by the inverse and corrected by what that leaves, which takes half the time of a division.
inline double quotient(double sum, double by, double) { return sum / by; }
inline float quotient(float sum, float by, float inverse) {
    const float near = sum * inverse, rest = __builtin_fmaf(-near, by, sum);
    return rest == rest ? __builtin_fmaf(rest, inverse, near) : near;
}

// Elements U: so many sums over one number, and over one of `columns` each where there are any. Sums that lie where the
// results go are read element by element before those are written, whatever order a compiler makes of it.
template <class U>
void divide(const void *sums, int64_t count, double divisor, const double *columns, void *to) {
    using L = Wide<U>;
    const L *__restrict from = static_cast<const L *>(sums);
    U *__restrict out = static_cast<U *>(to);
    const L by = L(divisor), inverse = L(1 / divisor);
    const auto divide_all = [&](auto store) {
        if (columns)
            VECTORIZE
            for (int64_t i = 0; i < count; ++i) store(i, from[i] / (by * L(columns[i])));
        else
            VECTORIZE
            for (int64_t i = 0; i < count; ++i) store(i, quotient(from[i], by, inverse));
    };
#ifdef HAS_HALVES
    if constexpr (std::is_same_v<U, Half>) {
        constexpr int64_t BLOCK = 1024, n = LANES<L>;
        L block[BLOCK];
        for (int64_t rest = count; rest > 0; rest -= count, from += count, out += count, columns += columns ? count : 0) {
            count = std::min(BLOCK, rest);
            divide_all([&](int64_t i, L value) { block[i] = value; });
            int64_t i = 0;
            for (; i + n <= count; i += n) {
                const Halves halves = narrowed(vector_at<Vector<L>>(block + i));
                std::memcpy(out + i, &halves, sizeof(halves));
            }
            for (; i < count; ++i) out[i] = narrow<U>(block[i]);
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
    void operator()(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t count, const void *sums, void *to) const override {
        if constexpr (!std::is_same_v<T, Wide<T>>) divide<T>(sums, count, 1, nullptr, to);
    }
};

}  // namespace
}  // namespace dmlpool
