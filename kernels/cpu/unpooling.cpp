// Max unpooling, gathers and scatters. A position counts the elements of one channel of a plane. A
// place counts the elements of all channels of a plane: position * channels + channel. A pixel is
// one output of all channels.
//
//     positions  | 3 | 0 |      scatter: elements to places     | b . . a . |
//     elements   | a | b |      gather: places to elements
//
// A place is written by one thread in the order of the elements, so that the last of several
// elements there is the same for any number of threads. Where planes are few, threads share their
// places, and each reads all positions.

#include "memory.h"
#include "operators.h"
#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

constexpr int64_t CHUNK = 4096;  // positions that are read at once, where nothing is scattered
// What the memory that parts need beside operands may hold: 64 MB of bits, or of sums in float32.
constexpr int64_t MOST_BITS = 1 << 29;
constexpr int64_t MOST_SUMS = 1 << 24;

// The elements of some pixels of a plane, and the positions where they are read or written.
struct Part {
    const Problem &p;
    int64_t plane;
    Range pixels;
    Range positions;

    // The places, and where the first one lies in the tensor.
    int64_t size() const { return positions.size() * p.channels; }
    int64_t first_place() const { return plane * p.plane() + positions.begin * p.channels; }
};

// The positions of a call: integers of 4 or 8 bytes, or indices in the whole tensor. -1 and numbers
// outside the plane are no positions.
struct Positions {
    const Problem &p;
    const void *numbers;
    const int64_t bytes;
    const bool are_indices = false;
    const int64_t size = p.plane() / p.channels;           // positions in a plane
    const int64_t pixels = p.output_plane() / p.channels;  // of a plane

    // Calls act(part) for all parts of all planes: at most `most_pixels` pixels and
    // `most_positions` positions.
    void for_parts(int64_t most_pixels, int64_t most_positions, const auto &act) const {
        const double cost = 4. * double(p.channels) * double(most_pixels + most_positions);
        parallel_loops({parts_of(pixels, most_pixels), parts_of(size, most_positions), p.planes},
                       cost, [&] {
                           return [&](const auto &at) {
                               const int64_t pixel = at[0] * most_pixels;
                               const int64_t position = at[1] * most_positions;
                               act(Part{p,
                                        at[2],
                                        {pixel, min(pixels, pixel + most_pixels)},
                                        {position, min(size, position + most_positions)}});
                           };
                       });
    }
    // For parts that read, and for parts that write, of which `most` places are written at a time.
    void read_parts(const auto &act) const { for_parts(max(1, CHUNK / p.channels), size, act); }
    void write_parts(int64_t most, const auto &act) const {
        const int64_t threads = available_threads();
        const int64_t share = parts_of(size, parts_of(threads, p.planes));
        for_parts(pixels, clamp(most / (threads * p.channels), 1, share), act);
    }
    // Calls act(i, at, position, number) for the elements of a part. `at` counts places from
    // first_place() on, and is -1 outside the part. What is no position is `size` or greater. A
    // plane of one channel is one loop.
    template <bool is_backwards = false>
    void each(const Part &part, const auto &act) const {
        const auto run = [&]<class N>(N) {
            const bool is_flat = p.channels == 1;
            const int64_t among = part.pixels.size();
            const int64_t rows = is_flat ? 1 : among;
            const int64_t count = is_flat ? among : p.channels;
            const int64_t step = is_flat ? 0 : 1;
            const int64_t channels = p.channels;
            const uint64_t unit = are_indices ? size : 0;
            const uint64_t origin = part.plane * channels * unit;
            const uint64_t first = part.positions.begin, width = part.positions.size();
            for (int64_t row = 0; row < rows; ++row) {
                const int64_t pixel = part.pixels.begin + (is_backwards ? rows - 1 - row : row);
                const int64_t begin = (part.plane * pixels + pixel) * channels;
                const N *const from = as<N>(numbers) + begin;
                for (int64_t i = 0; i < count; ++i) {
                    const int64_t k = is_backwards ? count - 1 - i : i;
                    const int64_t number = read<N>(from + k);
                    const uint64_t position = uint64_t(number) - origin - k * step * unit;
                    const bool is_inside = position - first < width;
                    const int64_t at = int64_t(position - first) * channels + k * step;
                    act(begin + k, is_inside ? at : -1, position, number);
                }
            }
        };
        if (bytes != 4 && bytes != 8)
            reject("position has this many bytes:", bytes);
        bytes == 4 ? run(int32_t()) : run(int64_t());
    }
    // Calls act(i, at) for the last element of each place of a part. `unique`, whose integers have
    // `out_bytes` bytes, gets the positions of these, and -1 for other elements.
    void each_last(const Part &part, void *unique, int64_t out_bytes, const auto &act) const {
        vector<uint64_t> seen(parts_of(part.size(), 64));
        // What is no position is written by the first part of a plane.
        const uint64_t elsewhere = part.positions.begin == 0 ? size : UINT64_MAX;
        each<true>(part,
                   [=, bits = seen.data()](int64_t i, int64_t at, uint64_t position, int64_t) {
                       if (at < 0 && position < elsewhere)
                           return;
                       const bool is_last = at >= 0 && !(bits[at / 64] >> at % 64 & 1);
                       const int64_t written = is_last ? int64_t(position) : -1;
                       if (out_bytes == 4)
                           as<int32_t>(unique)[i] = int32_t(written);
                       else
                           as<int64_t>(unique)[i] = written;
                       if (!is_last)
                           return;
                       bits[at / 64] |= uint64_t(1) << at % 64;
                       act(i, at);
                   });
    }
    // Whether there is a number but -1 outside its plane.
    bool are_wrong() const {
        atomic<bool> result = false;
        read_parts([&](const Part &part) {
            int64_t wrong = 0;
            each(part,
                 [&, all = uint64_t(size)](int64_t, int64_t, uint64_t position, int64_t number) {
                     wrong |= (position >= all) & (number != -1);
                 });
            if (wrong != 0)
                result = true;
        });
        return result;
    }
};

