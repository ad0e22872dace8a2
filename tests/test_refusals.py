"""Every public argument with every kind of wrong value: refused in words before any work, as
tests/refusals.md says."""

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import refusals
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import nn
from torch_dmlpool.backends import cpu
from torch_dmlpool.window import ArgumentError

REQUESTS = refusals.requests()
# PyTorch 2.13 warns of the first quantized tensor of a process, wherever that is.
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning"
)
operators = torch.ops.dmlpool
PLANES = torch.ones(2, 3, 4, 5)
WINDOW = ([2, 2], [1, 1], [0, 0], [0, 0], [1, 1], False)


def refused(kind: type[Exception], message: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        call()


def test_a_wrong_value_is_a_value_error_and_pytorchs_runtime_error() -> None:
    """So code that was written for torch.nn catches it."""
    with pytest.raises(RuntimeError) as refusal:
        dmlpool.max_pooling(PLANES, 9)
    assert isinstance(refusal.value, ValueError)
    assert isinstance(refusal.value, ArgumentError)


@pytest.mark.parametrize(
    ("function", "name", "meant"),
    [
        (dmlpool.max_pooling, "kernel_size", "window_size"),
        (dmlpool.max_pooling, "stride", "strides"),
        (dmlpool.max_pooling, "padding", "start_padding and end_padding"),
        (dmlpool.max_pooling, "dilation", "dilations"),
        (dmlpool.average_pooling, "count_include_pad", "include_padding"),
        (nn.functional.avg_pool2d, "include_padding", "count_include_pad"),
    ],
)
def test_torchs_names_are_answered_by_directmls(
    function: Callable[..., object], name: str, meant: str
) -> None:
    message = f"{function.__name__} has no argument {name}: did you mean {meant}?"
    refused(TypeError, message, lambda: function(PLANES, 2, **{name: 2}))


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["MaxPool", "MinPool", "AvgPool", "LPPool", "quantized.AvgPool"])
def test_directmls_names_are_answered_by_the_layers(name: str, rank: int) -> None:
    """E8: a layer knows torch.nn's names, and its errors name the layer."""
    module, _, last = name.rpartition(".")
    layer: Any = getattr(nn.quantized if module else nn, f"{last}{rank}d")
    names = {"strides": "stride", "start_padding": "padding"}
    if last == "LPPool":
        layer = functools.partial(layer, 2)
    else:
        names["dilations"] = "dilation"
    for wrong, meant in names.items():
        message = f"{last}{rank}d has no argument {wrong}: did you mean {meant}?"
        refused(TypeError, message, lambda wrong=wrong: layer(2, **{wrong: 2}))
    with pytest.raises(TypeError, match="unexpected keyword argument 'window'"):
        layer(2, window=3)
    with pytest.raises(TypeError, match=rf"{last}{rank}d.__init__\(\) missing"):
        layer()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("MaxPool2d", "nn.MaxPool2d"),
        ("max_pool2d", "nn.functional.max_pool2d"),
        ("convert", "nn.convert"),
        ("avg_pooling", "average_pooling"),
        ("maxpooling", "max_pooling"),
    ],
)
def test_a_name_that_is_elsewhere_is_said_to_be_there(name: str, meant: str) -> None:
    missing = f"module 'torch_dmlpool' has no attribute '{name}'"
    message = f"{missing}: did you mean torch_dmlpool.{meant}?"
    refused(AttributeError, message, lambda: getattr(dmlpool, name))
    assert not hasattr(dmlpool, "something_else")


OF_VALUES = re.compile("a tensor on another device|an index|a channel|a tensor of 0$|a tensor$")
"""What a tensor without data has nothing to be refused for."""


