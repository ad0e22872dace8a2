"""Conversion of models to this package's pooling: layers change their class in place."""

import contextlib
import copy
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NoReturn, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch.nn import Module
from torch.nn.modules import pooling

from torch_dmlpool import tensors, timing
from torch_dmlpool.nn import bases, layers, measuring, observed
from torch_dmlpool.nn.measuring import LayerTimes
from torch_dmlpool.nn.rerouting import ROUTES
from torch_dmlpool.operators import missing_kernels
from torch_dmlpool.window import ArgumentError, Named, Window, check_flag, plain

# All names that each module has.
NamedModules: TypeAlias = dict[Module, list[str]]
# A layer's class, and attributes that are set.
Form: TypeAlias = tuple[type[Module], Named]
_COUNTERPARTS: dict[tuple[str, str], Form] = {
    **{(pooling.__name__, name): (getattr(layers, name), {}) for name in layers.__all__},
    # Both pad by themselves before they pool without padding: timm's average counts it, whatever
    # its attribute says.
    ("timm.layers.pool2d_same", "AvgPool2dSame"): (
        layers.AvgPool2d,
        {"padding": "same", "count_include_pad": True},
    ),
    # Its constructor keeps ceil_mode as return_indices, which its forward never reads.
    ("timm.layers.pool2d_same", "MaxPool2dSame"): (
        layers.MaxPool2d,
        {"padding": "same", "return_indices": False},
    ),
}
"""What replaces a class, which is known by its module and name as it need not be imported: our
class, and the attributes that make it behave in the same way."""


@dataclass(frozen=True)
class Conversion:
    """What :func:`convert` did to a model; ``print`` shows it, and :meth:`revert` takes it back.

    ``replaced`` and ``left`` are dicts by the names of layers: the class that a replaced layer had,
    and why a pooling layer was left. ``effects`` says what each replacement gains, ``times`` how
    long each layer's calls took, ``functions`` which pooling functions the model's code calls,
    ``missing`` why a model on a CPU has no compiled kernels to use, ``busy`` that the machine was
    too busy to measure well, and ``unmeasured`` why nothing could be measured.
    """

    model: Module
    replaced: dict[str, str]
    """The class that each replaced layer had, by every name that its parents have for it; the
    root's name is ''."""
    left: dict[str, str]
    """Why each other pooling layer stayed what it was."""
    effects: dict[str, str]
    """What the conversion of each replaced layer gains."""
    times: dict[str, LayerTimes] = field(default_factory=dict)
    """Seconds of each layer's calls, here and in torch.nn, where ``example_inputs`` were given."""
    functions: list[str] = field(default_factory=list)
    """Pooling functions that the model's own code calls, which :func:`rerouted` replaces."""
    missing: str | None = None
    """Why plain PyTorch pools a model that is on the CPU. None if compiled kernels pool it, or if
    the model is on another device."""
    busy: str | None = None
    """How busy the machine was when the calls were measured. None if it was not, or if nothing was
    measured."""
    unmeasured: str | None = None
    """Why calls could not be measured although ``example_inputs`` were given."""
    _before: list[tuple[Module, type[Module], type[Module], Named]] = field(
        default_factory=list, repr=False
    )
    """Layers with the class that each got, and the class and the attributes that it had."""

    def _replace(
        self, layer: Module, names: list[str], kind: type[Module], attributes: Named
    ) -> None:
        """Give a layer another class and these attributes, until :meth:`revert`."""
        self.replaced.update(dict.fromkeys(names, type(layer).__name__))
        before = {name: vars(layer).get(name, _ABSENT) for name in attributes}
        self._before.append((layer, kind, type(layer), before))
        _become(layer, kind, attributes)

    def revert(self) -> Module:
        """Turn each replaced layer back into what it was, and return the model.

        What was done to the layers since stays: hooks, training mode, changed attributes. A layer
        that has got another class since is left alone.
        """
        for layer, kind, before, attributes in self._before:
            if type(layer) is kind:
                _become(layer, before, attributes)
        self._before.clear()
        return self.model

    def __call__(self, *_inputs: Any, **_named: Any) -> NoReturn:
        """Say where the model is: ``model = convert(model)`` is a report."""
        raise TypeError(
            "convert changed the model in place, and returned a report: call report.model"
        )

    def __str__(self) -> str:
        lines = [f"replaced {len(self.replaced)}, left {len(self.left)}"]
        width = max((len(name or "(root)") for name in (*self.replaced, *self.left)), default=0)
        replaced = {name: f"{kind}: {self.effects[name]}" for name, kind in self.replaced.items()}
        for heading, entries in (("replaced", replaced), ("left", self.left)):
            for name, text in entries.items():
                timed = f"; {self.times[name]}" if name in self.times else ""
                lines.append(f"  {heading:8}  {name or '(root)':{width}}  {text}{timed}")
        missing = self.missing if self.replaced else None
        for text, why in (
            ("plain PyTorch pools here, several times slower", missing),
            ("the machine was busy, so that times say little", self.busy),
            ("no times were measured", self.unmeasured),
        ):
            if why is not None:
                lines.append(f"  {text}: {why}")
        if self.functions:
            calls = ", ".join(self.functions)
            lines.append(
                f"  its code calls {calls}: run it inside torch_dmlpool.nn.rerouted() to replace "
                "calls"
            )
        return "\n".join(lines)


