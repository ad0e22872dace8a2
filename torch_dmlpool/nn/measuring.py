"""Times of a model's pooling layers beside what would replace them, on the inputs that they get."""

import inspect
import operator
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from torch_dmlpool import timing
from torch_dmlpool.window import Arguments, Named

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
    counterparts: Mapping[Module, Module],
    inputs: Arguments | Mapping[str, Any],
    training: bool,
) -> tuple[dict[Module, LayerTimes], str | None]:
    """Times of each layer of ``counterparts`` that the model calls for these inputs, and of its
    counterpart; and why there are none, if tensors have no values.

    The model runs once, in evaluation mode, so that its running statistics do not change, and
    without gradients. Calls with the same arguments are measured once.
    """
    found: dict[Module, LayerTimes] = {}
    known: dict[str, LayerTimes] = {}
    reasons: list[str] = []

    def measure(layer: Module, args: Arguments, kwargs: Named, output: Any) -> None:
        passed = inspect.signature(layer.forward).bind(*args, **kwargs).args
        result = output[0] if isinstance(output, tuple) else output
        if result.is_meta or type(result).__module__ == "torch._subclasses.fake_tensor":
            reasons.append(f"{'meta' if result.is_meta else 'fake'} tensors have no values")
            return
        signature = f"{type(layer)} {layer.extra_repr()} {list(map(_described, passed))}"
        if signature not in known:
            sides = {"ours": counterparts[layer], "theirs": layer}
            calls = {name: _call(each, passed, training) for name, each in sides.items()}
            times = timing.in_turn(calls, result.device, SECONDS)
            known[signature] = LayerTimes(*(each.median for each in times.values()))
        before = found.get(layer, LayerTimes(0.0, 0.0))
        found[layer] = LayerTimes(*map(operator.add, before, known[signature]))

    modes = {module: module.training for module in model.modules()}
    hooks = [layer.register_forward_hook(measure, with_kwargs=True) for layer in counterparts]
    try:
        model.eval()
        with torch.no_grad():
            model(*inputs) if isinstance(inputs, tuple) else model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
    return found, reasons[0] if reasons else None


def _call(layer: Module, passed: Arguments, training: bool) -> timing.Call:
    """The layer's own ``forward``, past its hooks; with ``training`` its backward pass as well."""
    first, *others = passed
    if not training or not first.is_floating_point():
        return partial(layer.forward, *passed)
    input = first.detach().requires_grad_()

    @torch.enable_grad()
    def forward_and_backward() -> object:
        output = layer.forward(input, *others)
        output = output[0] if isinstance(output, tuple) else output
        return torch.autograd.grad(output, input, output.detach())

    return forward_and_backward


def _described(argument: Any) -> Any:
    """What the time of a call depends on."""
    if not isinstance(argument, Tensor):
        return argument
    return argument.shape, argument.stride(), argument.dtype, argument.device
