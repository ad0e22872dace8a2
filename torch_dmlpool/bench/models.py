"""A user's model before and after ``convert``: eager and compiled, inference and training."""

import pkgutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from torch_dmlpool import nn, timing
from torch_dmlpool.bench.rows import Measured

BEFORE, AFTER = "as it is", "converted"
EAGER, COMPILED = "inference, eager", "inference, torch.compile"


def loaded(path: str, device: torch.device) -> tuple[Module, tuple[Any, ...]]:
    """The model that ``package:factory`` makes, on the device, and its example inputs.

    The factory is called without arguments and returns a model and a tuple of inputs, or a model
    alone, which gets eight images of 3x224x224.
    """
    if ":" not in path:
        raise SystemExit(f"--model must be package:factory, got {path}")
    try:
        factory = pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as error:
        raise SystemExit(f"--model {path}: {error}") from None
    made = factory()
    model, inputs = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, Module):
        raise SystemExit(
            f"--model {path} must return a torch.nn.Module, got {type(model).__name__}"
        )
    if inputs is None:
        inputs = (torch.rand(8, 3, 224, 224, dtype=torch.float32, device=device),)
    return model.to(device), tuple(each.to(device) for each in inputs)


def measure(
    path: str, device: torch.device, seconds: float, load: str | None, compiles: bool
) -> Iterator[str]:
    """Lines about a model: what was converted, and its times in each mode, which is measured for an
    equal share of ``seconds``.

    ``load`` says that the machine is busy, which allows no verdict.
    """
    model, inputs = loaded(path, device)
    conversion = nn.convert(model, inplace=False, example_inputs=inputs)
    yield f"{path}: {conversion}"
    modes: dict[str, Callable[[Module], Callable[[], object]]] = {
        EAGER: lambda each: _inference(each, inputs),
        "training, eager": lambda each: _training(each, inputs),
    }
    if compiles:
        modes[COMPILED] = lambda each: _inference(torch.compile(each), inputs)
    pools = sum(times.theirs for times in conversion.times.values())
    for mode, make in modes.items():
        for each in (model, conversion.model):
            each.train("training" in mode)
        calls = {BEFORE: make(model), AFTER: make(conversion.model)}
        try:
            times = timing.in_turn(calls, device, seconds / len(modes))
        except Exception as error:  # a model that does not compile, or cannot be trained like this
            yield f"  {mode}: {summary(error)}"
            continue
        row = Measured(f"{mode}, converted", BEFORE, times[AFTER], times[BEFORE])
        yield row.line(load)
        if mode == EAGER:
            yield f"  pooling layers took {pools / row.theirs.median:.1%} of it"


def summary(error: Exception) -> str:
    """The kind of an error and the first line of its text."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _inference(model: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], object]:
    def call() -> object:
        with torch.no_grad():
            return model(*inputs)

    return call


def _training(model: Module, inputs: tuple[Any, ...]) -> Callable[[], object]:
    def call() -> None:
        model.zero_grad(set_to_none=True)
        torch.autograd.backward([_total(model(*inputs))])

    return call


def _total(output: Any) -> Tensor:
    """The sum of all tensors in a model's output."""
    if isinstance(output, Tensor):
        return output.float().sum()
    entries = output.values() if isinstance(output, dict) else output
    totals = [_total(each) for each in entries if isinstance(each, (Tensor, dict, tuple, list))]
    return torch.stack(totals).sum()
