// Threads: PyTorch's own, through C functions of libtorch, so that there is one pool of them.
//
// A call of the library is one parallel region. Each thread has an equal share of it, as in
// PyTorch's own operations, so that it finds what it has read or written before in its own caches.
// It takes its share part by part, and then parts of others' shares:
//
//     shares    |        0        |        1        |
//     parts     | 0 | 1 | 2 | ... | 0 | 1 | 2 | ... |
//     thread 0  | 0 | 1 | 2 | ... |         | last  |
//     thread 1                    | 0 | 1 | ...
//
// An exception in a part ends the region: no thread takes a further part, and `parallel` throws it
// again in the thread that called, as exceptions may not pass through PyTorch's C functions.
#pragma once

#include <functional>
#include <memory>

#include "geometry.h"

namespace dmlpool {

// torch_parallel_for and torch_get_num_threads. Both return 0, or another number if they failed.
using ParallelFor = int32_t (*)(int64_t begin, int64_t end, int64_t grain,
                                void (*)(int64_t, int64_t, void *), void *);
using GetThreads = int32_t (*)(uint32_t *threads);

void use_threads(ParallelFor parallel_for, GetThreads get_threads);
// How many threads PyTorch uses.
int64_t available_threads();

// Calls work(begin, end) for parts of [0, count), each of about `least` iterations or more, on
// PyTorch's threads. `parallel` calls it; it is no template, so that it is compiled once.
using Work = std::function<void(int64_t, int64_t)>;
void run_parts(int64_t count, int64_t least, const Work &work);

// Calls work(begin, end) for parts of [0, count). `cost` estimates the operations of one iteration.
// A part has a quarter of a share, or at least about 2^15 operations. A thread whose core is busy
// elsewhere takes fewer parts.
void parallel(int64_t count, double cost, const auto &work) {
    const int64_t least = clamp(int64_t((1 << 15) / max(cost, 1.)), 1, max(count, 1));
    if (count <= least)
        return work(0, count);
    run_parts(count, least, std::ref(work));
}

// The indices of nested loops, the innermost first, from iteration `number` on. The constructor
// divides, and ++ only counts, because divisions take as long as to pool a short row.
template <int n>
struct Digits {
    int64_t limits[n];
    int64_t digits[n];

    Digits(int64_t number, const int64_t (&of)[n]) {
        for (int k = 0; k < n; ++k) {
            limits[k] = of[k];
            digits[k] = number % of[k];
            number /= of[k];
        }
    }
    int64_t operator[](int k) const { return digits[k]; }
    void operator++() {
        for (int k = 0; k < n && ++digits[k] == limits[k]; ++k)
            digits[k] = 0;
    }
};

// Calls make()(digits) for all iterations of nested loops, the innermost first, where each part of
// the work makes its own.
template <int n>
void parallel_loops(const int64_t (&limits)[n], double cost, const auto &make) {
    int64_t count = 1;
    for (int64_t limit : limits)
        count *= limit;
    parallel(count, cost, [&](int64_t begin, int64_t end) {
        auto act = make();
        Digits<n> digits(begin, limits);
        for (int64_t number = begin; number < end; ++number, ++digits)
            act(digits);
    });
}

// Calls work(first, n, memory) for parts of at most `most` of `count` iterations, on PyTorch's
// threads. `memory` is the thread's own, has `bytes` bytes for each iteration of a part, and holds
// what a part computes before its results. `cost` is that of one iteration.
void for_parts(int64_t count, int64_t most, double cost, int64_t bytes, const auto &work) {
    parallel(count, cost, [&](int64_t begin, int64_t end) {
        const std::unique_ptr<char[]> memory(new char[min(most, end - begin) * bytes]);
        for (int64_t first = begin; first < end; first += most)
            work(first, min(most, end - first), memory.get());
    });
}

}  // namespace dmlpool
