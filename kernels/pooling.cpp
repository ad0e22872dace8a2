// Pools rows of windows on the CPU, whatever their data type and whatever is made of them.

#include "pooling.h"

namespace dmlpool {

namespace {

// Wide windows that overlap: windows of 1, 2, 4, ... taps, each from two of the one before, so that
// an axis costs log k.
bool is_wide(const RowOperations &op, int64_t lanes, const Axis &axis) {
    if (axis.window <= (lanes == 1 ? (op.takes_twice ? 4 : 5) : (op.takes_twice ? 5 : 9)))
        return false;
    int64_t steps = 1;
    while ((int64_t(1) << steps) < axis.window)
        ++steps;
    return (steps + 1) * axis.span(axis.outputs) < axis.window * axis.outputs;
}

// The rows of a plane that a row of outputs reads, from position `low` on, and how many there are.
int64_t find_rows(const WindowOperations &op, const Problem &p, const char *input, int64_t plane,
                  const Span &depth, const Span &height, int64_t low, Row *to) {
    const int64_t row_bytes = p.row() * op.element_size, step = p.h().dilation * row_bytes;
    const Row *const first = to;
    for (int64_t td = 0; td < depth.count; ++td) {
        const int64_t y =
            (plane * p.d().size + depth.begin + td * p.d().dilation) * p.h().size + height.begin;
        Row row = {input + y * row_bytes + low * p.lanes * op.element_size,
                   depth.tap * op.units[0] + td * op.steps[0] + height.tap * op.units[1]};
        for (Row *const end = to + height.count; to < end;
             row.from += step, row.number += op.steps[1])
            *to++ = row;
    }
    return to - first;
}

// A row of so many values of 4 or 8 bytes, with zeros around `count` of them that lie `apart` from
// `begin` on.
template <class Bits>
__attribute__((noinline)) void put_apart(const void *values, int64_t count, int64_t apart,
                                         int64_t begin, void *to, int64_t length) {
    const Bits *__restrict from = static_cast<const Bits *>(values);
    Bits *__restrict out = static_cast<Bits *>(to);
    if (apart != 2) {
        std::fill_n(out, length, Bits(0));
        for (int64_t i = 0; i < count; ++i)
            out[begin + i * apart] = from[i];
        return;
    }
    const int64_t end = begin + 2 * count;
    std::fill_n(out, begin, Bits(0));
    VECTORIZE
    for (int64_t i = 0; i < count; ++i)
        out[begin + 2 * i] = from[i], out[begin + 2 * i + 1] = 0;
    if (end < length)
        std::fill(out + end, out + length, Bits(0));
}

// Every stride-th of so many values.
template <int64_t fixed, class V>
void take_each(int64_t any, const V *__restrict row, int64_t count, V *__restrict out) {
    const int64_t stride = fixed ? fixed : any;
    VECTORIZE
    for (int64_t i = 0; i < count; ++i)
        out[i] = row[i * stride];
}
void take_each(int64_t size, int64_t stride, const void *row, int64_t count, void *out) {
    const auto run = [=](auto value) {
        using V = decltype(value);
        const V *const from = static_cast<const V *>(row);
        V *const to = static_cast<V *>(out);
        if (stride == 2)
            take_each<2>(stride, from, count, to);
        else if (stride == 3)
            take_each<3>(stride, from, count, to);
        else if (stride == 4)
            take_each<4>(stride, from, count, to);
        else
            take_each<0>(stride, from, count, to);
    };
    if (size == 16)
        run(__int128());
    else
        with_numbers(int(size), run);
}

// Bins, or windows of which little lies inside what is pooled: nothing may cost what they span.
bool is_huge(const Axis &axis) {
    return axis.window == 0 || std::max(axis.extent(), axis.stride) > 64 + 4 * axis.size;
}

// The rows along H that read something else than the row before. Where all rows do, `all` and
// `first` are empty; where there are many, only the row that each tile begins with is kept.
struct DistinctRows {
    static constexpr int64_t KEPT_MOST = 4096;
    int64_t count;
    std::vector<int64_t> all;  // and the end
    std::vector<int64_t> first;

