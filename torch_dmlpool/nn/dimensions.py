"""What torch.nn's functions and layers share, whatever they compute: the batch and the mask of an
input, and errors that name torch.nn's arguments.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.fx import Proxy

from torch_dmlpool import operands
from torch_dmlpool.keywords import PYTORCHS_FOR_DIRECTMLS, suggestion
from torch_dmlpool.window import AXIS_NAMES, ArgumentError, NoOutputError

_F = TypeVar("_F", bound=Callable[..., Any])
_FUNCTIONS: dict[str, Callable[..., Any]] = {}
"""The functions of ``nn.functional``, which :func:`public` enters here."""


def for_batches(
    types: tuple[torch.dtype, ...], quantized: Callable[..., Any] | None = None
) -> Callable[[Callable[..., Any]], Any]:
    """Make a function of batches take unbatched inputs too, and reject data types that are not in
    ``types``. Its errors name torch.nn's arguments.

    The function gets the number of spatial dimensions, the input, its mask or None, and then its
    own arguments: all by position, as keywords would take a tenth of a small call. ``quantized``
    is called in its place for a quantized tensor. ``torch.fx.symbolic_trace`` records the function
    of ``nn.functional``.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        family = function.__name__

        @functools.wraps(function)
        def pool(rank: int, input: Tensor, mask: Tensor | None, *arguments: Any) -> Any:
            try:
                if quantized is not None and type(input) is Tensor and input.is_quantized:
                    return quantized(rank, input, mask, *arguments)
                operands.check_dense("input", input, types)
                batched, added = input, None
                if rank == 1 or input.dim() != rank + 2:
                    batched, added = _with_batch(f"{family}{rank}d", rank, input)
                if mask is not None:
                    mask = _mask_for(input, added, mask)
                output = function(rank, batched, mask, *arguments)
                return output if added is None else without(output, added)
            except NoOutputError as error:
                wrong = error.naming("kernel_size")
            except TypeError:
                if not isinstance(input, Proxy):
                    raise
                return _recorded(function, rank, input, mask, arguments)
            raise wrong

        pool.types = types  # type: ignore[attr-defined]
        return pool

    return decorate


def _recorded(
    function: Callable[..., Any], rank: int, input: Proxy, mask: Any, arguments: tuple[Any, ...]
) -> Proxy:
    """The call of a function of ``nn.functional`` in a graph of ``torch.fx.symbolic_trace``, which
    keeps torch.nn's calls whole too.
    """
    target = _FUNCTIONS[f"{function.__name__}{rank}d"]
    names = list(inspect.signature(function).parameters)[-len(arguments) :]
    given = dict(zip(names, arguments, strict=True))
    if mask is not None:
        given["mask"] = mask
    bound = inspect.signature(target).bind(input, **given)
    return input.tracer.create_proxy("call_function", target, bound.args, bound.kwargs)


def public(function: _F) -> _F:
    """Give a function the module where users find it: pickles, traced graphs and documentation show
    it. Its errors name PyTorch's keyword for DirectML's.
    """
    function.__module__ = "torch_dmlpool.nn.functional"
    name, accepted = function.__name__, inspect.signature(function).parameters

    # ``keywords`` has such a function too. This one keeps a call within eight files.
    @functools.wraps(function)
    def pool(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError:
            meant = suggestion(name, kwargs, accepted, PYTORCHS_FOR_DIRECTMLS)
            if meant is None:
                raise
        raise meant

    _FUNCTIONS[name] = pool
    return cast(_F, pool)


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
