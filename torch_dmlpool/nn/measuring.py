"""Times of a model's pooling layers beside what would replace them, on the inputs that they get."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from torch_dmlpool import timing

SECONDS = 0.3
"""Seconds for which a call of a layer and its counterpart are measured."""
TOLERATED = 1.02
"""The ratio of our time to torch.nn's up to which the two cannot be told apart."""


class LayerTimes(NamedTuple):
    """The median seconds of a layer's calls, added up: ours and torch.nn's."""

    ours: float
    theirs: float

    @property
    def is_slower(self) -> bool:
        """Whether ours takes more than 2 % longer."""
        return self.ours > TOLERATED * self.theirs

    def __str__(self) -> str:
        ours, theirs = (f"{1e3 * seconds:.3g} ms" for seconds in self)
        return f"{ours} here, {theirs} in torch.nn"


def measured(
    model: Module,
    layers: Iterable[Module],
    counterpart_of: Callable[[Module], Module],
    inputs: tuple[Any, ...] | Mapping[str, Any],
    training: bool,
) -> tuple[dict[Module, LayerTimes], str | None]:
    """Times of each of ``layers`` that the model calls for these inputs, and of its counterpart;
    and why there are none, if tensors have no values.

    The model runs once, in evaluation mode and without gradients. Calls with the same arguments are
    measured once.
    """
    found: dict[Module, LayerTimes] = {}
    known: dict[str, LayerTimes] = {}
    reasons: list[str] = []

    def measure(layer: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        for each in (*args, *kwargs.values(), *results):
            is_fake = type(each).__module__ == "torch._subclasses.fake_tensor"
            if is_fake or (isinstance(each, Tensor) and each.is_meta):
                reasons.append(f"{'meta' if each.is_meta else 'fake'} tensors have no values")
                return
        signature = _signature(layer, args, kwargs)
        if signature not in known:
            known[signature] = _times(layer, counterpart_of(layer), args, kwargs, training)
        before, here = found.get(layer, LayerTimes(0.0, 0.0)), known[signature]
        found[layer] = LayerTimes(before.ours + here.ours, before.theirs + here.theirs)

    hooks = [layer.register_forward_hook(measure, with_kwargs=True) for layer in layers]
    try:
        with _evaluating(model), torch.no_grad():
            if isinstance(inputs, tuple):
                model(*inputs)
            else:
                model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found, reasons[0] if reasons else None


@contextmanager
def _evaluating(model: Module) -> Iterator[None]:
    """Put a model into evaluation mode for a while, so that its running statistics do not
    change.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _times(
    layer: Module,
    counterpart: Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    training: bool,
) -> LayerTimes:
    """The median seconds of a call of a layer and of its counterpart."""
    device = next(each.device for each in (*args, *kwargs.values()) if isinstance(each, Tensor))
    sides = {"ours": counterpart, "theirs": layer}
    calls = {name: _call(each, args, kwargs, training) for name, each in sides.items()}
    times = timing.in_turn(calls, device, SECONDS)
    return LayerTimes(times["ours"].median, times["theirs"].median)


def _call(
    layer: Module, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool
) -> Callable[[], object]:
    """The layer's own ``forward``, past its hooks; with ``training`` its backward pass as well."""
    first, *others = args or (kwargs["input"],)
    options = {name: value for name, value in kwargs.items() if name != "input"}
    if not training or not first.is_floating_point():
        return lambda: layer.forward(first, *others, **options)

    input = first.detach().requires_grad_()

    def forward() -> Tensor:
        pooled = layer.forward(input, *others, **options)
        return pooled if isinstance(pooled, Tensor) else pooled[0]

    with torch.enable_grad():
        gradient = torch.ones_like(forward())

    def forward_and_backward() -> object:
        with torch.enable_grad():
            return torch.autograd.grad(forward(), input, gradient)

    return forward_and_backward


def _signature(layer: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A text of all that a call's time depends on."""
    described = [
        (tuple(each.shape), each.stride(), each.dtype, each.device)
        if isinstance(each, Tensor)
        else each
        for each in (*args, *kwargs.items())
    ]
    return f"{type(layer)} {layer.extra_repr()} {described}"
