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
from typing import Any

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
    single_level_function,
)
from torch_dmlpool.backends.interface import Backend
from torch_dmlpool.ops import revision
from torch_dmlpool.ops.dispatching import is_readable as is_readable
from torch_dmlpool.ops.dispatching import may_skip_dispatcher as may_skip_dispatcher
from torch_dmlpool.ops.tangents import beside as beside
from torch_dmlpool.ops.tangents import (
    carries_derivative,
    records_gradient,
    shards_of,
    with_ordinary_tangent,
)
from torch_dmlpool.ops.tangents import may_be_differentiated as may_be_differentiated
from torch_dmlpool.window import Window

NAMESPACE = "dmlpool"
# A seventh argument would change Window.arguments, sharding.WINDOW_ARGUMENTS and each slice of
# six window arguments in the package.
WINDOW_SCHEMA = (
    "SymInt[] window_size, SymInt[] strides, SymInt[] start_padding, SymInt[] end_padding, "
    "SymInt[] dilations, "
    "bool ceil_mode"
)
_library = outliving(torch.library.Library(NAMESPACE, "FRAGMENT"), "library")
before_fake: list[Callable[["Operator"], None]] = outliving([], "before_fake")
"""Functions of integrations that are called before an operator meets fake tensors: they give a
compiler or an exporter what it needs, or raise an error."""
in_place: list[Callable[["Operator"], Callable[..., Any] | None]] = outliving([], "in_place")
"""Functions of integrations that may return what computes an operator where a program is
exported."""
OPERATORS: dict[str, "Operator"] = outliving({}, "operators")
"""All registered operators by their names."""


