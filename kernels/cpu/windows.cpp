// Each window is pooled by itself. Only what the windows of one row of outputs share along D and H
// is combined once.
//
//     input    . a a a . . .      one row of outputs: the rows that it reads are combined,
//              . a a a . . .      and each window reduces a part of the combined row;
//              . a a a . . .      with many channels each window combines all its elements
//                v
//     outputs  | 0 | 1 | 2 | ...

#include <cstring>
#include <vector>

#include "choose.h"
#include "operations.h"
#include "parallel.h"

namespace dmlpool {
namespace {

// What a tile reads, which stays in a cache: bytes of values of one channel, or elements of all
// rows of several channels.
constexpr int64_t TILE_READS = 65536;
// The bytes that are read in order before they are combined: few, so that the processor does both
// at the same time.
constexpr int64_t READ_BYTES = 4096;
// Bytes of values of several channels that become results together.
constexpr int64_t FINISHED_BYTES = 4096;
// Windows of at least SHARED_ROWS rows share columns if a position between two of them has less
// than SHARED_CHANNELS channels.
constexpr int64_t SHARED_CHANNELS = 64;

// One channel: the rows that a row of outputs reads are combined into one, and each window reduces
// its part of it. Several channels: each window combines all its elements, or, if windows have many
// rows and few channels, its columns of one combined row.
struct WindowPooling {
    const WindowOperations &op;
    const Finish &finish;
    const char *const input;
    char *const output;
    const Windows &windows;

    const Problem &p = windows.p;
    const Axis d = p.d();
    const Axis h = p.h();
    const Axis w = p.w();
    const int64_t channels = p.channels;
    const int64_t position = channels * op.element_size;
    const int64_t pitch = channels * op.value_size;
    const int64_t most_rows = std::max<int64_t>(1, windows.most_taps(0) * windows.most_taps(1));
    const int64_t most_taps = std::max<int64_t>(1, windows.most_taps(2));
    const bool shares_columns = !without(SHARED_COLUMNS) && op.is_separable &&
                                most_rows >= SHARED_ROWS &&
                                channels * w.stride < SHARED_CHANNELS * w.extent();
    // A window that a first-level cache does not hold is read from memory as it is combined, but
    // winners read a few channels of all taps, and then the next ones.
    const bool reads_ahead =
        channels > 1 && !shares_columns && reads_first(windows, op.element_size) &&
        (h.window > h.stride || !op.is_separable || most_rows * most_taps * position <= 16384);
    // Rows that windows share with those above are read once; else windows are read one by one.
    const bool reads_windows_ahead = reads_ahead && h.window <= h.stride;
    const int64_t elements = TILE_READS / (channels == 1 ? op.value_size : most_rows);
    const int64_t tile = std::clamp<int64_t>(elements * w.outputs / (w.size * channels), 1,
                                             std::min(w.outputs, TILE_OUTPUTS));
    const int64_t tiles = parts_of(w.outputs, tile);
    const int64_t row_bytes = p.output_row() * finish.result_size;
    const bool are_numbered = op.units[0] != 0 || op.units[1] != 0 || op.units[2] != 0;
    // Values have the size of results, and are written where the results go.
    const bool is_in_place = finish.result_size == op.value_size && !op.writes_results;
    // Outputs [first, stop) of a row.
    struct Tile {
        int64_t plane;
        int64_t od;
        int64_t oh;
        int64_t first;
        int64_t stop;
        char *out;
    };
    // The rows that a tile reads, from position `low` on: elements, or one of values if
    // `are_shared`.
    struct TileRows {
        Row *rows;
        int64_t count;
        int64_t low;
        bool are_shared;
        int64_t step;  // bytes of a position
    };
    // A thread's memory.
    struct Memory {
        std::vector<Row> rows;
        std::vector<Row> taps;
        Span height = {0, 0, 0};  // what the tile reads along H
        int64_t first = -1;       // the first output of the tile that has these runs
        std::vector<Run> runs;
        std::vector<char> staged = std::vector<char>(1);  // rows that were combined into one
        std::vector<char> produced;                       // values, before they are finished
    };

