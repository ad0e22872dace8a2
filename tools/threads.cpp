// Threads of its own for a library that ThreadSanitizer checks: PyTorch's are not built with it.
// tools/sanitize.py adds this file to the library, and a test calls it with one thread and four.

#include <thread>
#include <vector>

#include "parallel.h"

namespace {

uint32_t threads;

int32_t get_threads(uint32_t *count) {
    *count = threads;
    return 0;
}

int32_t parallel_for(int64_t begin, int64_t end, int64_t, void (*run)(int64_t, int64_t, void *),
                     void *context) {
    std::vector<std::thread> started;
    for (int64_t i = begin; i < end; ++i)
        started.emplace_back(run, i, i + 1, context);
    for (std::thread &each : started)
        each.join();
    return 0;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" void dmlpool_own_threads(uint32_t count) {
    threads = count;
    dmlpool::use_threads(parallel_for, get_threads);
}
#pragma GCC visibility pop
