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

// What outputs along an axis count is kept where there are at most so many, else computed in
// blocks.
constexpr int64_t KEPT_MOST = 1 << 16;
constexpr int64_t BLOCK_OUTPUTS = 1024;

// What windows count and read along an axis.
struct TapCount {
    int64_t counted;
    int64_t read;
};

// What windows read, and how many taps an average counts.
struct Geometry : Windows {
    bool are_read;           // whether the number of taps that windows read matters
    bool is_uniform = true;  // whether all windows agree
    int64_t divisor_of_all = 0;
    std::vector<TapCount> counts[3];  // by axis, where windows differ and outputs are few

    Geometry(const Problem &problem, bool are_read) : Windows(problem), are_read(are_read) {
        for (int a = 0; a < 3; ++a)
            is_uniform = is_uniform && all_agree(a);
        if (is_uniform)
            divisor_of_all = divisor(0, 0, 0);
        for (int a = 0; a < 3; ++a)
            for (int64_t o = 0; o < p.axes[a].outputs && keeps(a); ++o)
                counts[a].push_back(count_of(a, o));
    }
    // The windows of another geometry seen from the input, which all divide by the same number.
    Geometry(Windows &&adjoint, int64_t divisor)
        : Windows(std::move(adjoint)), are_read(false), divisor_of_all(divisor) {}

    TapCount count_of(int a, int64_t o) const {
        const Axis &axis = p.axes[a];
        const Counting &counting = p.counting;
        const bool with_padding = counting.include_padding && axis.window > 0;
        const int64_t read = are_read || !with_padding ? at(a, o).count : 0;
        if (counting.divisor != 0)
            return {a == 0 ? counting.divisor : 1, read};
        int64_t counted = read;
        if (with_padding) {
            const int64_t room = axis.size + counting.end_padding[a] - axis.first(o);
            counted = room >= axis.extent() ? axis.window
                      : room <= 0           ? 0
                                            : parts_of(room, axis.dilation);
        }
        return {std::max<int64_t>(counted, 1), read};
    }
    bool keeps(int a) const { return !is_uniform && p.axes[a].outputs <= KEPT_MOST; }
    TapCount known_count(int a, int64_t o) const {
        return counts[a].empty() ? count_of(a, o) : counts[a][o];
    }
    // Whether two windows count as many taps, and read as many where that matters.
    bool agree(const TapCount &one, const TapCount &other) const {
        return one.counted == other.counted && (!are_read || one.read == other.read);
    }
    bool all_agree(int a) const {
        const Axis &axis = p.axes[a];
        const TapCount first = count_of(a, 0);
        const bool falls = p.counting.divisor != 0 || (p.counting.include_padding && axis.window);
        if (falls && !are_read)
            return agree(first, count_of(a, axis.outputs - 1));
        const Range whole = axis.whole();
        for (int64_t o = 1; o < axis.outputs; ++o) {
            if (o > whole.begin && whole.contains(o))
                o = whole.end - 1;
            if (!agree(first, count_of(a, o)))
                return false;
        }
        return true;
    }

    int64_t rows_divisor(int64_t d, int64_t h) const {
        return known_count(0, d).counted * known_count(1, h).counted;
    }
    int64_t divisor(int64_t d, int64_t h, int64_t w) const {
        return rows_divisor(d, h) * known_count(2, w).counted;
    }
    // No window counts more.
    double largest_divisor() const {
        double largest = 1;
        for (int a = 0; a < 3; ++a)
            largest *= p.counting.include_padding && p.axes[a].window > 0
                           ? double(count_of(a, 0).counted)
                           : double(std::max<int64_t>(most(a), 1));
        return largest;
    }
    // Calls act(at, n, o) for parts of `count` elements, from element i of a row on, whose windows
    // read and count as many taps.
    template <class Act>
    void for_runs(int64_t i, int64_t count, Act act) const {
        if (is_uniform)
            return act(0, count, 0);
        const Range whole = p.w().whole();
        for (int64_t at = 0, n; at < count; at += n) {
            const int64_t output = (i + at) / p.lanes;
            const TapCount same = known_count(2, output);
            int64_t next = whole.contains(output) ? whole.end : output + 1;
            while (next * p.lanes < i + count && agree(known_count(2, next), same))
                next = whole.contains(next) ? whole.end : next + 1;
            n = std::min(count, next * p.lanes - i) - at;
            act(at, n, output);
        }
    }
    // Calls act(at, n, counts) for blocks of `count` outputs along W from output o on.
    template <class Act>
    void for_columns(int64_t o, int64_t count, Act act) const {
        if (!counts[2].empty())
            return act(0, count, counts[2].data() + o);
        TapCount block[BLOCK_OUTPUTS];
        for (int64_t at = 0, n; at < count; at += n) {
            n = std::min(BLOCK_OUTPUTS, count - at);
            for (int64_t k = 0; k < n; ++k)
                block[k] = count_of(2, o + at + k);
            act(at, n, block);
        }
    }
};