@pytest.mark.parametrize("function", refusals.OF_PLAIN_TENSORS)
def test_tensors_without_data_are_refused_alike(function: str) -> None:
    """G1, G5 and G8: the fake tensors of a compiler know as much as real ones, but for values."""

    def without_data(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.is_nested or value.is_quantized:
            return value
        return value.detach().to("meta").requires_grad_(value.requires_grad)

    for request in REQUESTS[function]:
        if not OF_VALUES.match(request.wrong):
            arguments = {name: without_data(value) for name, value in request.call.keywords.items()}
            other = request._replace(call=functools.partial(request.call.func, **arguments))
            assert refusals.refusal(other) == refusals.refusal(request)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.int32, 2**31), (torch.uint32, 2**32 - 1)], ids=["int32", "uint32"]
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_index_types_that_cannot_number_the_input(
    device: str, dtype: torch.dtype, most: int
) -> None:
    """M4: refused before any work, on an input that could never be computed here; one element less
    is accepted."""
    pool = functools.partial(dmlpool.max_pooling, return_indices=True, index_dtype=dtype)
    for elements in (2**34, most + 1):
        input = torch.zeros((), device=device, dtype=torch.uint8).expand(1, 1, elements)
        message = f"index_dtype {str(dtype)[6:]} numbers at most {most} elements, got {elements}"
        refused(ValueError, message, functools.partial(pool, input, 2))
    if device == "meta":
        values, indices = pool(input[..., :most], 2, 2)
        assert values.shape[-1] == indices.shape[-1] == most // 2


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_operators_refuse_too(device: str) -> None:
    """G5, G6, G8 and M6 where somebody calls torch.ops.dmlpool directly, or torch.export replays a
    graph."""
    input, gradient = PLANES.to(device), torch.ones(2, 3, 3, 4, device=device)
    taps = torch.zeros(2, 3, 3, 4, dtype=torch.uint8, device=device)
    spread = operators.max_pooling_grad_from_taps
    message = "strides must be at least 1, got 0 in spatial dimension W (strides=[1, 0])"
    refused(ValueError, message, lambda: operators.max_pooling(input, [2, 2], [1, 0], *WINDOW[2:]))
    message = "input has data type int32; supported are float32, float16, bfloat16, float64"
    averages = functools.partial(operators.average_pooling, input.int(), *WINDOW, False)
    refused(TypeError, message, lambda: averages(None))
    message = "divisor_override must not be 0"
    refused(ValueError, message, lambda: operators.average_pooling(input, *WINDOW, False, 0))
    message = "taps must have the window's data type uint8, got int64"
    refused(TypeError, message, lambda: spread(gradient, taps.long(), [4, 5], *WINDOW, False))
    message = "taps must have the forward output's shape (2, 3, 4, 4), got shape (2, 3, 3, 4)"
    decode = functools.partial(operators.max_pooling_indices, taps, [5, 5], *WINDOW)
    refused(ValueError, message, lambda: decode(torch.int64, True))
    message = "taps must have the input_gradient's shape (1, 3, 3, 4), got shape (2, 3, 3, 4)"
    refused(ValueError, message, lambda: spread(gradient[:1], taps, [4, 5], *WINDOW, False))
    message = "taps must have the forward output's shape (2, 3, 3, 4), got shape (2, 1, 3, 4)"
    refused(ValueError, message, lambda: operators.max_pooling_gather(input, taps[:, :1], *WINDOW))


def test_the_quantized_operator_refuses_too() -> None:
    """Q3 and Q4 where somebody calls torch.ops.dmlpool directly."""

    def call(input_scale: Tensor, output_scale: Tensor, dtype: torch.dtype = torch.uint8) -> Tensor:
        scales = input_scale, None, output_scale, None
        operator = operators.quantized_linear_average_pooling
        return operator(PLANES.byte(), *scales, *WINDOW, False, dtype)

    scale = torch.ones(3)
    message = "output_scale must be finite and above 0 in float32, got 0.0"
    refused(ValueError, message, lambda: call(scale, torch.zeros(1)))
    message = "input_scale must have one element or shape (3,) or (1, 3, 1, 1), got shape (2,)"
    refused(ValueError, message, lambda: call(scale[:2], scale))
    message = "output_dtype must be one of int8, uint8, got float32"
    refused(TypeError, message, lambda: call(scale, scale, torch.float32))


