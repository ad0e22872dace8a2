// Maxima, winners and sums of rows: an Op says how two values become one, `Rows` does it for rows.
//
//     combine: rows into one row              reduce: runs of a row into values
//
//     row 0  | a b c d |                      row     | a b c d e f |
//     row 1  | e f g h |                      window    ----- -----
//     out    | ae bf cg dh |                  out     |  abc   def  |
#pragma once

#include <algorithm>
#include <vector>

#include "memory.h"
#include "successive.h"
#include "vectors.h"

namespace dmlpool {
namespace {

// Operations on rows, made from an Op. It must have:
//     Value, Element            the types that are combined and that are read
//     lanes                     elements of a row that are loaded at once
//     rows_at_once              the most rows that one loop combines
//     is_idempotent             combining a value twice changes nothing
//     has_numbers               values hold the number of the tap that they come from
//     can_divide                values are sums that can be divided in the loop that adds
//     has_keys                  elements are converted to integers of the same order: keys
//     is_plain()                elements are values as they lie in memory
//     identity()                the value that changes nothing
//     of(first, second)         combines two values
//     renumbered(values, k)     adds k to the numbers of their taps
//     load<n>(elements, k)      n elements as values, of tap k
//     divide_block(block, by, 1 / by), divide_all(sums, count, by)   where `can_divide`
template <class Op>
struct Rows final : RowOperations {
    using L = typename Op::Value;
    using T = typename Op::Element;
    static constexpr bool are_plain = std::is_same_v<T, L> && !Op::has_keys;  // elements are values
    template <bool are_values>
    static constexpr int64_t SIZE = are_values ? sizeof(L) : sizeof(T);
    // The most rows that one loop combines. Windows of more taps are doubled (`is_wide`).
    template <bool are_values>
    static constexpr int64_t MOST_ROWS = are_values && Op::has_keys ? 4 : Op::rows_at_once;
    // The lanes of a vector that reduce_short reads, and the windows that it folds together.
    static constexpr int64_t FOLDED = std::min<int64_t>(LANES<L>, 32 / sizeof(L));
    const Op op;

    explicit Rows(const Op &op, const int64_t (&units)[3] = {0, 0, 0})
        : RowOperations(sizeof(T), sizeof(L), units, op.is_plain(), Op::is_idempotent), op(op) {}

    void fill(void *values, int64_t count, int64_t pitch, int64_t places) const override {
        for (int64_t k = 0; k < places; ++k)
            std::fill_n(static_cast<L *>(values) + k * pitch, count, Op::identity());
    }
    void accumulate(const Row &values, int64_t length, void *into) const override {
        combine_unrolled<true, 1, true>(&values, 0, length, static_cast<L *>(into), {});
    }
    // GCC would inline it into combine_window, so that all of its code would be there twice.
    [[gnu::noinline]] void combine(bool are_values, const Row *rows, int64_t count, int64_t length,
                                   void *to, const Times &times) const override {
        L *const out = static_cast<L *>(to);
        if (are_values || are_plain)
            combine_rows<true>(rows, count, 0, length, out, times);
        else
            combine_rows<are_plain>(rows, count, 0, length, out, times);
    }
    void combine_successive(const char *from, int64_t count, int64_t length, bool reads_first,
                            void *to) const override {
        if constexpr (!Op::has_numbers)
            dmlpool::combine_successive(*this, op, from, count, length, reads_first,
                                        static_cast<L *>(to));
    }
    void combine_short(const char *values, int64_t window, int64_t stride, int64_t outputs,
                       void *to) const override {
        const L *__restrict row = reinterpret_cast<const L *>(values);
        L *__restrict out = static_cast<L *>(to);
        const auto run = [=](auto taps, auto step) {
            constexpr int64_t k = decltype(taps)::value;
            constexpr int64_t every = decltype(step)::value;
            VECTORIZE
            for (int64_t i = 0; i < outputs; ++i) {
                L result = Op::of(row[every * i], Op::renumbered(row[every * i + 1], 1));
                if constexpr (k == 3)
                    result = Op::of(result, Op::renumbered(row[every * i + 2], 2));
                if constexpr (k == 4)
                    result = Op::of(result, Op::of(Op::renumbered(row[every * i + 2], 2),
                                                   Op::renumbered(row[every * i + 3], 3)));
                out[i] = result;
            }
        };
        if (window == 2)
            run(Count<2>(), Count<2>());
        else if (window == 4)
            run(Count<4>(), Count<4>());
        else if (stride == 2)
            run(Count<3>(), Count<2>());
        else
            run(Count<3>(), Count<3>());
    }
    void reduce_windows(bool are_values, const Row &row, int64_t origin, const Run *windows,
                        int64_t outputs, int64_t step, void *produced,
                        const char *end) const override {
        (this->*(are_values ? &Rows::reduce<true> : &Rows::reduce<are_plain>))(
            row, origin, windows, outputs, step, static_cast<L *>(produced), end);
    }
    // A plane's result must not depend on how many planes the call has: so its size alone decides
    // how it is reduced.
    void reduce_planes(const char *from, int64_t size, int64_t planes, void *produced,
                       const char *end) const override {
        L *const out = static_cast<L *>(produced);
        if constexpr (LANES<L> > 1)
            if (size < LANES<L>)
                return reduce_short<are_plain>(from, size, size, planes, out, end);
        const Run whole = {0, size, 0, planes, size};
        reduce<are_plain>({from, 0}, 0, &whole, planes, 1, out, end);
    }

