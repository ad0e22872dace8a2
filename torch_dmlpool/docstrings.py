"""What the public operators share: an answer to torch.nn's keywords, and those parts of their
docstrings.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar, cast

_F = TypeVar("_F", bound=Callable[..., Any])
PYTORCHS_NAMES = {
    "kernel_size": "window_size",
    "stride": "strides",
    "padding": "start_padding and end_padding",
    "dilation": "dilations",
    "count_include_pad": "include_padding",
    "norm_type": "p",
}
_WINDOW = """\
    window_size: Taps of the window, at least 1: one int for all spatial dimensions or one each, in
        ``D, H, W`` order.
    strides: Elements from one window to the next, at least 1.
    start_padding: Elements of padding before the first, at least 0; any amount is legal.
    end_padding: Elements of padding after the last.
    dilations: Elements from one tap to the next, at least 1.
    ceil_mode: Whether a last window that starts inside the input may reach past the padded box;
        what lies there never counts."""
_MASK = """\
    mask: A bool tensor on the input's device, of a shape that broadcasts to the input's. An element
        where it is False is not there: it never wins, adds nothing and is not counted, and has no
        gradient, whatever it is, NaN too."""
_PADDED = (
    _WINDOW
    + "\n    include_padding: Whether padding counts in the divisor. It never adds to the sum."
)
_SIZES = """\
``output = (size + start_padding + end_padding - extent) // strides + 1`` with
    ``extent = (window_size - 1) * dilations + 1``"""
_RAISES = """
Raises:
    TypeError: An argument of the wrong type, or a data type that is not supported or does not fit
        another.
    ValueError: A number out of range, a wrong number of entries, sizes or devices that do not fit,
        or a window that leaves no output. It is a RuntimeError too, which PyTorch raises for most
        of these.

Example:
    >>> import torch, torch_dmlpool as dmlpool
"""
_SOURCE = (
    "\nSource: https://learn.microsoft.com/windows/win32/api/directml/"
    "ns-directml-dml_{}_operator_desc\n"
)


def operator(page: str = "") -> Callable[[_F], _F]:
    """Answer torch.nn's keywords by DirectML's, and complete the docstring.

    ``WINDOW``, ``PADDED`` (with ``include_padding``), ``MASK`` and ``SIZES`` are filled in;
    ``page`` is DirectML's own.
    """

    def decorate(function: _F) -> _F:
        accepted = inspect.signature(function).parameters
        meant = {name: ours for name, ours in PYTORCHS_NAMES.items() if ours.split()[0] in accepted}

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError:
                wrong = next((name for name in kwargs if name in meant), None)
                if wrong is None:
                    raise
            raise TypeError(
                f"{function.__name__} has no argument {wrong}: did you mean {meant[wrong]}?"
            )

        text, _, example = inspect.cleandoc(function.__doc__ or "").partition("\n>>> ")
        texts = {"    WINDOW": _WINDOW, "    PADDED": _PADDED, "    MASK": _MASK, "SIZES": _SIZES}
        for name, shared in texts.items():
            text = text.replace(name, shared)
        example = textwrap.indent(f">>> {example}\n", "    ")
        checked.__doc__ = text + _RAISES + example + (_SOURCE.format(page) if page else "")
        return cast(_F, checked)

    return decorate


def typed_as(model: _F) -> Callable[[Any], _F]:
    """Give a function that hands its arguments on the signature of another one, overloads
    included.
    """

    def decorate(function: Any) -> Any:
        for each in (function, inspect.unwrap(function)):  # documentation is made from the second
            each.__signature__ = inspect.signature(cast(Any, model))
        return function

    return decorate
