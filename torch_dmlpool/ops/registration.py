"""How an operator of this package is registered: schema, backends, fake tensors, derivatives, vmap.

The operator's own ``Autograd`` implementation applies its ``torch.autograd.Function`` at a single level, as ATen's
generated code does; ``Function.apply`` would go through a higher-order operator that the dispatcher cannot re-enter.
Inside ``forward`` the operator is called again below autograd with the gradient modes switched on, so that the outer
levels of ``torch.func`` still see it. ``backward`` and ``jvp`` call operators: every higher order comes free.

The private PyTorch names that this takes are used in this file alone.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch import _VF, Tensor
from torch._C import _AutoDispatchBelowAutograd, _dispatch_tls_local_include_set
from torch._functorch.autograd_function import enable_single_level_autograd_function
from torch.autograd import forward_ad, profiler
from torch.autograd.forward_ad import _set_fwd_grad_enabled

from torch_dmlpool import backends, inductor
from torch_dmlpool.ops.revision import mark_compiled_graphs

NAMESPACE = "dmlpool"
WINDOW_SCHEMA = (
    "SymInt[] window_size, SymInt[] strides, SymInt[] start_padding, SymInt[] end_padding, SymInt[] dilations, "
    "bool ceil_mode"
)

implementations: dict[str, Callable[..., Any]] = {}
"""What each operator that is not made of others does on tensors, by its name."""

_library = torch.library.Library(NAMESPACE, "DEF")
mark_compiled_graphs()


def define(
    schema: str,
    *,
    implementation: Callable[..., Any],
    fake: Callable[..., Any],
    vmap: Callable[..., Any],
) -> torch._ops.OpOverload:
    """Register an operator and return it; ``WINDOW`` in the schema stands for the six window arguments."""
    name = schema.split("(", 1)[0]
    # Inductor hands tensors over in the layout that it has: what comes out is laid out by what goes in, fake and real.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
    _library.define(schema.replace("WINDOW", WINDOW_SCHEMA), tags=tags)
    _library.impl(name, implementation, "CompositeExplicitAutograd")
    if "ScalarType" in schema and torch.torch_version.TorchVersion(torch.__version__) < "2.13":
        fake = _refused_in_packages(name, fake)
    torch.library.register_fake(f"{NAMESPACE}::{name}", _seen_by_inductor(fake), lib=_library)
    torch.library.register_vmap(f"{NAMESPACE}::{name}", vmap, lib=_library)
    implementations[name] = implementation
    overload: torch._ops.OpOverload = getattr(torch.ops.dmlpool, name).default
    return overload


def _refused_in_packages(name: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch 2.11 numbers data types otherwise where a package calls an operator: an int64 arrives as a float16."""

    def refusing(*arguments: Any) -> Any:
        inductor = sys.modules.get("torch._inductor.virtualized")
        if inductor is not None and inductor.V.aot_compilation:
            raise NotImplementedError(
                f"{NAMESPACE}::{name} takes a data type, which AOTInductor of PyTorch {torch.__version__} hands over "
                "as another one: use PyTorch 2.13, or take the program apart first, by its run_decompositions with "
                "torch_dmlpool.decompositions.decompositions()"
            )
        return fake(*arguments)

    return refusing


