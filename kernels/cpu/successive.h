// Combines many rows that follow each other in memory, such as the positions of a plane, as a tree.
// Memory is read in order, eight rows at a time. Their combination waits for that of the next eight
// rows, the combination of both for that of the next sixteen, and so on, as in a binary counter:
//
//     rows     0..7   8..15   16..23   24..31   32..39
//     level 0   a       b       c        d        e       waits for the next eight rows
//     level 1        ab               cd                  waits for the next sixteen
//     level 2               abcd
#pragma once

#include <algorithm>
#include <memory>

#include "memory.h"
#include "vectors.h"

namespace dmlpool {
namespace {

template <class Op>
struct SuccessiveRows {
    using L = typename Op::Value;
    using T = typename Op::Element;
    static constexpr int64_t n = LANES<L>;
    using V = Vector<L, n>;
    const Op op;
    const T *const from;
    const int64_t eights;  // the number of groups of eight rows
    const int64_t length;  // of a row, at least n
    const bool reads_first;

    const int64_t levels = levels_of(eights);
    // A row for each level, and one for what the caller combines with all of them.
    const std::unique_ptr<L[]> waiting{new L[(levels + 1) * length]};
    L *const remainder = waiting.get() + levels * length;

    static int64_t levels_of(int64_t eights) { return eights ? 1 + levels_of(eights / 2) : 0; }
    // Combines the rows, and `remainder` if it holds values.
    void combine(bool has_remainder, L *out) const {
        for (int64_t eight = 0; eight < eights; ++eight)
            add_eight(eight);
        const int64_t first = has_remainder ? 0 : __builtin_ctzll(eights) + 1;
        for (int64_t begin = 0; begin < length; begin += n) {
            const int64_t at = std::min(begin, length - n);
            V produced =
                read<V>((has_remainder ? remainder : waiting.get() + (first - 1) * length) + at);
            for (int64_t level = first; level < levels; ++level)
                if (eights >> level & 1)
                    produced = Op::of(read<V>(waiting.get() + level * length + at), produced);
            write(produced, out + at);
        }
    }
    void add_eight(int64_t eight) const {
        const T *const first = from + eight * 8 * length;
        const int64_t full = __builtin_ctzll(~eight);  // levels to combine with: the next is free
        if (reads_first)
            read_in_order(reinterpret_cast<const char *>(first), 8 * length * int64_t(sizeof(T)));
        for (int64_t begin = 0; begin < length; begin += n) {
            const int64_t at = std::min(begin, length - n);
            V produced = tree<8>(first + at);
            for (int64_t level = 0; level < full; ++level)
                produced = Op::of(read<V>(waiting.get() + level * length + at), produced);
            write(produced, waiting.get() + full * length + at);
        }
    }
    // Combines `count` rows, from elements `row` on.
    template <int64_t count>
    __attribute__((always_inline)) V tree(const T *row) const {
        if constexpr (count == 1)
            return op.template load<n>(row, 0).part[0];
        else {
            const V first = tree<count / 2>(row);
            return Op::of(first, tree<count / 2>(row + count / 2 * length));
        }
    }
};

// Combines `count` rows of `length` elements. `operations` combines the last rows, or all if there
// are at most nine.
template <class Op>
void combine_successive(const RowOperations &operations, const Op &op, const char *from,
                        int64_t count, int64_t length, bool reads_first, typename Op::Value *out) {
    using T = typename Op::Element;
    Row rows[9];
    const int64_t last = count <= 9 ? count : count % 8;
    for (int64_t k = 0; k < last; ++k)
        rows[k] = {from + (count - last + k) * length * int64_t(sizeof(T)), 0};
    if (last == count)
        return operations.combine(false, rows, last, length, out);
    const T *const first = reinterpret_cast<const T *>(from);
    const SuccessiveRows<Op> successive{op, first, (count - last) / 8, length, reads_first};
    if (last > 0)
        operations.combine(false, rows, last, length, successive.remainder);
    successive.combine(last > 0, out);
}

}  // namespace
}  // namespace dmlpool
