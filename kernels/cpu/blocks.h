// Blocks of outputs: what the strategies for rows and for boxes share.
//
// Both combine what a row of outputs reads along D and H into a row of workspace, each in its own
// way. Here such rows become outputs along W:
//
//     workspace                     combine taps                  finish
//     | A B C D E F |               | ABC BCD CDE DEF |           | averages, maxima, ... |
//     | G H I J K L |   -------->   | GHI HIJ IJK JKL |   ----->  |                       |
//     (rows of values)              (outputs of a block)          (results, where they go)
#pragma once

#include <vector>

#include "choose.h"
#include "operations.h"

namespace dmlpool {

// How a problem is cut into blocks.
struct BlockPlan {
    int64_t outputs_h;
    int64_t outputs_w;
};

// The number of outputs of a block along an axis: at least `least`, and enough for neighbouring
// blocks to share little of what they read.
int64_t block_outputs(const Axis &axis, int64_t least);
// The number of rows of workspace that stay in the first-level cache with their outputs.
int64_t rows_at_once(const Axis &w, int64_t outputs_w, int64_t channels, int64_t value);

// Rows of outputs, or some of their columns.
struct Block {
    int64_t plane;
    int64_t od;
    int64_t oh;
    int64_t ow;
    int64_t outputs_h;
    int64_t outputs_w;
    int64_t first;    // the first position along W that windows read, maybe in the padding
    int64_t low;      // the first such position inside the input
    int64_t columns;  // the number of such positions inside the input
};

// A thread's memory. All pointers point into `all_rows` or `memory`.
struct Workspace {
    std::vector<Row> all_rows;
    Row *rows;        // the rows of the input that a row of outputs reads along D and H
    Row *parts;       // what the first window along W is combined from: taps, or wider windows
    Row *parts_of_h;  // the same along H
    Row *shifted;     // the parts of a later window
    std::vector<char> memory;
    mutable std::vector<char> kept;  // rows of the input that a mask was applied to
    char *staged;                    // rows that were combined along D and H
    char *produced;                  // values of outputs, before they are finished
    char *scratch;  // rows of every stride-th value, or rows before zeros are inserted
    char *box;      // a box that was combined along D
    char *sums_h;   // of widened windows along H
    char *sums_w;   // of widened windows along W
};

// What RowPooling and BoxPooling have in common.
struct BlockPooling {
    const RowOperations &op;
    const Finish &finish;
    const char *const input;
    char *const output;
    const Windows &windows;
    const BlockPlan plan;

    const Problem &p = windows.p;
    const int64_t element = op.element_size;
    const int64_t value = op.value_size;
    const int64_t row_bytes = p.row() * element;
    const char *const end_of_input = input + p.input_bytes(element);
    const Axis d = p.d();
    const Axis h = p.h();
    const Axis w = windows.spaced_w();
    const int64_t channels = p.channels;
    const int64_t tiles_h = parts_of(h.outputs, plan.outputs_h);
    const int64_t tiles_w = parts_of(w.outputs, plan.outputs_w);
    // Whether windows along W are combined from windows of 1, 4, 16, ... taps.
    const bool widens_w = is_wide(op.is_idempotent, channels, w);
    // Whether windows of one channel are those of RowOperations::combine_short.
    const bool is_short = channels == 1 && w.dilation == 1 && w.window > 1 &&
                          (w.window == w.stride ? w.window <= 4 : w.window == 3 && w.stride == 2);
    // Whether each window of one channel reads its own values, because every fifth value of a row
    // cannot be taken in vectors.
    const bool reads_apart = channels == 1 && w.stride >= 5 && w.window * value >= 16 && !widens_w;
    // The number of strides that a row of workspace has room for, and the values of such a row.
    const int64_t row_length = parts_of(w.span(plan.outputs_w), w.stride);
    const int64_t pitch = row_length * w.stride * channels;
    // The most rows that a window reads along D and H.
    const int64_t most_rows = std::max<int64_t>(1, windows.most_taps(0) * windows.most_taps(1));
    // Sums of several channels are divided in the loop that adds their taps.
    const double divisor = channels > 1 ? finish.divisor : 0;
    // Rows are combined in whole vectors of this many elements. Vectors of sums hold values, which
    // are wider than elements.
    const int64_t vector = 64 / (op.is_idempotent ? element : value);

    // The block of a plane at an output along D and tiles along H and W.
    Block block_at(int64_t plane, int64_t od, int64_t tile_h, int64_t tile_w) const;
    // Memory for blocks of `rows` rows, and for boxes of `box_size` values.
    Workspace workspace(int64_t rows, int64_t box_size) const;

    // Lists the taps of the first window along an axis, and returns how many there are. `data`
    // begins with the first tap and has n values at each position. `unit` is the distance of the
    // numbers of two taps.
    int64_t find_taps(const char *data, int64_t n, const Axis &axis, int64_t unit, Row *taps) const;
    // Combines windows of 1, 4, 16, ... taps in place. Lists in `parts` the windows that make the
    // first window, and returns how many there are: of maxima the last two may overlap, of sums
    // those of fewer taps are added up in `sums`.
    int64_t widen_windows(char *data, char *sums, int64_t n, int64_t length, const Axis &axis,
                          int64_t unit, Row *parts) const;
    // Fills what lies outside the input in `rows` rows of workspace with the value that changes
    // nothing. The end of a row and the start of the next one are filled together.
    void fill_margins(const Block &b, int64_t rows, const Workspace &m) const;
    // Computes the results of rows [r, r + rows) of a block from their rows of workspace at `from`.
    void pool_along_w(const Block &b, int64_t r, int64_t rows, const char *from,
                      const Workspace &m) const;

  private:
    // Where values of outputs are written: `runs` rows of `outputs` values of all channels. Rows
    // without a gap between them are one run.
    struct Target {
        char *to;
        int64_t pitch;  // values from one row to the next
        int64_t runs;
        int64_t outputs;
        double divisor;  // of sums that become results at once, else 0
    };
    // Combines the elements of each window along W. `values` are those of all rows of workspace.
    void combine_windows(const char *from, int64_t values, const Target &t,
                         const Workspace &m) const;
    // The same, tap by tap of all windows, or by the widened windows that make a window.
    void combine_taps(const char *from, int64_t values, const Target &t, const Workspace &m) const;
    // Copies values that lie a stride apart into contiguous rows of `scratch`, and lets `parts`
    // list taps there. A row of workspace becomes one row for each remainder of positions by the
    // stride, or one row for each part where windows are widened along W.
    void take_strides(const char *from, int64_t parts, int64_t outputs, const Workspace &m) const;
};

}  // namespace dmlpool
