"""Window geometry: integers only, no tensors and no devices.

Positions along an axis fall in three zones: the input ``[0, size)``, the counted padding around it,
and the overhang of ``ceil_mode`` past the padded box, which is neither read nor counted. A tap is a
place in the window, and its number counts row by row. Rules such as G5 stand in
docs/contributing/specification.md.
"""

import contextlib
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import torch
from torch.compiler import is_compiling

from torch_dmlpool._private import is_exporting

LARGEST_ARGUMENT = 2**31 - 1  # of a window, so that 32-bit kernels can hold every one
Sizes: TypeAlias = Sequence[int]
Ints: TypeAlias = tuple[int, ...]
# What a function is called with, after the tensor that it pools.
Arguments: TypeAlias = tuple[Any, ...]
# Arguments or attributes by name.
Named: TypeAlias = dict[str, Any]
Function: TypeAlias = Callable[..., Any]
# A function that a decorator returns with its own type.
Decorated = TypeVar("Decorated", bound=Function)
# One int is for all spatial dimensions; a sequence has one for each, in D, H, W order.
Integers: TypeAlias = int | Sequence[int]
# As in torch.nn: None is the window's size.
Stride: TypeAlias = Integers | None
# What averages are divided by; None counts taps.
Divisor: TypeAlias = int | None
# The forms are the same; None keeps the input's size.
OutputSize: TypeAlias = int | Sequence[int | None] | None
# As in torch.nn, ints pad both ends. Pairs are the start and the end of a dimension, and a word
# stands for padding that is computed.
Padding: TypeAlias = (
    int | Sequence[int] | Sequence[Sequence[int]] | Literal["same", "valid", "causal"]
)
AXIS_NAMES = {1: ("W",), 2: ("H", "W"), 3: ("D", "H", "W")}


class ArgumentError(ValueError, RuntimeError):
    """An argument with a wrong value: a ValueError, and a RuntimeError as PyTorch raises for most
    of them.
    """


class NoOutputError(ArgumentError):
    """A window that does not fit into the padded input; it names DirectML's ``window_size``."""

    def naming(self, argument: str) -> ArgumentError:
        """The same error for a function whose ``argument`` is the window's size."""
        return ArgumentError(str(self).replace("window_size", argument, 1))


