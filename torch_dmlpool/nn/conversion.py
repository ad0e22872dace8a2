"""A model's pooling layers replaced by this package's, where they stand.

A layer stays the object that it is and changes its class alone, so that everything which refers to it goes on doing
so: names, parents that share it, hooks, optimizers, tables of features.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.nn import Module
from torch.nn.modules import pooling

from torch_dmlpool import operands
from torch_dmlpool.nn import layers
from torch_dmlpool.window import Window

__all__ = ["Conversion", "convert"]

_COUNTERPARTS: dict[tuple[str, str], tuple[type[Module], dict[str, Any]]] = {
    **{(pooling.__name__, name): (getattr(layers, name), {}) for name in layers.__all__},
    # Both pad by themselves before they pool without padding: timm's average counts it, whatever its attribute says.
    ("timm.layers.pool2d_same", "AvgPool2dSame"): (layers.AvgPool2d, {"padding": "same", "count_include_pad": True}),
    ("timm.layers.pool2d_same", "MaxPool2dSame"): (layers.MaxPool2d, {"padding": "same"}),
}
"""The module and name of a class (so that nothing need be imported): the class of ours that stands in for it, and the
attributes that say what its own ``forward`` did."""


@dataclass(frozen=True)
class Conversion:
    """What :func:`convert` did: the model, and the names of the layers that it replaced and of those that it left."""

    model: Module
    replaced: dict[str, str]
    """The class that each replaced layer had, by every name that its parents have for it; the root's name is ''."""
    left: dict[str, str]
    """Why each other pooling layer stayed what it was."""
    effects: dict[str, str]
    """What the conversion of each replaced layer gains."""

    def __str__(self) -> str:
        lines = [f"replaced {len(self.replaced)}, left {len(self.left)}"]
        width = max((len(name or "(root)") for name in (*self.replaced, *self.left)), default=0)
        replaced = {name: f"{kind}: {self.effects[name]}" for name, kind in self.replaced.items()}
        for heading, entries in (("replaced", replaced), ("left", self.left)):
            lines += [f"  {heading:8}  {name or '(root)':{width}}  {text}" for name, text in entries.items()]
        return "\n".join(lines)


