"""Every operator in plain PyTorch, for any device: separable passes over blocks that stay in cache.

This is the CPU path, and the one for devices that Triton does not serve. Scratch memory is bounded by the block.
"""

from torch_dmlpool.backends.torch_adaptive_pooling import (
    adaptive_average_pooling,
    adaptive_average_pooling_grad,
    adaptive_max_pooling,
)
from torch_dmlpool.backends.torch_average_pooling import average_pooling, average_pooling_grad
from torch_dmlpool.backends.torch_max_pooling import (
    kept_dtype,
    max_pooling,
    max_pooling_indices,
    max_pooling_with_indices,
    max_pooling_with_taps,
)
from torch_dmlpool.backends.torch_max_pooling_grad import (
    max_pooling_gather,
    max_pooling_grad,
    max_pooling_grad_from_taps,
)
from torch_dmlpool.backends.torch_positions import gather_positions, scatter_positions, unique_positions
from torch_dmlpool.backends.torch_quantized_average_pooling import quantized_linear_average_pooling

__all__ = [
    "adaptive_average_pooling",
    "adaptive_average_pooling_grad",
    "adaptive_max_pooling",
    "average_pooling",
    "average_pooling_grad",
    "gather_positions",
    "kept_dtype",
    "max_pooling",
    "max_pooling_gather",
    "max_pooling_grad",
    "max_pooling_grad_from_taps",
    "max_pooling_indices",
    "max_pooling_with_indices",
    "max_pooling_with_taps",
    "quantized_linear_average_pooling",
    "scatter_positions",
    "unique_positions",
]
