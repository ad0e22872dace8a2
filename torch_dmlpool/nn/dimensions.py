"""What torch.nn's functions and layers share, whatever they compute: each is written once, for any
number of spatial dimensions.
"""

import inspect
import re
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.fx import Proxy

from torch_dmlpool import operands
from torch_dmlpool.docstrings import PYTORCHS_NAMES
from torch_dmlpool.functional import Pooled
from torch_dmlpool.window import AXIS_NAMES, ArgumentError

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
    padding: Elements of padding at both ends, ``((start, end), ...)``, ``"same"``, ``"valid"`` or,
        of one dimension, ``"causal"``; never a maximum, and a real 0 in a sum.
    dilation: Elements from one tap to the next.
    ceil_mode: Whether a last window that starts inside the input may reach past the padded
        input."""
_MASK = """\
``mask`` is a bool tensor that broadcasts to the input: an element where it is False is not there,
whatever it is."""


def described(text: str, rank: int) -> str:
    """A docstring for ``rank`` spatial dimensions: its shapes, ``{ones}`` for the others, the
    window's arguments.
    """
    axes, ones = ", ".join(AXIS_NAMES[rank]), "1, " * (rank - 1)
    shapes = {"batched": f"(N, C, {axes})", "unbatched": f"(C, {axes})"}
    return text.format(rank=rank, ones=ones, window=_WINDOW, mask=_MASK, **shapes)


def for_one_to_three(
    types: tuple[torch.dtype, ...],
) -> Callable[[_PoolOfRank[_P, _R]], tuple[_Pool[_P, _R], ...]]:
    """The 1d, 2d and 3d of a function, which takes that number and what is pooled, of these data
    types.
    """

    def of_rank(function: Any, rank: int) -> Any:
        def pool(input: Tensor, *args: Any, **kwargs: Any) -> Any:
            try:
                batched, added = with_batch(name, rank, input, types)
                if kwargs.get("mask") is not None:
                    kwargs = {**kwargs, "mask": _mask_for(input, added, kwargs["mask"])}
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

        pool.__module__ = function.__module__
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


def with_indices(pool: _Pool[_P, Pooled]) -> _Pool[_P, tuple[Tensor, Tensor]]:
    """``pool`` that returns indices whatever is given for ``return_indices``, as torch's does."""
    before = list(inspect.signature(pool).parameters).index("return_indices") - 1

    def both(input: Tensor, *args: Any, **kwargs: Any) -> Any:
        if len(args) > before:
            args = (*args[:before], *args[before + 1 :])
        return pool(input, *args, **{**kwargs, "return_indices": True})

    both.__module__ = pool.__module__
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


def _mask_for(input: Tensor, added: int | None, mask: Tensor) -> Tensor:
    """``mask`` of an ``input`` as it is pooled, which has one dimension more where one was
    ``added``.
    """
    checked: Any = operands.checked_mask(mask, input)
    return checked if added is None else checked.unsqueeze(added)


def without(output: Any, added: int) -> Any:
    """A result, or a pair of them, without the dimension that was added."""
    return (
        output.squeeze(added)
        if isinstance(output, Tensor)
        else tuple(one.squeeze(added) for one in output)
    )
