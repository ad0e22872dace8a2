"""How an operator of this package is registered: schema, backends, fake tensors, derivatives, vmap.

Python code calls an :class:`Operator`. Ordinary tensors go straight to the backend, or to the
operator's autograd function; all others through the dispatcher, whose ``Autograd`` key applies that
function at a single level, as ATen's generated code does. There ``forward`` calls the operator
again below autograd with the gradient modes switched on, so that the outer levels of ``torch.func``
still see it. ``backward`` and ``jvp`` call operators: every higher order comes free.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_dynamo_compiling

from torch_dmlpool import backends, operands
from torch_dmlpool._private import (
    OpOverload,
    _are_functorch_transforms_active,
    _AutoDispatchBelowAutograd,
    _set_fwd_grad_enabled,
    enable_single_level_autograd_function,
    forward_ad,
    outliving,
    profiler,
)
from torch_dmlpool.backends.interface import Backend
from torch_dmlpool.elements import shards_of
from torch_dmlpool.ops import revision
from torch_dmlpool.ops.derivatives import (
    Recording,
    as_sharded,
    carries_derivative,
    derivative,
    recording,
    records_gradient,
    with_ordinary_tangent,
)
from torch_dmlpool.ops.dispatching import may_skip_dispatcher
from torch_dmlpool.window import Window

NAMESPACE = "dmlpool"
# A seventh argument would change Window.arguments and each slice of six window arguments in the
# package.
WINDOW_SCHEMA = (
    "SymInt[] window_size, SymInt[] strides, SymInt[] start_padding, SymInt[] end_padding, "
    "SymInt[] dilations, "
    "bool ceil_mode"
)
_library = outliving(torch.library.Library(NAMESPACE, "FRAGMENT"), "library")
before_fake: list[Callable[["Operator"], None]] = outliving([], "before_fake")
"""Functions of integrations that are called before an operator meets fake tensors: they give a
compiler or an exporter what it needs, or raise an error."""
replacements: list[Callable[["Operator"], Callable[..., Any] | None]] = outliving(
    [], "replacements"
)
"""Functions of integrations that may return a function to compute an operator in place of the
registered one, where a program is exported."""
OPERATORS: dict[str, "Operator"] = outliving({}, "operators")
"""All registered operators by their names."""


@dataclass(eq=False)
class Operator:
    """A registered operator, and the function that Python code calls: straight to the backend where
    that is enough. The kinds below have derivatives.

    Python code and the callables below pass one :class:`Window` where the schema has ``WINDOW``.
    Tensors come first. A gradient is wanted with respect to the first alone.
    """

    schema: str  # WINDOW in it stands for the six window arguments
    types: Sequence[tuple[torch.dtype, ...]]  # the data types that each tensor may have
    # rejects arguments that do not fit, and returns the sizes of the results
    check: Callable[..., Any]
    # the field of a backend's table that computes it
    entry: Any = None
    _: KW_ONLY
    # turns a call's arguments into those of ``check`` and the backend, such as scales into vectors
    complete: Callable[..., tuple[Any, ...]] | None = None
    # the data type of each result; None for one result with the first tensor's data type
    dtypes: Callable[..., tuple[torch.dtype, ...]] | None = None
    # the number of the tensor whose memory format results have, unless the schema ends in
    # channels_last
    layout_of: int = 0
    # the vmap rule; None to merge the mapped dimension into the samples
    vmap: Callable[..., Any] | None = None
    # raises an error where a derivative is wanted and the operator has none
    reject: Callable[..., None] | None = None
    has_derivative: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.name = self.schema.split("(", 1)[0]
        # PyTorch keeps what it was given when a module of operators is reloaded.
        is_new = self.name not in OPERATORS
        OPERATORS[self.name] = self
        # flexible_layout lets Inductor pass tensors in any layout: the layout of the results
        # follows from it.
        tags = torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout
        arguments, results = self.schema.replace("WINDOW", WINDOW_SCHEMA).split(") -> ")
        if is_new:
            _library.define(f'{arguments}, *, str revision="") -> {results}', tags=tags)
        self.overload: OpOverload = getattr(torch.ops.dmlpool, self.name).default
        accepted = self.overload._schema.arguments[:-1]  # without the revision
        names = [argument.name for argument in accepted]
        # Where the schema has tensors, those that may be None among them. The first ``count`` are
        # pooled or hold numbers of winners, and ``tensors`` has their names.
        self.tensor_places = [at for at, each in enumerate(accepted) if "Tensor" in str(each.type)]
        self.is_told_layout = names[-1] == "channels_last"
        self.count, self.tensors = len(self.types), names[: len(self.types)]
        self.window_at = names.index("window_size") if "window_size" in names else None
        # A composite has neither a fake nor a vmap rule: the operators that it is made of have.
        self.is_composite = self.entry is None
        if is_new:
            self._register()

    def _register(self) -> None:
        """Give PyTorch the operator's implementations."""
        if self.is_composite:
            for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
                _library.impl(self.name, self._autograd_kernel, key)
            return
        _library.impl(self.name, self._computed, "CompositeExplicitAutograd")
        if self.has_derivative or self.reject is not None:
            _library.impl(self.name, self._autograd_kernel, "Autograd")
        torch.library.register_fake(self.overload, self._fake, lib=_library)
        torch.library.register_vmap(self.overload, self._mapped, lib=_library)

    def __call__(self, *arguments: Any) -> Any:
        """The results for arguments that are checked already."""
        tensors = arguments[: self.count]
        if not may_skip_dispatcher(*tensors):
            at = self.window_at
            if at is not None:
                arguments = (*arguments[:at], *arguments[at].arguments, *arguments[at + 1 :])
            return self.dispatched(*arguments)
        if self.is_composite:
            return self.differentiated(True, arguments)
        if self.has_derivative and is_grad_enabled():
            for tensor in tensors:
                if tensor.requires_grad:
                    return self.differentiated(True, arguments)
        return self.implementation(arguments[0])(*arguments)

    def implementation(self, tensor: Tensor) -> Any:
        """The function that computes the operator on the device of ``tensor``."""
        function = self.entry.__get__(serving(tensor))
        return self.profiled(function) if profiler._is_profiler_enabled else function

    def profiled(self, function: Any) -> Any:
        """``function`` as a running profiler records it, which would not see a call that skips the
        dispatcher.
        """
        return profiler.record_function(f"{NAMESPACE}::{self.name}")(function)

    def computed_by(self, backend: Backend) -> Callable[..., Any]:
        """The function of ``backend`` that computes the operator: ``entry`` is a descriptor of the
        named tuple ``Backend``.
        """
        return self.entry.__get__(backend)

    def dispatched(self, *arguments: Any) -> Any:
        """The results of the registered operator; a window is given as its six schema arguments."""
        if type(arguments[0]) is not Tensor and not is_dynamo_compiling():
            for replacement in replacements:
                compute = replacement(self)
                if compute is not None:
                    return compute(*arguments)
        return call(self.overload, *arguments)

    def differentiated(self, skips_dispatcher: bool, arguments: tuple[Any, ...]) -> Any:
        """The results where a derivative is wanted."""
        raise NotImplementedError

    def composed(self, *arguments: Any, **_: str) -> Any:
        """``differentiated`` for arguments as the schema has them: a decomposition."""
        return self.differentiated(False, self._checked(arguments)[0])

    def _checked(self, arguments: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """The arguments with a window in place of six lists, and the sizes of the results."""
        for name, tensor, types in zip(self.tensors, arguments, self.types, strict=False):
            # A mask may have the spatial dimensions alone.
            is_mask = types == (torch.bool,)
            (operands.check_dense if is_mask else operands.check_pooled)(name, tensor, types)
        at = self.window_at
        if at is not None:
            window = Window.directml(arguments[0].dim() - 2, *arguments[at : at + 6])
            arguments = (*arguments[:at], window, *arguments[at + 6 :])
        if self.complete is not None:
            arguments = self.complete(*arguments)
        return arguments, self.check(*arguments)

    def _computed(self, *arguments: Any, **_: str) -> Any:
        """The implementation below autograd. A call by name may arrive here first."""
        for at in self.tensor_places:
            if arguments[at] is not None:
                operands.has_memory(arguments[at])
        return self._result(arguments)

    def _result(self, arguments: tuple[Any, ...]) -> Any:
        """The results for arguments as the schema has them, by the backend."""
        checked, _ = self._checked(arguments)  # first: the input of a call by name may be None
        return self.implementation(arguments[0])(*checked)

    def _fake(self, *arguments: Any, **_: str) -> Any:
        """The fake implementation: checks the arguments and returns uninitialised results."""
        for prepare in before_fake:
            prepare(self)
        revision.sign_traced_call(self.overload)
        checked, sizes = self._checked(arguments)
        input = checked[0]
        channels_last = (
            checked[-1]
            if self.is_told_layout
            else operands.is_channels_last(checked[self.layout_of])
        )
        memory_format = operands.named_memory_format(channels_last, len(sizes) - 2)
        dtypes = (input.dtype,) if self.dtypes is None else self.dtypes(*checked)
        results = tuple(operands.empty(sizes, input, memory_format, dtype) for dtype in dtypes)
        return results if len(results) > 1 else results[0]

    def _autograd_kernel(self, *arguments: Any, **_: str) -> Any:
        """The kernel of the key ``Autograd``, and of all keys of a composite operator: it applies
        the derivative if one is wanted, and else calls what lies below.
        """
        revision.sign_traced_call(self.overload)
        tensors = []
        for at in self.tensor_places:  # A comprehension is one more function to call.
            if arguments[at] is not None:
                tensors.append(arguments[at])
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                self._checked(arguments)
        if self.reject is not None:
            self.reject(*arguments)
        skips_dispatcher = may_skip_dispatcher(*tensors)
        is_recorded = self.is_composite or records_gradient(*tensors)
        if not skips_dispatcher and not is_recorded:
            is_recorded = forward_ad._current_level >= 0 or _are_functorch_transforms_active()
            # A graph being traced may have entered forward mode below Python's own count of levels.
            is_recorded = is_recorded or any(carries_derivative(tensor) for tensor in tensors)
        if is_recorded:
            return self.differentiated(False, self._checked(arguments)[0])
        if skips_dispatcher:  # Inductor's code: the dispatcher is not needed again
            return self._result(arguments)
        with below_autograd():
            return self.dispatched(*arguments)

    def _mapped(self, info: Any, dimensions: Any, *arguments: Any, **_: str) -> tuple[Any, Any]:
        """The vmap rule that is registered."""
        return (self.vmap or self.over_batches)(info, dimensions, *arguments)

    def over_batches(self, info: Any, dimensions: Any, *arguments: Any) -> tuple[Any, Any]:
        """The vmap rule that merges the mapped dimension into the samples: the results, and each
        one's mapped dimension.
        """
        size, folded = info.batch_size, []
        for tensor, dimension in zip(arguments[: self.count], dimensions, strict=False):
            batched = (
                tensor.expand(size, *tensor.shape)
                if dimension is None
                else tensor.movedim(dimension, 0)
            )
            folded.append(batched.flatten(0, 1))
        results = self.dispatched(*folded, *arguments[self.count :])
        if isinstance(results, Tensor):
            return results.unflatten(0, (size, results.shape[0] // size)), 0
        return tuple(each.unflatten(0, (size, each.shape[0] // size)) for each in results), (
            0,
        ) * len(results)


@dataclass(eq=False, kw_only=True)
class Composite(Operator):
    """An operator that other operators compute where a derivative is wanted, and without an
    ``entry`` always.
    """

    compose: Callable[..., Any]
    has_derivative = True

    def differentiated(self, _: bool, arguments: tuple[Any, ...]) -> Any:
        results = self.compose(*arguments)
        # What PyTorch's operators return may follow the layout of a mask.
        return operands.laid_out_like(results, arguments[0]) if self.is_composite else results


@dataclass(eq=False, kw_only=True)
class Linear(Operator):
    """An operator that is linear in its first tensor, given the others."""

    # the adjoint, and its arguments after the tensors
    adjoint: Callable[..., tuple[Operator, tuple[Any, ...]]]
    # the field of a backend's table that returns a ``Recorded``
    recorded: Any = None
    has_derivative = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.apply = derivative(self.name.removesuffix("_with_taps"))

    def differentiated(self, skips_dispatcher: bool, arguments: tuple[Any, ...]) -> Any:
        return self.applied(skips_dispatcher, arguments, self.recorded)

    def applied(
        self,
        skips_dispatcher: bool,
        arguments: tuple[Any, ...],
        recorded: Any,
        returns_values_only: bool = False,
    ) -> Any:
        """The results of the autograd function: by ``recorded`` if the backend has that."""
        input, remaining = arguments[0], arguments[1:]
        if skips_dispatcher and recorded is not None:
            compute = recorded.__get__(serving(input))
            if compute is not None:
                compute = self.profiled(compute) if profiler._is_profiler_enabled else compute
                return self.apply(input, (compute, remaining, self))
        call = self._record, (skips_dispatcher, returns_values_only, remaining), None
        if skips_dispatcher:
            return self.apply(input, call)
        with enable_single_level_autograd_function():
            return self.apply(with_ordinary_tangent(input), call)

    def _record(
        self, input: Tensor, skips_dispatcher: bool, returns_values_only: bool, remaining: Any
    ) -> Recording:
        """The results inside the autograd function, where autograd has switched itself off. Their
        derivatives are operators.
        """
        to_save, further = remaining[: self.count - 1], remaining[self.count - 1 :]
        if skips_dispatcher or may_skip_dispatcher(input, *to_save):
            output = self.implementation(input)(input, *remaining)
        else:
            with below_autograd():
                output = self(input, *remaining)
        if type(output) is tuple:
            to_save = output[1:]
            output = output[0] if returns_values_only else output
        adjoint, back = self.adjoint(input, *to_save, *further)
        shards = None if skips_dispatcher else shards_of(input)

        def gradient(arriving: Tensor, *saved: Tensor) -> Any:
            return adjoint(as_sharded(arriving, shards), *saved, *back)

        def tangent(direction: Tensor, *saved: Tensor) -> Any:
            return self.jvp(direction, saved, further)

        return recording(output, to_save, gradient, None if skips_dispatcher else tangent)

    def jvp(self, direction: Tensor, saved: tuple[Tensor, ...], remaining: tuple[Any, ...]) -> Any:
        """The Jacobian-vector product: the tangent of the first result."""
        return self(direction, *saved, *remaining)


@dataclass(eq=False, kw_only=True)
class Winners(Linear):
    """An operator that returns elements of its input and their numbers. It is linear given these,
    and ``adjoint`` takes them as a tensor.
    """

    # the linear operator that gathers elements by their numbers, and its arguments after them
    gather: Callable[..., tuple[Operator, tuple[Any, ...]]]

    def jvp(self, direction: Tensor, saved: tuple[Tensor, ...], remaining: tuple[Any, ...]) -> Any:
        gather, further = self.gather(*remaining)
        return gather(direction, *saved, *further)


@dataclass(eq=False, kw_only=True)
class Values(Operator):
    """An operator that returns elements of its input without their numbers. Where a derivative is
    wanted, ``winners`` returns their numbers too.
    """

    winners: Winners
    # the field of a backend's table that returns a ``Recorded``
    recorded: Any = None
    has_derivative = True

    def differentiated(self, skips_dispatcher: bool, arguments: tuple[Any, ...]) -> Any:
        return self.winners.applied(skips_dispatcher, arguments, self.recorded, True)


def serving(tensor: Tensor) -> Backend:
    """The backend for the device of ``tensor``."""
    # Asking for the device's name takes longer.
    return backends.serving("cpu" if tensor.is_cpu else tensor.device.type)


def call(overload: OpOverload, *arguments: Any) -> Any:
    """Call a registered operator. Where a graph for torch.compile is traced, the call gets the
    revision as well: a digest of this package's sources.
    """
    # Dynamo's graph gets its revision where the fake implementation runs.
    if is_dynamo_compiling():
        return overload(*arguments)
    return overload(*arguments, **revision.arguments())


@contextlib.contextmanager
def below_autograd() -> Iterator[None]:
    """Inside, operators run without recording this level's gradient; outer levels still record
    theirs.
    """
    with _AutoDispatchBelowAutograd(), torch.enable_grad(), _set_fwd_grad_enabled(True):
        yield
