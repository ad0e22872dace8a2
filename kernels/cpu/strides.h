// Elements of a row that lie a stride from each other.
//
//     stride 3    | a . . b . . c . . |  ->  | a b c |
#pragma once

#include <cstdint>

#include "vectors.h"

namespace dmlpool {
namespace {

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
    const auto run = [=](auto value) {
        using V = decltype(value);
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
