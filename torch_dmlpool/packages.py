"""The Triton kernels inside compiled programs, for packages of AOTInductor that run without this package.

To a compiler the operators are opaque: its code calls them by name. Here it is shown what they do on a CUDA device
instead, as :func:`torch.library.triton_op` would do for functions that launch kernels: allocations, and launches that
it takes for its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensorMode

from torch_dmlpool import backends
from torch_dmlpool.ops import registration

__all__ = ["inlined_kernels"]


@contextmanager
def inlined_kernels() -> Iterator[None]:
    """Inside, what is compiled has this package's Triton kernels in the place of its operators.

    That concerns CUDA tensors where Triton serves them; operators on other devices stay as they are. It is meant for
    ``torch._inductor.aoti_compile_and_package``, whose code then has no call to this package left in it. Compilation
    has been tried as far as it goes without a CUDA device (docs/export.md says how far), and no package has been run.

    Raises:
        ValueError: While a program is compiled: sizes that are dynamic. The kernels and how they are launched are
            chosen for the sizes.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> from torch_dmlpool.packages import inlined_kernels
        >>> program = torch.export.export(dmlpool.nn.MaxPool2d(2).eval(), (torch.ones(1, 1, 4, 4),))
        >>> with inlined_kernels():  # a program on a CPU, of which nothing changes
        ...     inlined = program.run_decompositions({})
        >>> "dmlpool.max_pooling" in inlined.graph_module.code
        True

    """
    library = torch.library.Library(registration.NAMESPACE, "FRAGMENT")
    for name, implementation in registration.implementations.items():
        rule = functools.partial(_inline, name, implementation)
        torch.library.register_torch_dispatch(
            f"{registration.NAMESPACE}::{name}", FunctionalTensorMode, rule, lib=library
        )
    try:
        yield
    finally:
        library._destroy()


def _inline(
    name: str,
    implementation: Callable[..., Any],
    mode: Any,
    operator: Any,
    types: Any,
    arguments: tuple[Any, ...] = (),
    options: dict[str, Any] | None = None,
) -> Any:
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    device = tensors[0].device.type
    if device != "cuda" or not backends.serving(device).__name__.endswith("triton_backend"):
        return mode.__torch_dispatch__(operator, types, arguments, options)
    sizes = [list(tensor.shape) for tensor in tensors] + [each for each in arguments if isinstance(each, (list, tuple))]
    for size in itertools.chain.from_iterable(sizes):
        if isinstance(size, torch.SymInt):
            raise ValueError(f"{name} depends on a dynamic size, {size}: kernels are inlined where sizes are numbers")
    from torch_dmlpool.backends import triton_launches

    with triton_launches.recorded(), mode:
        return implementation(*arguments, **(options or {}))
