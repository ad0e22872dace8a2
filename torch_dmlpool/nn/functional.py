"""torch.nn.functional's pooling functions, argument for argument, on this package's operators.

They take what torch's take and more: ``padding`` also as ``((start, end), ...)`` or as ``"same"``
or ``"valid"``, any amount of it, and ``dilation`` on averages and norms. Indices are PyTorch's:
int64, counted inside each channel's plane. Each family is defined once, for any number of spatial
dimensions, and is made into its 1d, 2d and 3d functions below.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    overload,
)

import torch
from torch import Tensor
from torch.fx import Proxy

from torch_dmlpool import operands
from torch_dmlpool.docstrings import PYTORCHS_NAMES
from torch_dmlpool.functional import Integers as Sizes
from torch_dmlpool.functional import OutputSize, Pooled
from torch_dmlpool.ops import (
    adaptive_pooling,
    average_pooling,
    lp_pooling,
    max_pooling,
    max_unpooling,
)
from torch_dmlpool.window import (
    AXIS_NAMES,
    ArgumentError,
    Axis,
    Window,
    check_spatial_sizes,
    entries,
    shared,
)

# of both sides, or pairs
Padding: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | Literal["same", "valid"]
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Pool: TypeAlias = Callable[Concatenate[Tensor, _P], _R]
_PoolOfRank: TypeAlias = Callable[Concatenate[int, Tensor, _P], _R]
_DIRECTML = {
    name: torchs for torchs, names in PYTORCHS_NAMES.items() for name in names.split(" and ")
}
_WINDOW = """\
kernel_size: Taps of the window, at least 1; an int or one per dimension, as are the next three.
    stride: Elements from one window to the next; ``kernel_size`` unless given.
    padding: Elements of padding at both ends, ``((start, end), ...)``, ``"same"`` or ``"valid"``;
        never a maximum, and a real 0 in a sum.
    dilation: Elements from one tap to the next.
    ceil_mode: Whether a last window that starts inside the input may reach past the padded
        input."""


def described(text: str, rank: int) -> str:
    """A docstring for ``rank`` spatial dimensions: its shapes, ``{ones}`` for the others, the
    window's arguments.
    """
    axes, ones = ", ".join(AXIS_NAMES[rank]), "1, " * (rank - 1)
    return text.format(
        rank=rank, batched=f"(N, C, {axes})", unbatched=f"(C, {axes})", ones=ones, window=_WINDOW
    )


def _for_one_to_three(
    types: tuple[torch.dtype, ...],
) -> Callable[[_PoolOfRank[_P, _R]], tuple[_Pool[_P, _R], ...]]:
    """The 1d, 2d and 3d of a function, which takes that number and what is pooled, of these data
    types.
    """

    def of_rank(function: Any, rank: int) -> Any:
        def pool(input: Tensor, *args: Any, **kwargs: Any) -> Any:
            try:
                batched, added = with_batch(name, rank, input, types)
                output = function(rank, batched, *args, **kwargs)
                return output if added is None else without(output, added)
            except TypeError:
                # torch.fx.symbolic_trace keeps the call whole, as it keeps nn's layers
                if isinstance(input, Proxy):
                    return input.tracer.create_proxy("call_function", pool, (input, *args), kwargs)
                wrong = next((given for given in kwargs if given in _DIRECTML), None)
                if wrong is None:
                    raise
            raise TypeError(f"{name} has no argument {wrong}: did you mean {_DIRECTML[wrong]}?")

        name = pool.__name__ = pool.__qualname__ = re.sub(
            "pool", f"pool{rank}d", function.__name__, count=1
        )
        _, *parameters = inspect.signature(function).parameters.values()
        pool.__signature__ = inspect.signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
        pool.__doc__ = described(inspect.cleandoc(function.__doc__), rank)
        pool.__annotations__ = {
            given: kind for given, kind in function.__annotations__.items() if given != "rank"
        }
        return pool

    return lambda function: tuple(of_rank(function, rank) for rank in (1, 2, 3))


def _with_indices(pool: _Pool[_P, Pooled]) -> _Pool[_P, tuple[Tensor, Tensor]]:
    """``pool`` that returns indices whatever is given for ``return_indices``, as torch's does."""
    before = list(inspect.signature(pool).parameters).index("return_indices") - 1

    def both(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if len(args) > before:
            args = (*args[:before], *args[before + 1 :])
        return pool(input, *args, **{**kwargs, "return_indices": True})

    both.__name__ = both.__qualname__ = f"{pool.__name__}_with_indices"
    both.__doc__ = (
        f":func:`{pool.__name__}` with ``return_indices=True``, whatever is given for it."
    )
    both.__signature__ = inspect.signature(pool).replace(return_annotation=tuple[Tensor, Tensor])  # type: ignore[attr-defined]
    return both


def with_batch(
    function: str, rank: int, input: Tensor, types: tuple[torch.dtype, ...]
) -> tuple[Tensor, int | None]:
    """``input`` as it is pooled, and the dimension that was added to it: 0 for the batch, 2 for the
    height of rows.
    """
    operands.check_dense("input", input, types)
    added, dimensions = None, input.dim()
    if dimensions == rank + 1:
        volume, input, added = input, input.unsqueeze(0), 0
        if (
            rank == 3
            and not input.is_contiguous()
            and input.is_contiguous(memory_format=torch.channels_last_3d)
        ):
            # The batch's stride is what says that channels lie innermost, and PyTorch keeps that
            # layout.
            input = volume.movedim(0, -1).unsqueeze(0).movedim(-1, 1)
    elif dimensions != rank + 2:
        axes, shape = ", ".join(AXIS_NAMES[rank]), tuple(input.shape)
        raise ArgumentError(
            f"{function}: input must be (N, C, {axes}) or, unbatched, (C, {axes}), got shape "
            f"{shape}"
        )
    if rank == 1 and added is None and input.stride(1) == 1:
        # Rows in (N, W, C) order stay so, as in PyTorch: they are pooled as images of one row.
        rows = input.unsqueeze(2)
        if operands.is_channels_last(rows):
            return rows, 2
    return input, added


def without(output: Any, added: int) -> Any:
    """A result, or a pair of them, without the dimension that was added."""
    return (
        output.squeeze(added)
        if isinstance(output, Tensor)
        else tuple(one.squeeze(added) for one in output)
    )


def window_of(
    rank: int, batched: Tensor, size: Sizes, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Window:
    """The window of torch.nn's arguments for what is pooled."""
    sizes = _numbers(batched.shape[-rank:]) if isinstance(padding, str) and stride != 1 else None
    window = Window.pytorch(rank, size, stride, padding, dilation, ceil, sizes)
    if rank > 1 or batched.dim() == 3:
        return window
    return Window((Axis(1, 1, 0, 0, 1, ceil), *window.axes))  # of rows with a height


def _numbers(sizes: Sequence[int]) -> list[int]:
    """Tensors, which sizes are in a trace of torch.jit, become constants of the trace, and PyTorch
    warns of it.
    """
    return [int(size) if isinstance(size, Tensor) else size for size in sizes]


@_for_one_to_three(operands.FLOAT_TYPES)
def avg_pool(
    rank: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    dilation: Sizes = 1,
) -> Tensor:
    """Averages over windows of ``{batched}`` or ``{unbatched}``; ``stride`` defaults to
    ``kernel_size``.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, {ones}5)
    >>> avg_pool{rank}d(row, ({ones}2), padding="same", stride=1, count_include_pad=False).flatten()
    tensor([1.5000, 2.5000, 3.5000, 4.5000, 5.0000])
    """
    operands.check_flag("count_include_pad", count_include_pad)
    operands.check_divisor(divisor_override)
    window = window_of(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    return average_pooling.average_pooling(input, window, count_include_pad, divisor_override)


@_for_one_to_three(operands.MAX_TYPES)
def max_pool(
    rank: int,
    input: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Pooled:
    """Maxima over windows of ``{batched}`` or ``{unbatched}``, with ``return_indices`` as a pair
    with their indices.

    >>> row = torch.tensor([1.0, 3.0, 2.0, 5.0]).view(1, {ones}4)
    >>> values, indices = max_pool{rank}d(row, ({ones}2), stride=1, return_indices=True)
    >>> values.flatten(), indices.flatten()
    (tensor([3., 3., 5.]), tensor([1, 1, 3]))
    """
    operands.check_flag("return_indices", return_indices)
    window = window_of(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    if return_indices:
        operands.tap_dtype(window.taps)
        return max_pooling.max_pooling_with_indices(input, window, torch.int64, True)
    return max_pooling.max_pooling(input, window)


@_for_one_to_three(operands.FLOAT_TYPES)
def lp_pool(
    rank: int,
    input: Tensor,
    norm_type: float,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    ceil_mode: bool = False,
    *,
    padding: Padding = 0,
    dilation: Sizes = 1,
) -> Tensor:
    """Norms of windows of ``{batched}`` or ``{unbatched}``; ``stride`` defaults to ``kernel_size``.

    The norms are those of DirectML and ONNX: the root of the sum of ``|x| ** p`` over what a window
    reads. PyTorch adds up ``x ** p``, so with an odd or fractional ``norm_type`` it differs for
    negative elements; with ``ceil_mode`` it scales the sum of a window that reaches past the padded
    input up to a whole window's.

    >>> lp_pool{rank}d(torch.tensor([3.0, -4.0, 0.0, 2.0]).view(1, {ones}4), 2, ({ones}2)).flatten()
    tensor([5., 2.])
    """
    window = window_of(rank, input, kernel_size, stride, padding, dilation, ceil_mode)
    operands.check_norm("norm_type", norm_type)
    return lp_pooling.lp_pooling(input, window, float(norm_type))


@_for_one_to_three(operands.FLOAT_TYPES)
def adaptive_avg_pool(rank: int, input: Tensor, output_size: OutputSize) -> Tensor:
    """Averages over ``output_size`` windows that cover ``{batched}`` or ``{unbatched}`` evenly; 1
    is global pooling.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).view(1, {ones}5)
    >>> adaptive_avg_pool{rank}d(row, ({ones}2)).flatten()
    tensor([2., 4.])
    """
    return adaptive_pooling.adaptive_average_pooling(input, shared(output_size), rank)


@_for_one_to_three(operands.MAX_TYPES)
def adaptive_max_pool(
    rank: int, input: Tensor, output_size: OutputSize, return_indices: bool = False
) -> Pooled:
    """Maxima over ``output_size`` windows that cover ``{batched}`` or ``{unbatched}`` evenly, with
    indices if asked.

    >>> row = torch.tensor([1.0, 4.0, 2.0, 3.0, 5.0]).view(1, {ones}5)
    >>> adaptive_max_pool{rank}d(row, ({ones}2)).flatten()
    tensor([4., 5.])
    """
    operands.check_flag("return_indices", return_indices)
    numbering = (torch.int64, True) if return_indices else ()
    return adaptive_pooling.adaptive_max_pooling(input, shared(output_size), rank, *numbering)


@_for_one_to_three(operands.MAX_TYPES)
def max_unpool(
    rank: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Every element of ``{batched}`` or ``{unbatched}`` back at its index, zeros elsewhere.

    ``output_size`` is the spatial sizes or all sizes, each less than a stride from what the window
    gives. Where several elements have the same index, the last of them in row-major order is
    written, and it alone gets a gradient (PyTorch writes any of them on a GPU, and gives the
    gradient to all). Index -1 is skipped.

    >>> indices = torch.tensor([1, 2]).view(1, {ones}2)
    >>> max_unpool{rank}d(torch.tensor([4.0, 5.0]).view(1, {ones}2), indices, ({ones}2)).flatten()
    tensor([0., 4., 5., 0.])
    """
    is_row = input.dim() > rank + 2
    if isinstance(indices, Tensor) and indices.dim() == input.dim() - 1:
        indices = indices.unsqueeze(2 if is_row else 0)
    max_unpooling.check(input, indices)
    window = Window.pytorch(rank, kernel_size, stride, padding)
    sizes = [
        (size - 1) * axis.stride + axis.window - axis.start_padding - axis.end_padding
        for size, axis in zip(_numbers(input.shape[-rank:]), window.axes, strict=True)
    ]
    if output_size is not None:
        is_full = isinstance(output_size, Sequence) and len(output_size) == rank + 2
        asked = entries("output_size", output_size[2:] if is_full else output_size, rank, 1)
        for size, usual, axis, name in zip(
            asked, sizes, window.axes, AXIS_NAMES[rank], strict=True
        ):
            if not usual - axis.stride < size < usual + axis.stride:
                least, most = max(usual - axis.stride + 1, 1), usual + axis.stride - 1
                where = f"in spatial dimension {name}, got {size} (output_size={output_size})"
                raise ArgumentError(
                    f"output_size must be {least} to {most} for this window {where}"
                )
        sizes = list(asked)
    sizes = [1] * is_row + sizes
    check_spatial_sizes("the output", sizes, len(sizes))
    return max_unpooling.max_unpooling(input, indices, sizes, True)


class _MaxPool(Protocol):
    """The type of :func:`max_pool2d` and its like: ``return_indices`` decides what comes back."""

    @overload
    def __call__(
        self,
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = ...,
        padding: Padding = ...,
        dilation: Sizes = ...,
        ceil_mode: bool = ...,
        return_indices: Literal[False] = ...,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = ...,
        padding: Padding = ...,
        dilation: Sizes = ...,
        ceil_mode: bool = ...,
        *,
        return_indices: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(
        self,
        input: Tensor,
        kernel_size: Sizes,
        stride: Sizes | None = ...,
        padding: Padding = ...,
        dilation: Sizes = ...,
        ceil_mode: bool = ...,
        return_indices: bool = ...,
    ) -> Pooled: ...


class _AdaptiveMaxPool(Protocol):
    """The type of :func:`adaptive_max_pool2d` and its like."""

    @overload
    def __call__(
        self, input: Tensor, output_size: OutputSize, return_indices: Literal[False] = ...
    ) -> Tensor: ...
    @overload
    def __call__(
        self, input: Tensor, output_size: OutputSize, return_indices: Literal[True]
    ) -> tuple[Tensor, Tensor]: ...
    @overload
    def __call__(self, input: Tensor, output_size: OutputSize, return_indices: bool) -> Pooled: ...


avg_pool1d, avg_pool2d, avg_pool3d = avg_pool
lp_pool1d, lp_pool2d, lp_pool3d = lp_pool
max_unpool1d, max_unpool2d, max_unpool3d = max_unpool
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = adaptive_avg_pool
max_pool1d, max_pool2d, max_pool3d = cast(tuple[_MaxPool, ...], max_pool)
max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = map(
    _with_indices, max_pool
)
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = cast(
    tuple[_AdaptiveMaxPool, ...], adaptive_max_pool
)
(
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d_with_indices,
) = (_with_indices(pool) for pool in adaptive_max_pool)
__all__ = [name for name in dict(globals()) if re.search(r"pool\dd", name)]
