// Each window is pooled by itself. Only what the windows of one row of outputs share along D and H
// is combined once.
//
//     input    . a a a . . .      one row of outputs: the rows that it reads are combined,
//              . a a a . . .      and each window reduces a part of the combined row;
//              . a a a . . .      with many channels each window combines all its elements
//                v
//     outputs  | 0 | 1 | 2 | ...

#include "choose.h"
#include "kept.h"
#include "operations.h"
#include "parallel.h"
#include "vectors.h"

namespace dmlpool {
namespace {

// What a tile reads, which stays in a cache: bytes of values of one channel, or elements of all
// rows of several channels.
constexpr int64_t TILE_READS = 65536;
// The bytes that are read in order before they are combined: few, so that the processor does both
// at the same time.
constexpr int64_t READ_BYTES = 4096;
// Positions of fewer bytes are read fast enough as they are combined.
constexpr int64_t READ_POSITION = 384;
// Bytes of the values of a tile whose results are copied to groups of outputs.
constexpr int64_t COPIED_BYTES = 65536;
// Bytes of values of several channels that become results together.
constexpr int64_t FINISHED_BYTES = 4096;

// One channel: the rows that a row of outputs reads are combined into one, and each window reduces
// its part of it. Several channels: each window combines all its elements.
struct WindowPooling : Pooling<WindowOperations> {
    const Axis w = p.w();
    const int64_t position = channels * op.element_size;
    const int64_t pitch = channels * op.value_size;
    const int64_t most_rows = windows.most_taps(0) * windows.most_taps(1);
    const int64_t most_taps = windows.most_taps(2);
    // A window that a first-level cache does not hold is read from memory as it is combined, but
    // winners read a few channels of all taps, and then the next ones.
    const bool reads_ahead =
        position >= READ_POSITION && reads_first() &&
        (h.window > h.stride || op.writes_results || most_rows * most_taps * position <= 16384);
    // Rows that windows share with those above are read once; else windows are read one by one.
    const bool reads_windows_ahead = reads_ahead && h.window <= h.stride;
    const bool are_numbered = op.units[0] != 0 || op.units[1] != 0 || op.units[2] != 0;
    // The result of a group of outputs is computed once, and then copied to each of them.
    const bool are_grouped = finish.is_uniform && !are_numbered && windows.form_groups();
    const int64_t elements = TILE_READS / (channels == 1 ? op.value_size : most_rows);
    const int64_t most_outputs = are_grouped ? COPIED_BYTES / pitch : TILE_OUTPUTS;
    const int64_t tile =
        clamp(elements * w.outputs / (w.size * channels), 1, clamp(most_outputs, 1, w.outputs));
    const int64_t tiles = parts_of(w.outputs, tile);
    const int64_t result_pitch = channels * finish.result_size;
    // Values have the size of results, and are written where the results go.
    const bool is_in_place = finish.result_size == op.value_size && !op.writes_results;
    // Sums that are divided in the loop that adds them are results.
    const double divisor = is_in_place && channels > 1 ? finish.divisor : 0;
    const bool is_finished = finish.is_direct || divisor != 0;
    // Winners of a gradient are numbered. Positions that lie this far apart are taps of the same
    // numbers, and form a run.
    const int64_t apart = are_numbered && windows.seen[2] ? windows.seen[2]->axis.stride : 1;
    // Whether each result is written where it goes, to the first output of its group.
    const bool writes_first = (are_grouped || apart > 1) && is_finished && channels > 1;
    // Whether masks have a byte for each position: then windows read other taps in place of those
    // that are left out. A row of planes that are joined has more than one mask.
    const bool leaves_out = windows.kept && channels > 1 &&
                            windows.kept->each == channels &&windows.kept->p.plane() % p.row() == 0;
    // Outputs [first, stop) of a row.
    struct Tile {
        int64_t plane;
        int64_t od;
        int64_t oh;
        int64_t first;
        int64_t stop;
        char *out;
    };
    // The rows that a tile reads, from position `low` on: elements, or one row of values.
    struct TileRows {
        int64_t count;
        int64_t low;
        bool are_values;
    };
    // A thread's memory.
    struct Memory {
        vector<Row> rows;
        vector<Row> taps;
        Span depth = {0, 0, 0};  // what the tile reads along D and H
        Span height = {0, 0, 0};
        vector<Run> runs;                       // of the tile
        int64_t groups;                         // of all runs
        Range reach;                            // what they read
        vector<char> staged = vector<char>(1);  // rows that were combined into one
        vector<char> produced;                  // values, before they are finished
        vector<char> results;                   // of groups
        vector<char> kept;                      // rows that a mask was applied to
        vector<const uint8_t *> masks;          // of rows whose positions are masked
        vector<char> filled;                    // a position that is left out
    };

