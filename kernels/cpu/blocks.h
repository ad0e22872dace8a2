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

// Some rows of outputs, some of their columns, and some channels.
struct Block {
    int64_t plane;
    int64_t channel;
    int64_t new_channels;  // the last so many are in no block before this one
    int64_t od;
    int64_t oh;
    int64_t ow;
    int64_t outputs_h;
    int64_t outputs_w;
    int64_t first;    // the position along W that it reads first
    int64_t low;      // the first one inside the input
    int64_t columns;  // how many lie inside the input
    // Where rows of outputs read the same: the first of each such group, and the end of the last.
    const int64_t *starts;
};

// What a thread writes on its way to outputs.
struct Workspace {
    std::vector<Row> all_rows;
    Row *rows;   // that are combined along D and H
    Row *parts;  // the taps of the first window along W
    Row *of_h;   // and along H
    Row *moved;  // the taps of a window after the first
    std::vector<char> memory;
    char *staged;        // rows that are combined along D and H
    char *made;          // outputs, before they are finished
    char *scratch;       // rows without the elements between strides, or before zeros are put in
    char *sums_of_rows;  // wide sums along W
    char *box;           // a box that is combined along D
    char *sums;          // wide sums along H
};

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
    const char *const end_of_input = input + p.planes * p.plane() * element;
    const Axis d = p.d();
    const Axis h = p.h();
    const Axis w = windows.spaced_w();
    const int64_t channels = plan.channels;
    const bool has_all_channels = channels == p.channels;
    const int64_t tiles_w = parts_of(w.outputs, plan.outputs_w);
    // Outputs that a row of workspace has room for, and its values.
    const int64_t made_row = parts_of(w.span(plan.outputs_w), w.stride);
    const int64_t pitch = made_row * w.stride * channels;
    // The last tap of a window follows the first by so many strides, and so many elements.
    const int64_t strides_to_last = (w.extent() - 1) / w.stride;
    const int64_t beside_last = (w.extent() - 1) % w.stride;
    const int64_t phase_step = std::gcd(w.stride, w.dilation);
    // Rows that a window reads.
    const int64_t most_rows = std::max<int64_t>(1, windows.most(0) * windows.most(1));
    // Workspace is written in whole vectors: of elements, but of the wider ones that sums are.
    const int64_t vector = 64 / (op.is_idempotent ? element : value);

    // The block at a part of channels, an output along D, tiles along H and W.
    Block block_at(int64_t plane, int64_t channel_part, int64_t od, int64_t tile_h,
                   int64_t tile_w) const;
    // For blocks of so many rows, and boxes of so many values.
    Workspace workspace(int64_t rows, int64_t box_size) const;

    // The taps of the first window along an axis, whose data begin with its first one, n values of
    // each position; how many there are.
    int64_t find_taps(const char *data, int64_t n, const Axis &axis, int64_t unit, Row *taps) const;
    // Combines windows of 1, 2, 4, ... taps in place. Fills `parts` with what the first window is
    // combined from, and returns how many parts it has. Sums that no power of two makes are added
    // up in `sums`.
    int64_t double_windows(char *data, char *sums, int64_t n, int64_t length, const Axis &axis,
                           int64_t unit, Row *parts) const;
    // Fills the positions of `rows` rows of workspace that lie outside the input with the value
    // that changes nothing. The end of a row and the start of the next one are filled together.
    void fill_margins(const Block &b, int64_t rows, const Workspace &m) const;
    // The outputs of so many rows of workspace, which are those of a block from row r on.
    void pool_along_w(const Block &b, int64_t r, int64_t rows, const char *from,
                      const Workspace &m) const;

  private:
    // Where values and results of some rows of outputs go.
    struct Target {
        int64_t row;  // the first one
        int64_t rows;
        char *out;  // its results
        int64_t out_pitch;
        char *to;  // its values
        int64_t to_pitch;
        bool is_stored;   // values are results, and lie where those go
        bool is_whole;    // rows of values lie as rows of results do
        int64_t all;      // outputs of all rows, as if they were one row
        int64_t runs;     // rows that are computed one by one
        int64_t outputs;  // of such a row
    };
    Target target_of(const Block &b, int64_t r, int64_t rows, const Workspace &m) const;
    void combine_taps(const Block &b, const char *from, const Target &t, const Workspace &m) const;
    void take_strides(const char *from, int64_t parts, int64_t all, const Workspace &m) const;
    void finish_rows(const Block &b, const Target &t) const;
};

}  // namespace dmlpool
