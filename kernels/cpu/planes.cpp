// One window over each plane: global pooling.
//
//     plane  | part 0 | part 1 | part 2 |      parts of 2^18 elements, so that the bits of a result
//               v        v        v            depend on nothing but the plane's size
//            | value  | value  | value  |  ->  | result |

#include "kept.h"
#include "operations.h"
#include "parallel.h"
#include "vectors.h"

namespace dmlpool {
namespace {

// Planes of more elements are combined in parts. Parts depend on a plane's size alone, so that the
// bits of results do not depend on the number of threads.
constexpr int64_t PART_ELEMENTS = 1 << 18;
// Several positions are combined as one row of at most ROW_ELEMENTS elements, and in planes of
// several parts of four times as many: there memory is slower than the loops.
constexpr int64_t ROW_ELEMENTS = 512;
// One call finishes planes whose values have FINISHED_BYTES, but at least FINISHED_PLANES planes.
constexpr int64_t FINISHED_BYTES = 65536;
constexpr int64_t FINISHED_PLANES = 64;
// Elements that are read under a mask together, for the first-level cache.
constexpr int64_t KEPT_ELEMENTS = 4096;

struct PlanePooling : Pooling<RowOperations> {
    const int64_t size = p.plane() / channels;
    const int64_t position_bytes = channels * op.element_size;
    const int64_t pitch = channels * op.value_size;  // bytes from a result to the next
    const int64_t part = max(1, PART_ELEMENTS / channels);
    const int64_t parts = parts_of(size, part);
    // How many positions are added side by side as one row: as many as fill vectors.
    const int64_t row_elements = parts > 1 ? 4 * ROW_ELEMENTS : ROW_ELEMENTS;
    const int64_t row_positions =
        max(1, min({row_elements / 8, row_elements / channels, min(part, size) / 4}));
    const int64_t planes_at_once = max(FINISHED_PLANES, FINISHED_BYTES / pitch);
    const bool is_in_place = parts == 1 && finish.result_size == op.value_size;
    // Small planes of one channel are read under a mask together.
    const int64_t read_at_once = max(1, KEPT_ELEMENTS / size);

    void pool() const {
        const double cost = double(min(part, size) * channels);
        if (parts > 1)
            return pool_large_planes(cost);
        for_parts(p.planes, planes_at_once, cost, is_in_place ? 0 : pitch,
                  [&](int64_t first, int64_t planes, char *produced) {
                      char *const out = output + first * channels * finish.result_size;
                      char *const results = is_in_place ? out : produced;
                      const char *const elements = input + first * size * position_bytes;
                      vector<char> kept;
                      if (channels == 1) {
                          const int64_t most = windows.kept ? read_at_once : planes;
                          for (int64_t k = 0, n; k < planes; k += n) {
                              n = min(most, planes - k);
                              Row row = {elements + k * size * position_bytes, 0};
                              read_rows(windows.kept, &row, 1, n * size, kept);
                              const Run whole = {0, size, 0, n, size};
                              op.reduce_windows(false, row, 0, &whole, n, 1, results + k * pitch);
                          }
                      } else
                          pool_parts(first, first + planes, results);
                      if (!finish.is_direct)
                          finish(first, 0, 0, 0, planes * channels, results, out);
                  });
    }
    // Combines all parts of large planes first, and then the values of each plane's parts.
    void pool_large_planes(double cost) const {
        vector<char> of_parts(p.planes * parts * pitch);
        parallel(p.planes * parts, cost, [&](int64_t begin, int64_t end) {
            pool_parts(begin, end, of_parts.data() + begin * pitch);
        });
        vector<char> produced(pitch);
        vector<Row> rows;
        for (int64_t plane = 0; plane < p.planes; ++plane) {
            combine(true, of_parts.data() + plane * parts * pitch, pitch, parts, channels,
                    produced.data(), rows);
            finish(plane, 0, 0, 0, channels, produced.data(),
                   output + plane * channels * finish.result_size);
        }
    }
    // Combines each of the parts [begin, end), which are counted over all planes.
    void pool_parts(int64_t begin, int64_t end, char *results) const {
        vector<char> folded((row_positions + 1) * pitch);
        vector<Row> rows;
        vector<char> kept;
        for (int64_t number = begin; number < end; ++number, results += pitch) {
            const int64_t from = number % parts * part;
            const int64_t count = min(part, size - from);
            const int64_t remainder = count % row_positions;
            Row row = {input + (number / parts * size + from) * position_bytes, 0};
            read_rows(windows.kept, &row, 1, count * channels, kept);
            const char *const elements = row.from;
            const Run whole = {0, count, 0, 1, 0};
            if (channels == 1)
                op.reduce_windows(false, row, 0, &whole, 1, 1, results);
            else if (row_positions == 1)
                combine(false, elements, position_bytes, count, channels, results, rows);
            else {
                combine(false, elements, row_positions * position_bytes, count / row_positions,
                        row_positions * channels, folded.data(), rows);
                combine(false, elements + (count - remainder) * position_bytes, position_bytes,
                        remainder, channels, folded.data() + row_positions * pitch, rows);
                combine(true, folded.data(), pitch, row_positions + 1, channels, results, rows);
            }
        }
    }
    // Combines `count` rows of `length` elements or values, `step` bytes apart.
    void combine(bool are_values, const char *from, int64_t step, int64_t count, int64_t length,
                 char *to, vector<Row> &rows) const {
        rows.resize(count);
        for (int64_t k = 0; k < count; ++k)
            rows[k] = {from + k * step, k * part * op.units[2]};  // a part's first tap
        op.combine(are_values, rows.data(), count, length, to);
    }
};

}  // namespace

void pool_planes(const Pooling<RowOperations> &pooling) {
    PlanePooling{pooling}.pool();
}

}  // namespace dmlpool