def convert(
    model: Module,
    *,
    inplace: bool = True,
    example_inputs: tuple[Any, ...] | Mapping[str, Any] | None = None,
    training: bool = False,
    subclasses: bool = False,
) -> Conversion:
    """Replace the pooling layers of ``model``, and ``model`` itself if it is one, by this
    package's.

    The class of each layer is changed in place: arguments, hooks, training mode, names and parents
    stay what they were. A ``state_dict`` from before loads after and the other way round.

    Args:
        model: Any module. Layers that it keeps out of PyTorch's sight, in plain lists, are left, as
            are calls of functions: :func:`~torch_dmlpool.nn.rerouted` replaces both.
        inplace: Whether to change the model itself rather than a deep copy of it.
        example_inputs: A tuple of arguments for the model. With it the model runs once, and each
            pooling layer's calls are measured on its device, here and in torch.nn, in turn. Layers
            that would be more than 2 % slower stay torch.nn's. The report shows both times. Meta
            and fake tensors have no values to measure: the report says so.
        training: Whether to measure forward and backward passes, not forward passes alone.
        subclasses: Whether to replace subclasses of torch.nn's layers too that have no ``forward``
            of their own. What else they define is lost.

    Returns:
        A :class:`Conversion`: the model, what was replaced, and what was left and why. Left are
        subclasses of torch.nn's layers (except timm's "same" ones) unless ``subclasses`` is True,
        layers whose ``forward`` was overridden, arguments that this package rejects or understands
        differently, and kinds of pooling that it lacks. Its ``revert()`` puts everything back.

    Raises:
        TypeError: A wrong ``model``, ``example_inputs`` neither tuple nor dict, or a flag no bool.
        ValueError: ``training`` without ``example_inputs``.

    Maxima and their indices do not change. Averages, norms and sums of gradients can differ in the
    last digits. docs/conversion.md lists the rest: NaN, autocast, integers, quantized tensors.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> pools = torch.nn.MaxPool2d(2), torch.nn.FractionalMaxPool2d(2, 5)
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), *pools)
        >>> print(dmlpool.nn.convert(model))
        replaced 1, left 1
          replaced  1  MaxPool2d: training keeps 1 byte per output, not 8, and no input for itself
          left      2  torch_dmlpool.nn has no FractionalMaxPool2d
    """
    _check_model(model)
    for name, flag in (("inplace", inplace), ("training", training), ("subclasses", subclasses)):
        check_flag(name, flag)
    _check_examples(example_inputs, training)
    model = model if inplace else copy.deepcopy(model)
    named = _named(model)
    chosen, left = _chosen(named, subclasses)
    times: dict[Module, LayerTimes] = {}
    busy = unmeasured = None
    if example_inputs is not None:
        load = timing.load()
        counterparts = {layer: counterpart.of(layer) for layer, counterpart in chosen.items()}
        times, unmeasured = measuring.measured(model, counterparts, example_inputs, training)
        busy = load if unmeasured is None else None
    # The model's first tensor says which device it is on.
    tensor = next(itertools.chain(model.parameters(), model.buffers()), None)
    missing = missing_kernels("cpu" if tensor is None else tensor.device.type)
    report = Conversion(
        model, {}, left, {}, {}, _functions_called(named), missing, busy, unmeasured
    )
    for module, counterpart in chosen.items():
        names = named[module]
        if module in times:
            report.times.update(dict.fromkeys(names, times[module]))
            if times[module].is_slower:
                left.update(dict.fromkeys(names, "it would be slower"))
                continue
        report.effects.update(dict.fromkeys(names, counterpart.effect))
        report._replace(module, names, counterpart.kind, counterpart.attributes)
        if "padding" in counterpart.attributes:
            _BEFORE[module] = report._before[-1][2:]
    return report


def _chosen(
    named: NamedModules, subclasses: bool
) -> tuple[dict[Module, "_Counterpart"], dict[str, str]]:
    """The layers of a model to replace, and by name why others are left."""
    chosen = {}
    left = {}
    for modules, is_hidden in ((_hidden(named), True), (named, False)):
        for module, names in modules.items():
            found = _counterpart_of(module, subclasses)
            if isinstance(found, _Counterpart) and not is_hidden:
                chosen[module] = found
            elif found is not None:
                left.update(dict.fromkeys(names, found if isinstance(found, str) else _IN_A_LIST))
    return chosen, left