class Axis(NamedTuple):
    """The window along one spatial dimension."""

    window: int
    stride: int
    start_padding: int
    end_padding: int
    dilation: int
    ceil_mode: bool

    @property
    def extent(self) -> int:
        """The number of positions from the first tap to the last, both included (rule G2)."""
        return (self.window - 1) * self.dilation + 1

    def output_size(self, size: int) -> int:
        """The number of windows along this axis for ``size`` input elements (rule G3); below 1
        where none fits.
        """
        window, stride, start_padding, end_padding, dilation, ceil_mode = self
        room = size + start_padding + end_padding - (window - 1) * dilation - 1
        whole = room // stride + 1
        if not ceil_mode:
            return whole
        # ceil_mode adds at most one window, and only if it starts before the end of the input. The
        # size may be symbolic: so there is no branch, and the result is a sum, because PyTorch
        # cannot prove of a maximum that it is positive.
        ceiling = -(-room // stride) + 1
        starting_inside = -(-(size + start_padding) // stride)
        return whole + torch.sym_max(0, torch.sym_min(ceiling, starting_inside) - whole)

    def first_position(self, output: int) -> int:
        """Input position of the first tap of window ``output``; negative inside the start
        padding.
        """
        return output * self.stride - self.start_padding

    def may_be_empty(self, size: Any) -> bool:
        """Whether a window may have no tap inside an input of ``size``, which may be unknown. It
        takes no longer for a large size.

        Windows that start before an input of fewer elements than the dilation may step over it.
        """
        straddles = self.dilation > 1 and self.start_padding > 0
        if max(self.start_padding, self.end_padding) < self.extent and not straddles:
            return False
        if type(size) is not int or (straddles and size < self.dilation):
            return True
        last = self.first_position(self.output_size(size) - 1)
        return self.start_padding >= self.extent or last >= size


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window over 1 to 3 spatial dimensions: one :class:`Axis` each, in ``D, H, W``
    order. :meth:`directml` and :meth:`pytorch` make a window from arguments.
    """

    axes: tuple[Axis, ...]

    @staticmethod
    def directml(
        rank: int,
        window_size: Integers,
        strides: Integers = 1,
        start_padding: Integers = 0,
        end_padding: Integers = 0,
        dilations: Integers = 1,
        ceil_mode: bool = False,
    ) -> "Window":
        """The window that DirectML's arguments describe, for ``rank`` spatial dimensions. The error
        for a wrong argument names it.
        """
        names = ("window_size", "strides", "start_padding", "end_padding", "dilations")
        values = window_size, strides, start_padding, end_padding, dilations
        return _window(ceil_mode, *map(entries, names, values, [rank] * 5, (1, 1, 0, 0, 1)))

    @staticmethod
    def pytorch(
        rank: int,
        kernel_size: Integers,
        stride: Stride = None,
        padding: Padding = 0,
        dilation: Integers = 1,
        ceil_mode: bool = False,
        sizes: Sizes | None = None,
    ) -> "Window":
        """The window that torch.nn's arguments describe, with ``padding`` also ``((start, end),
        ...)`` or a word.

        No stride, or an empty one, is the kernel size; a list of one entry is an int. ``"valid"``
        pads nothing. ``"causal"``, of one dimension, pads the start by the extent less one.
        ``"same"`` gives ``ceil(size / stride)`` windows and puts the odd element at the end; with a
        stride above 1 it depends on the input's spatial ``sizes`` (without them the window is only
        checked).
        """
        if stride is None or (type(stride) is not int and listed(stride) == ()):
            stride = kernel_size
        windows = entries("kernel_size", shared(kernel_size), rank, 1)
        strides = entries("stride", shared(stride), rank, 1)
        dilations = entries("dilation", shared(dilation), rank, 1)
        sides = () if type(padding) is int else listed(padding) or ()
        pairs = [listed(side) for side in sides]
        if isinstance(padding, str):
            axes = list(zip(windows, strides, dilations, sizes or strides, strict=True))
            starts, ends = _padding_in_a_word(padding, axes)
        elif any(pair is not None for pair in pairs):
            if len(pairs) != rank or any(pair is None or len(pair) != 2 for pair in pairs):
                raise ArgumentError(f"padding must be {_pairs(rank)}, got {shown(padding)}")
            starts, ends = (entries("padding", side, rank, 0) for side in zip(*pairs, strict=True))
        else:
            if len(pairs) == 2 * rank:
                # torch.nn.functional.pad takes such a list: a start and an end for each dimension.
                raise ArgumentError(_meant_pairs(padding, rank))
            starts = ends = entries("padding", shared(padding), rank, 0)
        return _window(ceil_mode, windows, strides, starts, ends, dilations)

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def taps(self) -> int:
        """Taps in one window, padding counted."""
        taps = 1
        for axis in self.axes:  # This loop takes half the time of math.prod.
            taps *= axis.window
        return taps

    @property
    def arguments(self) -> Arguments:
        """The window as the registered operators take it: five lists and ``ceil_mode``."""
        lists = zip(*(axis[:-1] for axis in self.axes), strict=True)
        return *map(list, lists), self.axes[0].ceil_mode

    def along(self, entries: Iterable[Any]) -> Iterable[tuple[Axis, Any]]:
        """Each axis with its entry, such as the input's size."""
        return zip(self.axes, entries, strict=True)

    def output_sizes(self, sizes: Sizes) -> Ints:
        """Spatial sizes of the output for an input of spatial ``sizes``; an error if the window
        does not fit into them (rule G5).
        """
        check_spatial_sizes("the input", sizes, self.rank)
        outputs = []
        for axis, size, name in zip(self.axes, sizes, AXIS_NAMES[self.rank], strict=True):
            outputs.append(axis.output_size(size))
            if is_sure(outputs[-1] < 1):
                raise NoOutputError(
                    f"the window leaves no output in spatial dimension {name}: window_size "
                    f"{axis.window} with dilation "
                    f"{axis.dilation} spans {axis.extent} positions, but the padded input has only "
                    f"{axis.start_padding} + {size} + {axis.end_padding}"
                )
        return tuple(outputs)


def _window(ceil_mode: bool, *fields: Sequence[int]) -> Window:
    """The Window of ints that are checked already, one sequence per field of :class:`Axis`. Only
    ``ceil_mode`` is checked here.
    """
    check_flag("ceil_mode", ceil_mode)
    return Window(tuple(Axis(*axis, ceil_mode) for axis in zip(*fields, strict=True)))  # type: ignore[call-arg]


