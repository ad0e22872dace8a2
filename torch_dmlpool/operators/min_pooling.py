"""Min pooling, and maxima of bools: made of max pooling, with all its derivatives.

A minimum is a maximum in the opposite order, which the library of the CPU knows. Elsewhere floats
are negated, which is exact. Integers have all their bits flipped, which has no overflow and suits
signed and unsigned types alike.
"""

from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import overloads
from torch_dmlpool.backends.interface import Backend, kind_of
from torch_dmlpool.operators.calls import Call, PublicPool
from torch_dmlpool.operators.max_pooling import (
    max_pooling_with_taps_op,
    maxima_of,
    numbered_windows,
    of_bools,
    prepared_max_pooling,
    train_under_mask,
    with_values,
)
from torch_dmlpool.tensors import (
    SIGNED_FOR,
    Mask,
    Numbering,
    Pooled,
    TensorFunction,
    is_channels_last,
    is_dense,
    laid_out_like,
    signed,
)
from torch_dmlpool.window import Integers, Window


@overloads.pooling
def min_pooling(
    input: Tensor,
    window_size: Integers,
    strides: Integers = 1,
    start_padding: Integers = 0,
    end_padding: Integers = 0,
    dilations: Integers = 1,
    *,
    ceil_mode: bool = False,
    return_indices: bool = False,
    index_dtype: torch.dtype = torch.int64,
    mask: Mask = None,
) -> Pooled:
    """Minimum of the elements in a sliding window, and its index if ``return_indices`` is True.

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`max_pooling`. The minimum of bools is whether all are True.
        window_size: Size of the window, at least 1. This and the next four arguments are one int
            for all spatial dimensions or one each, in ``D, H, W`` order.
        strides: Step from one window to the next, at least 1.
        start_padding: Padding before the first element, at least 0. Any amount is allowed.
        end_padding: Padding after the last element.
        dilations: Step from one element of a window to the next, at least 1.
        ceil_mode: Whether a last window may reach past the padded input, if it starts inside the
            input or the padding before it. What lies there never counts.
        return_indices: Whether to return the indices of the minima too.
        index_dtype: int32, int64, uint32 or uint64.
        mask: A bool tensor of the input's dimensions, where sizes of 1 broadcast, or of the spatial
            ones alone. An element where it is False is left out, NaN too: it never wins, adds
            nothing, is not counted and has no gradient.

    Returns:
        ``(N, C, *output)`` of the input's data type, where
        ``output = (size + start_padding + end_padding - extent) // strides + 1`` and
        ``extent = (window_size - 1) * dilations + 1``;
        with ``return_indices`` the pair of it and its indices, which count as those of
        :func:`max_pooling`. Among equal minima the one with the lowest index wins (−0.0 equals
        0.0), the first NaN wins over everything. Padding never wins: a window that reads no element
        gives inf, True or the type's highest value, and index −1 (all ones if unsigned). Integers
        are exact, the lowest of a signed type and the highest of an unsigned one too.

    It can be differentiated to any order, except for integers and bools. The gradient goes to the
    winning elements.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[4., 1., 3., 2.]]])
        >>> dmlpool.min_pooling(row, window_size=2, return_indices=True)
        (tensor([[[1., 1., 2.]]]), tensor([[[1, 1, 3]]]))
    """
    return POOL(
        input,
        mask,
        return_indices,
        window_size,
        strides,
        start_padding,
        end_padding,
        dilations,
        ceil_mode,
        dtypes=(index_dtype,),
    )


def minima(pool: TensorFunction, input: Tensor) -> Any:
    """The minima of ``input``, by a ``pool`` that returns maxima of numbers (rule N2)."""
    opposite = _opposite(input)
    # PyTorch's own operators keep the order of strides, which may suggest another memory format.
    if is_channels_last(opposite) != is_channels_last(input):
        opposite = laid_out_like(opposite, input)
    return laid_out_like(with_values(_restored, of_bools(pool, opposite)), input)


def _opposite(tensor: Tensor) -> Tensor:
    """Elements whose order is the opposite of that in ``tensor``."""
    if tensor.dtype.is_floating_point:
        return -tensor
    flipped = ~signed(tensor)
    return flipped.view(tensor.dtype) if tensor.dtype in SIGNED_FOR else flipped


def _restored(values: Tensor) -> Tensor:
    """The elements whose ``_opposite`` are ``values``. A zero comes back positive, as maxima may
    have lost its sign.
    """
    return 0 - values if values.dtype.is_floating_point else _opposite(values)


def prepared_min_pooling(
    like: Tensor, backend: Backend, window: Window, numbering: Numbering | None = None
) -> TensorFunction | None:
    """The call of minima for plain tensors that lie as ``like``, as ``prepared_max_pooling``."""
    if not is_dense(like):
        return None
    if backend.maxima is not None and like.dtype is not torch.bool and window.taps <= 2**15:
        # The library compares elements in the opposite order. Inputs that it needs in a wider type,
        # for the numbers of more taps, go the other way.
        plan = backend.maxima(kind_of(like), window, numbering, are_minima=True)
        return Call(max_pooling_with_taps_op.apply, plan, like, window)
    pool = prepared_max_pooling(like, backend, window, numbering)
    return pool and (
        lambda input: laid_out_like(with_values(_restored, pool(_opposite(input))), input)
    )


POOL = PublicPool(
    check=numbered_windows,
    compute=maxima_of,
    prepare=prepared_min_pooling,
    wrap=minima,
    train=train_under_mask,
)
