// Max pooling on the CPU: values, winning taps or indices, and the gradient that flows to the winners.

#include "pooling.h"

namespace dmlpool {
namespace {

struct Max {
    static constexpr bool takes_twice = true;  // an element that is combined twice changes nothing

    template <class L>
    static constexpr L identity() {
        return std::is_floating_point_v<L> ? -std::numeric_limits<L>::infinity() : std::numeric_limits<L>::lowest();
    }
    template <class L>
    static L of(L first, L second) {
        const L larger = second > first ? second : first;  // the first where either is NaN
        if constexpr (std::is_floating_point_v<L>) {
            using Bits = std::conditional_t<sizeof(L) == 8, int64_t, int32_t>;
            return bits_as<L>(Bits(bits_as<Bits>(larger) | -Bits(second != second)));  // all ones are a NaN too
        }
        return larger;
    }
    // Half precision as integers in the order of its numbers, NaNs of both signs above infinity.
    template <class T>
    static T load(T value) {
        return value;
    }
    static int16_t load(Half half) { return key(half.bits, 0x3ff); }
    static int16_t load(BFloat16 value) { return key(value.bits, 0x7f); }
    template <class T, class L>
    static T store(L value) {
        if constexpr (std::is_same_v<T, Half>) return {bits_of_key(value, 0x3ff)};
        else if constexpr (std::is_same_v<T, BFloat16>) return {bits_of_key(value, 0x7f)};
        else return value;
    }
    static int16_t key(uint16_t bits, int16_t nans) {
        const int16_t number = int16_t(bits);
        return int16_t((number ^ (number >> 15 & 0x7fff)) - nans);
    }
    static uint16_t bits_of_key(int16_t key, int16_t nans) {
        const int16_t number = int16_t(key + nans);
        return uint16_t(number ^ (number >> 15 & 0x7fff));
    }
};

template <class T>
void pool_values(const T *input, T *output, const Problem &p) {
    pool<Max>(input, output, p, Store<Max>());
}


// Elements as integers of 2, 4 or 8 bytes in the order of max pooling: zeros of both signs are equal, and so are all
// NaNs, above infinity.

template <class T>
using Key = std::conditional_t<sizeof(T) <= 2, int16_t, std::conditional_t<sizeof(T) == 4, int32_t, int64_t>>;

template <class T>
constexpr bool is_float = std::is_floating_point_v<Wide<T>>;

template <class T>
constexpr Key<T> key_of_infinity() {
    if (std::is_same_v<T, double>) return Key<T>(0x7ff0000000000000);
    if (std::is_same_v<T, float>) return Key<T>(0x7f800000);
    return Key<T>(std::is_same_v<T, Half> ? 0x7c00 : 0x7f80);
}

template <class T>
inline Key<T> key_of(T value) {
    using K = Key<T>;
    if constexpr (is_float<T>) {
        constexpr K most = std::numeric_limits<K>::max();
        const K bits = bits_as<K>(value), magnitude = bits & most, sign = bits >> (8 * sizeof(K) - 1);
        return magnitude > key_of_infinity<T>() ? most : K((magnitude ^ sign) - sign);
    } else if constexpr (std::is_unsigned_v<T> && sizeof(T) >= 2)
        return K(value ^ T(1) << (8 * sizeof(T) - 1));
    else
        return value;
}

template <class T>
inline T value_of_key(Key<T> key) {
    using K = Key<T>;
    if constexpr (is_float<T>) {
        constexpr K most = std::numeric_limits<K>::max();
        const K sign = key >> (8 * sizeof(K) - 1);
        return bits_as<T>(K(((key ^ sign) - sign) | (sign & ~most)));
    } else if constexpr (std::is_unsigned_v<T> && sizeof(T) >= 2)
        return T(key) ^ T(1) << (8 * sizeof(T) - 1);
    else
        return T(key);
}

template <class T>
constexpr Key<T> lowest_key() {
    if (is_float<T>) return Key<T>(-key_of_infinity<T>());
    return sizeof(T) == 1 ? (std::is_signed_v<T> ? -128 : 0) : std::numeric_limits<Key<T>>::min();
}

// Taps as numbers in memory of 1, 2, 4 or 8 bytes.
template <class Act>
void with_numbers(int bytes, Act act) {
    if (bytes == 1) act(Type<uint8_t>());
    if (bytes == 2) act(Type<int16_t>());
    if (bytes == 4) act(Type<int32_t>());
    if (bytes == 8) act(Type<int64_t>());
}

// Where the taps of windows lie: `unit` for each position in the plane, and `lane_unit` for each lane.
struct Taps {
    const Problem &p;
    int64_t unit;
    std::vector<int64_t> columns;  // of each element in a row of outputs, from the first tap of the first window on
    std::vector<int64_t> offsets;  // of each tap from its window's first, where there are few

