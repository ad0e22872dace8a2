// What the entry points in library.cpp call: a function for each operator of backends/cpu.py and
// backends/segments.py, and the structs of numbers that Python fills. All of them may throw.
#pragma once

#include "geometry.h"

namespace dmlpool {

// How a quantized average becomes quantized again. `input_scales` is the length of `input_scale`,
// and so on for the other three: 1 for all channels, or `channels`. `low` and `high` are the limits
// of the output's type.
struct Quantization {
    FIELDS(const float *input_scale, *output_scale; const int32_t *input_zero, *output_zero;
           int64_t input_scales, output_scales, input_zeros, output_zeros, channels, low, high;)

    bool is_uniform() const {
        return input_scales == 1 && output_scales == 1 && input_zeros == 1 && output_zeros == 1;
    }
};

// Sets of rows of `channels` contiguous elements of data type `type`. With offsets, the rows of set
// i are [offsets[i], offsets[i + 1]) of `length` rows; without, each set has `length` rows. Steps
// count elements, and that of the mask bytes: row r of set i begins with element i * set_step +
// r * row_step, and its byte of the mask is number i * mask_step + r. With offsets the two steps of
// sets are 0. Sums are divided by `divisor`, or if that is 0 by the number of rows that are kept.
// With `are_minima` the least elements are found in place of the greatest. Statistics divide by the
// number of rows less `correction`, and where row_step is 1 they are of contiguous planes: channels
// lie `length` elements apart.
struct Segments {
    FIELDS(int64_t segments, channels, length, set_step, row_step, mask_step, type, divisor,
           are_minima, correction;)
};

// What the number of a winner is: the number of its tap in the window, its position in the plane,
// or its index in the whole tensor.
enum Numbering { TAPS, POSITIONS, INDICES };

// Pools read the elements that a mask keeps, if there is one (see Masking in geometry.h). Bools are
// pooled as 0 and 1.

// Writes maxima to `output` and the numbers of their winners to `winners`. Either may be null, and
// is not written then, but under a mask winners need the output. There the number of a window
// without an element has all bits set.
void max_pooling(const Problem &p, const void *input, void *output, void *winners);
// Turns the taps that `max_pooling` wrote into indices.
void max_pooling_indices(const Problem &p, const void *taps, void *indices);
// The gradient of the input. `arriving` is the gradient of the output.
void max_pooling_grad_from_taps(const Problem &p, const void *arriving, const void *taps,
                                void *gradient);

// Functions of positions: integers of 4 or 8 bytes that number the elements of the problem's input
// planes. Its output planes have a position for each element. A function writes one of the two.

// Writes zeros, and then each element at its index. Indices are POSITIONS or INDICES, and have
// Problem::bytes bytes. The last of equal ones stays. Unless `unique` is null, it gets what
// `unique_positions` writes, as int32 if planes have less than 2^31 positions. If an index but -1
// is outside its plane, nothing but `unique` is written, and out_of_range is thrown.
void max_unpooling(const Problem &p, const void *input, const void *indices, void *output,
                   void *unique);
// Copies positions, but writes -1 for those outside a plane and for all but the last of equal ones.
void unique_positions(const Problem &p, const void *positions, void *unique);
// Writes the element at each position, or 0 where the position is outside the plane.
void gather_positions(const Problem &p, const void *input, const void *positions, void *output);
// Writes zeros, and adds each element at its position.
void scatter_positions(const Problem &p, const void *input, const void *positions, void *output);

void average_pooling(const Problem &p, const void *input, void *output);
// The gradient of the input. `arriving` is the gradient of the output.
void average_pooling_grad(const Problem &p, const void *arriving, void *gradient);
void quantized_averages(const Problem &p, const void *input, void *output, const Quantization &q);

// Pools of sets of rows. Offsets and masks may be null; a mask has a byte for each row, which is
// left out where that is 0. Results are contiguous rows, one for each set.

void segment_sums(const Segments &s, const void *values, const int64_t *offsets,
                  const uint8_t *mask, void *output);
// The greatest or least element of each channel. `winners` gets its row, or -1 for an empty set,
// unless it is null.
void segment_maxima(const Segments &s, const void *values, const int64_t *offsets,
                    const uint8_t *mask, void *output, int64_t *winners);
// The gradient of sums, or with `winners` that of maxima: steps are those of the gradient.
void segment_shares(const Segments &s, const void *arriving, const int64_t *offsets,
                    const uint8_t *mask, const int64_t *winners, void *gradient);
// Means and standard deviations of each channel.
void statistics(const Segments &s, const void *values, const uint8_t *mask, void *means,
                void *deviations);

// Their gradient, from numbers of each channel in the type of sums: its mean, what distances from
// that are multiplied by, and what is then added. `line` has the first of all channels, and so on.
void statistics_grad(const Segments &s, const void *values, const uint8_t *mask, const void *line,
                     void *gradient);

// Copies the input and writes `Masking::fill` where the mask is false.
void masked(const Problem &p, const void *input, void *output);

}  // namespace dmlpool
