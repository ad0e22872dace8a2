// Which strategy computes a problem, and how it cuts the problem into tiles. The plans are pure
// functions of the problem; a strategy that a test forces changes the choice. Tuned numbers are in
// choose.cpp; the two that strategies read themselves are here.
#pragma once

#include <cstdint>

#include "operations.h"

namespace dmlpool {

enum Strategy : int64_t {
    AUTOMATIC,  // what `choose` says
    PLANES,     // one window over each plane: planes.cpp
    ROWS,       // rows of outputs: rows.cpp
    BOXES,      // blocks of the input, pooled along one axis after the other: boxes.cpp
    WINDOWS,    // each window by itself: windows.cpp
    TURNED,     // WINDOWS over small planes that are transposed first: turned.h
};

// What the choice depends on.
struct Question {
    const Windows &windows;
    bool is_idempotent;    // combining a value twice changes nothing: maxima, not sums
    bool is_exact;         // the order in which values are combined changes no bit
    bool has_numbers;      // values hold the number of the tap that they come from
    bool is_uniform;       // results depend on values alone, not on the output's coordinates
    int64_t element_size;  // bytes
    int64_t value_size;
};

// The same problem with fewer axes or planes, where windows allow it: rows that windows read whole,
// rows that windows tile, and planes. Averages whose planes are `are_alike` may have their planes
// joined. Numbers of winners stay the same.
Problem joined_maxima(const Problem &p, bool is_gradient, bool has_winners);
Problem joined_averages(const Problem &p, bool is_gradient, bool are_alike);

Strategy choose(const Question &question);
// Whether TURNED computes an average or its gradient. `windows` are the windows of the problem, or
// for a gradient the windows seen from the input. A call for which TURNED is forced is counted.
bool are_turned(const Problem &p, const Windows &windows);
// Whether windows share no element, so that disjoint.h computes the gradient of averages. It is
// false for bins, and while a strategy is forced.
bool are_disjoint(const Problem &p);
// Whether a strategy other than TURNED can compute the problem.
bool can_compute(Strategy strategy, const Question &question);

// For tests alone: every call that the strategy can compute is computed by it, until AUTOMATIC is
// forced.
void force(Strategy strategy);
// The number of calls that the forced strategy has computed since the last `force`.
int64_t calls_forced();

// How a strategy cuts a problem into pieces of work.

struct PlanePlan {
    int64_t part;       // positions of a part of a plane, which becomes one value per channel
    int64_t positions;  // positions that are combined as one row
    int64_t at_once;    // planes that are finished at once
    bool reads_first;   // rows are read in order before they are combined
};
PlanePlan plan_planes(const Question &question);

// The planes of one channel that one call reduces; a call may also reduce a multiple of it. Reason:
// one call for each plane takes 1.1 to 2.3 times as long; request and processor not noted.
constexpr int64_t PLANES_A_CALL = 64;

// Blocks of outputs, of ROWS and of BOXES.
struct BlockPlan {
    int64_t channels;
    int64_t outputs_h;
    int64_t outputs_w;
    int64_t rows;    // of workspace that are pooled along W at once
    bool doubles_h;  // combines windows of 1, 2, 4, ... taps along H, each from two smaller ones
    bool doubles_w;  // the same along W
    bool reduces_w;  // each window reads its own elements along W, without vectors over windows
    bool reads_first = false;  // what a block reads is read in order before it is combined
};
BlockPlan plan_rows(const Question &question);
BlockPlan plan_boxes(const Question &question);

struct WindowPlan {
    int64_t outputs_w;    // of a tile
    bool shares_columns;  // combines the rows of a tile first, whose columns windows share
    bool reads_first;     // what a row of outputs reads is read in order before it is combined
};
WindowPlan plan_windows(const Windows &windows, const WindowOperations &op);

// Whether maxima with winners, of several channels, keep elements and the numbers of their taps in
// vectors of their own (`ChannelWinners`), and do not combine integers that hold both (`Winner`). A
// tap's number is the sum of its coordinates times `units`.
bool compares_channels(const Problem &p, const int64_t (&units)[3], int64_t element_size);
// Whether a gradient of maxima of channels reads, for each element, the windows that it may have
// won, and does not add what arrives at each window to its winner.
bool gathers_channels(const Problem &p, int64_t value_size);
// Whether a gradient of averages of channels adds up, for each element, what arrives at the windows
// that read it. It is false while a strategy is forced.
bool gathers_shares(const Problem &p);
// Whether a gradient of averages pools rows of arriving elements with zeros between them.
bool puts_zeros_between(const Axis &axis);

// The operations that a row costs, however short it is. ROWS adds it to the cost that `parallel` is
// given. Reason: calls of 10,000 to 400,000 elements are 1.14 times faster with it; request and
// processor not measured separately.
constexpr double ROW_COST = 64;

}  // namespace dmlpool