    void pool() {
        const double cost = ROW_COST + double(most_rows) * double(tile * most_taps * channels);
        parallel(p.planes * d.outputs * h.outputs * tiles, cost,
                 [this](int64_t begin, int64_t end) {
                     Memory m;
                     m.rows.resize(most_rows);
                     if (leaves_out) {
                         m.masks.resize(most_rows);
                         m.filled = windows.kept->filled(channels);
                     }
                     if (channels > 1)
                         m.taps.resize(most_rows * most_taps);
                     // Rows come before tiles, so that runs are listed once for many rows.
                     Digits digits(begin, {h.outputs, tiles, d.outputs, p.planes});
                     for (int64_t number = begin; number < end;)
                         for (const int64_t next =
                                  number + pool_next(digits, number - begin, end - number, m);
                              number < next; ++number)
                             ++digits;
                 });
    }
    // Pools the tile at `digits`, and copies it to the rows below that read the same. A thread that
    // has written all rows of the depth before copies these if they read the same. Returns how many
    // tiles of the `left` ones are written. The thread has written `before` of those before.
    int64_t pool_next(const auto &digits, int64_t before, int64_t left, Memory &m) const {
        const int64_t first = digits[1] * tile;
        const int64_t row = (digits[3] * d.outputs + digits[2]) * h.outputs + digits[0];
        const int64_t row_bytes = w.outputs * result_pitch;
        const Tile t = {digits[3],
                        digits[2],
                        digits[0],
                        first,
                        min(first + tile, w.outputs),
                        output + row * row_bytes + first * result_pitch};
        const bool copies = !are_numbered && finish.is_uniform;
        if (before == 0 || t.oh == 0) {
            const Span above = m.depth;
            m.depth = windows.at(0, t.od);
            if (copies && tiles == 1 && t.od > 0 && before >= h.outputs && left >= h.outputs &&
                m.depth.matches(above)) {
                memcpy(t.out, t.out - h.outputs * row_bytes, h.outputs * row_bytes);
                return h.outputs;
            }
            if (before == 0 || tiles > 1)
                list_runs(t, m);
        }
        m.height = m.depth.count > 0 ? windows.at(1, t.oh) : Span{0, 0, 0};
        pool_tile(t, m);
        const int64_t most = copies ? min(left, h.outputs - t.oh) : 1;
        int64_t done = 1;
        for (; done < most && (m.depth.count == 0 || windows.at(1, t.oh + done).matches(m.height));
             ++done)
            memcpy(t.out + done * row_bytes, t.out, (t.stop - first) * result_pitch);
        return done;
    }
    void pool_tile(const Tile &t, Memory &m) const {
        const TileRows found = find_tile_rows(t, m);
        char *const out = are_grouped && !writes_first ? m.results.data() : t.out;
        char *const values = is_in_place ? out : m.produced.data();
        if (channels > 1)
            combine_windows(t, found, values, out, m);
        else {
            op.reduce_windows(found.are_values, m.rows[0], found.low, m.runs.data(), m.groups,
                              w.dilation, values);
            if (!finish.is_direct)
                finish(t.plane, t.od, t.oh, t.first, m.groups, values, out);
        }
        if (are_grouped)
            channels > 1 ? copy_positions(m.runs, out, t.out) : copy_elements(m.runs, out, t);
    }
    // Lists the runs of a tile, and makes room for what its groups produce.
    void list_runs(const Tile &t, Memory &m) const {
        m.runs.clear();
        are_grouped ? find_groups(windows, t.first, t.stop, m.runs)
                    : find_runs(windows, are_numbered, t.first, t.stop, m.runs, apart);
        m.groups = 0;
        for (const Run &run : m.runs)
            m.groups += run.groups;
        m.reach = windows.reach(2, t.first, t.stop - t.first);
        m.produced.resize(is_in_place ? 0 : m.groups * pitch);
        m.results.resize(are_grouped && !writes_first ? m.groups * result_pitch : 0);
    }
    // Copies the result of each group of several channels to its outputs. A copy has up to a page,
    // as a position may be only a few bytes.
    void copy_positions(const vector<Run> &runs, const char *from, char *to) const {
        const int64_t most = max(1, 4096 / result_pitch);
        for (const Run &run : runs)
            for (int64_t g = 0; g < run.groups; ++g, from += result_pitch) {
                char *const out = to + (run.first + g * run.apart) * result_pitch;
                if (!writes_first)
                    memcpy(out, from, result_pitch);
                for (int64_t done = 1, n; done < run.each; done += n) {
                    n = min({done, run.each - done, most});
                    memcpy(out + done * result_pitch, out, n * result_pitch);
                }
            }
    }
    // The same for one channel.
    void copy_elements(const vector<Run> &runs, const char *from, const Tile &t) const {
        with_integers(finish.result_size, [&]<class E>(E) {
            const E *results = as<E>(from);
            for (const Run &run : runs) {
                copy_run(run, results, t.stop - t.first - run.first, as<E>(t.out) + run.first);
                results += run.groups;
            }
        });
    }
    // Copies results to the outputs of groups, where there is room for `room` outputs. Vectors
    // write past the end of a group what the next one overwrites.
    template <class E>
    static void copy_run(const Run &run, const E *__restrict from, int64_t room,
                         E *__restrict out) {
        constexpr int64_t n = LANES<E>;
        if (run.each == 2 && run.apart == 2)
            for (int64_t g = 0; g < run.groups; ++g)
                out[2 * g] = out[2 * g + 1] = from[g];
        else {
            const int64_t written = parts_of(run.each, n) * n;
            int64_t g = 0;
            for (; run.each == run.apart && g < run.groups && room >= written;
                 ++g, out += run.apart, room -= run.apart)
                for (int64_t i = 0; i < run.each; i += n)
                    write(Vector<E, n>{} + from[g], out + i);
            for (; g < run.groups; ++g, out += run.apart)
                fill_n(out, run.each, from[g]);
        }
    }
    // Lists the rows that a tile reads, and combines them into one row if windows share it.
    TileRows find_tile_rows(const Tile &t, Memory &m) const {
        Row *const rows = m.rows.data();
        const Range reach = m.reach;
        const int64_t length = max(0, reach.size());
        if (reads_ahead && !reads_windows_ahead)
            read_new_rows(t.plane, t.od, t.oh, 1, reach.begin * channels, length * channels);
        const int64_t count = find_rows(t.plane, m.depth, m.height, 0, rows);
        const bool are_elements = channels > 1 || count == 1;
        for (int64_t r = 0; r < count && leaves_out; ++r)
            m.masks[r] = windows.kept->byte_of(rows[r].from);
        if (are_elements && (!windows.kept || leaves_out))
            return {count, 0, false};
        for (int64_t r = 0; r < count && length > 0; ++r)
            rows[r].from += reach.begin * position;
        read_rows(windows.kept, rows, count, length * channels, m.kept);
        if (are_elements)
            return {count, reach.begin, false};
        m.staged.resize(max(m.staged.size(), size_t(length * pitch)));
        if (length > 0)  // as if the elements of a row were the channels of a tap
            op.combine_window(rows, count, length, m.staged.data(), nullptr, {});
        rows[0] = {m.staged.data(), 0};
        return {1, reach.begin, true};
    }
    // Several channels: combines the taps of the outputs of a tile. Windows that lie a step apart
    // are combined by one call. Values become results before they leave the first-level cache.
    void combine_windows(const Tile &t, const TileRows &found, char *values, char *out,
                         Memory &m) const {
        const int64_t at_once = max(1, FINISHED_BYTES / pitch);
        const int64_t most = leaves_out ? 1 : is_finished ? tile : at_once;
        int64_t finished = 0;
        int64_t k = 0;
        const auto finish_all = [&] {
            if (!is_finished)
                finish(t.plane, t.od, t.oh, (t.first + finished) * channels,
                       (k - finished) * channels, values + finished * pitch,
                       out + finished * result_pitch);
            finished = k;
        };
        for (const Run &run : m.runs) {
            const int64_t apart = writes_first ? run.apart : 1;
            for (int64_t g = 0, n; g < run.groups; g += n, k += n) {
                n = min(most, run.groups - g);
                if (reads_windows_ahead)
                    n = clamp(READ_BYTES / (run.count * found.count * position + 1), 1, n);
                if (k - finished >= at_once)
                    finish_all();
                const Span span = {run.begin + g * run.step, run.count, run.tap};
                const int64_t count = find_taps(found, span, m);
                // Rows of windows are read in the order of memory before they are combined. The
                // loop that combines a single window reads its last tap.
                const int64_t positions = max((run.count - 1) * w.dilation + 1, n * run.step);
                for (int64_t at = 0; at < count && reads_windows_ahead; at += run.count) {
                    const bool is_last = n == 1 && at + run.count == count;
                    read_in_order(m.taps[at].from, (positions - is_last) * position);
                }
                const int64_t place = writes_first ? run.first + g * apart : k;
                op.combine_window(m.taps.data(), count, channels, values + place * pitch,
                                  out + place * result_pitch,
                                  {n, run.step * position, channels * apart, divisor});
            }
        }
        finish_all();
    }
    // Lists the taps of a window, row by row, and returns how many there are.
    int64_t find_taps(const TileRows &found, const Span &span, Memory &m) const {
        Row *const taps = m.taps.data();
        int64_t count = 0;
        for (int64_t r = 0; r < found.count; ++r) {
            Row tap = {m.rows[r].from + (span.begin - found.low) * position,
                       m.rows[r].number + span.tap * op.units[2]};
            for (int64_t t = 0; t < span.count; ++t) {
                taps[count] = tap;
                if (leaves_out && !m.masks[r][span.begin + t * w.dilation])
                    taps[count].from = m.filled.data();
                ++count;
                tap.from += w.dilation * position;
                tap.number += op.steps[2];
            }
        }
        return count;
    }
};

}  // namespace

void pool_windows(const Pooling<WindowOperations> &pooling) {
    WindowPooling{pooling}.pool();
}

}  // namespace dmlpool
