"""torch_dmlpool.nn.rerouted: which calls use this package's kernels, and what stays PyTorch's."""

import threading
from collections.abc import Callable

import cases
import numpy as np
import pytest
import samples
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from torch_dmlpool.nn import rerouted

nn = torch._C._nn


def image(rank, device):
    return samples.normal(2, 3, *(7, 8, 6)[:rank], dtype=torch.float64).to(device)


class Padded(torch.nn.AvgPool2d):
    def forward(self, input):
        return super().forward(F.pad(input, (1, 0, 0, 1)))


CALLS: dict[str, tuple[int, Callable[[Tensor], object]]] = {
    "avg_pool1d": (1, lambda x: F.avg_pool1d(x, 3, 2, 1, True, False)),
    "avg_pool2d": (2, lambda x: F.avg_pool2d(x, kernel_size=(3, 2), stride=2, divisor_override=4)),
    "avg_pool2d by keywords alone": (2, lambda x: F.avg_pool2d(input=x, kernel_size=2)),
    "avg_pool3d": (3, lambda x: F.avg_pool3d(x, 2, padding=1)),
    "max_pool1d": (1, lambda x: F.max_pool1d(x, 3, 2, 1, 2, True)),
    "max_pool1d with indices": (1, lambda x: F.max_pool1d(x, 3, return_indices=True)),
    "max_pool2d": (2, lambda x: F.max_pool2d(x, (3, 2), stride=(2, 1), padding=1, ceil_mode=True)),
    "max_pool2d with indices": (2, lambda x: F.max_pool2d(x, 2, 1, 0, 2, False, True)),
    "max_pool2d_with_indices": (2, lambda x: F.max_pool2d_with_indices(x, 2)),
    "max_pool3d": (3, lambda x: F.max_pool3d(x, 2)),
    "max_pool3d with indices": (3, lambda x: F.max_pool3d(x, 2, stride=1, return_indices=True)),
    "an empty stride": (2, lambda x: F.max_pool2d(x, 2, [])),
    "torch.avg_pool1d": (1, lambda x: torch.avg_pool1d(x, 2)),
    "torch.max_pool1d": (1, lambda x: torch.max_pool1d(x, 2)),
    "torch.max_pool1d_with_indices": (1, lambda x: torch.max_pool1d_with_indices(x, 2)),
    "torch.max_pool2d": (2, lambda x: torch.max_pool2d(x, [2, 2], [2, 2], [0, 0], [1, 1], False)),
    "torch.max_pool3d": (3, lambda x: torch.max_pool3d(x, 2)),
    "the form beneath with indices": (2, lambda x: nn.max_pool2d_with_indices(x, 2)),
    "adaptive_avg_pool1d": (1, lambda x: F.adaptive_avg_pool1d(x, 3)),
    "adaptive_avg_pool2d": (2, lambda x: F.adaptive_avg_pool2d(x, (None, 3))),
    "adaptive_avg_pool3d": (3, lambda x: F.adaptive_avg_pool3d(x, 1)),
    "adaptive_max_pool1d": (1, lambda x: F.adaptive_max_pool1d(x, 3)),
    "adaptive_max_pool2d with indices": (
        2,
        lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True),
    ),
    "adaptive_max_pool3d": (3, lambda x: F.adaptive_max_pool3d(x, (2, 1, 3))),
    "torch.adaptive_max_pool1d": (1, lambda x: torch.adaptive_max_pool1d(x, 3)),
    "a layer": (2, lambda x: torch.nn.MaxPool2d(2, return_indices=True)(x)),
    "a layer's subclass": (2, lambda x: Padded(3, 2)(x)),
}


@cases.in_pairs(name=list(CALLS), batched=[True, False])
def test_a_call_is_served_by_us_with_torchs_results(name, batched, device):
    """Values and indices, and a gradient that our operators alone can have."""
    rank, call = CALLS[name]
    input = image(rank, device)
    input = (input if batched else input[0]).requires_grad_()
    expected = samples.listed(call(input))
    with rerouted():
        actual = samples.listed(call(input))
    torch.testing.assert_close(actual, expected)
    names, nodes = set(), [actual[0].grad_fn]
    while nodes:
        node = nodes.pop()
        if node is not None:
            names.add(node.name())
            nodes += [following for following, _ in node.next_functions]
    assert any("Pooling" in found for found in names), names
    assert not any(f"Pool{rank}D" in found for found in names for rank in (1, 2, 3)), names


OURS, THEIRS = "MaxPoolingBackward", "MaxPool2DWithIndicesBackward0"


def pooled_by(input):
    """Whose max pool it is."""
    output = F.max_pool2d(input, 2)  # its node may be asked only while it lives
    return output.grad_fn.name()


def test_outside_nothing_changes(device):
    input = image(2, device).requires_grad_()
    with rerouted(), rerouted():
        assert pooled_by(input) == OURS
    assert pooled_by(input) == THEIRS
    with pytest.raises(ZeroDivisionError), rerouted():
        raise ZeroDivisionError
    assert pooled_by(input) == THEIRS


