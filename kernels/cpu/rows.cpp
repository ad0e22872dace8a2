// Rows of outputs, in blocks: the rows that a row of outputs reads are combined into one row of
// workspace, and then the taps of that row into outputs.
//
//     rows of the input      workspace             outputs
//     | a b c d e f |
//     | g h i j k l |  --->  | A B C D E F |  ---> | ABC BCD CDE DEF |
//     | m n o p q r |        (along D and H)       (along W)
//
// A box is a block of several rows of outputs, whose input is pooled along D, then along H, then
// along W, so that what its rows share is combined once.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "choose.h"
#include "operations.h"
#include "parallel.h"
#include "strides.h"

namespace dmlpool {
namespace {

// Outputs are made in blocks: short rows together, as every loop has a price; long rows in tiles
// that stay in the first-level cache. For each row of outputs the rows that it reads are combined
// into one of scratch, and then that row's taps into outputs. A box of the input is first pooled
// along D and along H: what its rows share is combined once.
struct RowPooling {
    const RowOperations &op;
    const Finish &finish;
    const char *const input;
    char *const output;
    const Windows &windows;
    const bool are_boxes;

    const Problem &p = windows.p;
    const int64_t apart = windows.apart, element = op.element_size, value = op.value_size,
                  row_bytes = p.row() * element;
    const char *const end_of_input = input + p.planes * p.plane() * element;
    const Axis d = p.d(), h = p.h(),
               w = {(p.w().size - 1) * apart + 1,
                    p.w().outputs,
                    p.w().window,
                    p.w().stride,
                    p.w().padding,
                    p.w().dilation};
    // Short tiles of long rows, as what they read and write takes turns: 1-D 3/3 and 4/4 take .65
    // to .75 of the time.
    const int64_t elements = (p.channels == 1 ? 4096 : value > 4 ? 16384 : 32768) / value;
    // By how many strides the last tap of a window follows the first, and elements beside: divided
    // once, as tiles are short.
    const int64_t before_last = (w.extent() - 1) / w.stride, rest = (w.extent() - 1) % w.stride,
                  phase_step = std::gcd(w.stride, w.dilation);
    // Taking each fifth element and so on has no vectors: 5/5 to 12/12 of 64x4096 take .22 to .4 of
    // the time with AVX2.
    const bool is_wide_w = is_wide(op.takes_twice, p.channels, w),
               is_reduced = p.channels == 1 && w.stride > 4 && !is_wide_w;
    const int64_t least_w =
        std::max<int64_t>(1, are_boxes ? 2048 / p.channels : elements / p.channels / w.stride);
    const int64_t tile_w =
        are_boxes || is_wide_w ? tile_of(w, least_w) : std::min(w.outputs, least_w);
    const int64_t box_h = tile_of(h, p.channels > 1 ? 1 : 64),
                  box_positions = are_boxes ? h.span(box_h) * std::min(w.size, w.span(tile_w)) : 0;
    // A box has so many bytes, and the channels that they hold: 31/1 over 512 channels takes a
    // fourth of the time. Where boxes are few they have fewer channels, so that there are enough
    // for all threads: with two of them 13/1 on 20x20 takes half the time.
    const int64_t boxes = p.planes * d.outputs * parts_of(h.outputs, box_h) *
                          parts_of(w.outputs, tile_w),
                  box_bytes = boxes < 16 ? 1 << 18 : 1 << 23;
    const int64_t fitting =
        are_boxes ? std::max<int64_t>(64, box_bytes / value / box_positions & -64) : p.channels;
    const int64_t channels = std::min(p.channels, fitting), box_size = box_positions * channels;
    const int64_t made_row = parts_of(w.span(tile_w), w.stride),
                  pitch = made_row * w.stride * channels;
    const int64_t together = are_boxes ? 4096 : 4096 / std::min<int64_t>(4, value);
    const DistinctRows distinct{windows, !are_boxes && !op.takes_twice && finish.is_uniform,
                                std::max<int64_t>(1, together / pitch)};
    const bool are_shared = distinct.are_shared();
    const int64_t group = std::clamp<int64_t>(together / pitch, 1, distinct.count);
    const int64_t tile_h = are_boxes ? box_h : group;
    const int64_t most =
        std::max<int64_t>(1, windows.most(0) * windows.most(1));  // rows that a window reads
    // Scratch is written in whole vectors: of elements, but of the wider ones that sums are.
    const int64_t vector = 64 / (op.takes_twice ? element : value);
    // Windows along H that lie inside the input read as many rows: rows of outputs that are found
    // once.
    const bool may_repeat = apart == 1 && !are_shared && tile_w == w.outputs && h.window > 0 &&
                            h.size + h.padding >= h.extent();
    const int64_t inner_begin = parts_of(h.padding, h.stride);
    const int64_t inner_end = std::min(h.outputs, (h.size + h.padding - h.extent()) / h.stride + 1);

