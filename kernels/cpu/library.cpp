// The library as backends/library.py calls it, by C functions alone.
//
// Python compares the version and the layout of the structs when it loads the library. Operators
// return one of `Code`: no exception leaves the library, and none ends the process.

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
constexpr int64_t VERSION = 5;

enum Code : int32_t { DONE, NO_MEMORY, FAILED, OUTSIDE };

// Why the last call in this thread FAILED.
thread_local char message[256];

// An operator of operators.h as Python calls it, with a pointer for each operand: what it throws
// becomes a Code and a message.
template <auto operate>
struct Guarded;
template <class... Operands, void (*operate)(Operands...)>
struct Guarded<operate> {
    static int32_t call(Operands... operands) noexcept {
        try {
            operate(operands...);
            return DONE;
        } catch (const std::bad_alloc &) {
            return NO_MEMORY;
        } catch (const std::length_error &) {  // more than any memory can hold
            return NO_MEMORY;
        } catch (const std::out_of_range &) {  // indices or offsets, and no result was written
            return OUTSIDE;
        } catch (const std::exception &error) {
            std::snprintf(message, sizeof(message), "%s", error.what());
        } catch (...) {
            std::snprintf(message, sizeof(message), "an unknown exception");
        }
        return FAILED;
    }
};

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

// A line of the table of operators. operators.h says what each of them reads and writes. Any byte
// of a bool but 0 is True.
struct Operator {
    const char *name;
    const void *function;
};

#define OPERATOR(name) {#name, reinterpret_cast<const void *>(Guarded<name>::call)}
const Operator OPERATORS[] = {
    OPERATOR(max_pooling),
    OPERATOR(max_pooling_indices),
    OPERATOR(max_pooling_grad),
    OPERATOR(min_pooling),
    OPERATOR(max_unpooling),
    OPERATOR(unique_positions),
    OPERATOR(gather_positions),
    OPERATOR(scatter_positions),
    OPERATOR(average_pooling),
    OPERATOR(average_pooling_grad),
    OPERATOR(quantized_averages),
    OPERATOR(segment_sums),
    OPERATOR(segment_maxima),
    OPERATOR(segment_shares),
    OPERATOR(statistics),
    OPERATOR(statistics_grad),
    OPERATOR(masked),
    OPERATOR(masked_average_pooling),
    OPERATOR(masked_average_pooling_grad),
    OPERATOR(masked_max_pooling),
    OPERATOR(masked_max_pooling_grad),
    OPERATOR(masked_min_pooling),
    {nullptr, nullptr},
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

// The table of `Operator`. It ends with an operator whose name is null.
const void *dmlpool_operators() {
    return OPERATORS;
}
}
#pragma GCC visibility pop
