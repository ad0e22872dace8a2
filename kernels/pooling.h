// What the CPU kernels share: geometry, threads, data types, and the combination of rows of windows.
//
// A tensor is (planes, D, H, W, lanes): a contiguous one has N * C planes of one lane, a channels_last one N planes of C
// lanes. All inner loops run over contiguous elements, so that the compiler makes vector instructions of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

// The loop's iterations do not depend on each other.
#if defined(__clang__)
#define VECTORIZE _Pragma("clang loop vectorize(assume_safety)")
#else
#define VECTORIZE _Pragma("GCC ivdep")
#endif

// Geometry: the structs that Python fills.

struct Axis {
    int64_t size, outputs, window, stride, padding, dilation;

    int64_t first(int64_t output) const { return output * stride - padding; }
    int64_t extent() const { return window == 0 ? stride + 2 : (window - 1) * dilation + 1; }
    // Input positions that `count` windows in a row span, the first and the last included.
    int64_t span(int64_t count) const { return (count - 1) * stride + extent(); }
    // The first tap inside the input, and the one after the last.
    int64_t low(int64_t output) const {
        return first(output) >= 0 ? 0 : std::min(window, (dilation - 1 - first(output)) / dilation);
    }
    int64_t high(int64_t output) const {
        const int64_t room = size - first(output);
        return room >= extent() ? window : room <= 0 ? 0 : (room + dilation - 1) / dilation;
    }
    bool is_empty(int64_t output) const { return low(output) >= high(output); }
    // The positions that an output reads inside the input, and the number of the first one's tap. Adaptive pooling has
    // no window but bins: from floor(o * size / outputs) to ceil((o + 1) * size / outputs).
    struct Range {
        int64_t start, count, tap, step;
        int64_t end() const { return start + (count - 1) * step + 1; }
    };
    Range range(int64_t output) const {
        if (window == 0) {
            const int64_t start = output * size / outputs;
            return {start, ((output + 1) * size + outputs - 1) / outputs - start, 0, 1};
        }
        const int64_t tap = low(output), count = high(output) - tap;
        return {count > 0 ? first(output) + tap * dilation : 0, std::max<int64_t>(count, 0), tap, dilation};
    }
};

struct Problem {
    int64_t planes, lanes;
    Axis axes[3];
    int64_t threads;

    const Axis &d() const { return axes[0]; }
    const Axis &h() const { return axes[1]; }
    const Axis &w() const { return axes[2]; }
    int64_t row() const { return w().size * lanes; }
    int64_t plane() const { return d().size * h().size * row(); }
    int64_t output_row() const { return w().outputs * lanes; }
    int64_t output_plane() const { return d().outputs * h().outputs * output_row(); }
};

namespace dmlpool {

// Threads: PyTorch's own, through the C function torch_parallel_for of libtorch, so that there is one pool of them.

using ParallelFor = int32_t (*)(int64_t begin, int64_t end, int64_t grain, void (*)(int64_t, int64_t, void *), void *);
inline ParallelFor parallel_for = nullptr;

// Calls work(begin, end) for parts of [0, count), of some 2^17 operations each, which threads take as they become free:
// a thread whose core is busy elsewhere does fewer. `cost` is that of one of count.
template <class Work>
void parallel(const Problem &problem, int64_t count, double cost, const Work &work) {
    const int64_t piece = std::clamp<int64_t>(int64_t((1 << 17) / std::max(cost, 1.)), 1, std::max<int64_t>(count, 1));
    const int64_t threads = std::min(problem.threads, (count + piece - 1) / piece);
    if (threads <= 1) return work(0, count);
    struct Shared {
        const Work &work;
        int64_t count, piece;
        std::atomic<int64_t> next;
    } shared{work, count, piece, {0}};
    const auto run = [](int64_t, int64_t, void *context) {
        Shared &s = *static_cast<Shared *>(context);
        for (int64_t begin; (begin = s.next.fetch_add(s.piece)) < s.count;)
            s.work(begin, std::min(s.count, begin + s.piece));
    };
    parallel_for(0, threads, 1, run, &shared);
}

// All of this memory is about to be written. So much of it is new from the system, page by page: large pages take a third
// of the time (the gradient of 100 MB of max 3/2).
inline void expect_all([[maybe_unused]] void *memory, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t PAGE = 1 << 21;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + PAGE - 1) / PAGE * PAGE;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + uintptr_t(bytes)) / PAGE * PAGE;
    if (bytes >= 32 << 20) madvise(reinterpret_cast<void *>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// The processor's own prefetching stops at the end of a short row: reads ahead what the next output rows need first.
// Inlined: GCC takes a call that only prefetches for pure, and drops it.
template <class T>
__attribute__((always_inline)) inline void prefetch(const T *row, int64_t elements) {
    const int64_t bytes = elements * int64_t(sizeof(T));
    if (bytes > 16384) return;
    for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(reinterpret_cast<const char *>(row) + byte);
}

// Data types.

struct Half {
    uint16_t bits;
};
struct BFloat16 {
    uint16_t bits;
};

template <class To, class From>
inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof(To));
    return to;
}

