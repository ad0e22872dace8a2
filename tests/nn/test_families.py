"""torch_dmlpool.nn's adaptive, Lp and unpooling layers and functions beside torch's, and where they mean to differ."""

from __future__ import annotations

import copy
import doctest
import inspect
import pickle
import re
from typing import Any

import pytest
import samples
import torch
from torch import Tensor

from torch_dmlpool import nn
from torch_dmlpool.nn import adaptive, functional, layers, lp, unpooling

SHAPES = {1: (2, 3, 13), 2: (2, 3, 9, 11), 3: (2, 3, 6, 7, 8)}
CALLS: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "AdaptiveAvgPool": [((1,), {}), ((4,), {}), ((), {"output_size": 5})],
    "AdaptiveMaxPool": [((4,), {}), ((3, True), {}), ((1,), {"return_indices": True})],
    "LPPool": [((2, 3), {}), ((2, 3, 2), {}), ((4.0, 2), {"stride": 1}), ((1, 2), {})],
}
SPECIAL: dict[str, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "AdaptiveAvgPool2d": [(((None, 3),), {}), (((4, 5),), {})],
    "AdaptiveMaxPool2d": [(((None, 3),), {}), (((4, 20), True), {})],
    "AdaptiveAvgPool3d": [(((2, None, 3),), {})],
    "LPPool2d": [((2, (2, 3), (1, 2)), {})],
}
NAMES = [name for name in layers.__all__ if not name.startswith(("AvgPool", "MaxPool"))]
EVERY_CALL = [
    pytest.param(name, *call, id=f"{name} {call}")
    for name in NAMES
    if name[:-2] in CALLS
    for call in [*CALLS[name[:-2]], *SPECIAL.get(name, [])]
]


def rank_of(name: str) -> int:
    return int(name[-2])


def test_there_are_three_of_each_kind() -> None:
    """Adaptive averages, adaptive maxima, norms and unpoolings, all of them offered by torch_dmlpool.nn."""
    assert len(NAMES) == 12
    assert all(hasattr(nn, name) and name in nn.__all__ for name in NAMES)


def results(layer: torch.nn.Module, batch: Tensor) -> list[Tensor]:
    leaf = batch.detach().requires_grad_()
    output = layer(leaf)
    outputs = list(output) if isinstance(output, tuple) else [output]
    incoming = samples.normal(*outputs[0].shape, dtype=batch.dtype, seed=7).to(batch.device)
    return [*outputs, *torch.autograd.grad(outputs[0], leaf, incoming)]


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize(("name", "arguments", "keywords"), EVERY_CALL)
def test_results_are_torchs(
    name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], batched: bool, device: torch.device
) -> None:
    """Positive numbers, so that torch's norms of odd exponents are norms."""
    batch = samples.distinct(*SHAPES[rank_of(name)]).abs().to(device) + 0.1
    batch = batch if batched else batch[0]
    ours = results(getattr(layers, name)(*arguments, **keywords), batch)
    torchs = results(getattr(torch.nn, name)(*arguments, **keywords), batch)
    assert [(tensor.shape, tensor.dtype) for tensor in ours] == [(tensor.shape, tensor.dtype) for tensor in torchs]
    torch.testing.assert_close(ours, torchs)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, None, 0), (2, 3, 0), (3, 3, 1)])
def test_unpooling_is_torchs(
    rank: int, kernel: int, stride: int | None, padding: int, batched: bool, device: torch.device
) -> None:
    """To sizes of its own, to the spatial sizes and to all sizes, where indices are unique; gradients too."""
    batch = samples.distinct(*SHAPES[rank]).to(device)
    batch = batch if batched else batch[0]
    values, indices = getattr(torch.nn, f"MaxPool{rank}d")(kernel, stride, padding, return_indices=True)(batch)
    ours, torchs = (getattr(module, f"MaxUnpool{rank}d")(kernel, stride, padding) for module in (layers, torch.nn))
    for output_size in [list(batch.shape[-rank:]), *([batch.shape] if batched else [])]:
        outputs = []
        for unpool in (ours, torchs):
            leaf = values.detach().requires_grad_()
            output = unpool(leaf, indices, output_size)
            outputs.append((output, *torch.autograd.grad(output, leaf, batch)))
        for found, expected in zip(*outputs, strict=True):
            samples.assert_same(found, expected)


