// Pooling under a mask: elements where the mask is false do not count.
//
//     mask      | 1 0 1 0 0 |
//     input     | a b c d e |   0 where the mask is false   ->  masked    | a 0 c 0 0 |
//     masked    | a 0 c 0 0 |   windows of 2, added         ->  sums      | a c c 0 |
//     divisors  | 1 1 1 1 |     from counting.cpp           ->  averages  | a/1 c/1 c/1 0/1 |
//
// PyTorch's `where` is not vectorized on a CPU, and takes several times as long as a copy.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "choose.h"
#include "operators.h"
#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

constexpr int64_t BLOCK = 1 << 14;  // elements of one part

// The bytes of small planes that are masked at a time. They are pooled before the next ones, while
// they are in a cache.
constexpr int64_t CACHED = 1 << 18;

// The index in the mask of the entry that decides about an element.
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

// Masks elements [begin, end) of a tensor, in the order of memory. `output` begins with element
// `begin`.
void mask_range(const Masking &m, const void *input, const void *mask, int64_t begin, int64_t end,
                void *output) {
    with_integers(int(m.bytes), [=, &m](auto number) {
        using T = decltype(number);
        const T *const from = static_cast<const T *>(input);
        T *const to = static_cast<T *>(output);
        const int64_t inner = m.sizes[2];
        for (int64_t at = begin, n; at < end; at += n) {
            n = std::min(end - at, inner - at % inner);
            mask_elements(from + at, static_cast<const uint8_t *>(mask) + mask_index(m, at),
                          m.steps[2] == 0, T(m.fill), n, to + (at - begin));
        }
    });
}

// Masks planes of p and calls pool(q, masked, first) for them: `masked` has the q.planes planes of
// p from plane `first` on.
template <class Pool>
void pool_masked(const Problem &p, const Masking &m, const void *input, const void *mask,
                 const Pool &pool) {
    const int64_t plane = p.plane() * m.bytes;
    if (plane > CACHED) {
        const std::unique_ptr<char[]> all(new char[p.planes * plane]);
        masked(m, input, mask, all.get());
        return pool(p, all.get(), 0);
    }
    for_parts(p.planes, CACHED / plane, double(p.plane()), plane,
              [&](int64_t first, int64_t planes, char *memory) {
                  Problem q = p;
                  q.planes = planes;
                  mask_range(m, input, mask, first * p.plane(), (first + planes) * p.plane(),
                             memory);
                  pool(q, memory, first);
              });
}

// Divides each sum by its divisor. Sums may lie where the quotients go. Vectors have as many lanes
// as sums fill, because compilers would take as many as divisors of a byte fill: longer than rows.
template <class L, class N>
void quotients(const L *sums, const N *divisors, int64_t count, L *out) {
    constexpr int64_t n = LANES<L>;
    const auto divided = [=](int64_t i) {
        const auto by = converted<int32_t, n, N>(read<Vector<N, n>>(divisors + i));
        return Vector<L, n>(read<Vector<L, n>>(sums + i) /
                            __builtin_convertvector(by, Vector<L, n>));
    };
    if (count < n) {
        for (int64_t i = 0; i < count; ++i)
            out[i] = sums[i] / L(divisors[i]);
        return;
    }
    const Vector<L, n> last = divided(count - n);
    for (int64_t i = 0; i + n <= count; i += n)
        write(divided(i), out + i);
    write(last, out + count - n);
}

// Divides each sum by its divisor and writes elements U.
template <class U, class N>
void divide_each(const Wide<U> *sums, const N *divisors, int64_t count, U *out) {
    if constexpr (std::is_same_v<U, Wide<U>>)
        return quotients(sums, divisors, count, out);
    constexpr int64_t PART = 512;
    Wide<U> buffer[PART];
    for (int64_t at = 0, n; at < count; at += n) {
        n = std::min(PART, count - at);
        quotients(sums + at, divisors + at, n, buffer);
        divide<U>(buffer, n, 1, nullptr, out + at);
    }
}

// Divides the sums of windows by their divisors of type N and writes elements U.
template <class U, class N>
struct DivideByCounts final : Finish {
    const Problem &p;
    const Masking &m;
    const N *const divisors;
    const int64_t first;  // the number of plane 0 in the whole tensor

    DivideByCounts(const Problem &p, const Masking &m, const void *divisors, int64_t first)
        : Finish(sizeof(U), false, false),
          p(p),
          m(m),
          divisors(static_cast<const N *>(divisors)),
          first(first) {}
    void operator()(int64_t plane, int64_t d, int64_t h, int64_t i, int64_t count, const void *sums,
                    void *to) const override {
        using L = Wide<U>;
        const L *const from = static_cast<const L *>(sums);
        U *const out = static_cast<U *>(to);
        // Divisors lie as the mask does: each plane has its own, and each channel its own or not.
        const int64_t begin = mask_index(m, (first + plane) * p.plane()) /
                              (p.plane() / p.channels) * (p.output_plane() / p.channels);
        const int64_t row = (d * p.h().outputs + h) * p.w().outputs;
        if (p.channels == 1 || m.steps[2] != 0)
            return divide_each(from, divisors + begin + row * p.channels + i, count, out);
        for (int64_t at = 0, n; at < count; at += n) {
            const int64_t output = (i + at) / p.channels;
            n = std::min(count, (output + 1) * p.channels - i) - at;
            divide<U>(from + at, n, double(divisors[begin + row + output]), nullptr, out + at);
        }
    }
};

}  // namespace

void masked(const Masking &m, const void *input, const void *mask, void *output) {
    const int64_t count = m.sizes[0] * m.sizes[1] * m.sizes[2];
    use_large_pages(output, count * m.bytes);
    parallel(parts_of(count, BLOCK), double(BLOCK), [&](int64_t begin, int64_t end) {
        const int64_t first = begin * BLOCK;
        mask_range(m, input, mask, first, std::min(end * BLOCK, count),
                   static_cast<char *>(output) + first * m.bytes);
    });
}

void masked_average_pooling(const Problem &plain, const Masking &m, const void *input,
                            const void *mask, const void *divisors, void *output) {
    const Problem p = joined_averages(plain, false, false);
    use_large_pages(output, p.planes * p.output_plane() * m.bytes);
    with_floats(p.type, "averages of type", [&](auto element) {
        using U = decltype(element);
        const RowOperations &sums = float_sums(int(p.type));
        pool_masked(p, m, input, mask, [&](const Problem &q, const void *masked, int64_t first) {
            U *const to = static_cast<U *>(output) + first * p.output_plane();
            const auto pool_by = [&](auto number) {
                const DivideByCounts<U, decltype(number)> finish(p, m, divisors, first);
                pool(sums, finish, masked, to, Windows(q));
            };
            p.bytes == 1 ? pool_by(uint8_t()) : pool_by(int32_t());
        });
    });
}

}  // namespace dmlpool
