// Requests to the system and to the processor for memory that is about to be written or read.
#pragma once

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace dmlpool {

// Asks Linux for large pages if a result has 32 MB or more. The system hands out pages when they
// are first written, and large ones take a third of that time (gradient of max 3/2, 100 MB).
inline void expect_all([[maybe_unused]] void *memory, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_HUGEPAGE
    constexpr uintptr_t PAGE = 1 << 21;
    const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + PAGE - 1) / PAGE * PAGE;
    const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + uintptr_t(bytes)) / PAGE * PAGE;
    if (bytes >= 32 << 20)
        madvise(reinterpret_cast<void *>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

// Prefetches `elements` elements of a row, which the next rows of outputs need first. The
// processor's own prefetching stops at the end of a short row. This function is inlined, as GCC
// drops calls of a function that only prefetches. It does nothing for rows longer than half of the
// first-level cache: rows of 28 KB made 3/1 in channels_last 1.2 times slower on Zen 3 (and 1.1
// times faster on Zen 4). With `is_slow` it pauses after each cache line, as Zen 4 drops prefetches
// that come faster than memory: 2/2 and 3/2 are 1.1 to 1.5 times faster with pauses.
template <bool is_slow = false, class T>
__attribute__((always_inline)) inline void prefetch(const T *row, int64_t elements) {
    const int64_t bytes = elements * int64_t(sizeof(T));
    if (bytes > 16384)
        return;
    for (int64_t byte = 0; byte < bytes; byte += 64) {
        __builtin_prefetch(reinterpret_cast<const char *>(row) + byte);
        if constexpr (is_slow)
            __asm__ volatile(".rept 16\n\tnop\n\t.endr");
    }
}

// Prefetches `bytes` bytes that are written next. Training maxima 2/2 of 8x512x16x16 and 3/2 of
// 1x128x80x80 are 1.05 to 1.15 times faster, averages 3/1 of 8x1024x7x7 between other layers 1.08
// times. Gradients alone of averages that share no element would be 0.73 to 0.9 times as fast.
__attribute__((always_inline)) inline void expect_writes(const void *to, int64_t bytes) {
    for (int64_t byte = 0; byte < bytes; byte += 64)
        __builtin_prefetch(static_cast<const char *>(to) + byte, 1);
}

inline void touch(const char *memory) {
    static_cast<void>(*static_cast<const volatile char *>(memory));
}
// Reads two words of each cache line. Loops that combine several rows then find them in a cache.
// The processor itself prefetches what is read in order, and does so earlier if a line is read
// twice: averages 2/2 of 8x512x28x28 take 0.75 ms in place of 1.1 ms, and global averages of
// 8x256x64x64, whose loop touches each line it loads, 1.3 in place of 1.7 ms (Zen 4).
inline void read_in_order(const char *memory, int64_t bytes) {
#pragma GCC unroll 1
    for (int64_t byte = 0; byte < bytes; byte += 32)
        touch(memory + byte);
}
// The same for a few rows at a time: averages of 8x32x112x112 to 1x1 are 1.1 times faster (Zen 4).
[[gnu::noinline]] inline void read_closely(const char *memory, int64_t bytes) {
#pragma GCC unroll 4
    for (int64_t byte = 0; byte < bytes; byte += 32)
        touch(memory + byte);
}

}  // namespace dmlpool
