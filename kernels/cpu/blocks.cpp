// Rows of workspace become outputs along W.

#include "blocks.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "strides.h"

namespace dmlpool {

Block BlockPooling::block_at(int64_t plane, int64_t channel_part, int64_t od, int64_t tile_h,
                             int64_t tile_w) const {
    Block b;
    b.plane = plane;
    b.channel = std::min(channel_part * channels, p.channels - channels);
    b.new_channels = std::min(channels, p.channels - channel_part * channels);
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
    const bool has_scratch = (channels == 1 && w.stride > 1) || windows.spacing > 1;
    const int64_t scratch = has_scratch ? size : 0;
    const int64_t sums_of_rows = plan.doubles_w && !op.is_idempotent ? size : 0;
    const int64_t sums = op.is_idempotent ? 0 : box_size;
    const int64_t taps = std::max(w.window, box_size > 0 ? h.window : 0);
    Workspace m;
    m.all_rows.resize(most_rows + 3 * taps);
    m.rows = m.all_rows.data();
    m.parts = m.rows + most_rows;
    m.of_h = m.parts + taps;
    m.moved = m.of_h + taps;
    const int64_t values = 2 * staged + scratch + sums_of_rows + box_size + sums;
    m.memory.resize(values * value + ALIGNMENT);
    const uintptr_t address = reinterpret_cast<uintptr_t>(m.memory.data());
    m.staged = m.memory.data() + (-address & (ALIGNMENT - 1));
    m.produced = m.staged + staged * value;
    m.scratch = m.produced + staged * value;
    m.sums_of_rows = m.scratch + scratch * value;
    m.box = m.sums_of_rows + sums_of_rows * value;
    m.sums = m.box + box_size * value;
    return m;
}

int64_t BlockPooling::find_taps(const char *data, int64_t n, const Axis &axis, int64_t unit,
                                Row *taps) const {
    for (int64_t tap = 0; tap < axis.window; ++tap)
        taps[tap] = {data + tap * axis.dilation * n * value, tap * unit};
    return axis.window;
}

int64_t BlockPooling::double_windows(char *data, char *sums, int64_t n, int64_t length,
                                     const Axis &axis, int64_t unit, Row *parts) const {
    const int64_t k = axis.window;
    const int64_t step = axis.dilation * n;
    const int64_t outputs = length - (k - 1) * step;
    const auto part = [=](int64_t tap) { return Row{data + tap * step * value, tap * unit}; };
    int64_t power = 1;
    int64_t taken = 0;
    for (; 2 * power <= k; power *= 2) {
        if (!op.is_idempotent && (k & power)) {
            Row row = part(taken);
            if (taken == 0)
                op.combine(true, &row, 1, outputs, sums);
            else
                op.add(row, outputs, sums);
            taken += power;
        }
        op.add(part(power), length - power * step, data);
    }
    int64_t count = 0;
    if (taken > 0)
        parts[count++] = {sums, 0};
    parts[count++] = part(taken);
    if (op.is_idempotent && power < k)
        parts[count++] = part(k - power);
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

BlockPooling::Target BlockPooling::target_of(const Block &b, int64_t r, int64_t rows,
                                             const Workspace &m) const {
    Target t;
    t.row = b.oh + r;
    t.rows = rows;
    t.out_pitch = p.output_row() * finish.result_size;
    const int64_t output_row = (b.plane * d.outputs + b.od) * h.outputs + t.row;
    t.out =
        output + output_row * t.out_pitch + (b.ow * p.channels + b.channel) * finish.result_size;
    t.is_whole = has_all_channels && b.outputs_w == w.outputs && row_length == w.outputs;
    t.is_stored = (finish.is_direct || divisor != 0) && has_all_channels;
    t.to = t.is_stored ? t.out : m.produced;
    t.to_pitch = t.is_stored ? p.output_row() : row_length * channels;
    // Rows that lie one after the other are computed as one.
    t.all = (rows - 1) * row_length + b.outputs_w;
    const bool are_one = !t.is_stored || t.is_whole;
    t.runs = are_one ? 1 : rows;
    t.outputs = are_one ? t.all : b.outputs_w;
    return t;
}

void BlockPooling::pool_along_w(const Block &b, int64_t r, int64_t rows, const char *from,
                                const Workspace &m) const {
    const Target t = target_of(b, r, rows, m);
    const bool is_short =
        w.window > 1 && (w.window == w.stride ? w.window <= 4 : w.window == 3 && w.stride == 2);
    if (channels == 1 && is_short && w.dilation == 1 && !without(SHORT_WINDOWS))
        for (int64_t k = 0; k < t.runs; ++k)
            op.combine_short(from + k * pitch * value, w.window, w.stride, t.outputs,
                             t.to + k * t.to_pitch * value);
    else if (plan.reduces_w) {
        const Run whole = {0, w.window, 0, t.outputs, w.stride};
        for (int64_t k = 0; k < t.runs; ++k)
            op.reduce_windows(true, {from + k * pitch * value, 0}, 0, &whole, t.outputs, w.dilation,
                              t.to + k * t.to_pitch * value,
                              from == m.staged ? m.produced : end_of_input);
    } else
        combine_taps(b, from, t, m);
    if (!t.is_stored)
        finish_rows(b, t);
}

void BlockPooling::combine_taps(const Block &b, const char *from, const Target &t,
                                const Workspace &m) const {
    const int64_t values = (t.rows - 1) * pitch + w.span(b.outputs_w) * channels;
    // Rows that are doubled lie in the workspace.
    const int64_t parts = plan.doubles_w ? double_windows(m.staged, m.sums_of_rows, channels,
                                                          values, w, op.units[2], m.parts)
                                         : find_taps(from, channels, w, op.units[2], m.parts);
    const double by = t.is_stored ? divisor : 0;
    if (w.stride == 1)
        op.combine(true, m.parts, parts, t.outputs * channels, t.to,
                   {t.runs, pitch * value, t.to_pitch, by});
    else if (channels > 1)
        for (int64_t k = 0; k < t.runs; ++k) {
            for (int64_t tap = 0; tap < parts; ++tap)
                m.moved[tap] = {m.parts[tap].from + k * pitch * value, m.parts[tap].number};
            op.combine(true, m.moved, parts, channels, t.to + k * t.to_pitch * value,
                       {t.outputs, w.stride * channels * value, channels, by});
        }
    else {
        take_strides(from, parts, t.all, m);
        op.combine(true, m.parts, parts, t.outputs, t.to, {t.runs, row_length * value, t.to_pitch});
    }
}

void BlockPooling::take_strides(const char *from, int64_t parts, int64_t all,
                                const Workspace &m) const {
    if (plan.doubles_w) {
        for (int64_t k = 0; k < parts; ++k) {
            char *const each = m.scratch + k * all * value;
            take_each(value, w.stride, m.parts[k].from, all, each);
            m.parts[k].from = each;
        }
        return;
    }
    const int64_t length = all + strides_to_last;
    for (int64_t phase = 0; phase < w.stride; phase += phase_step)
        take_each(value, w.stride, from + phase * value, phase <= beside_last ? length : length - 1,
                  m.scratch + phase * length * value);
    for (int64_t t = 0, phase = 0, output = 0; t < w.window; ++t) {
        m.parts[t].from = m.scratch + (phase * length + output) * value;
        for (phase += w.dilation; phase >= w.stride; phase -= w.stride)
            ++output;
    }
}

void BlockPooling::finish_rows(const Block &b, const Target &t) const {
    const int64_t n = b.outputs_w * channels;
    if (t.is_whole && finish.is_uniform)
        return finish(b.plane, b.od, t.row, 0, t.rows * n, t.to, t.out);
    const int64_t known = has_all_channels ? 0 : channels - b.new_channels;
    for (int64_t k = 0; k < t.rows; ++k)
        for (int64_t x = 0; x < (has_all_channels ? 1 : b.outputs_w); ++x)
            finish(b.plane, b.od, t.row + k, (b.ow + x) * p.channels + b.channel + known,
                   has_all_channels ? n : b.new_channels,
                   t.to + (k * t.to_pitch + x * channels + known) * value,
                   t.out + k * t.out_pitch + (x * p.channels + known) * finish.result_size);
}

}  // namespace dmlpool
