// Sums of quantized elements, requantized on the CPU.
#pragma once

#include "sums.h"

#include <cmath>
#include <numeric>

// Scales and zero points: vectors of one entry for all channels or one each, and the output type's limits.
struct Quantization {
    const float *input_scale, *output_scale;
    const int32_t *input_zero, *output_zero;
    int64_t input_scales, output_scales, input_zeros, output_zeros, channels, low, high;
};

namespace dmlpool {
namespace {

// Quantized averages: r = sum * input scale / (divisor * output scale), rounded half to even as if it were exact.

// Numerator and denominator of the ratio of two float32 numbers, as integers times a power of two: odd, without a common factor.
struct Ratio {
    int64_t numerator, denominator;
    int exponent;

    Ratio(float above, float below) {
        int above_exponent, below_exponent;
        numerator = int64_t(std::ldexp(std::frexp(above, &above_exponent), 24));
        denominator = int64_t(std::ldexp(std::frexp(below, &below_exponent), 24));
        exponent = above_exponent - below_exponent;
        for (; numerator % 2 == 0; numerator /= 2) ++exponent;
        for (; denominator % 2 == 0; denominator /= 2) --exponent;
        const int64_t common = std::gcd(numerator, denominator);
        numerator /= common, denominator /= common;
    }
    double value() const { return std::ldexp(double(numerator) / double(denominator), exponent); }
    // What a result is a fraction of, where every number is a multiple of 1 / that.
    double parts() const { return std::ldexp(double(denominator), std::max(0, -exponent)); }

    // sum * ratio / divisor, rounded, where it lies next to `whole` + 1/2.
    int32_t rounded(int64_t sum, int64_t divisor, int64_t whole) const {
        const __int128 twice = __int128(2) * sum * numerator * (__int128(1) << std::max(0, exponent));
        const __int128 half = __int128(2 * whole + 1) * divisor * denominator * (__int128(1) << std::max(0, -exponent));
        return int32_t(whole + (twice > half || (twice == half && whole % 2)));
    }
};

// What windows of a row count and read along W, where that is not the same for all.
struct Columns {
    const float *inverses;  // 1 / counted
    const int32_t *counted, *read;
};

struct Requantization {
    static constexpr int64_t BLOCK = 16;
    int64_t channels;           // 1: all are alike
    std::vector<Ratio> ratios;  // these of each channel
    std::vector<float> scales;
    std::vector<int32_t> input_zeros, output_zeros;
    int32_t low, high;
    bool are_certain;  // whether float32 tells halves from what lies next to them

    Requantization(const Quantization &q, double largest_divisor) : low(int32_t(q.low)), high(int32_t(q.high)) {
        channels = q.input_scales * q.output_scales * q.input_zeros * q.output_zeros == 1 ? 1 : q.channels;
        const auto entry = [](const auto *vector, int64_t count, int64_t c) { return vector[count == 1 ? 0 : c]; };
        double parts = 0;
        for (int64_t c = 0; c < channels; ++c) {
            if (c > 0 && q.input_scales * q.output_scales == 1) ratios.push_back(ratios[0]);
            else ratios.emplace_back(entry(q.input_scale, q.input_scales, c), entry(q.output_scale, q.output_scales, c));
            scales.push_back(float(std::min(ratios[c].value(), 0x1p60))), parts = std::max(parts, ratios[c].parts());
            input_zeros.push_back(entry(q.input_zero, q.input_zeros, c));
            output_zeros.push_back(entry(q.output_zero, q.output_zeros, c));
        }
        are_certain = parts * largest_divisor <= 1024;
        scales.resize(channels + BLOCK), input_zeros.resize(channels + BLOCK), output_zeros.resize(channels + BLOCK);
    }

