// Runs the parts of a call on PyTorch's threads.

#include "parallel.h"

#include <atomic>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace dmlpool {
namespace {

ParallelFor torch_parallel_for = nullptr;
GetThreads torch_get_num_threads = nullptr;

// The iterations that one thread takes first.
struct Share {
    std::atomic<int64_t> next{0};  // the first one that no part has yet
    int64_t end = 0;
};

// One parallel region, which its threads share.
struct Region {
    const int64_t least;
    const void *const work;
    void (*const run)(const void *work, int64_t begin, int64_t end);
    std::vector<Share> shares;
    std::atomic<bool> has_failed = false;
    std::exception_ptr error = nullptr;  // of the part that failed first

    void take_parts(Share &share) {
        for (int64_t begin = share.next; begin < share.end;) {
            const int64_t part = std::max(least, (share.end - begin) / 2);
            const int64_t end = std::min(share.end, begin + part);
            if (!share.next.compare_exchange_weak(begin, end))
                continue;
            run(work, begin, end);
            begin = share.next;
        }
    }
    void stop(std::exception_ptr reason) {
        for (Share &share : shares)
            share.next = share.end;
        if (!has_failed.exchange(true))
            error = reason;
    }
};

void take_parts(int64_t thread, int64_t, void *region) noexcept {
    Region &shared = *static_cast<Region *>(region);
    try {
        for (size_t k = 0; k < shared.shares.size(); ++k)
            shared.take_parts(shared.shares[(size_t(thread) + k) % shared.shares.size()]);
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

int64_t available_threads() {
    uint32_t available = 1;
    check("torch_get_num_threads", torch_get_num_threads(&available));
    return available;
}

void run_parts(int64_t count, int64_t least, const void *work,
               void (*run)(const void *work, int64_t begin, int64_t end)) {
    const int64_t threads = std::min(available_threads(), (count + least - 1) / least);
    if (threads <= 1)
        return run(work, 0, count);
    Region region{least, work, run, std::vector<Share>(threads)};
    for (int64_t k = 0; k < threads; ++k) {
        region.shares[k].next = count * k / threads;
        region.shares[k].end = count * (k + 1) / threads;
    }
    const int32_t code = torch_parallel_for(0, threads, 1, take_parts, &region);
    if (region.error != nullptr)
        std::rethrow_exception(region.error);
    check("torch_parallel_for", code);
}

}  // namespace dmlpool