  private:
    // Blocks are handled vector by vector, as GCC keeps copies of whole blocks in memory.
    template <class B>
    static B block_at(const L *from) {
        B block;
#pragma GCC unroll 8
        for (int64_t k = 0; k < B::COUNT; ++k)
            block.part[k] = read<Vector<L, B::WIDTH>>(from + k * B::WIDTH);
        return block;
    }
    template <class B>
    static void store(const B &block, L *to) {
#pragma GCC unroll 8
        for (int64_t k = 0; k < B::COUNT; ++k)
            write(block.part[k], to + k * B::WIDTH);
    }
    template <class B>
    static B combined(B first, const B &second) {
#pragma GCC unroll 8
        for (int64_t k = 0; k < B::COUNT; ++k)
            first.part[k] = Op::of(first.part[k], second.part[k]);
        return first;
    }

    // Combines elements [i, i + n) of rows [from, to) as a tree, so that the error of a sum grows
    // with the logarithm of the number of its terms.
    template <bool are_values, int64_t n, int64_t from, int64_t to>
    static Vectors<L, n> tree(const Op &op, const Row *rows, int64_t i) {
        constexpr int64_t middle = (from + to + 1) / 2;
        const char *const at = rows[from].from + i * SIZE<are_values>;
        if constexpr (to - from > 1)
            return combined(tree<are_values, n, from, middle>(op, rows, i),
                            tree<are_values, n, middle, to>(op, rows, i));
        else if constexpr (!are_values)
            return op.template load<n>(reinterpret_cast<const T *>(at), rows[from].number);
        else {
            auto values = block_at<Vectors<L, n>>(reinterpret_cast<const L *>(at));
#pragma GCC unroll 8
            for (auto &part : values.part)
                part = Op::renumbered(part, rows[from].number);
            return values;
        }
    }