    // Outputs of a box along an axis: so many that boxes share little of what they read.
    static int64_t tile_of(const Axis &axis, int64_t least) {
        const int64_t some = std::max(least, 2 * axis.extent() / axis.stride);
        return parts_of(axis.outputs, std::max<int64_t>(1, axis.outputs / some));
    }

    struct Block {
        int64_t plane, channel, od, oh, ow, outputs_h, outputs_w;
        // Along W they read from `first` on, of which `columns` from position `low` on lie inside
        // the input.
        int64_t first, low, columns;
        int64_t new_channels;   // the last so many of a block are in no block before it
        const int64_t *starts;  // where rows are shared, those that the block makes, and the next
    };
    struct Memory {
        std::vector<int64_t> starts;
        std::vector<Row> all_rows;
        std::vector<char> workspace;
        Row *rows, *parts, *of_h, *moved;
        char *staged, *made, *scratch, *sums_of_rows, *box, *sums;
    };

    void pool() const {
        const int64_t tiles_h = parts_of(distinct.count, tile_h),
                      tiles_w = parts_of(w.outputs, tile_w);
        const double of_rows = double(most) * double(tile_w * w.stride) + double(tile_w * w.window);
        const double cost = are_boxes ? (4. + double(d.window)) * double(box_size)
                                      : double(group) * (ROW_COST + double(channels) * of_rows);
        const int64_t blocks = parts_of(p.channels, channels);
        parallel(p.planes * d.outputs * tiles_h * tiles_w * blocks, cost,
                 [=](int64_t begin, int64_t end) {
                     Memory memory = this->memory();
                     // Boxes that share input along D follow each other; rows do as they lie: 2/2
                     // of volumes takes .7 of the time.
                     Digits<5> digits(begin, {blocks, tiles_w, are_boxes ? d.outputs : tiles_h,
                                              are_boxes ? tiles_h : d.outputs, p.planes});
                     for (int64_t number = begin; number < end; ++number, ++digits) {
                         Block b;
                         b.plane = digits[4],
                         b.channel = std::min(digits[0] * channels, p.channels - channels);
                         b.new_channels = std::min(channels, p.channels - digits[0] * channels);
                         b.od = digits[are_boxes ? 2 : 3],
                         b.oh = digits[are_boxes ? 3 : 2] * tile_h, b.ow = digits[1] * tile_w;
                         b.outputs_h = std::min(tile_h, distinct.count - b.oh);
                         b.starts = are_shared ? distinct.of_tile(windows, b.oh, tile_h,
                                                                  b.outputs_h, memory.starts)
                                               : nullptr;
                         b.outputs_w = std::min(tile_w, w.outputs - b.ow), b.first = w.first(b.ow);
                         const int64_t last = b.first + w.span(b.outputs_w);
                         b.low = std::clamp<int64_t>(0, b.first, last),
                         b.columns = std::clamp<int64_t>(w.size, b.low, last) - b.low;
                         pool_block(b, memory);
                     }
                 });
    }
    Memory memory() const {
        const int64_t size = group * pitch, staged = size + vector,
                      sums_of_rows = is_wide_w && !op.takes_twice ? size : 0;
        const int64_t scratch = (channels == 1 && w.stride > 1) || apart > 1 ? size : 0;
        const int64_t sums = op.takes_twice ? 0 : box_size,
                      taps = std::max(w.window, are_boxes ? h.window : 0);
        constexpr int64_t ALIGNMENT = 64;  // 3/1 takes .92 of what 16 take
        Memory m;
        m.all_rows.resize(most + 3 * taps);
        m.rows = m.all_rows.data(), m.parts = m.rows + most, m.of_h = m.parts + taps,
        m.moved = m.of_h + taps;
        m.workspace.resize((2 * staged + scratch + sums_of_rows + box_size + sums) * value +
                           ALIGNMENT);
        m.staged = m.workspace.data() +
                   (-reinterpret_cast<uintptr_t>(m.workspace.data()) & (ALIGNMENT - 1));
        m.made = m.staged + staged * value, m.scratch = m.made + staged * value;
        m.sums_of_rows = m.scratch + scratch * value, m.box = m.sums_of_rows + sums_of_rows * value;
        m.sums = m.box + box_size * value;
        return m;
    }

