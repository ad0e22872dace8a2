"""torch.nn.functional's pooling calls served by this package's functions inside a region."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torch_dmlpool import operands
from torch_dmlpool.nn import functional

__all__ = ["rerouted"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Route = tuple[Callable[..., Any], tuple[torch.dtype, ...]]


def _routes() -> dict[Callable[..., Any], _Route]:
    """PyTorch's functions, ours with the same arguments, and the data types that ours take."""
    names = [name for name in functional.__all__ if not name.startswith(("lp_pool", "max_unpool"))]
    routes: dict[Callable[..., Any], _Route] = {}
    for name in names:
        route = getattr(functional, name), operands.FLOAT_TYPES if "avg" in name else operands.MAX_TYPES
        routes[getattr(torch.nn.functional, name)] = route
        # The forms beneath, which some models call; their average is torch.nn.functional's, and adaptive maxima there
        # have indices always.
        for module in (torch, torch._C._nn):
            beneath = getattr(module, name, None)
            if name.startswith("max") and beneath is not None:
                routes[beneath] = route
    routes[torch.adaptive_max_pool1d] = functional.adaptive_max_pool1d_with_indices, operands.MAX_TYPES
    return routes


_ROUTES = _routes()


class _Region(TorchFunctionMode, contextlib.ContextDecorator):
    """What :func:`rerouted` enters."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        route = _ROUTES.get(func)
        if route is not None:
            ours, dtypes = route
            if _takes(dtypes, args[0] if args else kwargs.get("input"), kwargs):
                return ours(*args, **kwargs)
        return func(*args, **kwargs)


@overload
def rerouted() -> _Region: ...
@overload
def rerouted(function: Callable[_P, _R]) -> Callable[_P, _R]: ...
def rerouted(function: Callable[..., Any] | None = None) -> Any:
    """Inside, PyTorch's pooling functions run on this package's operators, however a model comes to call them.

    ``max_pool1d`` to ``max_pool3d``, ``avg_pool1d`` to ``avg_pool3d``, the adaptive forms of both (all maxima with
    indices too) and their forms in ``torch`` are served by the functions of :mod:`torch_dmlpool.nn.functional`; so are
    the torch.nn layers that call them. It holds for the calling thread and may be entered again; ``@rerouted`` before
    a function enters it for each call. Under ``torch.compile`` it works around the compiled function and inside it.

    PyTorch keeps ``lp_pool`` and ``max_unpool``, which mean something else there in some cases, and every call that
    this package does not take: integers averaged, quantized or nested tensors, ``out=``, a proxy that traces. A segment
    under ``torch.utils.checkpoint`` has to enter the region itself: it is computed again outside.

    Args:
        function: What is decorated; left out in ``with rerouted():``.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> image = torch.rand(1, 3, 8, 8, requires_grad=True)
        >>> with dmlpool.nn.rerouted():
        ...     pooled = torch.nn.functional.max_pool2d(image, 2)
        >>> pooled.grad_fn.name()
        'MaxPoolingBackward'

    """
    return _Region() if function is None else _Region()(function)


def _takes(dtypes: tuple[torch.dtype, ...], input: Any, keywords: dict[str, Any]) -> bool:
    if not isinstance(input, Tensor) or keywords.get("out") is not None:
        return False
    return input.layout is torch.strided and not input.is_nested and input.dtype in dtypes
