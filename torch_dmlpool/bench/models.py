"""A user's model before and after ``convert``, in inference and in training."""

import functools
import pkgutil
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from torch_dmlpool import nn, timing

SECONDS = 5.0


def loaded(path: str, device: torch.device) -> tuple[Module, tuple[Any, ...]]:
    """The model that ``package:factory`` makes, on the device, and its example inputs.

    The factory is called without arguments and returns a model and a tuple of inputs, or a model
    alone, which gets eight images of 3x224x224.
    """
    try:
        factory = pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise SystemExit(f"--model {path}: {error}") from None
    made = factory() if callable(factory) else factory
    model, inputs = made if isinstance(made, tuple) else (made, None)
    if not isinstance(model, Module):
        raise SystemExit(
            f"--model must be package:factory of a torch.nn.Module, got {path}, which gives "
            f"{type(model).__name__}"
        )
    inputs = inputs or (torch.rand(8, 3, 224, 224, dtype=torch.float32, device=device),)
    return model.to(device), tuple(each.to(device) for each in inputs)


def measured(
    model: Module, inputs: tuple[Any, ...], device: torch.device, load: str | None
) -> Iterator[str]:
    """Lines about a model: what was converted, and its times in each mode."""
    conversion = nn.convert(model, inplace=False, example_inputs=inputs)
    yield f"\n{conversion}"
    for mode in ("inference", "training"):
        sides: dict[str, timing.Call] = {
            name: functools.partial(_run, each.train(mode == "training"), inputs)
            for name, each in (("converted", conversion.model), ("as it is", model))
        }
        try:
            ours, theirs = timing.in_turn(sides, device, SECONDS).values()
        except Exception as error:  # such as of a model that cannot be trained like this
            yield f"  {mode}: {type(error).__name__}: {error}"
        else:
            yield timing.line(f"{mode}, converted", "as it is", ours, theirs, load)


def _run(model: Module, inputs: tuple[Any, ...]) -> None:
    """A call of the model; in training mode its backward pass too."""
    with torch.set_grad_enabled(model.training):
        output = model(*inputs)
    if model.training:
        model.zero_grad(set_to_none=True)
        torch.autograd.backward([_total(output)])


def _total(output: Any) -> Tensor:
    """The sum of all tensors in a model's output."""
    if isinstance(output, Tensor):
        return output.float().sum()
    entries = output.values() if isinstance(output, dict) else output
    totals = [_total(each) for each in entries if isinstance(each, (Tensor, dict, tuple, list))]
    return torch.stack(totals).sum()
