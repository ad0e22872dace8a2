// Averages of windows and of bins, and their gradients.
//
// A strategy adds the elements of each window, and then the sum is divided. The gradient is a sum,
// too: the windows that read an element are a window over the outputs. A share is what arrives at
// an output divided by the taps that its window counts.

#include "choose.h"
#include "counts.h"
#include "kept.h"
#include "operators.h"
#include "parallel.h"
#include "sums.h"

namespace dmlpool {
namespace {

using DivideSums = decltype(divide<float>);  // the same for every data type

// Divides sums by the taps that their windows count, and writes them as elements.
struct Divide final : Finish {
    const CountedWindows &g;
    int64_t sum;  // bytes of a sum
    DivideSums *divide;

    Divide(const CountedWindows &g, int64_t sum, int64_t element, DivideSums *divide)
        : Finish(element, g.is_uniform, element == sum && g.is_uniform && g.divisor_of_all == 1),
          g(g),
          sum(sum),
          divide(divide) {
        if (is_uniform && !is_direct && g.p.type == FLOAT32 && g.divisor_of_all > 0)
            divisor = g.divisor_of_all;
    }
    void operator()(int64_t, int64_t d, int64_t h, int64_t i, int64_t count, const void *sums,
                    void *to) const override {
        const char *const from = as<char>(sums);
        char *const out = as<char>(to);
        if (is_uniform)
            return divide(sums, count, to, g.divisor_of_all, nullptr);
        const double rows = g.rows_divisor(d, h);
        if (g.p.channels == 1 && !g.counted[2].empty())
            return divide(sums, count, to, rows, g.counted[2].data() + i);
        g.for_runs(i, count, [&](int64_t at, int64_t n, int64_t output) {
            divide(from + at * sum, n, out + at * result_size,
                   rows * double(g.known_count(2, output).counted), nullptr);
        });
    }
};

// What the averages of a data type are computed with. `share` divides elements, and writes the
// results in the type of sums.
struct Kernels {
    const RowOperations &sums;
    DivideSums *divide;
    DivideSums *share;
};
// The kernels of a data type, which has number `type` in backends/problems.py.
Kernels kernels_of(int64_t type) {
    return with_floats(type, "averages of type", [](auto element) {
        using U = decltype(element);
        static const Rows<Sum<Wide<U>, U>> sums({});
        return Kernels{sums, divide<U>, divide<Wide<U>, U>};
    });
}

// Where windows divide by different numbers, the gradient needs the shares of all windows before it
// adds them: those of small planes, or of a part of a plane, which a second-level cache keeps.
constexpr int64_t SHARES = 1 << 16;

struct AverageGradient {
    const CountedWindows &g;
    const Strategy strategy;
    const char *const arriving;
    char *const gradient;

    const Problem &p = g.p;
    const Kernels kernels = kernels_of(p.type);
    const int64_t element = kernels.sums.element_size;
    const int64_t value = kernels.sums.value_size;

    // Each gradient element is the sum, over the windows that read it, of arriving / taps. Shares
    // are divided already; otherwise `divisor` divides the sum.
    void pool_shares(const RowOperations &op, const Windows &windows, const char *shares,
                     double divisor, char *to) const {
        const CountedWindows adjoint = adjoint_sums(windows, divisor);
        const Divide by(adjoint, value, element, kernels.divide);
        pool(op, by, shares, to, adjoint, strategy);
    }
    // Writes the gradient of a part of a plane, or of `planes` whole planes from that on.
    void add_part(const PlaneParts &parts, const PlanePart &part, int64_t planes) const {
        const Divide by(g, element, value, kernels.share);
        const Problem q = parts.problem(planes, part.positions, part.outputs);
        const int64_t width = q.output_row();
        const int64_t column = parts.outputs_along(part, 2).begin * p.channels;
        vector<char> shares(planes * q.output_plane() * value);
        Digits<3> at(0, {q.h().outputs, q.d().outputs, planes});
        for (char *to = shares.data(); to < shares.data() + shares.size();
             to += width * value, ++at) {
            const int64_t d = parts.outputs_along(part, 0).begin + at[1];
            const int64_t h = parts.outputs_along(part, 1).begin + at[0];
            const int64_t row = ((part.plane + at[2]) * p.d().outputs + d) * p.h().outputs + h;
            by(0, d, h, column, width, arriving + (row * p.output_row() + column) * element, to);
        }
        // Shares are float64 if elements are, else float32.
        pool_shares(
            kernels_of(sum_type(p.type)).sums, Windows(q), shares.data(), 1,
            gradient + (part.plane * p.plane() + part.positions.begin * parts.slab) * element);
    }
    void run() const {
        if (g.is_uniform)
            return pool_shares(kernels.sums, g, arriving, g.divisor_of_all, gradient);
        const int64_t outputs = p.output_plane();
        const bool is_whole = outputs <= SHARES || p.w().window == 0;
        const double size = double(p.plane()) / double(outputs);
        const PlaneParts parts{p, is_whole ? p.plane() : int64_t(size * double(SHARES)), 2};
        const int64_t planes = max(1, SHARES / outputs);
        for_parts(p.planes * parts.count, parts.count > 1 ? 1 : planes,
                  4. * double(outputs + p.plane()) / double(parts.count), 0,
                  [&](int64_t first, int64_t n, char *) { add_part(parts, parts.of(first), n); });
    }
};

}  // namespace

void pool_averages(const Problem &plain, const void *input, void *output, const Kept *kept) {
    const Problem p = joined_averages(plain, false, true);
    const bool is_turned = choose({AVERAGE, Windows(p)}) == TURNED;
    const Kernels kernels = kernels_of(p.type);
    const int64_t element = kernels.sums.element_size;
    use_large_pages(output, p.planes * p.output_plane() * element);
    CountedWindows g(is_turned ? turned_problem(p) : p, false);
    g.kept = is_turned ? nullptr : kept;
    const int64_t sum = kernels.sums.value_size;
    const Divide finish(g, sum, kept ? sum : element,
                        kept ? kernels_of(sum_type(p.type)).divide : kernels.divide);
    pool_sums(kernels.sums, finish, p, g, input, output, kept);
}

void average_pooling(const Problem &p, const void *input, void *output) {
    p.masking.mask ? masked_averages(p, input, output) : pool_averages(p, input, output, nullptr);
}

void average_pooling_grad(const Problem &plain, const void *arriving, void *gradient) {
    if (plain.masking.mask)
        return masked_averages_grad(plain, arriving, gradient);
    const Problem p = joined_averages(plain, true, true);
    const int64_t element = kernels_of(p.type).sums.element_size;
    use_large_pages(gradient, p.input_bytes(element));
    const Strategy chosen = choose({AVERAGE_GRADIENT, Windows(p)});
    const bool is_turned = chosen == TURNED;
    const Problem q = is_turned ? turned_problem(p) : p;
    const CountedWindows g(q, false);
    const auto run = [&](const void *from, void *to, Strategy strategy) {
        AverageGradient{g, strategy, as<char>(from), as<char>(to)}.run();
    };
    if (!is_turned)
        return run(arriving, gradient, chosen);
    turn_planes(p.planes, q.channels, 1,
                {{arriving, element, p.output_plane()}, {gradient, element, p.plane()}},
                [&](int64_t, void *const *blocks) { run(blocks[0], blocks[1], WINDOWS); });
}

const RowOperations &row_sums(int64_t type) {
    return kernels_of(type).sums;
}

}  // namespace dmlpool
