"""Pools in calls that somebody else sees or records (rules W1 to W3).

Where torch.nn.functional has the same pool, the call is PyTorch's: observers know its functions.
"""

import contextlib
import inspect
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import counterparts, observers, tensors
from torch_dmlpool._private import (
    DisableTorchFunction,
    _are_functorch_transforms_active,
    _is_tracing,
)
from torch_dmlpool.window import Arguments, Ints, Named, Window, check_flag, shared

FUNCTIONS = vars(torch.nn.functional)  # as they are now
ORIGINALS = {name: inspect.unwrap(FUNCTIONS[name]) for name in FUNCTIONS if "pool" in name}
"""PyTorch's own functions, without what had wrapped them before this package was imported."""
PUBLIC: Named = {}
"""This package's functions of the same names, which ``nn.functional`` enters here."""


def is_replaced(name: str) -> bool:
    """Whether somebody has put another function in the place of torch.nn.functional's."""
    return FUNCTIONS.get(name) is not ORIGINALS.get(name)


def answer(family: Any, who: Any, rank: int, input: Any, mask: Any, arguments: Arguments) -> Any:
    """What an observed call returns; ``NotImplemented`` where nobody observes it, or where our
    operator is to be called as it is.

    ``family`` is a ``Family`` of pools.py. ``who`` is a layer, or the number of dimensions where a
    function of ``nn.functional`` is called.
    """
    named = dict(zip(family.parameters, arguments, strict=True))
    values = (input, mask, *named.values())
    tracers = list(filter(None, map(observers.tracer_of, values)))
    is_seen = bool(tracers) or observers.are_seen(values)
    if not (is_seen or _is_recorded(family, rank, input)):
        return NotImplemented
    masked = {} if mask is None else {"mask": mask}
    if tracers:
        path = ""
        if type(who) is not int:  # a layer, which the tracer may not know
            with contextlib.suppress(NameError):
                path = tracers[0].path_of_module(who)
        if path:
            passed = (input, named["indices"]) if "indices" in named else (input,)
            sizes = {"output_size": named["output_size"]} if passed[1:] else {}
            return tracers[0].create_proxy("call_module", path, passed, sizes | masked)
    elif mask is None and family.name != "max_unpool":
        # Whether unpooling means the same lies in the indices: in -1 and in equal ones.
        same = agreed(family.name, rank, input, named)
        if same is not None:
            return _theirs(family.names[rank], input, same)
    if not is_seen:
        return NotImplemented
    return observers.shown(PUBLIC[family.names[rank]], values, input, **named, **masked)


def _is_recorded(family: Any, rank: int, input: Any) -> bool:
    """Whether torch.jit traces the call, or somebody has replaced PyTorch's function."""
    # DTensors, fake tensors and the like, which PyTorch's own transforms and exporters use, stay.
    kind = type(input)
    if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
        return False
    is_recorded = is_replaced(family.names[rank]) or _is_tracing()
    return is_recorded and not _are_functorch_transforms_active()


def only_theirs(family: Any, rank: int, input: Any, mask: Any, arguments: Arguments) -> Any:
    """The pool of a tensor in a layout, or of a data type, that PyTorch alone pools;
    ``NotImplemented`` for other tensors.
    """
    kind, mended = "layout torch._mkldnn", "input.to_dense()"
    if not (isinstance(input, Tensor) and input.is_mkldnn):
        if getattr(input, "dtype", None) is not getattr(torch, "qint32", NotImplemented):
            return NotImplemented
        kind, mended = "data type qint32", "input.dequantize()"
    name, wrong = family.names[rank], "torch.nn.functional has no such pool"
    named = dict(zip(family.parameters, arguments, strict=True))
    same = None if mask is not None else agreed(family.name, rank, input, named)
    if same is not None:
        try:
            return _theirs(name, input, same)
        except (NotImplementedError, RuntimeError) as error:
            wrong = str(error).split("\n", 1)[0]
    raise TypeError(f"{name}: PyTorch alone pools {kind}, and {wrong}: pool {mended}")


