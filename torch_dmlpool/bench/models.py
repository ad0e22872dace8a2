"""A user's model before and after ``convert``: eager and compiled, inference and training."""

import copy
import pkgutil
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules import pooling

from torch_dmlpool import nn, timing
from torch_dmlpool.timing import Times

BEFORE, AFTER = "as it is", "converted"
COMPILED_MODE = "inference, torch.compile"


class Comparison(NamedTuple):
    """Times of the model as it is and converted, or the reason why they are missing."""

    mode: str
    times: tuple[Times, Times] | None
    missing: str = ""
    load: str | None = None

    def __str__(self) -> str:
        if self.times is None:
            return f"{self.mode}: {self.missing}"
        before, after = self.times
        word = timing.verdict(after, before, self.load)
        return (
            f"{self.mode}: {1e3 * before.median:.2f} ms as it is, {1e3 * after.median:.2f} ms "
            f"converted, {before.median / after.median:.2f}x ({word})"
        )


class Result(NamedTuple):
    """What was measured of a model."""

    name: str
    report: str
    share: float
    comparisons: list[Comparison]


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
    path: str,
    device: torch.device,
    seconds: float,
    load: str | None = None,
    compiles: bool = True,
) -> Result:
    """The result for a model: every mode is measured for an equal share of ``seconds``.

    ``load`` says that the machine is busy, which allows no verdict.
    """
    model, inputs = loaded(path, device)
    conversion = nn.convert(model, inplace=False)
    other = conversion.model
    share = share_of_pools(model, inputs, device)
    modes: dict[str, Callable[[Module], Callable[[], object]]] = {
        "inference, eager": lambda each: _inference(each, inputs),
        "training, eager": lambda each: _training(each, inputs),
        COMPILED_MODE: lambda each: _inference(torch.compile(each), inputs),
    }
    comparisons = []
    for mode, make in modes.items():
        if mode == COMPILED_MODE and not compiles:
            comparisons.append(Comparison(mode, None, "not asked for"))
            continue
        for each in (model, other):
            each.train("training" in mode)
        calls = {BEFORE: make(model), AFTER: make(other)}
        try:
            times = timing.in_turn(calls, device, seconds / len(modes))
        except Exception as error:  # a model that does not compile, or cannot be trained like this
            why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            comparisons.append(Comparison(mode, None, why))
        else:
            comparisons.append(Comparison(mode, (times[BEFORE], times[AFTER]), load=load))
    return Result(path, str(conversion), share, comparisons)


def share_of_pools(model: Module, inputs: tuple[Any, ...], device: torch.device) -> float:
    """The share of the model's inference that its pooling layers take, before conversion."""
    model = copy.deepcopy(model).eval()
    spent, begun = [0.0], [0.0]

    def before(*_: object) -> None:
        timing.synchronize(device)
        begun[0] = time.perf_counter()

    def after(*_: object) -> None:
        timing.synchronize(device)
        spent[0] += time.perf_counter() - begun[0]

    for module in model.modules():
        if type(module).__module__ == pooling.__name__:
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after)
    call = _inference(model, inputs)
    call()
    spent[0] = 0.0
    timing.synchronize(device)
    start = time.perf_counter()
    for _ in range(3):
        call()
    timing.synchronize(device)
    return spent[0] / (time.perf_counter() - start)


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
