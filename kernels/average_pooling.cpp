// Averages of windows on the CPU, quantized ones and adaptive ones too, and their gradients.
//
// Drivers find the elements that windows read; operations on rows of one data type add them, and a
// finish makes results.

#include <cmath>
#include <memory>

#include "cpu/operators.h"
#include "rows.h"

namespace dmlpool {
namespace {

// Which elements a window reads along an axis, and how many taps it counts.
// An axis whose window is 0 has tables alone: the bins of adaptive pooling, or windows seen from
// the input.
struct Geometry : Windows {
    bool are_read, is_uniform = true;  // whether the number of taps that windows read matters;
                                       // whether all windows agree

    Geometry(const Problem &problem, bool are_read) : Windows{problem, {}}, are_read(are_read) {
        const Counting &counting = p.counting;
        for (int a = 0; a < 3; ++a) {
            const Axis &axis = p.axes[a];
            spans[a].reserve(axis.outputs);
            for (int64_t o = 0; o < axis.outputs; ++o) {
                Span span = axis.span_of(o);
                const int64_t room =
                    axis.size + counting.end_padding[a] - axis.first(o) + axis.dilation - 1;
                const bool with_padding = counting.include_padding && axis.window > 0;
                const int64_t count =
                    with_padding ? std::clamp<int64_t>(room / axis.dilation, 0, axis.window)
                                 : span.count;
                span.counted = counting.divisor == 0 ? std::max<int64_t>(count, 1)
                               : a                   ? 1
                                                     : counting.divisor;
                spans[a].push_back(span);
            }
        }
        for (int a = 0; a < 3; ++a)
            for (int64_t o = 1; o < p.axes[a].outputs; ++o)
                is_uniform &= agree(a, o, 0);
        count_alike();
    }
    // Whether two windows count as many taps, and read as many where that matters.
    bool agree(int a, int64_t o, int64_t other) const {
        const Span &one = spans[a][o], &two = spans[a][other];
        return one.counted == two.counted && (!are_read || one.count == two.count);
    }

    // The windows seen from the input, which all divide by the same number. Along W small windows
    // with a stride are windows with a stride of 1 over rows of outputs that lie apart.
    Geometry adjoint(int64_t divisor) const {
        Geometry result(*this);
        static_cast<Windows &>(result) = adjoint_of(*this);
        for (int a = 0; a < 3; ++a) {
            const Axis &axis = p.axes[a];
            const bool is_small =
                axis.window > 0 && axis.stride <= 8 && axis.window <= 16 && axis.extent() <= 256;
            const bool is_apart = a == 2 && p.lanes == 1 && is_small;
            if (is_apart)
                result.apart = axis.stride;
            if (is_apart || (axis.window > 0 && axis.stride == 1))
                result.p.axes[a] = {
                    axis.outputs, axis.size, axis.window, 1, axis.extent() - 1 - axis.padding,
                    axis.dilation};
        }
        for (Span &span : result.spans[0])
            span.counted = divisor;
        result.is_uniform = true;
        result.count_alike();
        return result;
    }

    void count_alike() {
        std::vector<Span> &w = spans[2];
        for (int64_t o = int64_t(w.size()) - 2; o >= 0; --o) {
            const int64_t step = w[o + 1].begin - w[o].begin;
            const bool goes_on = w[o + 1].count == w[o].count &&
                                 (w[o + 1].alike == 1 ? step >= 0 : w[o + 1].step == step);
            w[o].alike = goes_on ? w[o + 1].alike + 1 : 1, w[o].step = goes_on ? step : 0;
        }
    }
    int64_t divisor(int64_t d, int64_t h, int64_t w) const {
        return spans[0][d].counted * spans[1][h].counted * spans[2][w].counted;
    }
    double largest_divisor() const {
        double largest = 1;
        for (const auto &axis : spans) {
            const auto counts_less = [](const Span &one, const Span &two) {
                return one.counted < two.counted;
            };
            largest *= double(std::max_element(axis.begin(), axis.end(), counts_less)->counted);
        }
        return largest;
    }
    // Calls act(at, n, o) for parts of `count` elements, from element i of a row on, whose windows
    // read and count as many taps.
    template <class Act>
    void for_runs(int64_t i, int64_t count, Act act) const {
        if (is_uniform)
            return act(0, count, 0);
        for (int64_t at = 0, n; at < count; at += n) {
            const int64_t output = (i + at) / p.lanes;
            n = p.lanes - (i + at) % p.lanes;
            for (int64_t next = output + 1; at + n < count && agree(2, next, output); ++next)
                n += p.lanes;
            act(at, n = std::min(n, count - at), output);
        }
    }
};

struct Divide final : Finish {
    const Geometry &g;
    int64_t sum;  // bytes
    void (*divide)(const void *sums, int64_t count, double divisor, const double *columns,
                   void *to);
    std::vector<double> columns;

