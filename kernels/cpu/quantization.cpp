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

// The ratio of two scales: the input's above the output's.
struct Ratio {
    double above;
    double below;

    // Unrounded averages are multiples of 1 / (denominator * divisor) if the ratio is a power of
    // two. For other ratios nothing is known, and the denominator is infinite.
    double denominator() const {
        int exponent;
        return std::frexp(above / below, &exponent) == .5 ? std::max(1., below / above) : HUGE_VAL;
    }
    // Rounds sum * ratio / divisor, which is close to `whole` + 1/2. It compares twice the sum
    // times `above` with (2 whole + 1) * divisor times `below`. The comparison is exact, because it
    // takes the errors of both products into account.
    int32_t rounded(int64_t sum, int64_t divisor, int64_t whole) const {
        const double twice = 2 * double(sum);
        const double counted = double((2 * whole + 1) * divisor);
        const double product = twice * above;
        const double half = counted * below;
        const double beyond =
            (product - half) + (std::fma(twice, above, -product) - std::fma(counted, below, -half));
        return int32_t(whole + (beyond > 0 || (beyond == 0 && whole % 2)));
    }
};

// The taps that each window of a row counts and reads along W. All are null if windows do not
// differ.
struct RowCounts {
    const float *inverses;  // 1 / counted
    const int32_t *counted;
    const int32_t *read;
};

// Scales and zero points, and how sums become quantized averages by them.
struct Requantization {
    static constexpr int64_t BLOCK = LANES<float>;
    int64_t channels;  // entries of the following: one for each channel, or one for all
    std::vector<Ratio> ratios;
    std::vector<float> scales;
    std::vector<int32_t> input_zeros;
    std::vector<int32_t> output_zeros;
    int32_t low;
    int32_t high;
    bool rounds_right;  // float32 rounds right, as averages are halves or far from them

    Requantization(const Quantization &q, double largest_divisor)
        : low(int32_t(q.low)), high(int32_t(q.high)) {
        channels = q.is_uniform() ? 1 : q.channels;
        const auto entry = [](const auto *vector, int64_t count, int64_t c) {
            return vector[count == 1 ? 0 : c];
        };
        double largest = 0;
        for (int64_t c = 0; c < channels; ++c) {
            ratios.push_back({entry(q.input_scale, q.input_scales, c),
                              entry(q.output_scale, q.output_scales, c)});
            scales.push_back(float(std::min(ratios[c].above / ratios[c].below, 0x1p60)));
            largest = std::max(largest, ratios[c].denominator());
            input_zeros.push_back(entry(q.input_zero, q.input_zeros, c));
            output_zeros.push_back(entry(q.output_zero, q.output_zeros, c));
        }
        rounds_right = largest * largest_divisor <= 1024;
        scales.resize(channels + BLOCK);
        input_zeros.resize(channels + BLOCK);
        output_zeros.resize(channels + BLOCK);
    }

    // Converts int32 to uint8, by way of int16 with AVX2, which has no single instruction for it.
    static Vector<uint8_t, BLOCK> bytes_of(Vector<int32_t, BLOCK> values) {
        using Words = Vector<std::conditional_t<BLOCK == 16, int32_t, int16_t>, BLOCK>;
        return __builtin_convertvector(__builtin_convertvector(values, Words),
                                       Vector<uint8_t, BLOCK>);
    }

    // Requantizes at least BLOCK sums: all of channel `channel`, or with `of_channels` one of each
    // channel from `channel` on. Windows read `inside` elements and divide by `divisor`, each times
    // its entry of `columns`. It computes whole blocks, the last of which may overlap the one
    // before. It computes in float32, whose error below 400 is less than 2^-12, and rounds to a
    // multiple of 2^-11 first, so that a true half becomes a half. With `checks_halves` another
    // number may become a half, too, and Ratio::rounded decides.
    template <bool checks_halves, class L>
    void store_blocks(const L *sums, int64_t count, bool of_channels, int64_t channel,
                      int64_t inside, int64_t divisor, RowCounts columns, uint8_t *to) const {
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
        const int32_t taken = int32_t(inside);
        Reals factor = Reals{} + factors[0] * inverse;
        Reals floor = Reals{} + (least - float(zeros[0]));
        Reals ceiling = floor + (most - least);
        Integers added = Integers{} + (zeros[0] - bits_as<int32_t>(WHOLE));
        Integers subtracted = Integers{} + taken * input_zero[0];
        for (int64_t begin = 0; begin < count; begin += AT_A_TIME * BLOCK) {
            Integers any = {};
            uint8_t are_halves[AT_A_TIME * BLOCK + 8] = {};
            Reals near[AT_A_TIME];
            const int64_t blocks = std::min(AT_A_TIME, parts_of(count - begin, BLOCK));
            for (int64_t k = 0; k < blocks; ++k) {
                const int64_t i = std::min(begin + k * BLOCK, count - BLOCK);
                if (of_channels) {
                    const auto zero = read<Integers>(zeros + i);
                    factor = read<Reals>(factors + i) * inverse;
                    added = zero - bits_as<int32_t>(WHOLE);
                    subtracted = read<Integers>(input_zero + i) * taken;
                    floor = least - __builtin_convertvector(zero, Reals);
                    ceiling = floor + (most - least);
                }
                if (columns.read) {
                    factor = read<Reals>(columns.inverses + i) * (factors[0] * inverse);
                    subtracted = read<Integers>(columns.read + i) * (taken * input_zero[0]);
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
                    near[k] = on_grid - GRID;
                    const Reals remainder = near[k] - (shifted - WHOLE);
                    const auto halves = Integers(remainder * remainder == .25f);
                    any |= halves;
                    write(bytes_of(halves), are_halves + k * BLOCK);
                }
            }
            const Integers none = {};
            if (!checks_halves || std::memcmp(&any, &none, sizeof(any)) == 0)
                continue;
            for (int64_t eight = 0; eight < blocks * BLOCK; eight += 8)
                for (uint64_t halves_left = read<uint64_t>(are_halves + eight) & 0x0101010101010101;
                     halves_left; halves_left &= halves_left - 1) {
                    const int64_t at = eight + __builtin_ctzll(halves_left) / 8;
                    const int64_t k = at / BLOCK;
                    const int64_t lane = at % BLOCK;
                    const int64_t i = std::min(begin + k * BLOCK, count - BLOCK) + lane;
                    const int64_t c = channel + (of_channels ? i : 0);
                    const int64_t whole = int64_t(std::floor(near[k][lane]));
                    const int64_t reads = columns.read ? columns.read[i] : 1;
                    const int64_t counts = columns.read ? columns.counted[i] : 1;
                    const int32_t result = ratios[c].rounded(
                        sums[i] - inside * reads * input_zeros[c], divisor * counts, whole);
                    to[i] = uint8_t(std::clamp(result + output_zeros[c], low, high));
                }
        }
    }
    // The same for any number of sums.
    template <class L>
    void store(const L *sums, int64_t count, bool of_channels, int64_t channel, int64_t inside,
               int64_t divisor, RowCounts columns, uint8_t *to) const {
        if (count < BLOCK) {
            L padded[BLOCK] = {};  // channels there have scales of 0
            uint8_t results[BLOCK];
            std::copy_n(sums, count, padded);
            store(padded, BLOCK, of_channels, channel, inside, divisor, columns, results);
            std::copy_n(results, count, to);
            return;
        }
        const auto run = !rounds_right || sizeof(L) > 2 ? &Requantization::store_blocks<true, L>
                                                        : &Requantization::store_blocks<false, L>;
        (this->*run)(sums, count, of_channels, channel, inside, divisor, columns, to);
    }
};

