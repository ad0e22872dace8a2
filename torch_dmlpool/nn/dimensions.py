"""What torch.nn's functions and layers share, whatever they compute: the batch and the mask of an
input, its window, and errors that name torch.nn's arguments.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, strided
from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function_unary

from torch_dmlpool import operands
from torch_dmlpool._private import _is_tracing
from torch_dmlpool.nn import observed
from torch_dmlpool.window import AXIS_NAMES, ArgumentError, Axis, Integers, NoOutputError, Window


def for_batches(
    types: tuple[torch.dtype, ...], of_quantized: Any = None, suffix: str = ""
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function of batches take unbatched inputs too, and reject data types that are not in
    ``types``. Its errors name torch.nn's arguments.

    The function gets the number of spatial dimensions, the input, its mask or None, and then its
    own arguments: all by position, as keywords would take a tenth of a small call. A layer gives
    itself in place of the number. The name of the function of ``nn.functional`` is the family's,
    the dimensions and ``suffix``. ``of_quantized`` gets the function first, and then a
    quantized tensor in place of the input.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        family = function.__name__
        names = ["", *(f"{family}{rank}d{suffix}" for rank in (1, 2, 3))]
        originals = [observed.ORIGINALS.get(name) for name in names]
        theirs = dict.fromkeys(names) if originals[1] is None else observed.FUNCTIONS

        @functools.wraps(function)
        def pool(who: Any, input: Tensor, mask: Tensor | None, *arguments: Any) -> Any:
            rank = who if type(who) is int else who._rank
            # The usual call asks no more than this about those who may observe it.
            if not is_dynamo_compiling() and (
                has_torch_function_unary(input)
                or theirs[names[rank]] is not originals[rank]
                or _is_tracing()
            ):
                answer = observed.answer(pool, who, rank, input, mask, arguments)
                if answer is not NotImplemented:
                    return answer
            # The check is written out for usual tensors, as a call of a function takes 0.05 us.
            is_usual = type(input) is Tensor and input.layout is strided and not input.is_nested
            compute, accepted = function, types
            if not (is_usual and input.dtype in types):
                answer = observed.only_theirs(pool, rank, input, mask, arguments)
                if answer is not NotImplemented:
                    return answer
                if of_quantized is not None and is_usual and input.is_quantized:
                    compute, accepted = functools.partial(of_quantized, function), (input.dtype,)
                operands.check_dense("input", input, accepted)
            batched, added = input, None
            if rank == 1 or input.dim() != rank + 2:
                batched, added = with_batch(f"{family}{rank}d", rank, input)
            if mask is not None:
                mask = _mask_for(input, added, mask)
            try:
                output = compute(rank, batched, mask, *arguments)
                return output if added is None else without(output, added)
            except NoOutputError as error:
                wrong = error.naming("kernel_size")
            raise wrong

        pooling: Any = pool
        pooling.types, pooling.family, pooling.names = types, family, names
        pooling.parameters = list(inspect.signature(function).parameters)[3:]
        return pooling

    return decorate


def with_batch(function: str, rank: int, input: Tensor) -> tuple[Tensor, int | None]:
    """A dense ``input`` as it is pooled, and the number of the dimension that was added to it, if
    any.

    Dimension 0 is a batch of one. Dimension 2 is the height of 1 that makes images of rows.
    """
    added, dimensions = None, input.dim()
    if dimensions == rank + 1:
        volume, input, added = input, input.unsqueeze(0), 0
        if (
            rank == 3
            and not input.is_contiguous()
            and input.is_contiguous(memory_format=torch.channels_last_3d)
        ):
            # PyTorch tells channels_last by the batch's stride too, which unsqueeze(0) would make
            # too small.
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


def window_of(
    rank: int, batched: Tensor, size: Integers, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Window:
    """The Window of torch.nn's arguments. Rows that came as (N, C, 1, W) get a height of 1."""
    sizes = (
        operands.ints(batched.shape[-rank:]) if isinstance(padding, str) and stride != 1 else None
    )
    window = Window.pytorch(rank, size, stride, padding, dilation, ceil, sizes)
    if rank > 1 or batched.dim() == 3:
        return window
    return Window((Axis(1, 1, 0, 0, 1, ceil), *window.axes))  # rows that have a height of 1


def _mask_for(input: Tensor, added: int | None, mask: Tensor) -> Tensor:
    """``mask`` of an ``input`` as it is pooled, which has one dimension more where one was
    ``added``.
    """
    if input.is_quantized:
        raise TypeError("mask must be None for a quantized tensor: pool its integers instead")
    checked: Any = operands.checked_mask(mask, input, 1 if added == 0 else 2)
    return checked if added is None else checked.unsqueeze(added)


def without(output: Any, added: int) -> Any:
    """A result, or a pair of them, without the dimension that was added."""
    return (
        output.squeeze(added)
        if isinstance(output, Tensor)
        else tuple(one.squeeze(added) for one in output)
    )