    Divide(const Geometry &g, int64_t sum, int64_t element, decltype(divide) divide)
        : Finish(element, g.is_uniform, element == sum && g.is_uniform && g.divisor(0, 0, 0) == 1),
          g(g),
          sum(sum),
          divide(divide) {
        if (is_uniform || g.p.lanes > 1)
            return;
        for (const Span &span : g.spans[2])
            columns.push_back(double(span.counted));
    }
    void operator()(int64_t, int64_t d, int64_t h, int64_t i, int64_t count, const void *sums,
                    void *to) const override {
        if (columns.size())
            return divide(sums, count, double(g.spans[0][d].counted * g.spans[1][h].counted),
                          columns.data() + i, to);
        g.for_runs(i, count, [&](int64_t at, int64_t n, int64_t output) {
            divide(static_cast<const char *>(sums) + at * sum, n, double(g.divisor(d, h, output)),
                   nullptr, static_cast<char *>(to) + at * result_size);
        });
    }
};

// Makes so many copies of the lanes of one position, which memory begins with: at once of as many
// as make a page.
void repeat(char *memory, int64_t element, int64_t lanes, int64_t count) {
    const int64_t bytes = lanes * element, all = count * bytes,
                  page = std::max<int64_t>(1, 4096 / bytes) * bytes;
    if (lanes == 1)
        return with_numbers(int(element), [=](auto bits) {
            auto *const elements = reinterpret_cast<decltype(bits) *>(memory);
            std::fill_n(elements, count, elements[0]);
        });
    for (int64_t done = bytes; done < all; done += std::min(done, page))
        std::memcpy(memory + done, memory, std::min({done, page, all - done}));
}

// Gradients: sums over the windows that read an element, divided once where all divide by the same
// number, else before.

// Float data types by their numbers in backends/cpu.py.
template <class U>
const RowOperations &float_sums() {
    static const Rows<Sum<Wide<U>, U>> operations({});
    return operations;
}
struct Kernels {
    const RowOperations &sums;
    void (*divide)(const void *sums, int64_t count, double divisor, const double *columns,
                   void *to);
};
Kernels kernels_of(int type) {
    if (type == 0)
        return {float_sums<float>(), divide<float>};
    if (type == 1)
        return {float_sums<double>(), divide<double>};
    if (type == 2)
        return {float_sums<Half>(), divide<Half>};
    return {float_sums<BFloat16>(), divide<BFloat16>};
}

void spread(int type, const char *arriving, char *gradient, const Geometry &g) {
    const Kernels kernels = kernels_of(type), again = kernels_of(type == 1);
    const Problem &p = g.p;
    const int64_t n = p.output_row(), rows = p.planes * p.d().outputs * p.h().outputs;
    const int64_t element = kernels.sums.element_size, value = kernels.sums.value_size;
    const auto load = [&](int64_t row, int64_t count, char *values) {
        Row first = {arriving + row * n * element, 0};
        kernels.sums.combine(false, &first, 1, count, values);
    };
    const auto pool_shares = [&](const RowOperations &op, const char *shares, int64_t divisor) {
        const Geometry adjoint = g.adjoint(divisor);
        const Divide by(adjoint, value, element, kernels.divide);
        pool(op, by, shares, gradient, adjoint);
    };
    if (g.are_planes()) {
        const Divide by(g, value, element, kernels.divide);
        const int64_t size = p.plane() / p.lanes;
        parallel(rows, double(size * n), [&](int64_t begin, int64_t end) {
            std::vector<char> values((end - begin) * n * value),
                shares((end - begin) * n * element);
            load(begin, (end - begin) * n, values.data());
            by(begin, 0, 0, 0, (end - begin) * n, values.data(), shares.data());
            for (int64_t plane = begin; plane < end; ++plane) {
                char *const out = gradient + plane * size * n * element;
                std::memcpy(out, shares.data() + (plane - begin) * n * element, n * element);
                repeat(out, element, n, size);
            }
        });
        return;
    }
    if (g.is_uniform)
        pool_shares(kernels.sums, arriving, g.divisor(0, 0, 0));
    else {
        const Divide by(g, value, value, again.divide);
        const std::unique_ptr<char[]> shares(new char[rows * n * value]);
        parallel(rows, double(2 * n), [&](int64_t begin, int64_t end) {
            std::vector<char> values(n * value);
            for (int64_t row = begin; row < end; ++row) {
                const char *from = arriving + row * n * element;
                if (element != value)
                    load(row, n, values.data()), from = values.data();
                by(0, row / p.h().outputs % p.d().outputs, row % p.h().outputs, 0, n, from,
                   shares.get() + row * n * value);
            }
        });
        pool_shares(again.sums, shares.get(), 1);
    }
}

// Quantized averages: r = sum * input scale / (divisor * output scale), rounded half to even as if
// it were exact.

// The ratio of two scales.
struct Ratio {
    double above, below;

