// Sums of windows on the CPU: averages, quantized averages and adaptive averages, and the gradients of averages.

#include "pooling.h"

#include <cmath>
#include <memory>
#include <numeric>

// What an average counts, as Python fills it.
struct Counting {
    int64_t include_padding, divisor, end_padding[3];  // divisor 0: the taps that are counted
};

// Scales and zero points: vectors of one entry for all channels or one each, and the output type's limits.
struct Quantization {
    const float *input_scale, *output_scale;
    const int32_t *input_zero, *output_zero;
    int64_t input_scales, output_scales, input_zeros, output_zeros, channels, low, high;
};

namespace dmlpool {
namespace {

template <class Accumulator>
struct Sum {
    using Value = Accumulator;
    static constexpr bool takes_twice = false, has_numbers = false;
    static constexpr Value identity() { return 0; }
    static Value of(Value first, Value second) { return Value(first + second); }
    static Value later(Value value, int64_t) { return value; }
    template <class T>
    static Value load(T value, int64_t = 0) {
        return Value(widen(value));
    }
    template <class T, class L>
    static T store(L value) {
        if constexpr (std::is_integral_v<T>) return T(value);
        else return narrow<T>(value);
    }
};

// Long sums: of float32 in float64, and of float64 with what every addition loses.
struct Compensated {
    double sum = 0, lost = 0;

    Compensated &operator+=(double value) {
        const double total = sum + value, added = total - sum;
        lost += (sum - (total - added)) + (value - added);
        sum = total;
        return *this;
    }
    Compensated &operator+=(const Compensated &other) {
        *this += other.sum;
        lost += other.lost;
        return *this;
    }
    explicit operator double() const { return lost == lost ? sum + lost : sum; }
};
template <class L>
using Long = std::conditional_t<std::is_same_v<L, float>, double, std::conditional_t<std::is_same_v<L, double>, Compensated, L>>;

// Geometry: which elements a window reads along an axis, every step-th from the first, and how many taps it counts.

struct Taps {
    int64_t begin, count;
};

struct Geometry {
    Problem p;  // an axis whose window is 0 has tables alone: the bins of adaptive pooling, or windows seen from the input
    std::vector<Taps> taps[3];
    std::vector<int64_t> counted[3];
    std::vector<int64_t> same;  // of each output along W, the first after it that reads or counts other numbers of taps
    bool is_uniform;            // all windows read and count as many taps

    Geometry(const Problem &problem, const Counting &counting) : p(problem) {
        for (int a = 0; a < 3; ++a) {
            const Axis &axis = p.axes[a];
            for (int64_t o = 0; o < axis.outputs; ++o) {
                int64_t begin, count, with_padding;
                if (axis.window == 0) {
                    begin = o * axis.size / axis.outputs;
                    count = with_padding = ((o + 1) * axis.size + axis.outputs - 1) / axis.outputs - begin;
                } else {
                    begin = axis.first(o) + axis.low(o) * axis.dilation;
                    count = std::max<int64_t>(axis.high(o) - axis.low(o), 0);
                    const int64_t room = axis.size + counting.end_padding[a] - axis.first(o) + axis.dilation - 1;
                    with_padding = std::clamp<int64_t>(room / axis.dilation, 0, axis.window);
                }
                taps[a].push_back({begin, count});
                const int64_t divided_by = counting.include_padding ? with_padding : count;
                counted[a].push_back(counting.divisor == 0 ? std::max<int64_t>(divided_by, 1) : a ? 1 : counting.divisor);
            }
        }
        // A row that is read as a whole, and those before it, are one row: a window over everything is one long sum.
        merge(2), merge(2), merge(1);
        const auto agree = [this](int a, int64_t o, int64_t other) {
            return counted[a][o] == counted[a][other] && taps[a][o].count == taps[a][other].count;
        };
        is_uniform = true;
        for (int a = 0; a < 3; ++a)
            for (int64_t o = 1; o < p.axes[a].outputs; ++o) is_uniform &= agree(a, o, 0);
        same.resize(p.w().outputs);
        for (int64_t o = p.w().outputs - 1; o >= 0; --o)
            same[o] = o + 1 < p.w().outputs && agree(2, o, o + 1) ? same[o + 1] : o + 1;
    }

    // The windows seen from the input: which outputs read each of its elements; all divide by the same number.
    Geometry adjoint(int64_t divisor) const {
        Geometry result(*this);
        result.is_uniform = true;
        for (int a = 0; a < 3; ++a) {
            const Axis &axis = p.axes[a];
            Axis &back = result.p.axes[a];
            back = {axis.outputs, axis.size, axis.window, 1, axis.extent() - 1 - axis.padding, axis.dilation};
            if (axis.stride != 1 || axis.window == 0) back.window = 0, back.dilation /= std::gcd(axis.dilation, axis.stride);
            result.taps[a].clear(), result.counted[a].assign(axis.size, a == 0 ? divisor : 1);
            int64_t begin = 0, end = 0;
            for (int64_t x = 0; x < axis.size; ++x) {
                if (axis.window > 0) {
                    while (begin < axis.outputs && axis.first(begin) + axis.extent() <= x) ++begin;
                    while (end < axis.outputs && axis.first(end) <= x) ++end;
                } else {
                    while (begin < axis.outputs && taps[a][begin].begin + taps[a][begin].count <= x) ++begin;
                    while (end < axis.outputs && taps[a][end].begin <= x) ++end;
                }
                int64_t from = begin;
                while (axis.dilation > 1 && from < end && (x - axis.first(from)) % axis.dilation) ++from;
                result.taps[a].push_back({from, from < end ? (end - from + back.dilation - 1) / back.dilation : 0});
            }
        }
        return result;
    }

