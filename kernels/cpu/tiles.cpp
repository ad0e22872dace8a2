// How a strategy cuts a problem into pieces of work that fit into caches.

#include <algorithm>

#include "choose.h"
#include "vectors.h"

namespace dmlpool {
namespace {

// A tile of a long row stays in the first-level cache with what it reads and writes. Rows of
// several channels have TILE_BYTES_OF_CHANNELS.
constexpr int64_t TILE_BYTES = 4096;
constexpr int64_t TILE_BYTES_OF_CHANNELS = 32768;
// The values of rows of workspace that are pooled along W together.
constexpr int64_t WORKSPACE_VALUES = 4096;
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

// What a tile of WINDOWS reads, which stays in a cache: bytes of values of one channel, elements of
// all rows of several channels, and bytes of values of planes that are finished together.
constexpr int64_t WINDOWS_BYTES = 65536;
// See SHARED_ROWS in choose.h.
constexpr int64_t SHARED_CHANNELS = 64;

// Whether what a row of outputs reads is read in order first: inputs that come from memory, unless
// windows leave out rows. Windows of channels that share rows read them once for several rows of
// outputs, so that it pays from three quarters of that size on.
bool reads_first(const Windows &windows, int64_t element) {
    const Axis &h = windows.p.h();
    const int64_t bytes = windows.p.input_bytes(element);
    const bool shares_rows = windows.p.channels > 1 && h.window > h.stride;
    return is_large(shares_rows ? bytes + bytes / 3 : bytes) && !without(READ_FIRST) &&
           (h.window == 0 || h.extent() >= h.stride);
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

PlanePlan plan_planes(const Request &request) {
    const Problem &p = request.windows.p;
    PlanePlan plan;
    plan.part = std::max<int64_t>(1, PART_ELEMENTS / p.channels);
    const int64_t bytes = p.channels * request.value_size;
    const int64_t fitting = bytes < BYTES ? std::min<int64_t>(64, ROW_ELEMENTS / p.channels) : 1;
    const int64_t positions = std::min(plan.part, p.plane() / p.channels);
    plan.positions = std::clamp<int64_t>(fitting, 1, std::max<int64_t>(1, positions / 4));
    plan.reads_first =
        bytes <= 2048 && !without(READ_FIRST) && is_large(p.input_bytes(request.element_size));
    plan.at_once = std::max(PLANES_A_CALL, WINDOWS_BYTES / bytes & -PLANES_A_CALL);
    return plan;
}

BlockPlan plan_rows(const Request &request) {
    const int64_t channels = request.windows.p.channels;
    const int64_t value = request.value_size;
    const Axis w = request.windows.spaced_w();
    BlockPlan plan;
    plan.channels = channels;
    plan.doubles_h = false;
    plan.doubles_w = is_wide(request.is_idempotent, channels, w);
    plan.reduces_w = channels == 1 && w.stride >= STRIDE_WITHOUT_VECTORS && !plan.doubles_w &&
                     !without(REDUCED_ALONG_W);
    const int64_t bytes = channels == 1 ? TILE_BYTES
                          : value > 4   ? TILE_BYTES_OF_CHANNELS / 2
                                        : TILE_BYTES_OF_CHANNELS;
    const int64_t least = std::max<int64_t>(1, bytes / value / channels / w.stride);
    // Tiles of several channels have few positions, of which their windows share many.
    const int64_t few = channels > 1 && !plan.doubles_w ? 4 * w.extent() / w.stride : 0;
    plan.outputs_w = plan.doubles_w || channels > 1 ? box_outputs(w, std::max(least, few))
                                                    : std::min(w.outputs, least);
    const int64_t values = WORKSPACE_VALUES / std::min<int64_t>(4, value);
    plan.rows = std::max<int64_t>(1, values / row_values(w, plan));
    plan.outputs_h = plan.rows;
    const int64_t read =
        request.windows.most(0) * request.windows.most(1) * plan.outputs_w * w.stride;
    plan.reads_first = read * channels * request.element_size <= BOX_BYTES &&
                       reads_first(request.windows, request.element_size);
    return plan;
}

BlockPlan plan_boxes(const Request &request) {
    const Problem &p = request.windows.p;
    const Axis &h = p.h();
    const Axis &w = p.w();
    BlockPlan plan;
    plan.doubles_h = is_wide(request.is_idempotent, p.channels, h);
    plan.doubles_w = is_wide(request.is_idempotent, p.channels, w);
    plan.reduces_w = p.channels == 1 && w.stride >= STRIDE_WITHOUT_VECTORS && !plan.doubles_w &&
                     !without(REDUCED_ALONG_W);
    plan.outputs_w = box_outputs(w, std::max<int64_t>(1, BOX_OUTPUTS_W / p.channels));
    plan.outputs_h = box_outputs(h, p.channels > 1 ? 1 : BOX_OUTPUTS_H);
    const int64_t positions = h.span(plan.outputs_h) * std::min(w.size, w.span(plan.outputs_w));
    const int64_t fitting = BOX_BYTES / request.value_size / positions & -BOX_CHANNELS;
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
    plan.outputs_w = std::clamp<int64_t>(elements * w.outputs / (w.size * p.channels), 1,
                                         std::min(w.outputs, TILE_OUTPUTS));
    plan.shares_columns = !without(SHARED_COLUMNS) && op.is_separable && rows >= SHARED_ROWS &&
                          p.channels * w.stride < SHARED_CHANNELS * w.extent();
    plan.reads_first =
        p.channels > 1 && !plan.shares_columns && reads_first(windows, op.element_size);
    return plan;
}

}  // namespace dmlpool
