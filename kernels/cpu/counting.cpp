// The divisors of averages under a mask: how many elements of each window the mask keeps, and its
// padding if that counts. They are sums of the mask's bools.

#include <algorithm>
#include <cstdint>

#include "counts.h"
#include "operators.h"
#include "sums.h"

namespace dmlpool {
namespace {

// Adds the padding that counts to each window's sum of the mask, and writes the result, or 1 if it
// is 0. Counts have type N, whose memory may be that of the sums.
template <class N>
struct Counted final : Finish {
    const CountedWindows &g;

    explicit Counted(const CountedWindows &g)
        : Finish(sizeof(N), !g.p.counting.include_padding || !reads_padding(g.p), false), g(g) {}
    static bool reads_padding(const Problem &p) {
        for (const Axis &axis : p.axes)
            if (axis.padding > 0 || axis.window == 0 || axis.span(axis.outputs) > axis.size)
                return true;
        return false;
    }
    void operator()(int64_t, int64_t d, int64_t h, int64_t i, int64_t count, const void *sums,
                    void *to) const override {
        const int32_t *const from = static_cast<const int32_t *>(sums);
        N *const out = static_cast<N *>(to);
        if (is_uniform)
            return write_counts(from, count, 0, out);
        const int64_t counted = int64_t(g.rows_divisor(d, h));
        const int64_t read = g.known_count(0, d).read * g.known_count(1, h).read;
        g.for_runs(i, count, [&](int64_t at, int64_t n, int64_t output) {
            const TapCount taps = g.known_count(2, output);
            write_counts(from + at, n, counted * taps.counted - read * taps.read, out + at);
        });
    }
    static void write_counts(const int32_t *from, int64_t count, int64_t padding, N *out) {
        VECTORIZE
        for (int64_t i = 0; i < count; ++i)
            out[i] = std::max(N(from[i] + int32_t(padding)), N(1));
    }
};

}  // namespace

void masked_divisors(const Problem &plain, const void *mask, void *divisors) {
    const Problem p = joined_averages(plain, false, false);
    const CountedWindows g(p, true);
    if (p.bytes == 1)
        pool(bool_sums(), Counted<uint8_t>(g), mask, divisors, g);
    else
        pool(bool_sums(), Counted<int32_t>(g), mask, divisors, g);
}

}  // namespace dmlpool