def _seen_by_inductor(fake: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor has the operators traced with fake tensors before it lowers them: then it gets the lowerings."""

    def seen(*arguments: Any) -> Any:
        inductor.register()
        return fake(*arguments)

    return seen


def compose(schema: str, composition: Callable[..., Any]) -> torch._ops.OpOverload:
    """Register an operator that is made of others, and return it.

    Its derivatives, fake tensors and batches are theirs; compilers see through it, exported programs show it whole.
    """
    name = schema.split("(", 1)[0]
    _library.define(schema.replace("WINDOW", WINDOW_SCHEMA), tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
        _library.impl(name, composition, key)
    overload: torch._ops.OpOverload = getattr(torch.ops.dmlpool, name).default
    return overload


def differentiate(operation: torch._ops.OpOverload, autograd: Callable[..., Any]) -> None:
    """Register what an operator does where autograd sees it."""
    _library.impl(operation, autograd, "Autograd")


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """``function.apply`` at a single level, for use inside an ``Autograd`` implementation or on bare tensors."""
    if _plain_dispatch_state() in _PLAIN_STATES:
        return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]
    with enable_single_level_autograd_function():
        return super(torch.autograd.Function, function).apply(*arguments)  # type: ignore[misc]


class below_autograd:  # noqa: N801 - a context manager, named as PyTorch names its own
    """Inside, operators run without recording this level's gradient; outer levels still record theirs."""

    def __enter__(self) -> None:
        self._contexts: tuple[Any, ...] = (
            _AutoDispatchBelowAutograd(),
            torch.enable_grad(),
            _set_fwd_grad_enabled(True),
        )
        for context in self._contexts:
            context.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for context in reversed(self._contexts):
            context.__exit__(kind, error, trace)


def inside_forward(tensor: Tensor) -> below_autograd | contextlib.nullcontext[None]:
    """What ``forward`` calls operators in: nothing for bare tensors, as autograd has switched itself off there."""
    return contextlib.nullcontext() if is_bare(tensor) else below_autograd()


def records_derivative(*tensors: Tensor) -> bool:
    """Whether autograd may ask for a derivative with respect to one of ``tensors``, in reverse or forward mode."""
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        return True
    if records_gradient(*tensors):
        return True
    # A graph being traced may have entered forward mode below Python's own count of levels.
    return not is_bare(*tensors) and any(_VF._unpack_dual(tensor, level=0)[1] is not None for tensor in tensors)


def _plain_dispatch_state() -> int:
    state: int = _dispatch_tls_local_include_set().raw_repr()
    return state


with torch.inference_mode():
    _PLAIN_STATES = frozenset((_plain_dispatch_state(),))
_PLAIN_STATES |= {_plain_dispatch_state()}


def is_bare(*tensors: Tensor) -> bool:
    """Whether nothing but autograd may have to see the operator: no transform, mode, subclass or compilation."""
    if torch.compiler.is_compiling():
        return False
    if _plain_dispatch_state() not in _PLAIN_STATES or forward_ad._current_level >= 0:
        for tensor in tensors:
            _require_rules(type(tensor))
        return False
    for tensor in tensors:
        kind = type(tensor)
        if kind is not Tensor and kind is not torch.nn.Parameter:
            _require_rules(kind)
            return False
        if tensor.is_meta or tensor.is_neg():
            return False
    return True


def _require_rules(kind: type[Tensor]) -> None:
    """Refuse a DTensor before its sharding rules are imported."""
    if kind.__module__.startswith("torch.distributed.tensor") and "torch_dmlpool.distributed" not in sys.modules:
        raise TypeError(
            "pooling a DTensor needs the sharding rules of torch_dmlpool.distributed: write "
            "`import torch_dmlpool.distributed` once, in every process, before the first DTensor is pooled"
        )


def shards_of(tensor: Tensor) -> Any:
    """The placements of a DTensor; None for other tensors."""
    return None if type(tensor) is Tensor else getattr(tensor, "placements", None)


def replicated_like(tensor: Tensor, sharded: Tensor) -> Tensor:
    """``tensor`` as one that all ranks have, for arithmetic with ``sharded`` if that is a DTensor."""
    return tensor if shards_of(sharded) is None else type(sharded).from_local(tensor, sharded.device_mesh)  # type: ignore[attr-defined]


def sharded_like(tensor: Tensor, placements: Any) -> Tensor:
    """A gradient sharded as its forward tensor was; one that is replicated is cut where it lies, without moving it."""
    if placements is None:
        return tensor
    # What was not sharded before need not be now: a gradient may be, or be a sum over ranks that is still to be made.
    wanted = [old if old.is_shard() else new for old, new in zip(placements, tensor.placements, strict=True)]  # type: ignore[attr-defined]
    return tensor.redistribute(placements=wanted)  # type: ignore[attr-defined]


def records_gradient(*tensors: Tensor) -> bool:
    """Whether autograd records a gradient with respect to one of ``tensors`` in reverse mode."""
    for tensor in tensors:
        if tensor.requires_grad:
            return torch.is_grad_enabled()
    return False


def carries_derivative(tensor: Tensor) -> bool:
    """Whether autograd records a gradient with respect to ``tensor``, or it has a tangent in forward mode."""
    return records_gradient(tensor) or _VF._unpack_dual(tensor, level=0)[1] is not None


def backend_of(tensor: Tensor) -> Any:
    """The backend that serves the device of ``tensor``."""
    # Asking for the device's name takes four times as long.
    backend = backends.serving("cpu" if tensor.is_cpu else tensor.device.type)
    return _Recorded(backend) if profiler._is_profiler_enabled else backend


class _Recorded:
    """A backend whose functions a profiler sees by their names; a call that skips the dispatcher has none else."""

    def __init__(self, backend: ModuleType) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return profiler.record_function(f"{NAMESPACE}::{name}")(getattr(self._backend, name))


def folded(tensor: Tensor, batch_dimension: int | None, batch_size: int) -> Tensor:
    """``tensor`` with the dimension that vmap maps over merged into the samples."""
    if batch_dimension is None:
        batched = tensor.unsqueeze(0).expand(batch_size, *tensor.shape)
    else:
        batched = tensor.movedim(batch_dimension, 0)
    return batched.flatten(0, 1)


def unfolded(tensor: Tensor, batch_size: int) -> Tensor:
    """Undo :func:`folded`; samples of size 0 included."""
    return tensor.unflatten(0, (batch_size, tensor.shape[0] // batch_size))
