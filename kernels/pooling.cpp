// Pools rows of windows on the CPU, whatever their data type and whatever is made of them.

#include "pooling.h"

namespace dmlpool {

Windows adjoint_of(const Windows &windows) {
    Windows result{windows.p, {}};
    for (int a = 0; a < 3; ++a) {
        const Axis &axis = windows.p.axes[a];
        const int64_t step = axis.dilation / std::gcd(axis.dilation, axis.stride);
        const auto first = [&](int64_t o) { return axis.window > 0 ? axis.first(o) : windows.spans[a][o].begin; };
        const auto extent = [&](int64_t o) { return axis.window > 0 ? axis.extent() : windows.spans[a][o].count; };
        result.p.axes[a] = {axis.outputs, axis.size, 0, 1, 0, step};
        int64_t begin = 0, end = 0;
        for (int64_t x = 0; x < axis.size; ++x) {
            while (begin < axis.outputs && first(begin) + extent(begin) <= x) ++begin;
            while (end < axis.outputs && first(end) <= x) ++end;
            int64_t from = begin;
            while (axis.dilation > 1 && from < end && (x - axis.first(from)) % axis.dilation) ++from;
            const int64_t count = from >= end ? 0 : step == 1 ? end - from : parts_of(end - from, step);
            result.spans[a].push_back({from, count, count ? (x - first(from)) / axis.dilation : 0, 1, 1});
        }
    }
    return result;
}

namespace {

// Wide windows that overlap: windows of 1, 2, 4, ... taps, each from two of the one before, so that an axis costs log k.
bool is_wide(const Axis &axis) {
    int64_t steps = 1;
    while ((int64_t(1) << steps) < axis.window) ++steps;
    return axis.window > 5 && (steps + 1) * axis.span(axis.outputs) < axis.window * axis.outputs;
}

// The rows of a plane that a row of outputs reads, from position `low` on, and how many there are.
int64_t find_rows(const WindowOperations &op, const Problem &p, const char *input, int64_t plane, const Span &depth, const Span &height, int64_t low, Row *to) {
    const int64_t row_bytes = p.row() * op.element_size, step = p.h().dilation * row_bytes;
    const Row *const first = to;
    for (int64_t td = 0; td < depth.count; ++td) {
        const int64_t y = (plane * p.d().size + depth.begin + td * p.d().dilation) * p.h().size + height.begin;
        Row row = {input + y * row_bytes + low * p.lanes * op.element_size, depth.tap * op.units[0] + td * op.steps[0] + height.tap * op.units[1]};
        for (Row *const end = to + height.count; to < end; row.from += step, row.number += op.steps[1]) *to++ = row;
    }
    return to - first;
}

// A row of so many values of 4 or 8 bytes, with zeros around `count` of them that lie `apart` from `begin` on.
template <class Bits>
__attribute__((noinline)) void put_apart(const void *values, int64_t count, int64_t apart, int64_t begin, void *to, int64_t length) {
    const Bits *__restrict from = static_cast<const Bits *>(values);
    Bits *__restrict out = static_cast<Bits *>(to);
    if (apart != 2) {
        std::fill_n(out, length, Bits(0));
        for (int64_t i = 0; i < count; ++i) out[begin + i * apart] = from[i];
        return;
    }
    const int64_t end = begin + 2 * count;
    std::fill_n(out, begin, Bits(0));
    VECTORIZE
    for (int64_t i = 0; i < count; ++i) out[begin + 2 * i] = from[i], out[begin + 2 * i + 1] = 0;
    if (end < length) std::fill(out + end, out + length, Bits(0));
}

// Every stride-th of so many values.
template <int64_t fixed, class V>
void take_each(int64_t any, const V *__restrict row, int64_t count, V *__restrict out) {
    const int64_t stride = fixed ? fixed : any;
    VECTORIZE
    for (int64_t i = 0; i < count; ++i) out[i] = row[i * stride];
}
void take_each(int64_t size, int64_t stride, const void *row, int64_t count, void *out) {
    const auto run = [=](auto value) {
        using V = decltype(value);
        const V *const from = static_cast<const V *>(row);
        V *const to = static_cast<V *>(out);
        if (stride == 2) take_each<2>(stride, from, count, to);
        else if (stride == 3) take_each<3>(stride, from, count, to);
        else if (stride == 4) take_each<4>(stride, from, count, to);
        else take_each<0>(stride, from, count, to);
    };
    if (size == 1) run(int8_t());
    if (size == 2) run(int16_t());
    if (size == 4) run(int32_t());
    if (size == 8) run(int64_t());
    if (size == 16) run(__int128());
}

bool are_pairs(const Axis &w, int64_t lanes) {
    return lanes == 1 && w.stride == 2 && w.dilation == 1 && (w.window == 2 || w.window == 3);
}

// out = the combinations of windows along a row of values that begins with the first tap of the first of them; of several
// rows where they are pairs or their stride is 1.
void combine_taps(const RowOperations &op, const char *row, const Axis &w, int64_t outputs, int64_t lanes,
                  Row *taps, char *out, char *scratch, const Times &rows = {}) {
    const int64_t count = w.window, size = op.value_size;
    if (are_pairs(w, lanes))
        for (int64_t r = 0; r < rows.count; ++r) op.combine_pairs(row + r * rows.step, count, outputs, out + r * rows.pitch * size);
    else if (w.stride == 1) {
        for (int64_t t = 0; t < count; ++t) taps[t].from = row + t * w.dilation * lanes * size;
        op.combine(true, taps, count, outputs * lanes, out, rows);
    } else if (lanes == 1) {
        // Elements a stride apart become a row: the taps of a window lie in so many rows at the most.
        const int64_t length = outputs + (w.extent() - 1) / w.stride;
        for (int64_t phase = 0, step = std::gcd(w.stride, w.dilation); phase < w.stride; phase += step)
            take_each(size, w.stride, row + phase * size, parts_of(w.span(outputs) - phase, w.stride), scratch + phase * length * size);
        for (int64_t t = 0; t < count; ++t)
            taps[t].from = scratch + (t * w.dilation % w.stride * length + t * w.dilation / w.stride) * size;
        op.combine(true, taps, count, outputs, out);
    } else {
        for (int64_t t = 0; t < count; ++t) taps[t].from = row + t * w.dilation * lanes * size;
        op.combine(true, taps, count, lanes, out, {outputs, w.stride * lanes * size, lanes});
    }
}

// Bins, or windows of which little lies inside what is pooled: nothing may cost what they span.
bool is_huge(const Axis &axis) { return axis.window == 0 || std::max(axis.extent(), axis.stride) > 64 + 4 * axis.size; }

// Rows of outputs, each repeated up to where the next one starts.
void repeat_rows(char *out, int64_t pitch, int64_t bytes, const int64_t *starts, int64_t count) {
    for (int64_t k = 0; k < count; ++k)
        for (int64_t row = starts[k] + 1; row < starts[k + 1]; ++row)
            std::memcpy(out + (row - starts[0]) * pitch, out + (starts[k] - starts[0]) * pitch, bytes);
}

// Outputs are made in blocks: short rows together, as every loop has a price; long rows in tiles that stay in the
// first-level cache. For each output row the input rows are combined into one scratch row, and that row's taps into outputs.
void pool_rows(const RowOperations &op, const Finish &finish, const char *input, char *output, const Windows &windows) {
    const Problem &p = windows.p;
    const int64_t apart = windows.apart;
    const Axis d = p.d(), h = p.h(), w = {(p.w().size - 1) * apart + 1, p.w().outputs, p.w().window, p.w().stride, p.w().padding, p.w().dilation};
    const int64_t lanes = p.lanes, element = op.element_size, value = op.value_size, row_bytes = p.row() * element;
    // Short tiles of long rows, as what they read and write takes turns: 1-D 3/3 and 4/4 take .65 to .75 of the time.
    const int64_t elements = (lanes == 1 ? 4096 : value > 4 ? 16384 : 32768) / value, together = 4096 / std::min<int64_t>(4, value);
    const int64_t tile = std::clamp<int64_t>(elements / lanes / w.stride, 1, w.outputs), tiles = parts_of(w.outputs, tile);
    const int64_t made_row = parts_of(w.span(tile), w.stride), made_pitch = made_row * lanes, pitch = made_pitch * w.stride;
    const std::vector<int64_t> distinct = windows.distinct(1);
    const Span *const heights = windows.spans[1].data();
    const int64_t different = heights == nullptr || !finish.is_uniform ? h.outputs : int64_t(distinct.size()) - 1;
    const int64_t *const starts = different == h.outputs ? nullptr : distinct.data();
    const int64_t group = std::clamp<int64_t>(together / pitch, 1, different), groups = parts_of(different, group);
    const int64_t most = std::max<int64_t>(1, windows.most(0) * windows.most(1));  // rows that a window reads
    // Scratch is written in whole vectors: of elements, where rows are combined four at a time.
    const int64_t vector = 64 / (op.takes_twice && most <= 4 ? element : value);
    const int64_t out_pitch = p.output_row() * finish.result_size;
    const bool is_together = tiles == 1 && made_pitch == p.output_row() && finish.is_uniform && different == h.outputs;
    // Windows along H that lie inside the input read as many rows: rows of outputs that are found once.
    const bool may_repeat = apart == 1 && starts == nullptr && tiles == 1 && h.window > 0 && h.size + h.padding >= h.extent();
    const int64_t inner_begin = parts_of(h.padding, h.stride), inner_end = std::min(h.outputs, (h.size + h.padding - h.extent()) / h.stride + 1);
    const bool are_rows = are_pairs(w, lanes) || (w.stride == 1 && w.window <= 4);  // made one by one; long ones of five take .86
    const char *const end_of_input = input + p.planes * p.plane() * element;
    const double cost = double(most) * double(tile * w.stride) + double(tile * w.window);
    parallel(p.planes * d.outputs * groups * tiles, double(group) * (ROW_COST + double(lanes) * cost), [=, &op, &finish, &p, &windows](int64_t begin, int64_t end) {
        std::vector<Row> rows(most), taps;
        for (int64_t t = 0; t < w.window; ++t) taps.push_back({nullptr, t * op.units[2]});
        const int64_t size = group * pitch, staged_size = size + vector;
        std::vector<char> workspace((2 * staged_size + size) * value);
        char *const staged = workspace.data(), *const made = staged + staged_size * value, *const scratch = made + size * value;
        Digits<4> digits(begin, {tiles, groups, d.outputs, p.planes});
        for (int64_t number = begin; number < end; ++number, ++digits) {
            const int64_t o = digits[0] * tile, begin_h = digits[1] * group, oh = starts ? starts[begin_h] : begin_h, od = digits[2], plane = digits[3];
            const int64_t outputs = std::min(tile, w.outputs - o), count = std::min(group, different - begin_h);
            // They read input positions from `first` on, of which [low, high) lie inside the input.
            const int64_t first = w.first(o), last = first + w.span(outputs);
            const int64_t low = std::clamp<int64_t>(0, first, last), high = std::clamp<int64_t>(w.size, low, last);
            const int64_t inside = (high - low) * lanes, before = (low - first) * lanes, vectors = (inside + vector - 1) & -vector;
            const int64_t from = parts_of(low, apart), elements = parts_of(high, apart) - from;
            const Span depth = windows.at(0, od);
            const char *source = staged;
            Span height;
            for (int64_t r = 0, alike; r < count; r += alike) {
                char *const into = staged + r * pitch * value;
                alike = may_repeat && oh + r >= inner_begin && oh + r < inner_end ? std::min(count - r, inner_end - oh - r) : 1;
                if (heights == nullptr) height = h.span_of(oh + r);
                const int64_t found = find_rows(op, p, input, plane, depth, heights == nullptr ? height : heights[starts ? starts[begin_h + r] : oh + r], from, rows.data());
                if (found == 0) {
                    op.fill(into, alike * pitch, 0, 1);
                    continue;
                }
                const char *const latest = rows[found - 1].from, *const last_row = latest + (alike - 1) * h.stride * row_bytes;
                if (tiles > 1 && found > 1)
                    for (int64_t t = std::max<int64_t>(0, found - h.stride); t < found; ++t)
                        prefetch(rows[t].from + inside * element, inside * element);
                if (apart > 1) {
                    op.combine(false, rows.data(), found, elements, scratch);
                    (value == 4 ? put_apart<uint32_t> : put_apart<uint64_t>)(scratch, elements, apart, from * apart - first, into, pitch);
                } else if (op.is_plain && found == 1 && count == 1 && inside == w.span(outputs) * lanes) source = latest;
                else
                    op.combine(false, rows.data(), found, last_row + vectors * element <= end_of_input ? vectors : inside, into + before * value,
                               {alike, h.stride * row_bytes, pitch, tiles == 1});
            }
            if (apart == 1 && source == staged && inside < pitch) {
                // What follows a row goes on before the next one.
                op.fill(staged, before, 0, 1);
                op.fill(staged + (before + inside) * value, pitch - inside, pitch, count - 1);
                op.fill(staged + ((count - 1) * pitch + before + inside) * value, pitch - before - inside, 0, 1);
            }
            char *const out = output + (((plane * d.outputs + od) * h.outputs + oh) * w.outputs + o) * lanes * finish.result_size;
            if (finish.is_direct && starts == nullptr && (count == 1 || is_together || are_rows)) {
                const int64_t rows_made = is_together ? 1 : count;
                combine_taps(op, source, w, is_together ? count * outputs : outputs, lanes, taps.data(), out, scratch,
                             {rows_made, pitch * value, p.output_row()});
                continue;
            }
            combine_taps(op, source, w, (count - 1) * made_row + outputs, lanes, taps.data(), made, scratch);
            if (is_together) finish(plane, od, oh, 0, 0, count * made_pitch, made, out);
            else
                for (int64_t r = 0; r < count; ++r) {
                    const int64_t row = starts ? starts[begin_h + r] : oh + r;
                    finish(plane, od, row, o, 0, outputs * lanes, made + r * made_pitch * value, out + (row - oh) * out_pitch);
                }
            if (starts) repeat_rows(out, out_pitch, outputs * lanes * finish.result_size, starts + begin_h, count);
        }
    });
}

// Pools data[span][n], which begins at the first tap of output 0 and is used up, into out[outputs][n]; numbers of taps
// along the axis are multiples of `unit`. Scratch holds a value for each output.
void pool_by_doubling(const RowOperations &op, char *data, int64_t n, const Axis &axis, int64_t unit, int64_t outputs,
                      char *out, char *scratch) {
    const int64_t k = axis.window, size = op.value_size, length = axis.span(outputs) * n;
    const auto take = [=, &op](int64_t tap) {
        const char *const part = data + tap * axis.dilation * n * size;
        const int64_t number = tap * unit;
        if (n == 1 && axis.stride > 1) {
            take_each(size, axis.stride, part, outputs, tap == 0 ? out : scratch);
            if (tap > 0) op.add({scratch, number}, outputs, out);
            return;
        }
        const int64_t together = axis.stride == 1 ? outputs : 1;
        for (int64_t o = 0; o < outputs; o += together) {
            Row row = {part + o * axis.stride * n * size, number};
            if (tap == 0) op.combine(true, &row, 1, together * n, out + o * n * size);
            else op.add(row, together * n, out + o * n * size);
        }
    };
    int64_t power = 1, taken = 0;
    for (; 2 * power <= k; power *= 2) {
        if (!op.takes_twice && (k & power)) take(taken), taken += power;
        const int64_t shift = power * axis.dilation * n;
        op.add({data + shift * size, power * unit}, length - shift, data);
    }
    take(taken);
    if (op.takes_twice && power < k) take(k - power);
}

// Windows of many taps that overlap: a box of the input is pooled along W, then along H, then along D.
void pool_boxes(const RowOperations &op, const Finish &finish, const char *input, char *output, const Problem &p) {
    const Axis &d = p.d(), &h = p.h(), &w = p.w();
    // Outputs of a box along an axis: so many that boxes share little of what they read.
    const auto tile_of = [](const Axis &axis, int64_t least) {
        return std::min(axis.outputs, std::max(least, 2 * axis.extent() / axis.stride));
    };
    const int64_t element = op.element_size, value = op.value_size, lanes = p.lanes, block = std::min<int64_t>(lanes, 64);
    const int64_t tile_d = tile_of(d, 1), tile_h = tile_of(h, 64), tile_w = tile_of(w, std::max<int64_t>(1, 1024 / block));
    const int64_t tiles_d = parts_of(d.outputs, tile_d), tiles_h = parts_of(h.outputs, tile_h), tiles_w = parts_of(w.outputs, tile_w);
    const int64_t blocks = parts_of(lanes, block), most = d.span(tile_d) * h.span(tile_h) * tile_w * block;
    parallel(p.planes * tiles_d * tiles_h * tiles_w * blocks, 16. * double(most), [&](int64_t begin, int64_t end) {
        const int64_t row_size = w.span(tile_w) * block;
        // Scratch has a value for each output along any axis: where a box is one column wide, rows are of one value too.
        std::vector<char> workspace((row_size + 2 * most + std::max({tile_d, tile_h, tile_w})) * value);
        char *const row = workspace.data(), *const read = row + row_size * value, *const pooled = read + most * value;
        char *const scratch = pooled + most * value;
        Digits<5> digits(begin, {blocks, tiles_w, tiles_h, tiles_d, p.planes});
        for (int64_t number = begin; number < end; ++number, ++digits) {
            const int64_t lane = digits[0] * block, ow = digits[1] * tile_w, oh = digits[2] * tile_h, od = digits[3] * tile_d;
            const int64_t plane = digits[4], b = std::min(block, lanes - lane);
            const int64_t outputs_d = std::min(tile_d, d.outputs - od), outputs_h = std::min(tile_h, h.outputs - oh);
            const int64_t outputs_w = std::min(tile_w, w.outputs - ow), n = outputs_w * b;
            const int64_t depth = d.span(outputs_d), height = h.span(outputs_h), width = w.span(outputs_w);
            const int64_t first = w.first(ow), low = std::clamp<int64_t>(-first, 0, width);
            const int64_t high = std::clamp<int64_t>(w.size - first, low, width);
            for (int64_t at = 0; at < depth * height; ++at) {
                const int64_t z = d.first(od) + at / height, y = h.first(oh) + at % height;
                char *const out = read + at * n * value;
                if (z < 0 || z >= d.size || y < 0 || y >= h.size) {
                    op.fill(out, n, 0, 1);
                    continue;
                }
                op.fill(row, low * b, 0, 1), op.fill(row + high * b * value, (width - high) * b, 0, 1);
                const int64_t together = b == lanes ? high - low : 1;
                for (int64_t x = low; x < high; x += together) {
                    Row from = {input + ((((plane * d.size + z) * h.size + y) * w.size + first + x) * lanes + lane) * element, 0};
                    op.combine(false, &from, 1, together * b, row + x * b * value);
                }
                pool_by_doubling(op, row, b, w, op.units[2], outputs_w, out, scratch);
            }
            // Results that go where they belong: 9/1 and 13/1 on 20x20 take .85 of the time.
            const bool is_flat = d.window == 1 && d.stride == 1, is_stored = is_flat && finish.is_direct && n == p.output_row();
            for (int64_t z = 0; z < depth; ++z) {
                char *const row_of_output = output + ((plane * d.outputs + od + z) * h.outputs + oh) * n * value;
                pool_by_doubling(op, read + z * height * n * value, n, h, op.units[1], outputs_h,
                                 is_stored ? row_of_output : pooled + z * outputs_h * n * value, scratch);
            }
            if (is_stored) continue;
            if (!is_flat) pool_by_doubling(op, pooled, outputs_h * n, d, op.units[0], outputs_d, read, scratch);
            const char *const results = is_flat ? pooled : read;
            for (int64_t at = 0; at < outputs_d * outputs_h; ++at) {
                const int64_t z = od + at / outputs_h, y = oh + at % outputs_h;
                const int64_t to = (((plane * d.outputs + z) * h.outputs + y) * w.outputs + ow) * lanes + lane;
                const int64_t together = b == lanes ? outputs_w : 1;
                for (int64_t x = 0; x < outputs_w; x += together)
                    finish(plane, z, y, ow + x, lane, together * b, results + (at * n + x * b) * value,
                           output + (to + x * lanes) * finish.result_size);
            }
        }
    });
}

}  // namespace

// The rows that an output row reads are combined into one, of which each window reduces a part; with lanes, windows
// of few rows or many lanes combine all their elements at once: 5x5 bins of 224x224 over 7 lanes would take five times as long.
void pool_windows(const WindowOperations &op, const Finish &finish, const void *from, void *to, const Windows &windows) {
    const Problem &p = windows.p;
    const Axis d = p.d(), h = p.h(), w = p.w();
    const int64_t lanes = p.lanes, element = op.element_size, value = op.value_size, position = lanes * element, pitch = lanes * value;
    const int64_t row_step = w.size * position;
    const int64_t most_rows = std::max<int64_t>(1, windows.most(0) * windows.most(1)), most_taps = std::max<int64_t>(1, windows.most(2));
    const int64_t elements = lanes == 1 ? 65536 / value : 65536 / most_rows;
    const int64_t tile = std::clamp<int64_t>(elements * w.outputs / (w.size * lanes), 1, w.outputs);
    const int64_t tiles = parts_of(w.outputs, tile), row_bytes = p.output_row() * finish.result_size;
    const bool shares_columns = lanes * w.stride < 64 * w.extent() && most_rows >= 8 && op.is_separable;
    const bool is_table = !windows.spans[2].empty();
    // Of what the next window reads first: 2/2 takes half the time on memory and a tenth more in cache, 7/7 and bins a tenth
    // more. Slowly, as Zen 4 drops what memory cannot follow: 2/2 takes .75 to .8 of the time.
    const int64_t ahead = w.window > 0 && w.stride <= 4 && p.planes * p.plane() * element > 1 << 22 ? w.stride * position : 0;
    const bool is_in_place = finish.result_size == value && !op.writes_results;  // memory of results is fetched while windows are read
    const double row_cost = double(lanes == 1 ? w.size / tiles : tile * most_taps * lanes);
    const double cost = ROW_COST + double(most_rows) * row_cost + double(tile * most_taps);
    const char *const input = static_cast<const char *>(from);
    parallel(p.planes * d.outputs * h.outputs * tiles, cost, [=, &op, &finish, &p, &windows](int64_t begin, int64_t end) {
        std::vector<Row> rows(most_rows), read(lanes == 1 ? 0 : shares_columns ? most_taps : most_rows * most_taps);
        std::vector<Span> spans(is_table ? 0 : tile);
        std::vector<char> staged(1), made(is_in_place ? 0 : tile * pitch);
        Digits<4> digits(begin, {tiles, h.outputs, d.outputs, p.planes});
        for (int64_t number = begin; number < end; ++number, ++digits) {
            const int64_t o = digits[0] * tile, oh = digits[1], od = digits[2], plane = digits[3];
            const int64_t outputs = std::min(tile, w.outputs - o);
            char *const out = static_cast<char *>(to) + (((plane * d.outputs + od) * h.outputs + oh) * w.outputs + o) * lanes * finish.result_size;
            char *const results = is_in_place ? out : made.data();
            // The row before may read the same.
            const bool may_copy = is_table && tiles == 1 && finish.is_uniform && number > begin && oh > 0;
            if (may_copy && windows.at(1, oh).reads(windows.at(1, oh - 1))) {
                std::memcpy(out, out - row_bytes, row_bytes);
                continue;
            }
            const Span *const of_w = is_table ? windows.spans[2].data() + o : spans.data();
            for (int64_t k = 0; !is_table && k < outputs; ++k) spans[k] = w.span_of(o + k);
            int64_t count = find_rows(op, p, input, plane, windows.at(0, od), windows.at(1, oh), 0, rows.data()), low = 0, high = 0;
            // What the next rows of windows read first: 20/20 on 60x60 takes .64 of the time, 32/32 on 256x256 .8.
            if (lanes == 1 && count > 1 && h.window > 0) prefetch(rows[0].from + h.stride * row_step, h.stride * row_step);
            const bool are_shared = lanes == 1 ? count != 1 || !op.reduces_elements : shares_columns;
            if (are_shared) {
                low = w.size;
                for (int64_t k = 0; k < outputs; k += of_w[k].alike)
                    if (of_w[k].count > 0) {
                        low = std::min(low, of_w[k].begin);
                        high = std::max(high, of_w[k].begin + (of_w[k].count - 1) * w.dilation + 1);
                    }
                const int64_t length = std::max<int64_t>(0, high - low);
                if (int64_t(staged.size()) < length * pitch) staged.resize(length * pitch);
                for (int64_t r = 0; r < count && length; ++r) rows[r].from += low * position;
                if (length) op.combine_window(false, rows.data(), count, length * lanes, staged.data(), nullptr);
                rows.front() = {staged.data(), 0}, count = 1;
            }
            if (lanes == 1) {
                op.reduce_windows(are_shared, rows.front(), low, of_w, outputs, w.dilation, results);
                if (!finish.is_direct) finish(plane, od, oh, o, 0, outputs, results, out);
                continue;
            }
            const int64_t step = are_shared ? pitch : position;
            for (int64_t k = 0, done = 0, taps = 0, alike; k < outputs; k += alike) {
                const Span &span = of_w[k], &last = of_w[std::max<int64_t>(0, k - 1)];
                if (k > 0 && span.count == last.count && span.tap == last.tap) {
                    const int64_t moved = (span.begin - last.begin) * step;
                    for (int64_t i = 0; i < taps; ++i) read[i].from += moved;
                } else {
                    taps = 0;
                    for (int64_t r = 0; r < count; ++r) {
                        Row tap = {rows[r].from + (span.begin - low) * step, rows[r].number + span.tap * op.units[2]};
                        for (int64_t t = 0; t < span.count; ++t, tap.from += w.dilation * step, tap.number += op.steps[2]) read[taps++] = tap;
                    }
                }
                for (int64_t at = span.count; ahead > 0 && at > 0 && at <= taps; at += span.count)
                    prefetch<true>(read[at - 1].from + w.dilation * step, ahead);
                char *const result = results + k * pitch;
                op.combine_window(are_shared, read.data(), taps, lanes, result, out + k * lanes * finish.result_size);
                alike = std::min(span.alike, outputs - k);
                for (int64_t i = 1; i < alike; ++i) std::memcpy(result + i * pitch, result, pitch);
                const int64_t ready = k + alike - done;  // that are finished while they are in the first-level cache
                if (finish.is_direct || (ready * lanes < 512 && k + alike < outputs)) continue;
                finish(plane, od, oh, o + done, 0, ready * lanes, results + done * pitch, out + done * lanes * finish.result_size);
                done += ready;
            }
        }
    });
}

void pool(const RowOperations &op, const Finish &finish, const void *from, void *to, const Windows &windows) {
    const Axis &d = windows.p.d(), &h = windows.p.h(), &w = windows.p.w();
    const int64_t lanes = windows.p.lanes;
    const char *const input = static_cast<const char *>(from);
    char *const output = static_cast<char *>(to);
    const bool are_huge = is_huge(d) || is_huge(h) || is_huge(w);
    if (windows.apart > 1) return pool_rows(op, finish, input, output, windows);
    if (!are_huge && (is_wide(d) || is_wide(h) || is_wide(w))) return pool_boxes(op, finish, input, output, windows.p);
    // Rows first, and then what a window reads of them, or all taps of a window at once. With lanes the one that loads and
    // stores fewer bytes, where a tap of a window counts as 128 more: within 2 % of the better one, over 1,092 requests.
    const double bytes = double(lanes * op.element_size), rows = double(d.window * h.window), window = double(w.window), stride = double(w.stride);
    const bool by_rows = lanes > 1 ? ((rows + 2) * stride + window) * bytes + (w.stride > 1 ? window * 128 : 0) < rows * window * (bytes + 128)
                                   : w.stride <= 16 && (w.window < 16 || w.dilation > 1);
    if (is_huge(w) || !by_rows) return pool_windows(op, finish, input, output, windows);
    pool_rows(op, finish, input, output, windows);
}

}  // namespace dmlpool
