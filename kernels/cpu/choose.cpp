// The choice between strategies, with the numbers that were measured for it.

#include "choose.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "operators.h"
#include "vectors.h"

namespace dmlpool {
namespace {

// Tuned numbers, each with what it trades.

// A window of more taps than this may be wide: it is combined from windows of 1, 2, 4, ... taps.
constexpr int64_t WIDE_MAXIMA = 4;
constexpr int64_t WIDE_SUMS = 5;
constexpr int64_t WIDE_SUMS_OF_CHANNELS = 9;
// A window is huge if its extent or stride exceeds HUGE_BESIDE + HUGE_TIMES * size. The work for a
// huge window must not grow with its extent.
constexpr int64_t HUGE_BESIDE = 64;
constexpr int64_t HUGE_TIMES = 4;
// What a tap of several channels costs in bytes, beside the bytes that it loads. Operations that
// are exact count bytes of values.
constexpr double TAP_BYTES = 128;
constexpr double EXACT_TAP_BYTES = BYTES == 64 ? 200 : 100;
// With vectors of less than 64 bytes ROWS costs less than its estimate: WINDOWS' is multiplied.
constexpr double ROWS_IN_NARROW_VECTORS = 1.6;
// Windows of one channel with at least this many taps along W are reduced one by one. The limit is
// LONG_CONVERTED if elements are converted.
constexpr int64_t LONG_PLAIN = 64;
constexpr int64_t LONG_CONVERTED = 16;

// A tile of a long row stays in the first-level cache with what it reads and writes. Rows of
// several channels have TILE_BYTES_OF_CHANNELS.
constexpr int64_t TILE_BYTES = 4096;
constexpr int64_t TILE_BYTES_OF_CHANNELS = 32768;
// The values of rows of workspace that are pooled along W together.
constexpr int64_t WORKSPACE_VALUES = 4096;
// With at least this stride each window of one channel reads its own elements, because every fifth
// element of a row cannot be taken in vectors.
constexpr int64_t STRIDE_WITHOUT_VECTORS = 5;
// The least number of outputs of a box: along W divided by the channels, along H of one channel.
constexpr int64_t BOX_OUTPUTS_W = 2048;
constexpr int64_t BOX_OUTPUTS_H = 64;
// A box holds as many channels as fit into half of a second-level cache, and at least
// BOX_CHANNELS. So few large planes are boxes enough for all threads.
constexpr int64_t BOX_BYTES = 1 << 19;
constexpr int64_t BOX_CHANNELS = 64;

// Planes of more elements are combined in parts. Parts depend on a plane's size alone, so that the
// bits of results do not depend on the number of threads.
constexpr int64_t PART_ELEMENTS = 1 << 18;
// Positions shorter than a vector are combined several at a time, as rows of at most ROW_ELEMENTS
// elements.
constexpr int64_t ROW_ELEMENTS = 2048;

// Planes of more elements are not joined into one row where only maxima are asked for.
constexpr int64_t SMALL_PLANE = 8;
// Longer planes of one row are not joined, unless they are asked for maxima of windows that tile
// them.
constexpr int64_t ROW_MOST = 1024;

// What a tile of WINDOWS reads, which stays in a cache: bytes of values of one channel, elements of
// all rows of several channels, and bytes of values of planes that are finished together.
constexpr int64_t WINDOWS_BYTES = 65536;
// Windows of at least SHARED_ROWS rows share columns with their neighbours if channels * stride is
// less than SHARED_CHANNELS * extent.
constexpr int64_t SHARED_ROWS = 8;
constexpr int64_t SHARED_CHANNELS = 64;

// Winners of channels are compared (see `compares_channels`) if the taps of a window cost less than
// COMPARED times what they cost by rows that windows share.
constexpr double COMPARED = BYTES == 64 ? 2 : 3;
constexpr double COMPARED_OF_8_BYTES = 8;

// Costs of the gradient of maxima in nanoseconds. Gathering reads, for each position, all windows
// that may have won it: GATHER_START, and GATHER_VECTOR for each vector of each window. Scattering
// adds each window to its winner: SCATTER_WINDOW for a window, SCATTER_ELEMENT for an element.
constexpr double GATHER_START = 4;
constexpr double GATHER_VECTOR = BYTES == 64 ? 0.85 : 0.55;
constexpr double SCATTER_WINDOW = 1.05;
constexpr double SCATTER_ELEMENT = 0.1;
// Averages of fewer channels are gathered.
constexpr int64_t FEW_GATHERED = 256;
// Limits for inserting stride - 1 zeros between gradient elements: the time grows with the extent
// of the window, zeros included.
constexpr int64_t ZEROS_STRIDE = 8;
constexpr int64_t ZEROS_WINDOW = 16;
constexpr int64_t ZEROS_EXTENT = 256;

// Planes are transposed (see `are_turned`) if they have at most TURNED_MOST elements. Windows may
// have TURNED_TAPS taps if rows have at most TURNED_NARROW elements, a quarter of that if rows have
// at most TURNED_WIDTH elements.
constexpr int64_t TURNED_MOST = 1024;
constexpr int64_t TURNED_NARROW = 12;
constexpr int64_t TURNED_TAPS = 64;
constexpr int64_t TURNED_WIDTH = 16;
// Windows with a stride of STRIDE_WITHOUT_VECTORS or more may have TURNED_TAPS taps in planes of at
// most TURNED_SPREAD elements too, or of rows of TURNED_WIDTH.
constexpr int64_t TURNED_SPREAD = 128;

std::atomic<int64_t> forced = AUTOMATIC;
std::atomic<int64_t> forced_calls = 0;

// Whether windows lie one after the other, each inside the input, up to its end.
bool is_tiled(const Axis &axis) {
    return axis.window > 0 && axis.window <= axis.stride &&
           axis.outputs * axis.stride == axis.size && axis.padding == 0 && axis.dilation == 1;
}

// The axes of a problem while they are joined. Axes before `first` have one position.
struct Joined {
    Problem p;
    int first = 0;
    Axis *const axes = p.axes;
    int64_t *const ends = p.counting.end_padding;