    // Combines elements [begin, begin + length) of `count` rows into `out`, and with `accumulates`
    // what `out` holds, too. It works on blocks of n elements. The last block may overlap the one
    // before. `times` is a loop in here, as a call for each repetition may cost more than its work.
    template <bool are_values, int64_t count, bool accumulates = false,
              int64_t n = are_values ? LANES<L> : Op::lanes>
    void combine_unrolled(const Row *all_rows, int64_t begin, int64_t length, L *out,
                          const Times &times) const {
        using B = Vectors<L, n>;
        constexpr int64_t fewer = n > 16 / SIZE<are_values> ? 16 / SIZE<are_values> : 1;
        if constexpr (n > 1)
            if (length < n)
                return combine_unrolled<are_values, count, accumulates, fewer>(all_rows, begin,
                                                                               length, out, times);
        const Op by = op;
        Row rows[count];
#pragma GCC unroll 9
        for (int64_t k = 0; k < count; ++k)
            rows[k] = {all_rows[k].from + begin * SIZE<are_values>, all_rows[k].number};
        L *to = out;
        const L divisor = L(times.divisor);
        const L inverse = L(times.inverse());
        // GCC would not inline it, as it is called in two places.
        const auto block = [&](int64_t i) __attribute__((always_inline)) {
            B produced = tree<are_values, n, 0, count>(by, rows, i);
            if constexpr (Op::can_divide && !accumulates)
                Op::divide_block(produced, divisor, inverse);
            return accumulates ? combined(block_at<B>(to + i), produced) : produced;
        };
        const int64_t whole = length / n * n;
        const bool has_remainder = accumulates && whole < length;
        const int64_t step = uint64_t(times.step) / SIZE<are_values>;
        for (int64_t t = 0, first = 0; t < times.count && length > 0; ++t, first += step) {
            to = out + t * times.pitch - first;
            const int64_t end = first + length;
            B last_block;
            if (has_remainder)
                last_block = block(end - n);
            // Without `accumulates` the last block is in the loop, so that its code is there once.
            const int64_t stop = (accumulates ? first + whole : end) - n;
            for (int64_t i = first;;) {
                store(block(i), to + i);
                if constexpr (n == 1)
                    __asm__("");  // not vectorized: these are fewer elements than a vector has
                i += n;
                if (i <= stop)
                    continue;
                if (i == stop + n)
                    break;
                i = stop;
            }
            if (has_remainder)
                store(last_block, to + end - n);
        }
    }
    // Combines any number of rows: by the `combine_unrolled` of that number, or by `combine_many`.
    template <bool are_values, int64_t unrolled = 1>
    __attribute__((always_inline)) void combine_rows(const Row *rows, int64_t count, int64_t begin,
                                                     int64_t length, L *out,
                                                     const Times &times) const {
        if constexpr (unrolled > MOST_ROWS<are_values>)
            for (int64_t t = 0; t < times.count; ++t) {
                L *const to = out + t * times.pitch;
                const int64_t from = begin + t * times.step / SIZE<are_values>;
                combine_many<are_values>(rows, count, from, length, to);
                if constexpr (Op::can_divide)
                    if (times.divisor != 0)
                        Op::divide_all(to, length, times.divisor);
            }
        else if (count == unrolled)
            combine_unrolled<are_values, unrolled>(rows, begin, length, out, times);
        else
            combine_rows<are_values, unrolled + 1>(rows, count, begin, length, out, times);
    }
    // Combines no rows, or more than MOST_ROWS. Idempotent operations combine SEVERAL rows at a
    // time with the result so far. For sums each half of the rows is summed, and both sums are
    // added, PART elements at a time.
    template <bool are_values>
    __attribute__((noinline)) void combine_many(const Row *rows, int64_t count, int64_t begin,
                                                int64_t length, L *out) const {
        constexpr int64_t PART = 8192 / sizeof(L);
        L remainder[PART];
        constexpr int64_t SEVERAL = MOST_ROWS<are_values> < 8 ? 4 : 8;
        int64_t half = SEVERAL;
        if (count == 0)
            std::fill_n(out, length, Op::identity());
        else if (Op::is_idempotent) {
            combine_unrolled<are_values, SEVERAL>(rows, begin, length, out, {});
            for (int64_t k = SEVERAL; k < count; k += SEVERAL)
                combine_unrolled<are_values, SEVERAL, true>(rows + std::min(k, count - SEVERAL),
                                                            begin, length, out, {});
        } else {
            while (2 * half < count)
                half *= 2;
            for (int64_t at = 0; at < length; at += PART) {
                const int64_t n = std::min(PART, length - at);
                for (int64_t from : {int64_t(0), half})
                    combine_rows<are_values>(rows + from, from ? count - half : half, begin + at, n,
                                             from ? remainder : out + at, {});
                accumulate({reinterpret_cast<const char *>(remainder), 0}, n, out + at);
            }
        }
    }

