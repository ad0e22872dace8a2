// Which implementation serves a request. It is a pure function of the problem; an implementation
// that a test forces changes the choice.
#pragma once

#include "operations.h"

namespace dmlpool {

// The implementations, and AUTOMATIC for the first one of the list in choose.cpp that serves. Tests
// have their numbers.
enum Strategy : int64_t {
    AUTOMATIC,
    PLANES,     // one window over each plane: planes.cpp
    ROWS,       // rows of outputs: rows.cpp
    BOXES,      // blocks of the input, pooled along one axis after the other: rows.cpp
    WINDOWS,    // each window by itself: windows.cpp
    TURNED,     // channels of small planes that are transposed first: turned.h
    COMPARED,   // winners by WINDOWS that compare channels in vectors: maxima.cpp
    GATHERED,   // gradients of maxima of channels, each element from its windows: gathered.h
    SCATTERED,  // gradients of maxima, each window to its winner: gradients.cpp
};

// What a caller asks for: an operator, or POOL, the strategies that combine values of any operator.
enum Operation : int {
    POOL = 1,
    AVERAGE = 2,
    AVERAGE_GRADIENT = 4,
    MAXIMA = 8,
    WINNERS = 16,
    WINNERS_GRADIENT = 32,
};

// What the choice depends on. `windows` are those of the problem, of a gradient too.
struct Request {
    Operation operation;
    const Windows &windows;
    int64_t element_size = 0;  // bytes
    int64_t value_size = 0;
    bool is_idempotent = false;      // combining a value twice changes nothing: maxima, not sums
    bool has_numbers = false;        // values hold the number of the tap that they come from
    bool is_uniform = true;          // results depend on values alone, not on where they are
    const int64_t *units = nullptr;  // a tap's number is the sum of its coordinates times these
    const Problem &p = windows.p;
};

// The same problem with fewer axes or planes, where windows allow it: rows that windows read whole,
// rows that windows tile, and planes. Averages must not join planes whose sums become results in
// different ways, as by a scale for each channel. Numbers of winners stay the same.
Problem joined_maxima(const Problem &p, bool is_gradient, bool has_winners);
Problem joined_averages(const Problem &p, bool is_gradient, bool may_join_planes);
// Whether windows tile planes, and averages of all planes are pooled as those of one. It follows
// from the geometry of a plane, as bits must not depend on the number of planes.
bool joins_tiles(const Problem &p);

// The implementation that serves the request. AUTOMATIC where only those for POOL can serve it:
// then `pool` asks again for one of these. With DMLPOOL_VERBOSE=1 it says which one, and why not
// another: 2x2 windows of small planes are TURNED, and ROWS in large ones, or BOXES under a mask.
Strategy choose(const Request &request);

// For tests and benchmarks: every call that the strategy can compute is computed by it, until
// AUTOMATIC is forced, and none by the implementations whose bits 1 << number are set in `without`,
// unless nothing else can.
void force(Strategy strategy, int64_t without);
// The number of calls that the forced strategy has computed since the last `force`.
int64_t calls_forced();

// Windows of one channel whose elements are converted are reduced one by one from LONG_CONVERTED
// taps on. Planes whose rows have at most TURNED_WIDTH elements are transposed rather than joined.
constexpr int64_t LONG_CONVERTED = 16;
constexpr int64_t TURNED_WIDTH = 16;
// Whether an axis is wide: windows overlap so much that combining them from windows of 1, 4, 16,
// ... taps is faster.
bool is_wide(bool is_idempotent, int64_t channels, const Axis &axis);
// The number of a window's last tap, or a number that is no less for bins.
double last_number(const Problem &p, const int64_t *units);
// Whether a gradient of averages pools rows of arriving elements with zeros between them.
bool puts_zeros_between(const Axis &axis);

// The operations that a row costs, however short it is, for the cost that `parallel` gets.
constexpr double ROW_COST = 64;

}  // namespace dmlpool