def entries(name: str, value: Any, rank: int, least: int) -> Ints:
    """``value`` as one int per spatial dimension; the error for anything else names the argument,
    the dimension and the number (G5, G6).
    """
    # Plain ints are returned at once: whatever the code below looks at in a trace becomes a guard
    # that a compiled graph checks in every call.
    if type(value) is int and least <= value <= LARGEST_ARGUMENT:
        return (value,) * rank
    several = listed(value)
    numbers = (value,) * rank if several is None else several
    if len(numbers) != rank:
        ints = f" or {rank} ints ({', '.join(AXIS_NAMES[rank])})" if rank > 1 else ""
        # Three dimensions are a batch of rows, whoever means an image.
        is_image = name == "window_size" and rank < 3 and len(numbers) == rank + 1
        hint = ": an operator's input has a batch, as input.unsqueeze(0) has" if is_image else ""
        raise ArgumentError(f"{name} must be one int{ints}, got {shown(numbers)}{hint}")
    numbers = tuple(integer(name, entry, value) for entry in numbers)
    for number, dimension in zip(numbers, AXIS_NAMES[rank], strict=True):
        is_small = is_sure(number < least)
        if is_small or is_sure(number > LARGEST_ARGUMENT):
            bound = f"at least {least}" if is_small else f"at most {LARGEST_ARGUMENT}"
            where = f"in spatial dimension {dimension} ({name}={shown(value)})"
            raise ArgumentError(f"{name} must be {bound}, got {shown(number)} {where}")
    return numbers


def listed(value: Any) -> tuple[Any, ...] | None:
    """The entries of a list of numbers, whatever its type, at most 100 of them; None for one value.

    Sets have no order and iterators end. Strings, bytes, tensors, mappings and arrays without a
    dimension are read as one value, which :func:`integer` then takes or refuses.
    """
    if isinstance(value, _NOT_LISTS) or not (
        isinstance(value, Iterable) and isinstance(value, Sized)
    ):
        return None
    return None if getattr(value, "ndim", 1) == 0 else tuple(itertools.islice(value, 100))


_NOT_LISTS = (str, bytes, bytearray, memoryview, torch.Tensor, Set, Mapping)


def integer(name: str, entry: Any, value: Any) -> int:
    """``entry`` of the argument ``value`` as an int, symbolic ones included; bools and floats are
    rejected (rule G6).
    """
    number = index_of(entry)
    if number is not None:
        return number
    if isinstance(entry, torch.Tensor):
        raise TypeError(f"{wrong_type(name, 'ints', entry)}: a layer is built before it is called")
    raise TypeError(f"{wrong_type(name, 'ints', entry)} ({name}={shown(value)})")


def index_of(value: Any) -> int | None:
    """``value`` as an int, symbolic ones included; None for a bool and what has no index."""
    if isinstance(value, bool) or (isinstance(value, torch.Tensor) and value.dtype is torch.bool):
        return None
    if isinstance(value, (int, torch.SymInt)):
        return value  # type: ignore[return-value]
    with contextlib.suppress(TypeError):
        return operator.index(value)
    return None


def is_literal(value: Any) -> bool:
    """Whether ``value`` is a number, a string or None, or a tuple or list of these at any depth."""
    if type(value) in (tuple, list):
        return all(map(is_literal, value))
    return type(value) in (int, bool, float, str, type(None))


def plain(value: Any) -> Any:
    """An argument as layers keep it: numpy's ints and arrays as Python's, so that compilers take
    them for constants. What is no int stays as it is.
    """
    if is_literal(value) or isinstance(value, torch.Tensor):
        return value
    number, several = index_of(value), listed(value)
    if number is not None:
        return number
    return value if several is None else tuple(map(plain, several))


def is_sure(condition: bool) -> bool:
    """Whether ``condition`` holds; under torch.export, whether it holds for all sizes.

    A branch on a symbolic condition makes torch.export prove it for all sizes, and it fails for
    ``-(-size // 2)``. The operators check the condition again when the exported program runs.
    """
    return is_known(condition) if is_exporting() else condition