@dataclass(eq=False)
class Operator:
    """A registered operator, and the function that Python code calls: straight to the backend where
    that is enough.

    Python code and the callables below pass one :class:`Window` where the schema has ``WINDOW``.
    Tensors come first.
    """

    schema: str  # WINDOW in it stands for the six window arguments
    types: Sequence[tuple[torch.dtype, ...]]  # the data types that each tensor may have
    # rejects arguments that do not fit, and returns the sizes of the results
    check: Callable[..., Any]
    # the field of a backend's table that computes it; a composite may name one for its own use
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
    # For an operator that is linear in its first tensor: the adjoint, and its arguments after the
    # tensors.
    adjoint: Callable[..., tuple["Operator", tuple[Any, ...]]] | None = None
    # For an operator that returns elements of its input and their numbers: the linear operator that
    # gathers by such numbers, and its arguments after the tensors.
    tangent: Callable[..., tuple["Operator", tuple[Any, ...]]] | None = None
    # the field of a backend's table that returns a ``Recorded``
    recorded: Any = None
    # For an operator that returns elements alone: the operator that returns their numbers too. It
    # is called in its place where a gradient is recorded.
    recorded_by: "Operator | None" = None
    # computes the results by other operators, where a derivative is wanted
    differentiable: Callable[..., Any] | None = None
    # whether ``differentiable`` computes it always: then it has no fake and no vmap rule of its own
    is_composite: bool = False
    # raises an error where a derivative is wanted and the operator has none
    reject: Callable[..., None] | None = None

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
        given = self.overload._schema.arguments[:-1]  # without the revision
        names = [argument.name for argument in given]
        # Where the schema has tensors, those that may be None among them. The first ``count`` are
        # pooled or hold numbers of winners, and ``tensors`` has their names.
        self.tensor_places = [at for at, each in enumerate(given) if "Tensor" in str(each.type)]
        self.is_told_layout = names[-1] == "channels_last"
        self.count, self.tensors = len(self.types), names[: len(self.types)]
        self.window_at = names.index("window_size") if "window_size" in names else None
        # The operator whose autograd function records a gradient of this one.
        self.recorder = (
            self if self.adjoint is not None or self.tangent is not None else self.recorded_by
        )
        # The entry that plans the gradient together with the pool, or None. It returns no winners,
        # which whoever calls the recorder of maxima itself wants too.
        knows = self.recorder is not None and (self.recorder is not self or self.tangent is None)
        self.known = self.recorder.recorded if knows and self.recorder is not None else None
        self.has_derivative = self.recorder is not None or self.differentiable is not None
        if is_new:
            self._register()
        if self.recorder is self:
            title = "".join(
                part.capitalize() for part in self.name.removesuffix("_with_taps").split("_")
            )
            self.apply = single_level_function(title, Derivative).apply
            self.apply_known = single_level_function(title, KnownDerivative).apply

    def _register(self) -> None:
        """Give PyTorch the operator's implementations."""
        if self.is_composite:
            for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
                _library.impl(self.name, self._recorded, key)
            return
        _library.impl(self.name, self._computed, "CompositeExplicitAutograd")
        if self.has_derivative or self.reject is not None:
            _library.impl(self.name, self._recorded, "Autograd")
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
            return self._differentiated(True, arguments)
        # ``implementation`` is written out here, as one more Python function takes 0.1 us.
        input = arguments[0]
        backend = backends.serving("cpu" if input.is_cpu else input.device.type)
        if self.has_derivative and is_grad_enabled():
            for tensor in tensors:
                if tensor.requires_grad:
                    recorder = self.recorder
                    compute = None if self.known is None else self.known.__get__(backend)
                    if recorder is None or compute is None:
                        return self._differentiated(True, arguments)
                    if profiler._is_profiler_enabled:
                        compute = recorder._shown(compute)
                    return recorder.apply_known(input, (compute, recorder, arguments[1:]))
        function = self.entry.__get__(backend)
        if profiler._is_profiler_enabled:
            function = self._shown(function)
        return function(*arguments)

    def implementation(self, tensor: Tensor) -> Any:
        """The function that computes the operator on the device of ``tensor``."""
        # Asking for the device's name takes four times as long.
        backend = backends.serving("cpu" if tensor.is_cpu else tensor.device.type)
        function = self.entry.__get__(backend)
        return self._shown(function) if profiler._is_profiler_enabled else function

    def _shown(self, function: Any) -> Any:
        """``function``, recorded by a running profiler, which would not see a call that skips the
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
            for replacement in in_place:
                compute = replacement(self)
                if compute is not None:
                    return compute(*arguments)
        return call(self.overload, *arguments)

    def _differentiated(self, skips_dispatcher: bool, arguments: tuple[Any, ...]) -> Any:
        """The results by the autograd function of the recorder, or by ``differentiable`` where
        there is no recorder.
        """
        recorder = self.recorder
        if recorder is None:
            assert self.differentiable is not None
            results = self.differentiable(*arguments)
            # What PyTorch's operators return may follow the layout of a mask.
            return operands.laid_out_like(results, arguments[0]) if self.is_composite else results
        input = arguments[0] if skips_dispatcher else with_ordinary_tangent(arguments[0])
        arguments = (input, recorder, skips_dispatcher, recorder is not self, *arguments[1:])
        if skips_dispatcher:
            return recorder.apply(*arguments)
        with enable_single_level_autograd_function():
            return recorder.apply(*arguments)

    def composed(self, *arguments: Any, **_: str) -> Any:
        """The results by the other operators that this one is made of."""
        return self._differentiated(False, self._checked(arguments)[0])

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
        made = tuple(operands.empty(sizes, input, memory_format, dtype) for dtype in dtypes)
        return made if len(made) > 1 else made[0]

    def _recorded(self, *arguments: Any, **_: str) -> Any:
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
            return self._differentiated(False, self._checked(arguments)[0])
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


def call(overload: OpOverload, *arguments: Any) -> Any:
    """Call a registered operator. Where a graph for torch.compile is traced, the call gets the
    revision as well: a digest of this package's sources.
    """
    # Dynamo's graph gets its revision where the fake implementation runs.
    if is_dynamo_compiling():
        return overload(*arguments)
    return overload(*arguments, **revision.arguments())


class Derivative:
    """The methods of each operator's autograd function, whose name the graph's nodes show.

    ``backward`` calls the adjoint operator. ``jvp`` calls the linear operator: that is the operator
    itself or, for maxima, the gather at the winners.
    """

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        operator: Operator,
        skips_dispatcher: bool,
        returns_values_only: bool,
        *rest: Any,
    ) -> Any:
        # In here autograd has switched itself off.
        if skips_dispatcher or may_skip_dispatcher(input, *rest[: operator.count - 1]):
            output = operator.implementation(input)(input, *rest)
        else:
            with below_autograd():
                output = operator(input, *rest)
        if operator.tangent is None:
            linear, chosen, linear_rest = (
                operator,
                rest[: operator.count - 1],
                rest[operator.count - 1 :],
            )
        else:
            linear, linear_rest = operator.tangent(input, *rest)
            output, *chosen = output
            if not returns_values_only:
                output = output, *chosen
                ctx.mark_non_differentiable(*chosen)
        adjoint, adjoint_rest = linear.adjoint(input, *chosen, *linear_rest)  # type: ignore[misc]
        if chosen:
            save(ctx, *chosen)
        ctx.set_materialize_grads(False)
        shards = None if skips_dispatcher else shards_of(input)
        ctx.backwards = adjoint, bool(chosen), adjoint_rest, shards, (None,) * (3 + len(rest))
        if not skips_dispatcher:
            ctx.save_for_forward(*chosen)
            ctx.forwards = linear, linear_rest, type(output) is tuple
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        adjoint, has_choice, rest, shards, nothing = ctx.backwards
        if gradient is not None:
            if shards is not None:
                # The gradient is sharded as the input is: a replicated one is cut without
                # communication. Where the input is not sharded it stays as it is, which may be
                # sharded or a sum over ranks that is still to be made.
                placements = zip(shards, gradient.placements, strict=True)  # type: ignore[attr-defined]
                wanted = [old if old.is_shard() else new for old, new in placements]
                gradient = gradient.redistribute(placements=wanted)  # type: ignore[attr-defined]
            # Asking for saved tensors takes half a microsecond even if there are none.
            chosen = saved(ctx) if has_choice else ()
            gradient = adjoint(gradient, *chosen, *rest)
        return gradient, *nothing

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Any:
        linear, rest, has_choice = ctx.forwards
        result = linear(tangent, *ctx.saved_tensors, *rest)
        return (result, None) if has_choice else result


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def save(ctx: Any, *tensors: Tensor) -> None:
    """Save ``tensors`` for the gradient, and of what shape, data type and device they are."""
    ctx.save_for_backward(*tensors)
    ctx.kinds = [_kind(tensor) for tensor in tensors]


def saved(ctx: Any) -> tuple[Tensor, ...]:
    """The tensors that :func:`save` saved. A hook may return others in their place, which are
    rejected unless they are of the same kind, as kernels do not check what they read.
    """
    tensors: tuple[Tensor, ...] = ctx.saved_tensors
    if not may_skip_dispatcher():
        return tensors
    for tensor, kind in zip(tensors, ctx.kinds, strict=True):
        if _kind(tensor) != kind and may_skip_dispatcher(tensor):
            raise RuntimeError(
                "a tensor that was saved for the gradient came back with another shape, data type "
                f"or device: {_kind(tensor)} in place of {kind}"
            )
    return tensors


class KnownDerivative:
    """The same for one ordinary tensor, if the backend returns a ``Recorded``.

    ``backward`` calls the backend. Where that returns None, it calls the adjoint operator.
    """

    @staticmethod
    def forward(ctx: Any, input: Tensor, request: tuple[Any, ...]) -> Tensor:
        compute, operator, rest = request
        output, choice, known = compute(input, *rest)
        if choice is not None:
            ctx.save_for_backward(choice)
        ctx.set_materialize_grads(False)
        ctx.recorded = known, operator, rest
        return output

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None) -> tuple[Tensor | None, None]:
        if arriving is None:
            return None, None
        known, operator, rest = ctx.recorded
        # to ask for saved tensors takes half a microsecond where there are none too
        chosen = ctx.saved_tensors if operator.tangent is not None else ()
        is_alone = not is_grad_enabled() and not profiler._is_profiler_enabled
        if is_alone and may_skip_dispatcher(arriving, *chosen):
            gradient = known.gradient(arriving, chosen[0] if chosen else None)
            if gradient is not None:
                return gradient, None
        # Operators ask an input for no more than its sizes and layout.
        linear = operator
        if chosen:
            linear, rest = operator.tangent(known.like, *rest)
        adjoint, rest = linear.adjoint(known.like, *chosen, *rest)
        return adjoint(arriving, *chosen, *rest), None


@contextlib.contextmanager
def below_autograd() -> Iterator[None]:
    """Inside, operators run without recording this level's gradient; outer levels still record
    theirs.
    """
    with _AutoDispatchBelowAutograd(), torch.enable_grad(), _set_fwd_grad_enabled(True):
        yield
