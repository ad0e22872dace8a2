// Turns planes square by square, and back.

#include "turned.h"

#include "kept.h"
#include "parallel.h"
#include "vectors.h"

namespace dmlpool {
namespace {

// Transposes a square of n rows of n elements. Every step exchanges the two squares of `step` by
// `step` elements beside the diagonal.
template <class E, int64_t n, int64_t step = n / 2>
__attribute__((always_inline)) inline void turn_square(Vector<E, n> (&rows)[n]) {
    if constexpr (step > 0) {
#pragma GCC unroll 16
        for (int64_t i = 0; i < n; ++i) {
            if (i & step)
                continue;
            const Vector<E, n> one = rows[i];
            const Vector<E, n> other = rows[i + step];
            rows[i] = every_other_group<E, n, step, 0>(one, other);
            rows[i + step] = every_other_group<E, n, step, step>(one, other);
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
    static constexpr int64_t n = min<int64_t>(16, LANES<E>);

    const int64_t planes;
    const int64_t size;
    const int64_t channels;

    // Turns planes, or with `is_back` turned planes back. Nothing is read or written after the
    // planes. A small plane's vectors write past its end, and the next plane overwrites those
    // elements.
    template <bool is_back>
    void turn(const E *from, E *to) const {
        for (int64_t k = 0; k < planes; k += n)
            for (int64_t x = 0; x < size; x += n) {
                const int64_t at = min(x, max(size - n, 0));
                const bool is_whole = k + n <= planes && (planes - k - n + 1) * size - at >= n;
                is_whole ? turn_part<is_back, true>(k, at, from, to)
                         : turn_part<is_back, false>(k, at, from, to);
            }
    }
    // Turns positions from `at` on of planes from k on. If the square `is_whole`, all its planes
    // are there, and each has room for a vector: a loop without conditions.
    template <bool is_back, bool is_whole>
    void turn_part(int64_t k, int64_t at, const E *from, E *to) const {
        const auto in_planes = [=, this](int64_t j) {
            return (is_whole ? k + j : min(k + j, planes - 1)) * size + at;
        };
        const auto in_turned = [=, this](int64_t j) { return (at + j) * channels + k; };
        const auto bytes_at = [=, this](int64_t place) {
            return is_whole ? sizeof(Vector<E, n>) : min(n, planes * size - place) * sizeof(E);
        };
        const int64_t count = is_back && !is_whole ? min(n, planes - k) : n;
        Vector<E, n> rows[n] = {};
#pragma GCC unroll 16
        for (int64_t j = 0; j < n; ++j) {
            const int64_t row = is_back ? in_turned(j) : in_planes(j);
            memcpy(&rows[j], from + row, is_back ? sizeof(rows[j]) : bytes_at(row));
        }
        turn_square<E, n>(rows);
#pragma GCC unroll 16
        for (int64_t j = 0; j < count; ++j) {
            const int64_t row = is_back ? in_planes(j) : in_turned(j);
            memcpy(to + row, &rows[j], is_back ? bytes_at(row) : sizeof(rows[j]));
        }
    }
};

// The bytes of the block of turned planes of a tensor. Blocks begin with cache lines, and each has
// another place in a page: else loads may wait for earlier stores.
int64_t block_bytes(const PlaneTensor &tensor, int64_t channels) {
    return (max(tensor.size, 16) * channels * tensor.bytes + 63) / 64 * 64 + 1024;
}
// Turns `count` planes from `first` on into a block, or with `is_back` a block back into them.
void turn(const PlaneTensor &tensor, bool is_back, int64_t first, int64_t count, int64_t channels,
          void *block) {
    with_integers(tensor.bytes, [&]<class E>(E) {
        E *const turned = as<E>(block);
        const char *const planes = as<char>(tensor.elements) + first * tensor.size * tensor.bytes;
        // Under a mask a row of squares at a time.
        const int64_t most = tensor.kept ? Turned<E>::n : count;
        vector<char> kept;
        for (int64_t k = 0; k < count; k += most) {
            const int64_t n = min(most, count - k);
            Row row = {planes + k * tensor.size * tensor.bytes, 0};
            read_rows(tensor.kept, &row, 1, n * tensor.size, kept);
            E *const some = const_cast<E *>(elements<E>(row));
            const Turned<E> planes_of_block{n, tensor.size, channels};
            is_back ? planes_of_block.template turn<true>(turned + k, some)
                    : planes_of_block.template turn<false>(some, turned + k);
        }
    });
}

}  // namespace

void turn_planes(int64_t planes, int64_t channels, int inputs,
                 std::initializer_list<PlaneTensor> tensors,
                 const std::function<void(int64_t, void *const *)> &work) {
    int64_t size = 0;
    int64_t bytes = 64;
    for (const PlaneTensor &tensor : tensors) {
        size += tensor.size;
        bytes += block_bytes(tensor, channels);
    }
    const auto pool_block = [&](int64_t block, int64_t, char *memory) {
        const int64_t first = block * channels;
        const int64_t count = min(channels, planes - first);
        void *blocks[3];
        memory = aligned(memory, 64);
        for (size_t k = 0; k < tensors.size();
             memory += block_bytes(tensors.begin()[k++], channels))
            blocks[k] = memory;
        const auto turn_all = [&](bool is_back, int begin, int end) {
            for (int k = begin; k < end; ++k)
                turn(tensors.begin()[k], is_back, first, count, channels, blocks[k]);
        };
        turn_all(false, 0, inputs);
        work(first, blocks);
        turn_all(true, inputs, int(tensors.size()));
    };
    for_parts(parts_of(planes, channels), 1, 2. * double(channels * size), bytes, pool_block);
}

}  // namespace dmlpool