// Elements as numbers to add and compare. Arithmetic on the bits, as compilers make no vectors of casts of _Float16.
template <class T>
inline T widen(T value) {
    return value;
}
inline float widen(BFloat16 value) { return bits_as<float>(uint32_t(value.bits) << 16); }
inline float widen(Half value) {
    const int32_t bits = (int32_t(int16_t(value.bits)) << 13) & int32_t(0x8fffe000);
    const float scaled = bits_as<float>(bits) * 0x1p112f;
    return (bits & 0x0f800000) == 0x0f800000 ? bits_as<float>(bits | 0x7f800000) : scaled;
}

template <class T>
using Wide = decltype(widen(T()));

// Rounds to nearest, ties to even.
template <class T>
inline T narrow(Wide<T> value) {
    if constexpr (std::is_same_v<T, BFloat16>) {
        const uint32_t bits = bits_as<uint32_t>(value);
        return {uint16_t(value != value ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
    } else if constexpr (std::is_same_v<T, Half>) {
        const uint32_t bits = bits_as<uint32_t>(value), magnitude = bits & 0x7fffffff;
        const uint32_t normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
        const uint32_t tiny = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000;  // rounds to 2^-24
        const uint32_t finite = magnitude < 0x38800000 ? tiny : normal;
        const uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
        return {uint16_t((magnitude >= 0x477ff000 ? large : finite) | (bits >> 16 & 0x8000))};
    } else
        return value;
}

template <class T>
struct Type {
    using type = T;
};

// Calls act(Type<T>()) with the data type of a number; the numbers are those of DATA_TYPES in backends/cpu.py.
template <class Act>
void with_float_type(int type, Act act) {
    if (type == 0) act(Type<float>());
    if (type == 1) act(Type<double>());
    if (type == 2) act(Type<Half>());
    if (type == 3) act(Type<BFloat16>());
}

// Combinations. An Op has a value that changes nothing, the combination of two, and how elements become its values:
//     identity<L>(), of(first, second), load(element)
// One that tells which of its elements is the result has numbers of taps: load(element, number), later(value, number).
// and units of the numbers along each axis.
template <class Op>
constexpr bool has_numbers = false;
template <class Op>
inline int64_t unit_of(const Op &op, int axis) {
    if constexpr (has_numbers<Op>) return op.units[axis];
    else return 0;
}

// The value of an element, or of what has been combined already, `number` taps after the first.
template <bool is_loaded, class Op, class S>
inline auto value_of(const Op &op, S element, [[maybe_unused]] int64_t number) {
    if constexpr (is_loaded && has_numbers<Op>) return op.later(element, number);
    else if constexpr (is_loaded) return element;
    else if constexpr (has_numbers<Op>) return op.load(element, number);
    else return op.load(element);
}

inline int64_t left_part(int64_t count) {
    int64_t part = 4;
    while (2 * part < count) part *= 2;
    return part;
}

// out = the combination of rows, as a tree, so that the error of a sum grows with the logarithm of its terms; scratch
// holds a row for each level.
template <bool is_loaded, class Op, class S, class L>
__attribute__((noinline)) void combine(const Op &op, const S *const *rows, const int64_t *numbers, int64_t count,
                                       int64_t length, L *__restrict out, L *__restrict scratch) {
    if (count > 4) {
        const int64_t part = left_part(count);
        combine<is_loaded>(op, rows, numbers, part, length, out, scratch);
        combine<is_loaded>(op, rows + part, numbers + part, count - part, length, scratch, scratch + length);
        VECTORIZE
        for (int64_t i = 0; i < length; ++i) out[i] = Op::of(out[i], scratch[i]);
        return;
    }
    const auto row = [&](int64_t k) {
        k = k < count ? k : 0;
        return [op, from = rows[k], number = has_numbers<Op> ? numbers[k] : 0](int64_t i) {
            return value_of<is_loaded>(op, from[i], number);
        };
    };
    const auto a = row(0), b = row(1), c = row(2), d = row(3);
    const auto each = [=](auto value) {
        VECTORIZE
        for (int64_t i = 0; i < length; ++i) out[i] = value(i);
    };
    if (count == 1) each(a);
    else if (count == 2) each([=](int64_t i) { return Op::of(a(i), b(i)); });
    else if (count == 3) each([=](int64_t i) { return Op::of(Op::of(a(i), b(i)), c(i)); });
    else each([=](int64_t i) { return Op::of(Op::of(a(i), b(i)), Op::of(c(i), d(i))); });
}

inline int64_t tree_rows(int64_t count) {
    int64_t rows = 1;
    for (; count > 4; count = (count + 1) / 2) ++rows;
    return rows;
}

// Every stride-th element of a row in a row of its own: phases[phase * length + i] = row[i * stride + phase].
template <int64_t fixed, class L>
__attribute__((noinline)) void split_by(int64_t any, const L *__restrict row, L *__restrict phases, int64_t length) {
    const int64_t stride = fixed ? fixed : any;
    for (int64_t phase = 0; phase < stride; ++phase)
        VECTORIZE
        for (int64_t i = 0; i < length; ++i) phases[phase * length + i] = row[i * stride + phase];
}
template <class L>
inline void split(const L *row, L *phases, int64_t length, int64_t stride) {
    if (stride == 2) split_by<2>(stride, row, phases, length);
    else if (stride == 3) split_by<3>(stride, row, phases, length);
    else if (stride == 4) split_by<4>(stride, row, phases, length);
    else split_by<0>(stride, row, phases, length);
}

// The combination of contiguous elements or values, each a tap after the one before.
template <bool is_loaded, class Op, class S>
__attribute__((noinline)) auto reduce(const Op &op, const S *__restrict row, int64_t count) {
    using L = decltype(value_of<is_loaded>(op, S(), 0));
    if constexpr (has_numbers<Op> && !is_loaded) return op.winner(row, count);
    else {
        constexpr int64_t LANES = 128 / sizeof(L);
        L result = Op::template identity<L>();
        int64_t at = 0;
        if (count >= LANES) {
            L total[LANES];
            std::fill_n(total, LANES, result);
            for (; count - at >= LANES; at += LANES)
                for (int64_t i = 0; i < LANES; ++i) total[i] = Op::of(total[i], value_of<is_loaded>(op, row[at + i], at));
            for (int64_t i = 0; i < LANES; ++i) total[i] = value_of<true>(op, total[i], i);
            for (int64_t half = LANES / 2; half > 0; half /= 2)
                for (int64_t i = 0; i < half; ++i) total[i] = Op::of(total[i], total[i + half]);
            result = total[0];
        }
        for (; at < count; ++at) result = Op::of(result, value_of<is_loaded>(op, row[at], at));
        return result;
    }
}

// out = the combinations of windows along a row that begins with the first tap of the first of them.
template <class Op, class L>
void combine_taps(const Op &op, const L *__restrict row, const Axis &w, const int64_t *numbers, int64_t outputs,
                  int64_t lanes, const L **taps, L *__restrict out, L *scratch) {
    const int64_t count = w.window;
    if (lanes == 1 && w.stride == 2 && w.dilation == 1 && (count == 2 || count == 3)) {
        const auto first = [=](int64_t i) { return Op::of(row[2 * i], value_of<true>(op, row[2 * i + 1], 1)); };
        if (count == 2)
            VECTORIZE
            for (int64_t i = 0; i < outputs; ++i) out[i] = first(i);
        else
            VECTORIZE
            for (int64_t i = 0; i < outputs; ++i) out[i] = Op::of(first(i), value_of<true>(op, row[2 * i + 2], 2));
    } else if (w.stride == 1) {
        for (int64_t t = 0; t < count; ++t) taps[t] = row + t * w.dilation * lanes;
        combine<true>(op, taps, numbers, count, outputs * lanes, out, scratch);
    } else if (lanes == 1) {
        const int64_t length = outputs + (w.extent() - 1) / w.stride;
        split(row, scratch, length, w.stride);
        for (int64_t t = 0; t < count; ++t)
            taps[t] = scratch + t * w.dilation % w.stride * length + t * w.dilation / w.stride;
        combine<true>(op, taps, numbers, count, outputs, out, scratch + w.stride * length);
    } else
        for (int64_t o = 0; o < outputs; ++o) {
            for (int64_t t = 0; t < count; ++t) taps[t] = row + (o * w.stride + t * w.dilation) * lanes;
            combine<true>(op, taps, numbers, count, lanes, out + o * lanes, scratch);
        }
}

// Wide windows that overlap: windows of 1, 2, 4, ... taps, each from two of the one before, so that an axis costs log k.
inline bool is_wide(const Axis &axis) {
    int64_t steps = 1;
    while ((int64_t(1) << steps) < axis.window) ++steps;
    return axis.window > 5 && (steps + 1) * axis.span(axis.outputs) < axis.window * axis.outputs;
}

// A window or a stride that is much larger than what is pooled: nothing may cost what it spans.
inline bool is_huge(const Axis &axis) { return std::max(axis.extent(), axis.stride) > 64 + 4 * axis.size; }

// Whether each window along W is combined for itself, from its taps inside the input: long ones, huge ones, and bins.
inline bool is_by_range(const Problem &p) {
    const Axis &w = p.w();
    if (w.window == 0 || is_huge(p.d()) || is_huge(p.h()) || is_huge(w)) return true;
    return p.lanes == 1 && w.dilation == 1 && w.window >= 16;
}

// Blocks of outputs that are made at once: short rows together, as every loop has a price; long rows in tiles that stay
// in the first-level cache.
struct Blocks {
    const Problem &p;
    bool is_by_range;
    int64_t tile, tiles, rows, groups, pitch;

    // About `elements` input elements of a row in a tile, and short rows up to `together` of them.
    Blocks(const Problem &p, bool is_by_range, int64_t elements, int64_t together) : p(p), is_by_range(is_by_range) {
        const Axis &w = p.w();
        tile = std::clamp<int64_t>(elements / p.lanes / w.stride, 1, w.outputs);
        tiles = (w.outputs + tile - 1) / tile;
        pitch = is_by_range ? 0 : (w.span(tile) + w.stride - 1) / w.stride * w.stride;  // positions of a scratch row
        rows = is_by_range ? 1 : std::clamp<int64_t>(together / (pitch * p.lanes), 1, p.h().outputs);
        groups = (p.h().outputs + rows - 1) / rows;
    }
    int64_t count() const { return p.planes * p.d().outputs * groups * tiles; }

    // Outputs [o, o + outputs) of the rows [oh, oh + rows). They read input positions from `first` on, of which
    // [low, high) lie inside the input.
    struct Block {
        int64_t plane, od, oh, rows, o, outputs, first, low, high;
    };
    Block operator[](int64_t number) const {
        const Axis &w = p.w();
        Block b;
        b.o = number % tiles * tile, number /= tiles, b.outputs = std::min(tile, w.outputs - b.o);
        b.oh = number % groups * rows, number /= groups, b.rows = std::min(rows, p.h().outputs - b.oh);
        b.od = number % p.d().outputs, b.plane = number / p.d().outputs;
        b.first = 0, b.low = w.size, b.high = 0;
        for (int64_t o = b.o; is_by_range && o < b.o + b.outputs; ++o) {
            const auto range = w.range(o);
            if (range.count > 0) b.low = std::min(b.low, range.start), b.high = std::max(b.high, range.end());
        }
        if (is_by_range) return b;
        b.first = w.first(b.o);
        const int64_t last = b.first + w.span(b.outputs);
        b.low = std::clamp<int64_t>(0, b.first, last), b.high = std::clamp<int64_t>(w.size, b.low, last);
        return b;
    }
};

// For each output row the input rows are combined into one scratch row, and that row's taps into outputs. What becomes of
// them: finish(plane, od, oh, o, lane, count, values, to) stores so many, which begin at a lane of output o; where it is
// direct they are stored as they are, where they are combined.
template <class Op, class T, class U, class Finish>
void pool_rows(const T *input, U *output, const Problem &p, const Finish &finish, const Op &op = Op()) {
    using L = decltype(value_of<false>(op, T(), 0));
    constexpr int64_t VECTOR = 64 / sizeof(L);  // scratch is written in whole vectors
    constexpr bool is_plain = std::is_same_v<T, L> && std::is_floating_point_v<T>;
    const Axis &d = p.d(), &h = p.h(), &w = p.w();
    const bool by_range = is_by_range(p);
    const int64_t unit_d = unit_of(op, 0), unit_h = unit_of(op, 1), unit_w = unit_of(op, 2);
    const Blocks blocks(p, by_range, 16384 / sizeof(L), 1024 / std::min<int64_t>(4, sizeof(L)));
    const int64_t lanes = p.lanes, pitch = blocks.pitch * lanes, made_pitch = by_range ? 0 : pitch / w.stride;
    const int64_t chunk = std::clamp<int64_t>(4096 / lanes, 1, w.size);  // positions of which windows are combined by range
    const int64_t made_size = by_range ? blocks.tile * lanes : blocks.rows * pitch;
    const int64_t most = std::min(d.size, d.extent()) * std::min(h.size, h.extent());  // rows that a window reads
    const int64_t columns = by_range ? std::min(w.size, std::max(w.stride * blocks.tile, w.extent())) : blocks.tile * w.stride;
    const L identity = Op::template identity<L>();
    const T *const end_of_input = input + p.planes * p.plane();
    const double cost = double(blocks.rows * lanes) * (double(most) * double(columns) + double(by_range ? columns : blocks.tile * w.window));
    parallel(p, blocks.count(), cost, [&](int64_t begin, int64_t end) {
        std::vector<const T *> rows(most);
        std::vector<const L *> taps(by_range ? 0 : w.window);
        std::vector<int64_t> numbers(most), tap_numbers(taps.size());
        for (size_t t = 0; t < taps.size(); ++t) tap_numbers[t] = int64_t(t) * unit_w;
        std::vector<L> staged((by_range ? chunk * lanes : blocks.rows * pitch) + VECTOR), made(made_size);
        std::vector<L> scratch((staged.size() + VECTOR) * (1 + tree_rows(std::max<int64_t>(most, taps.size()))));
        const auto find_rows = [&](int64_t plane, int64_t od, int64_t oh, int64_t low) {
            const auto depth = d.range(od), height = h.range(oh);
            int64_t count = 0;
            for (int64_t td = 0; td < depth.count; ++td)
                for (int64_t th = 0; th < height.count; ++th, ++count) {
                    const int64_t z = depth.start + td * depth.step, y = height.start + th * height.step;
                    rows[count] = input + ((plane * d.size + z) * h.size + y) * p.row() + low * lanes;
                    if (has_numbers<Op>) numbers[count] = (depth.tap + td) * unit_d + (height.tap + th) * unit_h;
                }
            return count;
        };
        for (int64_t number = begin; number < end; ++number) {
            const auto b = blocks[number];
            U *__restrict out = output + ((b.plane * d.outputs + b.od) * h.outputs + b.oh) * p.output_row() + b.o * lanes;
            L *results = made.data();
            if (by_range) {
                const int64_t rows_read = find_rows(b.plane, b.od, b.oh, b.low);
                std::fill_n(results, b.outputs * lanes, identity);
                for (int64_t start = b.low; rows_read > 0 && start < b.high; start += chunk) {
                    const int64_t stop = std::min(start + chunk, b.high);
                    const bool is_one_row = rows_read == 1 && lanes == 1 && w.dilation == 1;
                    const T *const only_row = rows[0];
                    if (!is_one_row)
                        combine<false>(op, rows.data(), numbers.data(), rows_read, (stop - start) * lanes, staged.data(),
                                       scratch.data());
                    for (int64_t r = 0; r < rows_read; ++r) rows[r] += chunk * lanes;
                    for (int64_t o = 0; o < b.outputs; ++o) {
                        const auto range = w.range(b.o + o);
                        const int64_t skipped = std::max<int64_t>(0, (start - range.start + range.step - 1) / range.step);
                        const int64_t first = range.start + skipped * range.step - start;
                        const int64_t count = std::min(range.count - skipped, (stop - start - first + range.step - 1) / range.step);
                        const int64_t at = (skipped + range.tap) * unit_w;
                        const auto add = [&](L value, int64_t tap) {
                            results[o] = Op::of(results[o], value_of<true>(op, value, tap));
                        };
                        if (count <= 0) continue;
                        if (is_one_row) add(reduce<false>(op, only_row + first, count), numbers[0] + at);
                        else if (lanes == 1 && range.step == 1) add(reduce<true>(op, staged.data() + first, count), at);
                        else
                            for (int64_t t = 0; t < count; ++t) {
                                const L *__restrict tap = staged.data() + (first + t * range.step) * lanes;
                                L *__restrict to = results + o * lanes;
                                VECTORIZE
                                for (int64_t i = 0; i < lanes; ++i) to[i] = Op::of(to[i], value_of<true>(op, tap[i], at + t * unit_w));
                            }
                    }
                }
                finish(b.plane, b.od, b.oh, b.o, 0, b.outputs * lanes, results, out);
                continue;
            }
            const int64_t inside = (b.high - b.low) * lanes, before = (b.low - b.first) * lanes;
            const L *source = staged.data();
            for (int64_t r = 0; r < b.rows; ++r) {
                const int64_t count = find_rows(b.plane, b.od, b.oh + r, b.low);
                L *__restrict into = staged.data() + r * pitch;
                std::fill_n(into, count ? before : pitch, identity);
                if (count == 0) continue;
                if (blocks.tiles == 1) prefetch(rows[count - 1] + 2 * h.stride * p.row(), h.stride * p.row());
                else
                    for (int64_t t = std::max<int64_t>(0, count - h.stride); t < count; ++t)
                        prefetch(rows[t] + inside, inside);
                if constexpr (is_plain)
                    if (count == 1 && b.rows == 1 && inside == w.span(b.outputs) * lanes) {
                        source = rows[0];
                        continue;
                    }
                const int64_t vectors = (inside + VECTOR - 1) / VECTOR * VECTOR;
                combine<false>(op, rows.data(), numbers.data(), count, std::min(vectors, int64_t(end_of_input - rows[count - 1])),
                               into + before, scratch.data());
                for (int64_t i = before + inside; i < pitch; ++i) into[i] = identity;
            }
            const bool is_together = blocks.tiles == 1 && made_pitch == p.output_row() && finish.is_uniform();
            bool is_stored = false;
            if constexpr (std::is_same_v<U, L>)
                if (finish.is_direct && (b.rows == 1 || is_together)) results = out, is_stored = true;
            combine_taps(op, source, w, tap_numbers.data(), (b.rows - 1) * blocks.pitch / w.stride + b.outputs, lanes,
                         taps.data(), results, scratch.data());
            if (is_stored) continue;
            if (is_together)
                finish(b.plane, b.od, b.oh, 0, 0, b.rows * made_pitch, results, out);
            else
                for (int64_t r = 0; r < b.rows; ++r)
                    finish(b.plane, b.od, b.oh + r, b.o, 0, b.outputs * lanes, results + r * made_pitch, out + r * p.output_row());
        }
    });
}

// Pools data[span][n], which begins at the first tap of output 0 and is used up, into out[outputs][n]; numbers of taps
// along the axis are multiples of `unit`.
template <class Op, class L>
__attribute__((noinline)) void pool_by_doubling(const Op &op, L *__restrict data, int64_t n, const Axis &axis, int64_t unit,
                                                int64_t outputs, L *__restrict out) {
    const int64_t k = axis.window, step = axis.stride * n, length = axis.span(outputs) * n;
    const auto take = [=](int64_t tap, bool is_first) {
        const L *__restrict part = data + tap * axis.dilation * n;
        const int64_t together = axis.stride == 1 ? outputs : 1, number = tap * unit;
        for (int64_t o = 0; o < outputs; o += together)
            if (is_first)
                VECTORIZE
                for (int64_t i = 0; i < together * n; ++i) out[o * n + i] = value_of<true>(op, part[o * step + i], number);
            else
                VECTORIZE
                for (int64_t i = 0; i < together * n; ++i)
                    out[o * n + i] = Op::of(out[o * n + i], value_of<true>(op, part[o * step + i], number));
    };
    int64_t power = 1, taken = 0;
    for (; 2 * power <= k; power *= 2) {
        if (!Op::takes_twice && (k & power)) take(taken, taken == 0), taken += power;
        const int64_t shift = power * axis.dilation * n, number = power * unit;
        VECTORIZE
        for (int64_t i = 0; i < length - shift; ++i) data[i] = Op::of(data[i], value_of<true>(op, data[i + shift], number));
    }
    take(taken, taken == 0);
    if (Op::takes_twice && power < k) take(k - power, false);
}

// Windows of many taps that overlap: a box of the input is pooled along W, then along H, then along D.
template <class Op, class T, class U, class Finish>
void pool_boxes(const T *input, U *output, const Problem &p, const Finish &finish, const Op &op = Op()) {
    using L = decltype(value_of<false>(op, T(), 0));
    const Axis &d = p.d(), &h = p.h(), &w = p.w();
    // Outputs of a box along an axis: so many that boxes share little of what they read.
    const auto tile_of = [](const Axis &axis, int64_t least) {
        return std::min(axis.outputs, std::max(least, 2 * axis.extent() / axis.stride));
    };
    const int64_t lanes = p.lanes, block = std::min<int64_t>(lanes, 64);
    const int64_t tile_d = tile_of(d, 1), tile_h = tile_of(h, 64), tile_w = tile_of(w, std::max<int64_t>(1, 1024 / block));
    const auto tiles = [](int64_t count, int64_t tile) { return (count + tile - 1) / tile; };
    const int64_t tiles_d = tiles(d.outputs, tile_d), tiles_h = tiles(h.outputs, tile_h), tiles_w = tiles(w.outputs, tile_w);
    const int64_t blocks = tiles(lanes, block), most = d.span(tile_d) * h.span(tile_h) * tile_w * block;
    const L identity = Op::template identity<L>();
    parallel(p, p.planes * tiles_d * tiles_h * tiles_w * blocks, 16. * double(most), [&](int64_t begin, int64_t end) {
        std::vector<L> row(w.span(tile_w) * block), read(most), pooled(most);
        for (int64_t number = begin; number < end; ++number) {
            int64_t rest = number;
            const auto next = [&rest](int64_t count) {
                const int64_t digit = rest % count;
                return rest /= count, digit;
            };
            const int64_t lane = next(blocks) * block, ow = next(tiles_w) * tile_w, oh = next(tiles_h) * tile_h;
            const int64_t od = next(tiles_d) * tile_d, plane = rest, b = std::min(block, lanes - lane);
            const int64_t outputs_d = std::min(tile_d, d.outputs - od), outputs_h = std::min(tile_h, h.outputs - oh);
            const int64_t outputs_w = std::min(tile_w, w.outputs - ow), n = outputs_w * b;
            const int64_t depth = d.span(outputs_d), height = h.span(outputs_h), width = w.span(outputs_w);
            const int64_t first = w.first(ow), low = std::clamp<int64_t>(-first, 0, width);
            const int64_t high = std::clamp<int64_t>(w.size - first, low, width);
            for (int64_t at = 0; at < depth * height; ++at) {
                const int64_t z = d.first(od) + at / height, y = h.first(oh) + at % height;
                L *__restrict out = read.data() + at * n, *__restrict into = row.data();
                if (z < 0 || z >= d.size || y < 0 || y >= h.size) {
                    std::fill_n(out, n, identity);
                    continue;
                }
                const T *source = input + (((plane * d.size + z) * h.size + y) * w.size + first) * lanes + lane;
                std::fill(into, into + low * b, identity), std::fill(into + high * b, into + width * b, identity);
                const int64_t together = b == lanes ? high - low : 1, none = 0;
                for (int64_t x = low; x < high; x += together) {
                    const T *const from = source + x * lanes;
                    combine<false>(op, &from, &none, 1, together * b, into + x * b, into);
                }
                pool_by_doubling(op, into, b, w, unit_of(op, 2), outputs_w, out);
            }
            for (int64_t z = 0; z < depth; ++z)
                pool_by_doubling(op, read.data() + z * height * n, n, h, unit_of(op, 1), outputs_h, pooled.data() + z * outputs_h * n);
            const L *results = pooled.data();
            if (d.window > 1 || d.stride > 1) {
                pool_by_doubling(op, pooled.data(), outputs_h * n, d, unit_of(op, 0), outputs_d, read.data());
                results = read.data();
            }
            for (int64_t at = 0; at < outputs_d * outputs_h; ++at) {
                const int64_t z = od + at / outputs_h, y = oh + at % outputs_h;
                U *const out = output + (((plane * d.outputs + z) * h.outputs + y) * w.outputs + ow) * lanes + lane;
                const int64_t together = b == lanes ? outputs_w : 1;
                for (int64_t x = 0; x < outputs_w; x += together)
                    finish(plane, z, y, ow + x, lane, together * b, results + at * n + x * b, out + x * lanes);
            }
        }
    });
}

}  // namespace dmlpool