    DistinctRows(const Windows &windows, bool may_share, int64_t tile)
        : count(windows.p.h().outputs) {
        const int64_t rows = count;
        if (!may_share || !windows.may_repeat(1))
            return;
        count = 0;
        for (int64_t row = 0; row < rows; ++row) {
            if (row > 0 && windows.at(1, row).reads(windows.at(1, row - 1)))
                continue;
            if (rows <= KEPT_MOST)
                all.push_back(row);
            else if (count % tile == 0)
                first.push_back(row);
            ++count;
        }
        if (count == rows) {
            all.clear();
            first.clear();
        }
        if (!all.empty())
            all.push_back(rows);
    }
    bool are_shared() const { return !all.empty() || !first.empty(); }
    // So many of a tile, which begins with the one of this number, and the one after them.
    const int64_t *of_tile(const Windows &windows, int64_t number, int64_t tile, int64_t some,
                           std::vector<int64_t> &memory) const {
        if (!all.empty())
            return all.data() + number;
        memory = {first[number / tile]};
        for (int64_t row = memory[0] + 1; int64_t(memory.size()) <= some; ++row)
            if (row >= windows.p.h().outputs || !windows.at(1, row).reads(windows.at(1, row - 1)))
                memory.push_back(row);
        return memory.data();
    }
};

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
    const int64_t elements = (p.lanes == 1 ? 4096 : value > 4 ? 16384 : 32768) / value;
    // By how many strides the last tap of a window follows the first, and elements beside: divided
    // once, as tiles are short.
    const int64_t before_last = (w.extent() - 1) / w.stride, rest = (w.extent() - 1) % w.stride,
                  phase_step = std::gcd(w.stride, w.dilation);
    // Taking each fifth element and so on has no vectors: 5/5 to 12/12 of 64x4096 take .22 to .4 of
    // the time with AVX2.
    const bool is_wide_w = is_wide(op, p.lanes, w),
               is_reduced = p.lanes == 1 && w.stride > 4 && !is_wide_w;
    const int64_t least_w =
        std::max<int64_t>(1, are_boxes ? 2048 / p.lanes : elements / p.lanes / w.stride);
    const int64_t tile_w =
        are_boxes || is_wide_w ? tile_of(w, least_w) : std::min(w.outputs, least_w);
    const int64_t box_h = tile_of(h, p.lanes > 1 ? 1 : 64),
                  box_positions = are_boxes ? h.span(box_h) * std::min(w.size, w.span(tile_w)) : 0;
    // A box has so many bytes, and the lanes that they hold: 31/1 over 512 lanes takes a fourth of
    // the time. Where boxes are few they have fewer lanes, so that there are enough for all
    // threads: with two of them 13/1 on 20x20 takes half the time.
    const int64_t boxes = p.planes * d.outputs * parts_of(h.outputs, box_h) *
                          parts_of(w.outputs, tile_w),
                  box_bytes = boxes < 16 ? 1 << 18 : 1 << 23;
    const int64_t fitting =
        are_boxes ? std::max<int64_t>(64, box_bytes / value / box_positions & -64) : p.lanes;
    const int64_t lanes = std::min(p.lanes, fitting), box_size = box_positions * lanes;
    const int64_t made_row = parts_of(w.span(tile_w), w.stride),
                  pitch = made_row * w.stride * lanes;
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
        int64_t plane, lane, od, oh, ow, outputs_h, outputs_w;
        // Along W they read from `first` on, of which `columns` from position `low` on lie inside
        // the input.
        int64_t first, low, columns;
        int64_t new_lanes;      // the last so many of a block are in no block before it
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
                                      : double(group) * (ROW_COST + double(lanes) * of_rows);
        const int64_t blocks = parts_of(p.lanes, lanes);
        parallel(p.planes * d.outputs * tiles_h * tiles_w * blocks, cost,
                 [=](int64_t begin, int64_t end) {
                     Memory memory = this->memory();
                     // Boxes that share input along D follow each other; rows do as they lie: 2/2
                     // of volumes takes .7 of the time.
                     Digits<5> digits(begin, {blocks, tiles_w, are_boxes ? d.outputs : tiles_h,
                                              are_boxes ? tiles_h : d.outputs, p.planes});
                     for (int64_t number = begin; number < end; ++number, ++digits) {
                         Block b;
                         b.plane = digits[4], b.lane = std::min(digits[0] * lanes, p.lanes - lanes);
                         b.new_lanes = std::min(lanes, p.lanes - digits[0] * lanes);
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
        const int64_t scratch = (lanes == 1 && w.stride > 1) || apart > 1 ? size : 0;
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
        const int64_t inside = b.columns * lanes, before = (b.low - b.first) * lanes,
                      vectors = (inside + vector - 1) & -vector;
        const int64_t from = apart == 1 ? b.low : parts_of(b.low, apart);
        const int64_t count = apart == 1 ? b.columns : parts_of(b.low + b.columns, apart) - from;
        const Span depth = windows.at(0, b.od);
        for (int64_t r = 0, alike; r < b.outputs_h; r += alike) {
            char *const into = m.staged + r * pitch * value;
            const int64_t row = b.starts ? b.starts[r] : b.oh + r;
            alike = may_repeat && row >= inner_begin && row < inner_end
                        ? std::min(b.outputs_h - r, inner_end - row)
                        : 1;
            const int64_t found =
                find_rows(op, p, input, b.plane, depth, windows.at(1, row), from, m.rows);
            if (found == 0) {
                op.fill(into, alike * pitch, 0, 1);
                continue;
            }
            const char *const latest = m.rows[found - 1].from, *const last_row =
                                                                   latest + (alike - 1) * h.stride *
                                                                                row_bytes;
            if (tile_w < w.outputs && found > 1)
                for (int64_t t = std::max<int64_t>(0, found - h.stride); t < found; ++t)
                    prefetch(m.rows[t].from + inside * element, inside * element);
            if (apart > 1) {
                op.combine(false, m.rows, found, count, m.scratch);
                (value == 4 ? put_apart<uint32_t> : put_apart<uint64_t>)(m.scratch, count, apart,
                                                                         from * apart - b.first,
                                                                         into, pitch);
            } else if (op.is_plain && found == 1 && b.outputs_h == 1 &&
                       inside == w.span(b.outputs_w) * lanes && !is_wide_w)
                return latest;
            else
                op.combine(false, m.rows, found,
                           last_row + vectors * element <= end_of_input ? vectors : inside,
                           into + before * value,
                           {alike, h.stride * row_bytes, pitch,
                            tile_w == w.outputs && p.is_large(element)});
        }
        return m.staged;
    }
    // What follows a row goes on before the next one.
    void fill_margins(const Block &b, int64_t rows, const Memory &m) const {
        const int64_t inside = b.columns * lanes, before = (b.low - b.first) * lanes;
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
        for (int64_t r = 0; r < (lanes == p.lanes ? 1 : rows); ++r) {
            const int64_t found = find_rows(op, p, input + b.lane * element, b.plane, depth,
                                            {top + y + r, 1, 0}, b.low, m.rows);
            if (length == p.row())
                op.combine(false, m.rows, found, rows * length, to);
            else if (lanes == p.lanes)
                op.combine(false, m.rows, found, length, to, {rows, row_bytes, length});
            else
                op.combine(false, m.rows, found, lanes, to + r * length * value,
                           {b.columns, p.lanes * element, lanes});
        }
    }

    void pool_block(const Block &b, const Memory &m) const {
        const int64_t height = h.span(b.outputs_h), length = b.columns * lanes,
                      step = h.stride * length * value;
        if (are_boxes)
            pool_along_d(b, height, length, m);
        const int64_t parts =
            !are_boxes ? 0
            : is_wide(op, lanes, h)
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
                           m.staged + (b.low - b.first) * lanes * value, {rows, step, pitch});
            }
            if (from == m.staged)
                fill_margins(b, rows, m);
            pool_along_w(b, r, rows, from, m);
        }
    }