    void pool() const {
        const double row_cost =
            double(channels == 1 ? w.size / tiles : tile * most_taps * channels);
        const double cost = ROW_COST + double(most_rows) * row_cost + double(tile * most_taps);
        parallel(p.planes * d.outputs * h.outputs * tiles, cost,
                 [this](int64_t begin, int64_t end) {
                     Memory m;
                     m.rows.resize(most_rows);
                     if (channels > 1)
                         m.taps.resize(shares_columns ? most_taps : most_rows * most_taps);
                     m.produced.resize(is_in_place ? 0 : tile * pitch);
                     Digits<4> digits(begin, {tiles, h.outputs, d.outputs, p.planes});
                     for (int64_t number = begin; number < end; ++number, ++digits) {
                         const int64_t first = digits[0] * tile;
                         const int64_t at = number / tiles * w.outputs + first;
                         char *const out = output + at * channels * finish.result_size;
                         const Span above = m.height;
                         m.height = windows.at(1, digits[1]);
                         // The row before may read the same.
                         if (tiles == 1 && number > begin && digits[1] > 0 && !are_numbered &&
                             finish.is_uniform && m.height.matches(above))
                             std::memcpy(out, out - row_bytes, row_bytes);
                         else
                             pool_tile({digits[3], digits[2], digits[1], first,
                                        std::min(first + tile, w.outputs), out},
                                       m);
                     }
                 });
    }
    void pool_tile(const Tile &t, Memory &m) const {
        const TileRows found = find_tile_rows(t, m);
        if (m.first != t.first)
            find_runs(windows, are_numbered, t.first, t.stop, m.runs);
        m.first = t.first;
        if (channels > 1)
            return combine_windows(t, found, m);
        const int64_t outputs = t.stop - t.first;
        char *const results = is_in_place ? t.out : m.produced.data();
        op.reduce_windows(found.are_shared, found.rows[0], found.low, m.runs.data(), outputs,
                          w.dilation, results);
        if (!finish.is_direct)
            finish(t.plane, t.od, t.oh, t.first, outputs, results, t.out);
    }
    // Lists the rows that a tile reads, and combines them into one row if windows share it.
    TileRows find_tile_rows(const Tile &t, Memory &m) const {
        Row *const rows = m.rows.data();
        const Range reach = windows.reach(2, t.first, t.stop - t.first);
        const int64_t length = std::max<int64_t>(0, reach.end - reach.begin);
        if (reads_ahead && !reads_windows_ahead)
            read_new_rows(windows, op.element_size, input, t.plane, t.od, t.oh, 1,
                          reach.begin * channels, length * channels);
        const int64_t count =
            find_rows(op, p, input, t.plane, windows.at(0, t.od), windows.at(1, t.oh), 0, rows);
        if (channels == 1 ? count == 1 : !shares_columns)
            return {rows, count, 0, false, position};
        if (int64_t(m.staged.size()) < length * pitch)
            m.staged.resize(length * pitch);
        for (int64_t r = 0; r < count && length > 0; ++r)
            rows[r].from += reach.begin * position;
        if (length > 0)
            op.combine_window(false, rows, count, length * channels, m.staged.data(), nullptr, {});
        rows[0] = {m.staged.data(), 0};
        return {rows, 1, reach.begin, true, pitch};
    }
    // Several channels: combines the taps of the outputs of a tile. Windows that lie a step apart
    // are combined by one call. Values become results before they leave the first-level cache.
    void combine_windows(const Tile &t, const TileRows &found, Memory &m) const {
        char *const out = t.out;
        char *const results = is_in_place ? out : m.produced.data();
        const int64_t at_once = std::max<int64_t>(1, FINISHED_BYTES / pitch);
        const int64_t result_pitch = channels * finish.result_size;
        // Sums that are divided in the loop that adds them are results.
        const double divisor = is_in_place ? finish.divisor : 0;
        const bool is_finished = finish.is_direct || divisor != 0;
        const int64_t most = without(SEVERAL_WINDOWS) ? 1 : is_finished ? tile : at_once;
        int64_t finished = 0;
        int64_t k = 0;
        const auto finish_all = [&] {
            if (!is_finished)
                finish(t.plane, t.od, t.oh, (t.first + finished) * channels,
                       (k - finished) * channels, results + finished * pitch,
                       out + finished * result_pitch);
            finished = k;
        };
        for (const Run &run : m.runs) {
            const int64_t different = run.step > 0 || op.writes_results ? run.outputs : 1;
            for (int64_t each = 0, n; each < different; each += n, k += n) {
                n = std::min(most, different - each);
                if (reads_windows_ahead)
                    n = std::clamp<int64_t>(READ_BYTES / (run.count * found.count * position + 1),
                                            1, n);
                if (k - finished >= at_once)
                    finish_all();
                const Span span = {run.begin + each * run.step, run.count, run.tap};
                const int64_t count = find_taps(found, span, m.taps.data());
                if (reads_windows_ahead && found.count > 0)
                    read_windows_ahead(found.count, count / found.count, n * run.step, n == 1, m);
                op.combine_window(found.are_shared, m.taps.data(), count, channels,
                                  results + k * pitch, out + k * result_pitch,
                                  {n, run.step * found.step, channels, divisor});
            }
            for (int64_t copy = different; copy < run.outputs; ++copy, ++k)
                std::memcpy(results + k * pitch, results + (k - 1) * pitch, pitch);
        }
        finish_all();
    }
    // Reads `rows` rows of windows in the order of memory before they are combined. The first
    // window has `taps` taps of each. The loop that combines a single window reads its last tap.
    void read_windows_ahead(int64_t rows, int64_t taps, int64_t steps, bool is_single,
                            const Memory &m) const {
        const int64_t positions = std::max((taps - 1) * w.dilation + 1, steps);
        for (int64_t r = 0; r < rows && taps > 0; ++r)
            read_in_order(m.taps[r * taps].from,
                          (positions - (is_single && r == rows - 1)) * position);
    }
    // Lists the taps of a window, row by row, and returns how many there are.
    int64_t find_taps(const TileRows &found, const Span &span, Row *taps) const {
        int64_t count = 0;
        for (int64_t r = 0; r < found.count; ++r) {
            Row tap = {found.rows[r].from + (span.begin - found.low) * found.step,
                       found.rows[r].number + span.tap * op.units[2]};
            for (int64_t t = 0; t < span.count; ++t) {
                taps[count++] = tap;
                tap.from += w.dilation * found.step;
                tap.number += op.units[2];
            }
        }
        return count;
    }
};

}  // namespace

void pool_windows(const WindowOperations &op, const Finish &finish, const void *from, void *to,
                  const Windows &windows) {
    WindowPooling{op, finish, static_cast<const char *>(from), static_cast<char *>(to), windows}
        .pool();
}

}  // namespace dmlpool