// Writes sums of type L as quantized averages.
template <class L>
struct Requantize final : Finish {
    const CountedWindows &g;
    const Requantization by;
    // Whether values that follow each other belong to different channels with zero points or
    // scales of their own, and not to windows of one channel.
    const bool are_of_channels = by.channels > 1 && (g.p.channels > 1 || g.are_planes());
    // Counts of each output of one channel along W, if `g` keeps them, and of some more to fill a
    // vector. Windows of other rows are requantized run by run.
    std::vector<float> inverses;
    std::vector<int32_t> counted;
    std::vector<int32_t> read;

    Requantize(const CountedWindows &g, const Quantization &q)
        : Finish(1, g.is_uniform, false), g(g), by(q, g.largest_divisor()) {
        if (g.p.channels > 1 || g.counts[2].empty())
            return;
        std::vector<TapCount> counts = g.counts[2];
        counts.resize(counts.size() + by.BLOCK, {1, 0});
        for (const TapCount &count : counts) {
            counted.push_back(int32_t(count.counted));
            read.push_back(int32_t(count.read));
            inverses.push_back(1 / float(count.counted));
        }
    }
    void operator()(int64_t plane, int64_t d, int64_t h, int64_t i, int64_t count, const void *sums,
                    void *to) const override {
        const L *const from = static_cast<const L *>(sums);
        uint8_t *const out = static_cast<uint8_t *>(to);
        const int64_t rows_read = g.known_count(0, d).read * g.known_count(1, h).read;
        const int64_t rows_counted = int64_t(g.rows_divisor(d, h));
        if (!read.empty())
            return by.store(from, count, false, plane % by.channels, rows_read, rows_counted,
                            {inverses.data() + i, counted.data() + i, read.data() + i}, out);
        g.for_runs(i, count, [&](int64_t first, int64_t length, int64_t output) {
            const TapCount same = g.known_count(2, output);
            for (int64_t at = first, n; at < first + length; at += n) {
                const int64_t channel =
                    (g.p.channels > 1 ? i + at : plane + (are_of_channels ? at : 0)) % by.channels;
                n = are_of_channels ? std::min(first + length - at, by.channels - channel) : length;
                by.store(from + at, n, are_of_channels, channel, rows_read * same.read,
                         rows_counted * same.counted, {}, out + at);
            }
        });
    }
};

}  // namespace

const RowOperations &bool_sums() {
    static const Rows<Sum<int32_t, Bool>> operations({});
    return operations;
}

void quantized_average_pooling(const Problem &plain, const void *input, void *output,
                               const Quantization &q) {
    const Problem p = joined_averages(plain, false, false);
    if (p.type != 4 && p.type != 8)
        reject("quantized averages of type", p.type);
    const bool is_signed = p.type == 4;
    // The planes of a block are requantized together, so they must share scales and zero points.
    const Windows windows(p);
    const bool is_turned = q.is_uniform() && choose({AVERAGE, windows}) == TURNED;
    const CountedWindows g(is_turned ? turned_problem(p) : p, true);
    double most = 255;  // the largest sum of the most taps that a window reads
    for (int a = 0; a < 3; ++a)
        most *= double(g.most_taps(a));
    const auto run = [&](auto sum) {
        using L = decltype(sum);
        const Rows<Sum<L, int8_t>> of_signed({});
        const Rows<Sum<L, uint8_t>> of_unsigned({});
        const RowOperations &op =
            is_signed ? static_cast<const RowOperations &>(of_signed) : of_unsigned;
        const Requantize<L> requantize(g, q);
        pool_sums(op, requantize, p, g, input, output);
    };
    use_large_pages(output, p.planes * p.output_plane());
    if (most < 0x1p15)
        run(int16_t());
    else
        run(int32_t());  // Python sends no windows of 2^23 taps
}

}  // namespace dmlpool