def convert(model: Module, *, inplace: bool = True) -> Conversion:
    """Replace the pooling layers of ``model``, and ``model`` itself if it is one, by this package's.

    A layer keeps its arguments, hooks, training state, names and parents, and one that stands in several places stays
    one. A ``state_dict`` from before loads after and the other way round, as pooling layers keep nothing in it.

    Args:
        model: Any module. Layers that it keeps out of PyTorch's sight (in plain lists, say) are not found, nor are
            calls of functions: :func:`~torch_dmlpool.nn.rerouted` serves both.
        inplace: Whether to change the model itself rather than a deep copy of it.

    Returns:
        A :class:`Conversion`: the model, what was replaced, and what was left and why. Left is a subclass of a torch.nn
        layer (but timm's ``AvgPool2dSame`` and ``MaxPool2dSame``, which are known), a layer whose ``forward`` was
        overridden, one with arguments that this package refuses or understands differently (LPPool unless its norm is
        even, MaxUnpool where windows overlap), and every kind of pooling that it lacks. Layers that are this package's
        already are not listed.

    Raises:
        TypeError: ``model`` is no ``torch.nn.Module``, or ``inplace`` no bool.

    Maxima and their indices are equal bit for bit before and after; averages, norms and sums of gradients are equal but
    for the order of additions. What differs: of several NaN in a window the first counts, not the last; 3-D pools no
    longer turn to float32 under autocast; averages of integers and pools of quantized tensors are refused.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> pools = torch.nn.MaxPool2d(2), torch.nn.FractionalMaxPool2d(2, 5)
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), *pools)
        >>> print(dmlpool.nn.convert(model))
        replaced 1, left 1
          replaced  1  MaxPool2d: training keeps 1 byte per output, not 8 and the input
          left      2  torch_dmlpool.nn has no FractionalMaxPool2d

    """
    if not isinstance(model, Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if type(inplace) is not bool:
        raise TypeError(f"inplace must be a bool, got {inplace!r} of type {type(inplace).__name__}")
    if not inplace:
        model = copy.deepcopy(model)
    report = Conversion(model, {}, {}, {})
    for module, names in _names(model).items():
        kind, original = type(module), _pooling_name(module)
        if original is None or kind.__module__.startswith("torch_dmlpool."):
            continue
        reason = _why_left(module, original)
        if reason is not None:
            report.left.update(dict.fromkeys(names, reason))
            continue
        module.__class__, attributes = _COUNTERPARTS[kind.__module__, kind.__qualname__]
        # PyTorch 2.11 looks at a compiled layer's class again only if the layer's attributes have been written to.
        vars(module).update(attributes, converted=True)
        del vars(module)["converted"]
        report.replaced.update(dict.fromkeys(names, kind.__name__))
        report.effects.update(dict.fromkeys(names, _effect(module)))
    return report


def _effect(layer: Module) -> str:
    """What a converted layer does better than PyTorch's; its results are those of before, as :func:`convert` says."""
    if isinstance(layer, pooling._MaxPoolNd):
        taps = Window.pytorch(cast(layers.Pool, layer)._rank, layer.kernel_size).taps
        size = operands.tap_dtype(taps).itemsize
        return f"training keeps {size} byte{'s' * (size > 1)} per output, not 8 and the input"
    if isinstance(layer, pooling._AdaptiveMaxPoolNd):
        return "training keeps at most 4 bytes per output, not 8 and the input"
    if isinstance(layer, pooling._LPPoolNd):
        return "where a norm is 0, its gradient is 0 and not NaN"
    if isinstance(layer, pooling._MaxUnpoolNd):
        return "the same result run after run, on a GPU too"
    if isinstance(layer, pooling._AdaptiveAvgPoolNd) and set(_listed(layer.output_size)) == {1}:
        return "no difference"  # PyTorch's is a mean
    return "training keeps sizes alone, not the input"


def _names(model: Module) -> dict[Module, list[str]]:
    """Every module once, with the names that it has in each of its parents."""
    names = {model: [""]}
    for parent, module in model.named_modules():
        for name, child in module._modules.items():
            if child is not None:
                names.setdefault(child, []).append(f"{parent}.{name}" if parent else name)
    return names


def _pooling_name(module: Module) -> str | None:
    """The torch.nn pooling class that ``module`` is, derives from or was scripted from."""
    for kind in type(module).__mro__:
        if kind.__module__ == pooling.__name__:
            return kind.__name__
    original = getattr(module, "original_name", None) if isinstance(module, torch.jit.ScriptModule) else None
    return original if original in pooling.__all__ else None


def _why_left(module: Module, original: str) -> str | None:
    """What keeps our counterpart from standing in for ``module``, if anything does."""
    kind = type(module)
    if isinstance(module, torch.jit.ScriptModule):
        return f"compiled by TorchScript from {original}"
    counterpart, attributes = _COUNTERPARTS.get((kind.__module__, kind.__qualname__), (None, {}))
    if counterpart is None:
        if kind.__name__ == original:
            return f"torch_dmlpool.nn has no {original}"
        own = " with a forward of its own" if kind.forward is not getattr(pooling, original).forward else ""
        return f"{kind.__qualname__} is a subclass of {original}{own}"
    if "forward" in vars(module):
        return "its forward was overridden"
    if isinstance(module, pooling._LPPoolNd) and (module.ceil_mode or float(module.norm_type) % 2 != 0):
        return "PyTorch's norms differ with ceil_mode, and for negative elements unless norm_type is even"
    if isinstance(module, pooling._MaxUnpoolNd) and _overlaps(module.kernel_size, module.stride):
        return "windows that overlap: PyTorch gives the gradient to all elements of one index, not to the last alone"
    known = {**vars(module), **attributes}
    arguments = {name: known[name] for name in inspect.signature(counterpart).parameters if name in known}
    try:
        counterpart(**arguments)  # the constructor is what checks arguments
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def _overlaps(kernel_size: Any, stride: Any) -> bool:
    return any(step < window for window, step in zip(_listed(kernel_size), _listed(stride), strict=False))


def _listed(value: Any) -> Any:
    return value if isinstance(value, (tuple, list)) else (value,)