    // What a result is a fraction of: of powers of two alone float32 knows.
    double parts() const {
        int exponent;
        return std::frexp(above / below, &exponent) == .5 ? std::max(1., below / above) : HUGE_VAL;
    }
    // sum * ratio / divisor, rounded, where it lies next to `whole` + 1/2: products and what they
    // leave are compared.
    int32_t rounded(int64_t sum, int64_t divisor, int64_t whole) const {
        const double twice = 2 * double(sum), counted = double((2 * whole + 1) * divisor);
        const double product = twice * above, half = counted * below;
        const double beyond =
            (product - half) + (std::fma(twice, above, -product) - std::fma(counted, below, -half));
        return int32_t(whole + (beyond > 0 || (beyond == 0 && whole % 2)));
    }
};

// What windows of a row count and read along W, where that is not the same for all.
struct Columns {
    const float *inverses;  // 1 / counted
    const int32_t *counted, *read;
};

struct Requantization {
    static constexpr int64_t BLOCK = LANES<float>;  // 16 with AVX2 takes 1.3 to 3.6 times as long
    int64_t channels;                               // 1: all are alike
    std::vector<Ratio> ratios;                      // these of each channel
    std::vector<float> scales;
    std::vector<int32_t> input_zeros, output_zeros;
    int32_t low, high;
    bool are_certain;  // whether float32 tells halves from what lies next to them

    Requantization(const Quantization &q, double largest_divisor)
        : low(int32_t(q.low)), high(int32_t(q.high)) {
        channels =
            q.input_scales * q.output_scales * q.input_zeros * q.output_zeros == 1 ? 1 : q.channels;
        const auto entry = [](const auto *vector, int64_t count, int64_t c) {
            return vector[count == 1 ? 0 : c];
        };
        double parts = 0;
        for (int64_t c = 0; c < channels; ++c) {
            ratios.push_back({entry(q.input_scale, q.input_scales, c),
                              entry(q.output_scale, q.output_scales, c)});
            scales.push_back(float(std::min(ratios[c].above / ratios[c].below, 0x1p60))),
                parts = std::max(parts, ratios[c].parts());
            input_zeros.push_back(entry(q.input_zero, q.input_zeros, c));
            output_zeros.push_back(entry(q.output_zero, q.output_zeros, c));
        }
        are_certain = parts * largest_divisor <= 1024;
        scales.resize(channels + BLOCK), input_zeros.resize(channels + BLOCK),
            output_zeros.resize(channels + BLOCK);
    }

    // AVX2 has no narrowing to a fourth: in one step it takes 1.1 to 1.2 times as long.
    static Vector<uint8_t, BLOCK> bytes_of(Vector<int32_t, BLOCK> values) {
        using Words = Vector<std::conditional_t<BLOCK == 16, int32_t, int16_t>, BLOCK>;
        return __builtin_convertvector(__builtin_convertvector(values, Words),
                                       Vector<uint8_t, BLOCK>);
    }