@contextlib.contextmanager
def reverted(model: Module) -> Iterator[Conversion]:
    """Put torch.nn's layers in place of this package's inside a ``with`` block, for tools that look
    up the class of a layer.

    It holds for converted layers and for those that were written as ``torch_dmlpool.nn...``. Each
    stays the object that it is, with its hooks, names and training mode, and gets its class again
    at the end of the block, after an exception too. What ``with ... as report`` gives has
    ``report.replaced``, and in ``report.left`` the layers that stay because torch.nn has no layer
    with the same meaning.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> model = torch.nn.Sequential(dmlpool.nn.MaxPool2d(2), dmlpool.nn.MinPool2d(2))
        >>> with dmlpool.nn.reverted(model) as report:
        ...     type(model[0]), report.left
        (<class 'torch.nn.modules.pooling.MaxPool2d'>, {'1': 'torch.nn has no MinPool2d'})
        >>> type(model[0])
        <class 'torch_dmlpool.nn.MaxPool2d'>
    """
    _check_model(model)
    report = Conversion(model, {}, {}, {})
    try:
        for layer, names in _named(model).items():
            if not isinstance(layer, bases.PoolLayer):
                continue
            original = _original_of(layer)
            if isinstance(original, str):
                report.left.update(dict.fromkeys(names, original))
                continue
            report.effects.update(dict.fromkeys(names, "torch.nn's inside the block"))
            report._replace(layer, names, *original)
        yield report
    finally:
        report.revert()


def _original_of(layer: Any) -> Form | str:
    """The class of torch.nn's, or of the library's that a layer is from, which means the same, and
    the attributes that it needs; else why there is none.
    """
    kind = type(layer)
    if layer in _BEFORE and layer.padding == "same":
        return _BEFORE[layer]
    theirs = getattr(torch.nn, kind.__name__, None)
    if theirs is None or kind is not getattr(layers, kind.__name__, None):
        name = f"{kind.__module__}.{kind.__qualname__}"
        return f"torch.nn has no {name.removeprefix('torch_dmlpool.nn.')}"
    if "forward" in vars(layer):
        return "its forward was overridden"
    same = _agreed(layer)
    if same is None:
        return f"torch.nn's {kind.__name__} means something else by its arguments"
    forms = {"padding", "output_size"} & vars(layer).keys() & same.keys()
    return theirs, {name: same[name] for name in forms}


def _agreed(layer: Any) -> Named | None:
    """The arguments by which torch.nn's layer gives what this package's gives; else None."""
    family = layer._family
    named = {name: getattr(layer, name, None) for name in family.parameters}
    return observed.agreed(family.name, layer._rank, None, named)


