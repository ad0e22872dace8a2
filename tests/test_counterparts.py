"""Which pools PyTorch has, and which of them ONNX Runtime reads alike (W5)."""

import pytest

from torch_dmlpool import counterparts
from torch_dmlpool.window import Window


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
def test_which_nodes_onnx_runtime_reads_alike(window, sizes, counted, expected):
    """One node with ceil_mode or, where that adds no window, without; none in the cases of three
    reports."""
    found = counterparts.for_onnx(Window.pytorch(2, *window, ceil_mode=True), sizes, counted)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found[0].axes[0].ceil_mode is (expected == "ceil")
        assert found[1] is (counted and len(window) > 2)
