// The library as backends/library.py calls it, by C functions alone.
//
// Python compares the version and the layout of the structs when it loads the library. Every other
// function returns one of `Code`: no exception leaves the library, and none ends the process.

#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

#include "choose.h"
#include "operators.h"
#include "parallel.h"

namespace dmlpool {
namespace {

// Raised by one whenever a function or a number below changes its meaning, here and in
// backends/library.py.
constexpr int64_t VERSION = 2;

enum Code : int32_t { DONE, NO_MEMORY, FAILED, OUTSIDE };

// Why the last call in this thread FAILED.
thread_local char message[256];

// Calls `call`, and turns what it throws into a Code and a message.
template <class Call>
int32_t code_of(const Call &call) noexcept {
    try {
        call();
        return DONE;
    } catch (const std::bad_alloc &) {
        return NO_MEMORY;
    } catch (const std::length_error &) {  // more than any memory can hold
        return NO_MEMORY;
    } catch (const std::exception &error) {
        std::snprintf(message, sizeof(message), "%s", error.what());
    } catch (...) {
        std::snprintf(message, sizeof(message), "an unknown exception");
    }
    return FAILED;
}

// The same for pools of sets, but OUTSIDE before any work where offsets fall or lie outside.
template <class Call>
int32_t segments_code(const Segments &s, const int64_t *offsets, const Call &call) noexcept {
    return are_offsets(s, offsets) ? code_of(call) : int32_t(OUTSIDE);
}

// A line of the table that Python compares. A field of a struct has its offset and its bytes. A
// struct has offset 0 and its bytes. A constant has its value as `offset`, and 0 bytes.
struct Field {
    const char *name;
    int64_t offset;
    int64_t bytes;
};

#define SIZE(Struct) {#Struct, 0, sizeof(Struct)}
#define FIELD(Struct, field) {#Struct "." #field, offsetof(Struct, field), sizeof(Struct::field)}
#define VALUE(constant) {#constant, constant, 0}
constexpr Field LAYOUT[] = {
    SIZE(Axis),
    FIELD(Axis, size),
    FIELD(Axis, outputs),
    FIELD(Axis, window),
    FIELD(Axis, stride),
    FIELD(Axis, padding),
    FIELD(Axis, dilation),
    SIZE(Counting),
    FIELD(Counting, include_padding),
    FIELD(Counting, divisor),
    FIELD(Counting, end_padding),
    SIZE(Problem),
    FIELD(Problem, planes),
    FIELD(Problem, channels),
    FIELD(Problem, axes),
    FIELD(Problem, counting),
    FIELD(Problem, type),
    FIELD(Problem, bytes),
    FIELD(Problem, numbering),
    SIZE(Quantization),
    FIELD(Quantization, input_scale),
    FIELD(Quantization, output_scale),
    FIELD(Quantization, input_zero),
    FIELD(Quantization, output_zero),
    FIELD(Quantization, input_scales),
    FIELD(Quantization, output_scales),
    FIELD(Quantization, input_zeros),
    FIELD(Quantization, output_zeros),
    FIELD(Quantization, channels),
    FIELD(Quantization, low),
    FIELD(Quantization, high),
    SIZE(Masking),
    FIELD(Masking, groups),
    FIELD(Masking, planes),
    FIELD(Masking, is_own),
    FIELD(Masking, step),
    FIELD(Masking, channels),
    FIELD(Masking, fill),
    SIZE(Segments),
    FIELD(Segments, segments),
    FIELD(Segments, channels),
    FIELD(Segments, length),
    FIELD(Segments, set_step),
    FIELD(Segments, row_step),
    FIELD(Segments, mask_step),
    FIELD(Segments, type),
    FIELD(Segments, divisor),
    FIELD(Segments, are_minima),
    FIELD(Segments, correction),
    VALUE(TAPS),
    VALUE(POSITIONS),
    VALUE(INDICES),
    VALUE(DONE),
    VALUE(NO_MEMORY),
    VALUE(FAILED),
    VALUE(OUTSIDE),
    {nullptr, 0, 0},
};

}  // namespace
}  // namespace dmlpool

using namespace dmlpool;