    // The taps of the first window along an axis, whose data begin with its first one, n values of
    // each position.
    int64_t find_taps(const char *data, int64_t n, const Axis &axis, int64_t unit,
                      Row *taps) const {
        for (int64_t tap = 0; tap < axis.window; ++tap)
            taps[tap] = {data + tap * axis.dilation * n * value, tap * unit};
        return axis.window;
    }
    // The parts that wide windows are combined from, those of the first one, and how many there
    // are: some of a power of two taps. The data, of `length` values, are used up, and windows of
    // no power of two taps sum up beside them.
    int64_t double_windows(char *data, char *sums, int64_t n, int64_t length, const Axis &axis,
                           int64_t unit, Row *parts) const {
        const int64_t k = axis.window, step = axis.dilation * n;
        const auto part = [=](int64_t tap) { return Row{data + tap * step * value, tap * unit}; };
        int64_t power = 1, taken = 0, count = 0;
        for (const int64_t windows = length - (k - 1) * step; 2 * power <= k; power *= 2) {
            if (!op.takes_twice && (k & power)) {
                Row row = part(taken);
                if (taken == 0)
                    op.combine(true, &row, 1, windows, sums);
                else
                    op.add(row, windows, sums);
                taken += power;
            }
            op.add(part(power), length - power * step, data);
        }
        if (taken > 0)
            parts[count++] = {sums, 0};
        parts[count++] = part(taken);
        if (op.takes_twice && power < k)
            parts[count++] = part(k - power);
        return count;
    }

    // What each row of outputs reads, combined; where the first such row begins.
    const char *combine_rows(const Block &b, const Memory &m) const {
        const int64_t inside = b.columns * channels, before = (b.low - b.first) * channels,
                      vectors = (inside + vector - 1) & -vector;
        const int64_t from = apart == 1 ? b.low : parts_of(b.low, apart);
        const int64_t count = apart == 1 ? b.columns : parts_of(b.low + b.columns, apart) - from;
        const Span depth = windows.at(0, b.od);
        for (int64_t r = 0, repeated; r < b.outputs_h; r += repeated) {
            char *const into = m.staged + r * pitch * value;
            const int64_t row = b.starts ? b.starts[r] : b.oh + r;
            repeated = may_repeat && row >= inner_begin && row < inner_end
                           ? std::min(b.outputs_h - r, inner_end - row)
                           : 1;
            const int64_t found =
                find_rows(op, p, input, b.plane, depth, windows.at(1, row), from, m.rows);
            if (found == 0) {
                op.fill(into, repeated * pitch, 0, 1);
                continue;
            }
            if (tile_w < w.outputs && found > 1)
                read_ahead(m.rows, found, inside);
            const char *const latest = m.rows[found - 1].from;
            if (apart > 1) {
                op.combine(false, m.rows, found, count, m.scratch);
                (value == 4 ? put_apart<uint32_t> : put_apart<uint64_t>)(m.scratch, count, apart,
                                                                         from * apart - b.first,
                                                                         into, pitch);
                continue;
            }
            if (op.is_plain && found == 1 && b.outputs_h == 1 &&
                inside == w.span(b.outputs_w) * channels && !is_wide_w)
                return latest;
            const char *const last_row = latest + (repeated - 1) * h.stride * row_bytes;
            op.combine(false, m.rows, found,
                       last_row + vectors * element <= end_of_input ? vectors : inside,
                       into + before * value,
                       {repeated, h.stride * row_bytes, pitch,
                        tile_w == w.outputs && p.is_large(element)});
        }
        return m.staged;
    }
    // What the next tile of a row reads of the last rows.
    void read_ahead(const Row *rows, int64_t found, int64_t inside) const {
        for (int64_t t = std::max<int64_t>(0, found - h.stride); t < found; ++t)
            prefetch(rows[t].from + inside * element, inside * element);
    }
    // What follows a row goes on before the next one.
    void fill_margins(const Block &b, int64_t rows, const Memory &m) const {
        const int64_t inside = b.columns * channels, before = (b.low - b.first) * channels;
        if (inside == pitch || apart > 1)
            return;
        op.fill(m.staged, before, 0, 1);
        op.fill(m.staged + (before + inside) * value, pitch - inside, pitch, rows - 1);
        op.fill(m.staged + ((rows - 1) * pitch + before + inside) * value, pitch - before - inside,
                0, 1);
    }

