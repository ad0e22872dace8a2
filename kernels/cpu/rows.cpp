// Rows of outputs: the rows that a row of outputs reads are combined into one row of workspace, and
// then the taps of that row into outputs.
//
//     rows of the input      workspace             outputs
//     | a b c d e f |
//     | g h i j k l |  --->  | A B C D E F |  ---> | ABC BCD CDE DEF |
//     | m n o p q r |        (along D and H)       (along W, see blocks.h)
//
// Several short rows are pooled together, because each loop has a cost of its own. Long rows are
// pooled in tiles that stay in the first-level cache.
//
// Boxes of the input are pooled along one axis after the other, so that what neighbouring windows
// share is combined once:
//
//     box of the input          along D               along H               along W
//      /| a b c | /| g h i |
//     / | d e f |/ | j k l | -> | A B C |           ->  | AD BE CF |     ->  outputs
//                               | D E F |

#include <algorithm>

#include "blocks.h"
#include "kept.h"
#include "parallel.h"
#include "strides.h"

namespace dmlpool {
namespace {

// A tile of a long row of one channel has TILE_BYTES, for the first-level cache. Tiles of several
// channels have TILE_BYTES_OF_CHANNELS, or half as many where values have 8 bytes.
constexpr int64_t TILE_BYTES = 4096;
constexpr int64_t TILE_BYTES_OF_CHANNELS = 32768;
// The rows that a row of outputs reads are fetched first if they fit a second-level cache.
constexpr int64_t READ_BYTES = 1 << 19;
// Large inputs of one channel whose rows have at least this many bytes are prefetched two rows of
// windows ahead. Shorter rows follow each other so closely that the processor does it.
constexpr int64_t AHEAD_ROW = 384;
// A box has at least BOX_OUTPUTS_W / channels outputs along W, and BOX_OUTPUTS_H of one channel.
constexpr int64_t BOX_OUTPUTS_W = 2048;
constexpr int64_t BOX_OUTPUTS_H = 64;

struct RowPooling : BlockPooling {
    const bool by_boxes;
    // The rows that are pooled along W together: all of a block, or some of a box.
    const int64_t group =
        by_boxes ? std::min(plan.outputs_h, rows_at_once(w, plan.outputs_w, channels, value))
                 : plan.outputs_h;
    const bool widens_h = by_boxes && is_wide(op.is_idempotent, channels, h);
    // Whether the input is brought into a cache before rows are combined: row by row, or by blocks.
    const bool fetches = reads_first(windows, element) &&
                         most_rows * plan.outputs_w * w.stride * channels * element <= READ_BYTES;
    const bool is_whole = plan.outputs_w == w.outputs;
    const bool fetches_ahead = fetches && channels == 1 && is_whole && row_bytes >= AHEAD_ROW;
    const bool fetches_block = fetches && (channels > 1 || !is_whole);
    // The outputs along H whose windows lie inside the input. What they read is found once, as each
    // reads as many rows as the one before, a stride below.
    const Range repeating = windows.spacing > 1 || without(REPEATED_ROWS) ? Range{0, 0} : h.whole();