    Taps(const Problem &p, int64_t unit, int64_t lane_unit) : p(p), unit(unit), columns(p.output_row()) {
        // Those of empty windows, which have no winner, are far below 0.
        for (int64_t o = 0, i = 0; o < p.w().outputs; ++o) {
            const int64_t column = p.w().is_empty(o) ? std::numeric_limits<int64_t>::min() / 2 : o * p.w().stride * unit;
            for (int64_t lane = 0; lane < p.lanes; ++lane, ++i) columns[i] = column + lane * lane_unit;
        }
        const double taps = double(p.d().window) * double(p.h().window) * double(p.w().window);
        for (int64_t tap = 0; taps <= 4096 && tap < int64_t(taps); ++tap) offsets.push_back(computed_offset(tap));
    }
    int64_t computed_offset(int64_t tap) const {
        const int64_t tw = tap % p.w().window, row = tap / p.w().window, th = row % p.h().window;
        const int64_t y = row / p.h().window * p.d().dilation * p.h().size + th * p.h().dilation;
        return (y * p.w().size + tw * p.w().dilation) * unit;
    }
    // Calls visit(i, place) for elements [from, to) of a row of outputs, the place counted from the plane's first element;
    // below 0 where a window is empty. `are_apart`: no two visits write the same element.
    template <bool are_apart, class N, class Visit>
    inline void each(const N *__restrict taps, int64_t od, int64_t oh, int64_t from, int64_t to, Visit visit) const {
        const bool is_empty = p.d().is_empty(od) || p.h().is_empty(oh);
        const int64_t y = p.d().first(od) * p.h().size + p.h().first(oh);
        const int64_t first = is_empty ? std::numeric_limits<int64_t>::min() / 2 : (y * p.w().size - p.w().padding) * unit;
        const int64_t *__restrict column = columns.data(), *__restrict offset = offsets.data();
        if (offsets.empty())
            for (int64_t i = from; i < to; ++i) visit(i, first + column[i] + computed_offset(taps[i]));
        else if constexpr (are_apart)
            VECTORIZE
            for (int64_t i = from; i < to; ++i) visit(i, first + column[i] + offset[taps[i]]);
        else
            for (int64_t i = from; i < to; ++i) visit(i, first + column[i] + offset[taps[i]]);
    }
};

// What is written for each winner: the number of its tap, its position in the plane, or its index in the whole tensor.
// Adaptive pooling has positions alone.
enum Numbering { TAPS, POSITIONS, INDICES };

struct Winners {
    const Problem &p;
    void *numbers;  // nullptr: values alone
    int bytes;
    bool is_direct;  // as they are found: taps, or the positions of adaptive pooling
    int64_t plane_size;  // what indices count for a plane, 0 for positions
    std::vector<Taps> taps;

    Winners(const Problem &p, void *numbers, int bytes, int numbering) : p(p), numbers(numbers), bytes(bytes) {
        is_direct = numbering == TAPS || p.w().window == 0;
        plane_size = numbering == INDICES ? p.plane() / p.lanes : 0;
        if (!is_direct && numbers != nullptr) taps.emplace_back(p, 1, plane_size);
    }
    // Stores those of outputs [o, o + count) of a row; -1 is that of an empty window.
    template <class I>
    void store(const I *__restrict winners, int64_t plane, int64_t od, int64_t oh, int64_t o, int64_t count) const {
        const int64_t from = o * p.lanes, to = (o + count) * p.lanes, least = p.w().window == 0 ? -1 : 0;
        const int64_t row = plane * p.output_plane() + (od * p.h().outputs + oh) * p.output_row();
        with_numbers(bytes, [=](auto type) {
            using N = typename decltype(type)::type;
            N *__restrict out = static_cast<N *>(numbers) + row;
            const I *__restrict which = winners - from;
            if (is_direct)
                VECTORIZE
                for (int64_t i = from; i < to; ++i) out[i] = N(std::max<I>(which[i], I(least)));
            else if constexpr (sizeof(N) >= 4) {
                const int64_t origin = plane * p.lanes * plane_size;
                taps[0].each<true>(which, od, oh, from, to, [=](int64_t i, int64_t place) {
                    out[i] = N(place < 0 ? -1 : origin + place);
                });
            }
        });
    }
};

// Three more taps of n windows, on top of what won before; of equals the first wins. Not inlined: GCC makes no vectors of
// the loop where it knows that two of the taps are the same.
template <class S, class I>
__attribute__((noinline)) void challenge(const S *const *tap, const I *number, int64_t n, I *__restrict keys, I *__restrict numbers) {
    const S *__restrict a = tap[0], *__restrict b = tap[1], *__restrict c = tap[2];
    const I first = number[0], second = number[1], third = number[2];
    VECTORIZE
    for (int64_t i = 0; i < n; ++i) {
        I key = keys[i], winner = numbers[i];
        const I x = key_of(a[i]), y = key_of(b[i]), z = key_of(c[i]);
        winner = x > key ? first : winner, key = x > key ? x : key;
        winner = y > key ? second : winner, key = y > key ? y : key;
        winner = z > key ? third : winner, key = z > key ? z : key;
        keys[i] = key, numbers[i] = winner;
    }
}
template <class S, class I>
inline void challenge_all(const S *const *taps, const I *number, int64_t count, int64_t n, I *keys, I *numbers) {
    for (; count >= 3; taps += 3, number += 3, count -= 3) challenge(taps, number, n, keys, numbers);
    if (count == 0) return;
    // The last again changes nothing.
    const S *const rest[3] = {taps[0], taps[count - 1], taps[count - 1]};
    const I which[3] = {number[0], number[count - 1], number[count - 1]};
    challenge(rest, which, n, keys, numbers);
}

// out = the winners of first and second, whose numbers count from `delta` on.
template <class I>
inline void merge(const I *first_key, const I *first, const I *second_key, const I *second, I delta, int64_t n, I *keys,
                  I *numbers) {
    VECTORIZE
    for (int64_t i = 0; i < n; ++i) {
        const I holder = first_key[i], challenger = second_key[i];
        numbers[i] = challenger > holder ? I(second[i] + delta) : first[i];
        keys[i] = challenger > holder ? challenger : holder;
    }
}

// Winners of windows by doubling, in place: of data[length] in steps of `shift` elements for a tap, whose numbers differ
// by `unit`. Then a window's winner is that of two entries, `last` taps apart.
template <class I>
int64_t double_winners(I *keys, I *numbers, int64_t window, int64_t shift, int64_t length, I unit) {
    int64_t power = 1;
    for (; 2 * power <= window; power *= 2) {
        const int64_t by = power * shift;
        merge<I>(keys, numbers, keys + by, numbers + by, I(power * unit), std::max<int64_t>(0, length - by), keys, numbers);
    }
    return window - power;
}

// A window that is much larger than what it pools: nothing may cost what it spans.
inline bool is_huge(const Axis &axis) { return axis.extent() > 64 + 4 * axis.size; }

// Whether each window is to be pooled for itself: long ones that overlap little, huge ones, and bins.
inline bool is_by_columns(const Problem &p) {
    if (p.w().window == 0 || is_huge(p.d()) || is_huge(p.h()) || is_huge(p.w())) return true;
    return !is_wide(p.h()) && !is_wide(p.w()) && has_long_rows(p.w(), p.lanes);
}

// Reads taps of the same column in all rows of a window: pointers to the rows, and the numbers of the rows' first taps.
template <class T>
struct RowsOfWindow {
    std::vector<const T *> taps;
    std::vector<Key<T>> numbers;

