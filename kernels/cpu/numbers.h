// Numbers of winners: the tap of a window, the position in a plane or the index in a tensor.
#pragma once

#include <functional>
#include <vector>

#include "operators.h"
#include "vectors.h"

namespace dmlpool {
namespace {

// A number for each element of a row of outputs: number_of(output) + channel * channel_unit. The
// numbers of a row of at most KEPT_NUMBERS elements are kept. Those of a longer row are computed
// BLOCK elements at a time.
template <class N>
struct Columns {
    static constexpr int64_t BLOCK = 512;
    const Problem &p;
    const int64_t channel_unit;
    const std::function<N(int64_t)> number_of;  // of an output
    std::vector<N> kept;

    Columns(const Problem &p, int64_t channel_unit, const std::function<N(int64_t)> &number_of,
            bool is_used = true)
        : p(p), channel_unit(channel_unit), number_of(number_of) {
        if (!is_used || p.output_row() > KEPT_NUMBERS)
            return;
        kept.resize(p.output_row());
        fill(0, p.output_row(), kept.data());
    }
    // Calls act(at, n, numbers) for parts of elements [from, to): `numbers` has those of elements
    // [at, at + n).
    template <class Act>
    void each(int64_t from, int64_t to, const Act &act) const {
        if (!kept.empty())
            return act(from, to - from, kept.data() + from);
        N block[BLOCK];
        for (int64_t at = from, n; at < to; at += n) {
            n = std::min(BLOCK, to - at);
            fill(at, n, block);
            act(at, n, block);
        }
    }
    void fill(int64_t from, int64_t count, N *out) const {
        int64_t output = from / p.channels;
        int64_t channel = from % p.channels;
        for (int64_t i = 0; i < count; ++output, channel = 0) {
            const N number = number_of(output);
            for (; channel < p.channels && i < count; ++channel, ++i)
                out[i] = number + N(channel * channel_unit);
        }
    }
};

// Writes `count` numbers as integers of `bytes` bytes into `numbers`, from index `at` on.
template <class From>
void write_numbers(const From *__restrict from, int64_t count, void *numbers, int bytes,
                   int64_t at) {
    with_integers(bytes, [=](auto number) {
        using N = decltype(number);
        N *__restrict out = static_cast<N *>(numbers) + at;
        VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            out[i] = N(from[i]);
    });
}

// Turns the winners of outputs into the numbers that the caller asked for (`Problem::numbering`),
// and writes them.
struct Numbers {
    static constexpr int64_t PART = 512;  // elements whose numbers are computed at once
    const Problem &p;
    void *numbers;
    int64_t units[3] = {1, 1, 1};  // what a step of one tap along each axis adds to a number
    int64_t plane_size;            // positions in a plane for INDICES, else 0
    // The part of a number that depends on its output's place in the row.
    Columns<int64_t> columns;

    Numbers(const Problem &p, void *numbers)
        : p(p),
          numbers(numbers),
          plane_size(p.numbering == INDICES ? p.plane() / p.channels : 0),
          columns(
              p, plane_size, [&p](int64_t output) { return begin(p.w(), output); },
              p.numbering != TAPS) {
        if (p.numbering == TAPS) {
            units[1] = p.w().window;
            units[0] = p.h().window * units[1];
            return;
        }
        units[0] = p.d().dilation * p.h().size * p.w().size;
        units[1] = p.h().dilation * p.w().size;
        units[2] = p.w().dilation;
    }
    // The position of tap 0 of an output along an axis.
    static int64_t begin(const Axis &axis, int64_t output) {
        return axis.window == 0 ? axis.span_of(output).begin : axis.first(output);
    }
    // Writes origin + column + winner for each element, or -1 where the winner is negative.
    template <class N, class Number>
    static void write_positions(const Number *__restrict which, int64_t count, int64_t origin,
                                const int64_t *__restrict column, N *__restrict out) {
        if constexpr (sizeof(N) >= 4)  // no position has fewer bytes, so there is no loop for them
            VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            out[i] = N(which[i] < 0 ? -1 : origin + column[i] + which[i]);
    }
    // What `which` has, and what is written, for a window that reads no element.
    int none() const { return p.numbering == TAPS ? 0 : -1; }
    // Writes the numbers of `count` elements of a row of outputs, from element `from` on. `which`
    // has the sum of each winning tap's coordinates times `units`.
    template <class Number>
    void write(int64_t plane, int64_t od, int64_t oh, int64_t from, int64_t count,
               const Number *__restrict which) const {
        const int64_t row =
            plane * p.output_plane() + (od * p.h().outputs + oh) * p.output_row() + from;
        const int64_t origin = (begin(p.d(), od) * p.h().size + begin(p.h(), oh)) * p.w().size +
                               plane * p.channels * plane_size;
        if (p.numbering == TAPS)
            return write_numbers(which, count, numbers, int(p.bytes), row);
        with_integers(int(p.bytes), [=](auto position) {
            using N = decltype(position);
            columns.each(from, from + count,
                         [=](int64_t at, int64_t n, const int64_t *__restrict column) {
                             write_positions(which + (at - from), n, origin, column,
                                             static_cast<N *>(numbers) + row + (at - from));
                         });
        });
    }
};

}  // namespace
}  // namespace dmlpool
