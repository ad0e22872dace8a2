// The list of implementations, with the reasons why one does not serve a request.

#include "choose.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "vectors.h"

namespace dmlpool {
namespace {

// Tuned numbers, each with what it trades.

// A window of more taps than this may be wide; maxima of several channels need one more.
constexpr int64_t WIDE_MAXIMA = 4;
constexpr int64_t WIDE_SUMS = 16;
// A window is huge if its extent or stride exceeds HUGE_BESIDE + HUGE_TIMES * size. The work for a
// huge window must not grow with its extent.
constexpr int64_t HUGE_BESIDE = 64;
constexpr int64_t HUGE_TIMES = 4;
// What a tap of several channels costs in bytes, beside the bytes that it loads.
constexpr double TAP_BYTES = 128;
// Windows of one channel with at least this many taps along W are reduced one by one. The limit is
// LONG_CONVERTED if elements are converted.
constexpr int64_t LONG_PLAIN = 64;

// Winners of channels are compared if the taps of a window cost less than
// COMPARED_COST times what they cost by rows that windows share.
constexpr double COMPARED_COST = BYTES == 64 ? 2 : 3;
constexpr double COMPARED_COST_OF_8_BYTES = 8;

// Gradients of maxima of channels are gathered if a value for each tap has at most this many bytes,
// in lanes that channels fill.
constexpr double GATHERED_BYTES = 56;
// Limits for inserting stride - 1 zeros between gradient elements: the time grows with the extent
// of the window, zeros included.
constexpr int64_t ZEROS_STRIDE = 8;
constexpr int64_t ZEROS_WINDOW = 16;
constexpr int64_t ZEROS_EXTENT = 256;

// Planes are transposed if they have at most TURNED_MOST elements. Windows may have TURNED_TAPS
// taps if rows have at most TURNED_NARROW elements, and a quarter of that in longer rows of at most
// TURNED_WIDTH, TURNED_STRIDED or TURNED_LONG elements: see turned_width.
constexpr int64_t TURNED_MOST = 1296;
constexpr int64_t TURNED_STRIDED = 32;
constexpr int64_t TURNED_LONG = 36;
// Averages of bins of less than TURNED_BIN positions, which are shorter than vectors of a row, are
// turned in planes of up to TURNED_MOST_OF_BINS elements: 16 of them fit a second-level cache.
constexpr int64_t TURNED_BIN = 10;
constexpr int64_t TURNED_MOST_OF_BINS = 4096;
constexpr int64_t TURNED_NARROW = 12;
constexpr int64_t TURNED_TAPS = 64;
// Maxima of fewer planes are not turned.
constexpr int64_t FEW_TURNED = 8;

// Whether an axis has bins, or windows that reach so far past the input that no work may grow with
// their extent.
bool is_huge(const Axis &axis) {
    return axis.window == 0 ||
           max(axis.extent(), axis.stride) > HUGE_BESIDE + HUGE_TIMES * axis.size;
}

// Whether combining rows along D and then along H costs less than combining all rows of a window at
// once, which reads each row several times. Reading elements of one channel costs half as much
// again where they are converted: 3/2 of volumes with winners .76, averages of bfloat16 13/1 .85.
bool is_separate(const Request &r) {
    const Axis &d = r.p.d();
    const Axis &h = r.p.h();
    const bool are_converted = r.p.channels == 1 && r.element_size != r.value_size;
    return double(d.window + 1) * double(h.stride) + double(h.window) <
           double(d.window * h.window) * (are_converted ? 1.5 : 1);
}

// Whether ROWS costs less than WINDOWS. For several channels the costs are estimates of the bytes
// that each strategy loads and stores.
bool costs_less_by_rows(const Request &request) {
    const Problem &p = request.p;
    const Axis &w = p.w();
    const double window = double(w.window);
    if (p.channels == 1)
        return w.window <
                   (request.element_size == request.value_size ? LONG_PLAIN : LONG_CONVERTED) ||
               w.dilation > 1;
    const double bytes = double(p.channels * request.element_size);
    const double rows = double(p.d().window * p.h().window);
    const double by_rows =
        ((rows + 2) * double(w.stride) + window) * bytes + (w.stride > 1 ? window * TAP_BYTES : 0);
    return by_rows < rows * window * (bytes + TAP_BYTES);
}

// Why an implementation does not serve a request: because it cannot, or because another is faster.
// Null where it does.
using Reason = const char *;

Reason planes_cannot(const Request &r) {
    const Problem &p = r.p;
    // PLANES numbers elements of the plane. That is the tap's number only if the window is exactly
    // the plane.
    const bool are_elements = p.d().window == p.d().size && p.h().window == p.h().size &&
                              p.w().window == p.w().size && p.channels == 1;
    return !r.windows.are_planes()          ? "windows are not whole planes"
           : !r.is_uniform                  ? "results depend on where they are"
           : r.has_numbers && !are_elements ? "numbers of taps are not those of elements"
                                            : nullptr;
}

// The taps of a window along the axis, or about those of a bin.
double taps_of(const Axis &axis) {
    return double(axis.window ? axis.window : min(axis.extent(), axis.size));
}
double taps_of(const Problem &p) {
    return taps_of(p.d()) * taps_of(p.h()) * taps_of(p.w());
}
// Whether integers as wide as elements hold the numbers of taps.
Reason numbers_cannot(const Request &r) {
    return taps_of(r.p) > 1 << 14 ||
                   last_number(r.p, r.units) >= std::ldexp(1., int(8 * r.element_size - 1))
               ? "integers as wide as an element do not hold the numbers of taps"
               : nullptr;
}
// Whether the numbers of taps have a byte each, as in vectors that gather gradients of maxima.
Reason taps_cannot(const Request &r) {
    for (const Axis &axis : r.p.axes)
        if (axis.window == 0)
            return "bins have no taps";
    return r.operation == WINNERS_GRADIENT && r.p.bytes > 1 ? "taps have more than a byte"
                                                            : nullptr;
}

bool sums_short_bins(const Request &r) {
    const Axis &w = r.p.w();
    return r.operation & (AVERAGE | AVERAGE_GRADIENT) && w.window == 0 &&
           w.size < TURNED_BIN * w.outputs;
}
Reason turned_cannot(const Request &r) {
    const int64_t most = sums_short_bins(r) ? TURNED_MOST_OF_BINS : TURNED_MOST;
    return r.p.channels > 1                              ? "several channels are vectors already"
           : max(r.p.plane(), r.p.output_plane()) > most ? "planes are large"
           : r.operation == WINNERS                      ? numbers_cannot(r)
           : r.operation == WINNERS_GRADIENT             ? taps_cannot(r)
                                                         : nullptr;
}
// The longest rows of planes that are transposed. Strides leave vectors of rows half empty, and
// make it cheaper to add to winners one by one. Averages of planes of one row may be joined.
int64_t turned_width(const Request &r) {
    const Problem &p = r.p;
    const bool is_strided = p.w().stride > 1;
    if (sums_short_bins(r))
        return TURNED_MOST_OF_BINS;
    if (r.operation == WINNERS_GRADIENT)
        return is_strided ? TURNED_NARROW : TURNED_LONG;
    if (r.operation != WINNERS && (!is_strided || p.h().outputs == p.h().size))
        return TURNED_WIDTH;
    return r.operation == WINNERS || r.operation == AVERAGE_GRADIENT ? TURNED_LONG : TURNED_STRIDED;
}
Reason turned_is_slower(const Request &r) {
    const Problem &p = r.p;
    const bool sums = r.operation & (AVERAGE | AVERAGE_GRADIENT);
    const bool is_gradient = r.operation & (AVERAGE_GRADIENT | WINNERS_GRADIENT);
    if (r.windows.are_planes())
        return "windows are whole planes";
    if (r.operation == AVERAGE && joins_tiles(p))
        return "windows tile all planes as one";
    // The bits of sums must not depend on the number of planes.
    if (!sums && p.planes < FEW_TURNED)
        return "there are few planes";
    const int64_t width = max(p.w().size, p.w().outputs);
    const int64_t most = width <= TURNED_NARROW && r.operation != WINNERS_GRADIENT ? TURNED_TAPS
                         : width <= turned_width(r)                                ? TURNED_TAPS / 4
                                                                                   : 0;
    const Windows seen = is_gradient ? adjoint_of(r.windows) : r.windows;
    return seen.most_taps(0) * seen.most_taps(1) * seen.most_taps(2) > most
               ? "windows are large or rows are long"
               : nullptr;
}

// The lanes of vectors of channels, by the channels in them.
double lanes_of_channels(const Request &r, int64_t size) {
    const int64_t n = BYTES / size;
    return double(parts_of(r.p.channels, n) * n) / double(r.p.channels);
}
Reason compared_cannot(const Request &r) {
    return r.p.channels < BYTES / r.element_size ? "channels do not fill a vector"
                                                 : numbers_cannot(r);
}
Reason compared_is_slower(const Request &r) {
    const Problem &p = r.p;
    const double rows = taps_of(p.d()) * taps_of(p.h());
    const double w = taps_of(p.w());
    const double factor = r.element_size == 8 ? COMPARED_COST_OF_8_BYTES : COMPARED_COST;
    return lanes_of_channels(r, r.element_size) * rows * w <
                   factor * (rows * double(p.w().stride) + w)
               ? nullptr
               : "windows share rows";
}

Reason gathered_cannot(const Request &r) {
    return r.p.channels < BYTES / r.value_size ? "channels do not fill a vector" : taps_cannot(r);
}
// Gathering reads, for each vector of channels, all windows that may have won it. Scattering adds
// each window to its winner, element by element.
Reason gathered_is_slower(const Request &r) {
    return lanes_of_channels(r, r.value_size) * taps_of(r.p) * double(r.value_size) > GATHERED_BYTES
               ? "many windows may have won an element"
               : nullptr;
}

Reason boxes_cannot(const Request &r) {
    return r.windows.spacing > 1 ? "zeros lie between elements"
           : is_huge(r.p.d()) || is_huge(r.p.h()) || is_huge(r.p.w())
               ? "there are bins, or windows reach far past the input"
               : nullptr;
}
// Under a mask, which ROWS do not read, BOXES are what rows are without one.
Reason boxes_is_slower(const Request &r) {
    return (r.windows.kept && costs_less_by_rows(r)) ||
                   is_wide(r.is_idempotent, r.p.channels, r.p.h()) || is_separate(r) ||
                   (r.p.channels > 1 && is_wide(r.is_idempotent, r.p.channels, r.p.w()))
               ? nullptr
               : "windows are small or share little";
}

Reason rows_cannot(const Request &r) {
    return r.windows.kept ? "a mask leaves out elements"
           : r.windows.spacing == 1 && is_huge(r.p.w())
               ? "there are bins along W, or windows reach far past it"
               : nullptr;
}
Reason rows_is_slower(const Request &r) {
    const bool is_wide_w = is_wide(r.is_idempotent, r.p.channels, r.p.w()) && !boxes_cannot(r);
    return r.windows.spacing > 1 || is_wide_w || costs_less_by_rows(r)
               ? nullptr
               : "windows are long or share few rows";
}

Reason windows_cannot(const Request &r) {
    return r.windows.spacing > 1 ? "zeros lie between elements" : nullptr;
}

// What serves requests, in order: the first that can, and for which no reason says that one after
// it is faster.
struct Implementation {
    Strategy number;
    const char *name;
    int operations;
    Reason (*cannot)(const Request &);
    Reason (*is_slower)(const Request &);
};
Reason never(const Request &) {
    return nullptr;
}
constexpr Implementation IMPLEMENTATIONS[] = {
    {PLANES, "planes", POOL, planes_cannot, never},
    {TURNED, "turned", AVERAGE | AVERAGE_GRADIENT | MAXIMA | WINNERS | WINNERS_GRADIENT,
     turned_cannot, turned_is_slower},
    {COMPARED, "compared", WINNERS, compared_cannot, compared_is_slower},
    {GATHERED, "gathered", WINNERS_GRADIENT, gathered_cannot, gathered_is_slower},
    {BOXES, "boxes", POOL, boxes_cannot, boxes_is_slower},
    {ROWS, "rows", POOL, rows_cannot, rows_is_slower},
    {SCATTERED, "scattered", WINNERS_GRADIENT, never, never},
    {WINDOWS, "windows", POOL, windows_cannot, never},
};

atomic<Strategy> forced = AUTOMATIC;
atomic<int64_t> off = 0;  // a bit for each implementation that is switched off
atomic<int64_t> forced_calls = 0;

// Why an implementation is not taken while `wanted` is forced.
Reason reason_of(const Implementation &one, const Request &request, Strategy wanted) {
    const Reason reason = one.cannot(request);
    if (reason || wanted == one.number)
        return reason;
    if (wanted != AUTOMATIC)
        return "another is forced";
    if (off >> one.number & 1 && request.windows.spacing == 1)
        return "it is switched off";
    return one.is_slower(request);
}

// With DMLPOOL_VERBOSE=1: writes a line about a choice.
void tell(const Request &request, const char *name, const string &reasons) {
    static constexpr const char *OPERATIONS[] = {"pool",   "averages", "gradient of averages",
                                                 "maxima", "winners",  "gradient of maxima"};
    const Problem &p = request.p;
    string axes;
    for (const Axis &axis : p.axes)
        axes += ", " + to_string(axis.size) + " by " + to_string(axis.window) + "/" +
                to_string(axis.stride);
    std::fprintf(stderr, "dmlpool: %s of %d bytes, %.0f planes of %.0f channels%s: %s%s\n",
                 OPERATIONS[__builtin_ctz(request.operation)], type_of(p).bytes, double(p.planes),
                 double(p.channels), axes.c_str(), name, reasons.c_str());
}

}  // namespace

// A window of k taps is estimated to cost log2 k combinations, and one more, at every position of
// the axis: BlockPooling::list_parts computes windows there, not only where outputs are.
bool is_wide(bool is_idempotent, int64_t channels, const Axis &axis) {
    if (axis.window <= (is_idempotent ? WIDE_MAXIMA + (channels > 1) : WIDE_SUMS))
        return false;
    const int64_t steps = 65 - __builtin_clzll(axis.window - 1);
    return steps * axis.span(axis.outputs) < axis.window * axis.outputs;
}

double last_number(const Problem &p, const int64_t *units) {
    double last = 0;
    for (int a = 0; a < 3; ++a)
        last += (taps_of(p.axes[a]) - 1) * double(units[a]);
    return last;
}

bool puts_zeros_between(const Axis &axis) {
    const bool is_tiling = axis.window == axis.stride && axis.dilation == 1;
    return axis.window > 0 && axis.stride <= ZEROS_STRIDE && axis.window <= ZEROS_WINDOW &&
           axis.extent() <= ZEROS_EXTENT && !is_tiling;
}

Strategy choose(const Request &request) {
    static const char *const verbose = std::getenv("DMLPOOL_VERBOSE");
    const bool is_verbose = verbose && *verbose == '1';
    string reasons;
    for (const Strategy asked : {forced.load(std::memory_order_relaxed), AUTOMATIC}) {
        reasons.clear();
        for (const Implementation &one : IMPLEMENTATIONS) {
            if (!(one.operations & request.operation))
                continue;
            const Reason reason = reason_of(one, request, asked);
            if (!reason) {
                forced_calls += asked == one.number;
                if (is_verbose)
                    tell(request, one.name, reasons);
                return one.number;
            }
            if (is_verbose)
                reasons += string("; not ") + one.name + ": " + reason;
        }
        // A strategy that is forced may be one for POOL, which `pool` asks for next.
        if (request.operation != POOL && request.operation != WINNERS_GRADIENT)
            break;
    }
    if (is_verbose)
        tell(request, "pool", reasons);
    return AUTOMATIC;
}

void force(Strategy strategy, int64_t without) {
    forced = strategy;
    off = without;
    forced_calls = 0;
}

int64_t calls_forced() {
    return forced_calls;
}

void pool(const RowOperations &op, const Finish &finish, const void *from, void *to,
          const Windows &windows, Strategy strategy) {
    const Request request = {POOL,
                             windows,
                             op.element_size,
                             op.value_size,
                             op.is_idempotent,
                             op.units[2] != 0,
                             finish.is_uniform,
                             op.units};
    if (strategy == AUTOMATIC)
        strategy = choose(request);
    if (strategy == PLANES)
        pool_planes({op, finish, from, to, windows});
    else if (strategy == WINDOWS)
        pool_windows({op, finish, from, to, windows});
    else
        pool_rows({op, finish, from, to, windows}, strategy == BOXES);
}

}  // namespace dmlpool
