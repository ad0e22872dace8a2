// Rows whose elements lie a stride from each other: taken out of a row, or put into one.
//
//     take_spaced, stride 3    | a . . b . . c . . |  ->  | a b c |
//     put_spaced, 2 apart     | a b c |  ->  | 0 a 0 b 0 c 0 |
#pragma once

#include "vectors.h"

namespace dmlpool {
namespace {

// Writes `count` values of 4 or 8 bytes into a row of `length` values: value i at `begin + i *
// apart`, and zeros everywhere else.
template <class Bits>
__attribute__((noinline)) void put_spaced(const void *values, int64_t count, int64_t apart,
                                          int64_t begin, void *to, int64_t length) {
    const Bits *__restrict from = static_cast<const Bits *>(values);
    Bits *__restrict out = static_cast<Bits *>(to);
    if (apart != 2) {
        fill_n(out, length, Bits(0));
        for (int64_t i = 0; i < count; ++i)
            out[begin + i * apart] = from[i];
        return;
    }
    const int64_t end = begin + 2 * count;
    fill_n(out, begin, Bits(0));
    VECTORIZE
    for (int64_t i = 0; i < count; ++i)
        out[begin + 2 * i] = from[i], out[begin + 2 * i + 1] = 0;
    if (end < length)
        std::fill(out + end, out + length, Bits(0));
}

// Takes `count` values from a row, a stride apart: out[i] = row[i * stride]. A stride that is known
// when the library is compiled is `fixed`, and any other one is `any`. `size` is a value's bytes.
template <int64_t fixed, class V>
void take_spaced(int64_t any, const typename Unaligned<V>::type *__restrict row, int64_t count,
                 V *__restrict out) {
    const int64_t stride = fixed ? fixed : any;
    VECTORIZE
    for (int64_t i = 0; i < count; ++i)
        out[i] = row[i * stride];
}
inline void take_spaced(int64_t size, int64_t stride, const void *row, int64_t count, void *out) {
    const auto run = [=]<class V>(V) {
        const auto *const from = static_cast<const typename Unaligned<V>::type *>(row);
        V *const to = static_cast<V *>(out);
        if (stride == 2)
            take_spaced<2, V>(stride, from, count, to);
        else
            take_spaced<0, V>(stride, from, count, to);
    };
    if (size == 16)
        run(__int128());
    else
        with_integers(int(size), run);
}

}  // namespace
}  // namespace dmlpool
