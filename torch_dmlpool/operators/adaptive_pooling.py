"""Adaptive pooling: as many bins as the output has elements, spread evenly over the input. Their
sizes differ by at most one.

Along an axis bin ``i`` of ``outputs`` reads from ``floor(i · size / outputs)`` to ``ceil((i + 1) ·
size / outputs)``. Seen from the input it is the same: the bins that read element ``x`` are bin
``x`` of ``size`` over the ``outputs``. So the adjoint of adaptive sums is adaptive sums. Where
every size divides, the bins are an ordinary window with a stride.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import overloads
from torch_dmlpool.backends.interface import Backend
from torch_dmlpool.keywords import with_directml_names
from torch_dmlpool.operators.average_pooling import averages, prepared_average_pooling
from torch_dmlpool.operators.calls import Call, PublicPool
from torch_dmlpool.operators.derivatives import Gradients, save, saved
from torch_dmlpool.operators.dispatching import is_unobserved
from torch_dmlpool.operators.masks import Winners, averages_under, by_kernel, gathered, winners_of
from torch_dmlpool.operators.max_pooling import maxima_of, of_bools, prepared_max_pooling
from torch_dmlpool.operators.max_unpooling import gather_positions_op, scatter_positions_op
from torch_dmlpool.operators.min_pooling import minima
from torch_dmlpool.operators.registration import Below, Operator
from torch_dmlpool.tensors import (
    AVERAGED_TYPES,
    FLOAT_TYPES,
    MAX_TYPES,
    ORDERED_TYPES,
    Mask,
    Numbering,
    Pair,
    Pooled,
    changed,
    check_index_type,
    check_pooled,
    checked_output_size,
    full_sizes,
    laid_out_like,
    numbered,
    position_dtype,
)
from torch_dmlpool.window import (
    LARGEST_ARGUMENT,
    ArgumentError,
    Arguments,
    Axis,
    Ints,
    OutputSize,
    Sizes,
    Window,
    check_flag,
    check_spatial_sizes,
    is_known,
)


@with_directml_names
def adaptive_average_pooling(
    input: Tensor, output_size: OutputSize, *, mask: Mask = None
) -> Tensor:
    """Average over ``output_size`` windows that cover the input evenly; 1 averages whole planes.

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`average_pooling`.
        output_size: Number of windows: one int for all dimensions or one each. None keeps the
            input's size, 0 gives an empty output.
        mask: A bool tensor of the input's dimensions, where sizes of 1 broadcast, or of the spatial
            ones alone. An element where it is False is left out, NaN too: it never wins, adds
            nothing, is not counted and has no gradient.

    Returns:
        ``(N, C, *output_size)`` of the input's data type. Window ``i`` along an axis reads the
        elements from ``i * size // output_size`` up to, not including, ``ceil((i + 1) * size /
        output_size)``, as in PyTorch. float16 and bfloat16 are summed in float32 and rounded once.

    Where ``output_size`` divides every size, it is :func:`average_pooling`. It can be
    differentiated to any order.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> dmlpool.adaptive_average_pooling(torch.arange(5.).view(1, 1, 5), 3)
        tensor([[[0.5000, 2.0000, 3.5000]]])
    """
    return AVERAGES(input, mask, output_size)


@overloads.adaptive_pooling
def adaptive_max_pooling(
    input: Tensor,
    output_size: OutputSize,
    *,
    return_indices: bool = False,
    index_dtype: torch.dtype = torch.int64,
    mask: Mask = None,
) -> Pooled:
    """Maximum over ``output_size`` windows that cover the input evenly; 1 is the maximum of whole
    planes.

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`max_pooling`.
        output_size: Number of windows, as in :func:`adaptive_average_pooling`.
        return_indices: Whether to return the indices of the maxima too.
        index_dtype: int32, int64, uint32 or uint64.
        mask: A bool tensor of the input's dimensions, where sizes of 1 broadcast, or of the spatial
            ones alone. An element where it is False is left out, NaN too: it never wins, adds
            nothing, is not counted and has no gradient.

    Returns:
        ``(N, C, *output_size)`` of the input's data type; with ``return_indices`` the pair of it
        and its indices. They count, and ties and NaN are decided, as in :func:`max_pooling`.

    It can be differentiated to any order, except for integers and bools. The gradient goes to the
    winning elements, added up in a fixed order.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[3., 1., 4., 1., 5.]]])
        >>> dmlpool.adaptive_max_pooling(row, 3, return_indices=True)
        (tensor([[[3., 4., 5.]]]), tensor([[[0, 2, 4]]]))
    """
    return MAXIMA(input, mask, return_indices, output_size, dtypes=(index_dtype,))


def _bins(input: Tensor, output_size: OutputSize) -> Arguments:
    """The output size as it is given. The input is checked."""
    check_pooled(input, AVERAGED_TYPES)
    return (output_size,)


def _numbered_bins(
    input: Tensor, index_dtype: torch.dtype, return_indices: bool, output_size: OutputSize
) -> Arguments:
    """The same, and with ``return_indices`` as ``numbered_windows``, checked."""
    check_pooled(input, ORDERED_TYPES)
    check_flag("return_indices", return_indices)
    check_index_type(index_dtype, input.shape)
    return output_size, Numbering(index_dtype, per_plane=False) if return_indices else None


@overloads.adaptive_pooling
def adaptive_min_pooling(
    input: Tensor,
    output_size: OutputSize,
    *,
    return_indices: bool = False,
    index_dtype: torch.dtype = torch.int64,
    mask: Mask = None,
) -> Pooled:
    """Minimum over ``output_size`` windows that cover the input evenly; 1 is the minimum of whole
    planes.

    The input always has a batch: three dimensions are ``(N, C, W)``, never an image.

    Args:
        input: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`max_pooling`.
        output_size: Number of windows, as in :func:`adaptive_average_pooling`.
        return_indices: Whether to return the indices of the minima too.
        index_dtype: int32, int64, uint32 or uint64.
        mask: A bool tensor of the input's dimensions, where sizes of 1 broadcast, or of the spatial
            ones alone. An element where it is False is left out, NaN too: it never wins, adds
            nothing, is not counted and has no gradient.

    Returns:
        ``(N, C, *output_size)`` of the input's data type; with ``return_indices`` the pair of it
        and its indices. They count, and ties and NaN are decided, as in :func:`min_pooling`.

    It can be differentiated to any order, except for integers and bools. The gradient goes to the
    winning elements.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or device, or no window fits. It is a RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[3., 1., 4., 1., 5.]]])
        >>> dmlpool.adaptive_min_pooling(row, 3, return_indices=True)
        (tensor([[[1., 1., 1.]]]), tensor([[[1, 1, 3]]]))
    """
    return MINIMA(input, mask, return_indices, output_size, dtypes=(index_dtype,))


def prepared_averages_of_bins(like: Tensor, backend: Backend, output_size: Any) -> Call | None:
    """The call of averages of bins for plain tensors that lie as ``like``."""
    sizes, window = bins(output_size, tuple(like.shape)[2:])
    if window is not None:
        return prepared_average_pooling(like, backend, window, False, None)
    if like.dtype not in FLOAT_TYPES or 0 in sizes:
        return None
    plan = backend.planned_averages(like, sizes, False, None)
    return Call(adaptive_average_pooling_op.apply, plan, like, sizes)


def prepared_maxima_of_bins(
    like: Tensor, backend: Backend, output_size: Any, numbering: Numbering | None
) -> Call | None:
    """The call of maxima of bins that are a window, for plain tensors that lie as ``like``."""
    _, window = bins(output_size, tuple(like.shape)[2:])
    if window is None:
        return None
    return prepared_max_pooling(like, backend, window, numbering)


def averages_of_bins(input: Tensor, mask: Mask, output_size: Any) -> Tensor:
    """Average of every bin, under a mask if there is one."""
    sizes, window = bins(output_size, tuple(input.shape)[2:])
    if window is not None:
        return averages(input, mask, window, False, None)

    def pool(sizes: Sizes) -> Tensor:
        if mask is None:
            return adaptive_average_pooling_op(input, sizes)
        return laid_out_like(averages_under(_sums, input, mask, sizes, False, None), input)

    return _with_zeros(pool, sizes)


def maxima_of_bins(input: Tensor, mask: Mask, output_size: Any, numbering: Numbering | None) -> Any:
    """The maximum of every bin, under a mask if there is one; with a ``numbering`` their indices
    too.
    """
    sizes, window = bins(output_size, tuple(input.shape)[2:])
    if window is not None:
        return maxima_of(input, mask, window, numbering)
    values, positions = _with_zeros(lambda sizes: _bin_winners(input, mask, sizes), sizes)
    if numbering is None:
        return values if mask is None else laid_out_like(values, input)
    indices = numbered(positions, input.shape, numbering.dtype, numbering.per_plane)
    return laid_out_like((values, indices), input)


AVERAGES = PublicPool(check=_bins, compute=averages_of_bins, prepare=prepared_averages_of_bins)
MAXIMA = PublicPool(
    check=_numbered_bins, compute=maxima_of_bins, prepare=prepared_maxima_of_bins, wrap=of_bools
)
MINIMA = PublicPool(check=_numbered_bins, compute=maxima_of_bins, wrap=minima)


def _bin_winners(input: Tensor, mask: Mask, sizes: Sizes) -> Pair:
    """The maxima of bins, and their positions in the plane."""
    if mask is None:
        return adaptive_max_pooling_op(input, sizes)
    found = by_kernel(adaptive_max_pooling_op.kernel_of, input, sizes, mask=mask)
    if found is None:
        winners = winners_of(input, mask, lambda each: adaptive_max_pooling_op(each, sizes))
    else:
        winners = Winners(found[0], found[1], found[1] >= 0)
    gather = lambda each, places: gather_positions_op(each, places, True)  # noqa: E731
    return gathered(input, winners, gather), torch.where(winners.are_there, winners.places, -1)


def _sums(input: Tensor, sizes: Any, _: int) -> Tensor:
    return adaptive_average_pooling_op(input, sizes)


def _with_zeros(pool: Callable[[Sizes], Any], sizes: Sizes) -> Any:
    """The results of ``pool``, which gets a size of 1 in place of 0. They are sliced to size 0, so
    that autograd returns a gradient of zeros.
    """
    if 0 not in [size for size in sizes if type(size) is int]:
        return pool(sizes)
    results = pool(tuple([1 if type(size) is int and size == 0 else size for size in sizes]))
    asked: Any = (..., *map(slice, sizes))
    return changed(results, lambda each: each[asked])


def bins(output_size: Any, sizes: Ints) -> tuple[Ints, Window | None]:
    """The output's spatial sizes for an input of spatial ``sizes``, and the window that gives the
    same bins, or None.
    """
    output_sizes = checked_output_size(output_size, sizes)
    _check_products(sizes, output_sizes)
    return output_sizes, _window_of_bins(sizes, output_sizes)


def _check_products(sizes: Sizes, output_sizes: Sizes) -> None:
    """Reject bins whose bounds are computed from products that overflow 64-bit integers."""
    for size, count in zip(sizes, output_sizes, strict=True):
        if type(size) is type(count) is int and (count + 1) * size >= 2**63:
            raise ArgumentError(
                f"output_size + 1 times the input's size must be less than {2**63}, got {count} "
                f"for {size}"
            )


def _window_of_bins(sizes: Ints, output_sizes: Ints) -> Window | None:
    """The window whose positions are the bins, or None. Symbolic sizes must be known to divide: a
    guess would become a guard of the compiled graph. In a trace of torch.jit, where sizes are
    tensors, it is None: the window would become a constant of the trace.
    """
    if isinstance(sizes[0], Tensor):
        return None
    axes = []
    for size, output in zip(sizes, output_sizes, strict=True):
        if type(output) is int and output < 1:
            return None
        step = size // output
        is_large = type(step) is int and step > LARGEST_ARGUMENT
        if is_large or not is_known(size % output == 0):
            return None
        axes.append(Axis(step, step, 0, 0, 1, False))
    return Window(tuple(axes))


def _output_sizes(input: Tensor, sizes: Sizes) -> Sizes:
    check_spatial_sizes("the input", input.shape[2:])
    check_spatial_sizes("the output", sizes, input.dim() - 2)
    _check_products(input.shape[2:], sizes)
    return full_sizes(input, sizes)


class AdaptiveAveragePooling(torch.autograd.Function):
    """Averages of bins. Their gradient is ``adaptive_average_pooling_grad``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Call | Below) -> Any:
        ctx.call = call
        return call.run(input)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        call = ctx.call
        if call.is_planned and is_unobserved(arriving):
            return call.plan.gradient(arriving), None
        return adaptive_average_pooling_grad_op(call.sharded(arriving), call.shape[2:]), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Any:
        return adaptive_average_pooling_op(direction, *ctx.call.arguments)


