// Boxes of the input, each pooled along one axis after the other, so that what neighbouring windows
// share is combined once.
//
//     box of the input          along D               along H               along W
//      /| a b c | /| g h i |
//     / | d e f |/ | j k l | -> | A B C |           ->  | AD BE CF |     ->  outputs
//                               | D E F |               (see rows.cpp)       (see blocks.h)

#include <algorithm>

#include "blocks.h"
#include "parallel.h"

namespace dmlpool {
namespace {

// A box has at least BOX_OUTPUTS_W / channels outputs along W, and BOX_OUTPUTS_H of one channel.
constexpr int64_t BOX_OUTPUTS_W = 2048;
constexpr int64_t BOX_OUTPUTS_H = 64;
// Channels are halved while a box of them does not fit into half of a second-level cache, down to
// BOX_CHANNELS. A call of a single large plane then has boxes for several threads.
constexpr int64_t BOX_BYTES = 1 << 19;
constexpr int64_t BOX_CHANNELS = 64;

struct BoxPooling : BlockPooling {
    const bool doubles_h = is_wide(op.is_idempotent, p.channels, h);
    // The rows that are combined along H before they are pooled along W.
    const int64_t group =
        std::min(plan.outputs_h, rows_at_once(w, plan.outputs_w, channels, value));

    static BlockPlan plan_of(const RowOperations &op, const Problem &p) {
        const Axis &h = p.h();
        const Axis &w = p.w();
        BlockPlan plan;
        plan.outputs_w = block_outputs(w, std::max<int64_t>(1, BOX_OUTPUTS_W / p.channels));
        plan.outputs_h = block_outputs(h, p.channels > 1 ? 1 : BOX_OUTPUTS_H);
        const int64_t positions = h.span(plan.outputs_h) * std::min(w.size, w.span(plan.outputs_w));
        plan.channels = p.channels;
        while (plan.channels % 2 == 0 && plan.channels >= 2 * BOX_CHANNELS &&
               plan.channels * positions * op.value_size > BOX_BYTES)
            plan.channels /= 2;
        return plan;
    }
    void pool() const {
        const int64_t positions = h.span(plan.outputs_h) * std::min(w.size, w.span(plan.outputs_w));
        const int64_t box_size = positions * channels;
        const int64_t channel_parts = p.channels / channels;
        const double cost = (4. + double(d.window)) * double(box_size);
        parallel(
            p.planes * d.outputs * tiles_h * tiles_w * channel_parts, cost,
            [=](int64_t begin, int64_t end) {
                const Workspace m = workspace(group, box_size);
                // Outputs along D come before tiles along H, as boxes share input along D.
                Digits<5> digits(begin, {channel_parts, tiles_w, d.outputs, tiles_h, p.planes});
                for (int64_t number = begin; number < end; ++number, ++digits)
                    pool_box(block_at(digits[4], digits[0], digits[2], digits[3], digits[1]), m);
            });
    }
    void pool_box(const Block &b, const Workspace &m) const {
        const int64_t height = h.span(b.outputs_h);
        const int64_t length = b.columns * channels;
        const int64_t step = h.stride * length * value;
        pool_along_d(b, height, length, m);
        const int64_t parts = doubles_h ? double_windows(m.box, m.sums, length, height * length, h,
                                                         op.units[1], m.parts_of_h)
                                        : find_taps(m.box, length, h, op.units[1], m.parts_of_h);
        for (int64_t r = 0, rows; r < b.outputs_h; r += rows) {
            rows = std::min(group, b.outputs_h - r);
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
        for (int64_t r = 0; r < (has_all_channels ? 1 : rows); ++r) {
            const int64_t found = find_rows(op, p, input + b.channel * element, b.plane, depth,
                                            {top + y + r, 1, 0}, b.low, m.rows);
            if (length == p.row())
                op.combine(false, m.rows, found, rows * length, to);
            else if (has_all_channels)
                op.combine(false, m.rows, found, length, to, {rows, row_bytes, length});
            else
                op.combine(false, m.rows, found, channels, to + r * length * value,
                           {b.columns, p.channels * element, channels});
        }
    }
};

}  // namespace

void pool_boxes(const RowOperations &op, const Finish &finish, const char *input, char *output,
                const Windows &windows) {
    const BlockPlan plan = BoxPooling::plan_of(op, windows.p);
    BoxPooling{{op, finish, input, output, windows, plan}}.pool();
}

}  // namespace dmlpool
