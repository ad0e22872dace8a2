"""Pools in calls that somebody else sees or records (rules W1 to W3).

Where torch.nn.functional has the same pool, the call is PyTorch's: observers know its functions.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import observers, operands
from torch_dmlpool._private import (
    DisableTorchFunction,
    _are_functorch_transforms_active,
    _is_tracing,
)
from torch_dmlpool.window import Axis, Window, shared

FUNCTIONS = vars(torch.nn.functional)
ORIGINALS = {name: inspect.unwrap(FUNCTIONS[name]) for name in FUNCTIONS if "pool" in name}
"""PyTorch's own functions, without what had wrapped them before this package was imported."""


def is_replaced(name: str) -> bool:
    """Whether somebody has put another function in the place of torch.nn.functional's."""
    return FUNCTIONS.get(name) is not ORIGINALS.get(name)


def answer(
    pool: Any, who: Any, rank: int, input: Any, mask: Any, arguments: tuple[Any, ...]
) -> Any:
    """What an observed call returns; ``NotImplemented`` where nobody observes it, or where our
    operator is to be called as it is.

    ``pool`` is a function of pools.py, and ``who`` is a layer, or the number of dimensions where a
    function of ``nn.functional`` is called.
    """
    values = (input, mask, *arguments)
    tracers = [tracer for tracer in map(observers.tracer_of, values) if tracer is not None]
    is_seen = bool(tracers) or observers.are_seen(values)
    if not (is_seen or _is_recorded(pool, rank, input)):
        return NotImplemented
    named = dict(zip(pool.parameters, arguments, strict=True))
    if tracers:
        path = _path_of(tracers[0], who)
        if path:
            args = (input, named["indices"]) if "indices" in named else (input,)
            optional = {"mask": mask, "output_size": named["output_size"] if args[1:] else None}
            kwargs = {name: value for name, value in optional.items() if value is not None}
            return tracers[0].create_proxy("call_module", path, args, kwargs)
    else:
        same = None if mask is not None else agreed(pool.family, rank, input, named)
        if same is not None:
            return _theirs(pool.names[rank], input, same)
        if not is_seen:
            return NotImplemented
    from torch_dmlpool.nn import functional  # which imports this module

    function = getattr(functional, pool.names[rank])
    masked = {} if mask is None else {"mask": mask}
    bound = inspect.signature(function).bind(input, **named, **masked)
    return observers.shown(function, values, *bound.args, **bound.kwargs)


def _is_recorded(pool: Any, rank: int, input: Any) -> bool:
    """Whether torch.jit traces the call, or somebody has replaced PyTorch's function."""
    # DTensors, fake tensors and the like, which PyTorch's own transforms and exporters use, stay.
    kind: Any = type(input)
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return False
    is_recorded = is_replaced(pool.names[rank]) or _is_tracing()
    return is_recorded and not _are_functorch_transforms_active()


def _path_of(tracer: Any, who: Any) -> str:
    """The name of a layer in a graph, where it is one call of a module; empty for the root and for
    functions.
    """
    try:
        return "" if type(who) is int else tracer.path_of_module(who)
    except NameError:
        return ""


def only_theirs(pool: Any, rank: int, input: Any, mask: Any, arguments: tuple[Any, ...]) -> Any:
    """The pool of a tensor in a layout, or of a data type, that PyTorch alone pools;
    ``NotImplemented`` for other tensors.
    """
    if not isinstance(input, Tensor):
        return NotImplemented
    is_mkldnn = input.is_mkldnn
    if not is_mkldnn and input.dtype is not getattr(torch, "qint32", None):
        return NotImplemented
    name, wrong = pool.names[rank], "torch.nn.functional has no such pool"
    named = dict(zip(pool.parameters, arguments, strict=True))
    same = None if mask is not None else agreed(pool.family, rank, input, named)
    if same is not None:
        try:
            return _theirs(name, input, same)
        except (NotImplementedError, RuntimeError) as error:
            wrong = str(error).split("\n", 1)[0]
    kind = f"layout {input.layout}" if is_mkldnn else "data type qint32"
    what_to_do = "input.to_dense()" if is_mkldnn else "input.dequantize()"
    raise TypeError(f"{name}: PyTorch alone pools {kind}, and {wrong}: pool {what_to_do}")


def _theirs(name: str, input: Any, named: dict[str, Any]) -> Any:
    """The results of PyTorch's function, called as torch.nn's layers call it."""
    keywords = {"ceil_mode", "return_indices"} if name.startswith("max_pool") else set()
    arguments = [value for each, value in named.items() if each not in keywords]
    return FUNCTIONS[name](input, *arguments, **{each: named[each] for each in keywords})


