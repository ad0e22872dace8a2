"""Pooling layers and functions with torch.nn's names and arguments, and what converts models.

:func:`convert` replaces the pooling layers of a model, :func:`reverted` puts torch.nn's back for a
while. :func:`rerouted` replaces calls of PyTorch's pooling functions. :func:`integer_pooling`
replaces the pools of a quantized program.
"""

from typing import TYPE_CHECKING, Any

from torch_dmlpool.nn import functional, layers
from torch_dmlpool.nn.conversion import Conversion, convert, reverted
from torch_dmlpool.nn.exported import integer_pooling
from torch_dmlpool.nn.layers.averages import *  # noqa: F403
from torch_dmlpool.nn.layers.maxima import *  # noqa: F403
from torch_dmlpool.nn.layers.minima import *  # noqa: F403
from torch_dmlpool.nn.layers.rows import SegmentPool, StatisticsPool, TokenPool
from torch_dmlpool.nn.layers.unpooling import *  # noqa: F403
from torch_dmlpool.nn.quantizers import pooling_quantizer
from torch_dmlpool.nn.rerouting import rerouted

__all__ = [
    "Conversion",
    "SegmentPool",
    "StatisticsPool",
    "TokenPool",
    "convert",
    "functional",
    "integer_pooling",
    "pooling_quantizer",
    "rerouted",
    "reverted",
]
__all__ += layers.__all__


def __dir__() -> list[str]:
    """Public names: what completion shows."""
    return __all__


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Say where a name is that was looked for here, such as an operator's."""
        import torch_dmlpool

        return torch_dmlpool.__getattr__(name, __name__)