    void find(const T *plane, int64_t od, int64_t oh, const Problem &p) {
        const Axis &d = p.d(), &h = p.h(), &w = p.w();
        const auto depth = d.range(od), height = h.range(oh);
        taps.clear(), numbers.clear();
        for (int64_t td = 0; td < depth.count; ++td)
            for (int64_t th = 0; th < height.count; ++th) {
                const int64_t z = depth.start + td * depth.step, y = height.start + th * height.step;
                const int64_t tap_row = (depth.tap + td) * h.window + height.tap + th;
                taps.push_back(plane + (z * h.size + y) * p.row());
                numbers.push_back(Key<T>(w.window == 0 ? (z * h.size + y) * w.size : tap_row * w.window));
            }
    }
};

// The winner of window o among the columns [start, start + n), on top of what won in those before. Where `numbers` is null
// a window has one row, and its first column that is largest wins.
template <class I>
inline void choose(int64_t o, int64_t start, int64_t n, const I *keys, const I *numbers, I row_number, const Axis &w, I &best,
                   I &found) {
    const auto range = w.range(o);
    const auto steps_to = [&](int64_t distance) { return range.step == 1 ? distance : (distance + range.step - 1) / range.step; };
    const int64_t skipped = start > range.start ? steps_to(start - range.start) : 0;
    const int64_t first = range.start + skipped * range.step - start;
    const int64_t count = std::min(range.count - skipped, steps_to(n - first));
    const I *__restrict key = keys + first;
    if (count <= 0) return;
    I largest = key[0], least = std::numeric_limits<I>::max();
    const auto among = [&](int64_t step) {
        for (int64_t i = 1; i < count; ++i) largest = key[i * step] > largest ? key[i * step] : largest;
        if (numbers == nullptr) {
            int64_t at = 0;
            for (I is_here = 0; at + 64 <= count; at += 64) {
                for (int64_t i = 0; i < 64; ++i) is_here |= key[(at + i) * step] == largest;
                if (is_here) break;
            }
            while (key[at * step] != largest) ++at;
            least = I(row_number + I(at));
            return;
        }
        const I *__restrict number = numbers + first;
        for (int64_t i = 0; i < count; ++i) {
            const I tap = key[i * step] == largest ? I(number[i * step] + I(i)) : std::numeric_limits<I>::max();
            least = tap < least ? tap : least;
        }
    };
    if (range.step == 1) among(1);
    else among(range.step);
    least = I(least + I(w.window == 0 ? start + first : range.tap + skipped));
    if (largest > best || found < 0 || (largest == best && least < found)) best = largest, found = least;
}

// Winners column by column: those among the rows of a window first, then among its columns, of equals the lowest number.
template <class T>
void pool_winners_by_columns(const T *input, T *output, const Winners &winners, const Problem &p) {
    using I = Key<T>;
    constexpr int64_t CHUNK = 4096;
    const Axis &d = p.d(), &h = p.h(), &w = p.w();
    const double read = double(p.plane()) * double(w.window == 0 ? 2 : std::max<int64_t>(1, w.window / w.stride));
    parallel(p, p.planes * d.outputs * h.outputs, 2. * read / double(d.outputs * h.outputs), [&](int64_t begin, int64_t end) {
        std::vector<I> keys(std::min(CHUNK, w.size)), numbers(keys.size()), best(w.outputs), found(w.outputs);
        RowsOfWindow<T> rows;
        std::vector<const T *> columns;
        for (int64_t number = begin; number < end; ++number) {
            const int64_t oh = number % h.outputs, od = number / h.outputs % d.outputs, plane = number / h.outputs / d.outputs;
            rows.find(input + plane * p.plane(), od, oh, p);
            std::fill(best.begin(), best.end(), lowest_key<T>()), std::fill(found.begin(), found.end(), I(-1));
            for (int64_t o = 0, next; !rows.taps.empty() && o < w.outputs; o = next) {
                // As many windows as lie in one chunk, or one that may need several.
                int64_t low = w.size, high = 0;
                for (next = o; next < w.outputs; ++next) {
                    const auto range = w.range(next);
                    if (range.count == 0) continue;
                    if (next > o && low < high && range.end() - low > CHUNK) break;
                    low = std::min(low, range.start), high = std::max(high, range.end());
                }
                for (int64_t start = low; start < high; start += CHUNK) {
                    const int64_t n = std::min(CHUNK, high - start);
                    I *__restrict key = keys.data(), *which = rows.taps.size() == 1 ? nullptr : numbers.data();
                    if (which == nullptr) {
                        const T *__restrict row = rows.taps[0] + start;
                        VECTORIZE
                        for (int64_t i = 0; i < n; ++i) key[i] = key_of(row[i]);
                    } else {
                        columns = rows.taps;
                        for (const T *&column : columns) column += start;
                        std::fill_n(key, n, lowest_key<T>()), std::fill_n(which, n, rows.numbers[0]);
                        challenge_all(columns.data(), rows.numbers.data(), int64_t(columns.size()), n, key, which);
                    }
                    for (int64_t i = o; i < next; ++i)
                        choose(i, start, n, key, which, rows.numbers[0], w, best[size_t(i)], found[size_t(i)]);
                }
            }
            T *const out = output + number * w.outputs;
            for (int64_t o = 0; output != nullptr && o < w.outputs; ++o) out[o] = value_of_key<T>(best[o]);
            if (winners.numbers != nullptr) winners.store(found.data(), plane, od, oh, 0, w.outputs);
        }
    });
}

// Winners row by row: those among the taps of each input row first, then those among the rows of a window, so that of
// equals the first row's first column wins. Padding has the lowest key: where it ties with all of a window, the first tap
// inside the input is put in its place at the end.
template <class T>
void pool_winners_by_rows(const T *input, T *output, const Winners &winners, const Problem &p) {
    using I = Key<T>;
    constexpr I lowest = lowest_key<T>();
    const Axis &d = p.d(), &h = p.h(), &w = p.w();
    const bool doubles = is_wide(w), doubles_rows = is_wide(h);
    const int64_t lanes = p.lanes, stride = w.stride, height = std::min(h.size, std::max<int64_t>(h.extent(), 1));
    const int64_t elements = std::clamp<int64_t>((1 << 20) / height, 64, std::max<int64_t>(2048, doubles ? 2 * w.extent() * lanes : 0));
    const Blocks blocks(p, elements, 1024);
    const int64_t group = doubles_rows ? std::min(h.outputs, std::max<int64_t>(8, 2 * h.extent() / h.stride)) : 0;
    const Blocks sized = group ? Blocks(p, elements, blocks.pitch * lanes * group) : blocks;
    const double per_row = double(w.window * h.stride + h.window);
    const double cost = 2. * double(sized.rows * sized.tile * lanes) * per_row * double(d.window);
    parallel(p, sized.count(), cost, [&](int64_t begin, int64_t end) {
        std::vector<I> staged, phases, steps, keys, numbers, best, found, first_taps;
        std::vector<const I *> taps(doubles ? 0 : w.window);
        std::vector<I> tap_numbers(taps.size());
        for (size_t t = 0; t < taps.size(); ++t) tap_numbers[t] = I(t);
        const auto at_least = [](std::vector<I> &scratch, int64_t size) {
            if (int64_t(scratch.size()) < size) scratch.resize(size_t(size));
            return scratch.data();
        };
        for (int64_t number = begin; number < end; ++number) {
            const auto b = sized[number];
            const int64_t n = b.outputs * lanes;
            int64_t top = h.size, bottom = 0;
            const bool is_new = first_taps.empty() || sized.tiles > 1;
            I *const first_tap = at_least(first_taps, n);
            for (int64_t o = 0; is_new && o < b.outputs; ++o)
                std::fill_n(first_tap + o * lanes, lanes, w.is_empty(b.o + o) ? I(-1) : I(w.low(b.o + o)));
            for (int64_t r = 0; r < b.rows; ++r) {
                const auto range = h.range(b.oh + r);
                if (range.count) top = std::min(top, range.start), bottom = std::max(bottom, range.end());
            }
            if (doubles_rows) top = h.first(b.oh), bottom = top + h.span(b.rows);
            const int64_t rows = std::max<int64_t>(0, bottom - top);
            const int64_t pitch = sized.pitch * lanes, made_pitch = pitch / stride, made = rows * made_pitch;
            I *const best_keys = at_least(best, b.rows * n), *const best_numbers = at_least(found, b.rows * n);
            std::fill_n(best_keys, b.rows * n, lowest), std::fill_n(best_numbers, b.rows * n, I(0));
            I *const row_keys = at_least(keys, made), *const row_numbers = at_least(numbers, made);
            I *const stage = at_least(staged, rows * pitch);
            const auto depth = d.range(b.od);
            for (int64_t td = 0; td < depth.count; ++td) {
                const int64_t z = depth.start + td * depth.step;
                for (int64_t row = 0; row < rows; ++row) {
                    I *__restrict into = stage + row * pitch, *__restrict inside = into + (b.low - b.first) * lanes;
                    const int64_t y = top + row, count = y < 0 || y >= h.size ? 0 : (b.high - b.low) * lanes;
                    const T *__restrict source = input + ((b.plane * d.size + z) * h.size + y) * p.row() + b.low * lanes;
                    if (count == 0) inside = into;
                    else prefetch(source + (sized.tiles == 1 ? 4 * p.row() : count), count);
                    std::fill(into, inside, lowest), std::fill(inside + count, into + pitch, lowest);
                    VECTORIZE
                    for (int64_t i = 0; i < count; ++i) inside[i] = key_of(source[i]);
                }
                if (doubles) {
                    I *const step = at_least(steps, rows * pitch);
                    std::fill_n(step, rows * pitch, I(0));
                    const int64_t shift = w.dilation * lanes;
                    const int64_t last = double_winners(stage, step, w.window, shift, rows * pitch, I(1));
                    const int64_t pieces = stride == 1 ? 1 : made / lanes, piece = stride == 1 ? made - last * shift : lanes;
                    for (int64_t x = 0; x < pieces; ++x) {
                        const int64_t from = x * stride * lanes, to = x * lanes;
                        const int64_t size = std::clamp<int64_t>(rows * pitch - from - last * shift, 0, piece);
                        merge<I>(stage + from, step + from, stage + from + last * shift, step + from + last * shift,
                                 I(last), size, row_keys + to, row_numbers + to);
                    }
                } else {
                    std::fill_n(row_keys, made, lowest), std::fill_n(row_numbers, made, I(0));
                    const bool is_split = lanes == 1 && stride > 1, is_flat = lanes == 1 || stride == 1;
                    const I *from = stage;
                    if (is_split) split(from, at_least(phases, rows * pitch), made, stride), from = phases.data();
                    for (int64_t x = 0; x < (is_flat ? 1 : made / lanes); ++x) {
                        int64_t furthest = 0;
                        for (int64_t t = 0; t < w.window; ++t) {
                            const int64_t at = t * w.dilation;
                            const int64_t offset = is_split ? at / stride : (at + x * stride) * lanes;
                            taps[size_t(t)] = from + (is_split ? at % stride * made : 0) + offset, furthest = offset;
                        }
                        const int64_t count = is_flat ? made - furthest : std::min(lanes, rows * pitch - furthest);
                        challenge_all(taps.data(), tap_numbers.data(), w.window, std::max<int64_t>(count, 0),
                                      row_keys + x * lanes, row_numbers + x * lanes);
                    }
                }
                const int64_t unit = w.window, plane_number = (depth.tap + td) * h.window * unit;
                const int64_t last = doubles_rows ? double_winners(row_keys, row_numbers, h.window, h.dilation * made_pitch, made, I(unit)) : 0;
                for (int64_t r = 0; r < b.rows; ++r) {
                    const auto range = h.range(b.oh + r);
                    I *const key = best_keys + r * n, *const which = best_numbers + r * n;
                    const auto meet = [=](int64_t row, int64_t offset) {
                        merge<I>(key, which, row_keys + row * made_pitch, row_numbers + row * made_pitch,
                                 I(plane_number + offset * unit), n, key, which);
                    };
                    if (doubles_rows) {
                        meet(r * h.stride, 0);
                        if (last) meet(r * h.stride + last * h.dilation, last);
                    } else
                        for (int64_t th = 0; th < range.count; ++th)
                            meet(range.start + th * range.step - top, range.tap + th);
                }
            }
            for (int64_t r = 0; r < b.rows; ++r) {
                const int64_t oh = b.oh + r, row = (b.od * h.outputs + oh) * p.output_row() + b.o * lanes;
                const auto range = h.range(oh);
                const bool is_empty = range.count == 0 || depth.count == 0;
                const I base = I((depth.tap * h.window + range.tap) * w.window);
                I *__restrict which = best_numbers + r * n;
                const I *__restrict key = best_keys + r * n;
                T *__restrict out = output + b.plane * p.output_plane() + row;
                if (output != nullptr)
                    VECTORIZE
                    for (int64_t i = 0; i < n; ++i) out[i] = value_of_key<T>(key[i]);
                if (winners.numbers == nullptr) continue;
                VECTORIZE
                for (int64_t i = 0; i < n; ++i) {
                    const I least = I(base + first_tap[i]);
                    which[i] = is_empty || first_tap[i] < 0 ? I(-1) : which[i] > least ? which[i] : least;
                }
                winners.store(which, b.plane, b.od, oh, b.o, b.outputs);
            }
        }
    });
}

// Winners where channels are vectors: each window looks at its taps one after the other.
template <class T>
void pool_winners_by_lanes(const T *input, T *output, const Winners &winners, const Problem &p) {
    using I = Key<T>;
    const Axis &d = p.d(), &h = p.h(), &w = p.w();
    const int64_t lanes = p.lanes, rows_read = std::min(d.size, d.extent()) * std::min(h.size, h.extent());
    const double cost = 3. * double(p.output_row()) * double(rows_read) * double(std::min(w.size, w.extent()));
    parallel(p, p.planes * d.outputs * h.outputs, cost, [&](int64_t begin, int64_t end) {
        std::vector<I> keys(lanes + 512), found(p.output_row()), numbers;
        std::vector<const T *> taps;
        RowsOfWindow<T> rows;
        int64_t full = w.window == 0 ? 0 : w.outputs;  // the first window that reaches past the input's end
        while (full > 0 && w.high(full - 1) < w.window) --full;
        for (int64_t number = begin; number < end; ++number) {
            const int64_t oh = number % h.outputs, od = number / h.outputs % d.outputs, plane = number / h.outputs / d.outputs;
            rows.find(input + plane * p.plane(), od, oh, p);
            for (int64_t o = 0, together = 1; o < w.outputs; o += together) {
                const auto width = w.range(o);
                // Windows side by side that all taps of are inside the input have theirs side by side.
                for (together = 1; w.stride == 1 && o + together < full && together * lanes < 512;) ++together;
                if (width.count < w.window) together = 1;
                const int64_t n = together * lanes, first = w.window == 0 ? width.start : width.tap;
                taps.clear(), numbers.clear();
                for (size_t row = 0; row < rows.taps.size(); ++row)
                    for (int64_t tw = 0; tw < width.count; ++tw) {
                        taps.push_back(rows.taps[row] + (width.start + tw * width.step) * lanes);
                        numbers.push_back(I(rows.numbers[row] + first + tw));
                    }
                I *__restrict key = keys.data(), *__restrict which = found.data() + o * lanes;
                std::fill_n(key, n, lowest_key<T>()), std::fill_n(which, n, numbers.empty() ? I(-1) : numbers[0]);
                challenge_all(taps.data(), numbers.data(), int64_t(taps.size()), n, key, which);
                if (output == nullptr) continue;
                T *__restrict out = output + (number * w.outputs + o) * lanes;
                VECTORIZE
                for (int64_t i = 0; i < n; ++i) out[i] = value_of_key<T>(key[i]);
            }
            if (winners.numbers != nullptr) winners.store(found.data(), plane, od, oh, 0, w.outputs);
        }
    });
}

template <class T>
void pool_winners(const T *input, T *output, const Winners &winners, const Problem &p) {
    const bool is_apart = is_by_columns(p) || !(is_wide(p.h()) || is_wide(p.w()));
    if (p.lanes > 1 && is_apart) pool_winners_by_lanes(input, output, winners, p);
    else if (p.lanes == 1 && is_by_columns(p)) pool_winners_by_columns(input, output, winners, p);
    else pool_winners_by_rows(input, output, winners, p);
}

// Gradients.

// What arrives at each window, added to its winner in the order of the windows: a plane at a time, or where that is large
// a part of one, whose neighbours then visit the windows on the border too.
template <class T, class N>
void spread_by_windows(const T *arriving, const N *numbers, T *gradient, const Taps &taps, const Problem &p) {
    using L = Wide<T>;
    const Axis &d = p.d(), &h = p.h(), &w = p.w();
    const int64_t lanes = p.lanes, number = d.size > 1 ? 0 : h.size > 1 ? 1 : 2;
    const Axis &parted = p.axes[number];
    const int64_t slab = p.plane() / parted.size;
    const int64_t step = std::clamp<int64_t>((1 << 16) / slab, std::min(parted.size, parted.extent()), parted.size);
    const int64_t parts = (parted.size + step - 1) / step;
    parallel(p, p.planes * parts, 4. * double(step * slab), [&](int64_t begin, int64_t end) {
        std::vector<L> sums(std::is_same_v<T, L> ? 0 : step * slab);
        for (int64_t task = begin; task < end; ++task) {
            const int64_t plane = task / parts, start = task % parts * step, stop = std::min(parted.size, start + step);
            const int64_t size = (stop - start) * slab;
            T *const out = gradient + plane * p.plane() + start * slab;
            L *sum;
            if constexpr (std::is_same_v<T, L>) sum = out;
            else sum = sums.data();
            std::fill_n(sum, size, L(0));
            int64_t low[3] = {0, 0, 0}, high[3] = {d.outputs, h.outputs, w.outputs};
            const int64_t before = start + parted.padding - parted.extent() + parted.stride;
            low[number] = before < 0 ? 0 : std::min(before / parted.stride, parted.outputs);
            high[number] = std::clamp((stop - 1 + parted.padding) / parted.stride + 1, low[number], parted.outputs);
            for (int64_t od = low[0]; od < high[0]; ++od)
                for (int64_t oh = low[1]; oh < high[1]; ++oh) {
                    const int64_t row = ((plane * d.outputs + od) * h.outputs + oh) * p.output_row();
                    const T *const from = arriving + row;
                    prefetch(from + 4 * p.output_row(), p.output_row());
                    taps.each<false>(numbers + row, od, oh, low[2] * lanes, high[2] * lanes, [=](int64_t i, int64_t place) {
                        const int64_t at = place - start * slab;
                        if (uint64_t(at) < uint64_t(size)) sum[at] += widen(from[i]);
                    });
                }
            if constexpr (!std::is_same_v<T, L>)
                for (int64_t i = 0; i < size; ++i) out[i] = narrow<T>(sum[i]);
        }
    });
}

// The same where channels are vectors: each row of the gradient asks the windows that cover it, in their order, tap by tap.
template <class T, class N>
void spread_by_lanes(const T *arriving, const N *numbers, T *gradient, const Problem &p) {
    using L = Wide<T>;
    using I = std::conditional_t<sizeof(L) == 8, int64_t, int32_t>;
    const Axis &d = p.d(), &h = p.h(), &w = p.w();
    const int64_t lanes = p.lanes, n = p.output_row();
    const double cost = 2. * double(n * w.window) * std::max(1., double(d.window * h.window) / double(d.stride * h.stride));
    parallel(p, p.planes * d.size * h.size, cost, [&](int64_t begin, int64_t end) {
        std::vector<L> sums(std::is_same_v<T, L> ? 0 : p.row());
        for (int64_t row = begin; row < end; ++row) {
            T *const out = gradient + row * p.row();
            L *sum;
            if constexpr (std::is_same_v<T, L>) sum = out;
            else sum = sums.data();
            std::fill_n(sum, p.row(), L(0));
            for_covering(p, row / h.size % d.size, row % h.size, [&](int64_t od, int64_t oh, int64_t td, int64_t th) {
                const int64_t at = ((row / h.size / d.size * d.outputs + od) * h.outputs + oh) * n;
                for (int64_t o = 0; o < w.outputs; ++o) {
                    const T *__restrict from = arriving + at + o * lanes;
                    const N *__restrict tap = numbers + at + o * lanes;
                    for (int64_t t = w.high(o) - 1, low = w.low(o); t >= low; --t) {
                        L *__restrict into = sum + (w.first(o) + t * w.dilation) * lanes;
                        const N wanted = N((td * h.window + th) * w.window + t);
                        VECTORIZE
                        for (int64_t i = 0; i < lanes; ++i)
                            into[i] += bits_as<L>(I(bits_as<I>(widen(from[i])) & -I(tap[i] == wanted)));
                    }
                }
            });
            if constexpr (!std::is_same_v<T, L>)
                for (int64_t i = 0; i < p.row(); ++i) out[i] = narrow<T>(sum[i]);
        }
    });
}

template <class T, class N>
void spread(const T *arriving, const N *numbers, T *gradient, const Problem &p) {
    if (p.lanes >= 8 && double(p.d().window) * double(p.h().window) * double(p.w().window) <= 9) spread_by_lanes(arriving, numbers, gradient, p);
    else spread_by_windows(arriving, numbers, gradient, Taps(p, p.lanes, 1), p);
}

// Elements of 1, 2, 4 or 8 bytes by their positions.

// Calls visit(plane, od, oh) for every row of outputs.
template <class Visit>
void for_rows(const Problem &p, const Visit &visit) {
    const int64_t depths = p.d().outputs, heights = p.h().outputs;
    parallel(p, p.planes * depths * heights, 4. * double(p.output_row()), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) visit(row / heights / depths, row / heights % depths, row % heights);
    });
}

