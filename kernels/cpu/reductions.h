// Maxima, winners and sums of rows: an Op says how two values become one, `Rows` does it for rows.
//
//     combine: rows into one row              reduce: runs of a row into values
//
//     row 0  | a b c d |                      row     | a b c d e f |
//     row 1  | e f g h |                      window    ----- -----
//     out    | ae bf cg dh |                  out     |  abc   def  |
#pragma once

#include "memory.h"
#include "vectors.h"

namespace dmlpool {
namespace {

// sum / by, where `inverse` is 1 / by. For float32 and vectors of it, it multiplies by the inverse,
// and corrects that by the remainder, unless the sum is infinite or NaN. That is twice as fast as a
// division.
inline double quotient(double sum, double by, double) {
    return sum / by;
}
template <class V>
inline V quotient(V sums, float by, float inverse) {
    const V near = sums * inverse;
    const V remainder = fused(-near, V{} + by, sums);
    return remainder == remainder ? fused(remainder, V{} + inverse, near) : near;
}

// Windows of this many bytes are read at four places in turn, which takes .65 to .8 of the time
// where no cache holds them.
constexpr int64_t LONG_BYTES = 1 << 15;

// What most Ops have in common: those that combine elements T as values L, see `Rows`.
template <class L, class T>
struct Combination {
    using Value = L;
    using Element = T;
    static constexpr int64_t lanes = LANES<L>;
    static constexpr int64_t rows_at_once = 9;
    static constexpr bool is_idempotent = true;
    static constexpr bool has_numbers = false;
    static constexpr bool can_divide = false;
    static auto renumbered(auto values, int64_t) { return values; }
};

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
template <class Op>
struct Rows final : RowOperations {
    using L = typename Op::Value;
    using T = typename Op::Element;
    static constexpr bool are_plain = is_same_v<T, L> && !Op::has_keys;  // elements are values
    template <bool are_values>
    static constexpr int64_t SIZE = are_values ? sizeof(L) : sizeof(T);
    // The most rows that one loop combines. `combine_many` combines more.
    template <bool are_values>
    static constexpr int64_t MOST_ROWS = are_values && Op::has_keys ? 4 : Op::rows_at_once;
    const Op op;

    explicit Rows(const Op &op, const int64_t (&units)[3] = {0, 0, 0})
        : RowOperations(sizeof(T), sizeof(L), units), op(op) {
        is_plain = op.is_plain();
        is_idempotent = Op::is_idempotent;
    }

    void fill(void *values, int64_t count, int64_t pitch, int64_t places) const override {
        for (int64_t k = 0; k < places; ++k)
            fill_n(as<L>(values) + k * pitch, count, Op::identity());
    }
    void accumulate(const Row *rows, int64_t count, int64_t length, void *into) const override {
        (count == 1 ? &accumulate_rows<LANES<L>, 1>
                    : &accumulate_rows<LANES<L>, 3>)(rows, 0, length, as<L>(into));
    }
    // GCC would inline it into combine_window, so that all of its code would be there twice.
    [[gnu::noinline]] void combine(bool are_values, const Row *rows, int64_t count, int64_t length,
                                   void *to, const Times &times) const override {
        L *const out = as<L>(to);
        if (are_values || are_plain)
            combine_rows<true>(rows, count, length, out, times);
        else
            combine_rows<are_plain>(rows, count, length, out, times);
    }
    void combine_short(const char *values, int64_t window, int64_t stride, int64_t outputs,
                       void *to) const override {
        const auto run = window == 2   ? combine_taps<2, 2>
                         : window == 4 ? combine_taps<4, 4>
                         : stride == 2 ? combine_taps<3, 2>
                                       : combine_taps<3, 3>;
        run(reinterpret_cast<const Unaligned *>(values), outputs, as<L>(to));
    }
    void reduce_windows(bool are_values, const Row &row, int64_t origin, const Run *runs,
                        int64_t groups, int64_t step, void *produced) const override {
        (this->*(are_values ? &Rows::reduce<true> : &Rows::reduce<are_plain>))(
            row, origin, runs, groups, step, as<L>(produced));
    }