def agreed(family: str, rank: int, input: Any, named: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments by which PyTorch's function gives what ours gives for ``named``, by name and in
    the order in which it takes them; None if it gives something else.
    """
    named = dict(named)
    sizes: tuple[Any, ...] = ()
    with DisableTorchFunction():  # so that nobody sees what is asked here
        if issubclass(type(input), Tensor):  # some proxies say of themselves that they are tensors
            if not _takes(family, rank, input, named):
                return None
            sizes = tuple(input.shape)[-rank - 1 :]
            if any(type(size) is int and size == 0 for size in sizes):
                return None
            # In a trace of torch.jit sizes are tensors.
            sizes = sizes[1:] if all(type(size) is int for size in sizes) else ()
        try:
            agrees = _agrees(family, rank, sizes, named)
        except (TypeError, ValueError):  # our operator says what is wrong
            return None
    return named if agrees else None


def _takes(family: str, rank: int, input: Tensor, named: dict[str, Any]) -> bool:
    """Whether PyTorch's function takes such a tensor."""
    dtype, has_indices = input.dtype, bool(named.get("return_indices"))
    if input.is_nested or input.dim() not in (rank + 1, rank + 2):
        return False
    if input.layout is not torch.strided:
        return input.is_mkldnn
    if input.is_quantized:
        is_taken = family in ("max_pool", "avg_pool", "adaptive_avg_pool") and not has_indices
        return is_taken and input.qscheme() is torch.per_tensor_affine
    if dtype in operands.FLOAT_TYPES:
        # It has no averages of volumes in half precision on the CPU.
        is_narrow = rank == 3 and dtype.itemsize == 2 and input.is_cpu
        return not (is_narrow and family in ("avg_pool", "lp_pool"))
    is_whole = dtype in operands.INTEGER_TYPES[:5] and input.is_cpu
    return is_whole and family == "max_pool" and (rank > 1 or has_indices)


def _agrees(family: str, rank: int, sizes: tuple[int, ...], named: dict[str, Any]) -> bool:
    """Whether PyTorch's function means the same by our arguments, which become those that it takes.
    ``sizes`` are the input's where they are known. A wrong argument is an error.
    """
    for name in ("return_indices", "count_include_pad"):
        if name in named:
            operands.check_flag(name, named[name])
    if not family.startswith("adaptive_"):
        return _windows_agree(family, rank, sizes, named)
    asked = shared(named["output_size"])
    operands.checked_output_size(asked, sizes or (1,) * rank)
    named["output_size"] = (None,) * rank if asked is None else asked
    return "min" not in family and (rank > 1 or isinstance(asked, int))


def _windows_agree(family: str, rank: int, sizes: tuple[int, ...], named: dict[str, Any]) -> bool:
    """The same of pools with a window."""
    size, stride, padding = (named[name] for name in ("kernel_size", "stride", "padding"))
    dilation, ceil_mode = named.get("dilation", 1), named.get("ceil_mode", False)
    if isinstance(padding, str) and stride != 1 and not sizes:
        return False  # the padding follows from the size
    window = Window.pytorch(rank, size, stride, padding, dilation, ceil_mode, sizes or None)
    pads = tuple(axis.start_padding for axis in window.axes)
    named["stride"] = size if stride is None else stride
    named["padding"] = pads[0] if len(set(pads)) == 1 else pads
    if pads != tuple(axis.end_padding for axis in window.axes):
        return False
    if family == "max_unpool":
        return _agrees_to_unpool(window, **named)
    if sizes:
        window.output_sizes(sizes)
    if any(map(_may_lie_outside, window.axes, sizes or (0,) * rank)):
        return False
    return family == "max_pool" or _agrees_undilated(family, rank, window, named)


def _agrees_undilated(family: str, rank: int, window: Window, named: dict[str, Any]) -> bool:
    """The same of averages and norms."""
    del named["dilation"]
    is_plain = all(axis.dilation == 1 for axis in window.axes)
    if family == "avg_pool":
        operands.check_divisor(named["divisor_override"])
        return is_plain and (rank > 1 or named.pop("divisor_override") is None)
    if family == "lp_pool":
        norm = named["norm_type"]
        operands.check_norm("norm_type", norm)
        named["norm_type"], named["kernel_size"] = float(norm), shared(named["kernel_size"])
        agrees = is_plain and norms_agree(norm, named["ceil_mode"])
        return agrees and not named.pop("padding")
    return False


def _agrees_to_unpool(window: Window, indices: Any, output_size: Any, **_: Any) -> bool:
    """The same of unpooling, which PyTorch 2.13 does not trace."""
    is_read = output_size is None or isinstance(output_size, Sequence)
    is_indexed = getattr(indices, "dtype", torch.int64) is torch.int64
    return is_read and is_indexed and not _is_tracing() and not overlaps(window)


def _may_lie_outside(axis: Axis, size: int) -> bool:
    """Whether PyTorch refuses the padding, or a window may step over the whole input."""
    pad = axis.start_padding
    least = axis.extent - 2 * pad - (axis.stride - 1 if axis.ceil_mode else 0)
    is_stepped_over = pad > 0 and axis.dilation > 1 and max(least, size) < axis.dilation
    return 2 * pad > axis.window or is_stepped_over


def norms_agree(norm_type: float, ceil_mode: bool) -> bool:
    """Whether PyTorch's p-norms are ours. It sums x^p, and ceil_mode changes its number of taps."""
    return not ceil_mode and float(norm_type) % 2 == 0


def overlaps(window: Window) -> bool:
    """Whether several elements may have one index: PyTorch gives the gradient to all of them."""
    return any(axis.stride < axis.window for axis in window.axes)
