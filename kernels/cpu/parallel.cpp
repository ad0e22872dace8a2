// Runs the parts of a call on PyTorch's threads.

#include "parallel.h"

#include <atomic>
#include <exception>
#include <stdexcept>
#include <string>

namespace dmlpool {
namespace {

ParallelFor torch_parallel_for = nullptr;
GetThreads torch_get_num_threads = nullptr;

// One parallel region, which its threads share.
struct Region {
    const int64_t count;
    const int64_t least;
    const int64_t threads;
    const void *const work;
    void (*const run)(const void *work, int64_t begin, int64_t end);
    std::atomic<int64_t> next = 0;  // the first of count that no part has yet
    std::atomic<bool> has_failed = false;
    std::exception_ptr error = nullptr;  // of the part that failed first

    void take_parts() {
        for (int64_t begin = next; begin < count;) {
            const int64_t end =
                std::min(count, begin + std::max(least, (count - begin) / (2 * threads)));
            if (!next.compare_exchange_weak(begin, end))
                continue;
            run(work, begin, end);
            begin = next;
        }
    }
    void stop(std::exception_ptr reason) {
        next = count;
        if (!has_failed.exchange(true))
            error = reason;
    }
};

void take_parts(int64_t, int64_t, void *region) noexcept {
    Region &shared = *static_cast<Region *>(region);
    try {
        shared.take_parts();
    } catch (...) {
        shared.stop(std::current_exception());
    }
}

void check(const char *function, int32_t code) {
    if (code != 0)
        throw std::runtime_error(std::string(function) + " returned " + std::to_string(code));
}

}  // namespace

void use_threads(ParallelFor parallel_for, GetThreads get_threads) {
    torch_parallel_for = parallel_for;
    torch_get_num_threads = get_threads;
}

void run_parts(int64_t count, int64_t least, const void *work,
               void (*run)(const void *work, int64_t begin, int64_t end)) {
    uint32_t available = 1;
    check("torch_get_num_threads", torch_get_num_threads(&available));
    const int64_t threads = std::min<int64_t>(available, (count + least - 1) / least);
    if (threads <= 1)
        return run(work, 0, count);
    Region region{count, least, threads, work, run};
    const int32_t code = torch_parallel_for(0, threads, 1, take_parts, &region);
    if (region.error != nullptr)
        std::rethrow_exception(region.error);
    check("torch_parallel_for", code);
}

}  // namespace dmlpool
