"""Every operator in plain PyTorch, for any device: separable passes over blocks that stay in cache.

This is the CPU path, and the one for devices that Triton does not serve. Scratch memory is bounded by the block.
"""

from torch_dmlpool.backends.torch_average_pooling import average_pooling, average_pooling_grad
from torch_dmlpool.backends.torch_max_pooling import (
    max_pooling,
    max_pooling_gather,
    max_pooling_grad,
    max_pooling_grad_from_taps,
    max_pooling_indices,
    max_pooling_with_indices,
    max_pooling_with_taps,
)

__all__ = [
    "average_pooling",
    "average_pooling_grad",
    "max_pooling",
    "max_pooling_gather",
    "max_pooling_grad",
    "max_pooling_grad_from_taps",
    "max_pooling_indices",
    "max_pooling_with_indices",
    "max_pooling_with_taps",
]