def _theirs(name: str, input: Any, named: Named) -> Any:
    """The results of PyTorch's function, called as torch.nn's layers call it."""
    keywords = {"ceil_mode", "return_indices"} if name.startswith("max_pool") else set()
    arguments = [value for each, value in named.items() if each not in keywords]
    return FUNCTIONS[name](input, *arguments, **{each: named[each] for each in keywords})


def agreed(family: str, rank: int, input: Any, named: Named) -> Named | None:
    """The arguments by which PyTorch's function gives what ours gives for ``named``, by name and in
    the order in which it takes them; None if it gives something else.
    """
    sizes: Arguments = ()
    with DisableTorchFunction():  # so that nobody sees what is asked here
        if issubclass(type(input), Tensor):  # some proxies say of themselves that they are tensors
            if not counterparts.takes(family, rank, input, bool(named.get("return_indices"))):
                return None
            sizes = tuple(input.shape)[-rank:]
            # In a trace of torch.jit sizes are tensors.
            sizes = sizes if all(type(size) is int for size in sizes) else ()
        try:
            return _same(family, rank, sizes, named)
        except (TypeError, ValueError):  # our operator says what is wrong
            return None


def _same(family: str, rank: int, sizes: Ints, named: Named) -> Named | None:
    """What :func:`agreed` returns for an input that PyTorch takes, of ``sizes`` if they are known.
    A wrong argument is an error.
    """
    for flag in ("return_indices", "count_include_pad"):
        check_flag(flag, named.get(flag, False))
    if "min_pool" in family:
        return None
    if "adaptive" in family:
        asked = shared(named["output_size"])
        tensors.checked_output_size(asked, sizes or (1,) * rank)
        if rank == 1 and not isinstance(asked, int):
            return None
        return {**named, "output_size": (None,) * rank if asked is None else asked}
    if family == "max_unpool":  # of layers: what is in the indices is not known
        # PyTorch gives the gradient to all elements that have one index, as overlaps may have.
        window = (named[name] for name in ("kernel_size", "stride", "padding"))
        axes = Window.pytorch(rank, *window).axes
        return None if any(axis.stride < axis.window for axis in axes) else named
    return _same_window(family, rank, sizes, named)


def _same_window(family: str, rank: int, sizes: Ints, named: Named) -> Named | None:
    """The same of a pool of windows."""
    size, stride, padding = (named[name] for name in ("kernel_size", "stride", "padding"))
    if isinstance(padding, str) and stride != 1 and not sizes:
        return None  # the padding follows from the size
    dilation, ceil_mode = named["dilation"], named["ceil_mode"]
    window = Window.pytorch(rank, size, stride, padding, dilation, ceil_mode, sizes or None)
    if sizes:
        window.output_sizes(sizes)
    if counterparts.arguments_of(family, window, sizes) is None:
        return None
    pads = window.arguments[2]
    same = {**named, "stride": size if stride is None else stride}
    same["padding"] = pads[0] if len(set(pads)) == 1 else tuple(pads)
    lacks: tuple[str, ...] = () if family == "max_pool" else ("dilation",)
    if family == "avg_pool":
        same["divisor_override"] = tensors.checked_divisor(named["divisor_override"])
        lacks += ("divisor_override",) if rank == 1 else ()
    elif family == "lp_pool":
        norm = float(tensors.checked_norm("norm_type", named["norm_type"]))
        if ceil_mode or norm % 2:  # PyTorch sums x^p, and ceil_mode changes its number of taps
            return None
        same |= {"norm_type": norm, "kernel_size": shared(size)}
        lacks += ("padding",)
    left_out = {name: same.pop(name) for name in lacks}
    return None if left_out.get("padding") or left_out.get("divisor_override") else same