    // The outputs of so many rows of scratch, which are those of a block from row r on.
    void pool_along_w(const Block &b, int64_t r, int64_t rows, const char *from,
                      const Memory &m) const {
        const int64_t n = b.outputs_w * lanes, row = b.starts ? b.starts[0] : b.oh + r,
                      out_pitch = p.output_row() * finish.result_size;
        const int64_t output_row = (b.plane * d.outputs + b.od) * h.outputs + row;
        char *const out =
            output + output_row * out_pitch + (b.ow * p.lanes + b.lane) * finish.result_size;
        const bool has_all = lanes == p.lanes,
                   is_whole = has_all && b.outputs_w == w.outputs && made_row == w.outputs;
        const bool is_stored = finish.is_direct && !are_shared && has_all;
        char *const to = is_stored ? out : m.made;
        const int64_t to_pitch = is_stored ? p.output_row() : made_row * lanes;
        // Rows that lie one after the other are one.
        const int64_t all = (rows - 1) * made_row + b.outputs_w;
        const bool are_one = !is_stored || is_whole;
        const int64_t runs = are_one ? 1 : rows, made = are_one ? all : b.outputs_w;
        const Run whole = {0, w.window, 0, made, w.stride};
        const bool is_short =
            w.window > 1 && (w.window == w.stride ? w.window <= 4 : w.window == 3 && w.stride == 2);
        if (lanes == 1 && is_short && w.dilation == 1)
            for (int64_t k = 0; k < runs; ++k)
                op.combine_short(from + k * pitch * value, w.window, w.stride, made,
                                 to + k * to_pitch * value);
        else if (is_reduced)
            for (int64_t k = 0; k < runs; ++k)
                op.reduce_windows(true, {from + k * pitch * value, 0}, 0, &whole, made, w.dilation,
                                  to + k * to_pitch * value,
                                  from == m.staged ? m.made : end_of_input);
        else {
            const int64_t values = (rows - 1) * pitch + w.span(b.outputs_w) * lanes;
            // Rows that are doubled lie in the workspace.
            const int64_t parts = is_wide_w ? double_windows(m.staged, m.sums_of_rows, lanes,
                                                             values, w, op.units[2], m.parts)
                                            : find_taps(from, lanes, w, op.units[2], m.parts);
            if (w.stride == 1)
                op.combine(true, m.parts, parts, made * lanes, to, {runs, pitch * value, to_pitch});
            else if (lanes > 1)
                for (int64_t k = 0; k < runs; ++k) {
                    for (int64_t t = 0; t < parts; ++t)
                        m.moved[t] = {m.parts[t].from + k * pitch * value, m.parts[t].number};
                    op.combine(true, m.moved, parts, lanes, to + k * to_pitch * value,
                               {made, w.stride * lanes * value, lanes});
                }
            else {
                // Elements a stride apart become a row: the taps of a window lie in so many rows at
                // the most.
                const int64_t length = all + before_last;
                if (is_wide_w)
                    for (int64_t k = 0; k < parts; ++k) {
                        char *const each = m.scratch + k * all * value;
                        take_each(value, w.stride, m.parts[k].from, all, each);
                        m.parts[k].from = each;
                    }
                else {
                    for (int64_t phase = 0; phase < w.stride; phase += phase_step)
                        take_each(value, w.stride, from + phase * value,
                                  phase <= rest ? length : length - 1,
                                  m.scratch + phase * length * value);
                    for (int64_t t = 0, phase = 0, output = 0; t < w.window; ++t) {
                        m.parts[t].from = m.scratch + (phase * length + output) * value;
                        for (phase += w.dilation; phase >= w.stride; phase -= w.stride)
                            ++output;
                    }
                }
                op.combine(true, m.parts, parts, made, to, {runs, made_row * value, to_pitch});
            }
        }
        if (is_stored)
            return;
        if (is_whole && finish.is_uniform && !are_shared)
            return finish(b.plane, b.od, row, 0, rows * n, to, out);
        for (int64_t k = 0; k < rows; ++k) {
            const int64_t oh = b.starts ? b.starts[k] : row + k;
            const char *const values = to + k * to_pitch * value;
            char *const results = out + (oh - row) * out_pitch;
            const int64_t known = has_all ? 0 : lanes - b.new_lanes;
            for (int64_t x = 0; x < (has_all ? 1 : b.outputs_w); ++x)
                finish(b.plane, b.od, oh, (b.ow + x) * p.lanes + b.lane + known,
                       has_all ? n : b.new_lanes, values + (x * lanes + known) * value,
                       results + (x * p.lanes + known) * finish.result_size);
            for (int64_t next = oh + 1; b.starts && next < b.starts[k + 1];
                 ++next)  // which read the same
                std::memcpy(out + (next - row) * out_pitch, results, n * finish.result_size);
        }
    }
};

