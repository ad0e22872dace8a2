"""How operators on sets of rows are registered: schema, fake tensors, vmap, autograd function.

Such an operator takes ``(L, C)`` rows with offsets, or ``(B, T, C)`` rows without, where each
sample is a set; masks and offsets may be None. Plain tensors take the short way of ``__call__``,
all others PyTorch's dispatcher.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import backends, tensors
from torch_dmlpool._private import (
    _are_functorch_transforms_active,
    applied_at_a_single_level,
    enable_single_level_autograd_function,
    forward_ad,
    profiler,
)
from torch_dmlpool.backends import reference
from torch_dmlpool.backends.interface import Backend, Function
from torch_dmlpool.operators import revision
from torch_dmlpool.operators.derivatives import (
    carries_derivative,
    records_gradient,
    with_ordinary_tangent,
)
from torch_dmlpool.operators.dispatching import may_skip_dispatcher
from torch_dmlpool.operators.registration import _library, below_autograd, call
from torch_dmlpool.tensors import shards_of


def tensors_of(arguments: tuple[Any, ...]) -> list[Tensor]:
    """The tensors among a call's arguments, which come before all others."""
    return [argument for argument in arguments if isinstance(argument, Tensor)]


class RowOperator:
    """A registered operator, and the function that Python code calls with checked arguments.

    ``results`` rejects arguments that do not fit, and returns a shape and a data type for each
    result. ``function`` is an autograd function: it takes the operator's arguments and a function
    that computes the results below autograd.
    """

    def __init__(
        self,
        schema: str,
        computes: Callable[[Backend], Function],
        results: Callable[..., list[tuple[Any, torch.dtype]]],
        vmap: Callable[..., Any],
        function: type[torch.autograd.Function],
    ) -> None:
        self.name, self.computes, self.results = schema.split("(", 1)[0], computes, results
        self.apply = applied_at_a_single_level(function)
        arguments, returned = schema.split(") -> ")
        tags = torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout
        _library.define(f'{arguments}, *, str revision="") -> {returned}', tags=tags)
        self.overload = getattr(torch.ops.dmlpool, self.name).default
        _library.impl(self.name, self._compute, "CompositeExplicitAutograd")
        _library.impl(self.name, self._autograd, "Autograd")
        torch.library.register_fake(self.overload, self._fake, lib=_library)
        torch.library.register_vmap(self.overload, lambda *a, **_: vmap(self, *a), lib=_library)

    def __call__(self, *arguments: Any) -> Any:
        """The results. Plain tensors go to the backend, or to the autograd function."""
        tensors = tensors_of(arguments)
        if torch.compiler.is_exporting() or shards_of(arguments[0]) is not None:
            # Programs are exported in operators of PyTorch alone, which also know DTensors.
            self.results(*arguments)
            return self.computes(reference.BACKEND)(*arguments)
        if may_skip_dispatcher(*tensors) and not profiler._is_profiler_enabled:
            self.results(*arguments)
            if records_gradient(*tensors):
                return self.apply(*arguments, self.backend_function(arguments[0]))
            return self.backend_function(arguments[0])(*arguments)
        return call(self.overload, *arguments)

    def backend_function(self, tensor: Tensor) -> Function:
        """What computes the operator on the device of ``tensor``."""
        return self.computes(backends.serving("cpu" if tensor.is_cpu else tensor.device.type))

    def _compute(self, *arguments: Any, **_: str) -> Any:
        self.results(*arguments)
        for tensor in tensors_of(arguments):
            tensors.check_memory(tensor)
        return self.backend_function(arguments[0])(*arguments)

    def _below(self, *arguments: Any) -> Any:
        """The results where this level's autograd has been seen to; outer levels see the call."""
        if may_skip_dispatcher(*tensors_of(arguments)):
            return self.backend_function(arguments[0])(*arguments)
        with below_autograd():
            return call(self.overload, *arguments)

    def _fake(self, *arguments: Any, **_: str) -> Any:
        revision.sign_traced_call(self.overload)
        results = [
            arguments[0].new_empty(shape, dtype=dtype) for shape, dtype in self.results(*arguments)
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def _autograd(self, *arguments: Any, **_: str) -> Any:
        revision.sign_traced_call(self.overload)
        tensors = tensors_of(arguments)
        is_wanted = records_gradient(*tensors)
        if not is_wanted and not may_skip_dispatcher(*tensors):
            is_wanted = forward_ad._current_level >= 0 or _are_functorch_transforms_active()
            # A graph being traced may have entered forward mode below Python's own count of levels.
            is_wanted = is_wanted or any(carries_derivative(tensor) for tensor in tensors)
        if not is_wanted:
            return self._below(*arguments)
        self.results(*arguments)
        ordinary = (with_ordinary_tangent(a) if isinstance(a, Tensor) else a for a in arguments)
        with enable_single_level_autograd_function():
            return self.apply(*ordinary, self._below)
