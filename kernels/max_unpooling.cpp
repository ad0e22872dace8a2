// Elements by their positions on the CPU: max unpooling, and what gathers and scatters by indices.

#include "pooling.h"

#include <functional>

namespace dmlpool {
namespace {

// Positions of 4 or 8 bytes in a plane of `size`, or -1.
struct Positions {
    const void *positions;
    int bytes;
    int64_t size;

    int64_t operator[](int64_t i) const {
        const int64_t position = bytes == 4 ? static_cast<const int32_t *>(positions)[i] : static_cast<const int64_t *>(positions)[i];
        return uint64_t(position) < uint64_t(size) ? position : -1;
    }
};

// Calls visit(from, to) for each lane of each plane: where its positions begin, and its elements in the plane.
void for_planes(const Problem &p, const std::function<void(int64_t, int64_t)> &visit) {
    const double cost = 4. * double(p.output_plane() + p.plane()) / double(p.lanes);
    parallel(p.planes * p.lanes, cost, [&](int64_t begin, int64_t end) {
        for (int64_t number = begin; number < end; ++number) {
            const int64_t plane = number / p.lanes, lane = number % p.lanes;
            visit(plane * p.output_plane() + lane, plane * p.plane() + lane);
        }
    });
}

// Zeros with each element added at its position.
template <class T>
void scatter(const T *input, const Positions &positions, T *output, const Problem &p) {
    using L = Wide<T>;
    const int64_t count = p.output_plane(), size = p.plane(), step = p.lanes;
    for_planes(p, [&](int64_t here, int64_t there) {
        std::vector<L> sums(std::is_same_v<T, L> ? 0 : size_t(size / step), L(0));
        if constexpr (std::is_same_v<T, L>)
            for (int64_t i = 0; i < size; i += step) output[there + i] = 0;
        for (int64_t i = 0; i < count; i += step) {
            const int64_t position = positions[here + i];
            if (position < 0) continue;
            if constexpr (std::is_same_v<T, L>) output[there + position * step] += input[here + i];
            else sums[size_t(position)] += widen(input[here + i]);
        }
        for (size_t i = 0; i < sums.size(); ++i) output[there + int64_t(i) * step] = narrow<T>(sums[i]);
    });
}

}  // namespace
}  // namespace dmlpool

// What backends/cpu.py calls.
#pragma GCC visibility push(default)
extern "C" {

// Positions of 4 or 8 bytes, in the plane; the problem's inputs are what they number, its outputs where they are.
// Those inside the plane, and -1 for all but the last of several alike.
void dmlpool_unique_positions(const Problem *p, const void *positions, void *unique) {
    using namespace dmlpool;
    const Positions all{positions, TYPES[p->type].bytes, p->plane() / p->lanes};
    for_planes(*p, [&](int64_t here, int64_t) {
        std::vector<int64_t> last(size_t(all.size), -1);
        for (int64_t i = here; i < here + p->output_plane(); i += p->lanes)
            if (all[i] >= 0) last[size_t(all[i])] = i;
        for (int64_t i = here; i < here + p->output_plane(); i += p->lanes) {
            const int64_t position = all[i] >= 0 && last[size_t(all[i])] == i ? all[i] : -1;
            if (p->bytes == 4) static_cast<int32_t *>(unique)[i] = int32_t(position);
            else static_cast<int64_t *>(unique)[i] = position;
        }
    });
}

void dmlpool_gather_positions(const Problem *p, const void *input, const void *positions, void *output) {
    using namespace dmlpool;
    const Positions all{positions, int(p->bytes), p->plane() / p->lanes};
    with_numbers(TYPES[p->type].bytes, [&](auto type) {
        using T = typename decltype(type)::type;
        const T *const from = static_cast<const T *>(input);
        T *const to = static_cast<T *>(output);
        for_planes(*p, [&](int64_t here, int64_t there) {
            for (int64_t i = here; i < here + p->output_plane(); i += p->lanes)
                to[i] = all[i] < 0 ? T(0) : from[there + all[i] * p->lanes];
        });
    });
}

void dmlpool_scatter_positions(const Problem *p, const void *input, const void *positions, void *output) {
    using namespace dmlpool;
    const Positions all{positions, int(p->bytes), p->plane() / p->lanes};
    const int type = int(p->type);
    const auto run = [&](auto t) {
        using T = typename decltype(t)::type;
        scatter(static_cast<const T *>(input), all, static_cast<T *>(output), *p);
    };
    if (type < 4) return with_float_type(type, run);
    if (TYPES[type].bytes == 1) run(Type<uint8_t>());
    if (TYPES[type].bytes == 2) run(Type<uint16_t>());
    if (TYPES[type].bytes == 4) run(Type<uint32_t>());
    if (TYPES[type].bytes == 8) run(Type<uint64_t>());
}
}
#pragma GCC visibility pop