    // Of one channel, or of those from `channel` on. In float32, where what the arithmetic moved next to a half becomes
    // it on a grid of 2^-11: results between -400 and 400 move by less than 2^-12. Where more than halves may, integers tell.
    // Whole blocks, the last of which may begin inside the one before.
    template <bool by_integers, class L>
    void store_few(const L *sums, int64_t count, bool of_channels, int64_t channel, int64_t inside, int64_t divisor, Columns columns, uint8_t *to) const {
        using Reals = Lanes<float, BLOCK>;
        using Integers = Lanes<int32_t, BLOCK>;
        constexpr float GRID = 1.5f * 0x1p12f, WHOLE = 1.5f * 0x1p23f;
        constexpr int64_t TOGETHER = 8;
        const int32_t *const zeros = output_zeros.data() + channel, *const input_zero = input_zeros.data() + channel;
        const float *const factors = scales.data() + channel;
        const float inverse = float(1 / double(divisor)), least = float(low), most = float(high);
        const int32_t taken = int32_t(inside);
        Reals factor = Reals{} + factors[0] * inverse, floor = Reals{} + (least - float(zeros[0])), ceiling = floor + (most - least);
        Integers added = Integers{} + (zeros[0] - bits_as<int32_t>(WHOLE)), subtracted = Integers{} + taken * input_zero[0];
        for (int64_t begin = 0; begin < count; begin += TOGETHER * BLOCK) {
            Integers any = {}, halves[TOGETHER];
            Reals near[TOGETHER];
            const int64_t blocks = std::min(TOGETHER, parts_of(count - begin, BLOCK));
            for (int64_t k = 0; k < blocks; ++k) {
                const int64_t i = std::min(begin + k * BLOCK, count - BLOCK);
                if (of_channels) {
                    const auto zero = vector_at<Integers>(zeros + i);
                    factor = vector_at<Reals>(factors + i) * inverse, added = zero - bits_as<int32_t>(WHOLE);
                    subtracted = vector_at<Integers>(input_zero + i) * taken;
                    floor = least - __builtin_convertvector(zero, Reals), ceiling = floor + (most - least);
                }
                if (columns.read) {
                    factor = vector_at<Reals>(columns.inverses + i) * (factors[0] * inverse);
                    subtracted = vector_at<Integers>(columns.read + i) * (taken * input_zero[0]);
                }
                Integers from;
#ifdef __AVX512F__
                if constexpr (sizeof(L) == 2) from = Integers(_mm512_cvtepi16_epi32(vector_at<__m256i>(sums + i)));
                else
#endif
                    from = __builtin_convertvector(vector_at<Lanes<L, BLOCK>>(sums + i), Integers);
                Reals real = __builtin_convertvector(from - subtracted, Reals) * factor;
                real = real < floor ? floor : real, real = real > ceiling ? ceiling : real;
                const Reals on_grid = real + GRID, shifted = on_grid + (WHOLE - GRID);
                const auto bytes = __builtin_convertvector(Integers(shifted) + added, Lanes<uint8_t, BLOCK>);
                std::memcpy(to + i, &bytes, sizeof(bytes));
                if constexpr (by_integers) {
                    near[k] = on_grid - GRID;
                    const Reals rest = near[k] - (shifted - WHOLE);
                    halves[k] = Integers(rest * rest == .25f), any |= halves[k];
                }
            }
            if (!by_integers || sum_of<int32_t, BLOCK>(any) == 0) continue;
            for (int64_t at = 0; at < blocks * BLOCK; ++at) {
                const int64_t k = at / BLOCK, lane = at % BLOCK, i = std::min(begin + k * BLOCK, count - BLOCK) + lane;
                if (!halves[k][lane]) continue;
                const int64_t c = channel + (of_channels ? i : 0), whole = int64_t(std::floor(near[k][lane]));
                const int64_t reads = columns.read ? columns.read[i] : 1, counts = columns.read ? columns.counted[i] : 1;
                const int32_t result = ratios[c].rounded(sums[i] - inside * reads * input_zeros[c], divisor * counts, whole);
                to[i] = uint8_t(std::clamp(result + output_zeros[c], low, high));
            }
        }
    }
    template <class L>
    void store(const L *sums, int64_t count, bool of_channels, int64_t channel, int64_t inside, int64_t divisor, Columns columns, uint8_t *to) const {
        if (count < BLOCK) {
            L padded[BLOCK] = {};  // channels there have scales of 0
            uint8_t results[BLOCK];
            std::copy_n(sums, count, padded);
            store(padded, BLOCK, of_channels, channel, inside, divisor, columns, results);
            std::copy_n(results, count, to);
            return;
        }
        const auto few = !are_certain || sizeof(L) > 2 ? &Requantization::store_few<true, L> : &Requantization::store_few<false, L>;
        (this->*few)(sums, count, of_channels, channel, inside, divisor, columns, to);
    }
};

}  // namespace
}  // namespace dmlpool