    // What the rows of a box read along D, combined: so many rows of `length` values.
    void pool_along_d(const Block &b, int64_t height, int64_t length, const Memory &m) const {
        const Span depth = windows.at(0, b.od);
        const int64_t top = h.first(b.oh), inside = depth.count > 0 ? height : 0;
        const int64_t y = std::clamp<int64_t>(-top, 0, inside),
                      rows = std::clamp<int64_t>(h.size - top, y, inside) - y;
        char *const to = m.box + y * length * value;
        op.fill(m.box, y * length, 0, 1),
            op.fill(to + rows * length * value, (height - y - rows) * length, 0, 1);
        if (rows == 0)
            return;
        for (int64_t r = 0; r < (channels == p.channels ? 1 : rows); ++r) {
            const int64_t found = find_rows(op, p, input + b.channel * element, b.plane, depth,
                                            {top + y + r, 1, 0}, b.low, m.rows);
            if (length == p.row())
                op.combine(false, m.rows, found, rows * length, to);
            else if (channels == p.channels)
                op.combine(false, m.rows, found, length, to, {rows, row_bytes, length});
            else
                op.combine(false, m.rows, found, channels, to + r * length * value,
                           {b.columns, p.channels * element, channels});
        }
    }

    void pool_block(const Block &b, const Memory &m) const {
        const int64_t height = h.span(b.outputs_h), length = b.columns * channels,
                      step = h.stride * length * value;
        if (are_boxes)
            pool_along_d(b, height, length, m);
        const int64_t parts =
            !are_boxes ? 0
            : is_wide(op.takes_twice, channels, h)
                ? double_windows(m.box, m.sums, length, height * length, h, op.units[1], m.of_h)
                : find_taps(m.box, length, h, op.units[1], m.of_h);
        for (int64_t r = 0, rows; r < b.outputs_h; r += rows) {
            rows = std::min(group, b.outputs_h - r);
            const char *from = m.staged;
            if (!are_boxes)
                from = combine_rows(b, m);
            else {
                for (int64_t k = 0; k < parts; ++k)
                    m.moved[k] = {m.of_h[k].from + r * step, m.of_h[k].number};
                op.combine(true, m.moved, parts, length,
                           m.staged + (b.low - b.first) * channels * value, {rows, step, pitch});
            }
            if (from == m.staged)
                fill_margins(b, rows, m);
            pool_along_w(b, r, rows, from, m);
        }
    }

