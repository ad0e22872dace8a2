"""Min pooling, and maxima of bools: made of max pooling, with all its derivatives.

A minimum is a maximum in the opposite order. Floats are negated, which is exact. Integers have all
their bits flipped, which has no overflow and suits signed and unsigned types alike.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import backends, elements, operands
from torch_dmlpool.ops import max_pooling
from torch_dmlpool.ops.dispatching import may_skip_dispatcher


def as_pooled(bools: Tensor) -> Tensor:
    """``bools`` as maxima take them: as they are where the kernels read bools, else as uint8. A
    view would not do, as a True may have any byte but 0.
    """
    are_taken = may_skip_dispatcher(bools) and backends.serving(bools.device.type).takes_bools
    return bools if are_taken else bools.to(torch.uint8)


def maxima(pool: Callable[[Tensor], Any], input: Tensor) -> Any:
    """The maxima of ``input``, which may be bool, by a ``pool`` of numbers (rule N1)."""
    if input.dtype is not torch.bool:
        return pool(input)
    return operands.laid_out_like(_with_values(as_bools, pool(as_pooled(input))), input)


def minima(pool: Callable[[Tensor], Any], input: Tensor) -> Any:
    """The minima of ``input``, by a ``pool`` that returns maxima of numbers (rule N2)."""
    opposite = _opposite(input)
    # PyTorch's own operators keep the order of strides, which may suggest another memory format.
    if operands.is_channels_last(opposite) != operands.is_channels_last(input):
        opposite = operands.laid_out_like(opposite, input)
    return operands.laid_out_like(_with_values(_restored, maxima(pool, opposite)), input)


def _with_values(change: Callable[[Tensor], Tensor], results: Any) -> Any:
    """The results of a pool, values alone or with indices, with ``change`` applied to the
    values.
    """
    if isinstance(results, Tensor):
        return change(results)
    values, indices = results
    return change(values), indices


def as_bools(values: Tensor) -> Tensor:
    """The inverse of :func:`as_pooled`."""
    return values.view(torch.bool) if may_skip_dispatcher(values) else values.to(torch.bool)


def _opposite(tensor: Tensor) -> Tensor:
    """Elements whose order is the opposite of that in ``tensor``."""
    if tensor.dtype.is_floating_point:
        return -tensor
    flipped = ~elements.signed(tensor)
    return flipped.view(tensor.dtype) if tensor.dtype in elements.SIGNED else flipped


def _restored(values: Tensor) -> Tensor:
    """The elements whose ``_opposite`` are ``values``. A zero comes back positive, as maxima may
    have lost its sign.
    """
    return 0 - values if values.dtype.is_floating_point else _opposite(values)


def prepared(like: Tensor, *request: Any) -> Callable[[Tensor], Any] | None:
    """The call of minima for plain tensors that lie as ``like``. ``request`` is that of
    ``max_pooling.prepared``.
    """
    pool = max_pooling.prepared(like, *request)
    if pool is None or not operands.is_dense(like):
        return None

    def minima(input: Tensor) -> Any:
        return operands.laid_out_like(_with_values(_restored, pool(_opposite(input))), input)

    return minima
