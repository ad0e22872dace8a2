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
    TURNED,     // each window for itself, of several small planes at once
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
// Whether TURNED computes an average. `windows` are the windows of the problem, or the windows seen
// from the input. A call for which TURNED is forced is counted.
bool are_turned(const Problem &p, const Windows &windows);
// Whether windows share no element, so that the gradient of averages copies what arrives. It is
// false for bins, and while a strategy is forced.
bool are_spread(const Problem &p);
bool can_serve(Strategy strategy, const Question &question);

// For tests alone: every call that a strategy can serve is served by it, until AUTOMATIC is forced.
void force(Strategy strategy);
// The number of calls that a forced strategy has served since the last `force`.
int64_t calls_forced();

// How a strategy cuts a problem into pieces of work. Each is a pure function of the problem.

struct PlanePlan {
    int64_t part;       // positions of a part of a plane, which becomes one value per channel
    int64_t positions;  // positions that are combined as one row
    int64_t at_once;    // planes that are finished at once
};
PlanePlan plan_planes(const Question &question);

// Planes of one channel are reduced so many in a call, or a multiple. Reason: one call for each
// plane takes 1.1 to 2.3 times as long; request and processor not noted.
constexpr int64_t PLANES_A_CALL = 64;

// Blocks of outputs, of ROWS and of BOXES.
struct BlockPlan {
    int64_t channels;
    int64_t outputs_h;
    int64_t outputs_w;
    int64_t rows;    // of workspace that are pooled along W at once
    bool doubles_h;  // windows of 1, 2, 4, ... taps, each from two of those before
    bool doubles_w;
    bool reduces_w;  // each window reads its elements, without vectors over windows
};
BlockPlan plan_rows(const Question &question);
BlockPlan plan_boxes(const Question &question);

struct WindowPlan {
    int64_t outputs_w;    // of a tile
    bool shares_columns;  // the columns that windows share are combined first
    bool reads_ahead;     // elements of the next window
};
WindowPlan plan_windows(const Windows &windows, int64_t element_size, int64_t value_size,
                        bool is_separable);

// Whether winners of channels are found by comparing elements and the numbers of their taps, each
// in a vector of its own, and not by combining integers that hold both. The numbers of taps count
// `units` along each axis.
bool compares_channels(const Problem &p, const int64_t (&units)[3], int64_t element_size);
// Whether a gradient of maxima of channels reads, for each element, the windows that it may have
// won, and does not add what arrives at each window to its winner.
bool gathers_channels(const Problem &p, int64_t value_size);
// Whether a gradient of averages pools rows of arriving elements with zeros between them.
bool puts_zeros_between(const Axis &axis);

// The operations that a row costs, however short it is. Reason: calls of 10,000 to 400,000 elements
// take 0.88 of the time with it; request and processor not measured separately.
constexpr double ROW_COST = 64;

}  // namespace dmlpool
