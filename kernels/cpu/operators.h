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

// How a mask lies beside a tensor. Three loops of `sizes` visit the elements of the tensor in the
// order of memory. A step of a loop moves `steps` bytes in the mask, 0 where the mask is broadcast.
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

// Functions of positions, which are integers of 4 or 8 bytes. The problem's inputs are the elements
// that positions number. Its outputs are the elements of `positions`. `unique_positions` copies
// positions, but writes -1 for those outside the plane and for all but the last of equal ones.
void unique_positions(const Problem &p, const void *positions, void *unique);
void gather_positions(const Problem &p, const void *input, const void *positions, void *output);
void scatter_positions(const Problem &p, const void *input, const void *positions, void *output);

void average_pooling(const Problem &p, const void *input, void *output);
void average_pooling_grad(const Problem &p, const void *arriving, void *gradient);
void quantized_average_pooling(const Problem &p, const void *input, void *output,
                               const Quantization &q);

// A mask has bytes of 0 and 1.
void masked(const Masking &m, const void *input, const void *mask, void *output);
// `masked_divisors` writes what the sum of each window over a mask is divided by, as integers of
// Problem::bytes, 1 or 4. `masked_average_pooling` reads divisors that lie as the mask does.
void masked_divisors(const Problem &p, const void *mask, void *divisors);
void masked_average_pooling(const Problem &p, const Masking &m, const void *input, const void *mask,
                            const void *divisors, void *output);

}  // namespace dmlpool
