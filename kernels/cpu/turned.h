// Small planes are turned, that is transposed: the planes of a block become the channels of one
// channels_last plane, so that a vector holds one position of several planes.
//
//     planes   | a0 a1 a2 a3 |            | a0 b0 c0 |   position 0
//              | b0 b1 b2 b3 |   turned   | a1 b1 c1 |   position 1    are pooled as channels;
//              | c0 c1 c2 c3 |   ----->   | a2 b2 c2 |   position 2    results are turned back
//                                         | a3 b3 c3 |   position 3
#pragma once

#include <algorithm>

#include "memory.h"
#include "parallel.h"
#include "vectors.h"

namespace dmlpool {
namespace {

// Transposes a square of n rows of n elements. Every step exchanges the two squares of `step` by
// `step` elements beside the diagonal.
template <class E, int64_t n, int64_t step = n / 2>
__attribute__((always_inline)) inline void turn_square(Vector<E, n> (&rows)[n]) {
    if constexpr (step > 0) {
        const auto lanes = std::make_index_sequence<n>();
        const auto upper = [](int64_t i) { return i & step ? n + i - step : i; };
        const auto lower = [](int64_t i) { return i & step ? n + i : i + step; };
#pragma GCC unroll 16
        for (int64_t i = 0; i < n; ++i) {
            if (i & step)
                continue;
            const Vector<E, n> one = rows[i];
            const Vector<E, n> other = rows[i + step];
            rows[i] = shuffled<E, n>(one, other, upper, lanes);
            rows[i + step] = shuffled<E, n>(one, other, lower, lanes);
        }
        turn_square<E, n, step / 2>(rows);
    }
}

// Turns `planes` planes of `size` elements into `size` rows of `channels` elements, of which the
// first `planes` are used, and back. Both ways go square by square. The last square of a plane
// begins inside the one before. A square of a plane of fewer than n elements also holds the first
// elements of the next planes.
template <class E>
struct Turned {
    static constexpr int64_t n = std::min<int64_t>(16, LANES<E>);

    const int64_t planes;
    const int64_t size;
    const int64_t channels;

    // Turns planes, or with `is_back` turned planes back. Nothing is read or written after the
    // planes. A small plane's vectors write past its end, and the next plane overwrites those
    // elements.
    template <bool is_back>
    void turn(const E *from, E *to) const {
        const E *const end = (is_back ? to : from) + planes * size;
        for (int64_t k = 0; k < planes; k += n)
            for (int64_t x = 0; x < size; x += n) {
                const int64_t at = std::min(x, std::max<int64_t>(size - n, 0));
                const int64_t count = is_back ? std::min(n, planes - k) : n;
                const auto in_planes = [=](int64_t j) {
                    return std::min(k + j, planes - 1) * size + at;
                };
                const auto in_turned = [=](int64_t j) { return (at + j) * channels + k; };
                Vector<E, n> rows[n];
#pragma GCC unroll 16
                for (int64_t j = 0; j < n; ++j) {
                    const E *const row = from + (is_back ? in_turned(j) : in_planes(j));
                    rows[j] = Vector<E, n>{};
                    copy_row(row, is_back ? n : end - row, &rows[j]);
                }
                turn_square<E, n>(rows);
#pragma GCC unroll 16
                for (int64_t j = 0; j < count; ++j) {
                    E *const row = to + (is_back ? in_planes(j) : in_turned(j));
                    copy_row(&rows[j], is_back ? end - row : n, row);
                }
            }
    }
    // Copies the n elements of a row of a square, or only those for which there is room.
    static void copy_row(const void *from, int64_t room, void *to) {
        room < n ? std::memcpy(to, from, room * sizeof(E)) : std::memcpy(to, from, n * sizeof(E));
    }
};

// The elements of a block of planes. A block stays in the first-level cache, and has many planes,
// which share the cost of finding what windows read.
constexpr int64_t TURNED_ELEMENTS = 8192;

// The problem of a block of planes: one plane whose channels are the planes of the block.
inline Problem turned_problem(const Problem &p) {
    const int64_t size = std::max(p.plane(), p.output_plane());
    const int64_t vectors = std::clamp<int64_t>(TURNED_ELEMENTS / size / 16, 1, 32);
    Problem result = p;
    result.planes = 1;
    // Rows have an odd number of cache lines, so that a column of them uses all sets of a cache.
    result.channels = std::min(vectors | 1, parts_of(p.planes, 16)) * 16;
    return result;
}

// Calls work(from, to) for each block of `channels` planes. `from` has the turned planes, of `size`
// elements of `bytes` bytes. `work` writes turned planes of `results` elements to `to`, and these
// are turned back.
template <class Work>
void turn_planes(int64_t planes, int64_t channels, int64_t bytes, int64_t size, int64_t results,
                 const void *input, void *output, const Work &work) {
    with_integers(int(bytes), [&](auto bits) {
        using E = decltype(bits);
        constexpr int64_t n = Turned<E>::n;
        // `from` and `to` differ in their place in a page: else loads may wait for earlier stores.
        const int64_t turned = std::max(size, n) * channels + 1024 / int64_t(sizeof(E));
        const int64_t produced = std::max(results, n) * channels;
        const E *const elements = static_cast<const E *>(input);
        const auto pool_block = [&](int64_t block, int64_t, void *memory) {
            // Rows begin with cache lines.
            E *const from =
                reinterpret_cast<E *>((reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64);
            E *const to = from + turned;
            const int64_t first = block * channels;
            const int64_t count = std::min(channels, planes - first);
            Turned<E>{count, size, channels}.template turn<false>(elements + first * size, from);
            work(from, to);
            Turned<E>{count, results, channels}.template turn<true>(
                to, static_cast<E *>(output) + first * results);
        };
        for_parts(parts_of(planes, channels), 1, 2. * double(channels * (size + results)),
                  (turned + produced) * bytes + 64, pool_block);
    });
}

}  // namespace
}  // namespace dmlpool
