// The library as backends/library.py calls it, by C functions alone.
//
// Python compares the version and the layout of the structs when it loads the library. Operators
// return one of `Code`: no exception leaves the library, and none ends the process.

#include <cstdio>
#include <exception>
#include <new>

#include "choose.h"
#include "operators.h"
#include "parallel.h"

namespace dmlpool {
namespace {

// Raised by one whenever a function or a number below changes its meaning, here and in
// backends/library.py.
constexpr int64_t VERSION = 8;

enum Code : int32_t { DONE, NO_MEMORY, FAILED, OUTSIDE };

// Why the last call in this thread FAILED.
thread_local char message[256];

// An operator of operators.h as Python calls it, with a pointer for each operand: what it throws
// becomes a Code and a message.
template <auto operate>
struct Guarded;
template <class... Operands, void (*operate)(Operands...)>
struct Guarded<operate> {
    static constexpr int64_t OPERANDS = sizeof...(Operands);
    static int32_t call(Operands... operands) noexcept {
        try {
            operate(operands...);
            return DONE;
        } catch (const std::bad_alloc &) {
            return NO_MEMORY;
        } catch (const std::length_error &) {  // more than any memory can hold
            return NO_MEMORY;
        } catch (const out_of_range &) {  // indices or offsets, and no result was written
            return OUTSIDE;
        } catch (const std::exception &error) {
            std::snprintf(message, sizeof(message), "%s", error.what());
        }
        return FAILED;
    }
};

// The operators. operators.h says what each of them reads and writes. Any byte of a bool but 0 is
// True.
#define OPERATORS                                                                                  \
    max_pooling, max_pooling_indices, max_pooling_grad_from_taps, max_unpooling, unique_positions, \
        gather_positions, scatter_positions, average_pooling, average_pooling_grad,                \
        quantized_averages, segment_sums, segment_maxima, segment_shares, statistics,              \
        statistics_grad, masked

struct Function {
    const void *address;
    int64_t operands;  // how many pointers it takes
};
template <auto... operators>
const Function FUNCTIONS[] = {
    {reinterpret_cast<const void *>(Guarded<operators>::call), Guarded<operators>::OPERANDS}...};

// A line of the table that Python compares: a struct with its fields and its bytes.
struct Line {
    const char *name;
    const char *declared;
    int64_t bytes;
};

#define TEXT(...) #__VA_ARGS__
#define EXPANDED(...) TEXT(__VA_ARGS__)
#define STRUCT(Struct) {#Struct, Struct::DECLARED, sizeof(Struct)}
constexpr Line LAYOUT[] = {
    STRUCT(Axis),    STRUCT(Counting), STRUCT(Problem),       STRUCT(Quantization),
    STRUCT(Masking), STRUCT(Segments), {nullptr, nullptr, 0},
};

}  // namespace
}  // namespace dmlpool

using namespace dmlpool;

#pragma GCC visibility push(default)
extern "C" {

int64_t dmlpool_version() {
    return VERSION;
}

// The table of `Line`. It ends with a line whose name is null.
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

// For tests and benchmarks, as is `dmlpool_calls_forced`: see `force` and `calls_forced` in
// choose.h.
void dmlpool_force(int64_t strategy, int64_t without) {
    force(Strategy(strategy), without);
}

int64_t dmlpool_calls_forced() {
    return calls_forced();
}

// A `Function` for each of the names of `dmlpool_names`.
const Function *dmlpool_operators() {
    return FUNCTIONS<OPERATORS>;
}

const char *dmlpool_names() {
    return EXPANDED(OPERATORS);
}
}
#pragma GCC visibility pop