    // Combines the lanes of a vector into one value.
    template <class V>
    static L folded(const V &vector) {
        if constexpr (sizeof(V) == sizeof(L))
            return L(vector);
        else {
            Vector<L, sizeof(V) / sizeof(L) / 2> halves[2];
            std::memcpy(halves, &vector, sizeof(vector));
            return folded(Op::of(halves[0], halves[1]));
        }
    }
    // Reduces windows of fewer contiguous elements than LANES. Each begins `step` after the one
    // before. n windows at a time are read as one or two vectors and folded together. The last n
    // may overlap those before. Nothing is read from `end` on.
    template <bool are_values>
    __attribute__((noinline)) void reduce_short(const char *from, int64_t count, int64_t step,
                                                int64_t outputs, L *out, const char *end) const {
        constexpr int64_t n = FOLDED;
        using V = Vector<L, n>;
        const V identity = V{} + Op::identity();
        Vector<IntegerOf<L>, n> lane;
        for (int64_t i = 0; i < n; ++i)
            lane[i] = IntegerOf<L>(i);
        const auto is_inside = lane < IntegerOf<L>(std::min(count, n));
        const auto is_new = lane >= IntegerOf<L>(2 * n - count);  // in the second vector
        const Op by = op;
        const auto vector = [&](const char *begin, int64_t at) {
            V produced;
            if constexpr (are_values)
                produced = read<V>(begin + at * SIZE<true>);
            else
                produced = by.template load<n>(reinterpret_cast<const T *>(begin) + at, 0).part[0];
            if constexpr (Op::has_numbers)
                // wraps around: lanes outside the window may hold any number
                produced = difference<L, n>(produced, lane + IntegerOf<L>(at));
            return produced;
        };
        const auto window = [&](const char *begin) __attribute__((always_inline)) {
            const V first = vector(begin, 0);
            V produced = is_inside ? first : identity;
            if (count > n) {
                const V second = vector(begin, count - n);
                produced = Op::of(produced, is_new ? second : identity);
            }
            return produced;
        };
        const int64_t pitch = step * SIZE<are_values>;
        for (int64_t done = 0; done < outputs; done += n) {
            const int64_t o = std::max<int64_t>(0, std::min(done, outputs - n));
            const char *const first = from + o * pitch;
            V results;
            if (outputs >= n &&
                first + (n - 1) * pitch + std::max(count, n) * SIZE<are_values> <= end)
                results =
                    folded_each<Op, n, n>(0, [&](int64_t k) { return window(first + k * pitch); });
            else {
                V vectors[n];
                for (int64_t k = 0; k < n; ++k) {
                    char copy[2 * n * SIZE<are_values>];
                    std::memcpy(copy, first + std::min(k, outputs - 1) * pitch,
                                count * SIZE<are_values>);
                    vectors[k] = window(copy);
                }
                results = folded_each<Op, n, n>(0, [&](int64_t k) { return vectors[k]; });
            }
            std::memcpy(out + o, &results, std::min(n, outputs) * sizeof(L));
        }
    }
    // Reduces windows of LANES contiguous elements or more. Each becomes a vector, and n vectors
    // are folded together.
    template <bool are_values>
    __attribute__((noinline)) void reduce_long(const char *from, int64_t count, int64_t step,
                                               int64_t outputs, L *out) const {
        constexpr int64_t n = LANES<L>;
        const auto vector = [=](int64_t o) __attribute__((always_inline)) {
            return combined_vector<are_values, n>(from + o * step * SIZE<are_values>, count);
        };
        int64_t o = 0;
        if constexpr (n <= 16)
            for (; outputs - o >= n && !without(FOLDED_PLANES); o += n) {
                Vector<L, n> vectors[n];
                for (int64_t k = 0; k < n; ++k)
                    vectors[k] = vector(o + k);
                write(folded_each<Op, n, n>(0, [&](int64_t k) { return vectors[k]; }), out + o);
            }
        for (; o < outputs; ++o)
            out[o] = folded(vector(o));
    }
    // Combines elements or values one by one, which lie `step` apart, as a tree.
    template <bool are_values>
    L reduce_apart(const Row &row, int64_t count, int64_t step) const {
        const auto tap = [&](int64_t t) {
            return Row{row.from + t * step * SIZE<are_values>, row.number + t * units[2]};
        };
        if (count > 8)
            return Op::of(reduce_apart<are_values>(row, count / 2, step),
                          reduce_apart<are_values>(tap(count / 2), count - count / 2, step));
        const auto value = [&](int64_t t) {
            const Row one = tap(t);
            return tree<are_values, 1, 0, 1>(op, &one, 0).part[0];
        };
        L even = count & 1 ? value(count - 1) : Op::identity();
        L odd = Op::identity();
        for (int64_t t = 0; t + 1 < count; t += 2) {
            even = Op::of(even, value(t));
            odd = Op::of(odd, value(t + 1));
        }
        return Op::of(even, odd);
    }
    // Combines the vectors of n elements or more as a tree: kept[level] is the sum of 8 << level
    // vectors that waits for as many more. The lanes of the result are to be combined.
    template <bool are_values, int64_t n>
    __attribute__((always_inline)) Vector<L, n> combined_vector(const char *from,
                                                                int64_t count) const {
        using V = Vector<L, n>;
        int64_t at = 0;
        int64_t eights = 0;
        const auto take = [&](auto vectors) {
            constexpr int64_t k = decltype(vectors)::value;
            Row rows[k];
#pragma GCC unroll 8
            for (int64_t v = 0; v < k; ++v)
                rows[v] = {from + (at + v * n) * SIZE<are_values>,
                           Op::has_numbers ? at + v * n : 0};
            at += k * n;
            return tree<are_values, n, 0, k>(op, rows, 0).part[0];
        };
        V kept[60];
        V result = V{} + Op::identity();
        Vector<IntegerOf<L>, n> lane;
        for (int64_t i = 0; i < n; ++i)
            lane[i] = IntegerOf<L>(i);
        if (const int64_t left = n - count % n; left < n) {  // after the last whole vector
            at = count - n;
            const V last = take(Count<1>());
            result = lane < IntegerOf<L>(left) ? result : last;
            at = 0;
        }
        if (count >= 4 * n) {
            for (; count - at >= 8 * n; ++eights) {
                if constexpr (n * SIZE<are_values> == 64)
                    for (int64_t v = 0; v < 8; ++v)  // the processor prefetches lines read twice
                        touch(from + (at + v * n) * SIZE<are_values> + 32);
                V eight = take(Count<8>());
                int level = 0;
                for (; eights >> level & 1; ++level)
                    eight = Op::of(kept[level], eight);
                kept[level] = eight;
            }
            if (count - at >= 4 * n)
                result = Op::of(result, take(Count<4>()));
            for (int level = 0; eights >> level; ++level)
                if (eights >> level & 1)
                    result = Op::of(result, kept[level]);
        }
        if (count - at >= 2 * n)
            result = Op::of(result, take(Count<2>()));
        if (count - at >= n)
            result = Op::of(result, take(Count<1>()));
        if constexpr (Op::has_numbers)
            result -= lane;
        return result;
    }
    // Combines what each window reads of a row, run by run (see reduce_windows in operations.h).
    template <bool are_values>
    void reduce(const Row &row, int64_t origin, const Run *windows, int64_t outputs, int64_t step,
                L *out, const char *end) const {
        constexpr int64_t n = LANES<L>;
        for (int64_t o = 0; o < outputs; o += windows->outputs, ++windows) {
            const Run &run = *windows;
            const char *const from = row.from + (run.begin - origin) * SIZE<are_values>;
            const int64_t different = run.step > 0 ? run.outputs : 1;
            const bool is_apart =
                n == 1 || step > 1 || run.count == 0 || (run.count < n && 2 * different < FOLDED);
            for (int64_t k = 0; k < different && is_apart; ++k)
                out[o + k] = reduce_apart<are_values>({from + k * run.step * SIZE<are_values>, 0},
                                                      run.count, step);
            if constexpr (n > 1)
                if (!is_apart && run.count < n)
                    reduce_short<are_values>(from, run.count, run.step, different, out + o, end);
                else if (!is_apart)
                    reduce_long<are_values>(from, run.count, run.step, different, out + o);
            for (int64_t k = o; Op::has_numbers && run.count > 0 && k < o + different; ++k)
                out[k] = Op::renumbered(out[k], row.number + run.tap * units[2]);
            std::fill_n(out + o + different, run.outputs - different, L(out[o]));
        }
    }
};

}  // namespace
}  // namespace dmlpool
