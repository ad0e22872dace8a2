// Quantized averages. Each is sum * input scale / (divisor * output scale), and it is rounded half
// to even as if it were computed exactly.
//
//     sums (int16 or int32)
//       ->  minus the zero points of all elements that were read
//       ->  times a scale in float32
//       ->  rounded, and once more exactly where float32 may have made a half
//       ->  int8 or uint8

#include <cmath>

#include "choose.h"
#include "counts.h"
#include "operators.h"
#include "sums.h"

namespace dmlpool {
namespace {

// The Op of sums of bytes: signed ones, or unsigned ones less 128, which have the same bits but the
// highest.
template <class L>
struct ByteSum : Sum<L, int8_t> {
    int8_t inverted_bits;

    explicit ByteSum(bool are_signed) : inverted_bits(are_signed ? 0 : -128) {}
    template <int64_t n>
    Vectors<L, n> load(const int8_t *from, int64_t) const {
        const Vector<int8_t, n> bytes = read<Vector<int8_t, n>>(from) ^ inverted_bits;
        return {{converted<L, n, int8_t>(bytes)}};
    }
};

// Scales and zero points, and how sums become quantized averages by them.
struct Requantization {
    static constexpr int64_t BLOCK = LANES<float>;
    const CountedWindows &g;
    // Whether the sums of a call are of one channel, and windows differ along W in what they count.
    const bool has_columns = g.p.channels == 1 && !g.counted[2].empty();
    vector<float> inverses;  // 1 / what each window counts along W
    int64_t channels;        // entries of the following: one for each channel, or one for all
    vector<double> above;    // the input's scales
    vector<double> below;    // the output's
    vector<float> scales;    // their quotients
    vector<int32_t> input_zeros;
    vector<int32_t> output_zeros;
    int32_t low;
    int32_t high;
    bool rounds_right = true;  // float32 rounds right, as averages are halves or far from them

    // Windows count or read at most `taps` taps. Sums are of elements less `subtracted`.
    Requantization(const CountedWindows &g, const Quantization &q, double taps, int32_t subtracted)
        : g(g), low(int32_t(q.low)), high(int32_t(q.high)) {
        for (double counted : g.counted[2])
            inverses.push_back(1 / float(counted));
        channels = q.is_uniform() ? 1 : q.channels;
        const auto entry = [](const auto *vector, int64_t count, int64_t c) {
            return vector[count == 1 ? 0 : c];
        };
        for (int64_t c = 0; c < channels; ++c) {
            above.push_back(entry(q.input_scale, q.input_scales, c));
            below.push_back(entry(q.output_scale, q.output_scales, c));
            input_zeros.push_back(entry(q.input_zero, q.input_zeros, c) - subtracted);
            output_zeros.push_back(entry(q.output_zero, q.output_zeros, c));
            const double ratio = above[c] / below[c];
            scales.push_back(float(min(ratio, 0x1p60)));
            // If the ratio is a power of two, averages are multiples of 1 / (taps *
            // max(1, 1 / ratio)) before they are rounded. For other ratios nothing is known.
            int exponent;
            rounds_right &= std::frexp(ratio, &exponent) == .5 && max(1., 1 / ratio) * taps <= 1024;
        }
    }

    // Converts int32 to uint8, by way of int16 with AVX2, which has no single instruction for it.
    static Vector<uint8_t, BLOCK> bytes_of(Vector<int32_t, BLOCK> values) {
        using Words = Vector<conditional_t<BLOCK == 16, int32_t, int16_t>, BLOCK>;
        return __builtin_convertvector(__builtin_convertvector(values, Words),
                                       Vector<uint8_t, BLOCK>);
    }

