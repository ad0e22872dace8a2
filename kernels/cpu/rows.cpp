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

#include "blocks.h"
#include "kept.h"
#include "parallel.h"

namespace dmlpool {
namespace {

// The bytes of the input that are read in order before they are combined: few, so that the
// processor does both at the same time.
constexpr int64_t READ_BYTES = 8192;
// Shorter rows follow each other so closely that the processor reads them ahead.
constexpr int64_t READ_ROW = 384;
// The most rows of which a second-level cache holds what a tile reads.
constexpr int64_t READ_ROWS = 16;

struct RowPooling : BlockPooling {
    const bool reads_ahead = row_bytes >= READ_ROW && most_rows <= READ_ROWS && reads_first();
    // The rows of outputs of a block that are combined together at most.
    const int64_t most_repeated = windows.spacing > 1 ? 1
                                  : reads_ahead       ? READ_BYTES / (h.stride * row_bytes) + 1
                                                      : outputs_h;
    // The outputs along H whose windows lie inside the input. What they read is found once, as each
    // reads as many rows as the one before, a stride below.
    const Range repeating = h.whole();

    void pool() const {
        const double reads = double(most_rows) * double(w.span(outputs_w));
        const double cost = double(outputs_h) *
                            (ROW_COST + double(channels) * (reads + double(outputs_w * w.window)));
        // In the order of memory.
        parallel_loops(
            {parts_of(w.outputs, outputs_w), parts_of(h.outputs, outputs_h), d.outputs, p.planes},
            cost, [&] {
                return [this, m = workspace()](const auto &at) mutable {
                    const Block b = block_at(at[3], at[2], at[1], at[0]);
                    by_boxes ? pool_box(b, m) : pool_block(b, m);
                };
            });
    }
    // Combines the rows that each row of outputs of a block reads along D and H, and then along W.
    void pool_block(const Block &b, Workspace &m) const {
        const int64_t spacing = windows.spacing;
        const int64_t inside = b.columns * channels;
        const int64_t vectors = (inside + vector - 1) & -vector;
        const int64_t from = parts_of(b.low, spacing);
        const int64_t columns = parts_of(b.low + b.columns, spacing) - from;
        const int64_t step = h.stride * row_bytes;
        const Span depth = windows.at(0, b.od);
        for (int64_t r = 0, repeated; r < b.outputs_h; r += repeated) {
            char *const into = m.staged + r * pitch * value;
            const int64_t row = b.oh + r;
            repeated = depth.count == 0 ? b.outputs_h - r
                       : repeating.contains(row)
                           ? min({most_repeated, b.outputs_h - r, repeating.end - row})
                           : 1;
            if (reads_ahead)
                read_new_rows(b.plane, b.od, row, repeated, from * channels, columns * channels);
            const int64_t found =
                find_rows(b.plane, depth, windows.at(1, row), from, m.rows.data());
            if (found == 0) {
                op.fill(into, repeated * pitch);
                continue;
            }
            if (spacing > 1) {
                op.combine(false, m.rows.data(), found, columns, m.scratch);
                (value == 4 ? put_spaced<uint32_t>
                            : put_spaced<uint64_t>)(m.scratch, columns, spacing,
                                                    from * spacing - b.low + b.before, into, pitch);
                continue;
            }
            const char *const latest = m.rows[found - 1].from;
            // A row that needs no padding and no combining is pooled where it lies in the input.
            if (op.is_plain && found == 1 && b.outputs_h == 1 &&
                inside == w.span(b.outputs_w) * channels && !widens_w)
                return pool_along_w(b, 0, 1, const_cast<char *>(latest), m);
            const char *const end = latest + (repeated - 1) * step + vectors * element;
            op.combine(false, m.rows.data(), found,
                       end <= input + p.input_bytes(element) ? vectors : inside,
                       into + b.before * value, {repeated, step, pitch});
        }
        fill_margins(b, b.outputs_h, m);
        pool_along_w(b, 0, b.outputs_h, m.staged, m);
    }
    void pool_box(const Block &b, Workspace &m) const {
        const int64_t height = h.span(b.outputs_h);
        const int64_t length = b.columns * channels;
        const int64_t step = h.stride * length * value;
        pool_along_d(b, height, length, m);
        const int64_t parts = list_parts(widens_h, m.box, m.sums_h, length, height * length, h,
                                         op.units[1], m.parts_of_h);
        for (int64_t r = 0, rows; r < b.outputs_h; r += rows) {
            rows = min(group, b.outputs_h - r);
            op.combine(true, m.parts_of_h.data(), parts, length, m.staged + b.before * value,
                       {rows, step, pitch});
            fill_margins(b, rows, m);
            pool_along_w(b, r, rows, m.staged, m);
            for (int64_t k = 0; k < parts; ++k)
                m.parts_of_h[k].from += rows * step;
        }
    }
    // Combines what a box reads along D into `height` rows of `length` values. Rows outside the
    // input get the operation's identity.
    void pool_along_d(const Block &b, int64_t height, int64_t length, Workspace &m) const {
        const Span depth = windows.at(0, b.od);
        const int64_t top = h.first(b.oh);
        const int64_t inside = depth.count > 0 ? height : 0;
        const int64_t y = clamp(-top, 0, inside);
        const int64_t rows = clamp(h.size - top, y, inside) - y;
        char *to = m.box + y * length * value;
        op.fill(m.box, y * length);
        op.fill(to + rows * length * value, (height - y - rows) * length);
        // Rows that follow each other are one, and others are read under a mask one by one.
        const int64_t joined = length == p.row() ? max(rows, 1) : 1;
        const int64_t at_once = !windows.kept ? rows : joined;
        for (int64_t r = 0; r < rows; r += at_once, to += at_once * length * value) {
            const int64_t found =
                find_rows(b.plane, depth, {top + y + r, 1, 0}, b.low, m.rows.data());
            if (windows.kept && found == 1 && op.is_plain) {
                windows.kept->read(m.rows[0].from, joined * length, to);
                continue;
            }
            read_rows(windows.kept, m.rows.data(), found, joined * length, m.kept);
            op.combine(false, m.rows.data(), found, joined * length, to,
                       {at_once / joined, row_bytes, length});
        }
    }
};

}  // namespace

void pool_rows(const Pooling<RowOperations> &pooling, bool by_boxes) {
    RowPooling{{pooling, by_boxes}}.pool();
}

}  // namespace dmlpool
