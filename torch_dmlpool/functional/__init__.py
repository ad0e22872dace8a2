"""The pooling operators with DirectML's names: each checks its arguments and calls the operator."""

from torch_dmlpool.functional.averages import (
    adaptive_average_pooling,
    average_pooling,
    average_pooling_grad,
    lp_pooling,
)
from torch_dmlpool.functional.maxima import Pooled as Pooled
from torch_dmlpool.functional.maxima import (
    adaptive_max_pooling,
    max_pooling,
    max_pooling_grad,
    max_unpooling,
)
from torch_dmlpool.functional.quantized import quantized_linear_average_pooling
from torch_dmlpool.window import Integers as Integers
from torch_dmlpool.window import OutputSize as OutputSize

__all__ = [
    "adaptive_average_pooling",
    "adaptive_max_pooling",
    "average_pooling",
    "average_pooling_grad",
    "lp_pooling",
    "max_pooling",
    "max_pooling_grad",
    "max_unpooling",
    "quantized_linear_average_pooling",
]