def test_unpooling_without_an_output_size(device: torch.device) -> None:
    """torch's default sizes; with "same" padding a stride for each element, with pairs what they leave."""
    input = samples.normal(1, 2, 3, 4).to(device)
    indices = torch.arange(12, device=device).view(1, 1, 3, 4).expand(1, 2, 3, 4)
    expected = torch.nn.MaxUnpool2d(3, 2, 1)(input, indices)
    samples.assert_same(layers.MaxUnpool2d(3, 2, 1)(input, indices), expected)
    assert layers.MaxUnpool2d(3, 2, "same")(input, indices).shape == (1, 2, 6, 8)
    assert layers.MaxUnpool2d(3, 2, ((0, 1), (1, 1)))(input, indices).shape == (1, 2, 6, 7)


@pytest.mark.parametrize("name", NAMES)
def test_the_object_is_torchs(name: str) -> None:
    """isinstance, repr, state_dict, copies and pickles."""
    call = {"AdaptiveAvgPool": (3,), "AdaptiveMaxPool": (3, True), "LPPool": (2, 3), "MaxUnpool": (2, 1)}[name[:-2]]
    ours, torchs = getattr(layers, name)(*call), getattr(torch.nn, name)(*call)
    assert isinstance(ours, type(torchs))
    assert repr(ours) == repr(torchs)
    assert ours.state_dict() == torchs.state_dict() == {}
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert vars(twin) == vars(ours)
        assert type(twin) is type(ours)


@pytest.mark.parametrize("name", NAMES)
def test_the_constructor_is_torchs(name: str) -> None:
    """Names, order, kinds and defaults; norms add padding and dilation, by keyword alone."""

    def parameters(layer: type) -> list[tuple[str, Any, Any]]:
        found = inspect.signature(layer).parameters.values()
        return [(parameter.name, parameter.default, parameter.kind) for parameter in found]

    ours, torchs = parameters(getattr(layers, name)), parameters(getattr(torch.nn, name))
    if name.startswith("LPPool"):
        keyword = inspect.Parameter.KEYWORD_ONLY
        assert [ours.pop(), ours.pop()] == [("dilation", 1, keyword), ("padding", 0, keyword)]
    assert ours == torchs