  private:
    // A value that may lie at any address, as those of operands do. Loops over rows index it,
    // because GCC loads what several taps share once only if it sees an array: `read` takes 4 to
    // 16 % longer.
    typedef L Unaligned __attribute__((aligned(1), may_alias));
    // Combines `taps` values of each window, which lie `stride` values apart.
    template <int64_t taps, int64_t stride>
    static void combine_taps(const Unaligned *__restrict row, int64_t outputs, L *__restrict out) {
        constexpr int64_t n = LANES<L>;
        const auto combined_at = [=](int64_t i) {
            L result = row[stride * i];
#pragma GCC unroll 4
            for (int64_t t = 1; t < taps; ++t)
                result = Op::of(result, Op::renumbered(row[stride * i + t], t));
            return result;
        };
        if constexpr (n == 1)  // there are no vectors of them
            for (int64_t i = 0; i < outputs; ++i)
                out[i] = combined_at(i);
        else {
            if constexpr (stride == 2 && sizeof(L) >= 4)
                if (outputs >= n)
                    return each_block<n>(0, outputs, [=](int64_t i) {
                        const L *const from = as<L>(row) + stride * i;
                        auto result = every_second<n, 0>(from);
                        result = Op::of(result, Op::renumbered(every_second<n, 1>(from), 1));
                        if constexpr (taps == 3)
                            result =
                                Op::of(result, Op::renumbered(every_second<n, 1>(from + 1), 2));
                        write(in_order<L, n>(result), out + i);
                    });
            VECTORIZE
            for (int64_t i = 0; i < outputs; ++i)
                out[i] = combined_at(i);
        }
    }

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
            return op.template load<n>(as<T>(at), rows[from].number);
        else {
            auto values = block_at<Vectors<L, n>>(as<L>(at));
#pragma GCC unroll 8
            for (auto &part : values.part)
                part = Op::renumbered(part, rows[from].number);
            return values;
        }
    }

    // Where rows are shorter than a block of n elements, blocks have this many.
    template <bool are_values, int64_t n>
    static constexpr int64_t FEWER = n > 16 / SIZE<are_values> ? 16 / SIZE<are_values> : 1;
    // Calls act(i) for the blocks of n elements of [begin, end). The last block may overlap the one
    // before. The same loop runs it, so that its code is there once.
    template <int64_t n, class Act>
    __attribute__((always_inline)) static void each_block(int64_t begin, int64_t end,
                                                          const Act &act) {
        for (int64_t i = begin;;) {
            act(i);
            if constexpr (n == 1)
                __asm__("");  // not vectorized: these are fewer elements than a vector has
            i += n;
            if (i <= end - n)
                continue;
            if (i == end)
                break;
            i = end - n;
        }
    }
    // Combines `length` elements of `count` rows into `out`. `times` is a loop in here, as a call
    // for each repetition may cost more than its work.
    template <bool are_values, int64_t count, int64_t n = are_values ? LANES<L> : Op::lanes>
    void combine_unrolled(const Row *all_rows, int64_t length, L *out, const Times &times) const {
        if constexpr (n > 1)
            if (length < n)
                return combine_unrolled<are_values, count, FEWER<are_values, n>>(all_rows, length,
                                                                                 out, times);
        const Op by = op;
        Row rows[count];
        copy_n(all_rows, count, rows);
        const L divisor = L(times.divisor);
        const L inverse = L(times.inverse());
        const int64_t step = uint64_t(times.step) / SIZE<are_values>;
        for (int64_t t = 0, first = 0; t < times.count && length > 0; ++t, first += step) {
            L *const to = out + t * times.pitch - first;
            each_block<n>(first, first + length, [&](int64_t i) __attribute__((always_inline)) {
                auto produced = tree<are_values, n, 0, count>(by, rows, i);
                if constexpr (Op::can_divide)
                    if (divisor != 0)
                        for (auto &part : produced.part)
                            part = quotient(part, divisor, inverse);
                store(produced, to + i);
            });
        }
    }
    // Combines any number of rows: by the `combine_unrolled` of that number, or by `combine_many`.
    template <bool are_values, int64_t unrolled = 1>
    __attribute__((always_inline)) void combine_rows(const Row *rows, int64_t count, int64_t length,
                                                     L *out, const Times &times) const {
        if constexpr (unrolled > MOST_ROWS<are_values>)
            for (int64_t t = 0; t < times.count; ++t)
                combine_many<are_values>(rows, count, t * times.step / SIZE<are_values>, length,
                                         out + t * times.pitch, times);
        else if (count == unrolled)
            combine_unrolled<are_values, unrolled>(rows, length, out, times);
        else
            combine_rows<are_values, unrolled + 1>(rows, count, length, out, times);
    }
    // Combines elements [begin, begin + length) of no rows, or of more than MOST_ROWS: a tree of
    // groups. The values of a group wait for those of the next one, the values of both for the next
    // two groups, and so on, as in a binary counter. Those of the last group do not wait.
    //
    //     rows     0..7   8..15   16..23   24..31   32..39   40..47
    //     level 0   a       b       c        d        e        last
    //     level 1        ab               cd
    //     level 2               abcd
    template <bool are_values, int64_t n = are_values ? LANES<L> : Op::lanes>
    __attribute__((noinline)) void combine_many(const Row *rows, int64_t count, int64_t begin,
                                                int64_t length, L *out, const Times &times) const {
        constexpr int64_t GROUP = MOST_ROWS<are_values> < 8 ? 4 : 8;
        constexpr int64_t KEPT = 32768 / sizeof(L);
        using B = Vectors<L, n>;
        if constexpr (n > 1)
            if (length < n)
                return combine_many<are_values, FEWER<are_values, n>>(rows, count, begin, length,
                                                                      out, times);
        if (count == 0)
            return void(fill_n(out, length, Op::identity()));
        const Op by = op;
        const int64_t groups = (count - 1) / GROUP;  // before the last one
        const int64_t levels = 64 - __builtin_clzll(groups | 1);
        L kept[KEPT];
        const int64_t part = KEPT / levels / n * n;  // elements of a row that are combined at once
        for (int64_t at = 0; at < length; at += part) {
            const int64_t first = min(at, length - n);
            const int64_t stop = min(first + part, length);
            const auto level_at = [&](int64_t level, int64_t i) {
                return kept + level * part + (i - first);
            };
            for (int64_t g = 0; g < groups; ++g) {
                const int64_t full = __builtin_ctzll(~g);  // levels that wait for this group
                Row group[GROUP];
                copy_n(rows + g * GROUP, GROUP, group);
                each_block<n>(first, stop, [&](int64_t i) __attribute__((always_inline)) {
                    B values = tree<are_values, n, 0, GROUP>(by, group, begin + i);
#pragma GCC unroll 1  // Clang would unroll what is repeated few times
                    for (int64_t level = 0; level < full; ++level)
                        values = combined(block_at<B>(level_at(level, i)), values);
                    store(values, level_at(full, i));
                });
            }
            each_block<n>(first, stop, [&](int64_t i) __attribute__((always_inline)) {
                const Row *const last = rows + groups * GROUP;
                B values = tree<are_values, n, 0, 1>(by, last, begin + i);
#pragma GCC unroll 1
                for (const Row *row = last + 1; row < rows + count; ++row)
                    values = combined(values, tree<are_values, n, 0, 1>(by, row, begin + i));
#pragma GCC unroll 1
                for (int64_t level = 0; level < levels; ++level)
                    if (groups >> level & 1)
                        values = combined(block_at<B>(level_at(level, i)), values);
                store(values, out + i);
            });
        }
        if constexpr (Op::can_divide)
            for (int64_t i = 0; i < length && times.divisor != 0; ++i)
                out[i] = quotient(out[i], L(times.divisor), L(times.inverse()));
    }
    // Combines values from number i on with those of `out`, in order: they may overlap.
    template <int64_t n, int64_t count>
    static void accumulate_rows(const Row *rows, int64_t i, int64_t length, L *out) {
        using V = Vector<L, n>;
        for (; i + n <= length; i += n) {
            V result = read<V>(out + i);
#pragma GCC unroll 3
            for (int64_t k = 0; k < count; ++k)
                result = Op::of(
                    result, Op::renumbered(read<V>(rows[k].from + i * SIZE<true>), rows[k].number));
            write(result, out + i);
        }
        if constexpr (n > 1)
            accumulate_rows<FEWER<true, n>, count>(rows, i, length, out);
    }

