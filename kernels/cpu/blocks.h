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

#include <memory>

#include "choose.h"
#include "operations.h"
#include "strides.h"

namespace dmlpool {
namespace {

// Rows of workspace that are pooled along W together have at most this many values of 4 bytes or
// more, or four times as many bytes of smaller values. They stay in the first-level cache.
constexpr int64_t WORKSPACE_VALUES = 1024;
// A tile of a long row of one channel has TILE_BYTES, for the first-level cache, and one of several
// channels TILE_BYTES_OF_CHANNELS.
constexpr int64_t TILE_BYTES = 4096;
constexpr int64_t TILE_BYTES_OF_CHANNELS = 32768;
// A box has at least BOX_OUTPUTS_W / channels outputs along W, and BOX_OUTPUTS_H along H.
constexpr int64_t BOX_OUTPUTS_W = 2048;
constexpr int64_t BOX_OUTPUTS_H = 128;
// Windows of channels of less than this many bytes are combined at each position of a row, as
// vectors hold several positions, and then those at strides are taken.
constexpr int64_t FEW_BYTES = 16;
// The most windows that `list_parts` lists of a wide window: less than 4 of one width, and a sum or
// one that overlaps another.
constexpr int64_t MOST_PARTS = 4;

// The number of outputs of a block along an axis: at least `least`, and enough for neighbouring
// blocks to share little of what they read.
inline int64_t block_outputs(const Axis &axis, int64_t least) {
    const int64_t wanted = max({int64_t(1), least, 2 * axis.extent() / axis.stride});
    return parts_of(axis.outputs, max(1, axis.outputs / wanted));
}

// Rows of outputs, or some of their columns.
struct Block {
    int64_t plane;
    int64_t od;
    int64_t oh;
    int64_t ow;
    int64_t outputs_h;
    int64_t outputs_w;
    int64_t before;   // the values of a row of workspace before the input begins
    int64_t low;      // the first position along W that windows read inside the input
    int64_t columns;  // the number of such positions
};

// A thread's memory. The pointers point into `memory`.
struct Workspace {
    vector<Row> rows;        // the rows of the input that a row of outputs reads along D and H
    vector<Row> parts;       // what a window along W is combined from: taps, or wider windows
    vector<Row> parts_of_h;  // the same along H
    vector<char> kept;       // rows of the input that a mask was applied to
    std::unique_ptr<char[]> memory;
    char *staged;    // rows that were combined along D and H
    char *produced;  // values of outputs, before they are finished
    char *scratch;   // rows of every stride-th value, or rows before zeros are inserted
    char *box;       // a box that was combined along D
    char *sums_h;    // of widened windows along H
    char *sums_w;    // of widened windows along W
};

// What rows and boxes have in common.
struct BlockPooling : Pooling<RowOperations> {
    const bool by_boxes;

    const int64_t element = op.element_size;
    const int64_t value = op.value_size;
    const int64_t row_bytes = p.row() * element;
    const Axis w = windows.spaced_w();
    // The outputs of a block along W, the number of strides that a row of workspace has room for,
    // and the values of such a row.
    const int64_t outputs_w =
        block_outputs(w, by_boxes ? BOX_OUTPUTS_W / channels
                                  : (channels > 1 ? TILE_BYTES_OF_CHANNELS : TILE_BYTES) / value /
                                        channels / w.stride);
    const int64_t row_length = parts_of(w.span(outputs_w), w.stride);
    const int64_t pitch = row_length * w.stride * channels;
    // The outputs of a block along H, and the rows that are pooled along W together.
    const int64_t most_group = max(1, 4 * WORKSPACE_VALUES / (pitch * min<int64_t>(4, value)));
    const int64_t outputs_h =
        by_boxes ? block_outputs(h, BOX_OUTPUTS_H) : min(most_group, h.outputs);
    const int64_t group = min(most_group, outputs_h);
    // Whether windows are combined from windows of 1, 4, 16, ... taps.
    const bool widens_w = is_wide(op.is_idempotent, channels, w);
    const bool widens_h = by_boxes && is_wide(op.is_idempotent, channels, h);
    // Whether windows of one channel are those of RowOperations::combine_short.
    const bool is_short = channels == 1 && w.dilation == 1 && w.window > 1 &&
                          (w.window == w.stride ? w.window <= 4 : w.window == 3 && w.stride == 2);
    // Whether each window of one channel reads its own values, because every fifth value of a row
    // cannot be taken in vectors.
    const bool reads_apart = channels == 1 && w.stride >= 5 && w.window * value >= 16 && !widens_w;
    // The most rows that a window reads along D and H. A box reads rows along D where windows have
    // none along H.
    const int64_t most_rows = windows.most_taps(0) * windows.most_taps(1);
    // Sums of several channels, and of windows with stride 1, are divided in the loop that adds
    // their taps.
    const double divisor = channels > 1 || w.stride == 1 ? finish.divisor : 0;
    // Rows are combined in whole vectors of this many elements. Vectors of sums hold values, which
    // are wider than elements.
    const int64_t vector = 64 / (op.is_idempotent ? element : value);

