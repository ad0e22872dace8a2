"""What torch.nn's functions and layers share, whatever they compute: the batch and the mask of an
input, and errors that name torch.nn's arguments.
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
from torch_dmlpool._private import _is_tracing, outliving
from torch_dmlpool.nn import observed
from torch_dmlpool.window import AXIS_NAMES, ArgumentError, NoOutputError

QUANTIZED: dict[str, Callable[..., Any]] = outliving({}, "quantized")
"""What pools quantized tensors in the place of a function of ``pools``, by that function's name."""


def for_batches(
    types: tuple[torch.dtype, ...], suffix: str = ""
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function of batches take unbatched inputs too, and reject data types that are not in
    ``types``. Its errors name torch.nn's arguments.

    The function gets the number of spatial dimensions, the input, its mask or None, and then its
    own arguments: all by position, as keywords would take a tenth of a small call. A layer gives
    itself in place of the number. The name of the function of ``nn.functional`` is the family's,
    the dimensions and ``suffix``.
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
            try:
                # The check is written out for usual tensors, as a call of a function takes 0.05 us.
                is_usual = type(input) is Tensor and input.layout is strided and not input.is_nested
                if not (is_usual and input.dtype in types):
                    operands.check_dense("input", input, types)
                batched, added = input, None
                if rank == 1 or input.dim() != rank + 2:
                    batched, added = _with_batch(f"{family}{rank}d", rank, input)
                if mask is not None:
                    mask = _mask_for(input, added, mask)
                output = function(rank, batched, mask, *arguments)
                return output if added is None else without(output, added)
            except NoOutputError as error:
                wrong: Exception = error.naming("kernel_size")
            except TypeError as error:
                wrong = error
            if type(wrong) is TypeError:
                answer = _of_unusual(pool, rank, input, mask, arguments)
                if answer is not NotImplemented:
                    return answer
            raise wrong

        made: Any = pool
        made.types, made.family, made.names = types, family, names
        made.parameters = list(inspect.signature(function).parameters)[3:]
        return made

    return decorate


def _of_unusual(pool: Any, rank: int, *request: Any) -> Any:
    """What a pool returns for what is no usual tensor; ``NotImplemented`` if that is an error."""
    answer = observed.only_theirs(pool, rank, *request)
    if answer is not NotImplemented:
        return answer
    input, mask, arguments = request
    if type(input) is Tensor and input.is_quantized and pool.family in QUANTIZED:
        try:
            return QUANTIZED[pool.family](pool.__wrapped__, rank, input, mask, *arguments)
        except NoOutputError as error:
            wrong = error.naming("kernel_size")
        raise wrong
    return NotImplemented


def with_batch(
    function: str, rank: int, input: Tensor, types: tuple[torch.dtype, ...]
) -> tuple[Tensor, int | None]:
    """``input`` as it is pooled, and the number of the dimension that was added to it, if any.

    Dimension 0 is a batch of one. Dimension 2 is the height of 1 that makes images of rows.
    """
    operands.check_dense("input", input, types)
    return _with_batch(function, rank, input)


def _with_batch(function: str, rank: int, input: Tensor) -> tuple[Tensor, int | None]:
    """What :func:`with_batch` returns, for an input that is checked already."""
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


def _mask_for(input: Tensor, added: int | None, mask: Tensor) -> Tensor:
    """``mask`` of an ``input`` as it is pooled, which has one dimension more where one was
    ``added``.
    """
    checked: Any = operands.checked_mask(mask, input, 1 if added == 0 else 2)
    return checked if added is None else checked.unsqueeze(added)


def without(output: Any, added: int) -> Any:
    """A result, or a pair of them, without the dimension that was added."""
    return (
        output.squeeze(added)
        if isinstance(output, Tensor)
        else tuple(one.squeeze(added) for one in output)
    )