def _check_model(model: object) -> None:
    if not isinstance(model, Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def _named(model: Module) -> NamedModules:
    """All modules of a model, each with every name that it has there."""
    named: NamedModules = {}
    for name, module in model.named_modules(remove_duplicate=False):
        named.setdefault(module, []).append(name)
    return named


_IN_A_LIST = (
    "in a list, tuple or dict, where PyTorch sees no layer: use torch.nn.ModuleList or ModuleDict, "
    "or run the model inside torch_dmlpool.nn.rerouted()"
)


def _hidden(named: NamedModules) -> NamedModules:
    """The modules that other modules keep in plain lists, tuples and dicts, and their names."""
    found: NamedModules = {}
    own, seen = vars(Module()), set[int]()

    def walk(name: str, value: Any) -> None:
        if isinstance(value, Module):
            for inner, module in value.named_modules(prefix=name):
                if module not in named:
                    found.setdefault(module, []).append(inner)
        elif isinstance(value, (list, tuple, dict)) and id(value) not in seen:
            seen.add(id(value))
            for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
                walk(f"{name}[{key!r}]", entry)

    for module, (path, *_) in named.items():
        for name, value in vars(module).items():
            if name not in own and not isinstance(value, Module):
                walk(f"{path}.{name}".lstrip("."), value)
    return found


def _check_examples(example_inputs: object, training: bool) -> None:
    if example_inputs is not None and not isinstance(example_inputs, (tuple, Mapping)):
        raise TypeError(
            f"example_inputs must be a tuple such as (x,), got {type(example_inputs).__name__}; a "
            "dict has them by name"
        )
    if training and example_inputs is None:
        raise ArgumentError("training must be False without example_inputs, which are measured")


@dataclass
class _Counterpart:
    """What becomes of a layer: its class, the attributes that change, and what that gains."""

    kind: type[Module]
    attributes: Named
    effect: str

    def of(self, layer: Module) -> Module:
        """A shallow copy of ``layer``, which stays as it is."""
        counterpart = copy.copy(layer)
        _become(counterpart, self.kind, self.attributes)
        return counterpart


_ABSENT = object()
_BEFORE: MutableMapping[Module, Form] = WeakKeyDictionary()
"""The class and the attributes that converted layers had which were not torch.nn's."""


def _become(layer: Module, kind: type[Module], attributes: Named) -> None:
    """Give a layer another class and these attributes."""
    layer.__class__ = kind
    # PyTorch 2.11 looks at a compiled layer's class again only if the layer's attributes have been
    # written to.
    vars(layer).update(attributes, converted=True)
    del vars(layer)["converted"]
    for name, value in attributes.items():
        if value is _ABSENT:
            del vars(layer)[name]


def _functions_called(modules: Iterable[Module]) -> list[str]:
    """The names of pooling functions that the ``forward`` of modules uses; PyTorch's own modules
    are left out.
    """
    names = {function.__name__ for function in ROUTES}
    found = set()
    for module in modules:
        kinds = [base.__module__ for base in type(module).__mro__]
        is_reported = pooling.__name__ in kinds or isinstance(module, torch.jit.ScriptModule)
        code = None if is_reported else getattr(type(module).forward, "__code__", None)
        if code is not None and not kinds[0].startswith("torch.nn."):
            found.update(names.intersection(_names_in(code)))
    return sorted(found)


def _names_in(code: CodeType) -> Iterator[str]:
    """All names that a function's code and the functions inside it look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _effect(layer: Any) -> str:
    """What a converted layer does better than PyTorch's; its results are those of before, as
    :func:`convert` says.
    """
    family = type(layer).__name__[:-2]
    theirs = "per output, not 8, and no input for itself"
    if family == "MaxPool":
        size = tensors.tap_dtype(Window.pytorch(layer._rank, layer.kernel_size).taps).itemsize
        return f"training keeps {size} byte{'s' * (size > 1)} {theirs}"
    if family == "AdaptiveAvgPool" and layer.output_size in (1, (1,) * layer._rank):
        # PyTorch computes a mean, which saves no tensor either.
        return "the same memory as torch.nn"
    return {
        "AdaptiveMaxPool": f"training keeps at most 4 bytes {theirs}",
        "LPPool": "where a norm is 0, its gradient is 0 and not NaN",
        "MaxUnpool": "the same result run after run, on a GPU too",
    }.get(family, "training keeps no input for itself, as torch.nn does")


_DIFFERENCES = {
    "lp_pool": "PyTorch's norms differ with ceil_mode, "
    "and for negative elements unless norm_type is even",
    "max_unpool": "windows that overlap: PyTorch gives the gradient to all elements of one index, "
    "not to the last alone",
}
"""By family why a layer of PyTorch's may mean something else."""


def _counterpart_of(module: Module, subclasses: bool) -> _Counterpart | str | None:
    """What a layer of torch.nn, or one derived from it, becomes, or why it must stay what it is;
    None for other modules. Nothing has changed yet, so that a conversion happens as a whole or not
    at all.
    """
    kind = type(module)
    compiled = getattr(module, "original_name", None)  # a ScriptModule has it
    if isinstance(module, torch.jit.ScriptModule) and compiled in pooling.__all__:
        return f"compiled by TorchScript from {compiled}"
    originals = [base for base in kind.__mro__ if base.__module__ == pooling.__name__]
    if not originals or kind.__module__.startswith("torch_dmlpool."):
        return None
    theirs: Any = originals[0]
    original = theirs.__name__
    counterpart, attributes = _COUNTERPARTS.get((kind.__module__, kind.__qualname__), (None, {}))
    if counterpart is None and kind is not theirs:
        subclass = f"{kind.__qualname__} is a subclass of {original}"
        if kind.forward is not theirs.forward or kind.__call__ is not Module.__call__:
            return f"{subclass} with a forward of its own"
        if not subclasses:
            return f"{subclass}: subclasses=True replaces it"
        counterpart, attributes = _COUNTERPARTS.get((pooling.__name__, original), (None, {}))
    if counterpart is None:
        return f"torch_dmlpool.nn has no {original}"
    if "forward" in vars(module):
        return "its forward was overridden"
    known = {**vars(module), **attributes}
    names = inspect.signature(counterpart).parameters.keys() & known.keys()
    passed = {name: known[name] for name in names}
    try:
        layer: Any = counterpart(**passed)  # the constructor is what checks arguments
        kind.__new__(kind).__class__ = counterpart  # classes with slots cannot change
    except (TypeError, ValueError) as error:
        return str(error)
    if layer._family.name in _DIFFERENCES and _agreed(layer) is None:
        return _DIFFERENCES[layer._family.name]
    # A compiler takes Python's ints for constants, numpy's for tensors.
    changed = {name: plain(value) for name, value in passed.items() if plain(value) is not value}
    return _Counterpart(counterpart, attributes | changed, _effect(layer))