    // Requantizes sums: all of channel `channel`, or with `of_channels` one of each channel from
    // `channel` on. Windows read `taps` elements and divide by `divisor`, with `has_columns` each
    // times what it reads and counts along W: they are windows of a row from `column` on. A
    // quotient in float64 is a half only where the exact one is, for windows of up to 2^20 taps:
    // Python sends no larger ones.
    template <class L>
    void store_exactly(const L *sums, int64_t count, bool of_channels, int64_t channel,
                       int64_t taps, int64_t divisor, int64_t column, uint8_t *to) const {
        const auto run = [=, this](auto step, auto by_columns) {
            const double *const above = this->above.data() + channel;
            const double *const below = this->below.data() + channel;
            const int32_t *const zeros = output_zeros.data() + channel;
            const int32_t *const input_zero = input_zeros.data() + channel;
            const int32_t *const read = g.read[2].data() + by_columns * column;
            const double *const counted = g.counted[2].data() + by_columns * column;
            VECTORIZE
            for (int64_t i = 0; i < count; ++i) {
                const int64_t c = step * i;
                const int64_t reads = by_columns ? read[i] : 1;
                const double counts = double(divisor) * (by_columns ? counted[i] : 1);
                const double sum = int32_t(sums[i] - taps * reads * input_zero[c]);
                double whole = std::rint(sum * above[c] / (below[c] * counts));
                whole = clamp(whole, double(low - zeros[c]), double(high - zeros[c]));
                to[i] = uint8_t(int32_t(whole) + zeros[c]);
            }
        };
        of_channels   ? run(Count<1>(), Count<0>())
        : has_columns ? run(Count<0>(), Count<1>())
                      : run(Count<0>(), Count<0>());
    }
    // The same in float32, for at least BLOCK sums. It computes whole blocks, the last of which may
    // overlap the one before. The error below 400 is less than 2^-12. It rounds to a multiple of
    // 2^-11 first, so that a true half becomes a half. With `checks_halves` another number may
    // become a half, too, and blocks with halves are computed exactly.
    template <bool checks_halves, class L>
    void store_blocks(const L *sums, int64_t count, bool of_channels, int64_t channel, int64_t taps,
                      int64_t divisor, int64_t column, uint8_t *to) const {
        using Reals = Vector<float, BLOCK>;
        using Integers = Vector<int32_t, BLOCK>;
        constexpr float GRID = 1.5f * 0x1p12f;   // a sum with it is a multiple of 2^-11
        constexpr float WHOLE = 1.5f * 0x1p23f;  // a sum with it is an integer
        constexpr int64_t AT_A_TIME = 8;
        const int32_t *const zeros = output_zeros.data() + channel;
        const int32_t *const input_zero = input_zeros.data() + channel;
        const float *const factors = scales.data() + channel;
        const float inverse = float(1 / double(divisor));
        const float least = float(low);
        const float most = float(high);
        Reals factor = Reals{} + factors[0] * inverse;
        Reals floor = Reals{} + (least - float(zeros[0]));
        Reals ceiling = floor + (most - least);
        Integers added = Integers{} + (zeros[0] - bits_as<int32_t>(WHOLE));
        Integers subtracted = Integers{} + int32_t(taps) * input_zero[0];
        for (int64_t begin = 0; begin < count; begin += AT_A_TIME * BLOCK) {
            Integers any = {};
            const int64_t blocks = min(AT_A_TIME, parts_of(count - begin, BLOCK));
            for (int64_t k = 0; k < blocks; ++k) {
                const int64_t i = min(begin + k * BLOCK, count - BLOCK);
                if (of_channels) {
                    const auto zero = read<Integers>(zeros + i);
                    factor = read<Reals>(factors + i) * inverse;
                    added = zero - bits_as<int32_t>(WHOLE);
                    subtracted = read<Integers>(input_zero + i) * int32_t(taps);
                    floor = least - __builtin_convertvector(zero, Reals);
                    ceiling = floor + (most - least);
                }
                if (has_columns) {
                    factor = read<Reals>(&inverses[column + i]) * (factors[0] * inverse);
                    subtracted =
                        read<Integers>(&g.read[2][column + i]) * (int32_t(taps) * input_zero[0]);
                }
                const Integers from =
                    converted<int32_t, BLOCK, L>(read<Vector<L, BLOCK>>(sums + i));
                Reals real = __builtin_convertvector(from - subtracted, Reals) * factor;
                real = real < floor ? floor : real;
                real = real > ceiling ? ceiling : real;
                const Reals on_grid = real + GRID;
                const Reals shifted = on_grid + (WHOLE - GRID);
                write(bytes_of(Integers(shifted) + added), to + i);
                if constexpr (checks_halves) {
                    const Reals remainder = (on_grid - GRID) - (shifted - WHOLE);
                    any |= Integers(remainder * remainder == .25f);
                }
            }
            const Integers none = {};
            if (checks_halves && std::memcmp(&any, &none, sizeof(any)) != 0) {
                const int64_t first = min(begin, count - BLOCK);
                store_exactly(sums + first, min(AT_A_TIME * BLOCK, count - first), of_channels,
                              channel + (of_channels ? first : 0), taps, divisor, column + first,
                              to + first);
            }
        }
    }
    // The same for any number of sums.
    template <class L>
    void store(const L *sums, int64_t count, bool of_channels, int64_t channel, int64_t taps,
               int64_t divisor, int64_t column, uint8_t *to) const {
        const auto run = count < BLOCK  ? &Requantization::store_exactly<L>
                         : rounds_right ? &Requantization::store_blocks<false, L>
                                        : &Requantization::store_blocks<true, L>;
        (this->*run)(sums, count, of_channels, channel, taps, divisor, column, to);
    }
};

// Writes sums of type L as quantized averages.
template <class L>
struct Requantize final : Finish {
    const Requantization by;
    const CountedWindows &g = by.g;
    // Whether values that follow each other belong to different channels with zero points or
    // scales of their own, and not to windows of one channel.
    const bool are_of_channels = by.channels > 1 && (g.p.channels > 1 || g.are_planes());

