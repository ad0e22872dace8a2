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

// Calls visit(from, to, n) for blocks of n lanes of each plane: where their positions begin, and their elements.
void for_blocks(const Problem &p, const std::function<void(int64_t, int64_t, int64_t)> &visit) {
    const int64_t block = std::min<int64_t>(p.lanes, 64), blocks = parts_of(p.lanes, block);
    const double cost = 4. * double(p.output_plane() + p.plane()) / double(blocks);
    parallel(p.planes * blocks, cost, [&](int64_t begin, int64_t end) {
        for (int64_t number = begin; number < end; ++number) {
            const int64_t plane = number / blocks, lane = number % blocks * block;
            visit(plane * p.output_plane() + lane, plane * p.plane() + lane, std::min(block, p.lanes - lane));
        }
    });
}

// Calls act(i, lane, position) for n lanes at each place of positions from `here` on.
template <class Act>
void for_positions(const Problem &p, const Positions &positions, int64_t here, int64_t n, Act act) {
    for (int64_t i = here; i < here + p.output_plane(); i += p.lanes)
        for (int64_t lane = 0; lane < n; ++lane) {
            act(i + lane, lane, positions[i + lane]);
            __asm__("");  // no vectors of what lies anywhere
        }
}

// Zeros with each element added at its position.
template <class T>
void scatter(const T *input, const Positions &positions, T *output, const Problem &p) {
    using L = Wide<T>;
    constexpr bool is_direct = std::is_same_v<T, L>;
    for_blocks(p, [&](int64_t here, int64_t there, int64_t n) {
        std::vector<L> sums(is_direct ? 0 : size_t(positions.size * n));
        const int64_t pitch = is_direct ? p.lanes : n;
        L *const to = is_direct ? reinterpret_cast<L *>(output + there) : sums.data();
        if (pitch == n) std::fill_n(to, positions.size * n, L(0));
        for (int64_t i = 0; pitch > n && i < positions.size; ++i) std::fill_n(to + i * pitch, n, L(0));
        for_positions(p, positions, here, n, [=](int64_t i, int64_t lane, int64_t position) {
            if (position >= 0) to[position * pitch + lane] += widen(input[i]);
        });
        for (int64_t i = 0; !is_direct && i < positions.size; ++i)
            for (int64_t lane = 0; lane < n; ++lane) output[there + i * p.lanes + lane] = narrow<T>(to[i * n + lane]);
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
    for_blocks(*p, [&](int64_t here, int64_t, int64_t n) {
        std::vector<int64_t> last(size_t(all.size * n), -1);
        for_positions(*p, all, here, n, [&](int64_t i, int64_t lane, int64_t position) {
            if (position >= 0) last[size_t(position * n + lane)] = i;
        });
        for_positions(*p, all, here, n, [&](int64_t i, int64_t lane, int64_t position) {
            position = position >= 0 && last[size_t(position * n + lane)] == i ? position : -1;
            if (p->bytes == 4) static_cast<int32_t *>(unique)[i] = int32_t(position);
            else static_cast<int64_t *>(unique)[i] = position;
        });
    });
}

void dmlpool_gather_positions(const Problem *p, const void *input, const void *positions, void *output) {
    using namespace dmlpool;
    const Positions all{positions, int(p->bytes), p->plane() / p->lanes};
    with_numbers(TYPES[p->type].bytes, [&](auto element) {
        using T = decltype(element);
        const T *const from = static_cast<const T *>(input);
        T *const to = static_cast<T *>(output);
        for_blocks(*p, [&](int64_t here, int64_t there, int64_t n) {
            for_positions(*p, all, here, n, [=](int64_t i, int64_t lane, int64_t position) {
                to[i] = position < 0 ? T(0) : from[there + position * p->lanes + lane];
            });
        });
    });
}

void dmlpool_scatter_positions(const Problem *p, const void *input, const void *positions, void *output) {
    using namespace dmlpool;
    const Positions all{positions, int(p->bytes), p->plane() / p->lanes};
    const auto run = [&](auto element) {
        using T = decltype(element);
        scatter(static_cast<const T *>(input), all, static_cast<T *>(output), *p);
    };
    if (p->type == 0) run(float());
    else if (p->type == 1) run(double());
    else if (p->type == 2) run(Half());
    else if (p->type == 3) run(BFloat16());
    else with_numbers(TYPES[p->type].bytes, run);  // one at a position: nothing is added
}
}
#pragma GCC visibility pop
