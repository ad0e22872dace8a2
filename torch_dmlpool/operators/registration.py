"""How an operator of this package is registered with PyTorch: schema, check, fake tensors, vmap,
autograd function and what computes it.

The dispatcher calls an operator from compiled graphs and under transforms, modes and subclasses.
Pools of plain tensors are prepared calls (``calls``). An operator that is called with plain tensors
calls the backend, as operators on rows do. The key ``Autograd`` applies the operator's autograd
function at a single level, as ATen's generated code does. There ``forward`` calls the operator
again below autograd with the gradient modes switched on, so that the outer levels of ``torch.func``
still see it. ``backward`` and ``jvp`` call operators: every higher order comes free.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from torch_dmlpool import backends, integrations
from torch_dmlpool._private import (
    OpOverload,
    _are_functorch_transforms_active,
    _AutoDispatchBelowAutograd,
    _set_fwd_grad_enabled,
    applied_at_a_single_level,
    enable_single_level_autograd_function,
    forward_ad,
    is_exporting,
)
from torch_dmlpool.backends import reference
from torch_dmlpool.backends.interface import Backend, Function
from torch_dmlpool.operators import revision
from torch_dmlpool.operators.derivatives import (
    carries_derivative,
    records_gradient,
    with_ordinary_tangent,
)
from torch_dmlpool.operators.dispatching import is_plain, may_skip_dispatcher
from torch_dmlpool.registry import OPERATORS, WINDOW_SCHEMA
from torch_dmlpool.tensors import (
    Types,
    changed,
    check_memory,
    check_pooled,
    empty,
    is_channels_last,
    laid_out_like,
    shards_of,
)
from torch_dmlpool.window import Arguments, Window

_library = torch.library.Library("dmlpool", "FRAGMENT")


@dataclass(eq=False)
class Operator:
    """A registered operator.

    Python code and the callables below pass one :class:`Window` where the schema has ``WINDOW``.
    Tensors come first. A gradient is wanted with respect to the first alone.
    """

    schema: str  # WINDOW in it stands for the six window arguments
    _: KW_ONLY
    # rejects arguments that do not fit, and returns the sizes of the results, which are not used
    # of a composite
    output_sizes: Function
    # the data types that the first tensors may have; none for an operator on rows, which has only
    # ``output_sizes`` to check them
    types: Sequence[Types] = ()
    # the function of a backend that computes it; None if ``compose`` always does
    kernel_of: Callable[[Backend], Function] | None = None
    # the autograd function: it takes the first tensor, a Below or the Call of a prepared pool,
    # and the other tensors
    function: type[torch.autograd.Function] | None = None
    # computes the results by other operators where a derivative is wanted
    compose: Function | None = None
    # turns a call's arguments into those of ``output_sizes`` and the backend, such as scales into
    # vectors
    complete: Function | None = None
    # the data type of each result; None for one result with the first tensor's data type
    dtypes: Function | None = None
    # the number of the tensor whose memory format results have, unless the schema ends in
    # channels_last
    layout_of: int = 0
    # the vmap rule
    vmap: Function | None = None
    # raises an error where a derivative is wanted and the operator has none
    reject: Function | None = None

    def __post_init__(self) -> None:
        self.name = self.schema.split("(", 1)[0]
        if self.types:  # Operators on rows are never in an exported program.
            OPERATORS[self.name] = self
        # flexible_layout lets Inductor pass tensors in any layout: the layout of the results
        # follows from it.
        tags = torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout
        arguments, results = self.schema.replace("WINDOW", WINDOW_SCHEMA).split(") -> ")
        _library.define(f'{arguments}, *, str revision="") -> {results}', tags=tags)
        self.overload: OpOverload = getattr(torch.ops.dmlpool, self.name).default
        accepted = self.overload._schema.arguments[:-1]  # without the revision
        self.names = names = [argument.name for argument in accepted]
        # Tensors come first, and some may be None.
        self.count = sum("Tensor" in str(argument.type) for argument in accepted)
        self.window_at = names.index("window_size") if "window_size" in names else None
        # A composite has neither a fake nor a vmap rule: the operators that it is made of have.
        self.is_composite = self.kernel_of is None
        self.apply = self.function and applied_at_a_single_level(self.function)
        if self.is_composite:
            for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
                _library.impl(self.name, self._autograd, key)
            return
        _library.impl(self.name, self._compute, "CompositeExplicitAutograd")
        if self.function or self.compose or self.reject:
            _library.impl(self.name, self._autograd, "Autograd")
        torch.library.register_fake(self.overload, self._fake, lib=_library)
        torch.library.register_vmap(self.overload, self._mapped, lib=_library)

    def __call__(self, *arguments: Any) -> Any:
        """The results for arguments that are checked already, with a :class:`Window`.

        Operators that are made of others call them so. Plain tensors go to the backend or to the
        autograd function, and a composite's to the operators that it is made of.
        """
        operands = self._tensors(arguments)
        if is_plain(*operands):
            if self.is_composite:
                return self.composed(arguments)
            if not records_gradient(*operands):
                return self.backend_function(operands[0])(*arguments)
            if self.function is not None:
                return self._applied(arguments)
        at = self.window_at
        if at is not None:
            arguments = (*arguments[:at], *arguments[at].arguments, *arguments[at + 1 :])
        return self.dispatch(arguments)

    def _tensors(self, arguments: Arguments) -> list[Tensor]:
        return [each for each in arguments[: self.count] if each is not None]

    def backend_function(self, tensor: Tensor) -> Function:
        """What computes the operator on the device of ``tensor``."""
        # Asking for the device's name takes longer.
        backend = backends.serving("cpu" if tensor.is_cpu else tensor.device.type)
        return self.kernel_of(backend)  # type: ignore[misc]

    def dispatch(self, arguments: Arguments) -> Any:
        """Call the registered operator; a window is given as its six schema arguments."""
        if type(arguments[0]) is not Tensor and not is_dynamo_compiling():
            results = integrations.taken_apart_for_onnx(self, arguments)
            if results is not NotImplemented:
                return results
        return call(self.overload, arguments)

    def composed(self, arguments: Arguments) -> Any:
        """The results by other operators."""
        results = self.compose(*arguments)  # type: ignore[misc]
        # What PyTorch's operators return may follow the layout of a mask.
        return laid_out_like(results, arguments[0]) if self.is_composite else results

    def decomposed(self, arguments: Arguments) -> Any:
        """``composed`` for arguments as the schema has them: a decomposition."""
        return self.composed(self._checked(arguments)[0])

    def _checked(self, arguments: Arguments) -> tuple[Arguments, Any]:
        """The arguments with a window in place of six lists, and the sizes of the results."""
        for name, tensor, types in zip(self.names, arguments, self.types, strict=False):
            check_pooled(tensor, types, name)
        at = self.window_at
        if at is not None:
            window = _window(arguments[0].dim() - 2, *arguments[at : at + 6])
            arguments = (*arguments[:at], window, *arguments[at + 6 :])
        if self.complete is not None:
            arguments = self.complete(*arguments)
        return arguments, self.output_sizes(*arguments)

    def _compute(self, *arguments: Any, **_: str) -> Any:
        """The implementation below autograd. A call by name may arrive here first."""
        for tensor in self._tensors(arguments):
            check_memory(tensor)
        checked, _sizes = self._checked(arguments)
        return self.backend_function(arguments[0])(*checked)

    def _fake(self, *arguments: Any, **_: str) -> Any:
        """The fake implementation: checks the arguments and returns uninitialised results. It lets
        ``inductor.lowerings`` register, and signs the call of a graph that is traced.
        """
        integrations.prepare_compiler(self)
        revision.sign_traced_call(self.overload)
        checked, sizes = self._checked(arguments)
        input = checked[0]
        channels_last = bool(self.types) and is_channels_last(checked[self.layout_of])
        if self.names[-1] == "channels_last":
            channels_last = checked[-1]
        dtypes = (input.dtype,) if self.dtypes is None else self.dtypes(*checked)
        results = tuple(empty(sizes, input, channels_last, dtype) for dtype in dtypes)
        return results if len(results) > 1 else results[0]

    def _autograd(self, *arguments: Any, **_: str) -> Any:
        """The implementation for autograd, and for all of a composite: it applies the autograd
        function or composes the results where a derivative is wanted, and else calls what lies
        below.
        """
        revision.sign_traced_call(self.overload)
        operands = self._tensors(arguments)
        for tensor in operands:
            if tensor.layout is not torch.strided:
                self._checked(arguments)
        if self.reject is not None:
            self.reject(*arguments)
        may_skip = may_skip_dispatcher(*operands)
        is_wanted = self.is_composite or records_gradient(*operands)
        if not is_wanted and not may_skip:
            is_wanted = forward_ad._current_level >= 0 or _are_functorch_transforms_active()
            # A graph being traced may have entered forward mode below Python's own count of levels.
            is_wanted = is_wanted or any(carries_derivative(tensor) for tensor in operands)
        if self.compose is not None and is_wanted:
            return self.decomposed(arguments)
        if self.function is not None and is_wanted:
            checked, _sizes = self._checked(arguments)
            return self._applied(checked)
        if may_skip:  # Inductor's code: the dispatcher is not needed again
            return self._compute(*arguments)
        with below_autograd():
            return self.dispatch(arguments)

    def _applied(self, arguments: Arguments) -> Any:
        """The results of the autograd function. Its call gets the arguments after the tensors."""
        input, tensors, rest = arguments[0], arguments[1 : self.count], arguments[self.count :]
        with enable_single_level_autograd_function():
            return self.apply(with_ordinary_tangent(input), Below(self, input, rest), *tensors)  # type: ignore[misc]

    def _mapped(self, info: Any, dimensions: Any, *arguments: Any, **_: str) -> Any:
        """The vmap rule that is registered."""
        return (self.vmap or over_batches)(self, info, dimensions, arguments)


def of_rows(operator: Operator, *operands: Any) -> Any:
    """The results of an operator on rows for a public function, with the checks of its results."""
    operator.output_sizes(*operands)
    if is_exporting() or shards_of(operands[0]) is not None:
        # Programs are exported in operators of PyTorch alone, which also know DTensors.
        return operator.kernel_of(reference.BACKEND)(*operands)  # type: ignore[misc]
    return operator(*operands)


def over_batches(operator: Operator, info: Any, dimensions: Any, arguments: Arguments) -> Any:
    """The vmap rule that merges the mapped dimension into the samples: the results, and each one's
    mapped dimension.
    """
    size, count = info.batch_size, operator.count
    folded = [
        None
        if tensor is None
        else (tensor.expand(size, *tensor.shape) if at is None else tensor.movedim(at, 0)).flatten(
            0, 1
        )
        for tensor, at in zip(arguments[:count], dimensions, strict=False)
    ]
    results = operator.dispatch((*folded, *arguments[count:]))
    unfold = lambda each: each.unflatten(0, (size, each.shape[0] // size))  # noqa: E731
    return changed(results, unfold), 0 if isinstance(results, Tensor) else (0, 0)


def one_by_one(operator: Operator, info: Any, dimensions: Any, arguments: Arguments) -> Any:
    """The vmap rule of an operator whose samples are not alike: it is called for each example."""
    pairs = list(zip(arguments, dimensions, strict=True))
    results = [
        operator.dispatch(
            tuple(each.select(at, i) if type(at) is int else each for each, at in pairs)
        )
        for i in range(info.batch_size)
    ]
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    return tuple(map(torch.stack, zip(*results, strict=True))), (0, 0)


def _window(rank: int, *arguments: Any) -> Window:
    """The Window of the schema's six arguments. Compiled graphs ask for it in every call."""
    *lists, ceil_mode = arguments
    try:
        return _known_window(rank, *map(tuple, lists), ceil_mode)
    except (TypeError, ValueError):  # symbolic ints are no keys, and errors show the lists
        return Window.directml(rank, *arguments)


