// What a mask keeps of a tensor: strategies read it row by row or block by block.
//
//     elements  | 3 5 7 9 |
//     mask      | 1 1 1 0 |    read    | 3 5 7 0 |    for maxima the lowest value in place of 0
#pragma once

#include "vectors.h"

namespace dmlpool {

struct Kept {
    const Problem &p;  // of the tensor, before axes are joined
    const void *const tensor;

    const Masking &m = p.masking;
    const int64_t bytes = type_of(p).bytes;        // of an element
    const int64_t each = p.channels / m.channels;  // elements of a byte of the mask
    // The mask of a plane.
    const uint8_t *mask_of(int64_t plane) const {
        return m.mask +
               (plane / m.planes * m.step + m.is_own * (plane % m.planes)) * (p.plane() / each);
    }
    // The byte of an element.
    const uint8_t *byte_of(const char *element) const {
        const int64_t at = (element - as<char>(tensor)) / bytes;
        return mask_of(at / p.plane()) + at % p.plane() / each;
    }
    // A row of `count` masked elements.
    vector<char> filled(int64_t count) const;
    // Copies `count` elements of the tensor, but writes `Masking::fill` where the mask is false.
    // The elements may be copied to where they are.
    void read(const void *from, int64_t count, void *to) const;
};

// Replaces `count` rows of `length` elements by copies of what a mask keeps of them, if there is
// one. There is room for a vector after each copy.
inline void read_rows(const Kept *kept, Row *rows, int64_t count, int64_t length,
                      vector<char> &memory) {
    if (!kept || length <= 0)
        return;
    const int64_t pitch = length * kept->bytes + 64;
    memory.resize(max(memory.size(), size_t(count * pitch)));
    for (int64_t k = 0; k < count; ++k) {
        char *const to = memory.data() + k * pitch;
        kept->read(rows[k].from, length, to);
        rows[k].from = to;
    }
}

// Averages of what is kept if that is not null. Then sums are written as they are added, and
// divided by the caller.
void pool_averages(const Problem &p, const void *input, void *output, const Kept *kept);
// Averages and their gradient under a mask.
void masked_averages(const Problem &p, const void *input, void *output);
void masked_averages_grad(const Problem &p, const void *arriving, void *gradient);
// Corrects the numbers of the winners of maxima: of elements that tie with masked ones, and of
// windows without an element.
void find_first_kept(const Kept &kept, const void *maxima, void *winners);

}  // namespace dmlpool