    // Of one channel, or of those from `channel` on. In float32, where what the arithmetic moved
    // next to a half becomes it on a grid of 2^-11: results between -400 and 400 move by less than
    // 2^-12. Where more than halves may, float64 tells. Whole blocks, the last of which may begin
    // inside the one before.
    template <bool checks_halves, class L>
    void store_few(const L *sums, int64_t count, bool of_channels, int64_t channel, int64_t inside,
                   int64_t divisor, Columns columns, uint8_t *to) const {
        using Reals = Vector<float, BLOCK>;
        using Integers = Vector<int32_t, BLOCK>;
        constexpr float GRID = 1.5f * 0x1p12f, WHOLE = 1.5f * 0x1p23f;
        constexpr int64_t TOGETHER = 8;
        const int32_t *const zeros = output_zeros.data() + channel, *const input_zero =
                                                                        input_zeros.data() +
                                                                        channel;
        const float *const factors = scales.data() + channel;
        const float inverse = float(1 / double(divisor)), least = float(low), most = float(high);
        const int32_t taken = int32_t(inside);
        Reals factor = Reals{} + factors[0] * inverse, floor = Reals{} + (least - float(zeros[0])),
              ceiling = floor + (most - least);
        Integers added = Integers{} + (zeros[0] - bits_as<int32_t>(WHOLE)),
                 subtracted = Integers{} + taken * input_zero[0];
        for (int64_t begin = 0; begin < count; begin += TOGETHER * BLOCK) {
            Integers any = {}, halves[TOGETHER];
            Reals near[TOGETHER];
            const int64_t blocks = std::min(TOGETHER, parts_of(count - begin, BLOCK));
            for (int64_t k = 0; k < blocks; ++k) {
                const int64_t i = std::min(begin + k * BLOCK, count - BLOCK);
                if (of_channels) {
                    const auto zero = read<Integers>(zeros + i);
                    factor = read<Reals>(factors + i) * inverse,
                    added = zero - bits_as<int32_t>(WHOLE);
                    subtracted = read<Integers>(input_zero + i) * taken;
                    floor = least - __builtin_convertvector(zero, Reals),
                    ceiling = floor + (most - least);
                }
                if (columns.read) {
                    factor = read<Reals>(columns.inverses + i) * (factors[0] * inverse);
                    subtracted = read<Integers>(columns.read + i) * (taken * input_zero[0]);
                }
                const Integers from =
                    converted<int32_t, BLOCK, L>(read<Vector<L, BLOCK>>(sums + i));
                Reals real = __builtin_convertvector(from - subtracted, Reals) * factor;
                real = real < floor ? floor : real, real = real > ceiling ? ceiling : real;
                const Reals on_grid = real + GRID, shifted = on_grid + (WHOLE - GRID);
                write(bytes_of(Integers(shifted) + added), to + i);
                if constexpr (checks_halves) {
                    near[k] = on_grid - GRID;
                    const Reals rest = near[k] - (shifted - WHOLE);
                    halves[k] = Integers(rest * rest == .25f), any |= halves[k];
                }
            }
            const Integers none = {};
            if (!checks_halves || std::memcmp(&any, &none, sizeof(any)) == 0)
                continue;
            uint8_t are_halves[TOGETHER * BLOCK + 8] = {};
            for (int64_t k = 0; k < blocks; ++k)
                write(bytes_of(halves[k]), are_halves + k * BLOCK);
            for (int64_t eight = 0; eight < blocks * BLOCK; eight += 8)
                for (uint64_t some = read<uint64_t>(are_halves + eight) & 0x0101010101010101; some;
                     some &= some - 1) {
                    const int64_t at = eight + __builtin_ctzll(some) / 8, k = at / BLOCK,
                                  lane = at % BLOCK;
                    const int64_t i = std::min(begin + k * BLOCK, count - BLOCK) + lane;
                    const int64_t c = channel + (of_channels ? i : 0),
                                  whole = int64_t(std::floor(near[k][lane]));
                    const int64_t reads = columns.read ? columns.read[i] : 1,
                                  counts = columns.read ? columns.counted[i] : 1;
                    const int32_t result = ratios[c].rounded(
                        sums[i] - inside * reads * input_zeros[c], divisor * counts, whole);
                    to[i] = uint8_t(std::clamp(result + output_zeros[c], low, high));
                }
        }
    }
    template <class L>
    void store(const L *sums, int64_t count, bool of_channels, int64_t channel, int64_t inside,
               int64_t divisor, Columns columns, uint8_t *to) const {
        if (count < BLOCK) {
            L padded[BLOCK] = {};  // channels there have scales of 0
            uint8_t results[BLOCK];
            std::copy_n(sums, count, padded);
            store(padded, BLOCK, of_channels, channel, inside, divisor, columns, results);
            std::copy_n(results, count, to);
            return;
        }
        const auto few = !are_certain || sizeof(L) > 2 ? &Requantization::store_few<true, L>
                                                       : &Requantization::store_few<false, L>;
        (this->*few)(sums, count, of_channels, channel, inside, divisor, columns, to);
    }
};

struct Requantize final : Finish {
    const Geometry &g;
    int64_t size;  // bytes of a sum
    Requantization by;

