"""What is wrong is refused before any work: by the functions on every device, by the operators that they call."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool.window import ArgumentError

operators = torch.ops.dmlpool
PLANES = torch.ones(2, 3, 4, 5)
GRADIENT = torch.ones(2, 3, 3, 4)
WINDOW = ([2, 2], [1, 1], [0, 0], [0, 0], [1, 1], False)


def refused(kind: type[Exception], message: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        call()


def test_a_wrong_value_is_a_value_error_and_pytorchs_runtime_error() -> None:
    """So code that was written for torch.nn catches it."""
    with pytest.raises(RuntimeError) as refusal:
        dmlpool.max_pooling(PLANES, 9)
    assert isinstance(refusal.value, ValueError)
    assert type(refusal.value) is ArgumentError


def test_torchs_names_are_answered_by_directmls() -> None:
    for name, meant in {
        "kernel_size": "window_size",
        "stride": "strides",
        "padding": "start_padding and end_padding",
        "dilation": "dilations",
    }.items():
        message = f"max_pooling has no argument {name}: did you mean {meant}?"
        refused(TypeError, message, lambda name=name: dmlpool.max_pooling(PLANES, 2, **{name: 2}))
    message = "average_pooling has no argument count_include_pad: did you mean include_padding?"
    refused(TypeError, message, lambda: dmlpool.average_pooling(PLANES, 2, count_include_pad=True))
    message = "avg_pool2d has no argument include_padding: did you mean count_include_pad?"
    refused(TypeError, message, lambda: dmlpool.nn.functional.avg_pool2d(PLANES, 2, include_padding=True))
    with pytest.raises(TypeError, match="unexpected keyword argument 'count_include_pad'"):
        dmlpool.max_pooling(PLANES, 2, count_include_pad=True)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_without_data_are_refused_alike(device: str) -> None:
    """G1, G5 and G8: the fake tensors of a compiler know as much as real ones."""
    input, gradient = PLANES.to(device), GRADIENT.to(device)
    leaves_no_output = (
        "the window leaves no output in spatial dimension W: window_size 6 with dilation 1 spans 6 positions, but the "
        "padded input has only 5 (0 + 5 + 0)"
    )
    for call in (dmlpool.average_pooling, dmlpool.max_pooling, dmlpool.lp_pooling):
        refused(ValueError, leaves_no_output, lambda call=call: call(input, (2, 6)))
        rank = "input must be (N, C, *spatial) with 1 to 3 spatial dimensions, got 2 dimensions: shape (4, 5)"
        refused(ValueError, rank, lambda call=call: call(input[0, 0], 2))
    message = "input_gradient must have the forward output's shape (2, 3, 3, 4), got shape (2, 3, 3, 3)"
    refused(ValueError, message, lambda: dmlpool.max_pooling_grad(input, gradient[..., :3], 2))
    refused(ValueError, message, lambda: dmlpool.average_pooling_grad(gradient[..., :3], (2, 3, 4, 5), 2))


@pytest.mark.parametrize(("dtype", "most"), [(torch.int32, 2**31), (torch.uint32, 2**32 - 1)], ids=["int32", "uint32"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_index_types_that_cannot_number_the_input(device: str, dtype: torch.dtype, most: int) -> None:
    """M4: refused before any work, on an input that could never be computed here; one element less is accepted."""
    for elements in (2**34, most + 1):
        input = torch.zeros((), device=device, dtype=torch.uint8).expand(1, 1, elements)
        message = f"index_dtype {str(dtype)[6:]} numbers at most {most} elements, the input has {elements}"
        refused(ValueError, message, lambda: dmlpool.max_pooling(input, 2, return_indices=True, index_dtype=dtype))  # noqa: B023
    if device == "meta":
        values, indices = dmlpool.max_pooling(input[..., :most], 2, 2, return_indices=True, index_dtype=dtype)
        assert values.shape[-1] == indices.shape[-1] == most // 2


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_operators_refuse_too(device: str) -> None:
    """G5, G6, G8 and M6 where somebody calls torch.ops.dmlpool directly, or torch.export replays a graph."""
    input, gradient = PLANES.to(device), GRADIENT.to(device)
    taps = torch.zeros(2, 3, 3, 4, dtype=torch.uint8, device=device)
    message = "strides must be at least 1, got 0 in spatial dimension W (strides=(1, 0))"
    refused(ValueError, message, lambda: operators.max_pooling(input, [2, 2], [1, 0], *WINDOW[2:]))
    message = "input has data type int32; supported are float32, float16, bfloat16, float64"
    refused(TypeError, message, lambda: operators.average_pooling(input.int(), *WINDOW, False, None))
    message = "divisor_override must not be 0"
    refused(ValueError, message, lambda: operators.average_pooling(input, *WINDOW, False, 0))
    with pytest.raises(TypeError, match=r"^taps of a window of 4 taps must have data type uint8"):
        operators.max_pooling_grad_from_taps(gradient, taps.long(), [4, 5], *WINDOW, False)
    message = "taps must have the forward output's shape (2, 3, 4, 4), got shape (2, 3, 3, 4)"
    refused(ValueError, message, lambda: operators.max_pooling_indices(taps, [5, 5], *WINDOW, torch.int64, True))
    for call in (
        lambda: operators.max_pooling_grad_from_taps(gradient[:1], taps, [4, 5], *WINDOW, False),
        lambda: operators.max_pooling_gather(input, taps[:, :1], *WINDOW),
    ):
        with pytest.raises(ValueError, match=re.escape("(2, 3, 3, 4)")):
            call()


def test_the_quantized_operator_refuses_too() -> None:
    """Q3 and Q4 where somebody calls torch.ops.dmlpool directly."""
    operator, input = operators.quantized_linear_average_pooling, torch.zeros(2, 3, 4, 5, dtype=torch.uint8)
    scales = torch.tensor([0.5, 1.0, 2.0])
    message = "output_scale must be finite and above 0 in float32, got 0.0"
    rest = (*WINDOW, False, torch.uint8)
    refused(ValueError, message, lambda: operator(input, scales, None, torch.zeros(1), None, *rest))
    message = "input_scale must have one element or one per channel, shape (3,) or (1, 3, 1, 1), got shape (2,)"
    refused(ValueError, message, lambda: operator(input, scales[:2], None, scales, None, *rest))
    message = "output_dtype must be one of int8, uint8, got float32"
    refused(TypeError, message, lambda: operator(input, scales, None, scales, None, *WINDOW, False, torch.float32))


def test_refusals_come_before_any_work() -> None:
    """An input far too large to compute on is refused at once, for the last argument as for the first."""
    huge = torch.zeros((), dtype=torch.float32).expand(2**20, 2**20, 4, 5)
    for call, kind in (
        (lambda: dmlpool.max_pooling(huge, 2, dilations=9), ValueError),
        (lambda: dmlpool.max_pooling(huge, 2, return_indices=True, index_dtype=torch.int32), ValueError),
        (lambda: dmlpool.average_pooling(huge, 2, divisor_override=0), ValueError),
        (lambda: dmlpool.average_pooling_grad(huge, (2**20, 2**20, 5, 7), 2), ValueError),
        (lambda: dmlpool.max_pooling_grad(huge, GRADIENT, 2), ValueError),
        (lambda: dmlpool.max_pooling_grad(huge, huge.view(torch.int32), 2), TypeError),
    ):
        with pytest.raises(kind):
            call()