// One window over each plane. Planes of many elements are combined in parts that depend on nothing
// but their size.
void pool_planes(const RowOperations &op, const Finish &finish, const char *input, char *output,
                 const Problem &p) {
    const int64_t lanes = p.lanes, size = p.plane() / lanes, position = lanes * op.element_size,
                  pitch = lanes * op.value_size;
    const int64_t part = std::max<int64_t>(1, (1 << 18) / lanes), parts = parts_of(size, part);
    // Several positions of few lanes are one row: long ones take .8 of the time over 32 lanes.
    const int64_t fitting = lanes < 256 ? std::min<int64_t>(64, 2048 / lanes) : 1;
    const int64_t together =
        std::clamp<int64_t>(fitting, 1, std::max<int64_t>(1, std::min(part, size) / 4));
    const bool is_in_place = parts == 1 && finish.result_size == op.value_size;
    std::vector<char> of_parts(parts > 1 ? p.planes * parts * pitch : 0);
    const char *const end_of_input = input + p.planes * p.plane() * op.element_size;
    const auto combine = [&](bool are_values, const char *from, int64_t step, int64_t count,
                             int64_t length, char *to) {
        std::vector<Row> rows(count);
        for (int64_t k = 0; k < count; ++k)
            rows[k] = {from + k * step, k * part * op.units[2]};  // numbers of parts
        op.combine(are_values, rows.data(), count, length, to);
    };
    // Finished so many at once, as results of many planes fill a cache.
    const int64_t at_once = std::max<int64_t>(64, 65536 / pitch & -64);
    parallel(
        p.planes * parts, double(std::min(part, size) * lanes), [&](int64_t begin, int64_t end) {
            std::vector<char> folded((together + 1) * pitch),
                made(parts > 1 || is_in_place ? 0 : std::min(at_once, end - begin) * pitch);
            for (int64_t first = begin, next; first < end; first = next) {
                next = std::min(end, first + at_once);
                char *const out = output + first * lanes * finish.result_size;
                char *const results = parts > 1     ? of_parts.data() + first * pitch
                                      : is_in_place ? out
                                                    : made.data();
                if (lanes == 1 &&
                    parts ==
                        1) {  // many planes in a call: one in each takes 1.1 to 2.3 times as long
                    Run some[64];
                    for (int64_t k = 0; k < 64; ++k)
                        some[k] = {k * size, size, 0, 1, 0};
                    for (int64_t k = first; k < next; k += 64)
                        op.reduce_windows(false, {input + k * size * position, 0}, 0, some,
                                          std::min<int64_t>(64, next - k), 1,
                                          results + (k - first) * pitch, end_of_input);
                }
                for (int64_t number = first; number < next && (lanes > 1 || parts > 1); ++number) {
                    const int64_t plane = number / parts, from = number % parts * part,
                                  count = std::min(part, size - from), rest = count % together;
                    const char *const elements = input + (plane * size + from) * position;
                    char *const result = results + (number - first) * pitch;
                    const Run whole = {0, count, 0, 1, 0};
                    if (lanes == 1)
                        op.reduce_windows(false, {elements, 0}, 0, &whole, 1, 1, result,
                                          end_of_input);
                    else if (together == 1)
                        combine(false, elements, position, count, lanes, result);
                    else {
                        combine(false, elements, together * position, count / together,
                                together * lanes, folded.data());
                        combine(false, elements + (count - rest) * position, position, rest, lanes,
                                folded.data() + together * pitch);
                        combine(true, folded.data(), pitch, together + 1, lanes, result);
                    }
                }
                if (parts == 1)
                    finish(first, 0, 0, 0, (next - first) * lanes, results, out);
            }
        });
    for (int64_t plane = 0; parts > 1 && plane < p.planes; ++plane) {
        std::vector<char> made(pitch);
        combine(true, of_parts.data() + plane * parts * pitch, pitch, parts, lanes, made.data());
        finish(plane, 0, 0, 0, lanes, made.data(), output + plane * lanes * finish.result_size);
    }
}

}  // namespace