    // So many rows of outputs: where their values and their results go.
    struct Target {
        int64_t row;  // the first one
        int64_t rows;
        char *out;  // its results
        int64_t out_pitch;
        char *to;  // its values
        int64_t to_pitch;
        bool is_stored;  // values are results, and lie where those go
        bool is_whole;   // rows of values lie as rows of results do
        int64_t all;     // values of all rows, as if they were one
        int64_t runs;    // rows that are computed for themselves, of so many values
        int64_t made;
    };
    Target target_of(const Block &b, int64_t r, int64_t rows, const Memory &m) const {
        Target t;
        t.row = b.starts ? b.starts[0] : b.oh + r;
        t.rows = rows;
        t.out_pitch = p.output_row() * finish.result_size;
        const int64_t output_row = (b.plane * d.outputs + b.od) * h.outputs + t.row;
        t.out = output + output_row * t.out_pitch +
                (b.ow * p.channels + b.channel) * finish.result_size;
        const bool has_all = channels == p.channels;
        t.is_whole = has_all && b.outputs_w == w.outputs && made_row == w.outputs;
        t.is_stored = finish.is_direct && !are_shared && has_all;
        t.to = t.is_stored ? t.out : m.made;
        t.to_pitch = t.is_stored ? p.output_row() : made_row * channels;
        // Rows that lie one after the other are one.
        t.all = (rows - 1) * made_row + b.outputs_w;
        const bool are_one = !t.is_stored || t.is_whole;
        t.runs = are_one ? 1 : rows;
        t.made = are_one ? t.all : b.outputs_w;
        return t;
    }
    // The outputs of so many rows of scratch, which are those of a block from row r on.
    void pool_along_w(const Block &b, int64_t r, int64_t rows, const char *from,
                      const Memory &m) const {
        const Target t = target_of(b, r, rows, m);
        const bool is_short =
            w.window > 1 && (w.window == w.stride ? w.window <= 4 : w.window == 3 && w.stride == 2);
        if (channels == 1 && is_short && w.dilation == 1)
            for (int64_t k = 0; k < t.runs; ++k)
                op.combine_short(from + k * pitch * value, w.window, w.stride, t.made,
                                 t.to + k * t.to_pitch * value);
        else if (is_reduced) {
            const Run whole = {0, w.window, 0, t.made, w.stride};
            for (int64_t k = 0; k < t.runs; ++k)
                op.reduce_windows(true, {from + k * pitch * value, 0}, 0, &whole, t.made,
                                  w.dilation, t.to + k * t.to_pitch * value,
                                  from == m.staged ? m.made : end_of_input);
        } else
            combine_taps(b, from, t, m);
        if (!t.is_stored)
            finish_rows(b, t);
    }
    // The taps of each window, or the parts of a wide one.
    void combine_taps(const Block &b, const char *from, const Target &t, const Memory &m) const {
        const int64_t values = (t.rows - 1) * pitch + w.span(b.outputs_w) * channels;
        // Rows that are doubled lie in the workspace.
        const int64_t parts = is_wide_w ? double_windows(m.staged, m.sums_of_rows, channels, values,
                                                         w, op.units[2], m.parts)
                                        : find_taps(from, channels, w, op.units[2], m.parts);
        if (w.stride == 1)
            op.combine(true, m.parts, parts, t.made * channels, t.to,
                       {t.runs, pitch * value, t.to_pitch});
        else if (channels > 1)
            for (int64_t k = 0; k < t.runs; ++k) {
                for (int64_t tap = 0; tap < parts; ++tap)
                    m.moved[tap] = {m.parts[tap].from + k * pitch * value, m.parts[tap].number};
                op.combine(true, m.moved, parts, channels, t.to + k * t.to_pitch * value,
                           {t.made, w.stride * channels * value, channels});
            }
        else {
            take_strides(from, parts, t.all, m);
            op.combine(true, m.parts, parts, t.made, t.to, {t.runs, made_row * value, t.to_pitch});
        }
    }
    // Elements a stride apart become a row: the taps of a window lie in so many rows at the most.
    void take_strides(const char *from, int64_t parts, int64_t all, const Memory &m) const {
        if (is_wide_w) {
            for (int64_t k = 0; k < parts; ++k) {
                char *const each = m.scratch + k * all * value;
                take_each(value, w.stride, m.parts[k].from, all, each);
                m.parts[k].from = each;
            }
            return;
        }
        const int64_t length = all + before_last;
        for (int64_t phase = 0; phase < w.stride; phase += phase_step)
            take_each(value, w.stride, from + phase * value, phase <= rest ? length : length - 1,
                      m.scratch + phase * length * value);
        for (int64_t t = 0, phase = 0, output = 0; t < w.window; ++t) {
            m.parts[t].from = m.scratch + (phase * length + output) * value;
            for (phase += w.dilation; phase >= w.stride; phase -= w.stride)
                ++output;
        }
    }
    void finish_rows(const Block &b, const Target &t) const {
        const int64_t n = b.outputs_w * channels;
        if (t.is_whole && finish.is_uniform && !are_shared)
            return finish(b.plane, b.od, t.row, 0, t.rows * n, t.to, t.out);
        const bool has_all = channels == p.channels;
        const int64_t known = has_all ? 0 : channels - b.new_channels;
        for (int64_t k = 0; k < t.rows; ++k) {
            const int64_t oh = b.starts ? b.starts[k] : t.row + k;
            const char *const values = t.to + k * t.to_pitch * value;
            char *const results = t.out + (oh - t.row) * t.out_pitch;
            for (int64_t x = 0; x < (has_all ? 1 : b.outputs_w); ++x)
                finish(b.plane, b.od, oh, (b.ow + x) * p.channels + b.channel + known,
                       has_all ? n : b.new_channels, values + (x * channels + known) * value,
                       results + (x * p.channels + known) * finish.result_size);
            // The rows that read the same.
            for (int64_t next = oh + 1; b.starts && next < b.starts[k + 1]; ++next)
                std::memcpy(t.out + (next - t.row) * t.out_pitch, results, n * finish.result_size);
        }
    }
};

}  // namespace

void pool_rows(const RowOperations &op, const Finish &finish, const char *input, char *output,
               const Windows &windows, bool are_boxes) {
    RowPooling{op, finish, input, output, windows, are_boxes}.pool();
}

}  // namespace dmlpool