#pragma GCC visibility push(default)
extern "C" {

int64_t dmlpool_version() {
    return VERSION;
}

// The table of `Field`. It ends with a field whose name is null.
const void *dmlpool_layout() {
    return LAYOUT;
}

// Why the last call of the calling thread returned FAILED.
const char *dmlpool_message() {
    return message;
}

// Takes the two functions of libtorch that parallel.h describes. Python calls it once.
void dmlpool_use_threads(void *torch_parallel_for, void *torch_get_num_threads) {
    use_threads(reinterpret_cast<ParallelFor>(torch_parallel_for),
                reinterpret_cast<GetThreads>(torch_get_num_threads));
}

// For benchmarks and tests: switches off the mechanisms whose bits are set. `dmlpool_mechanism`
// returns the name of a mechanism, or null where there is none of that number.
void dmlpool_without(uint64_t mechanisms) {
    switched_off = mechanisms;
}

const char *dmlpool_mechanism(int64_t number) {
    return name_of_mechanism(number);
}

// For tests alone, as is `dmlpool_calls_forced`: see `force` and `calls_forced` in choose.h.
void dmlpool_force(int64_t strategy) {
    force(Strategy(strategy));
}

int64_t dmlpool_calls_forced() {
    return calls_forced();
}

// The operators. operators.h says what each of them reads and writes. Any byte of a bool but 0 is
// True.

int32_t dmlpool_max_pooling(const Problem *p, const void *input, void *output, void *winners) {
    return code_of([=] { max_pooling(*p, input, output, winners); });
}

int32_t dmlpool_max_pooling_indices(const Problem *p, const void *taps, void *indices) {
    return code_of([=] { max_pooling_indices(*p, taps, indices); });
}

int32_t dmlpool_max_pooling_grad(const Problem *p, const void *arriving, const void *taps,
                                 void *gradient) {
    return code_of([=] { max_pooling_grad(*p, arriving, taps, gradient); });
}

// Returns OUTSIDE, and writes no element, where an index but -1 is outside its plane.
int32_t dmlpool_max_unpooling(const Problem *p, const void *input, const void *indices,
                              void *output, void *unique) {
    bool is_outside = false;
    const int32_t code =
        code_of([&] { is_outside = max_unpooling(*p, input, indices, output, unique); });
    return is_outside ? int32_t(OUTSIDE) : code;
}

int32_t dmlpool_unique_positions(const Problem *p, const void *positions, void *unique) {
    return code_of([=] { unique_positions(*p, positions, unique); });
}

int32_t dmlpool_gather_positions(const Problem *p, const void *input, const void *positions,
                                 void *output) {
    return code_of([=] { gather_positions(*p, input, positions, output); });
}

int32_t dmlpool_scatter_positions(const Problem *p, const void *input, const void *positions,
                                  void *output) {
    return code_of([=] { scatter_positions(*p, input, positions, output); });
}

int32_t dmlpool_average_pooling(const Problem *p, const void *input, void *output) {
    return code_of([=] { average_pooling(*p, input, output); });
}

int32_t dmlpool_average_pooling_grad(const Problem *p, const void *arriving, void *gradient) {
    return code_of([=] { average_pooling_grad(*p, arriving, gradient); });
}

int32_t dmlpool_quantized_average_pooling(const Problem *p, const void *input, void *output,
                                          const Quantization *q) {
    return code_of([=] { quantized_average_pooling(*p, input, output, *q); });
}

int32_t dmlpool_segment_sums(const Segments *s, const void *values, const int64_t *offsets,
                             const uint8_t *mask, void *output) {
    return segments_code(*s, offsets, [=] { segment_sums(*s, values, offsets, mask, output); });
}

int32_t dmlpool_segment_maxima(const Segments *s, const void *values, const int64_t *offsets,
                               const uint8_t *mask, void *output, int64_t *winners) {
    return segments_code(*s, offsets,
                         [=] { segment_maxima(*s, values, offsets, mask, output, winners); });
}

int32_t dmlpool_segment_shares(const Segments *s, const void *arriving, const int64_t *offsets,
                               const uint8_t *mask, const int64_t *winners, void *gradient) {
    return segments_code(*s, offsets,
                         [=] { segment_shares(*s, arriving, offsets, mask, winners, gradient); });
}

int32_t dmlpool_statistics(const Segments *s, const void *values, const uint8_t *mask, void *means,
                           void *deviations) {
    return code_of([=] { statistics(*s, values, mask, means, deviations); });
}

int32_t dmlpool_statistics_grad(const Segments *s, const void *values, const uint8_t *mask,
                                const void *moments, void *gradient) {
    return code_of([=] { statistics_grad(*s, values, mask, moments, gradient); });
}

int32_t dmlpool_masked(const Problem *p, const Masking *m, const void *input, const void *mask,
                       void *output) {
    return code_of([=] { masked(*p, *m, input, mask, output); });
}

int32_t dmlpool_masked_average_pooling(const Problem *p, const Masking *m, const void *input,
                                       const void *mask, void *output) {
    return code_of([=] { masked_average_pooling(*p, *m, input, mask, output); });
}

int32_t dmlpool_masked_average_pooling_grad(const Problem *p, const Masking *m,
                                            const void *arriving, const void *mask,
                                            void *gradient) {
    return code_of([=] { masked_average_pooling_grad(*p, *m, arriving, mask, gradient); });
}

int32_t dmlpool_masked_max_pooling(const Problem *p, const Masking *m, const void *input,
                                   const void *mask, void *output, void *winners) {
    return code_of([=] { masked_max_pooling(*p, *m, input, mask, output, winners); });
}

int32_t dmlpool_masked_max_pooling_grad(const Problem *p, const Masking *m, const void *arriving,
                                        const void *taps, const void *mask, void *gradient) {
    return code_of([=] { masked_max_pooling_grad(*p, *m, arriving, taps, mask, gradient); });
}
}
#pragma GCC visibility pop