    // The block of a plane at an output along D and tiles along H and W.
    Block block_at(int64_t plane, int64_t od, int64_t tile_h, int64_t tile_w) const {
        const int64_t oh = tile_h * outputs_h;
        const int64_t ow = tile_w * outputs_w;
        const int64_t count = min(outputs_w, w.outputs - ow);
        const int64_t first = w.first(ow);
        const int64_t last = first + w.span(count);
        const int64_t low = clamp(0, first, last);
        return {plane,
                od,
                oh,
                ow,
                min(outputs_h, h.outputs - oh),
                count,
                (low - first) * channels,
                low,
                clamp(w.size, low, last) - low};
    }
    Workspace workspace() const {
        constexpr int64_t ALIGNMENT = 64;  // of a vector, as loads across cache lines take longer
        const int64_t staged = group * pitch + vector;
        // Each of the parts that make a wide window has a value for each stride, and all taps have
        // as many as there are values.
        const int64_t scratch = group * max(pitch, MOST_PARTS * row_length);
        const int64_t box = by_boxes ? h.span(outputs_h) * pitch : 0;
        const int64_t values = 3 * staged + scratch + 2 * box;
        Workspace m;
        m.rows.resize(most_rows);
        m.parts.resize(w.window);
        m.parts_of_h.resize(by_boxes ? h.window : 0);
        m.memory.reset(new char[values * value + 7 * ALIGNMENT]);
        char *next = aligned(m.memory.get(), ALIGNMENT);
        const auto take = [&](int64_t count) {
            return std::exchange(next, next + parts_of(count * value, ALIGNMENT) * ALIGNMENT);
        };
        m.staged = take(staged);
        m.produced = take(staged);
        m.box = take(box);
        m.sums_h = take(box);
        m.sums_w = take(staged);
        m.scratch = take(scratch);
        return m;
    }