// Sums over the windows that read an element, divided by the same number. Along W small windows
// with a stride are windows with a stride of 1 over rows of outputs that lie apart.
Geometry adjoint_sums(const Windows &windows, int64_t divisor) {
    Geometry result(adjoint_of(windows), divisor);
    for (int a = 0; a < 3; ++a) {
        const Axis &axis = windows.p.axes[a];
        const bool is_small =
            axis.window > 0 && axis.stride <= 8 && axis.window <= 16 && axis.extent() <= 256;
        const bool is_apart = a == 2 && windows.p.lanes == 1 && is_small;
        if (is_apart)
            result.apart = axis.stride;
        if (is_apart || (axis.window > 0 && axis.stride == 1))
            result.p.axes[a] = {
                axis.outputs, axis.size, axis.window, 1, axis.extent() - 1 - axis.padding,
                axis.dilation};
    }
    return result;
}

struct Divide final : Finish {
    const Geometry &g;
    int64_t sum;  // bytes
    void (*divide)(const void *sums, int64_t count, double divisor, const double *columns,
                   void *to);
    std::vector<double> columns;

    Divide(const Geometry &g, int64_t sum, int64_t element, decltype(divide) divide)
        : Finish(element, g.is_uniform, element == sum && g.is_uniform && g.divisor_of_all == 1),
          g(g),
          sum(sum),
          divide(divide) {
        if (!is_uniform && g.p.lanes == 1)
            for (const TapCount &count : g.counts[2])
                columns.push_back(double(count.counted));
    }
    void operator()(int64_t, int64_t d, int64_t h, int64_t i, int64_t count, const void *sums,
                    void *to) const override {
        const char *const from = static_cast<const char *>(sums);
        char *const out = static_cast<char *>(to);
        if (is_uniform)
            return divide(sums, count, double(g.divisor_of_all), nullptr, to);
        const int64_t rows = g.rows_divisor(d, h);
        if (!columns.empty())
            return divide(sums, count, double(rows), columns.data() + i, to);
        if (g.p.lanes > 1)
            return g.for_runs(i, count, [&](int64_t at, int64_t n, int64_t output) {
                divide(from + at * sum, n, double(rows * g.known_count(2, output).counted), nullptr,
                       out + at * result_size);
            });
        g.for_columns(i, count, [&](int64_t at, int64_t n, const TapCount *counts) {
            double block[BLOCK_OUTPUTS];
            for (int64_t k = 0; k < n; ++k)
                block[k] = double(counts[k].counted);
            divide(from + at * sum, n, double(rows), block, out + at * result_size);
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
    if (type == 3)
        return {float_sums<BFloat16>(), divide<BFloat16>};
    refuse("averages of type", type);
}

// Where windows count unlike numbers of taps, what arrives is divided before it is added: for so
// many values at once, or what a few windows read, so that memory does not grow with a row.
constexpr int64_t SHARES_MOST = 1 << 21;

// Several planes, or so many positions of one along an axis and the outputs that read them.
struct Part {
    int64_t plane;
    int64_t planes;
    int axis;
    Range positions;
    Range outputs;
};

std::vector<Part> parts_of_gradient(const Problem &p) {
    const auto is_plain = [&](int a) { return p.axes[a].size == 1 && p.axes[a].outputs == 1; };
    const int a = !is_plain(0) ? 0 : !is_plain(1) ? 1 : 2;
    const Axis &axis = p.axes[a];
    const int64_t slab = p.output_plane() / axis.outputs;
    std::vector<Part> parts;
    if (p.output_plane() <= SHARES_MOST || axis.window == 0) {
        const int64_t together = std::max<int64_t>(1, SHARES_MOST / p.output_plane());
        for (int64_t plane = 0; plane < p.planes; plane += together)
            parts.push_back({plane,
                             std::min(together, p.planes - plane),
                             a,
                             {0, axis.size},
                             {0, axis.outputs}});
        return parts;
    }
    const Seen seen(axis);
    const int64_t step =
        std::max(std::max<int64_t>(1, SHARES_MOST / slab) * axis.stride, 2 * axis.extent());
    for (int64_t plane = 0; plane < p.planes; ++plane)
        for (int64_t start = 0; start < axis.size; start += step) {
            const int64_t stop = std::min(axis.size, start + step);
            const int64_t low = std::min(seen.outputs_around(start).begin, axis.outputs - 1);
            const int64_t high = std::max(seen.outputs_around(stop - 1).end, low + 1);
            parts.push_back({plane, 1, a, {start, stop}, {low, high}});
        }
    return parts;
}

struct AverageGradient {
    const Geometry &g;
    const Kernels kernels;
    const Kernels of_shares;  // of what has been divided
    const char *const arriving;
    char *const gradient;

    const Problem &p = g.p;
    const int64_t element = kernels.sums.element_size;
    const int64_t value = kernels.sums.value_size;

    void load(int64_t first, int64_t count, char *values) const {
        Row row = {arriving + first * element, 0};
        kernels.sums.combine(false, &row, 1, count, values);
    }
    void pool_shares(const RowOperations &op, const Windows &windows, const char *shares,
                     int64_t divisor, char *to) const {
        const Geometry adjoint = adjoint_sums(windows, divisor);
        const Divide by(adjoint, value, element, kernels.divide);
        pool(op, by, shares, to, adjoint);
    }
    // One window over each plane, which gives each element the same.
    void repeat_planes() const {
        const Divide by(g, value, element, kernels.divide);
        const int64_t lanes = p.lanes;
        const int64_t size = p.plane() / lanes;
        const int64_t at_once = std::max<int64_t>(1, 65536 / lanes);
        parallel(p.planes, double(size * lanes), [&](int64_t begin, int64_t end) {
            const int64_t most = std::min(at_once, end - begin) * lanes;
            std::vector<char> values(most * value);
            std::vector<char> shares(most * element);
            for (int64_t first = begin; first < end; first += at_once) {
                const int64_t planes = std::min(at_once, end - first);
                load(first * lanes, planes * lanes, values.data());
                by(first, 0, 0, 0, planes * lanes, values.data(), shares.data());
                for (int64_t k = 0; k < planes; ++k) {
                    char *const out = gradient + (first + k) * size * lanes * element;
                    std::memcpy(out, shares.data() + k * lanes * element, lanes * element);
                    repeat(out, element, lanes, size);
                }
            }
        });
    }
    // What arrives at the outputs of a part, divided.
    void divide_part(const Part &part, const Problem &q, char *shares) const {
        const Divide by(g, value, value, of_shares.divide);
        constexpr int64_t COLUMNS = 4096;
        const Axis &w = q.w();
        const int64_t origin = part.plane * p.output_plane() +
                               part.outputs.begin * (p.output_plane() / p.axes[part.axis].outputs);
        const int64_t begins[3] = {part.axis == 0 ? part.outputs.begin : 0,
                                   part.axis == 1 ? part.outputs.begin : 0,
                                   part.axis == 2 ? part.outputs.begin : 0};
        const int64_t blocks = parts_of(w.outputs, COLUMNS);
        const int64_t rows = q.planes * q.d().outputs * q.h().outputs;
        const double cost = double(2 * std::min(COLUMNS, w.outputs) * q.lanes);
        parallel(rows * blocks, cost, [&](int64_t begin, int64_t end) {
            std::vector<char> values(std::min(COLUMNS, w.outputs) * q.lanes * value);
            Digits<4> digits(begin, {blocks, q.h().outputs, q.d().outputs, q.planes});
            for (int64_t number = begin; number < end; ++number, ++digits) {
                const int64_t column = digits[0] * COLUMNS;
                const int64_t at = (number / blocks * w.outputs + column) * q.lanes;
                const int64_t count = std::min(COLUMNS, w.outputs - column) * q.lanes;
                const char *from = arriving + (origin + at) * element;
                if (element != value) {
                    load(origin + at, count, values.data());
                    from = values.data();
                }
                by(0, begins[0] + digits[2], begins[1] + digits[1], (begins[2] + column) * q.lanes,
                   count, from, shares + at * value);
            }
        });
    }
    void run() const {
        if (g.are_planes())
            return repeat_planes();
        if (g.is_uniform)
            return pool_shares(kernels.sums, g, arriving, g.divisor_of_all, gradient);
        std::unique_ptr<char[]> shares;
        int64_t size = 0;
        for (const Part &part : parts_of_gradient(p)) {
            Problem q = p;
            Axis &axis = q.axes[part.axis];
            q.planes = part.planes;
            axis.size = part.positions.end - part.positions.begin;
            axis.outputs = part.outputs.end - part.outputs.begin;
            axis.padding += part.positions.begin - part.outputs.begin * axis.stride;
            const int64_t needed = q.planes * q.output_plane() * value;
            if (needed > size) {
                shares.reset();
                shares.reset(new char[needed]);
                size = needed;
            }
            divide_part(part, q, shares.get());
            const int64_t first = part.plane * p.plane() +
                                  part.positions.begin * (p.plane() / p.axes[part.axis].size);
            pool_shares(of_shares.sums, Windows(q), shares.get(), 1, gradient + first * element);
        }
    }
};

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

    // For outputs along W, where they differ and are few; of whole vectors.
    std::vector<float> inverses;
    std::vector<int32_t> counted;
    std::vector<int32_t> read;

    Requantize(const Geometry &g, const Quantization &q, int64_t size)
        : Finish(1, g.is_uniform, false), g(g), size(size), by(q, g.largest_divisor()) {
        if (g.p.lanes > 1 || g.counts[2].empty())
            return;
        for (const TapCount &count : g.counts[2]) {
            counted.push_back(int32_t(count.counted));
            read.push_back(int32_t(count.read));
            inverses.push_back(1 / float(count.counted));
        }
        counted.resize(counted.size() + by.BLOCK, 1);
        read.resize(counted.size());
        inverses.resize(counted.size(), 1);
    }
    void operator()(int64_t plane, int64_t d, int64_t h, int64_t i, int64_t count, const void *sums,
                    void *to) const override {
        // Each of the channels of one window, or windows of one channel.
        const bool is_lane = by.channels > 1 && (g.p.lanes > 1 || g.are_planes());
        const int64_t rows_read = g.known_count(0, d).read * g.known_count(1, h).read;
        const int64_t rows_counted = g.rows_divisor(d, h);
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
        if (g.p.lanes == 1 && !g.is_uniform)
            return g.for_columns(i, count, [&](int64_t at, int64_t n, const TapCount *counts) {
                float some_inverses[BLOCK_OUTPUTS + Requantization::BLOCK] = {};
                int32_t some_counted[BLOCK_OUTPUTS + Requantization::BLOCK] = {};
                int32_t some_read[BLOCK_OUTPUTS + Requantization::BLOCK] = {};
                for (int64_t k = 0; k < n; ++k) {
                    some_counted[k] = int32_t(counts[k].counted);
                    some_read[k] = int32_t(counts[k].read);
                    some_inverses[k] = 1 / float(counts[k].counted);
                }
                store(at, n, plane % by.channels, 1, 1, {some_inverses, some_counted, some_read});
            });
        g.for_runs(i, count, [&](int64_t from, int64_t length, int64_t output) {
            const TapCount same = g.known_count(2, output);
            for (int64_t at = from, n; at < from + length; at += n) {
                const int64_t channel =
                    (g.p.lanes > 1 ? i + at : plane + (is_lane ? at : 0)) % by.channels;
                n = is_lane ? std::min(from + length - at, by.channels - channel) : length;
                store(at, n, channel, same.read, same.counted, {});
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
    const int type = int(p.type);
    AverageGradient{g, kernels_of(type), kernels_of(type == 1), static_cast<const char *>(arriving),
                    static_cast<char *>(gradient)}
        .run();
}

void quantized_average_pooling(const Problem &p, const void *input, void *output,
                               const Quantization &q) {
    if (p.type != 4 && p.type != 8)
        refuse("quantized averages of type", p.type);
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