// Writes zeros, and adds each element at its position.
template <class T>
void scatter(const T *input, const Positions &positions, T *output) {
    using L = Wide<T>;
    constexpr bool is_direct = is_same_v<T, L>;
    positions.write_parts(is_direct ? INT64_MAX : MOST_SUMS, [&](const Part &part) {
        vector<L> sums(is_direct ? 0 : part.size());
        T *const out = output + part.first_place();
        L *const to = is_direct ? as<L>(out) : sums.data();
        fill_n(to, part.size(), L(0));
        positions.each(part, [=](int64_t i, int64_t at, uint64_t, int64_t) {
            if (at >= 0)
                to[at] += widen(read<T>(input + i));
        });
        if constexpr (!is_direct)
            divide<T>(to, part.size(), out);
    });
}

}  // namespace

void unique_positions(const Problem &p, const void *positions, void *unique) {
    const Positions all{p, positions, type_of(p).bytes};
    if (p.bytes != 4 && p.bytes != 8)
        reject("position has this many bytes:", p.bytes);
    all.write_parts(MOST_BITS, [&](const Part &part) {
        all.each_last(part, unique, p.bytes, [](int64_t, int64_t) {});
    });
}

void max_unpooling(const Problem &p, const void *input, const void *indices, void *output,
                   void *unique) {
    const Positions all{p, indices, p.bytes, p.numbering == INDICES};
    if (all.are_wrong())
        throw out_of_range("an index");
    use_large_pages(output, p.input_bytes(type_of(p).bytes));
    with_integers(type_of(p).bytes, [&]<class T>(T) {
        const T *const from = as<T>(input);
        all.write_parts(unique ? MOST_BITS : INT64_MAX, [&](const Part &part) {
            T *const to = as<T>(output) + part.first_place();
            fill_n(to, part.size(), T(0));
            if (unique)
                return all.each_last(part, unique, all.size < int64_t(1) << 31 ? 4 : 8,
                                     [=](int64_t i, int64_t at) { to[at] = read<T>(from + i); });
            all.each(part, [=](int64_t i, int64_t at, uint64_t, int64_t) {
                if (at >= 0)
                    to[at] = read<T>(from + i);
            });
        });
    });
}

void gather_positions(const Problem &p, const void *input, const void *positions, void *output) {
    const Positions all{p, positions, p.bytes};
    with_integers(type_of(p).bytes, [&]<class T>(T) {
        all.read_parts([&](const Part &part) {
            const T *const from = as<T>(input) + part.first_place();
            T *const to = as<T>(output);
            all.each(part, [=](int64_t i, int64_t at, uint64_t, int64_t) {
                to[i] = at >= 0 ? read<T>(from + at) : T(0);
            });
        });
    });
}

void scatter_positions(const Problem &p, const void *input, const void *positions, void *output) {
    const Positions all{p, positions, p.bytes};
    const auto run = [&]<class T>(T) { scatter(as<T>(input), all, as<T>(output)); };
    // Integers have unique positions: each is added to a 0, so its bytes stay whatever its type.
    type_of(p).infinity != 0 ? with_floats(p.type, "data type", run)
                             : with_integers(type_of(p).bytes, run);
}

}  // namespace dmlpool
