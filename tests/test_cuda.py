"""What only a GPU can show: large tensors, streams, graphs, determinism under load. Skipped in
words without one."""

import pytest
import samples
import torch

import torch_dmlpool as dmlpool

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm GPU")

WINDOW = {"window_size": 3, "strides": 2, "start_padding": 1, "end_padding": 1}
FORWARD = {
    "average": lambda x: dmlpool.average_pooling(x, **WINDOW),
    "max": lambda x: dmlpool.max_pooling(x, **WINDOW),
    "indices": lambda x: dmlpool.max_pooling(x, **WINDOW, return_indices=True)[1],
    "norm": lambda x: dmlpool.lp_pooling(x, **WINDOW, p=2),
    "adaptive average": lambda x: dmlpool.adaptive_average_pooling(x, 7),
    "adaptive max": lambda x: dmlpool.adaptive_max_pooling(x, (7, 9)),
    # The indices of overlapping windows meet: which element is written must not depend on the run.
    "unpooling": lambda x: dmlpool.max_unpooling(
        x[..., 2:, 2:], dmlpool.max_pooling(x, 3, return_indices=True)[1], x.shape
    ),
}


@pytest.mark.parametrize("function", [name for name in FORWARD if name != "indices"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_same_bits_over_a_hundred_runs(function, dtype):
    """E3: forward and backward, and nothing is refused under deterministic algorithms."""
    input = torch.randn(8, 16, 57, 57, device="cuda").to(dtype)
    torch.use_deterministic_algorithms(True)
    try:
        first = samples.results(FORWARD[function], input)
        for _ in range(99):
            assert all(map(torch.equal, samples.results(FORWARD[function], input), first))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("function", FORWARD)
def test_a_graph_captures_it(function):
    """E4: replayed on other numbers, a captured graph gives their result."""
    input = torch.randn(4, 8, 32, 32, device="cuda")
    FORWARD[function](input)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = FORWARD[function](input)
    input.copy_(torch.randn_like(input))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(output, FORWARD[function](input))


@pytest.mark.parametrize("function", FORWARD)
def test_the_current_stream_is_used(function):
    """E5: work on a second stream sees what that stream wrote before."""
    expected_of = torch.randn(4, 8, 64, 64, device="cuda")
    expected = FORWARD[function](expected_of)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late = torch.empty_like(expected_of).copy_(expected_of)
        output = FORWARD[function](late)
    stream.synchronize()
    assert torch.equal(output, expected)


@pytest.mark.parametrize("function", ["average", "max"])
def test_more_elements_than_32_bits_number(function):
    """G7: beyond 2³¹ elements, every plane is that of a small tensor."""
    free, _ = torch.cuda.mem_get_info()
    if free < 12 * 2**30:
        pytest.skip("needs 12 GiB of GPU memory")
    small = torch.randint(-100, 100, (1, 64, 64, 64), device="cuda").half()
    large = small.expand(8200, 64, 64, 64).contiguous()
    assert large.numel() > 2**31
    expected = FORWARD[function](small)
    output = FORWARD[function](large)
    for sample in (0, 1, 4096, 8199):
        assert torch.equal(output[sample], expected[0])


@pytest.mark.parametrize("function", ["average", "max"])
def test_more_samples_than_a_grid_has_rows(function):
    """E6: 70,000 samples, beyond the 65,535 of a launch grid's second dimension."""
    input = torch.randint(-9, 9, (70_000, 1, 4, 4), device="cuda").float()
    output = FORWARD[function](input)
    assert torch.equal(output.cpu(), FORWARD[function](input.cpu()))


def test_the_gpu_agrees_with_the_cpu_on_real_sizes():
    """E6: maxima and indices are equal, averages within the bound, gradients too, contiguous and
    channels_last."""
    for memory_format in (torch.contiguous_format, torch.channels_last):
        input = torch.randn(4, 32, 61, 56).to(memory_format=memory_format)
        on_gpu = input.cuda()
        for name in ("max", "indices"):
            assert torch.equal(FORWARD[name](on_gpu).cpu(), FORWARD[name](input))
        torch.testing.assert_close(
            FORWARD["average"](on_gpu).cpu(), FORWARD["average"](input), rtol=1e-6, atol=1e-6
        )
        for name in ("max", "average"):
            on_both = (samples.results(FORWARD[name], image)[1].cpu() for image in (on_gpu, input))
            torch.testing.assert_close(*on_both, rtol=1e-5, atol=1e-6)