def test_every_public_function_and_layer_is_in_the_table() -> None:
    """And every argument of each, but what takes models or is ignored as PyTorch ignores it."""
    public = {
        name: getattr(dmlpool, name)
        for name in dmlpool.__all__
        if name not in ("ArgumentError", "SlowBackendWarning", "Window", "__version__", "nn")
    }
    others = {"Conversion", "convert", "functional", "integer_pooling", "pooling_quantizer"}
    others |= {"quantized", "rerouted", "reverted"}
    for module in (nn, nn.functional, nn.quantized):
        prefix = module.__name__.removeprefix("torch_dmlpool.")
        public |= {f"{prefix}.{name}": getattr(module, name) for name in {*module.__all__} - others}
    assert set(public) == set(REQUESTS)
    for name, function in public.items():
        if "1d" in name or "3d" in name:
            continue
        arguments = set(inspect.signature(function).parameters)
        if name.endswith("with_indices"):
            arguments.remove("return_indices")
        assert arguments <= {request.argument for request in REQUESTS[name]}, name


@pytest.mark.usefixtures("either_backend")
def test_refusals_are_those_of_the_page() -> None:
    """G5, G6, G8, A5, M4, Q3 and Q4: a TypeError or a ValueError which names the argument or what
    it leaves.

    Word for word those of tests/refusals.md, which python tests/refusals.py writes; what is right
    is accepted.
    """
    for call in refusals.right_requests():
        call()
    found = refusals.collected()
    for refused, names in found.items():
        # A scale that requires a gradient is right in every other respect.
        assert (
            refused.kind in ("TypeError", "ValueError") or "requires a gradient" in refused.wrong
        ), refused
        named = re.match(r"(?:\w+pool\dd: )?(the \w+|\w+)", refused.message)
        subjects = {"the window", "the input", "the output"} | {
            request.argument for name in names for request in REQUESTS[name]
        }
        assert named is not None, refused
        assert named[1] in subjects or refused.kind == "RuntimeError", refused
    assert refusals.PAGE.read_text() == refusals.page(found), (
        "run python tests/refusals.py and read what has changed"
    )


# What the reference and ATen compute with (refusals of scales and indices look at them by other
# operations), and what the compiled library is called by.
WORKING = re.compile(
    r"aten::.*(pool|maximum|amax|mean|sum|add|pow|scatter|gather|div|quantize_per)|"
    r"dmlpool_(?!max_unpooling)"
)


def operations(calls: list[Callable[[], object]]) -> set[str]:
    """PyTorch's operations and the library's functions that run while something is called and
    refused or not."""
    called: set[str] = set()

    class Recorded:
        def __getattr__(self, name: str) -> object:
            called.add(name)
            return getattr(library, name)

    library = cpu.library
    with pytest.MonkeyPatch.context() as patch, torch.autograd.profiler.profile() as profile:
        if library is not None:
            patch.setattr(cpu, "library", Recorded())
        for call in calls:
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                call()
    return {event.name for event in profile.function_events} | called


@pytest.mark.usefixtures("either_backend")
def test_a_wrong_index_changes_no_tensor() -> None:
    """Neither what the caller has, nor is anything returned."""
    requests = [each for each in REQUESTS["max_unpooling"] if each.wrong.startswith("an index")]
    assert len(requests) > 3
    for request in requests:
        tensors = [each for each in request.call.keywords.values() if isinstance(each, Tensor)]
        before = [tensor.clone() for tensor in tensors]
        assert refusals.refusal(request).kind == "ValueError"
        assert all(map(torch.equal, tensors, before))


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter computes outside of PyTorch"
)
def test_no_wrong_input_reaches_a_kernel() -> None:
    """Nothing that pools runs, by what PyTorch's profiler and the compiled library see. The
    library's max_unpooling is left out: it finds wrong indices itself, before it writes any
    element, which tests/backends/test_cpu.py proves."""
    right = operations(refusals.right_requests())
    working = {name for name in right if WORKING.match(name)}
    assert len(working) > 5
    wrong = operations([request.call for requests in REQUESTS.values() for request in requests])
    assert not wrong & working
