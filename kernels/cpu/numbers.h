// Numbers of winners: the tap of a window, the position in a plane or the index in a tensor.
#pragma once

#include "operators.h"
#include "vectors.h"

namespace dmlpool {
namespace {

// Turns the winners of outputs into the numbers that the caller asked for (`Problem::numbering`),
// and writes them.
struct Numbers {
    static constexpr int64_t PART = 512;  // elements whose numbers are computed at once
    const Problem &p;
    void *const numbers;
    const int64_t first_plane = 0;  // of the tensor's planes, where p has only some of them
    const int64_t plane_size = p.numbering == INDICES ? p.plane() / p.channels : 0;  // in positions
    const bool are_taps = p.numbering == TAPS;
    // What a step of one tap along each axis adds to a number.
    const int64_t units[3] = {
        are_taps ? p.h().window * p.w().window : p.d().dilation * p.h().size * p.w().size,
        are_taps ? p.w().window : p.h().dilation * p.w().size, are_taps ? 1 : p.w().dilation};

    // The position of tap 0 of an output along an axis.
    static int64_t begin(const Axis &axis, int64_t output) {
        return axis.window == 0 ? axis.span_of(output).begin : axis.first(output);
    }
    // Writes origin + i * step + winner for each element i, or -1 where the winner is negative.
    template <class N, class Number>
    static void write_positions(const Number *__restrict which, int64_t count, int64_t origin,
                                int64_t step, N *__restrict out) {
        using U = make_unsigned_t<N>;  // whose overflow is defined, for indices above 2^31
        const U first = U(origin), next = U(step);
        VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            out[i] = N(which[i] < 0 ? U(-1) : U(first + U(i) * next + U(which[i])));
    }
    // What `which` has, and what is written, for a window that reads no element.
    int none() const { return are_taps ? 0 : -1; }
    // Writes the numbers of `count` elements of a row of outputs, from element `from` on. `which`
    // has the sum of each winning tap's coordinates times `units`.
    template <class Number>
    void write(int64_t plane, int64_t od, int64_t oh, int64_t from, int64_t count,
               const Number *__restrict which) const {
        const int64_t row =
            plane * p.output_plane() + (od * p.h().outputs + oh) * p.output_row() + from;
        const int64_t origin = (begin(p.d(), od) * p.h().size + begin(p.h(), oh)) * p.w().size +
                               (plane * p.channels + first_plane) * plane_size;
        with_integers(p.bytes, [&](auto position) {
            auto *const out = as<decltype(position)>(numbers) + row;
            if (are_taps)
                return write_positions(which, count, 0, 0, out);
            if (p.channels == 1 && p.w().window > 0)
                return write_positions(which, count, origin + p.w().first(from), p.w().stride, out);
            int64_t output = from / p.channels;
            int64_t channel = from % p.channels;
            for (int64_t at = 0, n; at < count; at += n, ++output, channel = 0) {
                n = min(count - at, p.channels - channel);
                write_positions(which + at, n, origin + begin(p.w(), output) + channel * plane_size,
                                plane_size, out + at);
            }
        });
    }
};

}  // namespace
}  // namespace dmlpool
