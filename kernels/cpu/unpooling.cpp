// Max unpooling, gathers and scatters. A position counts the elements of one channel of a plane. A
// place counts the elements of all channels of a plane: position * channels + channel. A pixel is
// one output of all channels.
//
//     positions  | 3 | 0 |      scatter: elements to places     | b . . a . |
//     elements   | a | b |      gather: places to elements
//
// A plane is written part by part, each by one thread in the order of the elements, so that the
// last of several elements at a place is the same for any number of threads. First all positions
// are read, and the places that each chunk of pixels reaches are found. A part visits the chunks
// that reach it:
//
//     chunks     | 0 to 5 | 4 to 11 |      parts  | 0 to 7: both | 8 to 15: the second |

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <vector>

#include "memory.h"
#include "operators.h"
#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

constexpr int64_t CHUNK = 4096;          // elements of a chunk, if planes are not very large
constexpr int64_t LIMIT = 8192;          // the most chunks of a plane, and the most parts
constexpr int64_t PART_BYTES = 1 << 18;  // of a part, if its chunks do not reach further
// What the memory that parts need beside operands may hold: 64 MB of bits, or of sums in float32.
constexpr int64_t MOST_BITS = 1 << 29;
constexpr int64_t MOST_SUMS = 1 << 24;

// Writes a position as number i of integers of 4 or 8 bytes.
inline void put(void *numbers, int64_t bytes, int64_t i, int64_t position) {
    if (bytes == 4)
        static_cast<int32_t *>(numbers)[i] = int32_t(position);
    else
        static_cast<int64_t *>(numbers)[i] = position;
}

// The positions of a call: integers of 4 or 8 bytes, or indices in the whole tensor. -1 and numbers
// outside the plane are no positions.
struct Positions {
    const Problem &p;
    const void *numbers;
    int64_t bytes;
    bool are_indices;
    int64_t size = p.plane() / p.channels;  // positions in a plane

    Positions(const Problem &p, const void *numbers, int64_t bytes, bool are_indices = false)
        : p(p), numbers(numbers), bytes(bytes), are_indices(are_indices) {
        if (bytes != 4 && bytes != 8)
            reject("position has this many bytes:", bytes);
    }
    // Calls act(N()) for the type N of the numbers.
    template <class Act>
    void with_type(const Act &act) const {
        bytes == 4 ? act(int32_t()) : act(int64_t());
    }
    // Calls act(i, number, position, channel) for the elements of some pixels of a plane. What is
    // no position is `size` or greater. A plane of one channel is one loop, and `channel` is 0.
    template <class N, bool is_backwards = false, class Act>
    void each(int64_t plane, const Range &pixels, const Act &act) const {
        const bool is_flat = p.channels == 1;
        const int64_t outer = is_flat ? 1 : pixels.end - pixels.begin;
        const int64_t inner = is_flat ? pixels.end - pixels.begin : p.channels;
        const int64_t step = is_flat ? 0 : 1;
        const uint64_t unit = are_indices && !is_flat ? size : 0;
        const uint64_t first = are_indices ? plane * p.channels * size : 0;
        const int64_t begin = plane * p.output_plane() + pixels.begin * p.channels;
        for (int64_t row = 0; row < outer; ++row) {
            const int64_t at = begin + (is_backwards ? outer - 1 - row : row) * inner;
            const N *const from = static_cast<const N *>(numbers) + at;
            for (int64_t c = 0; c < inner; ++c) {
                const int64_t k = is_backwards ? inner - 1 - c : c;
                const int64_t number = read<N>(from + k);
                act(at + k, number, uint64_t(number) - first - k * unit, k * step);
            }
        }
    }
    // The positions that some pixels reach. It writes them to `unique`, unless that is null, and
    // sets `is_wrong` if there is a number but -1 outside the plane.
    Range reach(int64_t plane, const Range &pixels, void *unique, int64_t unique_bytes,
                bool &is_wrong) const {
        const uint64_t positions_of_plane = size;
        int64_t low = size;
        int64_t high = -1;
        int64_t wrong = 0;
        const auto find = [&](auto number, auto is_copied) {
            each<decltype(number)>(
                plane, pixels, [&](int64_t i, int64_t number, uint64_t position, int64_t) {
                    const bool is_inside = position < positions_of_plane;
                    const int64_t at = is_inside ? int64_t(position) : -1;
                    low = std::min(low, is_inside ? at : int64_t(positions_of_plane));
                    high = std::max(high, at);
                    wrong |= !is_inside & (number != -1);
                    if constexpr (is_copied)
                        put(unique, unique_bytes, i, at);
                });
        };
        with_type([&](auto number) {
            unique != nullptr ? find(number, Count<1>()) : find(number, Count<0>());
        });
        is_wrong |= wrong != 0;
        return {low, high + 1};
    }
};

