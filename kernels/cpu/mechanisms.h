// Mechanisms that make calls faster and change nothing else but the order of sums. A benchmark
// switches them off one by one to measure what each is worth: see `dmlpool_without` in library.cpp.
#pragma once

#include <cstdint>

namespace dmlpool {

// A mechanism is a bit of `switched_off`, and has a name.
#define MECHANISMS(M)                                                   \
    M(LARGE_PAGES, "large pages for large results")                     \
    M(READ_FIRST, "large inputs are read in order first")               \
    M(REPEATED_ROWS, "rows of windows are listed once for many rows")   \
    M(DIVIDED_SUMS, "sums are divided in the loop that adds them")      \
    M(SEVERAL_WINDOWS, "one call combines several windows of channels") \
    M(TAP_OFFSETS, "offsets of taps are kept in a table")

enum Mechanism : int {
#define NUMBERED(mechanism, name) mechanism,
    MECHANISMS(NUMBERED)
#undef NUMBERED
        MECHANISM_COUNT,  // the next bits switch off the implementations of choose.cpp
};

// For benchmarks and tests alone: a bit for each mechanism that is switched off, and the name of a
// mechanism, or null where there is none of that number.
extern uint64_t switched_off;
const char *name_of_mechanism(int64_t number);

inline bool without(Mechanism mechanism) {
    return __builtin_expect(switched_off >> mechanism & 1, 0);
}

}  // namespace dmlpool
