"""torch.nn.functional's pooling functions, argument for argument, on this package's operators.

They take what torch's take and more: ``padding`` also as ``((start, end), ...)`` or as a word, any
amount of it, and ``dilation`` on averages and norms. Indices are PyTorch's: int64, counted inside
each channel's plane.
"""

from torch_dmlpool.nn import observed
from torch_dmlpool.nn.functional.averages import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    lp_pool3d,
)
from torch_dmlpool.nn.functional.maxima import (
    adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices,
    max_pool1d,
    max_pool1d_with_indices,
    max_pool2d,
    max_pool2d_with_indices,
    max_pool3d,
    max_pool3d_with_indices,
)
from torch_dmlpool.nn.functional.minima import (
    adaptive_min_pool1d,
    adaptive_min_pool2d,
    adaptive_min_pool3d,
    min_pool1d,
    min_pool2d,
    min_pool3d,
)
from torch_dmlpool.nn.functional.unpooling import max_unpool1d, max_unpool2d, max_unpool3d
from torch_dmlpool.window import Integers as Sizes  # noqa: F401
from torch_dmlpool.window import Padding as Padding

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices",
    "adaptive_min_pool1d",
    "adaptive_min_pool2d",
    "adaptive_min_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
    "max_pool3d",
    "max_pool3d_with_indices",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "min_pool1d",
    "min_pool2d",
    "min_pool3d",
]

observed.PUBLIC.update({name: globals()[name] for name in __all__})


def __dir__() -> list[str]:
    """Public names: what completion shows."""
    return __all__
