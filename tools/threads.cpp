// Calls every function of the CPU kernels with four threads of its own, for ThreadSanitizer:
// PyTorch is not built with it, so that tests from Python cannot use it. Results must have the bits
// that one thread gives. tools/sanitize.py builds and runs it.

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "operators.h"
#include "parallel.h"

namespace {

using Bytes = std::vector<unsigned char>;

uint32_t threads = 1;

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

// A window along all axes of an input; channels of 1 for a contiguous one.
Problem problem_of(int64_t planes, int64_t channels, std::vector<int64_t> sizes, int64_t window,
                   int64_t stride, int64_t padding) {
    Problem p = {};
    p.planes = planes;
    p.channels = channels;
    p.bytes = 1;
    for (int a = 0; a < 3; ++a) {
        const int64_t outputs = (sizes[a] + 2 * padding - window) / stride + 1;
        p.axes[a] = {sizes[a], outputs, window, stride, padding, 1};
        if (sizes[a] == 1)
            p.axes[a] = {1, 1, 1, 1, 0, 1};
    }
    return p;
}

std::vector<float> drawn_floats(int64_t count) {
    std::vector<float> values(count);
    uint32_t state = 1;
    for (float &value : values) {
        state = state * 1664525 + 1013904223;
        value = float(int32_t(state >> 8) % 1000) / 8;
    }
    return values;
}

bool agree(Problem p) {
    using namespace dmlpool;
    const int64_t inputs = p.planes * p.plane(), outputs = p.planes * p.output_plane();
    const auto input = drawn_floats(inputs), arriving = drawn_floats(outputs);
    Bytes taps(outputs), positions(outputs * 8);
    bool result = true;
    // `call` fills `bytes` bytes: the same with one thread and with four.
    const auto compare = [&](const char *name, int64_t bytes,
                             const std::function<void(void *)> &call) {
        Bytes expected(bytes), found(bytes);
        threads = 1;
        call(expected.data());
        threads = 4;
        call(found.data());
        if (expected != found)
            std::printf("%s: four threads give other bits than one\n", name);
        result &= expected == found;
    };
    compare("average_pooling", outputs * 4,
            [&](void *to) { average_pooling(p, input.data(), to); });
    compare("average_pooling_grad", inputs * 4,
            [&](void *to) { average_pooling_grad(p, arriving.data(), to); });
    compare("max_pooling", outputs * 4,
            [&](void *to) { max_pooling(p, input.data(), to, nullptr); });
    const bool has_bytes = p.d().window * p.h().window * p.w().window <= 256;
    if (has_bytes) {
        compare("max_pooling, taps", outputs,
                [&](void *to) { max_pooling(p, input.data(), nullptr, to); });
        max_pooling(p, input.data(), nullptr, taps.data());
        compare("max_pooling_grad", inputs * 4,
                [&](void *to) { max_pooling_grad(p, arriving.data(), taps.data(), to); });
    }
    p.bytes = 8;
    p.numbering = POSITIONS;
    compare("max_pooling, positions", outputs * 8,
            [&](void *to) { max_pooling(p, input.data(), nullptr, to); });
    max_pooling(p, input.data(), nullptr, positions.data());
    compare("gather_positions", outputs * 4,
            [&](void *to) { gather_positions(p, input.data(), positions.data(), to); });
    compare("scatter_positions", inputs * 4,
            [&](void *to) { scatter_positions(p, arriving.data(), positions.data(), to); });
    p.type = 7;  // of the positions
    compare("unique_positions", outputs * 8,
            [&](void *to) { unique_positions(p, positions.data(), to); });
    p.type = 8;  // of the taps, and of quantized elements
    if (has_bytes)
        compare("max_pooling_indices", outputs * 8,
                [&](void *to) { max_pooling_indices(p, taps.data(), to); });
    const float scale = 0.5f;
    const int32_t zero = 3;
    const Quantization q = {&scale, &scale, &zero, &zero, 1, 1, 1, 1, 1, 0, 255};
    compare("quantized_average_pooling", outputs,
            [&](void *to) { quantized_average_pooling(p, input.data(), to, q); });
    return result;
}

}  // namespace

int main() {
    dmlpool::use_threads(parallel_for, get_threads);
    bool result = true;
    // Rows, tiles of a long row, boxes, blocks of channels of which the last one is short, whole
    // planes and parts of one, bins.
    for (const Problem &p : {
             problem_of(6, 1, {1, 56, 56}, 3, 2, 1),
             problem_of(1, 1, {1, 1, 200000}, 3, 1, 1),
             problem_of(1, 1, {1, 1, 100000}, 200, 7, 20),
             problem_of(3, 1, {8, 20, 20}, 3, 1, 1),
             problem_of(2, 1, {1, 90, 90}, 20, 1, 9),
             problem_of(1, 330, {1, 40, 40}, 31, 1, 2),
             problem_of(2, 100, {1, 40, 40}, 13, 1, 6),
             problem_of(2, 33, {1, 30, 30}, 3, 1, 1),
             problem_of(64, 1, {1, 7, 7}, 7, 1, 0),
             problem_of(2, 1, {1, 600, 600}, 600, 1, 0),
         })
        result &= agree(p);
    return result ? EXIT_SUCCESS : EXIT_FAILURE;
}
