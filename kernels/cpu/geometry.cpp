// Windows seen from the input, and the runs that outputs form along a row.

#include "geometry.h"

namespace dmlpool {
SeenAxis::SeenAxis(const Axis &axis)
    : axis(axis), divisor(gcd(axis.stride, axis.dilation)), step(axis.dilation / divisor) {}

Span SeenAxis::span_of(int64_t x) const {
    const Range around = axis.outputs_around(x);
    if (axis.dilation == 1 || around.begin >= around.end)
        return {around.begin, max(around.end - around.begin, 0), x - axis.first(around.begin)};
    const int64_t place = x + axis.padding;
    // The first output reads x with the last of the taps that some output reads it with.
    int64_t tap = place % divisor != 0 ? -1 : min(axis.window - 1, place / axis.dilation);
    while (tap >= 0 && (place - tap * axis.dilation) % axis.stride != 0)
        --tap;
    const int64_t first = tap < 0 ? around.end : (place - tap * axis.dilation) / axis.stride;
    return {first, max(parts_of(around.end - first, step), 0), tap};
}

Windows adjoint_of(const Windows &windows) {
    Windows result(windows.p);
    for (int a = 0; a < 3; ++a) {
        const Axis &axis = windows.p.axes[a];
        const int64_t step = axis.window > 0 ? result.seen[a].emplace(axis).step : 1;
        result.p.axes[a] = {axis.outputs, axis.size, 0, 1, 0, step};
    }
    return result;
}

Range Windows::reach(int a, int64_t output, int64_t outputs) const {
    const int64_t last = output + outputs - 1;
    if (seen[a])
        return {seen[a]->axis.outputs_around(output).begin, seen[a]->axis.outputs_around(last).end};
    const Axis &axis = p.axes[a];
    if (axis.window > 0)
        return {clamp(axis.first(output), 0, axis.size),
                clamp(axis.first(last) + axis.extent(), 0, axis.size)};
    const Span span = axis.span_of(last);
    return {axis.span_of(output).begin, span.begin + span.count};
}

int64_t Windows::most_taps(int a) const {
    const Axis &axis = p.axes[a];
    if (axis.window == 0 && !seen[a])  // the bin that begins latest inside a position
        return parts_of(axis.size + axis.outputs - gcd(axis.size, axis.outputs), axis.outputs);
    int64_t bound = min(axis.window, parts_of(axis.size, axis.dilation));
    if (seen[a]) {
        const SeenAxis &from = *seen[a];
        bound = min(parts_of(axis.size, from.step),
                    parts_of(from.axis.window, from.axis.stride / from.divisor));
    } else if (axis.whole().begin < axis.whole().end)
        return axis.window;
    int64_t most = 1;
    for (int64_t o = 0; o < axis.outputs && most < bound; ++o)
        most = max(most, at(a, o).count);
    return most;
}

bool Windows::are_planes() const {
    bool result = true;
    for (int a = 0; a < 3; ++a) {
        const Axis &axis = p.axes[a];
        result &= axis.outputs == 1 && at(a, 0).count == axis.size &&
                  (axis.dilation == 1 || axis.size == 1);
    }
    return result;
}

bool Windows::form_groups() const {
    if (!seen[2])
        return p.w().window == 0 && p.w().outputs >= 2 * p.w().size;
    const Axis &axis = seen[2]->axis;
    return axis.dilation == 1 && axis.stride > 1;
}

void find_groups(const Windows &windows, int64_t output, int64_t end, vector<Run> &runs) {
    const Axis &w = windows.p.w();
    const bool are_bins = !windows.seen[2];
    const Axis &read = are_bins ? w : windows.seen[2]->axis;
    // Between these outputs all windows are there that could read them.
    const int64_t low_end = are_bins ? end : read.extent() - read.stride - read.padding;
    const int64_t high_end = min(end, w.size * read.stride - read.padding);
    const Span span = windows.at(2, output);
    int64_t low = span.begin;
    int64_t high = low + span.count;
    int64_t x = output;
    int64_t leaves = x;  // the output from which on `low` is not read
    int64_t enters = x;  // the output from which on `high` is read
    // Adds the group of output x, which ends at `stop` or where other positions are read. It
    // divides only for what has changed.
    const auto add = [&](int64_t stop, int64_t groups) {
        if (leaves <= x)
            leaves = are_bins        ? parts_of((low + 1) * w.outputs, w.size)
                     : low >= w.size ? end
                                     : read.first(low) + read.extent();
        if (enters <= x)
            enters = are_bins ? high * w.outputs / w.size : high >= w.size ? end : read.first(high);
        const int64_t next = min({stop, leaves, enters});
        runs.push_back({low, high - low, 0, groups, 1, x - output, next - x, read.stride});
        low += leaves <= next;
        high += enters <= next;
        x = next;
    };
    while (x < end) {
        const int64_t periods = x > output && x >= low_end ? (high_end - x) / read.stride : 0;
        if (periods < 2) {
            add(end, 1);
            continue;
        }
        for (const int64_t stop = x + read.stride; x < stop;)
            add(stop, periods);
        low += periods - 1;
        high = min(high + periods - 1, w.size);
        x += (periods - 1) * read.stride;
    }
}

void find_runs(const Windows &windows, bool are_numbered, int64_t output, int64_t end,
               vector<Run> &runs, int64_t apart) {
    const Axis &axis = windows.p.w();
    const Range whole = axis.whole();
    for (int64_t start = output; start < min(output + apart, end); ++start) {
        const size_t before = runs.size();
        for (int64_t o = start; o < end; o += apart) {
            if (whole.contains(o)) {
                const int64_t taken = min(whole.end, end) - o;
                runs.push_back({axis.first(o), axis.window, 0, taken, taken > 1 ? axis.stride : 0});
                o += taken - 1;
                continue;
            }
            const Span span = windows.at(2, o);
            const int64_t tap = are_numbered ? span.tap : 0;
            // A run of a single output takes any step that is not negative.
            if (runs.size() > before && runs.back().count == span.count && runs.back().tap == tap) {
                Run &last = runs.back();
                const int64_t step = span.begin - last.begin - (last.groups - 1) * last.step;
                if (last.groups == 1 ? step >= 0 : step == last.step) {
                    last.step = step;
                    ++last.groups;
                    continue;
                }
            }
            runs.push_back({span.begin, span.count, tap, 1, 0, o - output, 1, apart});
        }
    }
}

}  // namespace dmlpool
