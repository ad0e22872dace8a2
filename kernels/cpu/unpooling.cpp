// Max unpooling, gathers and scatters. A position counts the elements of one channel of a plane. A
// place counts the elements of all channels of a plane: position * channels + channel.
//
//     positions  | 3 | 0 |      scatter: elements to places     | b . . a . |
//     elements   | a | b |      gather: places to elements

#include <algorithm>
#include <vector>

#include "operators.h"
#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

// Reads positions of 4 or 8 bytes. Those outside a plane of `size` positions are read as -1.
struct Positions {
    const void *positions;
    int64_t bytes;
    int64_t size;

    Positions(const void *positions, int64_t bytes, int64_t size)
        : positions(positions), bytes(bytes), size(size) {
        if (bytes != 4 && bytes != 8)
            reject("position has this many bytes:", bytes);
    }
    int64_t operator[](int64_t i) const {
        const int64_t position = bytes == 4 ? static_cast<const int32_t *>(positions)[i]
                                            : static_cast<const int64_t *>(positions)[i];
        return uint64_t(position) < uint64_t(size) ? position : -1;
    }
};

// Calls visit(plane, places) for each plane, or for each part of PLACES places of a larger one. So
// a caller that keeps a value for each place needs little memory.
constexpr int64_t PLACES = 1 << 21;
template <class Visit>
void for_places(const Problem &p, Visit visit) {
    const int64_t parts = parts_of(p.plane(), PLACES);
    const double cost = 4. * double(p.output_plane() + std::min(PLACES, p.plane()));
    parallel(p.planes * parts, cost, [&](int64_t begin, int64_t end) {
        for (int64_t number = begin; number < end; ++number) {
            const int64_t first = number % parts * PLACES;
            visit(number / parts, Range{first, std::min(p.plane(), first + PLACES)});
        }
    });
}
// Calls act(i, place, position) for entry i of `positions`, for all entries of a plane. Place and
// position are -1 where the position is outside the plane.
template <class Act>
void for_positions(const Problem &p, const Positions &positions, int64_t plane, Act act) {
    const int64_t channels = p.channels;
    const int64_t begin = plane * p.output_plane();
    for (int64_t i = begin; i < begin + p.output_plane(); i += channels)
        for (int64_t channel = 0; channel < channels; ++channel) {
            const int64_t position = positions[i + channel];
            act(i + channel, position < 0 ? -1 : position * channels + channel, position);
            __asm__("");  // not vectorized, as positions are in no order
        }
}

// Writes zeros, and adds each element at its position.
template <class T>
void scatter(const T *input, const Positions &positions, T *output, const Problem &p) {
    using L = Wide<T>;
    constexpr bool is_direct = std::is_same_v<T, L>;
    for_places(p, [&](int64_t plane, const Range &places) {
        const int64_t size = places.end - places.begin;
        std::vector<L> sums(is_direct ? 0 : size);
        T *const out = output + plane * p.plane() + places.begin;
        L *const to = is_direct ? reinterpret_cast<L *>(out) : sums.data();
        std::fill_n(to, size, L(0));
        for_positions(p, positions, plane, [=](int64_t i, int64_t at, int64_t) {
            if (uint64_t(at - places.begin) < uint64_t(size))
                to[at - places.begin] += widen(input[i]);
        });
        if constexpr (!is_direct)
            divide<T>(to, size, 1, nullptr, out);
    });
}

}  // namespace

void unique_positions(const Problem &p, const void *positions, void *unique) {
    const Positions all(positions, type_of(p).bytes, p.plane() / p.channels);
    if (p.bytes != 4 && p.bytes != 8)
        reject("position has this many bytes:", p.bytes);
    for_places(p, [&](int64_t plane, const Range &places) {
        const int64_t size = places.end - places.begin;
        std::vector<int64_t> last(size_t(size), -1);
        for_positions(p, all, plane, [&](int64_t i, int64_t at, int64_t) {
            if (uint64_t(at - places.begin) < uint64_t(size))
                last[size_t(at - places.begin)] = i;
        });
        for_positions(p, all, plane, [&](int64_t i, int64_t at, int64_t position) {
            // The first part of a plane writes -1 for positions outside.
            if (at < 0 ? places.begin > 0 : !places.contains(at))
                return;
            position = at >= 0 && last[size_t(at - places.begin)] == i ? position : -1;
            if (p.bytes == 4)
                static_cast<int32_t *>(unique)[i] = int32_t(position);
            else
                static_cast<int64_t *>(unique)[i] = position;
        });
    });
}

void gather_positions(const Problem &p, const void *input, const void *positions, void *output) {
    const Positions all(positions, p.bytes, p.plane() / p.channels);
    const double cost = 4. * double(p.output_plane() + p.plane());
    with_numbers(type_of(p).bytes, [&](auto element) {
        using T = decltype(element);
        T *const to = static_cast<T *>(output);
        parallel(p.planes, cost, [&](int64_t begin, int64_t end) {
            for (int64_t plane = begin; plane < end; ++plane) {
                const T *const from = static_cast<const T *>(input) + plane * p.plane();
                for_positions(p, all, plane, [=](int64_t i, int64_t at, int64_t) {
                    to[i] = at < 0 ? T(0) : from[at];
                });
            }
        });
    });
}

void scatter_positions(const Problem &p, const void *input, const void *positions, void *output) {
    const Positions all(positions, p.bytes, p.plane() / p.channels);
    const auto run = [&](auto element) {
        using T = decltype(element);
        scatter(static_cast<const T *>(input), all, static_cast<T *>(output), p);
    };
    if (p.type == 0)
        run(float());
    else if (p.type == 1)
        run(double());
    else if (p.type == 2)
        run(Half());
    else if (p.type == 3)
        run(BFloat16());
    else
        // Integers: no position has two elements, so the elements' bytes can be added to zeros.
        with_numbers(type_of(p).bytes, run);
}

}  // namespace dmlpool
