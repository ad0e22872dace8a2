"""Which pools PyTorch has, and which of them ONNX Runtime reads alike (W5)."""

import itertools
from typing import Any

import pytest
import torch
from torch.nn import functional

from torch_dmlpool import counterparts
from torch_dmlpool.window import Window

CALLS: dict[str, Any] = {
    "max_pool": lambda x, k, s, p, d, c: functional.max_pool3d(x, k, s, p, d, c),
    "avg_pool": lambda x, k, s, p, _, c: functional.avg_pool3d(x, k, s, p, c, False),
    "lp_pool": lambda x, k, s, _pad, _, c: functional.lp_pool3d(x, 2, k, s, c),
}


@pytest.mark.parametrize("family", CALLS)
def test_pytorch_takes_what_it_is_said_to_take(family: str) -> None:
    """Each small window over volumes: where PyTorch has it there is no error, and where it has an
    error it is not said to have it."""
    for size, window, stride, pad, dilation, ceil_mode in itertools.product(
        (1, 2, 4), (1, 2, 3), (1, 2), (0, 1), (1, 2), (False, True)
    ):
        one = Window.pytorch(3, (1, window, 1), stride, (0, pad, 0), (1, dilation, 1), ceil_mode)
        sizes = 2, size, 2
        if (family == "lp_pool" and pad) or any(n < 1 for n in _outputs(one, sizes)):
            continue
        found = counterparts.arguments_of(family, one, sizes)
        request = (1, window, 1), stride, (0, pad, 0), (1, dilation, 1), ceil_mode
        try:
            CALLS[family](torch.ones(1, 1, *sizes), *request)
        except RuntimeError:
            assert found is None, request
            continue
        steps_over = dilation > 1 and (family != "max_pool" or (pad > 0 and size < dilation))
        assert (found is None) is steps_over, (request, size)


def _outputs(window: Window, sizes: tuple[int, ...]) -> list[int]:
    return [axis.output_size(size) for axis, size in zip(window.axes, sizes, strict=True)]


@pytest.mark.parametrize(
    ("window", "sizes", "counted", "expected"),
    [
        # GoogLeNet's and SqueezeNet's maxima, ResNet-D's averages: one node, whatever the size
        ((3, 2), (112, 55), False, "ceil"),
        ((3, 2), (113, 57), False, "floor"),
        ((3, 2), (None, None), False, "ceil"),
        ((2, 2), (None, 55), False, "ceil"),
        ((2, 2), (None, None), True, "ceil"),  # there is no padding to count
        ((3, 2, 1), (None, None), False, "ceil"),
        ((3, 1, 1), (8, 9), True, "floor"),
        # onnxruntime#15446: a window would start past the input
        ((2, 2, 1), (None, None), False, None),
        ((1, 3), (None, None), False, None),
        ((2, 2, 1), (8, 8), False, "floor"),
        ((2, 2, 1), (8, 6), True, "floor"),
        ((3, 3, 1), (6, 6), False, "ceil"),
        ((3, 3, 1), (5, 6), False, None),
        # onnxruntime#16203: padding is counted, and ceil_mode adds a window
        ((3, 2, 1), (None, None), True, None),
        ((3, 2, 1), (8, 8), True, None),
        ((3, 2, 1), (9, 9), True, "floor"),
        # onnxruntime#24681: the end padding of another dimension is taken
        (((3, 1), 1, (1, 0)), (9, 9), True, None),
        (((3, 1), 1, (1, 0)), (9, 9), False, "floor"),
        (((1, 3), 1, (0, 1)), (9, 9), True, "floor"),
    ],
)
def test_which_nodes_onnx_runtime_reads_alike(
    window: tuple[Any, ...], sizes: Any, counted: bool, expected: str | None
) -> None:
    """One node with ceil_mode or, where that adds no window, without; none in the cases of three
    reports."""
    found = counterparts.for_onnx(Window.pytorch(2, *window, ceil_mode=True), sizes, counted)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found[0].axes[0].ceil_mode is (expected == "ceil")
        assert found[1] is (counted and len(window) > 2)