template <class T, class N>
void gather_at_taps(const T *input, const N *numbers, T *output, const Problem &p) {
    const Taps taps(p, p.lanes, 1);
    for_rows(p, [&](int64_t plane, int64_t od, int64_t oh) {
        const int64_t row = ((plane * p.d().outputs + od) * p.h().outputs + oh) * p.output_row();
        const T *const from = input + plane * p.plane();
        taps.each<true>(numbers + row, od, oh, 0, p.output_row(), [=](int64_t i, int64_t place) {
            output[row + i] = place < 0 ? T(0) : from[place];
        });
    });
}

// Calls visit(from, to, positions, step, count) for each lane of each plane: where its elements begin in a tensor of
// `count` positions and in one of `size`, and its positions.
template <class P, class Visit>
void for_planes(const P *positions, int64_t count, int64_t size, const Problem &p, const Visit &visit) {
    parallel(p, p.planes * p.lanes, 4. * double(count + size), [&](int64_t begin, int64_t end) {
        for (int64_t number = begin; number < end; ++number) {
            const int64_t plane = number / p.lanes, lane = number % p.lanes;
            const int64_t here = plane * count * p.lanes + lane;
            visit(here, plane * size * p.lanes + lane, positions + here);
        }
    });
}

// Positions inside the plane, and -1 for all but the last of several alike.
template <class P, class U>
void make_unique(const P *positions, U *unique, const Problem &p) {
    const int64_t count = p.output_plane() / p.lanes, size = p.plane() / p.lanes, step = p.lanes;
    for_planes(positions, count, size, p, [&](int64_t here, int64_t, const P *at) {
        std::vector<int64_t> last(size_t(size), -1);
        for (int64_t i = 0; i < count; ++i)
            if (uint64_t(at[i * step]) < uint64_t(size)) last[size_t(at[i * step])] = i;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t position = at[i * step];
            unique[here + i * step] = uint64_t(position) < uint64_t(size) && last[size_t(position)] == i ? U(position) : U(-1);
        }
    });
}

