// Requests to the system and to the processor for memory that is about to be written or read.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace dmlpool {

// A pointer to memory as one to elements of type T.
template <class T>
T *as(void *memory) {
    return static_cast<T *>(memory);
}
template <class T>
const T *as(const void *memory) {
    return static_cast<const T *>(memory);
}

// The first address from `memory` on that is a multiple of `alignment`.
inline char *aligned(void *memory, uintptr_t alignment) {
    return as<char>(memory) + -reinterpret_cast<uintptr_t>(memory) % alignment;
}

// Asks Linux for large pages for a result of 32 MB or more. The first write to a page waits for the
// system to hand it out, and large pages take a third of that time.
inline void use_large_pages(void *memory, int64_t bytes) {
#ifdef MADV_HUGEPAGE
    constexpr int64_t PAGE = 1 << 21;
    char *const begin = aligned(memory, PAGE);
    const int64_t left = as<char>(memory) + bytes - begin;
    if (bytes >= 32 << 20)
        madvise(begin, left / PAGE * PAGE, MADV_HUGEPAGE);
#endif
}

// Whether a tensor has more bytes than three eighths of the last-level cache. A call then reads it
// from memory, as results and other tensors share the cache. The size of the cache is what Linux
// says, and 32 MB elsewhere.
inline bool is_large(int64_t bytes) {
    static const int64_t cache = [] {
        long kilobytes = 32 << 10;
        if (FILE *file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r")) {
            if (std::fscanf(file, "%ld", &kilobytes) != 1)
                kilobytes = 32 << 10;
            std::fclose(file);
        }
        return int64_t(kilobytes) << 10;
    }();
    return bytes > cache * 3 / 8;
}

inline void touch(const char *memory) {
    static_cast<void>(*static_cast<const volatile char *>(memory));
}

// Reads two words of each cache line, because the processor prefetches what is read in order, and
// does so earlier if a line is read twice.
inline void read_in_order(const char *memory, int64_t bytes) {
#pragma GCC unroll 1
    for (int64_t byte = 0; byte < bytes; byte += 32)
        touch(memory + byte);
}

}  // namespace dmlpool