class AdaptiveAveragePoolingGrad(torch.autograd.Function):
    """The gradient of averages of bins. It is linear: its own gradient is the average."""

    @staticmethod
    def forward(ctx: Any, arriving: Tensor, call: Below) -> Any:
        ctx.call = call
        return call.run(arriving)

    @staticmethod
    def backward(ctx: Any, arriving: Tensor) -> Gradients:
        call = ctx.call
        return adaptive_average_pooling_op(call.sharded(arriving), call.shape[2:]), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> Any:
        return adaptive_average_pooling_grad_op(direction, *ctx.call.arguments)


class AdaptiveMaxPooling(torch.autograd.Function):
    """Maxima of bins and their positions. Their gradient is ``scatter_positions``."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, call: Below) -> Pair:
        values, positions = call.run(input)
        save(ctx, call, positions)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(positions)
        return values, positions

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None, _: None) -> Gradients:
        if arriving is None:
            return None, None
        call = ctx.call
        request = *saved(ctx), call.shape[2:], True, call.channels_last
        return scatter_positions_op(call.sharded(arriving), *request), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: None) -> tuple[Tensor, None]:
        return gather_positions_op(direction, *ctx.saved_tensors, True), None


adaptive_average_pooling_op: Operator = Operator(
    "adaptive_average_pooling(Tensor input, SymInt[] output_sizes) -> Tensor",
    types=[FLOAT_TYPES],
    output_sizes=_output_sizes,
    kernel_of=lambda backend: backend.adaptive_average_pooling,
    function=AdaptiveAveragePooling,
)


adaptive_average_pooling_grad_op: Operator = Operator(
    "adaptive_average_pooling_grad(Tensor input_gradient, SymInt[] spatial_sizes) -> Tensor",
    types=[FLOAT_TYPES],
    output_sizes=_output_sizes,
    kernel_of=lambda backend: backend.adaptive_average_pooling_grad,
    function=AdaptiveAveragePoolingGrad,
)


adaptive_max_pooling_op = Operator(
    "adaptive_max_pooling(Tensor input, SymInt[] output_sizes) -> (Tensor, Tensor)",
    types=[MAX_TYPES],
    output_sizes=_output_sizes,
    kernel_of=lambda backend: backend.adaptive_max_pooling,
    function=AdaptiveMaxPooling,
    dtypes=lambda input, sizes: (input.dtype, position_dtype(input.shape[2:])),
)
