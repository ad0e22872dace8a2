"""What torch.compile makes of pools on a GPU, without one: an expression where that takes no longer
than the operator's kernel with what fusing saves, else a call of the operator."""

import re
from collections.abc import Callable

import cases
import pytest
import torch
from torch import nn
from torch._functorch.aot_autograd import aot_module, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table

import torch_dmlpool as dmlpool

pytest.importorskip("triton._C.libtriton")

from benchmarks import inductor

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Branches(nn.Module):
    """GoogLeNet's and SPPF's blocks: an input and pools of it, side by side."""

    def __init__(self, *pools, in_turn=False):
        super().__init__()
        self.before, self.after = nn.Conv2d(3, 3, 1), nn.Conv2d(3 + 3 * len(pools), 3, 1)
        self.pools, self.in_turn = nn.ModuleList(pools), in_turn

    def forward(self, x):
        each = [self.before(x).relu()]
        for pool in self.pools:
            each.append(pool(each[-1 if self.in_turn else 0]))
        return self.after(torch.cat(each, 1))


def stem(*between):
    return nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), *between, dmlpool.nn.MaxPool2d(3, 2, 1))


def with_relu(pool):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), pool)


MAX, AVERAGE, TAPS, GRAD, AVERAGE_GRAD = (
    *("max_pooling", "average_pooling", "max_pooling_with_taps"),
    *("max_pooling_grad_from_taps", "average_pooling_grad"),
)
MODELS: dict[str, tuple[Callable[[], nn.Module], list[str], list[str]]] = {
    "VGG: max 2/2": (lambda: with_relu(dmlpool.nn.MaxPool2d(2)), [], []),
    "DenseNet: average 2/2": (lambda: with_relu(dmlpool.nn.AvgPool2d(2)), [], []),
    "ResNet: max 3/2 of a stored input": (
        lambda: stem(nn.BatchNorm2d(4), nn.ReLU()),
        [MAX],
        [TAPS, GRAD],
    ),
    "ResNet without its norm: max 3/2 of what is computed in its loop": (
        lambda: stem(nn.ReLU()),
        [],
        [TAPS, GRAD],
    ),
    "GoogLeNet: max 3/1": (
        lambda: Branches(dmlpool.nn.MaxPool2d(3, 1, 1)),
        [MAX],
        [TAPS, GRAD],
    ),
    "Inception: average 3/1": (
        lambda: Branches(dmlpool.nn.AvgPool2d(3, 1, 1)),
        [AVERAGE],
        [AVERAGE, AVERAGE_GRAD],
    ),
    "YOLO: average 2/1": (lambda: with_relu(dmlpool.nn.AvgPool2d(2, 1)), [], [AVERAGE_GRAD]),
    "YOLO: max 5/1 three times": (
        lambda: Branches(*(dmlpool.nn.MaxPool2d(5, 1, 2) for _ in range(3)), in_turn=True),
        [MAX] * 3,
        [TAPS] * 3 + [GRAD] * 3,
    ),
    "a global average": (lambda: with_relu(dmlpool.nn.AdaptiveAvgPool2d(1)), [], []),
}
"""What is called, in inference and in training; the rest are expressions."""


@cases.each("name", MODELS, ["VGG: max 2/2", "GoogLeNet: max 3/1"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_expressions_are_written_where_they_are_as_fast_as_kernels(name, mode):
    model, *expected = MODELS[name]
    codes: list[str] = []

    def compiler(graph, inputs):
        with inductor.h200():
            codes.append(inductor.wrapper(graph, inputs))
        return make_boxed_func(graph)

    passes = compiler, compiler, min_cut_rematerialization_partition, select_decomp_table()
    is_trained = mode == "training"
    function = aot_module(model().train(is_trained), *passes)
    with torch.set_grad_enabled(is_trained):
        found = function(torch.rand(2, 3, 12, 12))
    if is_trained:
        found.sum().backward()
    called = re.findall(r"= torch\.ops\.dmlpool\.(\w+)", "".join(codes))
    assert sorted(called) == sorted(expected[is_trained])
    assert len(codes) == 1 + is_trained
