// Boxes of the input, each pooled along one axis after the other, so that what neighbouring windows
// share is combined once.
//
//     box of the input          along D               along H               along W
//      /| a b c | /| g h i |
//     / | d e f |/ | j k l | -> | A B C |           ->  | AD BE CF |     ->  outputs
//                               | D E F |                                    (see blocks.h)

#include <algorithm>

#include "blocks.h"
#include "kept.h"
#include "parallel.h"

namespace dmlpool {
namespace {

// A box has at least BOX_OUTPUTS_W / channels outputs along W, and BOX_OUTPUTS_H of one channel.
constexpr int64_t BOX_OUTPUTS_W = 2048;
constexpr int64_t BOX_OUTPUTS_H = 64;

struct BoxPooling : BlockPooling {
    const bool doubles_h = is_wide(op.is_idempotent, channels, h);
    // The rows that are combined along H before they are pooled along W.
    const int64_t group =
        std::min(plan.outputs_h, rows_at_once(w, plan.outputs_w, channels, value));

    static BlockPlan plan_of(const Problem &p) {
        return {block_outputs(p.h(), p.channels > 1 ? 1 : BOX_OUTPUTS_H),
                block_outputs(p.w(), std::max<int64_t>(1, BOX_OUTPUTS_W / p.channels))};
    }
    void pool() const {
        const int64_t positions = h.span(plan.outputs_h) * std::min(w.size, w.span(plan.outputs_w));
        const int64_t box_size = positions * channels;
        const double cost = (4. + double(d.window)) * double(box_size);
        // Outputs along D are an inner loop of tiles along H, as boxes share input along D.
        parallel_loops<4>({tiles_w, d.outputs, tiles_h, p.planes}, cost, [&] {
            return [this, m = workspace(group, box_size)](const Digits<4> &digits) {
                pool_box(block_at(digits[3], digits[1], digits[2], digits[0]), m);
            };
        });
    }
    void pool_box(const Block &b, const Workspace &m) const {
        const int64_t height = h.span(b.outputs_h);
        const int64_t length = b.columns * channels;
        const int64_t step = h.stride * length * value;
        pool_along_d(b, height, length, m);
        // Whether rows of the box have no margins, and are pooled along W where they are.
        const bool is_in_place = h.window == 1 && h.stride == 1 && length == pitch && !doubles_w;
        const int64_t parts = doubles_h ? double_windows(m.box, m.sums_h, length, height * length,
                                                         h, op.units[1], m.parts_of_h)
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

void pool_boxes(const RowOperations &op, const Finish &finish, const char *input, char *output,
                const Windows &windows) {
    const BlockPlan plan = BoxPooling::plan_of(windows.p);
    BoxPooling{{op, finish, input, output, windows, plan}}.pool();
}

}  // namespace dmlpool