template <class T, class P>
void gather(const T *input, const P *positions, T *output, const Problem &p) {
    const int64_t count = p.output_plane() / p.lanes, size = p.plane() / p.lanes, step = p.lanes;
    for_planes(positions, count, size, p, [&](int64_t here, int64_t there, const P *at) {
        for (int64_t i = 0; i < count; ++i) {
            const int64_t position = at[i * step];
            output[here + i * step] = uint64_t(position) < uint64_t(size) ? input[there + position * step] : T{};
        }
    });
}

// Zeros with each element added at its position.
template <class T, class P>
void scatter(const T *input, const P *positions, T *output, const Problem &p) {
    using L = Wide<T>;
    const int64_t count = p.output_plane() / p.lanes, size = p.plane() / p.lanes, step = p.lanes;
    for_planes(positions, count, size, p, [&](int64_t here, int64_t there, const P *at) {
        std::vector<L> sums(std::is_same_v<T, L> ? 0 : size_t(size), L(0));
        if constexpr (std::is_same_v<T, L>)
            for (int64_t i = 0; i < size; ++i) output[there + i * step] = 0;
        for (int64_t i = 0; i < count; ++i) {
            const int64_t position = at[i * step];
            if (uint64_t(position) >= uint64_t(size)) continue;
            if constexpr (std::is_same_v<T, L>) output[there + position * step] += input[here + i * step];
            else sums[size_t(position)] += widen(input[here + i * step]);
        }
        for (size_t i = 0; i < sums.size(); ++i) output[there + int64_t(i) * step] = narrow<T>(sums[i]);
    });
}

}  // namespace
}  // namespace dmlpool

