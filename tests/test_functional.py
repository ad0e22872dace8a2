"""The public functions: arguments and defaults, what they work under (E3, E5, E6)."""

import inspect

import cases
import pytest
import samples
import torch

import torch_dmlpool as dmlpool

WINDOW = "window_size, strides=1, start_padding=0, end_padding=0, dilations=1"
PARAMETERS = "input_scale, input_zero_point, output_scale, output_zero_point"
INDICES = "return_indices=False, index_dtype=torch.int64, mask=None"
SIGNATURES = {
    "average_pooling": f"input, {WINDOW}, include_padding=False, *, ceil_mode=False, "
    "divisor_override=None, mask=None",
    "average_pooling_grad": f"input_gradient, input_size, {WINDOW}, include_padding=False, *, "
    "ceil_mode=False, divisor_override=None",
    "max_pooling": f"input, {WINDOW}, *, ceil_mode=False, {INDICES}",
    "quantized_max_pooling": f"input, {WINDOW}, *, ceil_mode=False, {INDICES}",
    "max_pooling_grad": f"input, input_gradient, {WINDOW}, *, ceil_mode=False",
    "quantized_linear_average_pooling": f"input, {PARAMETERS}, {WINDOW}, include_padding=False, *, "
    "ceil_mode=False, output_dtype=None",
    "lp_pooling": f"input, {WINDOW}, p=2, *, ceil_mode=False, mask=None",
    "adaptive_max_pooling": f"input, output_size, *, {INDICES}",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    """The contract's names, order, defaults and keyword-only arguments."""
    parameters = inspect.signature(getattr(dmlpool, name)).parameters.values()
    plain = inspect.Signature(
        [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    )
    assert str(plain) == f"({SIGNATURES[name]})"


def test_window_arguments_take_any_sequence(device):
    """An iterator is none, and is refused as test_numbers.py says: whoever reads it uses it up."""
    input = samples.normal(1, 2, 6, 7).to(device)
    expected = dmlpool.average_pooling(input, (2, 3), (1, 2), (0, 1), (1, 0), (2, 1))
    for kind in (list, torch.Size):
        arguments = [kind(entries) for entries in ((2, 3), (1, 2), (0, 1), (1, 0), (2, 1))]
        assert torch.equal(dmlpool.average_pooling(input, *arguments), expected)
    assert torch.equal(dmlpool.max_pooling(input, 2, 3), dmlpool.max_pooling(input, (2, 2), (3, 3)))


def test_parameters_subclasses_and_functional_tensors(device):
    """G7: they hold the values that they show, and a subclass gives a subclass. Views, zeros
    without memory and inference tensors are in test_lazy.py."""
    plain = samples.normal(1, 2, 5, 6).to(device)

    class Subclass(torch.Tensor):
        pass

    for operator in (
        lambda x: dmlpool.average_pooling(x, 2),
        lambda x: dmlpool.max_pooling(x, 2),
        lambda x: dmlpool.max_pooling(x, 2, return_indices=True)[1],
        lambda x: dmlpool.max_pooling_grad(x, x[..., :-1, :-1], 2),
        lambda x: dmlpool.average_pooling_grad(x, (1, 2, 6, 7), 2),
    ):
        expected = operator(plain)
        for tensor in (torch.nn.Parameter(plain), plain.as_subclass(Subclass)):
            assert torch.equal(operator(tensor).detach(), expected)
        assert isinstance(operator(plain.as_subclass(Subclass)), Subclass)
        # No memory lies behind a functional tensor.
        functional = torch._to_functional_tensor(plain)
        assert torch.equal(torch._from_functional_tensor(operator(functional)), expected)


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16], ids=samples.name_of)
@pytest.mark.parametrize("dtype", samples.FLOATS, ids=samples.name_of)
@pytest.mark.parametrize("sizes", [(2, 3, 8), (2, 3, 8, 8), (2, 3, 4, 8, 8)], ids=str)
def test_autocast_never_changes_the_type(sizes, dtype, autocast, device):
    """E5, forward and backward."""
    input = samples.normal(*sizes, dtype=dtype).to(device).requires_grad_()
    for pool in (dmlpool.average_pooling, dmlpool.max_pooling, dmlpool.lp_pooling):
        expected = pool(input, 2)
        with torch.autocast(device.type, dtype=autocast):
            output = pool(input, 2)
        assert output.dtype == dtype
        assert torch.equal(output, expected)
        assert torch.autograd.grad(output.sum(), input)[0].dtype == dtype


@cases.each("sizes", [(1, 3, 2**30), (1, 1, 2**31 + 2**21)], [(1, 1, 2**31 + 2**21)])
def test_more_elements_than_32_bits_number(sizes):
    """G7 and M4: positions past 2³¹, on memory that is never touched but at a few places."""
    input = torch.zeros(sizes, dtype=torch.uint8)
    window = {"window_size": 2, "strides": 2**20}
    last = (sizes[-1] // 2**20 - 1) * 2**20 + 1
    input[0, -1, last] = 7
    values, indices = dmlpool.max_pooling(input, **window, return_indices=True)
    assert values[0, -1, -1] == 7
    assert (indices[0, -1, -2:] - (sizes[1] - 1) * sizes[2]).tolist() == [last - 1 - 2**20, last]
    _, small = dmlpool.max_pooling(input, **window, return_indices=True, index_dtype=torch.uint32)
    samples.assert_same(small, samples.to_numpy(indices).astype("uint32"))
    assert dmlpool.adaptive_max_pooling(input.to("meta"), 1).shape == (1, sizes[1], 1)


def test_a_profiler_sees_pools_by_name(device):
    """Calls that go straight to the backend too, forward and backward."""
    leaf = samples.normal(1, 2, 6, 6).to(device).requires_grad_()
    with torch.autograd.profiler.profile() as profile:
        dmlpool.max_pooling(leaf, 2).sum().backward()
        dmlpool.average_pooling(leaf.detach(), 2)
        dmlpool.adaptive_average_pooling(leaf.detach(), 4)
    names = {event.name for event in profile.function_events}
    assert {"dmlpool::max_pooling_with_taps", "dmlpool::max_pooling_grad_from_taps"} <= names
    assert {"dmlpool::average_pooling", "dmlpool::adaptive_average_pooling"} <= names