// The rows that an output row reads are combined into one, of which each window reduces a part;
// with lanes, windows of few rows or many lanes combine all their elements at once: 5x5 bins of
// 224x224 over 7 lanes would take five times as long.
void pool_windows(const WindowOperations &op, const Finish &finish, const void *from, void *to,
                  const Windows &windows) {
    const Problem &p = windows.p;
    const Axis d = p.d(), h = p.h(), w = p.w();
    const int64_t lanes = p.lanes, element = op.element_size, value = op.value_size,
                  position = lanes * element, pitch = lanes * value;
    const int64_t row_step = w.size * position;
    const int64_t most_rows = std::max<int64_t>(1, windows.most(0) * windows.most(1)),
                  most_taps = std::max<int64_t>(1, windows.most(2));
    const int64_t elements = lanes == 1 ? 65536 / value : 65536 / most_rows;
    const int64_t tile = std::clamp<int64_t>(elements * w.outputs / (w.size * lanes), 1, w.outputs);
    const int64_t tiles = parts_of(w.outputs, tile),
                  row_bytes = p.output_row() * finish.result_size;
    const bool shares_columns =
        lanes * w.stride < 64 * w.extent() && most_rows >= 8 && op.is_separable;
    const bool are_numbered = op.units[0] != 0 || op.units[1] != 0 || op.units[2] != 0;
    // Of what the next window reads first: 2/2 takes half the time on memory and a tenth more in
    // cache, 7/7 and bins a tenth more. Rows that windows above have read come from a cache: 3/2
    // takes .9 of the time without them.
    const int64_t ahead =
        w.window > 0 && w.stride <= 4 && p.is_large(element) ? w.stride * position : 0;
    const bool is_in_place =
        finish.result_size == value &&
        !op.writes_results;  // memory of results is fetched while windows are read
    const double row_cost = double(lanes == 1 ? w.size / tiles : tile * most_taps * lanes);
    const double cost = ROW_COST + double(most_rows) * row_cost + double(tile * most_taps);
    const char *const input = static_cast<const char *>(from), *const end_of_input =
                                                                   input +
                                                                   p.planes * p.plane() * element;
    // Results are made in parts of rows; a part ends where a run does.
    const int64_t most_made = std::min(tile, 2 * RUNS_MOST + 2 * RUN_LEAST);
    parallel(
        p.planes * d.outputs * h.outputs * tiles, cost,
        [=, &op, &finish, &p, &windows](int64_t begin, int64_t end) {
            std::vector<Row> rows(most_rows), read(lanes == 1       ? 0
                                                   : shares_columns ? most_taps
                                                                    : most_rows * most_taps);
            std::vector<Run> runs;
            Range known = {0, 0};  // the outputs that these are
            Span last_height = {0, 0, 0};
            std::vector<char> staged(1), made(is_in_place ? 0 : most_made * pitch);
            Digits<4> digits(begin, {tiles, h.outputs, d.outputs, p.planes});
            for (int64_t number = begin; number < end; ++number, ++digits) {
                const int64_t first = digits[0] * tile, stop = std::min(first + tile, w.outputs);
                const int64_t oh = digits[1], od = digits[2], plane = digits[3];
                char *const out =
                    static_cast<char *>(to) +
                    (((plane * d.outputs + od) * h.outputs + oh) * w.outputs + first) * lanes *
                        finish.result_size;
                const Span height = windows.at(1, oh), above = last_height;
                last_height = height;
                // The row before may read the same.
                const bool may_copy =
                    !are_numbered && tiles == 1 && finish.is_uniform && number > begin && oh > 0;
                if (may_copy && height.reads(above)) {
                    std::memcpy(out, out - row_bytes, row_bytes);
                    continue;
                }
                const int64_t first_new =
                    d.outputs == 1 ? std::max<int64_t>(0, height.count - h.stride) : 0;
                int64_t count =
                    find_rows(op, p, input, plane, windows.at(0, od), height, 0, rows.data());
                int64_t low = 0;
                // What the next rows of windows read first: 20/20 on 60x60 takes .64 of the time,
                // 32/32 on 256x256 .8.
                if (lanes == 1 && count > 1 && h.window > 0)
                    prefetch(rows[0].from + h.stride * row_step, h.stride * row_step);
                const bool are_shared = lanes == 1 ? count != 1 : shares_columns;
                if (are_shared) {
                    const Range reach = windows.reach(2, first, stop - first);
                    const int64_t length = std::max<int64_t>(0, reach.end - reach.begin);
                    low = reach.begin;
                    if (int64_t(staged.size()) < length * pitch)
                        staged.resize(length * pitch);
                    for (int64_t r = 0; r < count && length; ++r)
                        rows[r].from += low * position;
                    if (length)
                        op.combine_window(false, rows.data(), count, length * lanes, staged.data(),
                                          nullptr);
                    rows.front() = {staged.data(), 0}, count = 1;
                }
                const char *const end_of_rows =
                    are_shared ? staged.data() + staged.size() : end_of_input;
                const int64_t step = are_shared ? pitch : position;
                for (int64_t o = first, next; o < stop; o = next) {
                    if (known.begin == o && known.end == stop)
                        next = stop;
                    else
                        next = find_runs(windows, are_numbered, o, stop, runs);
                    known = {o, next};
                    char *const part = out + (o - first) * lanes * finish.result_size;
                    char *const results = is_in_place ? part : made.data();
                    if (lanes == 1)
                        op.reduce_windows(are_shared, rows.front(), low, runs.data(), next - o,
                                          w.dilation, results, end_of_rows);
                    else {
                        int64_t taps = 0, k = 0;
                        Span last = {0, -1, 0};
                        for (const Run &run : runs) {
                            const int64_t different =
                                run.step > 0 || op.writes_results ? run.outputs : 1;
                            for (int64_t each = 0; each < different; ++each, ++k) {
                                const Span span = {run.begin + each * run.step, run.count, run.tap};
                                if (span.count == last.count && span.tap == last.tap) {
                                    const int64_t moved = (span.begin - last.begin) * step;
                                    for (int64_t i = 0; i < taps; ++i)
                                        read[i].from += moved;
                                } else {
                                    taps = 0;
                                    for (int64_t r = 0; r < count; ++r) {
                                        Row tap = {rows[r].from + (span.begin - low) * step,
                                                   rows[r].number + span.tap * op.units[2]};
                                        for (int64_t t = 0; t < span.count; ++t,
                                                     tap.from += w.dilation * step,
                                                     tap.number += op.steps[2])
                                            read[taps++] = tap;
                                    }
                                }
                                last = span;
                                for (int64_t at = (first_new + 1) * span.count;
                                     ahead > 0 && at > 0 && at <= taps; at += span.count)
                                    prefetch<true>(read[at - 1].from + w.dilation * step, ahead);
                                op.combine_window(are_shared, read.data(), taps, lanes,
                                                  results + k * pitch,
                                                  part + k * lanes * finish.result_size);
                            }
                            for (int64_t copy = different; copy < run.outputs; ++copy, ++k)
                                std::memcpy(results + k * pitch, results + (k - 1) * pitch, pitch);
                        }
                    }
                    if (!finish.is_direct)
                        finish(plane, od, oh, o * lanes, (next - o) * lanes, results, part);
                }
            }
        });
}

