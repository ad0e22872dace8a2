// Elements where a mask is false become 0 or the lowest value, so that pools may take them.
//
// PyTorch's `where` is not vectorized on a CPU, and takes several times as long as a copy.

#include <algorithm>
#include <cstdint>

#include "memory.h"
#include "operators.h"
#include "parallel.h"
#include "vectors.h"

namespace dmlpool {
namespace {

constexpr int64_t BLOCK = 1 << 14;  // elements of one part

// The index of an element's entry in the mask.
int64_t mask_index(const Masking &m, int64_t element) {
    const int64_t loop = element / m.sizes[2];
    return loop / m.sizes[1] * m.steps[0] + loop % m.sizes[1] * m.steps[1] +
           element % m.sizes[2] * m.steps[2];
}

// Masks `count` elements by as many entries of the mask, or with `is_same` all by its first entry.
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
        output[i] = mask[i] ? read<T>(input + i) : fill;
}

}  // namespace

void masked(const Masking &m, const void *input, const void *mask, void *output) {
    const int64_t count = m.sizes[0] * m.sizes[1] * m.sizes[2], inner = m.sizes[2];
    use_large_pages(output, count * m.bytes);
    with_integers(int(m.bytes), [&](auto number) {
        using T = decltype(number);
        const T *const from = static_cast<const T *>(input);
        T *const to = static_cast<T *>(output);
        parallel(parts_of(count, BLOCK), double(BLOCK), [&](int64_t begin, int64_t end) {
            const int64_t last = std::min(end * BLOCK, count);
            for (int64_t at = begin * BLOCK, n; at < last; at += n) {
                n = std::min(last - at, inner - at % inner);
                mask_elements(from + at, static_cast<const uint8_t *>(mask) + mask_index(m, at),
                              m.steps[2] == 0, T(m.fill), n, to + at);
            }
        });
    });
}

}  // namespace dmlpool
