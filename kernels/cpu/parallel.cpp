// Runs the shares of a call on PyTorch's threads.

#include "parallel.h"

#include <exception>

namespace dmlpool {
namespace {

ParallelFor torch_parallel_for = nullptr;
GetThreads torch_get_num_threads = nullptr;

constexpr int64_t PARTS = 4;  // of a share at most

// One parallel region, which its threads share.
struct Region {
    const int64_t count;
    const int64_t least;
    const int64_t threads;
    const Work &work;
    vector<atomic<int64_t>> taken;  // how many iterations of each share
    atomic<bool> has_failed = false;
    std::exception_ptr error = nullptr;  // of the part that failed first

    void take_parts(int64_t share) {
        const int64_t first = count * share / threads;
        const int64_t size = count * (share + 1) / threads - first;
        const int64_t part = max(least, size / PARTS);
        for (int64_t at; !has_failed && (at = taken[share].fetch_add(part)) < size;)
            work(first + at, first + min(size, at + part));
    }
};

void take_parts(int64_t thread, int64_t, void *region) noexcept {
    Region &shared = *static_cast<Region *>(region);
    try {
        for (int64_t k = 0; k < shared.threads; ++k)
            shared.take_parts((thread + k) % shared.threads);
    } catch (...) {
        if (!shared.has_failed.exchange(true))
            shared.error = std::current_exception();
    }
}

void check(const char *function, int32_t code) {
    if (code != 0)
        throw std::runtime_error(string(function) + " returned " + to_string(code));
}

}  // namespace

void use_threads(ParallelFor parallel_for, GetThreads get_threads) {
    torch_parallel_for = parallel_for;
    torch_get_num_threads = get_threads;
}

int64_t available_threads() {
    uint32_t available = 1;
    check("torch_get_num_threads", torch_get_num_threads(&available));
    return available;
}

void run_parts(int64_t count, int64_t least, const Work &work) {
    const int64_t threads = min(available_threads(), parts_of(count, least));
    if (threads == 1)
        return work(0, count);
    Region region{count, least, threads, work, vector<atomic<int64_t>>(threads)};
    const int32_t code = torch_parallel_for(0, threads, 1, take_parts, &region);
    if (region.error)
        std::rethrow_exception(region.error);
    check("torch_parallel_for", code);
}

}  // namespace dmlpool
