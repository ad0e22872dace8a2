"""Unknown keyword arguments: the error of an operator or a layer names the argument that was
meant.

Operators have DirectML's names (``window_size``), layers and ``nn.functional`` PyTorch's
(``kernel_size``). Whoever writes the one where the other is wanted is told.
"""

import difflib
import functools
import inspect
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function

from torch_dmlpool import observers
from torch_dmlpool.window import Decorated, plain

DIRECTMLS_FOR_PYTORCHS = {
    "kernel_size": "window_size",
    "stride": "strides",
    "padding": "start_padding and end_padding",
    "dilation": "dilations",
    "count_include_pad": "include_padding",
    "norm_type": "p",
}
PYTORCHS_FOR_DIRECTMLS = {
    directmls: pytorchs
    for pytorchs, names in DIRECTMLS_FOR_PYTORCHS.items()
    for directmls in names.split(" and ")
}
MODULES = "decompositions", "distributed", "inductor", "onnx"
"""Public modules that are imported by those who need them."""
KERNEL_SIZE = "filter_size", "kernel", "pool_size", "size"
"""What Keras and others call it."""


def suggestion(
    function: str, passed: Iterable[str], accepted: Iterable[str], meant: Mapping[str, str]
) -> TypeError | None:
    """The error for the first keyword that ``function`` lacks and whose other name it accepts."""
    known = set(accepted)
    for name in passed:
        other = "kernel_size" if name in KERNEL_SIZE else name
        other = other if other in known else meant.get(other, "")
        if name not in known and other.split(" ")[0] in known:
            return TypeError(f"{function} has no argument {name}: did you mean {other}?")
        if name == "mask" and name not in known and function[0].isupper():
            return TypeError(f"{function} takes mask where it is called: layer(input, mask=mask)")
    return None


def with_directml_names(function: Decorated) -> Decorated:
    """Make an operator raise a TypeError that names DirectML's keyword for PyTorch's. Whoever
    observes its call sees that call alone.
    """
    return _with_suggestions(function, DIRECTMLS_FOR_PYTORCHS, is_shown=True)


def with_pytorch_names(function: Decorated) -> Decorated:
    """The same for a function of ``nn.functional``, whose module becomes the one where users find
    it: pickles, traced graphs and documentation show it.
    """
    function.__module__ = "torch_dmlpool.nn.functional"
    return _with_suggestions(function, PYTORCHS_FOR_DIRECTMLS)


def layer_with_pytorch_names(constructor: Decorated) -> Decorated:
    """Make a layer's ``__init__`` raise a TypeError that names PyTorch's keyword for DirectML's. It
    gets numpy's ints as Python's.
    """

    @functools.wraps(constructor)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        constructor(self, *map(plain, args), **{name: plain(kwargs[name]) for name in kwargs})

    return _with_suggestions(init, PYTORCHS_FOR_DIRECTMLS)  # type: ignore[return-value]


def _with_suggestions(
    function: Decorated, meant: Mapping[str, str], is_shown: bool = False
) -> Decorated:
    """``function``, whose TypeError for an unknown keyword becomes that of :func:`suggestion`. It
    names the function, or the class of the layer that is built. Calls are shown to those who
    observe them if ``is_shown``.
    """
    accepted = inspect.signature(function).parameters
    is_layer = function.__name__ == "__init__"

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if is_shown and not is_dynamo_compiling():
            passed = args or tuple(kwargs.values())
            if has_torch_function(passed) and observers.are_seen(passed):
                return observers.shown(checked, passed, *args, **kwargs)
        try:
            return function(*args, **kwargs)
        except TypeError as wrong:
            called = type(args[0]).__name__ if is_layer else function.__name__
            error = suggestion(called, kwargs, accepted, meant)
            if error is None and is_layer and str(wrong).startswith(function.__qualname__):
                # Python names the family that the constructor is inherited from.
                text = str(wrong).replace(function.__qualname__, f"{called}.__init__", 1)
                error = TypeError(text)
            if error is None:
                raise
        raise error

    return checked  # type: ignore[return-value]


def missing(module: str, name: str, public: Mapping[str, Sequence[str]]) -> Any:
    """The submodule ``name`` of a ``module`` that IPython's autoreload has emptied; else the error
    says where the name is, or which name is similar, of the package's own names first.

    ``public`` has the names of each module by its path, which begins below torch_dmlpool.
    """
    if f"{module}.{name}" in sys.modules:
        return sys.modules[f"{module}.{name}"]
    paths = {each: f"{path}{each}" for path, names in public.items() for each in names}
    found = [name] if name in paths else [each for each in paths if each[:-2] == name]
    if name.startswith("Global"):  # Keras' and ONNX's word for one window over everything
        found = [each for each in paths if each == name.replace("Global", "Adaptive")]
    for names in (public[""], paths):
        found = found or difflib.get_close_matches(name, names, 1, 0.75)
    one = "(1)" * name.startswith("Global")
    hint = ", ".join(f"torch_dmlpool.{paths[each]}{one}" for each in found)
    hint = hint and f": did you mean {hint}?"
    if name in MODULES and module == "torch_dmlpool":
        hint = f": write import {module}.{name}"
    raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)