    const Axis &axis(int a) const { return p.axes[a]; }
    int64_t most_taps(int a) const {
        int64_t most = 1;
        for (const Taps &each : taps[a]) most = std::max(most, each.count);
        return most;
    }
    bool reads_all(int a) const {
        return axis(a).outputs == 1 && taps[a][0].count == axis(a).size && (axis(a).dilation == 1 || axis(a).size == 1);
    }
    bool is_one_sum() const {
        return p.d().size * p.h().size == 1 && reads_all(0) && reads_all(1) && reads_all(2);
    }

    void merge(int a) {
        Axis &inner = p.axes[a], &outer = p.axes[a - 1];
        if (!reads_all(a) || (inner.size > 1 && (outer.window == 0 || outer.dilation > 1))) return;
        const int64_t size = inner.size, count = counted[a][0];
        inner = {outer.size * size, outer.outputs, outer.window * size, outer.stride * size, outer.padding * size, outer.dilation};
        taps[a] = taps[a - 1], counted[a] = counted[a - 1];
        for (Taps &each : taps[a]) each.begin *= size, each.count *= size;
        for (int64_t &each : counted[a]) each *= count;
        if (a == 2) p.axes[1] = p.axes[0], taps[1] = taps[0], counted[1] = counted[0];
        p.axes[0] = {1, 1, 1, 1, 0, 1}, taps[0] = {{0, 1}}, counted[0] = {1};
    }
};

// Sums of rows. Up to nine are a tree; more are long sums of trees of eight.

template <class Op, int from, int to, class T>
inline auto tree(const T *const *rows, int64_t i) {
    constexpr int middle = (from + to + 1) / 2;
    if constexpr (to - from == 1) return Op::load(rows[from][i]);
    else return Op::of(tree<Op, from, middle>(rows, i), tree<Op, middle, to>(rows, i));
}

// store(i, sum) for the sums of so many rows. Flat: GCC makes no vectors of a loop in which it leaves a call.
template <class L, int count, class T, class Store>
__attribute__((flatten)) inline void sum_few(const T *const *rows, int64_t length, Store store) {
    const T *each[count];
    for (int k = 0; k < count; ++k) each[k] = rows[k];
    VECTORIZE
    for (int64_t i = 0; i < length; ++i) store(i, tree<Sum<L>, 0, count>(each, i));
}

template <class L, class T, class Store>
void sum_rows(const T *const *rows, int64_t count, int64_t length, Long<L> *__restrict sums, Store store) {
    switch (count) {
        case 1: return sum_few<L, 1>(rows, length, store);
        case 2: return sum_few<L, 2>(rows, length, store);
        case 3: return sum_few<L, 3>(rows, length, store);
        case 4: return sum_few<L, 4>(rows, length, store);
        case 6: return sum_few<L, 6>(rows, length, store);
        case 8: return sum_few<L, 8>(rows, length, store);
        case 9: return sum_few<L, 9>(rows, length, store);
    }
    const auto add = [=](int64_t i, L value) { sums[i] += value; };
    std::fill_n(sums, length, Long<L>());
    for (; count >= 8; rows += 8, count -= 8) sum_few<L, 8>(rows, length, add);
    if (count & 4) sum_few<L, 4>(rows, length, add), rows += 4;
    if (count & 2) sum_few<L, 2>(rows, length, add), rows += 2;
    if (count & 1) sum_few<L, 1>(rows, length, add);
    VECTORIZE
    for (int64_t i = 0; i < length; ++i) store(i, L(sums[i]));
}

template <class L, class T>
inline void sum_rows_into(const T *const *rows, int64_t count, int64_t length, Long<L> *sums, L *__restrict out) {
    sum_rows<L>(rows, count, length, sums, [=](int64_t i, L value) { out[i] = value; });
}

// sums[i] += element i of each of so many rows, `pitch` elements apart.
template <class L, class T>
inline void add_rows(const T *row, int64_t count, int64_t pitch, int64_t length, Long<L> *__restrict sums) {
    const auto add = [=](int64_t i, L value) { sums[i] += value; };
    for (; count >= 8; count -= 8, row += 8 * pitch) {
        const T *rows[8];
        for (int k = 0; k < 8; ++k) rows[k] = row + k * pitch;
        sum_few<L, 8>(rows, length, add);
    }
    for (; count > 0; --count, row += pitch) sum_few<L, 1>(&row, length, add);
}

template <class V>
using Sixteen __attribute__((vector_size(16 * sizeof(V)))) = V;

template <class L, class T>
inline Long<L> sum_of(const T *elements, int64_t count) {
    constexpr int64_t LENGTH = 32, SHORT = 16;
    if constexpr (std::is_same_v<T, L> && std::is_floating_point_v<L>)
        if (count >= SHORT && count < 5 * SHORT) {
            // The last vector begins inside the one before: what that has counted is masked.
            using Bits = Sixteen<std::conditional_t<sizeof(L) == 8, int64_t, int32_t>>;
            const int64_t rest = count % SHORT;
            Sixteen<L> total, next;
            std::memcpy(&total, elements + count - SHORT, sizeof(total));
            const Bits lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
            total = Sixteen<L>(Bits(total) & (lane >= Bits{} + std::remove_reference_t<decltype(lane[0])>(SHORT - rest)));
            for (; count >= SHORT; elements += SHORT, count -= SHORT) {
                std::memcpy(&next, elements, sizeof(next));
                total += next;
            }
            total += __builtin_shufflevector(total, total, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
            total += __builtin_shufflevector(total, total, 4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15);
            total += __builtin_shufflevector(total, total, 2, 3, 0, 1, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            total += __builtin_shufflevector(total, total, 1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            Long<L> sum = Long<L>();
            return sum += total[0];
        }
    if (count < 5 * SHORT) {
        Sixteen<L> total = {};
        L loaded[SHORT] = {};
        for (; count >= SHORT; elements += SHORT, count -= SHORT) {
            Sixteen<L> next;
            if constexpr (std::is_same_v<T, L>) std::memcpy(&next, elements, sizeof(next));
            else {
                for (int64_t i = 0; i < SHORT; ++i) loaded[i] = L(widen(elements[i]));
                std::memcpy(&next, loaded, sizeof(next));
            }
            total += next;
        }
        std::memcpy(loaded, &total, sizeof(total));
        for (int64_t i = 0; i < count; ++i) loaded[i] = L(loaded[i] + L(widen(elements[i])));
        for (int64_t half = SHORT / 2; half > 0; half /= 2)
            for (int64_t i = 0; i < half; ++i) loaded[i] = L(loaded[i] + loaded[half + i]);
        Long<L> sum = Long<L>();
        return sum += loaded[0];
    }
    Long<L> sums[LENGTH] = {};
    add_rows<L>(elements, count / LENGTH, LENGTH, LENGTH, sums);
    const T *rest = elements + count / LENGTH * LENGTH;
    for (int64_t i = 0; i < count % LENGTH; ++i) sums[i] += L(widen(rest[i]));
    for (int64_t half = LENGTH / 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half; ++i) sums[i] += sums[half + i];
    return sums[0];
}

// One window over each plane. Planes of many elements are summed in parts that depend on nothing but their size.
template <class L, class T, class U, class Finish>
void pool_planes(const T *input, U *output, const Problem &p, const Finish &finish) {
    const int64_t lanes = p.lanes, size = p.w().size, part = std::max<int64_t>(1, (1 << 18) / lanes);
    const int64_t parts = (size + part - 1) / part;
    std::vector<Long<L>> partial(parts > 1 ? p.planes * parts * lanes : 0);
    parallel(p, p.planes * parts, double(std::min(part, size) * lanes), [&](int64_t begin, int64_t end) {
        // Several positions of few lanes are one row.
        const int64_t together = lanes == 1 ? 1 : std::clamp<int64_t>(512 / lanes, 1, std::max<int64_t>(1, size / 4));
        const int64_t width = together * lanes;
        std::vector<Long<L>> own(width);
        const int64_t batch = std::max<int64_t>(1, 1024 / lanes);  // planes that are finished at once
        std::vector<L> made(batch * lanes);
        int64_t ready = 0;
        for (int64_t number = begin; number < end; ++number) {
            const int64_t plane = parts == 1 ? number : number / parts, from = (number - plane * parts) * part;
            const int64_t count = std::min(part, size - from);
            const T *elements = input + (plane * size + from) * lanes;
            Long<L> *sums = own.data();
            if (lanes == 1) sums[0] = sum_of<L>(elements, count);
            else {
                std::fill_n(sums, width, Long<L>());
                // So many lanes that their sums stay in the first-level cache.
                for (int64_t i = 0; i < width; i += 512)
                    add_rows<L>(elements + i, count / together, width, std::min<int64_t>(512, width - i), sums + i);
                add_rows<L>(elements + count / together * width, count % together, lanes, lanes, sums);
                for (int64_t k = lanes; k < width; k += lanes)
                    for (int64_t i = 0; i < lanes; ++i) sums[i] += sums[k + i];
            }
            if (parts > 1) std::copy_n(sums, lanes, partial.data() + number * lanes);
            else {
                L *__restrict to = made.data() + ready++ * lanes;
                VECTORIZE
                for (int64_t i = 0; i < lanes; ++i) to[i] = L(sums[i]);
                if (ready < batch && number + 1 < end) continue;
                const int64_t first = number + 1 - ready;
                finish(first, 0, 0, 0, 0, ready * lanes, made.data(), output + first * lanes);
                ready = 0;
            }
        }
    });
    if (parts == 1) return;
    std::vector<L> made(lanes);
    for (int64_t plane = 0; plane < p.planes; ++plane) {
        Long<L> *sums = partial.data() + plane * parts * lanes;
        for (int64_t k = 1; k < parts; ++k)
            for (int64_t i = 0; i < lanes; ++i) sums[i] += sums[k * lanes + i];
        for (int64_t i = 0; i < lanes; ++i) made[i] = L(sums[i]);
        finish(plane, 0, 0, 0, 0, lanes, made.data(), output + plane * lanes);
    }
}

// Any windows, from the tables of their taps. The rows that an output row reads are summed into one, of which each window
// sums a span; with lanes all elements of a window are summed at once.
template <class L, class T, class U, class Finish>
void pool_spans(const T *input, U *output, const Geometry &g, const Finish &finish) {
    const Problem &p = g.p;
    const Axis &d = p.d(), &h = p.h(), &w = p.w();
    const int64_t lanes = p.lanes, most_rows = g.most_taps(0) * g.most_taps(1), most_taps = g.most_taps(2);
    const int64_t tile = std::clamp<int64_t>((lanes == 1 ? 16384 : 4096) * w.outputs / (w.size * lanes), 1, w.outputs);
    const int64_t tiles = (w.outputs + tile - 1) / tile;
    const double row_cost = double(lanes == 1 ? w.size / tiles : tile * most_taps * lanes);
    const double cost = double(most_rows) * row_cost + double(tile * most_taps);
    std::vector<int64_t> same(w.outputs, w.outputs);  // the first output after each that reads other elements along W
    for (int64_t o = w.outputs - 2; o >= 0; --o) {
        const Taps &one = g.taps[2][o], &other = g.taps[2][o + 1];
        same[o] = one.begin == other.begin && one.count == other.count ? same[o + 1] : o + 1;
    }
    parallel(p, p.planes * d.outputs * h.outputs * tiles, cost, [&](int64_t begin, int64_t end) {
        std::vector<const T *> rows(lanes == 1 ? most_rows : most_rows * most_taps), read;
        std::vector<Long<L>> sums;
        std::vector<L> staged, made(tile * lanes);
        for (int64_t number = begin; number < end; ++number) {
            const int64_t o = number % tiles * tile, oh = number / tiles % h.outputs;
            const int64_t od = number / tiles / h.outputs % d.outputs, plane = number / tiles / h.outputs / d.outputs;
            const int64_t outputs = std::min(tile, w.outputs - o);
            const Taps &of_d = g.taps[0][od], &of_h = g.taps[1][oh], *of_w = g.taps[2].data() + o;
            const auto for_rows = [&](auto act) {
                for (int64_t td = 0; td < of_d.count; ++td)
                    for (int64_t th = 0; th < of_h.count; ++th) {
                        const int64_t z = of_d.begin + td * d.dilation, y = of_h.begin + th * h.dilation;
                        act(input + ((plane * d.size + z) * h.size + y) * p.row());
                    }
            };
            int64_t count = 0;
            U *const out = output + (((plane * d.outputs + od) * h.outputs + oh) * w.outputs + o) * lanes;
            if (lanes > 1) {
                sums.resize(lanes);
                read.clear();
                for_rows([&](const T *row) { read.push_back(row); });
                const int64_t step = w.dilation * lanes;
                const auto sum_windows = [&](auto *to, auto store_in) {
                    for (int64_t k = 0; k < outputs; count = 0) {
                        const int64_t begin = of_w[k].begin * lanes, end_of_taps = begin + of_w[k].count * step;
                        const T **next = rows.data();
                        // What the next window reads first: 2/2 and 3/2 take a tenth less time on memory.
                        for (const T *row : read) prefetch(row + end_of_taps, w.stride * lanes);
                        for (const T *row : read)
                            for (int64_t at = begin; at < end_of_taps; at += step) *next++ = row + at;
                        count = next - rows.data();
                        auto *first = to + k * lanes;
                        sum_rows<L>(rows.data(), count, lanes, sums.data(), store_in(first));
                        const int64_t end = std::min(same[o + k] - o, outputs);
                        for (++k; k < end; ++k) std::copy_n(first, lanes, to + k * lanes);
                    }
                };
                if constexpr (Finish::is_division)
                    if (g.is_uniform) {
                        // A power of two changes no digit: float32 will do.
                        [[maybe_unused]] int exponent;
                        if constexpr (std::is_same_v<T, float> && std::is_same_v<U, float>)
                            if (std::frexp(finish.uniform_factor(), &exponent) == .5) {
                                sum_windows(out, [&](U *__restrict to) {
                                    return [to, by = float(finish.uniform_factor())](int64_t i, L value) { to[i] = value * by; };
                                });
                                continue;
                            }
                        sum_windows(out, [&](U *__restrict to) {
                            return [to, by = finish.uniform_factor()](int64_t i, L value) { to[i] = narrow<U>(Wide<U>(Finish::quotient(double(value), by))); };
                        });
                        continue;
                    }
                sum_windows(made.data(), [](L *__restrict to) { return [to](int64_t i, L value) { to[i] = value; }; });
            } else {
                for_rows([&](const T *row) { rows[count++] = row; });
                const auto sum_spans = [&](const auto *row, auto store) {
                    for (int64_t k = 0; k < outputs;) {
                        const Taps &t = of_w[k];
                        Long<L> sum = Long<L>();
                        if (t.count == 1 && count > 0) sum += L(widen(row[t.begin]));
                        else if (w.dilation == 1 && count > 0) sum = sum_of<L>(row + t.begin, t.count);
                        else if (count > 0)
                            for (int64_t i = 0; i < t.count; ++i) sum += L(widen(row[t.begin + i * w.dilation]));
                        const int64_t end = std::min(same[o + k] - o, outputs);
                        store(k, end, L(sum));
                        k = end;
                    }
                };
                int64_t low = w.size, high = 0;
                for (int64_t k = 0; count > 1 && k < outputs; ++k)
                    if (of_w[k].count > 0) {
                        low = std::min(low, of_w[k].begin);
                        high = std::max(high, of_w[k].begin + (of_w[k].count - 1) * w.dilation + 1);
                    }
                const auto sum_all = [&](auto store) {
                    if (low >= high) return sum_spans(rows[0], store);
                    sums.resize(std::max<size_t>(sums.size(), high - low)), staged.resize(sums.size());
                    for (int64_t r = 0; r < count; ++r) rows[r] += low;
                    sum_rows_into<L>(rows.data(), count, high - low, sums.data(), staged.data());
                    sum_spans(staged.data() - low, store);
                };
                if constexpr (Finish::is_division)
                    if (g.is_uniform) {
                        const double by = finish.uniform_factor();
                        sum_all([=](int64_t k, int64_t end, L sum) { std::fill(out + k, out + end, narrow<U>(Wide<U>(Finish::quotient(double(sum), by)))); });
                        continue;
                    }
                sum_all([&](int64_t k, int64_t end, L sum) { std::fill(made.begin() + k, made.begin() + end, sum); });
            }
            finish(plane, od, oh, o, 0, outputs * lanes, made.data(), out);
        }
    });
}

// A finish whose values and results have these types.
template <class By, class L, class U>
struct Finishing final : Finish {
    const By &by;

    explicit Finishing(const By &by) : Finish(sizeof(U), by.is_uniform(), false), by(by) {}
    void operator()(int64_t plane, int64_t d, int64_t h, int64_t o, int64_t lane, int64_t count, const void *values, void *to) const override {
        by(plane, d, h, o, lane, count, static_cast<const L *>(values), static_cast<U *>(to));
    }
};

// Whether the scratch rows of an axis, padding and all, are not much longer than the input.
inline bool is_compact(const Axis &axis) { return axis.window > 0 && axis.extent() <= 2 * (axis.size + 64); }

template <class L, class T, class U, class Finish>
void pool_sums(const T *input, U *output, const Geometry &g, const Finish &finish) {
    const Problem &p = g.p;
    const Axis &d = p.d(), &h = p.h(), &w = p.w();
    if (g.is_one_sum()) return pool_planes<L>(input, output, p, finish);
    if constexpr (!std::is_same_v<L, int64_t>)
        if (is_compact(d) && is_compact(h) && is_compact(w)) {
            const int64_t rows = d.window * h.window;
            // Loads and stores of an element: rows first, or all taps at once. Half precision is costly to load.
            const int64_t load = std::is_integral_v<L> || std::is_same_v<T, L> ? 1 : 4;
            const bool shares_rows = load * rows * w.stride + w.window + w.stride < load * rows * w.window;
            const bool by_rows = p.lanes > 1 ? shares_rows : w.window <= 16 && w.stride <= 16;
            if (by_rows || is_wide(d) || is_wide(h) || is_wide(w)) {
                const bool is_plain = std::is_same_v<T, L>;
                return pool(Rows<Sum<L>, T>(Sum<L>(), is_plain), Finishing<Finish, L, U>(finish), input, output, p);
            }
        }
    pool_spans<L>(input, output, g, finish);
}

// Averages.

// Divides. Of float32 sums it multiplies by the float64 inverse, whose rounding does not show: that takes half the time.
template <class L>
struct Divide {
    static constexpr bool is_direct = false, is_division = true;
    const Geometry &g;
    std::vector<double> columns;

    explicit Divide(const Geometry &g) : g(g) {
        if (!g.is_uniform)
            for (int64_t i = 0; i < g.p.output_row(); ++i) columns.push_back(factor(g.counted[2][i / g.p.lanes]));
    }
    bool is_uniform() const { return g.is_uniform; }
    double uniform_factor() const { return factor(g.counted[0][0] * g.counted[1][0] * g.counted[2][0]); }
    static double factor(int64_t divisor) { return std::is_same_v<L, double> ? double(divisor) : 1 / double(divisor); }
    template <class V>
    static V quotient(V value, V factor) {
        return std::is_same_v<L, double> ? value / factor : value * factor;
    }
    template <class S, class U>
    void operator()(int64_t, int64_t d, int64_t h, int64_t o, int64_t lane, int64_t count, const S *__restrict values,
                    U *__restrict to) const {
        if (g.is_uniform) {
            const double by = uniform_factor();
            VECTORIZE
            for (int64_t i = 0; i < count; ++i) to[i] = narrow<U>(Wide<U>(quotient(double(widen(values[i])), by)));
        } else {
            const double by = factor(g.counted[0][d] * g.counted[1][h]);
            const double *__restrict column = columns.data() + o * g.p.lanes + lane;
            VECTORIZE
            for (int64_t i = 0; i < count; ++i)
                to[i] = narrow<U>(Wide<U>(quotient(double(widen(values[i])), by * column[i])));
        }
    }
};

// Gradients: sums over the windows that read an element, divided once where all divide by the same number, else before.

// Interleaves phases: the element at position q, counted from the start padding, is phases[q % stride][q / stride].
template <int fixed, class U, class L>
inline void join(const L *const *phases, int64_t any, int64_t from, int64_t to, U *__restrict out) {
    const int64_t stride = fixed ? fixed : any;
    for (; from < to && from % stride; ++from) *out++ = narrow<U>(phases[from % stride][from / stride]);
    const int64_t whole = fixed ? (to - from) / stride : 0;
    if constexpr (fixed > 0) {
        const L *each[fixed];
        for (int k = 0; k < fixed; ++k) each[k] = phases[k] + from / stride;
        VECTORIZE
        for (int64_t i = 0; i < whole; ++i)
            for (int k = 0; k < fixed; ++k) out[i * fixed + k] = narrow<U>(each[k][i]);
    }
    for (int64_t q = from + whole * stride; q < to; ++q) out[q - from] = narrow<U>(phases[q % stride][q / stride]);
}

// Small windows with a stride: elements a stride apart, a phase, see the same taps of the windows that cover them.
template <class L, class T, class U>
void spread_rows(const T *arriving, U *gradient, const Geometry &forward, const Geometry &g, int64_t divisor) {
    const double by = Divide<L>::factor(divisor);
    const Axis &d = forward.p.d(), &h = forward.p.h(), &w = forward.p.w();
    const int64_t stride = w.stride, before = (w.extent() - 1) / stride, most_rows = g.most_taps(0) * g.most_taps(1);
    const int64_t all = (w.padding + w.size + stride - 1) / stride;
    const int64_t tile = std::min<int64_t>(2048, all), tiles = (all + tile - 1) / tile;
    const double cost = double(tile) * double(w.window + 2 * stride + most_rows);
    parallel(g.p, g.p.planes * d.size * h.size * tiles, cost, [&](int64_t begin, int64_t end) {
        std::vector<L> shares(before + tile), sums(tile * stride);
        std::vector<Long<L>> scratch(before + tile);
        std::vector<const T *> rows(most_rows);
        std::vector<const L *> taps(w.window), phases(stride);
        for (int64_t number = begin; number < end; ++number) {
            const int64_t j = number % tiles * tile, y = number / tiles % h.size, z = number / tiles / h.size % d.size;
            const int64_t plane = number / tiles / h.size / d.size, length = std::min(tile, all - j);
            // The shares of windows j - before to j + length - 1, as far as they are.
            const int64_t low = std::clamp<int64_t>(j - before, 0, w.outputs);
            const int64_t high = std::clamp<int64_t>(j + length, low, w.outputs), n = high - low;
            const Taps &of_d = g.taps[0][z], &of_h = g.taps[1][y];
            int64_t count = 0;
            for (int64_t td = 0; td < of_d.count; ++td)
                for (int64_t th = 0; th < of_h.count; ++th) {
                    const int64_t od = of_d.begin + td * g.axis(0).dilation, oh = of_h.begin + th * g.axis(1).dilation;
                    rows[count++] = arriving + ((plane * d.outputs + od) * h.outputs + oh) * w.outputs + low;
                }
            L *__restrict share = shares.data() + (low - j + before);
            std::fill(shares.data(), share, L(0)), std::fill(share + n, shares.data() + before + length, L(0));
            sum_rows_into<L>(rows.data(), count, n, scratch.data(), share);
            VECTORIZE
            for (int64_t i = 0; i < n; ++i) share[i] = L(Divide<L>::quotient(double(share[i]), by));
            for (int64_t phase = 0; phase < stride; ++phase) {
                int64_t taken = 0;
                for (int64_t t = w.window - 1; t >= 0; --t)
                    if (t * w.dilation % stride == phase) taps[taken++] = shares.data() + before - t * w.dilation / stride;
                L *sum = sums.data() + phase * tile;
                phases[phase] = taken == 1 ? taps[0] : sum;
                if (taken != 1) sum_rows_into<L>(taps.data(), taken, length, scratch.data(), sum);
            }
            const int64_t from = std::max<int64_t>(0, w.padding - j * stride);
            const int64_t to = std::min(length * stride, w.padding + w.size - j * stride);
            U *out = gradient + ((plane * d.size + z) * h.size + y) * w.size + j * stride + from - w.padding;
            if (stride == 2) join<2>(phases.data(), stride, from, to, out);
            else if (stride == 4) join<4>(phases.data(), stride, from, to, out);
            else join<0>(phases.data(), stride, from, to, out);
        }
    });
}

template <class L, class T, class U>
void spread(const T *arriving, U *gradient, const Geometry &forward, int64_t divisor) {
    const Axis &w = forward.p.w();
    const Geometry g = forward.adjoint(divisor);
    if (forward.p.lanes == 1 && w.window > 0 && w.stride > 1 && w.stride <= 8 && w.window <= 16 && w.extent() <= 256)
        return spread_rows<L>(arriving, gradient, forward, g, divisor);
    pool_sums<L>(arriving, gradient, g, Divide<L>(g));
}

template <class T>
void average_pooling_grad(const T *arriving, T *gradient, const Geometry &g) {
    using L = Wide<T>;
    const Problem &p = g.p;
    const int64_t n = p.output_row(), rows = p.planes * p.d().outputs * p.h().outputs, size = p.w().size;
    const Divide<L> divide(g);
    const auto divide_row = [&](int64_t row, auto *to) {
        const int64_t oh = row % p.h().outputs, od = row / p.h().outputs % p.d().outputs;
        divide(0, od, oh, 0, 0, n, arriving + row * n, to);
    };
    if (g.is_one_sum())
        return parallel(p, rows, double(size * n), [&](int64_t begin, int64_t end) {
            std::vector<T> value(n);
            for (int64_t plane = begin; plane < end; ++plane) {
                divide_row(plane, value.data());
                T *out = gradient + plane * size * n;
                if (n == 1) std::fill_n(out, size, value[0]);
                else
                    for (int64_t i = 0; i < size; ++i) std::copy_n(value.data(), n, out + i * n);
            }
        });
    if (g.is_uniform) return spread<L>(arriving, gradient, g, g.counted[0][0] * g.counted[1][0] * g.counted[2][0]);
    const std::unique_ptr<L[]> shares(new L[rows * n]);
    parallel(p, rows, double(2 * n), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) divide_row(row, shares.get() + row * n);
    });
    spread<L>(static_cast<const L *>(shares.get()), gradient, g, 1);
}

// Quantized averages: r = sum * input scale / (divisor * output scale), rounded half to even as if it were exact.

// Numerator and denominator of the ratio of two float32 numbers, as integers times a power of two: odd, without a common factor.
struct Ratio {
    int64_t numerator, denominator;
    int exponent;

    Ratio(float above, float below) {
        int above_exponent, below_exponent;
        numerator = int64_t(std::ldexp(std::frexp(above, &above_exponent), 24));
        denominator = int64_t(std::ldexp(std::frexp(below, &below_exponent), 24));
        exponent = above_exponent - below_exponent;
        for (; numerator % 2 == 0; numerator /= 2) ++exponent;
        for (; denominator % 2 == 0; denominator /= 2) --exponent;
        const int64_t common = std::gcd(numerator, denominator);
        numerator /= common, denominator /= common;
    }
    double value() const { return std::ldexp(double(numerator) / double(denominator), exponent); }
    // What a result is a fraction of, where every number is a multiple of 1 / that.
    double parts() const { return std::ldexp(double(denominator), std::max(0, -exponent)); }

    // sum * ratio / divisor, rounded.
    int32_t rounded(int64_t sum, int64_t divisor) const {
        const double quotient = std::clamp(double(sum) * value() / double(divisor), -1024., 1024.), whole = std::floor(quotient);
        if (std::abs(quotient - whole - .5) > 0x1p-20) return int32_t(std::rint(quotient));
        const __int128 twice = (__int128(2) * sum * numerator) << std::max(0, exponent);
        const __int128 half = (__int128(2 * int64_t(whole) + 1) * divisor * denominator) << std::max(0, -exponent);
        return int32_t(whole) + (twice > half || (twice == half && int64_t(whole) % 2));
    }
};

struct Requantize {
    static constexpr bool is_division = false;
    static constexpr int64_t BLOCK = 16;
    const Geometry &g;
    int64_t channels;
    std::vector<Ratio> ratios;  // these of each channel
    std::vector<float> scales;
    std::vector<int32_t> input_zeros, output_zeros;
    int32_t low, high;
    bool are_certain;  // whether float32 tells halves from what lies next to them
    bool are_exact;    // whether float64 holds what is compared with halves
    std::vector<double> numerators, denominators;

    // `most` is the largest sum, before the zero points are taken off.
    Requantize(const Geometry &g, const Quantization &q, double most) : g(g), low(int32_t(q.low)), high(int32_t(q.high)) {
        channels = q.input_scales * q.output_scales * q.input_zeros * q.output_zeros == 1 ? 1 : q.channels;
        const auto entry = [](const auto *vector, int64_t count, int64_t c) { return vector[count == 1 ? 0 : c]; };
        double parts = 0;
        for (int64_t c = 0; c < channels; ++c) {
            if (c > 0 && q.input_scales * q.output_scales == 1) ratios.push_back(ratios[0]);
            else ratios.emplace_back(entry(q.input_scale, q.input_scales, c), entry(q.output_scale, q.output_scales, c));
            scales.push_back(float(std::min(ratios[c].value(), 0x1p60))), parts = std::max(parts, ratios[c].parts());
            input_zeros.push_back(entry(q.input_zero, q.input_zeros, c));
            output_zeros.push_back(entry(q.output_zero, q.output_zeros, c));
            numerators.push_back(std::ldexp(double(2 * ratios[c].numerator), std::max(0, ratios[c].exponent)));
            denominators.push_back(std::ldexp(double(ratios[c].denominator), std::max(0, -ratios[c].exponent)));
        }
        double divisor = 1;
        for (const auto &counted : g.counted) divisor *= double(*std::max_element(counted.begin(), counted.end()));
        are_certain = parts * divisor <= 1024;
        are_exact = most < 0x1p23 && divisor < 0x1p18;  // float32 holds the differences too
        scales.resize(channels + BLOCK), input_zeros.resize(channels + BLOCK), output_zeros.resize(channels + BLOCK);
    }
    bool is_uniform() const { return g.is_uniform; }

    template <class L, class T>
    void operator()(int64_t plane, int64_t d, int64_t h, int64_t o, int64_t lane, int64_t count, const L *sums, T *to) const {
        const int64_t lanes = g.p.lanes, taken = g.taps[0][d].count * g.taps[1][h].count;
        const int64_t counted = g.counted[0][d] * g.counted[1][h];
        // Each of the channels of one window, or as many windows of one channel as count the same taps. Channels that have
        // the same scales and zero points are one.
        for (int64_t at = 0, n; at < count; at += n) {
            const bool is_lane = channels > 1 && (lanes > 1 || g.is_one_sum());
            const int64_t o_at = g.is_uniform ? 0 : o + at / lanes;
            const int64_t c = channels == 1 ? 0 : lanes > 1 ? (lane + at) % lanes : (plane + (is_lane ? at : 0)) % channels;
            n = std::min(count - at, is_lane ? channels - c : g.is_uniform ? count : (g.same[o_at] - o_at) * lanes - at % lanes);
            const int64_t inside = taken * g.taps[2][o_at].count, divisor = counted * g.counted[2][o_at];
            if (is_lane) store<true>(sums + at, n, c, inside, divisor, to + at);
            else store<false>(sums + at, n, c, inside, divisor, to + at);
        }
    }

    // Of one channel, or of those from `channel` on. In float32, where what the arithmetic moved next to a half becomes
    // it on a grid of 2^-11: results between -400 and 400 move by 2^-13 at most. Where more than halves may, integers tell.
    template <bool of_channels, class L, class T>
    void store(const L *sums, int64_t count, int64_t channel, int64_t inside, int64_t divisor, T *to) const {
        using Difference = std::conditional_t<std::is_same_v<L, int64_t>, int64_t, int32_t>;
        using Reals = Sixteen<float>;
        using Integers = Sixteen<int32_t>;
        constexpr float GRID = 1.5f * 0x1p12f, WHOLE = 1.5f * 0x1p23f;
        const int32_t *const zeros = output_zeros.data() + channel, *const input_zero = input_zeros.data() + channel;
        const float *const factors = scales.data() + channel;
        const float inverse = float(1 / double(divisor));
        const int32_t least = low, most = high;
        const bool is_certain = are_certain;
        const Difference taken = Difference(inside);
        Reals factor = Reals{} + factors[0] * inverse;
        Integers added = Integers{} + zeros[0];
        Sixteen<Difference> subtracted = Sixteen<Difference>{} + taken * input_zero[0];
        for (int64_t i = 0; i < count; i += BLOCK) {
            const int64_t n = std::min(count - i, BLOCK);
            Sixteen<L> from = {};
            if (n == BLOCK) std::memcpy(&from, sums + i, sizeof(from));
            else std::memcpy(&from, sums + i, size_t(n) * sizeof(L));
            if (of_channels) {
                Integers input;
                std::memcpy(&factor, factors + i, sizeof(factor)), std::memcpy(&added, zeros + i, sizeof(added));
                std::memcpy(&input, input_zero + i, sizeof(input));
                factor *= inverse, subtracted = __builtin_convertvector(input, Sixteen<Difference>) * taken;
            }
            const Reals difference = __builtin_convertvector(__builtin_convertvector(from, Sixteen<Difference>) - subtracted, Reals);
            Reals real = difference * factor;
            real = real < -400.f ? Reals{} - 400.f : real, real = real > 400.f ? Reals{} + 400.f : real;
            const Reals near = (real + GRID) - GRID, shifted = near + WHOLE;
            Integers result = Integers(shifted) - (bits_as<int32_t>(WHOLE) - added);
            result = result < least ? Integers{} + least : result, result = result > most ? Integers{} + most : result;
            const Sixteen<uint8_t> bytes = __builtin_convertvector(result, Sixteen<uint8_t>);
            std::memcpy(to + i, &bytes, size_t(n) < sizeof(bytes) ? size_t(n) : sizeof(bytes));
            if (is_certain) continue;
            const Reals rest = near - (shifted - WHOLE);
            const Sixteen<uint8_t> halves = __builtin_convertvector((rest == .5f) | (rest == -.5f), Sixteen<uint8_t>);
            uint64_t any[2];
            std::memcpy(any, &halves, sizeof(any));
            for (int64_t k = 0; (any[0] | any[1]) && k < n; ++k)
                if (halves[k]) to[i + k] = T(exact(int64_t(sums[i + k]), difference[k], near[k], channel + (of_channels ? i + k : 0), inside, divisor));
        }
    }

    // The result next to a half; both sides of sum * numerator <> half * divisor * denominator are exact in float64, or
    // integers tell.
    int32_t exact(int64_t sum, float difference, float near, int64_t c, int64_t inside, int64_t divisor) const {
        int32_t whole = int32_t(std::floor(near));
        if (are_exact) {
            const double twice = double(difference) * numerators[c], half = double(2 * whole + 1) * double(divisor) * denominators[c];
            whole += twice > half || (twice == half && whole % 2);
        } else whole = ratios[c].rounded(sum - inside * input_zeros[c], divisor);
        return std::clamp(whole + output_zeros[c], low, high);
    }
};

}  // namespace
}  // namespace dmlpool

// What backends/cpu.py calls.
#pragma GCC visibility push(default)
extern "C" {

void dmlpool_average_pooling(int type, const void *input, void *output, const Problem *p, const Counting *counting) {
    const dmlpool::Geometry g(*p, *counting);
    dmlpool::with_float_type(type, [&](auto t) {
        using T = typename decltype(t)::type;
        using L = dmlpool::Wide<T>;
        dmlpool::pool_sums<L>(static_cast<const T *>(input), static_cast<T *>(output), g, dmlpool::Divide<L>(g));
    });
}

void dmlpool_average_pooling_grad(int type, const void *arriving, void *gradient, const Problem *p, const Counting *counting) {
    const dmlpool::Geometry g(*p, *counting);
    dmlpool::with_float_type(type, [&](auto t) {
        using T = typename decltype(t)::type;
        dmlpool::average_pooling_grad(static_cast<const T *>(arriving), static_cast<T *>(gradient), g);
    });
}

void dmlpool_quantized_average_pooling(int is_signed, const void *input, void *output, const Problem *p, const Counting *counting, const Quantization *q) {
    const dmlpool::Geometry g(*p, *counting);
    double most = 255;  // sums, from the taps that windows read
    for (int a = 0; a < 3; ++a) {
        int64_t taps = 0;
        for (const dmlpool::Taps &each : g.taps[a]) taps = std::max(taps, each.count);
        most *= double(taps);
    }
    const dmlpool::Requantize requantize(g, *q, most);
    const auto pool = [&](auto sum, auto element) {
        using T = decltype(element);
        dmlpool::pool_sums<decltype(sum)>(static_cast<const T *>(input), static_cast<T *>(output), g, requantize);
    };
    const auto pool_sums = [&](auto sum) { is_signed ? pool(sum, int8_t()) : pool(sum, uint8_t()); };
    if (most < 0x1p15) pool_sums(int16_t());
    else if (most < 0x1p31) pool_sums(int32_t());
    else pool_sums(int64_t());
}
}
#pragma GCC visibility pop
