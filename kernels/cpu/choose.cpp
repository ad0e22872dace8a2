// The choice between strategies, with the numbers that were measured for it.

#include "choose.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "vectors.h"

namespace dmlpool {
namespace {

// Tuned numbers. Each has the reason, the request and the processor that measured it.

// An axis with more taps than this may be wide. Reason: a window of 2^n taps costs n steps. Request
// and processor not measured separately.
constexpr int64_t WIDE_MAXIMA = 4;
constexpr int64_t WIDE_SUMS = 5;
constexpr int64_t WIDE_MAXIMA_OF_CHANNELS = 5;
constexpr int64_t WIDE_SUMS_OF_CHANNELS = 9;
// A window is huge if its extent or stride exceeds HUGE_BESIDE + HUGE_TIMES * size. The work for a
// huge window must not grow with its extent. Not measured separately.
constexpr int64_t HUGE_BESIDE = 64;
constexpr int64_t HUGE_TIMES = 4;
// The cost of a tap, in bytes, in addition to the bytes that it loads. Reason: within 2 % of the
// better of two ways over 1,092 requests of channels_last tensors; processor not noted.
constexpr double TAP_BYTES = 128;
// The same for maxima and for sums of bytes, counted in bytes of values. Their bits do not depend
// on the choice. It is 1.2 to 1.7 times faster for 2/2 over 16 and 32 channels of float32, 32 to
// 128 of half precision and 64 and 128 of uint8, and for 3/2 over 128 channels of bfloat16; 56x56,
// Zen 4.
constexpr double EXACT_TAP_BYTES = BYTES == 64 ? 200 : 100;
// With vectors of less than 64 bytes ROWS costs less than its estimate, so the estimate of WINDOWS
// is multiplied by this factor. Reason: with AVX2 7/7 over 64 channels is 2.5 times faster, 4/4
// over 256 channels 2 times, 3/3 1.25 times; processor not noted.
constexpr double ROWS_IN_NARROW_VECTORS = 1.6;
// Windows of one channel with at least this many taps along W use WINDOWS. The limit is
// LONG_CONVERTED if elements are converted. Reason: windows of 64 taps take as long either way;
// windows of 20 taps whose elements are converted are 1.4 times faster. Processor not noted.
constexpr double LONG_PLAIN = 64;
constexpr double LONG_CONVERTED = 16;

// Long rows are pooled in tiles. A tile of one channel has TILE_BYTES, so that what it reads and
// writes stays in the first-level cache: 1-D 3/3 and 4/4 are 1.3 to 1.5 times faster. A tile of
// several channels has TILE_BYTES_OF_CHANNELS, or half of that if a value has more than 4 bytes.
// Processor not noted.
constexpr int64_t TILE_BYTES = 4096;
constexpr int64_t TILE_BYTES_OF_CHANNELS = 32768;
// A row of several channels is one tile if it has at most WHOLE_ROW_BYTES and tiles would read more
// than TILES_SHARE of it twice. Reason: averages 3/1 of 8x1280x8x8 are 1.2 times faster, of
// 1280x8x8 1.15, of 8x1024x17x17 1.05, of 2048x8x8 0.88 to 1.05; at 1024x17x30, where tiles read
// 0.27 of a row twice, 0.86 times as fast; float32, Zen 4.
constexpr int64_t WHOLE_ROW_BYTES = 131072;
constexpr double TILES_SHARE = 0.3;
// Rows of workspace are pooled along W together while they have at most this many values; in the
// strategy ROWS this divided by min(4, bytes of a value). Not measured separately.
constexpr int64_t WORKSPACE_VALUES = 4096;
// With at least this stride, each window of one channel reads its own elements, because every fifth
// element of a row cannot be taken in vectors. Reason: 5/5 to 12/12 of 64x4096 are 2.5 to 4.5 times
// faster with AVX2; processor not noted.
constexpr int64_t STRIDE_WITHOUT_VECTORS = 5;
// The least number of outputs of a box. Along W it is BOX_OUTPUTS_W divided by the number of
// channels. Along H it is BOX_OUTPUTS_H for one channel. Not measured separately.
constexpr int64_t BOX_OUTPUTS_W = 2048;
constexpr int64_t BOX_OUTPUTS_H = 64;
// A box holds as many channels as fit into BOX_BYTES. Reason: 31/1 over 512 channels is 4 times
// faster. If there are fewer than FEW_BOXES boxes, a box has BOX_BYTES_OF_FEW, so that there are
// enough boxes for all threads: with two threads 13/1 on 20x20 is 2 times faster. Processor not
// noted.
constexpr int64_t BOX_BYTES = 1 << 23;
constexpr int64_t BOX_BYTES_OF_FEW = 1 << 18;
constexpr int64_t FEW_BOXES = 16;
constexpr int64_t BOX_CHANNELS = 64;  // a box has at least this many channels, or a multiple of it

// Planes of more elements are combined in parts. Parts depend on a plane's size alone, so that the
// bits of results do not depend on the number of threads. Not measured separately.
constexpr int64_t PART_ELEMENTS = 1 << 18;
// With fewer than FEW_CHANNELS channels, several positions are combined as one row. The row has at
// most ROW_ELEMENTS elements and ROW_POSITIONS positions. Not measured separately.
constexpr int64_t FEW_CHANNELS = 256;
constexpr int64_t ROW_ELEMENTS = 2048;
constexpr int64_t ROW_POSITIONS = 64;
// A position whose values have SINGLE_BYTES[0] to SINGLE_BYTES[1] bytes is a row by itself. Reason:
// averages of 1x32x112x112 are 1.15 times faster, of 8x16x128x128 1.05 to 1.15; float32, Zen 4.
constexpr int64_t SINGLE_BYTES[2] = {64, 128};
// Positions that are rows by themselves are read in order first, if one has ORDERED_POSITION_BYTES
// at most and all have ORDERED_PLANES_BYTES or more. Reason: averages of 8x256x64x64 to 1x1 are 2
// times faster, those of 8x256x28x28 would be 0.7 times as fast; float32, Zen 4.
constexpr int64_t ORDERED_POSITION_BYTES = 2048;
constexpr int64_t ORDERED_PLANES_BYTES = 8 << 20;
// Rows that windows share with those above are read in order in inputs of several channels and of
// more than ORDERED_BYTES. Reason: maxima 3/2 of 8x288x35x35 are 1.5 times faster; with 3 MB, 3/2
// of 256x56x56 would be 0.78 times as fast; float32, Zen 4.
constexpr int64_t ORDERED_BYTES = 6 << 20;
// Values of planes become results whenever they fill this many bytes, because the values of many
// planes would fill a cache. Not measured separately.
constexpr int64_t FINISHED_BYTES = 65536;

// ROWS prefetches rows of one channel of at least AHEAD_ROW bytes, for windows with a stride, in
// inputs of more than AHEAD_BYTES, and all rows in those that are large (`is_large`). It reads rows
// of several channels in order instead: those that windows share in inputs of more than
// ORDERED_BYTES, and all rows in large ones. Each row is then combined by a call of its own.
// Reason: maxima 3/2 of 64x147x147 are 1.3 times faster, 64x114x114 1.2, 96x112x112 1.1, 2/2 of
// 128x128x128 1.6; 2/1 of 2x64x112x112 would be 0.9 times as fast, 3/1 of 8x192x28x28 0.8, 3/2 of
// 8x108x57x57 0.84; float32, Zen 4.
constexpr int64_t AHEAD_ROW = 400;
constexpr int64_t AHEAD_BYTES = 4 << 20;

// The size of what a tile of WINDOWS reads, which stays in a cache. For one channel it counts bytes
// of values. For several channels it counts elements of all rows. Not measured separately.
constexpr int64_t WINDOWS_BYTES = 65536;
// Windows of at least SHARED_ROWS rows share columns with their neighbours if channels * stride is
// less than SHARED_CHANNELS * extent. Reason: 5x5 bins of 224x224 over 7 channels would take five
// times as long. The numbers are not measured separately.
constexpr int64_t SHARED_ROWS = 8;
constexpr int64_t SHARED_CHANNELS = 64;
// Up to this stride WINDOWS reads in order before it combines: the taps of each window if the input
// is large (`is_large`), or rows that windows share (see ORDERED_BYTES). Reason: without,
// forward averages (1, 2)/(1, 2) of 32x512x1x256 are 2 times slower and 2/2 of 8x256x56x56 1.6
// times, float32, Zen 4. The number is not measured separately.
constexpr int64_t FIRST_STRIDE = 4;
// Rows of at most this many bytes are read whole before their windows are combined, also where
// windows share none. Reason: averages 2/2 of 256x16x28x28 are 2.9 times faster, of 128x64x28x28
// 1.7; 3/3 of 256x16x32x32 is 0.77 times as fast; with 64 KB, 2/2 of 16x512x28x28 0.75; Zen 4.
constexpr int64_t SHORT_ROW_BYTES = 8192;
// Where winners of windows that share no rows are wanted, elements are read first if a position has
// more than this many bytes. Reason: training maxima 2/2 of 32x64x64x64 would be 0.95 times as
// fast, and without reading (16, 16, 1) of 8x124x32x32x32 0.85 times; float32, Zen 4.
constexpr int64_t FIRST_BYTES_WITH_WINNERS = 256;
// Windows of positions of this many bytes are read from ORDERED_BYTES on, others where the input is
// large (`is_large`). Reason: averages and maxima 2/2 of 8x256x32x32 are 1.1 to 1.17 times faster,
// of 8x64x64x64 they would be 0.88 to 0.95 times as fast; float32, Zen 4.
constexpr int64_t LONG_POSITION_BYTES = 1024;

// Winners of channels are compared (see `compares_channels`) if the taps of a window cost less than
// COMPARED times what they cost by rows that windows share. Reason: with AVX2, 5/1 is 1.7 times
// faster with 3 in place of 2; processor not noted.
constexpr double COMPARED = BYTES == 64 ? 2 : 3;
constexpr double COMPARED_OF_8_BYTES = 8;
// Windows of more taps are never compared that way. Not measured separately.
constexpr double COMPARED_TAPS = 1 << 14;

// Costs of the gradient of maxima in nanoseconds. Gathering reads, for each position, all windows
// that may have won it: GATHER_START, and GATHER_VECTOR for each vector of each window. Scattering
// adds each window to its winner: SCATTER_WINDOW for a window, SCATTER_ELEMENT for an element.
// Reason: fitted to ten windows from 1/2 to 7/1 over 16 to 520 channels of 28x28 and 14x14,
// float32, Zen 4 with AVX-512 and with AVX2. Each choice is within 1.25 of the better one.
constexpr double GATHER_START = 4;
constexpr double GATHER_VECTOR = BYTES == 64 ? 0.85 : 0.55;
constexpr double SCATTER_WINDOW = 1.05;
constexpr double SCATTER_ELEMENT = 0.1;
// Averages of fewer channels are gathered. Reason: the gradient of 3/2 is 1.6 times faster over 64
// channels of 56x56 and as fast over 256 of 28x28, and 0.9 times as fast over 256 of 14x14,
// float32, Zen 4 with AVX-512 and with AVX2.
constexpr int64_t FEW_GATHERED = 256;
// The largest stride, window and extent for which zeros are put between arriving elements, because
// they cost what they span. Not measured separately.
constexpr int64_t ZEROS_STRIDE = 8;
constexpr int64_t ZEROS_WINDOW = 16;
constexpr int64_t ZEROS_EXTENT = 256;

// Planes are transposed (see `are_turned`) if they have at most TURNED_MOST elements. Windows may
// have up to TURNED_TAPS taps if rows have at most TURNED_NARROW elements, and up to TURNED_FEW
// taps if rows have at most TURNED_WIDTH elements. Averages and gradients of 65,536 elements, Zen
// 4: 2.2x to 5.8x on 8x8, 1.6x to 3.3x on 14x14 with 3/2 and 3/1, 12x on 4x4x4 with 2/2; 0.6x on
// 16x16 with 7/1 and 20x20 with 3/1, which are therefore not turned.
constexpr int64_t TURNED_MOST = 1024;
constexpr int64_t TURNED_NARROW = 12;
constexpr int64_t TURNED_TAPS = 64;
constexpr int64_t TURNED_WIDTH = 16;
constexpr int64_t TURNED_FEW = 16;
// Windows with a stride of STRIDE_WITHOUT_VECTORS or more may have TURNED_TAPS taps in planes of at
// most TURNED_SPREAD elements too, or of rows of TURNED_WIDTH: averages 8/8 of 512x64x17 are 6
// times faster, of 64x64x100 2 times, 7/7 of 8x64x14x14 1.4; 8/8 of 64x64x256 as fast.
constexpr int64_t TURNED_SPREAD = 128;

std::atomic<int64_t> forced = AUTOMATIC;
std::atomic<int64_t> forced_calls = 0;

// Whether windows may read rows that the windows above them have read.
bool may_share_rows(const Problem &p) {
    return p.h().window > p.h().stride;
}

// Whether an axis has bins, or windows that reach so far past the input that no work may grow with
// their extent.
bool is_huge(const Axis &axis) {
    return axis.window == 0 ||
           std::max(axis.extent(), axis.stride) > HUGE_BESIDE + HUGE_TIMES * axis.size;
}

bool has_huge_axis(const Problem &p) {
    return is_huge(p.d()) || is_huge(p.h()) || is_huge(p.w());
}

// Whether windows are wide and overlap. They are then made of windows of 1, 2, 4, ... taps, each
// from two of the size before, so that an axis of k taps costs log k.
bool is_wide(bool is_idempotent, int64_t channels, const Axis &axis) {
    const int64_t least = channels == 1
                              ? (is_idempotent ? WIDE_MAXIMA : WIDE_SUMS)
                              : (is_idempotent ? WIDE_MAXIMA_OF_CHANNELS : WIDE_SUMS_OF_CHANNELS);
    if (axis.window <= least)
        return false;
    int64_t steps = 1;
    while ((int64_t(1) << steps) < axis.window)
        ++steps;
    return (steps + 1) * axis.span(axis.outputs) < axis.window * axis.outputs;
}

// Whether combining rows along D and then along H costs less than combining all rows of a window at
// once: 3x3x3 is 1.4 times faster, with indices 1.7 times.
bool is_separate(const Axis &d, const Axis &h) {
    return double(d.window + 1) * double(h.stride) + double(h.window) < double(d.window * h.window);
}

// Whether ROWS costs less than WINDOWS. For several channels the costs are estimates of the bytes
// that each strategy loads and stores.
bool costs_less_by_rows(const Question &question) {
    const Problem &p = question.windows.p;
    const Axis &w = p.w();
    const double window = double(w.window);
    if (p.channels == 1)
        return window <
                   (question.element_size == question.value_size ? LONG_PLAIN : LONG_CONVERTED) ||
               w.dilation > 1;
    const double bytes =
        double(p.channels * (question.is_exact ? question.value_size : question.element_size));
    const double rows = double(p.d().window * p.h().window);
    const double by_rows = ((rows + 2) * double(w.stride) + window) * bytes +
                           (w.stride > 1 && !question.is_exact ? window * TAP_BYTES : 0);
    return by_rows < (BYTES == 64 ? 1 : ROWS_IN_NARROW_VECTORS) * rows * window *
                         (bytes + (question.is_exact ? EXACT_TAP_BYTES : TAP_BYTES));
}

// The outputs of a box along an axis. There are at least `least`, and enough for neighbouring boxes
// to share little of what they read.
int64_t box_outputs(const Axis &axis, int64_t least) {
    const int64_t wanted = std::max(least, 2 * axis.extent() / axis.stride);
    return parts_of(axis.outputs, std::max<int64_t>(1, axis.outputs / wanted));
}

// The number of values in a row of workspace.
int64_t row_values(const Axis &w, const BlockPlan &plan) {
    return parts_of(w.span(plan.outputs_w), w.stride) * w.stride * plan.channels;
}

}  // namespace

bool can_compute(Strategy strategy, const Question &question) {
    const Windows &windows = question.windows;
    const Problem &p = windows.p;
    if (strategy == PLANES) {
        // A tap has the number of its element if windows are as large as the plane.
        const bool are_elements = p.d().window == p.d().size && p.h().window == p.h().size &&
                                  p.w().window == p.w().size && p.channels == 1;
        return question.is_uniform && windows.are_planes() &&
               (!question.has_numbers || are_elements);
    }
    if (strategy == BOXES || strategy == WINDOWS)
        return windows.spacing == 1 && (strategy == WINDOWS || !has_huge_axis(p));
    return strategy == ROWS && (windows.spacing > 1 || !is_huge(p.w()));
}

Strategy choose(const Question &question) {
    const Problem &p = question.windows.p;
    if (can_compute(PLANES, question))
        return PLANES;
    if (question.windows.spacing > 1)
        return ROWS;
    const bool has_wide_w = is_wide(question.is_idempotent, p.channels, p.w());
    if (can_compute(BOXES, question) &&
        (is_wide(question.is_idempotent, p.channels, p.h()) || (p.channels > 1 && has_wide_w) ||
         is_separate(p.d(), p.h())))
        return BOXES;
    if (!can_compute(ROWS, question))
        return WINDOWS;
    const bool doubles = has_wide_w && can_compute(BOXES, question);
    return costs_less_by_rows(question) || doubles ? ROWS : WINDOWS;
}

PlanePlan plan_planes(const Question &question) {
    const Problem &p = question.windows.p;
    PlanePlan plan;
    plan.part = std::max<int64_t>(1, PART_ELEMENTS / p.channels);
    const int64_t bytes = p.channels * question.value_size;
    const bool is_single = bytes >= SINGLE_BYTES[0] && bytes <= SINGLE_BYTES[1];
    const int64_t fitting = p.channels < FEW_CHANNELS && !is_single
                                ? std::min(ROW_POSITIONS, ROW_ELEMENTS / p.channels)
                                : 1;
    plan.reads_first = fitting == 1 && bytes <= ORDERED_POSITION_BYTES &&
                       p.input_bytes(question.element_size) >= ORDERED_PLANES_BYTES;
    const int64_t positions = std::min(plan.part, p.plane() / p.channels);
    plan.positions = std::clamp<int64_t>(fitting, 1, std::max<int64_t>(1, positions / 4));
    // Rows 4 KB apart would share a set of the first-level cache: averages of 8x128x28x28 to 1x1
    // would be 0.88 to 0.95 times as fast, 1x128x56x56 0.95 times; float32, Zen 4.
    plan.positions -= plan.positions > 1 && plan.positions * bytes % 4096 == 0;
    plan.at_once = std::max(PLANES_A_CALL, FINISHED_BYTES / bytes & -PLANES_A_CALL);
    return plan;
}

BlockPlan plan_rows(const Question &question) {
    const int64_t channels = question.windows.p.channels;
    const int64_t value = question.value_size;
    const Axis w = question.windows.spaced_w();
    BlockPlan plan;
    plan.channels = channels;
    plan.doubles_h = false;
    plan.doubles_w = is_wide(question.is_idempotent, channels, w);
    plan.reduces_w = channels == 1 && w.stride >= STRIDE_WITHOUT_VECTORS && !plan.doubles_w;
    const int64_t bytes = channels == 1 ? TILE_BYTES
                          : value > 4   ? TILE_BYTES_OF_CHANNELS / 2
                                        : TILE_BYTES_OF_CHANNELS;
    const int64_t least = std::max<int64_t>(1, bytes / value / channels / w.stride);
    plan.outputs_w = plan.doubles_w ? box_outputs(w, least) : std::min(w.outputs, least);
    const int64_t twice = parts_of(w.outputs, plan.outputs_w) * (w.extent() - w.stride);
    const int64_t span = w.outputs * w.stride;
    if (channels > 1 && !plan.doubles_w && double(twice) > TILES_SHARE * double(span) &&
        span * channels * value <= WHOLE_ROW_BYTES)
        plan.outputs_w = w.outputs;
    const int64_t values = WORKSPACE_VALUES / std::min<int64_t>(4, value);
    plan.rows = std::max<int64_t>(1, values / row_values(w, plan));
    plan.outputs_h = plan.rows;
    const Problem &p = question.windows.p;
    const Axis &h = p.h();
    const int64_t element = question.element_size;
    const bool is_early =
        channels == 1
            ? h.stride > 1 && p.row() * element >= AHEAD_ROW && p.input_bytes(element) > AHEAD_BYTES
            : may_share_rows(p) && p.input_bytes(element) > ORDERED_BYTES;
    // Not short rows by themselves: maxima 3/1 of 3072x64x17 would be 0.6 times as fast; Zen 4.
    const bool is_ahead = channels > 1 || h.window > 1 || p.row() * element >= AHEAD_ROW;
    plan.reads_ahead =
        (is_early || (is_ahead && p.is_large(element))) && plan.outputs_w == w.outputs;
    return plan;
}

BlockPlan plan_boxes(const Question &question) {
    const Problem &p = question.windows.p;
    const Axis &h = p.h();
    const Axis &w = p.w();
    BlockPlan plan;
    plan.doubles_h = is_wide(question.is_idempotent, p.channels, h);
    plan.doubles_w = is_wide(question.is_idempotent, p.channels, w);
    plan.reduces_w = p.channels == 1 && w.stride >= STRIDE_WITHOUT_VECTORS && !plan.doubles_w;
    plan.outputs_w = box_outputs(w, std::max<int64_t>(1, BOX_OUTPUTS_W / p.channels));
    plan.outputs_h = box_outputs(h, p.channels > 1 ? 1 : BOX_OUTPUTS_H);
    const int64_t boxes = p.planes * p.d().outputs * parts_of(h.outputs, plan.outputs_h) *
                          parts_of(w.outputs, plan.outputs_w);
    const int64_t positions = h.span(plan.outputs_h) * std::min(w.size, w.span(plan.outputs_w));
    const int64_t bytes = boxes < FEW_BOXES ? BOX_BYTES_OF_FEW : BOX_BYTES;
    const int64_t fitting = bytes / question.value_size / positions & -BOX_CHANNELS;
    plan.channels = std::min(p.channels, std::max(BOX_CHANNELS, fitting));
    plan.rows = std::clamp<int64_t>(WORKSPACE_VALUES / row_values(w, plan), 1, h.outputs);
    return plan;
}

WindowPlan plan_windows(const Windows &windows, const WindowOperations &op) {
    const Problem &p = windows.p;
    const int64_t size = op.element_size;
    const Axis &w = p.w();
    const int64_t rows = std::max<int64_t>(1, windows.most(0) * windows.most(1));
    const int64_t elements = WINDOWS_BYTES / (p.channels == 1 ? op.value_size : rows);
    WindowPlan plan;
    plan.outputs_w =
        std::clamp<int64_t>(elements * w.outputs / (w.size * p.channels), 1, w.outputs);
    plan.shares_columns = op.is_separable && rows >= SHARED_ROWS &&
                          p.channels * w.stride < SHARED_CHANNELS * w.extent();
    const bool shares_rows = may_share_rows(p);
    const bool may_pay = !op.writes_results || p.channels * size > FIRST_BYTES_WITH_WINNERS;
    const bool may_read = !plan.shares_columns && rows * windows.most(2) > 1 && w.window > 0 &&
                          w.stride <= FIRST_STRIDE && (shares_rows || may_pay);
    const bool is_ordered = p.input_bytes(size) > ORDERED_BYTES;
    const bool is_large =
        p.is_large(size) || (is_ordered && p.channels * size >= LONG_POSITION_BYTES);
    const bool by_rows = shares_rows ? is_ordered : is_large && p.row() * size <= SHORT_ROW_BYTES;
    plan.reads_rows_first = may_read && by_rows && w.window >= w.stride;
    plan.reads_taps_first = may_read && is_large && !plan.reads_rows_first;
    return plan;
}

bool compares_channels(const Problem &p, const int64_t (&units)[3], int64_t element_size) {
    const int64_t n = BYTES / element_size;
    const auto window_of = [](const Axis &axis) {
        return double(axis.window ? axis.window : std::min(axis.extent(), axis.size));
    };
    double taps = 1;
    double last = 0;
    for (int a = 0; a < 3; ++a) {
        taps *= window_of(p.axes[a]);
        last += (window_of(p.axes[a]) - 1) * double(units[a]);
    }
    // Channels must fill a vector, and integers as wide as an element must hold the numbers of
    // taps.
    if (p.channels < n || taps > COMPARED_TAPS || last >= std::ldexp(1., 8 * element_size - 1))
        return false;
    const double vectors = double(parts_of(p.channels, n) * n) / double(p.channels);
    const double w = window_of(p.w());
    // A single window along W shares no rows with a next one. This is not used for large tensors,
    // whose channels are read too far from each other: 7/1 of 32x2048x7x7 would take twice as long.
    const bool is_alone = p.w().outputs == 1 && !p.is_large(element_size);
    const double stride = is_alone ? w : double(p.w().stride);
    return vectors * taps <
           (element_size == 8 ? COMPARED_OF_8_BYTES : COMPARED) * (taps / w * stride + w);
}

bool gathers_channels(const Problem &p, int64_t value_size) {
    const int64_t n = BYTES / value_size;
    double taps = 1;
    double strides = 1;
    for (const Axis &axis : p.axes) {
        taps *= double(axis.window);
        strides *= double(axis.stride);
    }
    const double vectors = double(parts_of(p.channels, n));
    const double channels = double(p.channels);
    return p.bytes == 1 && p.channels >= n &&
           GATHER_START + GATHER_VECTOR * vectors * taps / strides <
               channels * (SCATTER_WINDOW / strides + SCATTER_ELEMENT);
}

bool gathers_shares(const Problem &p) {
    if (p.channels == 1 || p.channels >= FEW_GATHERED || p.w().stride != 2)
        return false;
    const Windows seen = adjoint_of(Windows(p));
    // Where strides are larger, elements beside each other are often read by the same windows, and
    // `pool_windows` copies their sums: 5/4 of 64x30x30 is 1.5 times faster.
    const auto is_narrow = [](const Axis &axis) { return axis.window > 0 && axis.stride <= 2; };
    // Rows that windows share are combined first where there are many of them (`shares_columns`).
    return forced.load(std::memory_order_relaxed) == AUTOMATIC &&
           std::all_of(std::begin(p.axes), std::end(p.axes), is_narrow) &&
           seen.most(0) * seen.most(1) < SHARED_ROWS;
}

bool puts_zeros_between(const Axis &axis) {
    return axis.window > 0 && axis.stride <= ZEROS_STRIDE && axis.window <= ZEROS_WINDOW &&
           axis.extent() <= ZEROS_EXTENT;
}

void force(Strategy strategy) {
    forced = strategy;
    forced_calls = 0;
}

int64_t calls_forced() {
    return forced_calls;
}

bool are_turned(const Problem &p, const Windows &windows) {
    const bool can_be = p.channels == 1 && std::max(p.plane(), p.output_plane()) <= TURNED_MOST;
    const Strategy wanted = Strategy(forced.load(std::memory_order_relaxed));
    if (wanted != AUTOMATIC || !can_be) {
        forced_calls += wanted == TURNED && can_be;
        return wanted == TURNED && can_be;
    }
    const int64_t width = std::max(p.w().size, p.w().outputs);
    const int64_t taps = windows.most(0) * windows.most(1) * windows.most(2);
    const bool is_spread = p.w().stride >= STRIDE_WITHOUT_VECTORS &&
                           (width <= TURNED_WIDTH || p.plane() <= TURNED_SPREAD);
    return !windows.are_planes() && taps <= (width <= TURNED_NARROW || is_spread ? TURNED_TAPS
                                             : width <= TURNED_WIDTH             ? TURNED_FEW
                                                                                 : 0);
}

bool are_disjoint(const Problem &p) {
    return forced.load(std::memory_order_relaxed) == AUTOMATIC &&
           std::all_of(std::begin(p.axes), std::end(p.axes), [](const Axis &axis) {
               return axis.window > 0 && axis.extent() <= axis.stride;
           });
}

void pool(const RowOperations &op, const Finish &finish, const void *from, void *to,
          const Windows &windows, Strategy given) {
    const char *const input = static_cast<const char *>(from);
    char *const output = static_cast<char *>(to);
    const Question question = {windows,           op.is_idempotent, op.is_exact,  op.units[2] != 0,
                               finish.is_uniform, op.element_size,  op.value_size};
    const Strategy wanted = Strategy(forced.load(std::memory_order_relaxed));
    Strategy strategy;
    if (given != AUTOMATIC)
        strategy = given;
    else if (wanted != AUTOMATIC && can_compute(wanted, question)) {
        strategy = wanted;
        ++forced_calls;
    } else
        strategy = choose(question);
    if (strategy == PLANES)
        pool_planes(op, finish, input, output, windows.p, plan_planes(question));
    else if (strategy == WINDOWS)
        pool_windows(op, finish, input, output, windows);
    else if (strategy == ROWS)
        pool_rows(op, finish, input, output, windows, plan_rows(question));
    else
        pool_boxes(op, finish, input, output, windows, plan_boxes(question));
}

}  // namespace dmlpool