void pool(const RowOperations &op, const Finish &finish, const void *from, void *to,
          const Windows &windows) {
    const Axis &d = windows.p.d(), &h = windows.p.h(), &w = windows.p.w();
    const int64_t lanes = windows.p.lanes;
    const char *const input = static_cast<const char *>(from);
    char *const output = static_cast<char *>(to);
    // Numbers of taps are those of elements where windows have as many.
    const bool are_elements =
        d.window == d.size && h.window == h.size && w.window == w.size && lanes == 1;
    if (finish.is_uniform && windows.are_planes() && (op.units[2] == 0 || are_elements))
        return pool_planes(op, finish, input, output, windows.p);
    const bool are_huge = is_huge(d) || is_huge(h) || is_huge(w);
    const auto pool_rows = [&](bool are_boxes) {
        RowPooling{op, finish, input, output, windows, are_boxes}.pool();
    };
    if (windows.apart > 1)
        return pool_rows(false);
    // Rows along D and then along H, or all rows of a window at once: 3x3x3 takes .7 of the time,
    // with indices .6.
    const bool is_separate =
        double(d.window + 1) * double(h.stride) + double(h.window) < double(d.window * h.window);
    const bool has_wide_w = is_wide(op, lanes, w);
    if (!are_huge && (is_wide(op, lanes, h) || (lanes > 1 && has_wide_w) || is_separate))
        return pool_rows(true);
    // Rows first, and then what a window reads of them, or all taps of a window at once. With lanes
    // the one that loads and stores fewer bytes, where a tap of a window counts as 128 more: within
    // 2 % of the better one, over 1,092 requests. In narrower vectors rows take less than they seem
    // to: 7/7 over 64 lanes .4 of the time, 4/4 over 256 .5, 3/3 .8. Of one lane windows of 64 take
    // as long either way, those of 20 whose elements are loaded .7 of it as windows.
    const double bytes = double(lanes * op.element_size), rows = double(d.window * h.window),
                 window = double(w.window), stride = double(w.stride);
    const bool by_rows =
        lanes > 1 ? ((rows + 2) * stride + window) * bytes + (w.stride > 1 ? window * 128 : 0) <
                        (BYTES == 64 ? 1 : 1.6) * rows * window * (bytes + 128)
                  : w.window < (op.element_size == op.value_size ? 64 : 16) || w.dilation > 1;
    if (is_huge(w) || !(by_rows || (!are_huge && has_wide_w)))
        return pool_windows(op, finish, input, output, windows);
    pool_rows(false);
}

}  // namespace dmlpool
