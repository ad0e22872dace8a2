// How axes and planes are joined before a problem is pooled.

#include "choose.h"
#include "operators.h"

namespace dmlpool {
namespace {

// Larger planes of one window each stay apart, for PLANES, where no winners are asked for.
constexpr int64_t SMALL_PLANE = 8;
// Longer planes of one row with several windows are joined only for maxima of tiling windows.
constexpr int64_t ROW_MOST = 1024;

// Averages of planes that windows tile, and maxima of such volumes, are joined where rows are at
// least this long.
constexpr int64_t JOINED_WIDTH = 12;

constexpr Axis SINGLE = {1, 1, 1, 1, 0, 1};  // one window of one position

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

    explicit Joined(const Problem &plain) : p(plain) {
        for (Axis &axis : p.axes)
            if (axis.window == 0 && axis.outputs == 1)  // a bin of all positions is a window
                axis.window = axis.stride = axis.size;
        while (first < 2 && axes[first].size == 1 && axes[first].outputs == 1 &&
               axes[first].window <= 1 && axes[first].padding == 0 && ends[first] == 0)
            ++first;
    }
    // Replaces the last two axes by `axis`, whose padding at the end is `end`.
    void join(const Axis &axis, int64_t end) {
        axes[2] = axis;
        ends[2] = end;
        axes[1] = axes[0];
        ends[1] = ends[0];
        ends[0] = 0;
        axes[0] = SINGLE;
        ++first;
    }
    // Joins H and W while each window reads whole rows. A row of n elements then counts as n
    // positions. Taps keep their numbers.
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
    // Joins H and W while windows of one row each tile that row.
    void join_tiled_rows() {
        while (first < 2) {
            const Axis &h = axes[1];
            const Axis &w = axes[2];
            if (h.outputs != h.size || h.window != 1 || h.stride != 1 || h.padding != 0 ||
                !is_tiled(w))
                return;
            join({h.size * w.size, h.size * w.outputs, w.window, w.stride, w.padding, w.dilation},
                 ends[2]);
        }
    }
    // Whether it is faster to average the rows of all planes as those of one. Short rows are left
    // to TURNED, unless windows tile them. Sums of longer windows would be added in another order
    // if the row had more windows.
    bool joins_averages(bool is_gradient) const {
        const Axis &w = axes[2];
        if (w.outputs == 1)
            return first == 2 && is_gradient;
        if (!is_gradient && joins_tiles(p))
            return true;
        if (first < 2 || w.size > ROW_MOST || w.window == 0 || w.window >= LONG_CONVERTED)
            return false;
        return is_tiled(w) || (w.size > TURNED_WIDTH && (w.window > w.stride || !is_gradient));
    }
    // If windows tile the first axis, planes laid end to end are one long plane with the same
    // windows. Planes of one row become the rows of one plane, unless windows tile that row. If a
    // plane has one window, which begins with the plane, a winner's position is its tap's number.
    // With `keeps_large` planes of one window stay apart, for PLANES, unless they are small.
    void join_planes(bool keeps_large) {
        const Axis &row = axes[2];
        if (first == 2 && row.outputs > 1 && row.window > 0 && row.size <= ROW_MOST &&
            !is_tiled(row)) {
            axes[1] = SINGLE;
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
        const bool is_whole = is_single && axis.window == axis.size && keeps_large;
        if (p.numbering != TAPS || (is_whole && axis.size > SMALL_PLANE))
            return;
        axes[first] = {
            p.planes * axis.size, p.planes * axis.outputs, axis.window, axis.stride, 0, 1};
        p.planes = 1;
    }
    // The joined problem. Axes before `first` become one position, in a bin if `first` has bins.
    Problem problem() {
        for (int a = 0; a < first; ++a)
            axes[a] = {1, 1, min<int64_t>(axes[first].window, 1), 1, 0, 1};
        return p;
    }
};

}  // namespace

bool joins_tiles(const Problem &p) {
    return p.d().size == 1 && p.d().outputs == 1 && is_tiled(p.h()) && is_tiled(p.w()) &&
           p.w().outputs > 1 && p.w().size >= JOINED_WIDTH;
}

Problem joined_maxima(const Problem &p, bool is_gradient, bool has_winners) {
    Joined joined(p);
    if (p.channels == 1)
        joined.join_rows();
    joined.join_tiled_rows();
    // Narrow volumes are left to TURNED.
    if (!is_gradient && (joined.first > 0 || p.w().size >= JOINED_WIDTH))
        joined.join_planes(!has_winners);
    return joined.problem();
}

Problem joined_averages(const Problem &p, bool is_gradient, bool may_join_planes) {
    Joined joined(p);
    joined.join_rows();
    joined.join_tiled_rows();
    if (may_join_planes && p.channels == 1 && joined.joins_averages(is_gradient))
        joined.join_planes(!is_gradient);
    return joined.problem();
}

}  // namespace dmlpool
