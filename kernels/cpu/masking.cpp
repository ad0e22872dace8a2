// Elements where a mask is true, and one and the same value elsewhere.
//
// PyTorch's `where` makes no vectors on a CPU: with a mask for all channels it takes 2.5 times as
// long as to copy the elements, with a random one for each element 7 times (8x64x112x112, float32,
// Zen 4).

#include <algorithm>
#include <cstdint>

#include "geometry.h"
#include "memory.h"
#include "operations.h"
#include "operators.h"
#include "parallel.h"
#include "vectors.h"

namespace dmlpool {
namespace {

constexpr int64_t BLOCK = 1 << 14;  // elements of one part

template <class T>
void mask_elements(const T *input, const uint8_t *mask, bool is_same, T fill, int64_t count,
                   T *output) {
    if (is_same) {
        if (*mask)
            std::copy(input, input + count, output);
        else
            std::fill(output, output + count, fill);
        return;
    }
    VECTORIZE
    for (int64_t i = 0; i < count; ++i)
        output[i] = mask[i] ? input[i] : fill;
}

template <class T>
void mask_all(const Masking &m, const T *input, const uint8_t *mask, T *output) {
    const int64_t inner = m.sizes[2], block = std::min(inner, BLOCK);
    const int64_t blocks = parts_of(inner, block);
    parallel(m.sizes[0] * m.sizes[1] * blocks, double(block), [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
            const int64_t row = part / blocks, first = part % blocks * block;
            const int64_t at = row / m.sizes[1] * m.steps[0] + row % m.sizes[1] * m.steps[1];
            const int64_t from = row * inner + first;
            mask_elements(input + from, mask + at + first * m.steps[2], m.steps[2] == 0, T(m.fill),
                          std::min(block, inner - first), output + from);
        }
    });
}

}  // namespace

void masked(const Masking &m, const void *input, const void *mask, void *output) {
    expect_all(output, m.sizes[0] * m.sizes[1] * m.sizes[2] * m.bytes);
    with_numbers(int(m.bytes), [&](auto number) {
        using T = decltype(number);
        mask_all(m, static_cast<const T *>(input), static_cast<const uint8_t *>(mask),
                 static_cast<T *>(output));
    });
}

}  // namespace dmlpool