FUNCTIONS = [name for name in functional.__all__ if not name.startswith(("avg_pool", "max_pool"))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_functions_signatures_are_torchs(name: str) -> None:
    """Where torch's is written in Python; of the adaptive averages the argument's name is the same."""
    ours = [p for p in inspect.signature(getattr(functional, name)).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    torchs = getattr(torch.nn.functional, name)
    with_indices = getattr(torch.nn.functional, f"{name}_with_indices", None)
    if with_indices is not None:
        torchs = with_indices
    if name == "adaptive_avg_pool1d":  # a builtin
        assert [parameter.name for parameter in ours] == ["input", "output_size"]
        return
    expected = inspect.signature(torchs).parameters.values()
    assert [(parameter.name, parameter.default) for parameter in ours] == [(p.name, p.default) for p in expected]


def test_norms_take_what_torchs_do_not(device: torch.device) -> None:
    """Padding, dilation and negative numbers: |x|^p, where torch adds up x^p."""
    input = samples.normal(2, 3, 9, 8, dtype=torch.float64).to(device)
    ours = layers.LPPool2d(3, 3, 2, padding=((0, 1), (2, 0)), dilation=(1, 2))
    sums = functional.avg_pool2d(input.abs() ** 3, 3, 2, ((0, 1), (2, 0)), divisor_override=1, dilation=(1, 2))
    torch.testing.assert_close(ours(input), sums ** (1 / 3))
    assert "padding=((0, 1), (2, 0)), dilation=(1, 2)" in repr(ours)
    assert torch.isnan(torch.nn.LPPool2d(3, 2)(-input.abs())).all()
    torch.testing.assert_close(layers.LPPool2d(3, 2)(-input.abs()), torch.nn.LPPool2d(3, 2)(input.abs()))


def test_the_last_of_several_is_written_and_has_the_gradient(device: torch.device) -> None:
    """torch's gradient goes to the overwritten ones too."""
    leaf = torch.tensor([[[1.0, 2.0, 3.0]]], device=device, requires_grad=True)
    indices = torch.tensor([[[1, 1, 2]]], device=device)
    output = layers.MaxUnpool1d(1)(leaf, indices)
    assert output.tolist() == [[[0, 2, 3]]]
    (gradient,) = torch.autograd.grad(output, leaf, torch.ones_like(output))
    assert gradient.tolist() == [[[0, 1, 1]]]


IMAGE = torch.ones(2, 3, 4, 6)
MISTAKES = {
    "norm_type": (lambda: layers.LPPool2d("2", 2), TypeError, "norm_type must be a number, got '2' of type str"),
    "norm_type below 1": (
        lambda: functional.lp_pool2d(IMAGE, 0.5, 2),
        ValueError,
        "norm_type must be at least 1, got 0.5",
    ),
    "kernel_size": (
        lambda: layers.LPPool1d(2, 0),
        ValueError,
        "kernel_size must be at least 1, got 0 in spatial dimension W (kernel_size=0)",
    ),
    "output_size": (
        lambda: layers.AdaptiveAvgPool2d((2, 0)),
        ValueError,
        "output_size must be at least 1, got 0 in spatial dimension W (output_size=[2, 0])",
    ),
    "entries of output_size": (
        lambda: layers.AdaptiveMaxPool3d((2, 2)),
        ValueError,
        "output_size must be one int or 3 ints (D, H, W), got 2 entries: (2, 2)",
    ),
    "return_indices": (
        lambda: layers.AdaptiveMaxPool2d(2, 1),
        TypeError,
        "return_indices must be a bool, got 1 of type int",
    ),
    "rank": (
        lambda: functional.adaptive_avg_pool1d(IMAGE, 2),
        ValueError,
        "adaptive_avg_pool1d: input must be 3-D (N, C, W) or, unbatched, 2-D (C, W), got 4-D of shape (2, 3, 4, 6)",
    ),
    "unpooled too far": (
        lambda: functional.max_unpool2d(IMAGE, torch.zeros(2, 3, 4, 6).long(), 2, output_size=(8, 14)),
        ValueError,
        "output_size must be less than a stride (2) from 12, which the window gives, in spatial dimension W, got 14 "
        "(output_size=(8, 14))",
    ),
    "stride": (
        lambda: layers.MaxUnpool2d(2, stride=0),
        ValueError,
        "stride must be at least 1, got 0 in spatial dimension H (stride=0)",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(mistake: str) -> None:
    """G5 and G6: when the layer is built, by the names that torch has for its arguments."""
    call, kind, message = MISTAKES[mistake]
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        call()


def test_a_network_compiles_and_is_traced_whole() -> None:
    """E2: layers in one graph; torch.fx keeps their calls."""
    network = torch.nn.Sequential(
        layers.LPPool2d(2, 2, 1), layers.AdaptiveMaxPool2d((4, 3)), layers.AdaptiveAvgPool2d(3)
    )
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    input = samples.normal(2, 3, 9, 8)
    torch.testing.assert_close(compiled(input), network(input))
    traced = torch.fx.symbolic_trace(lambda x: functional.adaptive_avg_pool2d(functional.lp_pool2d(x, 2, 2), 3))
    torch.testing.assert_close(traced(input), functional.adaptive_avg_pool2d(functional.lp_pool2d(input, 2, 2), 3))


@pytest.mark.parametrize("module", [adaptive, lp, unpooling], ids=lambda module: module.__name__)
def test_the_examples_run(module: Any) -> None:
    results = doctest.testmod(module, extraglobs={"MaxPool1d": layers.MaxPool1d})
    assert results.attempted >= 6
    assert results.failed == 0
