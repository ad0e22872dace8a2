// What the entry points in library.cpp call: a function for each operator of backends/cpu.py, and
// the structs of numbers that Python fills. All of them may throw.
#pragma once

#include "geometry.h"

// Scales and zero points: vectors of one entry for all channels or one each, and the output type's
// limits.
struct Quantization {
    const float *input_scale;
    const float *output_scale;
    const int32_t *input_zero;
    const int32_t *output_zero;
    int64_t input_scales;
    int64_t output_scales;
    int64_t input_zeros;
    int64_t output_zeros;
    int64_t channels;
    int64_t low;
    int64_t high;
};

// Memory in three loops. With each step the mask moves on by so many bytes, 0 where it stays.
struct Masking {
    int64_t sizes[3];
    int64_t steps[3];
    int64_t bytes;  // of an element
    int64_t fill;   // the bits of what stands where the mask is false
};

namespace dmlpool {

// What is written for each winner: the number of its tap, its position in the plane, or its index
// in the whole tensor.
enum Numbering { TAPS, POSITIONS, INDICES };

// Values alone where `winners` is null, and winners alone where `output` is.
void max_pooling(const Problem &p, const void *input, void *output, void *winners);
void max_pooling_indices(const Problem &p, const void *taps, void *indices);
void max_pooling_grad(const Problem &p, const void *arriving, const void *taps, void *gradient);

// Positions of 4 or 8 bytes, in the plane; the problem's inputs are what they number, its outputs
// where they are. Those inside the plane, and -1 for all but the last of several alike.
void unique_positions(const Problem &p, const void *positions, void *unique);
void gather_positions(const Problem &p, const void *input, const void *positions, void *output);
void scatter_positions(const Problem &p, const void *input, const void *positions, void *output);

void average_pooling(const Problem &p, const void *input, void *output);
void average_pooling_grad(const Problem &p, const void *arriving, void *gradient);
void quantized_average_pooling(const Problem &p, const void *input, void *output,
                               const Quantization &q);

// A mask has bytes of 0 and 1.
void masked(const Masking &m, const void *input, const void *mask, void *output);
// What sums of windows over a mask are divided by, numbers of the problem's 1 or 4 bytes; and the
// averages, whose divisors lie as the mask does.
void masked_divisors(const Problem &p, const void *mask, void *divisors);
void masked_average_pooling(const Problem &p, const Masking &m, const void *input, const void *mask,
                            const void *divisors, void *output);

}  // namespace dmlpool