// What backends/cpu.py calls.
#pragma GCC visibility push(default)
extern "C" {

void dmlpool_use_threads(void *torch_parallel_for) {
    dmlpool::parallel_for = reinterpret_cast<dmlpool::ParallelFor>(torch_parallel_for);
}

// Values alone where `winners` is null, and winners alone where `output` is.
void dmlpool_max_pooling(int type, const void *input, void *output, void *winners, int bytes, int numbering,
                         const Problem *p) {
    using namespace dmlpool;
    with_type(type, [=](auto t) {
        using T = typename decltype(t)::type;
        const T *const from = static_cast<const T *>(input);
        T *const to = static_cast<T *>(output);
        const bool has_huge = is_huge(p->d()) || is_huge(p->h()) || is_huge(p->w());
        if (winners == nullptr && !has_huge) pool_values(from, to, *p);
        else pool_winners(from, to, Winners(*p, winners, bytes, numbering), *p);
    });
}

void dmlpool_max_pooling_indices(const void *taps, int tap_bytes, void *indices, int bytes, int numbering,
                                 const Problem *p) {
    using namespace dmlpool;
    const Winners winners(*p, indices, bytes, numbering);
    with_numbers(tap_bytes, [&](auto t) {
        using N = typename decltype(t)::type;
        for_rows(*p, [&](int64_t plane, int64_t od, int64_t oh) {
            const int64_t row = ((plane * p->d().outputs + od) * p->h().outputs + oh) * p->output_row();
            if constexpr (sizeof(N) < 8)
                winners.store(static_cast<const N *>(taps) + row, plane, od, oh, 0, p->w().outputs);
        });
    });
}

void dmlpool_max_pooling_grad(int type, const void *arriving, const void *taps, int bytes, void *gradient,
                              const Problem *p) {
    using namespace dmlpool;
    with_float_type(type, [=](auto t) {
        using T = typename decltype(t)::type;
        with_numbers(bytes, [=](auto n) {
            using N = typename decltype(n)::type;
            if constexpr (sizeof(N) < 8)
                spread(static_cast<const T *>(arriving), static_cast<const N *>(taps), static_cast<T *>(gradient), *p);
        });
    });
}

void dmlpool_max_pooling_gather(const void *input, int element_bytes, const void *taps, int bytes, void *output,
                                const Problem *p) {
    using namespace dmlpool;
    with_numbers(element_bytes, [=](auto t) {
        using T = typename decltype(t)::type;
        with_numbers(bytes, [=](auto n) {
            using N = typename decltype(n)::type;
            if constexpr (sizeof(T) > 1 && sizeof(N) < 8)
                gather_at_taps(static_cast<const T *>(input), static_cast<const N *>(taps), static_cast<T *>(output), *p);
        });
    });
}

// Positions of 4 or 8 bytes, in the plane; the problem's inputs are what they number, its outputs where they are.
void dmlpool_unique_positions(const void *positions, int bytes, void *unique, int unique_bytes, const Problem *p) {
    using namespace dmlpool;
    const auto run = [=](auto *from) {
        if (unique_bytes == 4) make_unique(from, static_cast<int32_t *>(unique), *p);
        else make_unique(from, static_cast<int64_t *>(unique), *p);
    };
    if (bytes == 4) run(static_cast<const int32_t *>(positions));
    else run(static_cast<const int64_t *>(positions));
}

void dmlpool_gather_positions(const void *input, int element_bytes, const void *positions, int bytes, void *output,
                              const Problem *p) {
    using namespace dmlpool;
    with_numbers(element_bytes, [=](auto t) {
        using T = typename decltype(t)::type;
        const T *const from = static_cast<const T *>(input);
        if (bytes == 4) gather(from, static_cast<const int32_t *>(positions), static_cast<T *>(output), *p);
        else gather(from, static_cast<const int64_t *>(positions), static_cast<T *>(output), *p);
    });
}

void dmlpool_scatter_positions(int type, const void *input, const void *positions, int bytes, void *output,
                               const Problem *p) {
    using namespace dmlpool;
    with_type(type, [=](auto t) {
        using T = typename decltype(t)::type;
        const T *const from = static_cast<const T *>(input);
        if (bytes == 4) scatter(from, static_cast<const int32_t *>(positions), static_cast<T *>(output), *p);
        else scatter(from, static_cast<const int64_t *>(positions), static_cast<T *>(output), *p);
    });
}
}
#pragma GCC visibility pop