_known_window = functools.lru_cache(2048)(Window.directml)


class Below:
    """A call of an operator for its autograd function, in which the operator runs below autograd:
    ``calls.Call`` is the same for plain tensors.
    """

    is_planned = False

    def __init__(self, operator: Operator, input: Tensor, arguments: Arguments) -> None:
        self.operator, self.arguments, self.shape = operator, arguments, input.shape
        self.channels_last = is_channels_last(input)
        self.shards = shards_of(input)

    def run(self, *tensors: Tensor) -> Any:
        """The operator's results."""
        if may_skip_dispatcher(*self.operator._tensors(tensors)):
            return self.operator.backend_function(tensors[0])(*tensors, *self.arguments)
        with below_autograd():
            return self.operator(*tensors, *self.arguments)

    run_with_taps = run  # of max_pooling_with_taps, whose results have the taps

    def sharded(self, arriving: Tensor) -> Tensor:
        """What arrives at the results, sharded as the input is: a replicated one is cut without
        communication. Where the input is not sharded it stays as it is, which may be sharded or a
        sum over ranks that is still to be made.
        """
        if self.shards is None:
            return arriving
        placements = zip(self.shards, arriving.placements, strict=True)  # type: ignore[attr-defined]
        wanted = [old if old.is_shard() else new for old, new in placements]
        return arriving.redistribute(placements=wanted)  # type: ignore[attr-defined]


def call(overload: OpOverload, arguments: Arguments) -> Any:
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