    static BlockPlan plan_of(const RowOperations &op, const Windows &windows, bool by_boxes) {
        const int64_t channels = windows.p.channels;
        const Axis w = windows.spaced_w();
        const Axis &h = windows.p.h();
        if (by_boxes)
            return {block_outputs(h, channels > 1 ? 1 : BOX_OUTPUTS_H),
                    block_outputs(w, std::max<int64_t>(1, BOX_OUTPUTS_W / channels))};
        const int64_t bytes = channels == 1       ? TILE_BYTES
                              : op.value_size > 4 ? TILE_BYTES_OF_CHANNELS / 2
                                                  : TILE_BYTES_OF_CHANNELS;
        const int64_t least = std::max<int64_t>(1, bytes / op.value_size / channels / w.stride);
        // Windows of a tile share most of what they read.
        const int64_t outputs_w = block_outputs(w, std::max(least, 4 * w.extent() / w.stride));
        return {std::min(rows_at_once(w, outputs_w, channels, op.value_size), h.outputs),
                outputs_w};
    }
    void pool() const {
        const int64_t width = by_boxes ? w.span(plan.outputs_w) : plan.outputs_w * w.stride;
        const int64_t box_size =
            by_boxes ? h.span(plan.outputs_h) * std::min(w.size, width) * channels : 0;
        const double elements =
            double(most_rows) * double(width) + double(plan.outputs_w * w.window);
        const double cost = by_boxes
                                ? (4. + double(d.window)) * double(box_size)
                                : double(plan.outputs_h) * (ROW_COST + double(channels) * elements);
        // In the order of memory. Boxes share input along D, so that is an inner loop.
        parallel_loops<4>(
            {tiles_w, by_boxes ? d.outputs : tiles_h, by_boxes ? tiles_h : d.outputs, p.planes},
            cost, [&] {
                return [this, m = workspace(group, box_size)](const Digits<4> &at) {
                    const Block b =
                        block_at(at[3], at[by_boxes ? 1 : 2], at[by_boxes ? 2 : 1], at[0]);
                    by_boxes ? pool_box(b, m) : pool_block(b, m);
                };
            });
    }
    void pool_block(const Block &b, const Workspace &m) const {
        const char *const from = combine_rows(b, m);
        if (from == m.staged)
            fill_margins(b, b.outputs_h, m);
        pool_along_w(b, 0, b.outputs_h, from, m);
    }
    // Combines the rows that each row of outputs of a block reads along D and H. Returns the first
    // combined row: in the workspace, or in the input if there is nothing to combine.
    const char *combine_rows(const Block &b, const Workspace &m) const {
        const int64_t spacing = windows.spacing;
        const int64_t inside = b.columns * channels;
        const int64_t before = (b.low - b.first) * channels;
        const int64_t vectors = (inside + vector - 1) & -vector;
        const int64_t from = spacing == 1 ? b.low : parts_of(b.low, spacing);
        const Span depth = windows.at(0, b.od);
        if (fetches_block)
            read_new_rows(windows, element, input, b.plane, b.od, b.oh, b.outputs_h,
                          from * channels, parts_of(b.columns, spacing) * channels);
        for (int64_t r = 0, repeated; r < b.outputs_h; r += repeated) {
            char *const into = m.staged + r * pitch * value;
            const int64_t row = b.oh + r;
            repeated = depth.count == 0          ? b.outputs_h - r
                       : repeating.contains(row) ? std::min(b.outputs_h - r, repeating.end - row)
                                                 : 1;
            const int64_t found =
                find_rows(op, p, input, b.plane, depth, windows.at(1, row), from, m.rows);
            if (found == 0) {
                op.fill(into, repeated * pitch, 0, 1);
                continue;
            }
            const char *const latest = m.rows[found - 1].from;
            if (spacing > 1) {
                const int64_t count = parts_of(b.low + b.columns, spacing) - from;
                op.combine(false, m.rows, found, count, m.scratch);
                (value == 4 ? put_spaced<uint32_t>
                            : put_spaced<uint64_t>)(m.scratch, count, spacing,
                                                    from * spacing - b.first, into, pitch);
                continue;
            }
            // A row that needs no padding and no combining is pooled where it lies in the input.
            if (op.is_plain && found == 1 && b.outputs_h == 1 &&
                inside == w.span(b.outputs_w) * channels && !widens_w)
                return latest;
            const char *const last_row = latest + (repeated - 1) * h.stride * row_bytes;
            const int64_t length = last_row + vectors * element <= end_of_input ? vectors : inside;
            combine_repeated(found, length, repeated, h.stride * row_bytes, into + before * value,
                             m);
        }
        return m.staged;
    }
    // Combines `found` rows for a row of outputs and, `step` bytes further on each time, for those
    // that follow, `repeated` rows in all.
    void combine_repeated(int64_t found, int64_t length, int64_t repeated, int64_t step, char *into,
                          const Workspace &m) const {
        if (!fetches_ahead)
            return op.combine(false, m.rows, found, length, into, {repeated, step, pitch});
        for (int64_t t = 0; t < repeated; ++t, into += pitch * value) {
            prefetch_reads(m.rows[found - 1].from + 2 * step, step);
            op.combine(false, m.rows, found, length, into);
            for (int64_t k = 0; k < found; ++k)
                m.rows[k].from += step;
        }
    }
    void pool_box(const Block &b, const Workspace &m) const {
        const int64_t height = h.span(b.outputs_h);
        const int64_t length = b.columns * channels;
        const int64_t step = h.stride * length * value;
        pool_along_d(b, height, length, m);
        // Whether rows of the box have no margins, and are pooled along W where they are.
        const bool is_in_place = h.window == 1 && h.stride == 1 && length == pitch && !widens_w;
        const int64_t parts = widens_h ? widen_windows(m.box, m.sums_h, length, height * length, h,
                                                       op.units[1], m.parts_of_h)
                                       : find_taps(m.box, length, h, op.units[1], m.parts_of_h);
        for (int64_t r = 0, rows; r < b.outputs_h; r += rows) {
            rows = std::min(group, b.outputs_h - r);
            if (is_in_place) {
                pool_along_w(b, r, rows, m.box + r * step, m);
                continue;
            }
            for (int64_t k = 0; k < parts; ++k)
                m.shifted[k] = {m.parts_of_h[k].from + r * step, m.parts_of_h[k].number};
            op.combine(true, m.shifted, parts, length,
                       m.staged + (b.low - b.first) * channels * value, {rows, step, pitch});
            fill_margins(b, rows, m);
            pool_along_w(b, r, rows, m.staged, m);
        }
    }
    // Combines what a box reads along D into `height` rows of `length` values. Rows outside the
    // input get the operation's identity.
    void pool_along_d(const Block &b, int64_t height, int64_t length, const Workspace &m) const {
        const Span depth = windows.at(0, b.od);
        const int64_t top = h.first(b.oh);
        const int64_t inside = depth.count > 0 ? height : 0;
        const int64_t y = std::clamp<int64_t>(-top, 0, inside);
        const int64_t rows = std::clamp<int64_t>(h.size - top, y, inside) - y;
        char *const to = m.box + y * length * value;
        op.fill(m.box, y * length, 0, 1);
        op.fill(to + rows * length * value, (height - y - rows) * length, 0, 1);
        if (rows == 0)
            return;
        // Rows are read under a mask one by one, unless they follow each other.
        const bool are_one = length == p.row();
        const int64_t at_once = are_one || windows.kept == nullptr ? rows : 1;
        for (int64_t r = 0; r < rows; r += at_once) {
            const int64_t found =
                find_rows(op, p, input, b.plane, depth, {top + y + r, 1, 0}, b.low, m.rows);
            char *const into = to + r * length * value;
            if (windows.kept != nullptr && found == 1 && op.is_plain) {
                windows.kept->read(m.rows->from, at_once * length, into);
                continue;
            }
            read_rows(windows.kept, m.rows, found, at_once * length, m.kept);
            if (are_one)
                op.combine(false, m.rows, found, at_once * length, into);
            else
                op.combine(false, m.rows, found, length, into, {at_once, row_bytes, length});
        }
    }
};

}  // namespace

void pool_rows(const RowOperations &op, const Finish &finish, const char *input, char *output,
               const Windows &windows, bool by_boxes) {
    const BlockPlan plan = RowPooling::plan_of(op, windows, by_boxes);
    RowPooling{{op, finish, input, output, windows, plan}, by_boxes}.pool();
}

}  // namespace dmlpool