    explicit Requantize(const Requantization &by) : Finish(1, by.g.is_uniform, false), by(by) {}
    void operator()(int64_t plane, int64_t d, int64_t h, int64_t i, int64_t count, const void *sums,
                    void *to) const override {
        const L *const from = as<L>(sums);
        uint8_t *const out = as<uint8_t>(to);
        const int64_t rows_read = g.known_count(0, d).read * g.known_count(1, h).read;
        const int64_t rows_counted = int64_t(g.rows_divisor(d, h));
        if (by.has_columns)
            return by.store(from, count, false, plane % by.channels, rows_read, rows_counted, i,
                            out);
        g.for_runs(i, count, [&](int64_t first, int64_t length, int64_t output) {
            const TapCount same = g.known_count(2, output);
            for (int64_t at = first, n; at < first + length; at += n) {
                const int64_t channel =
                    (g.p.channels > 1 ? i + at : plane + (are_of_channels ? at : 0)) % by.channels;
                n = are_of_channels ? min(first + length - at, by.channels - channel) : length;
                by.store(from + at, n, are_of_channels, channel, rows_read * same.read,
                         rows_counted * same.counted, 0, out + at);
            }
        });
    }
};

}  // namespace

void quantized_averages(const Problem &plain, const void *input, void *output,
                        const Quantization &q) {
    const Problem p = joined_averages(plain, false, q.is_uniform());
    if (p.type != INT8 && p.type != UINT8)
        reject("quantized averages of type", p.type);
    // The planes of a block are requantized together, so they must share scales and zero points.
    const bool is_turned = q.is_uniform() && choose({AVERAGE, Windows(p)}) == TURNED;
    const CountedWindows g(is_turned ? turned_problem(p) : p, true);
    double taps = 1;  // the most that a window counts or reads
    for (int a = 0; a < 3; ++a)
        taps *= double(max(g.p.axes[a].window, g.most_taps(a)));
    const auto run = [&]<class L>(L) {
        const bool are_signed = p.type == INT8;
        const Requantization by(g, q, taps, are_signed ? 0 : 128);
        pool_sums(Rows(ByteSum<L>(are_signed)), Requantize<L>(by), p, g, input, output);
    };
    use_large_pages(output, p.planes * p.output_plane());
    if (128 * taps < 0x1p15)
        run(int16_t());
    else
        run(int32_t());
}

}  // namespace dmlpool
