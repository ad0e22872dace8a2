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
    const Bits *__restrict from = as<Bits>(values);
    Bits *__restrict out = as<Bits>(to);
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

// Takes `count` values of `size` bytes from a row, a stride apart: out[i] = row[i * stride].
inline void take_spaced(int64_t size, int64_t stride, const void *row, int64_t count, void *out) {
    const auto run = [=]<class V>(V) {
        // A stride of 2 is known when the library is compiled.
        const auto take = [=](auto apart) {
            const V *__restrict from = as<V>(row);
            V *__restrict to = as<V>(out);
            VECTORIZE
            for (int64_t i = 0; i < count; ++i)
                to[i] = read<V>(from + i * apart);
        };
        stride == 2 ? take(Count<2>()) : take(stride);
    };
    if (size == 16)
        run(__int128());
    else
        with_integers(size, run);
}

}  // namespace
}  // namespace dmlpool