    std::vector<float> inverses;
    std::vector<int32_t> counted, read;

    Requantize(const Geometry &g, const Quantization &q, int64_t size)
        : Finish(1, g.is_uniform, false), g(g), size(size), by(q, g.largest_divisor()) {
        if (g.p.lanes > 1 || g.is_uniform)
            return;
        for (int64_t o = 0; o < g.p.w().outputs + by.BLOCK; ++o) {
            const int64_t output = std::min(o, g.p.w().outputs - 1);
            counted.push_back(int32_t(g.spans[2][output].counted)),
                read.push_back(int32_t(g.spans[2][output].count));
            inverses.push_back(1 / float(counted[o]));
        }
    }
    void operator()(int64_t plane, int64_t d, int64_t h, int64_t i, int64_t count, const void *sums,
                    void *to) const override {
        // Each of the channels of one window, or windows of one channel.
        const bool is_lane = by.channels > 1 && (g.p.lanes > 1 || g.are_planes());
        const int64_t rows_read = g.spans[0][d].count * g.spans[1][h].count,
                      rows_counted = g.spans[0][d].counted * g.spans[1][h].counted;
        const auto store = [&](int64_t at, int64_t n, int64_t channel, int64_t reads,
                               int64_t counts, Columns columns) {
            const auto run = [&](auto sum) {
                const auto *const values = static_cast<const decltype(sum) *>(sums) + at;
                by.store(values, n, is_lane, channel, rows_read * reads, rows_counted * counts,
                         columns, static_cast<uint8_t *>(to) + at);
            };
            if (size == 2)
                run(int16_t());
            else
                run(int32_t());
        };
        if (!read.empty())
            return store(0, count, plane % by.channels, 1, 1,
                         {inverses.data() + i, counted.data() + i, read.data() + i});
        g.for_runs(i, count, [&](int64_t from, int64_t length, int64_t output) {
            for (int64_t at = from, n; at < from + length; at += n) {
                const int64_t channel =
                    (g.p.lanes > 1 ? i + at : plane + (is_lane ? at : 0)) % by.channels;
                n = is_lane ? std::min(from + length - at, by.channels - channel) : length;
                store(at, n, channel, g.spans[2][output].count, g.spans[2][output].counted, {});
            }
        });
    }
};

}  // namespace

void average_pooling(const Problem &p, const void *input, void *output) {
    const Geometry g(p, false);
    const Kernels kernels = kernels_of(int(p.type));
    const int64_t element = kernels.sums.element_size;
    expect_all(output, p.planes * p.output_plane() * element);
    const Divide finish(g, kernels.sums.value_size, element, kernels.divide);
    pool(kernels.sums, finish, input, output, g);
}

void average_pooling_grad(const Problem &p, const void *arriving, void *gradient) {
    const Geometry g(p, false);
    expect_all(gradient, p.planes * p.plane() * kernels_of(int(p.type)).sums.element_size);
    spread(int(p.type), static_cast<const char *>(arriving), static_cast<char *>(gradient), g);
}

void quantized_average_pooling(const Problem &p, const void *input, void *output,
                               const Quantization &q) {
    const bool is_signed = p.type == 4;
    const Geometry g(p, true);
    double most = 255;  // sums, from the taps that windows read
    for (int a = 0; a < 3; ++a)
        most *= double(g.most(a));
    const auto run = [&](auto sum) {
        using L = decltype(sum);
        const Rows<Sum<L, int8_t>> of_signed({});
        const Rows<Sum<L, uint8_t>> of_unsigned({});
        const RowOperations &op =
            is_signed ? static_cast<const RowOperations &>(of_signed) : of_unsigned;
        const Requantize requantize(g, q, sizeof(L));
        pool(op, requantize, input, output, g);
    };
    expect_all(output, p.planes * p.output_plane());
    if (most < 0x1p15)
        run(int16_t());
    else
        run(int32_t());  // Python sends no windows of 2^23 taps
}

}  // namespace dmlpool