    // Combines the lanes of a vector into one value.
    static L folded(const auto &vector) {
        if constexpr (sizeof(vector) == sizeof(L))
            return L(vector);
        else {
            Vector<L, sizeof(vector) / sizeof(L) / 2> halves[2];
            memcpy(halves, &vector, sizeof(vector));
            return folded(Op::of(halves[0], halves[1]));
        }
    }
    // Reduces windows of contiguous elements, by vectors of n elements, or of half as many where
    // windows have fewer than n.
    template <bool are_values, int64_t n = LANES<L>>
    __attribute__((always_inline)) void reduce_runs(const char *from, int64_t count, int64_t step,
                                                    int64_t outputs, L *out) const {
        if constexpr (n == 1 || n * sizeof(L) < 16)
            for (int64_t o = 0; o < outputs; ++o)
                out[o] =
                    reduce_apart<are_values>({from + o * step * SIZE<are_values>, 0}, count, 1);
        else if (count < n)
            reduce_runs<are_values, n / 2>(from, count, step, outputs, out);
        else
            reduce_vectors<are_values, n>(from, count, step, outputs, out);
    }
    // Reduces each window to a vector, and n vectors together to a vector of results.
    template <bool are_values, int64_t n>
    __attribute__((noinline)) void reduce_vectors(const char *from, int64_t count, int64_t step,
                                                  int64_t outputs, L *out) const {
        constexpr int64_t many = n <= 16 ? n : 1;
        for (int64_t o = 0; o < outputs; o += many) {
            Vector<L, n> vectors[many];
            const int64_t several = min(many, outputs - o);
            for (int64_t k = 0; k < several; ++k)
                vectors[k] =
                    combined_vector<are_values, n>(from + (o + k) * step * SIZE<are_values>, count);
            if constexpr (many == n)
                if (several == n) {
                    write(folded_each<Op, n>(vectors), out + o);
                    continue;
                }
            for (int64_t k = 0; k < several; ++k)
                out[o + k] = folded(vectors[k]);
        }
    }
    // Combines elements or values that lie `step` apart: up to 8 in two chains, more as a tree.
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
    // Combines k vectors of n elements: two from element `at` on, and two from each `apart`
    // elements further.
    template <bool are_values, int64_t n, int64_t k>
    __attribute__((always_inline)) Vector<L, n> vectors_at(const char *from, int64_t at,
                                                           int64_t apart) const {
        Row rows[k];
#pragma GCC unroll 8
        for (int64_t v = 0; v < k; ++v) {
            const int64_t first = at + v / 2 * apart + v % 2 * n;
            rows[v] = {from + first * SIZE<are_values>, Op::has_numbers ? first : 0};
            if constexpr (n * SIZE<are_values> == 64 && k == 8)
                touch(rows[v].from + 32);  // the processor prefetches lines that are read twice
        }
        return tree<are_values, n, 0, k>(op, rows, 0).part[0];
    }
    // Combines `eights` times 8 vectors of n elements, one after the other or at four places in
    // turn.
    template <bool are_values, int64_t n>
    __attribute__((noinline)) Vector<L, n> combined_eights(const char *from, int64_t eights) const {
        const bool is_long = eights * 8 * n * SIZE<are_values> >= LONG_BYTES;
        const int64_t step = (is_long ? 2 : 8) * n;
        const int64_t apart = is_long ? eights * step : 2 * n;
        Vector<L, n> kept[60];
        Vector<L, n> result;
        for (int64_t e = 0; e < eights; ++e) {
            result = vectors_at<are_values, n, 8>(from, e * step, apart);
            int level = 0;
            for (; e >> level & 1; ++level)
                result = Op::of(kept[level], result);
            kept[level] = result;
        }
        for (int level = __builtin_ctzll(eights) + 1; eights >> level; ++level)
            if (eights >> level & 1)
                result = Op::of(result, kept[level]);
        return result;
    }
    // Combines n contiguous elements or more, whose vectors are combined as in `combine_many`. The
    // caller combines the lanes of the result. Windows of fewer than LANES have one whole vector.
    template <bool are_values, int64_t n>
    __attribute__((always_inline)) Vector<L, n> combined_vector(const char *from,
                                                                int64_t count) const {
        using V = Vector<L, n>;
        int64_t at = 0;
        const auto take = [&](auto vectors) {
            constexpr int64_t k = decltype(vectors)::value;
            at += k * n;
            return vectors_at<are_values, n, k>(from, at - k * n, 2 * n);
        };
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
        if constexpr (n == LANES<L>) {
            if (count >= 4 * n) {
                if (const int64_t eights = count / (8 * n); eights > 3) {
                    result = Op::of(result, combined_eights<are_values, n>(from, eights));
                    at = eights * 8 * n;
                }
                while (count - at >= 8 * n)  // at most three times, without a call
                    result = Op::of(result, take(Count<8>()));
                if (count - at >= 4 * n)
                    result = Op::of(result, take(Count<4>()));
            }
            if (count - at >= 2 * n)
                result = Op::of(result, take(Count<2>()));
        }
        if (count - at >= n)
            result = Op::of(result, take(Count<1>()));
        if constexpr (Op::has_numbers)
            result -= lane;  // as `renumbered` does, by a number for each lane
        return result;
    }
    // Combines what each group reads of a row, run by run (see reduce_windows in operations.h).
    template <bool are_values>
    void reduce(const Row &row, int64_t origin, const Run *runs, int64_t groups, int64_t step,
                L *out) const {
        for (int64_t g = 0; g < groups; g += runs->groups, ++runs) {
            const Run &run = *runs;
            const char *const from = row.from + (run.begin - origin) * SIZE<are_values>;
            const Row first = {from, 0};
            if (run.count == 1 && run.step == 1)
                combine_unrolled<are_values, 1>(&first, run.groups, out + g, {});
            else if (step == 1 && (run.step > 0 || run.count >= LANES<L>))
                reduce_runs<are_values>(from, run.count, run.step, run.groups, out + g);
            else
                for (int64_t k = 0; k < run.groups; ++k)
                    out[g + k] = reduce_apart<are_values>(
                        {from + k * run.step * SIZE<are_values>, 0}, run.count, step);
            for (int64_t k = g; Op::has_numbers && run.count > 0 && k < g + run.groups; ++k)
                out[k] = Op::renumbered(out[k], row.number + run.tap * units[2]);
        }
    }
};

}  // namespace
}  // namespace dmlpool
