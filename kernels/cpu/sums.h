// Sums of rows, and how they become averages.
#pragma once

#include "reductions.h"

namespace dmlpool {
namespace {

// Divides sums, or elements T, and writes them as elements U. Each sum is divided by `divisor`, or
// by `divisor` times its entry of `columns` if that is not null. Sums may lie where the results go,
// because each is read before its result is written.
template <class U, class T = Wide<U>>
void divide(const void *sums, int64_t count, void *to, double divisor = 1,
            const double *columns = nullptr) {
    using L = Wide<U>;
    const T *from = as<T>(sums);
    U *out = as<U>(to);
    const L by = L(divisor);
    const L inverse = L(1 / divisor);
    int64_t i = 0;
    if constexpr (is_same_v<U, Half> || is_same_v<T, Half>) {
        constexpr int64_t n = LANES<L>;
        using V = Vector<L, n>;
        for (; i + n <= count; i += n) {
            const V all = load<L, n>(from + i);
            V result = quotient(all, by, inverse);
            if (columns)
                result =
                    all / (by * __builtin_convertvector(read<Vector<double, n>>(columns + i), V));
            store<U, n>(result, out + i);
        }
    }
    if (columns) {
        VECTORIZE
        for (; i < count; ++i)
            out[i] = narrow<U>(widen(read<T>(from + i)) / (by * L(columns[i])));
    } else {
        VECTORIZE
        for (; i < count; ++i)
            out[i] = narrow<U>(quotient(widen(read<T>(from + i)), by, inverse));
    }
}

// The Op of sums (see reductions.h): elements T are added as numbers L.
template <class L, class T>
struct Sum : Combination<L, T> {
    static constexpr bool is_idempotent = false;
    static constexpr bool has_keys = false;
    static constexpr bool can_divide = is_same_v<T, float>;
    // Sums of int32 combine 4, because the code of 9 for each type of quantized elements makes the
    // library larger.
    static constexpr int64_t rows_at_once = sizeof(L) == 4 && !is_floating_point_v<L> ? 4 : 9;
    static bool is_plain() { return is_same_v<L, T>; }
    static constexpr L identity() { return L(0); }
    template <class V>
    static V of(V first, V second) {
        return V(first + second);
    }
    template <int64_t n>
    Vectors<L, n> load(const T *from, int64_t) const {
        return {{dmlpool::load<L, n>(from)}};
    }
};

}  // namespace

// Sums of rows of a float data type, compiled once in averages.cpp.
const RowOperations &row_sums(int64_t type);

}  // namespace dmlpool
