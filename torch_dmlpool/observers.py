"""Calls that somebody else sees: a mode of functions, or an input that is no plain tensor.

PyTorch's own modes are none of these: its device context, and the modes in which it exports. Nor is
``nn.rerouted()``.
"""

import functools
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.overrides import handle_torch_function

from torch_dmlpool._private import (
    _disabled_torch_function_impl,
    _get_current_function_mode_stack,
    _is_torch_function_enabled,
    _register_custom_builtin,
)
from torch_dmlpool.window import Function

_OWN = ("torch.", "torch_dmlpool.")
"""Modules whose modes of functions observe nothing."""


def are_seen(values: Iterable[Any]) -> bool:
    """Whether a mode that is entered or one of ``values`` has to see the function that gets
    them.
    """
    modes = map(type, _get_current_function_mode_stack())
    if any(not mode.__module__.startswith(_OWN) for mode in modes):
        return True
    return _is_torch_function_enabled() and any(map(_sees_functions, map(type, values)))


@functools.lru_cache(1024)
def _sees_functions(kind: type) -> bool:
    """Whether a class has a ``__torch_function__`` of its own."""
    own = getattr(kind, "__torch_function__", None)
    inherited: Any = Tensor.__torch_function__
    ordinary = (None, _disabled_torch_function_impl, inherited.__func__)
    return getattr(own, "__func__", own) not in ordinary


def tracer_of(value: Any) -> Any:
    """The tracer of a proxy, which is ``torch.fx.Proxy`` or has the same attributes; None of
    anything else.
    """
    tracer = None if isinstance(value, Tensor) else getattr(value, "tracer", None)
    return tracer if hasattr(tracer, "create_proxy") else None


def shown(function: Function, values: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
    """The results of a public function, whose call is all that is seen of it."""
    values = tuple(values)
    if any(tracer_of(value) is not None for value in values):
        _let_graphs_import(function)
    return handle_torch_function(function, values, *args, **kwargs)


def _let_graphs_import(function: Function) -> None:
    """Tell torch.fx how the code of a graph imports a function. It knows PyTorch's alone where it
    writes a graph into a folder.
    """
    path, name = function.__module__, function.__name__
    alias = f"{path}_{name}".replace(".", "_")
    # Written into the folders of other models too, which do not need the package.
    wanted = f"from {path} import {name} as {alias}"
    lines = f"import contextlib\nwith contextlib.suppress(ImportError):\n    {wanted}"
    _register_custom_builtin(alias, lines, function)
