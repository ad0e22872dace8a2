// Rows of workspace become outputs along W.

#include "blocks.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "strides.h"

namespace dmlpool {

// Rows of workspace that are pooled along W together have at most this many values of 4 bytes or
// more, or four times as many bytes of smaller values.
constexpr int64_t WORKSPACE_VALUES = 1024;

// Windows of channels of less than this many bytes are combined at each position of a row, as
// vectors hold several positions, and then those at strides are taken.
constexpr int64_t FEW_BYTES = 16;

// The most windows that `widen_windows` lists: less than 4 of one width, and a sum or one that
// overlaps another.
constexpr int64_t MOST_PARTS = 4;

int64_t block_outputs(const Axis &axis, int64_t least) {
    const int64_t wanted = std::max(least, 2 * axis.extent() / axis.stride);
    return parts_of(axis.outputs, std::max<int64_t>(1, axis.outputs / wanted));
}

int64_t rows_at_once(const Axis &w, int64_t outputs_w, int64_t channels, int64_t value) {
    const int64_t row = parts_of(w.span(outputs_w), w.stride) * w.stride * channels;
    return std::max<int64_t>(1, 4 * WORKSPACE_VALUES / (row * std::min<int64_t>(4, value)));
}

Block BlockPooling::block_at(int64_t plane, int64_t od, int64_t tile_h, int64_t tile_w) const {
    Block b;
    b.plane = plane;
    b.od = od;
    b.oh = tile_h * plan.outputs_h;
    b.ow = tile_w * plan.outputs_w;
    b.outputs_h = std::min(plan.outputs_h, h.outputs - b.oh);
    b.outputs_w = std::min(plan.outputs_w, w.outputs - b.ow);
    b.first = w.first(b.ow);
    const int64_t last = b.first + w.span(b.outputs_w);
    b.low = std::clamp<int64_t>(0, b.first, last);
    b.columns = std::clamp<int64_t>(w.size, b.low, last) - b.low;
    return b;
}

Workspace BlockPooling::workspace(int64_t rows, int64_t box_size) const {
    constexpr uintptr_t ALIGNMENT = 64;  // of a vector
    const int64_t size = rows * pitch;
    const int64_t staged = size + vector;
    const bool has_scratch =
        (w.stride > 1 && (channels == 1 || channels * value < FEW_BYTES)) || windows.spacing > 1;
    // Each of the parts that make a wide window has a value for each stride, and all taps have as
    // many as there are values.
    const int64_t scratch = has_scratch ? std::max(size, MOST_PARTS * rows * row_length) : 0;
    const int64_t taps = std::max(w.window, box_size > 0 ? h.window : 0);
    Workspace m;
    m.all_rows.resize(most_rows + 3 * taps);
    m.rows = m.all_rows.data();
    m.parts = m.rows + most_rows;
    m.parts_of_h = m.parts + taps;
    m.shifted = m.parts_of_h + taps;
    const int64_t sums_h = op.is_idempotent ? 0 : box_size;
    const int64_t sums_w = widens_w && !op.is_idempotent ? size : 0;
    const int64_t values = 2 * staged + scratch + box_size + sums_h + sums_w;
    m.memory.resize(values * value + ALIGNMENT);
    char *next = m.memory.data();
    next += -reinterpret_cast<uintptr_t>(next) & (ALIGNMENT - 1);
    const auto take = [&](int64_t count) { return std::exchange(next, next + count * value); };
    m.staged = take(staged);
    m.produced = take(staged);
    m.scratch = take(scratch);
    m.box = take(box_size);
    m.sums_h = take(sums_h);
    m.sums_w = take(sums_w);
    return m;
}

int64_t BlockPooling::find_taps(const char *data, int64_t n, const Axis &axis, int64_t unit,
                                Row *taps) const {
    for (int64_t tap = 0; tap < axis.window; ++tap)
        taps[tap] = {data + tap * axis.dilation * n * value, tap * unit};
    return axis.window;
}

int64_t BlockPooling::widen_windows(char *data, char *sums, int64_t n, int64_t length,
                                    const Axis &axis, int64_t unit, Row *parts) const {
    const int64_t k = axis.window;
    const int64_t step = axis.dilation * n;
    const auto part = [=](int64_t tap) { return Row{data + tap * step * value, tap * unit}; };
    const int64_t outputs = length - (k - 1) * step;
    int64_t taken = 0;  // taps that are in `sums`
    int64_t width = 1;
    for (; 4 * width <= k; width *= 4) {
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
        parts[count++] = part(std::min(tap, k - width));
    if (taken > 0)
        parts[count++] = {sums, 0};
    return count;
}

void BlockPooling::fill_margins(const Block &b, int64_t rows, const Workspace &m) const {
    const int64_t inside = b.columns * channels;
    const int64_t before = (b.low - b.first) * channels;
    if (inside == pitch || windows.spacing > 1)
        return;
    op.fill(m.staged, before, 0, 1);
    op.fill(m.staged + (before + inside) * value, pitch - inside, pitch, rows - 1);
    op.fill(m.staged + ((rows - 1) * pitch + before + inside) * value, pitch - before - inside, 0,
            1);
}

void BlockPooling::pool_along_w(const Block &b, int64_t r, int64_t rows, const char *from,
                                const Workspace &m) const {
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
    // Rows are finished in whole vectors, which exceed a row where the next one is written later.
    // They are half as long as the processor's, as results may be half as wide as values.
    const int64_t lanes = BYTES / 2 / finish.result_size;
    const int64_t most =
        finish.may_exceed && b.outputs_w == w.outputs ? parts_of(count, lanes) * lanes : count;
    for (int64_t k = 0; k < rows; ++k)
        finish(b.plane, b.od, b.oh + r + k, b.ow * channels, std::min(most, (rows - k) * count),
               t.to + k * t.pitch * value, out + k * out_pitch);
}

void BlockPooling::combine_windows(const char *from, int64_t values, const Target &t,
                                   const Workspace &m) const {
    const Run whole = {0, w.window, 0, t.outputs, w.stride};
    if (!is_short && !reads_apart)
        return combine_taps(from, values, t, m);
    for (int64_t k = 0; k < t.runs; ++k) {
        const char *const row = from + k * pitch * value;
        char *const to = t.to + k * t.pitch * value;
        is_short ? op.combine_short(row, w.window, w.stride, t.outputs, to)
                 : op.reduce_windows(true, {row, 0}, 0, &whole, t.outputs, w.dilation, to);
    }
}

void BlockPooling::combine_taps(const char *from, int64_t values, const Target &t,
                                const Workspace &m) const {
    // Rows whose windows are widened lie in the workspace.
    const int64_t parts =
        widens_w ? widen_windows(m.staged, m.sums_w, channels, values, w, op.units[2], m.parts)
                 : find_taps(from, channels, w, op.units[2], m.parts);
    if (w.stride == 1)
        return op.combine(true, m.parts, parts, t.outputs * channels, t.to,
                          {t.runs, pitch * value, t.pitch, t.divisor});
    if (channels == 1) {
        take_strides(from, parts, (t.runs - 1) * row_length + t.outputs, m);
        return op.combine(true, m.parts, parts, t.outputs, t.to,
                          {t.runs, row_length * value, t.pitch});
    }
    const int64_t step = w.stride * channels;
    const int64_t bytes = channels * value;
    for (int64_t k = 0; k < t.runs; ++k) {
        for (int64_t tap = 0; tap < parts; ++tap)
            m.shifted[tap] = {m.parts[tap].from + k * pitch * value, m.parts[tap].number};
        char *to = t.to + k * t.pitch * value;
        if (bytes >= FEW_BYTES) {
            op.combine(true, m.shifted, parts, channels, to,
                       {t.outputs, step * value, channels, t.divisor});
            continue;
        }
        op.combine(true, m.shifted, parts, (t.outputs - 1) * step + channels, m.scratch,
                   {1, 0, 0, t.divisor});
        // A copy of FEW_BYTES may write what the next ones overwrite.
        const int64_t outputs = t.outputs;
        const int64_t whole = outputs - FEW_BYTES / bytes;
        const char *taken = m.scratch;
        for (int64_t o = 0; o < outputs; ++o, to += bytes, taken += step * value)
            o < whole ? std::memcpy(to, taken, FEW_BYTES) : std::memcpy(to, taken, bytes);
    }
}

void BlockPooling::take_strides(const char *from, int64_t parts, int64_t outputs,
                                const Workspace &m) const {
    if (widens_w) {
        for (int64_t k = 0; k < parts; ++k) {
            char *const each = m.scratch + k * outputs * value;
            take_spaced(value, w.stride, m.parts[k].from, outputs, each);
            m.parts[k].from = each;
        }
        return;
    }
    // The distance from the first to the last tap of a window: whole strides, and the remainder.
    const int64_t strides = (w.extent() - 1) / w.stride;
    const int64_t remainder = (w.extent() - 1) % w.stride;
    const int64_t length = outputs + strides;
    for (int64_t phase = 0; phase < w.stride; phase += std::gcd(w.stride, w.dilation))
        take_spaced(value, w.stride, from + phase * value, phase <= remainder ? length : length - 1,
                    m.scratch + phase * length * value);
    for (int64_t t = 0; t < w.window; ++t) {
        const int64_t at = t * w.dilation;
        m.parts[t].from = m.scratch + (at % w.stride * length + at / w.stride) * value;
    }
}

}  // namespace dmlpool
