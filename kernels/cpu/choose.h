// Which strategy makes the results of a problem: a pure function of the problem. Strategies carry
// out what it says.
#pragma once

#include <cstdint>

#include "operations.h"

namespace dmlpool {

enum Strategy : int64_t {
    AUTOMATIC,  // what `choose` says
    PLANES,     // one window over each plane
    ROWS,       // rows of outputs
    BOXES,      // blocks of rows that are pooled along one axis after the other
    WINDOWS,    // each window for itself
};

// What the choice depends on.
struct Question {
    const Windows &windows;
    bool is_idempotent;    // what is combined twice changes nothing: maxima, not sums
    bool has_numbers;      // values say which tap they are
    bool is_uniform;       // results depend on values alone, not on the row and the output
    int64_t element_size;  // bytes
    int64_t value_size;
};

Strategy choose(const Question &question);
bool can_serve(Strategy strategy, const Question &question);

// For tests alone: every call that a strategy can serve is served by it, until AUTOMATIC is forced.
void force(Strategy strategy);
// How many calls that was.
int64_t calls_forced();

// Wide windows that overlap: windows of 1, 2, 4, ... taps, each from two of the one before, so that
// an axis costs log k.
bool is_wide(bool is_idempotent, int64_t channels, const Axis &axis);

// The operations that a row costs, however short it is. Reason: calls of 10,000 to 400,000 elements
// take 0.88 of the time with it; request and processor not measured separately.
constexpr double ROW_COST = 64;

}  // namespace dmlpool