// A part of a plane: some positions of all channels.
struct Part {
    const Positions &positions;
    const Range *chunks;  // the positions that each chunk of pixels reaches
    int64_t chunk;        // pixels of a chunk
    int64_t plane;
    Range range;

    int64_t size() const { return (range.end - range.begin) * positions.p.channels; }
    int64_t first_place() const {
        return plane * positions.p.plane() + range.begin * positions.p.channels;
    }
    // Calls act(i, at) for the elements in the part, where `at` counts places of the part.
    template <bool is_backwards = false, class Act>
    void each(const Act &act) const {
        const int64_t channels = positions.p.channels;
        const int64_t pixels = positions.p.output_plane() / channels;
        const int64_t count = parts_of(pixels, chunk);
        const uint64_t first = range.begin;
        const uint64_t width = range.end - range.begin;
        positions.with_type([&](auto number) {
            for (int64_t done = 0; done < count; ++done) {
                const int64_t k = is_backwards ? count - 1 - done : done;
                if (chunks[k].begin >= range.end || chunks[k].end <= range.begin)
                    continue;
                const Range some = {k * chunk, std::min(pixels, (k + 1) * chunk)};
                positions.each<decltype(number), is_backwards>(
                    plane, some, [=](int64_t i, int64_t, uint64_t position, int64_t channel) {
                        if (position - first < width)
                            act(i, int64_t(position - first) * channels + channel);
                        __asm__("");  // not vectorized, as positions are in no order
                    });
            }
        });
    }
};

// The arguments of `write_parts`. It reads positions from `source`, and copies them to `unique` as
// integers of `unique_bytes` before it writes, unless `unique` is null.
struct Request {
    Positions source;
    void *unique;
    int64_t unique_bytes;
    int64_t place_bytes;     // bytes that the caller writes for a place
    int64_t most_places;     // places of all parts that are written at a time
    bool is_strict = false;  // whether nothing is written if there is a wrong number
};

// Calls write(part) for parts of all planes, and returns whether there is a wrong number. It is
// linear in positions and places, as parts are larger than what most chunks reach.
bool write_parts(const Request &request, const std::function<void(const Part &)> &write) {
    const Problem &p = request.source.p;
    const int64_t size = request.source.size;
    const int64_t threads = available_threads();
    const int64_t pixels = p.output_plane() / p.channels;
    const int64_t chunk = std::max({int64_t(1), CHUNK / p.channels, parts_of(pixels, LIMIT)});
    const int64_t count = parts_of(pixels, chunk);
    // A plane of one chunk needs no table: the chunk is taken to reach the whole plane.
    std::vector<Range> reached(count > 1 ? p.planes * count : 1, Range{0, size});
    std::atomic<bool> is_any_wrong = false;
    parallel(p.planes * count, 2. * double(chunk * p.channels), [&](int64_t begin, int64_t end) {
        bool is_wrong = false;
        for (int64_t k = begin; k < end; ++k) {
            const int64_t first = k % count * chunk;
            const Range range =
                request.source.reach(k / count, {first, std::min(pixels, first + chunk)},
                                     request.unique, request.unique_bytes, is_wrong);
            if (count > 1)
                reached[k] = range;
        }
        if (is_wrong)
            is_any_wrong = true;
    });
    if (is_any_wrong && request.is_strict)
        return true;
    // The positions of a part: what a cache keeps, or twice what a chunk reaches if that is more.
    double reach = 0;
    for (const Range &range : reached)
        reach += double(std::max<int64_t>(0, range.end - range.begin));
    int64_t step = std::max({PART_BYTES / (request.place_bytes * p.channels),
                             int64_t(2 * reach / double(reached.size())), parts_of(size, LIMIT)});
    if (p.planes < 4 * threads)
        step = std::min(step, parts_of(size, threads));
    step = std::clamp<int64_t>(request.most_places / (threads * p.channels), 1, step);
    const int64_t parts = parts_of(size, step);
    const double cost = 4. * double(p.output_plane() + p.plane()) / double(parts);
    parallel(p.planes * parts, cost, [&](int64_t begin, int64_t end) {
        for (int64_t number = begin; number < end; ++number) {
            const int64_t plane = number / parts;
            const int64_t first = number % parts * step;
            const Range *const chunks = reached.data() + (count > 1 ? plane * count : 0);
            write(
                Part{request.source, chunks, chunk, plane, {first, std::min(size, first + step)}});
        }
    });
    return is_any_wrong;
}

// Calls act(i, at) for the last element of each place of a part, and writes -1 to `unique`, whose
// integers have `bytes` bytes, for the elements before.
template <class Act>
void for_last(const Part &part, void *unique, int64_t bytes, const Act &act) {
    std::vector<uint64_t> seen(parts_of(part.size(), 64));
    part.each<true>([=, bits = seen.data()](int64_t i, int64_t at) {
        const uint64_t bit = uint64_t(1) << at % 64;
        if (bits[at / 64] & bit)
            return put(unique, bytes, i, -1);
        bits[at / 64] |= bit;
        act(i, at);
    });
}