def is_known(condition: Any) -> bool:
    """Whether ``condition`` holds whatever symbolic sizes are: a guess would become a guard of the
    compiled graph.
    """
    if type(condition) is bool and not is_compiling():
        return condition
    # The import takes long, but whoever has made a symbolic size has loaded the module.
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def check_flag(name: str, flag: bool) -> None:
    """Reject what is not a bool (rule G6)."""
    if type(flag) is not bool:
        raise wrong_type(name, "a bool", flag)


def wrong_type(name: str, wanted: str, value: object) -> TypeError:
    """The error for a ``value`` that is not what is ``wanted``."""
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        return TypeError(f"{name} must be {wanted}, got a tensor of shape {tuple(value.shape)}")
    return TypeError(f"{name} must be {wanted}, got {shown(value)} of type {type(value).__name__}")


def shown(value: object) -> str:
    """What an error message shows of a value: its ``repr``, cut at 200 characters."""
    try:
        text = repr(value)
    except Exception:  # an int of more than 4300 digits has no repr
        return f"an object of type {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def check_spatial_sizes(subject: str, sizes: Sizes, rank: int = 0) -> None:
    """Reject ``sizes`` that are not one int of at least 1 per spatial dimension (rule G5), of which
    there are ``rank``, or as many as sizes.

    A plane of 2**63 elements or more is rejected too. ``subject`` names the tensor in the error.
    """
    names = AXIS_NAMES[rank or len(sizes)]
    if rank not in (0, len(sizes)):
        raise ArgumentError(
            f"{subject} must have {rank} spatial sizes ({', '.join(names)}), got "
            f"{shown(tuple(sizes))}"
        )
    for size, name in zip(sizes, names, strict=True):
        if is_sure(size < 1):
            raise ArgumentError(
                f"{subject} must have a size of at least 1 in spatial dimension {name}, got {size}"
            )
    elements = math.prod([size for size in sizes if type(size) is int])
    if elements >= 2**63:
        raise ArgumentError(
            f"{subject} must have fewer than {2**63} elements in a plane, got {tuple(sizes)}"
        )


def shared(value: Any) -> Any:
    """The entry of a list or tuple of one entry, as torch.nn reads it; else ``value`` itself."""
    return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value


def _pairs(rank: int) -> str:
    """The form of padding that differs at the start and at the end, for error messages."""
    if rank == 1:
        return "one pair ((start, end),)"
    return f"{rank} pairs (start, end), one each for {', '.join(AXIS_NAMES[rank])}"


def _meant_pairs(padding: Any, rank: int) -> str:
    """The error message for starts and ends in a flat list, which must be pairs."""
    if rank == 1:
        start, end = padding
        return (
            f"padding must be one int or {_pairs(rank)}, got {shown(padding)}: to pad "
            f"{shown(start)} at the start and {shown(end)} at the end write "
            f"padding={shown(((start, end),))}"
        )
    names = ", ".join(AXIS_NAMES[rank])
    return f"padding must be one int, {rank} ints ({names}) or {_pairs(rank)}, got {shown(padding)}"


def _padding_in_a_word(word: str, axes: Sequence[tuple[int, int, int, int]]) -> tuple[Ints, Ints]:
    """The start and end padding that ``word`` gives each axis.

    Each of ``axes`` is a window, a stride, a dilation and a size.
    """
    if word == "causal" and len(axes) == 1:
        ((window, _, dilation, _),) = axes
        return ((window - 1) * dilation,), (0,)
    if word not in ("same", "valid"):
        words = '"same", "valid" or "causal"' if len(axes) == 1 else '"same" or "valid"'
        hint = f": write {word.lower()!r}" if f'"{word.lower()}"' in words else ""
        hint = (
            ', which is for one spatial dimension: pad "same" or by pairs'
            if word == "causal"
            else hint
        )
        raise ArgumentError(
            f"padding must be ints, (start, end) pairs, {words}, got {shown(word)}{hint}"
        )
    totals = [0] * len(axes)
    if word == "same":
        totals = [_same_padding(*axis) for axis in axes]
    return tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)


def _same_padding(window: int, stride: int, dilation: int, size: int) -> int:
    """The padding, start and end added up, that makes ``ceil(size / stride)`` windows."""
    extent = (window - 1) * dilation + 1
    total = (-(-size // stride) - 1) * stride + extent - size
    # Where windows leave no gaps the total is never negative, so symbolic sizes get no maximum with
    # 0.
    return (
        total
        if type(stride) is type(extent) is int and extent >= stride
        else torch.sym_max(0, total)
    )