def test_a_function_is_decorated(device):
    """Each of its calls enters the region, nested and recursive ones too."""

    @rerouted()
    def pooled(input, times=1):
        """Its documentation."""
        output = F.max_pool2d(input, 2)
        return pooled(input, times - 1) if times else output

    input = image(2, device).requires_grad_()
    output = pooled(input)
    assert output.grad_fn.name() == OURS
    assert rerouted(pooled_by)(input) == OURS
    assert (pooled.__name__, pooled.__doc__) == ("pooled", "Its documentation.")
    assert pooled_by(input) == THEIRS


def test_other_threads_are_left_alone(device):
    found = []
    with rerouted():
        input = image(2, device).requires_grad_()
        thread = threading.Thread(target=lambda: found.append(pooled_by(input)))
        thread.start()
        thread.join()
    assert found == [THEIRS]


def test_what_we_do_not_take_stays_torchs(device):
    """Integers averaged (truncated, in PyTorch), a tensor for the result, norms, nested
    tensors."""
    integers = torch.arange(16, device=device).view(1, 1, 4, 4)
    output = torch.empty(1, 1, 2, 2, device=device)
    with rerouted():
        averages = F.avg_pool2d(integers, 2) if device.type == "cpu" else None
        nn.avg_pool2d(integers.float(), 2, out=output)
        norms = F.lp_pool2d(integers.float(), 2, 2)
    assert averages is None or averages.tolist() == [[[[2, 4], [10, 12]]]]
    assert output.tolist() == [[[[2.5, 4.5], [10.5, 12.5]]]]
    torch.testing.assert_close(norms, F.lp_pool2d(integers.float(), 2, 2))


def test_our_refusals_are_what_the_caller_sees(device):
    """A call that is ours is checked by us; and what PyTorch refuses and we do not, works."""
    with rerouted():
        text = r"^stride must be at least 1, got 0 in spatial dimension H \(stride=0\)$"
        with pytest.raises(ValueError, match=text):
            F.max_pool2d(image(2, device), 2, 0)
        assert F.max_pool2d(image(2, device), 2, 1, 2).shape == (2, 3, 10, 11)


LEFT: dict[str, Callable[[Tensor], object]] = {
    "no answer for indices": lambda x: F.max_pool2d(x, 2, return_indices=None),
    "no answer for ceil_mode": lambda x: F.max_pool2d(x, 2, ceil_mode=0),
    "a tensor of sizes": lambda x: F.adaptive_avg_pool2d(x, torch.tensor([2, 3])),
    "a tensor of sizes of maxima": lambda x: F.adaptive_max_pool2d(x, torch.tensor([2, 3])),
    "numpy's divisor": lambda x: F.avg_pool2d(x, 2, divisor_override=np.int64(3)),
    "a divisor in a tensor": lambda x: F.avg_pool2d(x, 2, divisor_override=torch.tensor(3)),
    "a flag of numpy": lambda x: F.avg_pool2d(x, 2, count_include_pad=np.bool_(True)),
    "a float": lambda x: F.max_pool2d(x, 2.0),
}


@pytest.mark.parametrize("name", LEFT)
def test_types_that_we_refuse_are_left_to_pytorch(name, device):
    """Its result, or its error."""

    def answer():
        try:
            return LEFT[name](image(2, device))
        except (TypeError, RuntimeError) as error:
            return str(error)

    expected = answer()
    with rerouted():
        actual = answer()
    torch.testing.assert_close(actual, expected) if isinstance(expected, Tensor) else None
    assert type(actual) is type(expected)
    assert isinstance(expected, Tensor) or actual == expected


def captured(function, **options):
    """A compiled function, and the pools of each graph that it is compiled to."""
    graphs: list[list[str]] = []

    def backend(graph, _):
        graphs.append(
            [str(node.target) for node in graph.graph.nodes if "pool" in str(node.target)]
        )
        return graph

    return torch.compile(function, backend=backend, fullgraph=True, **options), graphs


def every_form(input):
    values, indices = F.max_pool2d(input, 2, return_indices=True)
    pooled = F.avg_pool2d(input, 2) + F.max_pool2d(input, 2) + torch.max_pool2d(input, 2)
    return (
        pooled + torch.nn.MaxPool2d(2)(input) + values * indices + F.adaptive_avg_pool2d(input, 1)
    )


def test_compiled(fresh_compiler, device):
    """One graph, with the region around the compiled function or inside it; without it, the graph
    is PyTorch's."""

    def inside(input):
        with rerouted():
            return every_form(input)

    input = image(2, device)
    expected = every_form(input)
    function, graphs = captured(inside)
    torch.testing.assert_close(function(input), expected)
    assert len(graphs) == 1
    assert len(graphs[0]) == 6
    assert all(name.startswith("dmlpool.") for name in graphs[0])

    function, graphs = captured(every_form, dynamic=True)
    with rerouted():
        torch.testing.assert_close(function(input), expected)
        torch.testing.assert_close(
            function(torch.cat([input, input])), torch.cat([expected, expected])
        )
    torch.testing.assert_close(function(input), expected)
    assert len(graphs) == 2
    assert all(name.startswith("dmlpool.") for name in graphs[0])
    assert not any(name.startswith("dmlpool.") for name in graphs[1])