    explicit Joined(const Problem &given) : p(given) {
        while (first < 2 && axes[first].size == 1 && axes[first].outputs == 1 &&
               axes[first].window <= 1 && axes[first].padding == 0 && ends[first] == 0)
            ++first;
    }
    // Makes the last two axes one.
    void join(const Axis &axis, int64_t end) {
        axes[2] = axis;
        ends[2] = end;
        axes[1] = axes[0];
        ends[1] = ends[0];
        ends[0] = 0;
        axes[0] = {1, 1, 1, 1, 0, 1};
        ++first;
    }
    // While each window reads whole rows. A row of n elements then counts as n positions. Taps keep
    // their numbers.
    void join_rows() {
        while (first < 2) {
            const Axis &h = axes[1];
            const Axis &w = axes[2];
            const int64_t n = w.size;
            const bool is_whole =
                w.outputs == 1 && w.window == n && w.padding == 0 && w.dilation == 1;
            if (!is_whole || (n > 1 && (h.window == 0 || h.dilation > 1)))
                return;
            join({h.size * n, h.outputs, h.window * n, h.stride * n, h.padding * n, h.dilation},
                 ends[1] * n);
        }
    }
    // While windows of one row each tile that row, up to `most` outputs.
    void join_tiled_rows(int64_t most) {
        while (first < 2) {
            const Axis &h = axes[1];
            const Axis &w = axes[2];
            if (h.outputs != h.size || h.window != 1 || h.stride != 1 || h.padding != 0 ||
                !is_tiled(w) || h.size * w.outputs > most)
                return;
            join({h.size * w.size, h.size * w.outputs, w.window, w.stride, w.padding, w.dilation},
                 ends[2]);
        }
    }
    // Whether it is faster to average the rows of all planes as those of one. Short rows are
    // turned, unless windows tile them. The bits of longer windows depend on how many windows a row
    // has.
    bool joins_averages(bool is_gradient) const {
        const Axis &w = axes[2];
        if (first < 2 || w.outputs == 1 || w.size > ROW_MOST || w.window == 0 ||
            w.window >= LONG_CONVERTED || w.stride >= STRIDE_WITHOUT_VECTORS)
            return false;
        return is_tiled(w) || (w.size > TURNED_WIDTH && (w.window > w.stride || !is_gradient));
    }
    // If windows tile the first axis, planes laid end to end are one long plane with the same
    // windows. Planes of one row become the rows of one plane, unless windows tile that row. The
    // winner of a plane's single window has its tap as position.
    void join_planes(bool has_winners) {
        const Axis &row = axes[2];
        if (first == 2 && row.outputs > 1 && row.window > 0 && row.size <= ROW_MOST &&
            !is_tiled(row)) {
            axes[1] = {1, 1, 1, 1, 0, 1};
            first = 1;
        }
        Axis axis = axes[first];
        const bool is_single = first == 2 && axis.outputs == 1;
        if (is_single)
            axis.stride = axis.size;  // there is no next window
        if (!is_tiled(axis))
            return;
        if (is_single && p.numbering == POSITIONS)
            p.numbering = TAPS;
        const bool is_whole = is_single && axis.window == axis.size && !has_winners;
        if (p.numbering != TAPS || (is_whole && axis.size > SMALL_PLANE))
            return;
        axes[first] = {
            p.planes * axis.size, p.planes * axis.outputs, axis.window, axis.stride, 0, 1};
        p.planes = 1;
    }
    // The problem. Axes that are left over have bins if the first axis has.
    Problem problem() {
        for (int a = 0; a < first; ++a)
            axes[a] = {1, 1, std::min<int64_t>(axes[first].window, 1), 1, 0, 1};
        return p;
    }
};

// Whether what a row of outputs reads is read in order first: inputs that come from memory, unless
// windows leave out rows.
bool reads_first(const Windows &windows, int64_t element) {
    const Axis &h = windows.p.h();
    return is_large(windows.p.input_bytes(element)) && !without(READ_FIRST) &&
           (h.window == 0 || h.extent() >= h.stride);
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
    const int64_t least = channels == 1 ? (is_idempotent ? WIDE_MAXIMA : WIDE_SUMS)
                                        : (is_idempotent ? WIDE_MAXIMA + 1 : WIDE_SUMS_OF_CHANNELS);
    if (axis.window <= least)
        return false;
    int64_t steps = 1;
    while ((int64_t(1) << steps) < axis.window)
        ++steps;
    return (steps + 1) * axis.span(axis.outputs) < axis.window * axis.outputs;
}

// Whether combining rows along D and then along H costs less than combining all rows of a window at
// once.
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
        return w.window <
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

uint64_t switched_off = 0;

const char *name_of_mechanism(int64_t number) {
    static constexpr const char *NAMES[] = {
#define NAMED(mechanism, name) name,
        MECHANISMS(NAMED)
#undef NAMED
    };
    return uint64_t(number) < std::size(NAMES) ? NAMES[number] : nullptr;
}

Problem joined_maxima(const Problem &p, bool is_gradient, bool has_winners) {
    Joined joined(p);
    if (p.channels == 1)
        joined.join_rows();
    joined.join_tiled_rows(KEPT_NUMBERS / p.channels);
    if (!is_gradient)
        joined.join_planes(has_winners);
    return joined.problem();
}

Problem joined_averages(const Problem &p, bool is_gradient, bool are_alike) {
    Joined joined(p);
    joined.join_rows();
    joined.join_tiled_rows(std::numeric_limits<int64_t>::max());
    if (are_alike && p.channels == 1 && joined.joins_averages(is_gradient))
        joined.join_planes(false);
    return joined.problem();
}

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
    const int64_t fitting = bytes < BYTES ? std::min<int64_t>(64, ROW_ELEMENTS / p.channels) : 1;
    const int64_t positions = std::min(plan.part, p.plane() / p.channels);
    plan.positions = std::clamp<int64_t>(fitting, 1, std::max<int64_t>(1, positions / 4));
    plan.reads_first =
        bytes <= 2048 && !without(READ_FIRST) && is_large(p.input_bytes(question.element_size));
    plan.at_once = std::max(PLANES_A_CALL, WINDOWS_BYTES / bytes & -PLANES_A_CALL);
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
    plan.reduces_w = channels == 1 && w.stride >= STRIDE_WITHOUT_VECTORS && !plan.doubles_w &&
                     !without(REDUCED_ALONG_W);
    const int64_t bytes = channels == 1 ? TILE_BYTES
                          : value > 4   ? TILE_BYTES_OF_CHANNELS / 2
                                        : TILE_BYTES_OF_CHANNELS;
    const int64_t least = std::max<int64_t>(1, bytes / value / channels / w.stride);
    plan.outputs_w =
        plan.doubles_w || channels > 1 ? box_outputs(w, least) : std::min(w.outputs, least);
    const int64_t values = WORKSPACE_VALUES / std::min<int64_t>(4, value);
    plan.rows = std::max<int64_t>(1, values / row_values(w, plan));
    plan.outputs_h = plan.rows;
    const int64_t read =
        question.windows.most(0) * question.windows.most(1) * plan.outputs_w * w.stride;
    plan.reads_first = read * channels * question.element_size <= BOX_BYTES &&
                       reads_first(question.windows, question.element_size);
    return plan;
}

BlockPlan plan_boxes(const Question &question) {
    const Problem &p = question.windows.p;
    const Axis &h = p.h();
    const Axis &w = p.w();
    BlockPlan plan;
    plan.doubles_h = is_wide(question.is_idempotent, p.channels, h);
    plan.doubles_w = is_wide(question.is_idempotent, p.channels, w);
    plan.reduces_w = p.channels == 1 && w.stride >= STRIDE_WITHOUT_VECTORS && !plan.doubles_w &&
                     !without(REDUCED_ALONG_W);
    plan.outputs_w = box_outputs(w, std::max<int64_t>(1, BOX_OUTPUTS_W / p.channels));
    plan.outputs_h = box_outputs(h, p.channels > 1 ? 1 : BOX_OUTPUTS_H);
    const int64_t positions = h.span(plan.outputs_h) * std::min(w.size, w.span(plan.outputs_w));
    const int64_t fitting = BOX_BYTES / question.value_size / positions & -BOX_CHANNELS;
    plan.channels = std::min(p.channels, std::max(BOX_CHANNELS, fitting));
    plan.rows = std::clamp<int64_t>(WORKSPACE_VALUES / row_values(w, plan), 1, h.outputs);
    return plan;
}

WindowPlan plan_windows(const Windows &windows, const WindowOperations &op) {
    const Problem &p = windows.p;
    const Axis &w = p.w();
    const int64_t rows = std::max<int64_t>(1, windows.most(0) * windows.most(1));
    const int64_t elements = WINDOWS_BYTES / (p.channels == 1 ? op.value_size : rows);
    WindowPlan plan;
    plan.outputs_w =
        std::clamp<int64_t>(elements * w.outputs / (w.size * p.channels), 1, w.outputs);
    plan.shares_columns = !without(SHARED_COLUMNS) && op.is_separable && rows >= SHARED_ROWS &&
                          p.channels * w.stride < SHARED_CHANNELS * w.extent();
    plan.reads_first =
        p.channels > 1 && !plan.shares_columns && reads_first(windows, op.element_size);
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
    if (p.channels < n || taps > 1 << 14 || last >= std::ldexp(1., 8 * element_size - 1))
        return false;
    const double vectors = double(parts_of(p.channels, n) * n) / double(p.channels);
    const double w = window_of(p.w());
    // A single window along W shares no rows with a next one.
    const bool is_alone = p.w().outputs == 1 && !is_large(p.input_bytes(element_size));
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
    // `pool_windows` copies their sums.
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
                                             : width <= TURNED_WIDTH             ? TURNED_TAPS / 4
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
