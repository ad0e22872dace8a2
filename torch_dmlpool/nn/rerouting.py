"""Calls of PyTorch's pooling functions that are replaced inside a ``with`` block."""

import contextlib
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from torch_dmlpool._private import NN_FUNCTIONS
from torch_dmlpool.nn import functional, observed
from torch_dmlpool.tensors import FLOAT_TYPES, MAX_TYPES
from torch_dmlpool.window import Arguments, Function

_P = ParamSpec("_P")
_R = TypeVar("_R")
ROUTES = {
    getattr(module, name): (getattr(functional, name), FLOAT_TYPES if "avg" in name else MAX_TYPES)
    for name in functional.__all__
    # Some models call the functions beneath torch.nn.functional's maxima. The averages there are
    # torch.nn.functional's own, and adaptive maxima there return indices.
    for module in (
        (torch.nn.functional, torch, NN_FUNCTIONS)
        if name.startswith("max")
        else (torch.nn.functional,)
    )
    if hasattr(module, name) and not name.startswith(("lp_pool", "max_unpool"))
}
"""PyTorch's functions, ours with the same arguments, and the data types that ours take."""
ROUTES[torch.adaptive_max_pool1d] = functional.adaptive_max_pool1d_with_indices, MAX_TYPES


class _Region(TorchFunctionMode, contextlib.ContextDecorator):
    """The mode that replaces PyTorch's pooling functions in the calls that this package takes."""

    def __torch_function__(
        self, func: Any, types: Any, args: Arguments = (), kwargs: Any = None
    ) -> Any:
        """Call our function where it takes the input's data type and layout, without ``out``."""
        kwargs = kwargs or {}
        ours, dtypes = ROUTES.get(func, (func, ()))
        input = args[0] if args else kwargs.get("input")
        is_taken = (
            isinstance(input, Tensor)
            and input.dtype in dtypes
            and kwargs.get("out") is None
            and input.layout is torch.strided
            and not input.is_nested
        )
        # Whoever has replaced PyTorch's function has seen this call.
        if is_taken and (is_dynamo_compiling() or not observed.is_replaced(ours.__name__)):
            # A type that this package refuses gets PyTorch's result or error, as it did before.
            with contextlib.suppress(TypeError):
                return ours(*args, **kwargs)
        return func(*args, **kwargs)


@overload
def rerouted() -> _Region: ...
@overload
def rerouted(function: Callable[_P, _R]) -> Callable[_P, _R]: ...
def rerouted(function: Function | None = None) -> Any:
    """Replace PyTorch's pooling functions by this package's inside a ``with`` block, whoever calls
    them.

    It replaces ``max_pool1d`` to ``3d``, ``avg_pool1d`` to ``3d`` and the adaptive forms of both,
    with indices too, in ``torch.nn.functional`` and in ``torch``, by those of
    ``torch_dmlpool.nn.functional``. It holds for the calling thread, around a compiled function or
    inside one. ``@rerouted`` before a function does the same for each of its calls.

    ``lp_pool`` and ``max_unpool`` stay PyTorch's, because they mean something else there in some
    cases. So does every call that this package does not take: averages of integers, quantized or
    nested tensors, ``out=``, arguments of other types, and calls that torch.fx traces. Code under
    ``torch.utils.checkpoint`` runs a second time outside the ``with`` block: put ``rerouted()``
    inside the checkpointed function.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> image = torch.rand(1, 3, 8, 8, requires_grad=True)
        >>> with dmlpool.nn.rerouted():
        ...     pooled = torch.nn.functional.max_pool2d(image, 2)
        >>> pooled.grad_fn.name()
        'MaxPoolingBackward'
    """
    return _Region() if function is None else _Region()(function)