    // Lists what makes the first window along an axis, and returns how much that is. `data` begins
    // with its first tap, and has n values at each position and `length` in all. `unit` is the
    // distance of the numbers of two taps. The parts are taps, or with `widens` windows of 4, 16,
    // ... taps, which are combined in place: of maxima the last two may overlap, of sums those of
    // fewer taps are added up in `sums`.
    int64_t list_parts(bool widens, char *data, char *sums, int64_t n, int64_t length,
                       const Axis &axis, int64_t unit, std::vector<Row> &parts) const {
        const int64_t k = axis.window;
        const int64_t step = axis.dilation * n;
        const auto part = [=, this](int64_t tap) {
            return Row{data + tap * step * value, tap * unit};
        };
        const int64_t outputs = length - (k - 1) * step;
        int64_t taken = 0;  // taps that are in `sums`
        int64_t width = 1;
        for (; widens && 4 * width <= k; width *= 4) {
            for (int64_t left = op.is_idempotent ? 0 : k / width % 4; left > 0; --left) {
                const Row row = part(taken);
                taken == 0 ? op.combine(true, &row, 1, outputs, sums)
                           : op.accumulate(&row, 1, outputs, sums);
                taken += width;
            }
            const Row next[] = {part(width), part(2 * width), part(3 * width)};
            op.accumulate(next, 3, length - 3 * width * step, data);
        }
        int64_t count = 0;
        for (int64_t tap = taken; tap < k; tap += width)
            parts[count++] = part(min(tap, k - width));
        if (taken > 0)
            parts[count++] = {sums, 0};
        return count;
    }
    // Fills what lies outside the input in `rows` rows of workspace with the value that changes
    // nothing. The end of a row and the start of the next one are filled together.
    void fill_margins(const Block &b, int64_t rows, const Workspace &m) const {
        const int64_t end = b.before + b.columns * channels;
        if (end - b.before == pitch || windows.spacing > 1)
            return;
        op.fill(m.staged, b.before);
        op.fill(m.staged + end * value, pitch - end + b.before, pitch, rows - 1);
        op.fill(m.staged + ((rows - 1) * pitch + end) * value, pitch - end);
    }
    // Computes the results of rows [r, r + rows) of a block from their rows of workspace at `from`.
    void pool_along_w(const Block &b, int64_t r, int64_t rows, char *from, Workspace &m) const {
        const int64_t out_pitch = p.output_row() * finish.result_size;
        const int64_t output_row = (b.plane * d.outputs + b.od) * h.outputs + b.oh + r;
        char *const out = output + output_row * out_pitch + b.ow * channels * finish.result_size;
        // Whether rows of values are as long and as far apart as rows of results.
        const bool are_whole = b.outputs_w == w.outputs && row_length == w.outputs;
        // Maxima of rows shorter than a vector are faster as one run, of which rows are copied.
        const bool are_copied =
            op.is_idempotent && is_short && !are_whole && b.outputs_w * value < BYTES;
        // Whether values are results, and are written where results go.
        const bool are_results = (finish.is_direct && !are_copied) || divisor != 0;
        const bool are_one = !are_results || are_whole;
        const Target t = {are_results ? out : m.produced,
                          are_results ? p.output_row() : row_length * channels, are_one ? 1 : rows,
                          are_one ? (rows - 1) * row_length + b.outputs_w : b.outputs_w,
                          are_results ? divisor : 0};
        combine_windows(from, (rows - 1) * pitch + w.span(b.outputs_w) * channels, t, m);
        if (are_results)
            return;
        const int64_t count = b.outputs_w * channels;
        if (are_whole && finish.is_uniform)
            return finish(b.plane, b.od, b.oh + r, 0, rows * count, t.to, out);
        const bool has_numbers = op.units[2] != 0;
        if (finish.is_uniform && !has_numbers && channels == 1 && rows > 1) {
            // All rows are finished at once, and copied.
            finish(b.plane, b.od, b.oh + r, 0, t.outputs, t.to, m.scratch);
            for (int64_t k = 0; k < rows; ++k)
                memcpy(out + k * out_pitch, m.scratch + k * t.pitch * finish.result_size,
                       count * finish.result_size);
            return;
        }
        // Winners are finished in whole vectors, which exceed a row where the next one is written
        // later. They are half as long as the processor's.
        const int64_t lanes = BYTES / 2 / finish.result_size;
        const int64_t most =
            has_numbers && b.outputs_w == w.outputs ? parts_of(count, lanes) * lanes : count;
        for (int64_t k = 0; k < rows; ++k)
            finish(b.plane, b.od, b.oh + r + k, b.ow * channels, min(most, (rows - k) * count),
                   t.to + k * t.pitch * value, out + k * out_pitch);
    }

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
    // Combines the elements of each window along W: `values` values of all rows of workspace.
    void combine_windows(char *from, int64_t values, const Target &t, Workspace &m) const {
        char *to = t.to;
        if (is_short || reads_apart) {
            const Run whole = {0, w.window, 0, t.outputs, w.stride};
            for (int64_t k = 0; k < t.runs; ++k, from += pitch * value, to += t.pitch * value)
                is_short ? op.combine_short(from, w.window, w.stride, t.outputs, to)
                         : op.reduce_windows(true, {from, 0}, 0, &whole, t.outputs, w.dilation, to);
            return;
        }
        // Tap by tap of all windows, or by the widened windows that make a window.
        const int64_t parts =
            list_parts(widens_w, from, m.sums_w, channels, values, w, op.units[2], m.parts);
        Row *const taps = m.parts.data();
        if (w.stride == 1)
            return op.combine(true, taps, parts, t.outputs * channels, to,
                              {t.runs, pitch * value, t.pitch, t.divisor});
        if (channels == 1) {
            take_strides(from, parts, (t.runs - 1) * row_length + t.outputs, m);
            return op.combine(true, taps, parts, t.outputs, to,
                              {t.runs, row_length * value, t.pitch});
        }
        const int64_t step = w.stride * channels;
        const int64_t bytes = channels * value;
        for (int64_t k = 0; k < t.runs; ++k) {
            char *out = to + k * t.pitch * value;
            if (bytes >= FEW_BYTES)
                op.combine(true, taps, parts, channels, out,
                           {t.outputs, step * value, channels, t.divisor});
            else {
                op.combine(true, taps, parts, (t.outputs - 1) * step + channels, m.scratch,
                           {1, 0, 0, t.divisor});
                // A copy of FEW_BYTES may write what the next ones overwrite.
                const int64_t outputs = t.outputs;
                const int64_t whole = outputs - FEW_BYTES / bytes;
                const char *taken = m.scratch;
                for (int64_t o = 0; o < outputs; ++o, out += bytes, taken += step * value)
                    o < whole ? memcpy(out, taken, FEW_BYTES) : memcpy(out, taken, bytes);
            }
            for (int64_t tap = 0; tap < parts; ++tap)
                taps[tap].from += pitch * value;
        }
    }
    // Copies values that lie a stride apart into contiguous rows of `scratch`, and lets `parts`
    // list taps there. A row of workspace becomes one row for each remainder of positions by the
    // stride, or one row for each part where windows are widened along W.
    void take_strides(const char *from, int64_t parts, int64_t outputs, Workspace &m) const {
        if (widens_w) {
            for (int64_t k = 0; k < parts; ++k) {
                char *const each = m.scratch + k * outputs * value;
                take_spaced(value, w.stride, m.parts[k].from, outputs, each);
                m.parts[k].from = each;
            }
            return;
        }
        // The distance from the first to the last tap of a window: whole strides, and the
        // remainder.
        const int64_t strides = (w.extent() - 1) / w.stride;
        const int64_t remainder = (w.extent() - 1) % w.stride;
        const int64_t length = outputs + strides;
        for (int64_t phase = 0; phase < w.stride; phase += gcd(w.stride, w.dilation))
            take_spaced(value, w.stride, from + phase * value,
                        phase <= remainder ? length : length - 1,
                        m.scratch + phase * length * value);
        for (int64_t t = 0; t < w.window; ++t) {
            const int64_t at = t * w.dilation;
            m.parts[t].from = m.scratch + (at % w.stride * length + at / w.stride) * value;
        }
    }
};

}  // namespace
}  // namespace dmlpool
