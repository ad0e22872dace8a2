// Small planes are turned, that is transposed: the planes of a block become the channels of one
// channels_last plane, so that a vector holds one position of several planes.
//
//     planes   | a0 a1 a2 a3 |            | a0 b0 c0 |   position 0
//              | b0 b1 b2 b3 |   turned   | a1 b1 c1 |   position 1    are pooled as channels;
//              | c0 c1 c2 c3 |   ----->   | a2 b2 c2 |   position 2    results are turned back
//                                         | a3 b3 c3 |   position 3
#pragma once

#include <functional>
#include <initializer_list>

#include "geometry.h"

namespace dmlpool {

struct Kept;

// A block of planes has about TURNED_ELEMENTS elements, for the first-level cache, but at least
// LEAST_VECTORS vectors of planes, which share the cost of finding what windows read.
constexpr int64_t TURNED_ELEMENTS = 8192;
constexpr int64_t LEAST_VECTORS = 5;

// The problem of a block of planes: one plane whose channels are the planes of the block, at least
// `least` of them.
inline Problem turned_problem(const Problem &p, int64_t least = 16) {
    const int64_t size = max(p.plane(), p.output_plane());
    const int64_t vectors = clamp(TURNED_ELEMENTS / size / 16, LEAST_VECTORS, 32);
    Problem result = p;
    result.planes = 1;
    // Rows have an odd number of cache lines, so that a column of them uses all sets of a cache.
    result.channels = max(least, min(vectors | 1, parts_of(p.planes, 16)) * 16);
    return result;
}

// A tensor whose planes are turned, or into which turned planes are turned back.
struct PlaneTensor {
    const void *elements;
    int64_t bytes;               // of an element
    int64_t size;                // elements of a plane
    const Kept *kept = nullptr;  // what a mask keeps of it
};

// Calls work(first, blocks) for each block of `channels` planes, from plane `first` on. blocks[k]
// has the turned planes of tensor k. `work` reads those of the first `inputs` tensors and writes
// those of the others, which are turned back.
void turn_planes(int64_t planes, int64_t channels, int inputs,
                 std::initializer_list<PlaneTensor> tensors,
                 const std::function<void(int64_t, void *const *)> &work);

}  // namespace dmlpool