// Writes zeros, and adds each element at its position.
template <class T>
void scatter(const T *input, const Positions &positions, T *output) {
    using L = Wide<T>;
    constexpr bool is_direct = std::is_same_v<T, L>;
    const int64_t most = is_direct ? std::numeric_limits<int64_t>::max() : MOST_SUMS;
    write_parts({positions, nullptr, 0, sizeof(L), most}, [&](const Part &part) {
        std::vector<L> sums(is_direct ? 0 : part.size());
        T *const out = output + part.first_place();
        L *const to = is_direct ? reinterpret_cast<L *>(out) : sums.data();
        std::fill_n(to, part.size(), L(0));
        part.each([=](int64_t i, int64_t at) { to[at] += widen(read<T>(input + i)); });
        if constexpr (!is_direct)
            divide<T>(to, part.size(), 1, nullptr, out);
    });
}

}  // namespace

void unique_positions(const Problem &p, const void *positions, void *unique) {
    const Positions all(p, positions, type_of(p).bytes);
    const Positions kept(p, unique, p.bytes);  // which rejects other sizes of numbers
    write_parts({all, unique, kept.bytes, 1, MOST_BITS}, [&](const Part &part) {
        for_last(part, unique, p.bytes, [](int64_t, int64_t) {});
    });
}

void max_unpooling(const Problem &p, const void *input, const void *indices, void *output,
                   void *unique) {
    const Positions all(p, indices, p.bytes, p.numbering == INDICES);
    const int64_t unique_bytes = all.size < int64_t(1) << 31 ? 4 : 8;
    const int64_t most = unique == nullptr ? std::numeric_limits<int64_t>::max() : MOST_BITS;
    bool is_wrong = false;
    use_large_pages(output, p.input_bytes(type_of(p).bytes));
    with_integers(type_of(p).bytes, [&](auto element) {
        using T = decltype(element);
        is_wrong =
            write_parts({all, unique, unique_bytes, sizeof(T), most, true}, [&](const Part &part) {
                T *const to = static_cast<T *>(output) + part.first_place();
                const auto put = [to, from = static_cast<const T *>(input)](int64_t i, int64_t at) {
                    to[at] = read<T>(from + i);
                };
                std::fill_n(to, part.size(), T(0));
                if (unique == nullptr)
                    part.each(put);
                else
                    for_last(part, unique, unique_bytes, put);
            });
    });
    if (is_wrong)
        throw std::out_of_range("an index");
}

void gather_positions(const Problem &p, const void *input, const void *positions, void *output) {
    const Positions all(p, positions, p.bytes);
    const int64_t pixels = p.output_plane() / p.channels;
    const int64_t chunk = std::max<int64_t>(1, CHUNK / p.channels);
    const int64_t chunks = parts_of(pixels, chunk);
    const auto gather = [&](auto element, auto number, int64_t plane, const Range &some) {
        using T = decltype(element);
        using N = decltype(number);
        const T *const from = static_cast<const T *>(input) + plane * p.plane();
        T *const to = static_cast<T *>(output);
        const uint64_t size = all.size;
        const auto run = [&](auto channels) {
            all.each<N>(plane, some, [=](int64_t i, int64_t, uint64_t position, int64_t channel) {
                const int64_t at = int64_t(position * channels) + channel;
                to[i] = position < size ? read<T>(from + at) : T(0);
                __asm__("");
            });
        };
        // Without the channel's part of a place it takes two thirds as long.
        p.channels == 1 ? run(Count<1>()) : run(p.channels);
    };
    with_integers(type_of(p).bytes, [&](auto element) {
        parallel(p.planes * chunks, 4. * double(chunk * p.channels),
                 [&](int64_t begin, int64_t end) {
                     for (int64_t k = begin; k < end; ++k) {
                         const int64_t first = k % chunks * chunk;
                         const Range some = {first, std::min(pixels, first + chunk)};
                         all.with_type([&](auto n) { gather(element, n, k / chunks, some); });
                     }
                 });
    });
}

void scatter_positions(const Problem &p, const void *input, const void *positions, void *output) {
    const Positions all(p, positions, p.bytes);
    const auto run = [&](auto element) {
        using T = decltype(element);
        scatter(static_cast<const T *>(input), all, static_cast<T *>(output));
    };
    // Integers have unique positions: each is added to a 0, so its bytes stay whatever its type.
    type_of(p).infinity != 0 ? with_floats(p.type, "data type", run)
                             : with_integers(type_of(p).bytes, run);
}

}  // namespace dmlpool
