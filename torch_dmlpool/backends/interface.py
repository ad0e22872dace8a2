"""What a backend offers: a function for each operator, in one table."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from torch_dmlpool.tensors import Numbering, is_channels_last, position_dtype, tap_dtype
from torch_dmlpool.window import Divisor, Function, Ints, Sizes, Window

AnyWindow = Window | Sizes
"""A sliding window, or how many adaptive bins there are along each spatial dimension."""


Parameter = float | Tensor | None
"""A scale or a zero point, of all channels or of each; None for a zero point of 0."""
Parameters = tuple[Parameter, ...]


class Kind(NamedTuple):
    """How a tensor lies, its data type, and the memory format of results: None for the one that
    PyTorch suggests.
    """

    shape: Ints
    strides: Ints | None  # None if that does not matter
    dtype: torch.dtype
    channels_last: bool | None = None


def kind_of(tensor: Tensor) -> Kind:
    return Kind(tensor.shape, tensor.stride(), tensor.dtype)


class Plan(NamedTuple):
    """What computes a pool of plain tensors of one kind, and its gradient.

    A backend makes it of the kind of the input and the operator's arguments. Objects of the classes
    ``Averages`` and ``Maxima`` in cpu.py have these functions too, and stand for a plan.
    """

    run: Function  # the results of an input
    run_with_taps: Function  # the results of maxima, and after them the taps of their winners
    gradient: Function  # the gradient of the input, from that of the results and the taps


class Backend(NamedTuple):
    """The functions of a backend, and those that are made of them. ``BACKEND`` at the end of
    ``cpu.py``, ``triton.py`` and ``reference.py`` is one of these: ``of`` takes the function of
    each field's name from that file. The functions of sets of rows are those of ``segments.py`` and
    ``reference_segments.py``, and ``triton.py`` takes from ``reference.py`` what it does not have.

    Each takes what its operator does: checked tensors, a ``Window`` in place of six lists, or the
    output sizes of bins, then the other arguments. What it computes is said in ``reference``.
    """

    name: str
    max_pooling: Function
    max_pooling_with_taps: Function
    max_pooling_with_indices: Function  # of windows or bins
    max_pooling_indices: Function
    max_pooling_grad_from_taps: Function
    unique_positions: Function
    gather_positions: Function
    scatter_positions: Function
    average_pooling: Function  # of windows or bins, as is its gradient
    average_pooling_grad: Function
    quantized_averages: Function  # scales and zero points are a tuple
    masked: Function  # the input with a fill where the mask is False
    segment_sums: Function
    segment_shares: Function
    segment_maxima: Function
    statistics: Function
    statistics_grad: Function
    max_unpooling: Function | None = None
    """Max unpooling, the positions that its gradient reads, and whether an index is wrong. If it is
    None, ``operators`` compose it of the others."""
    averages: Callable[..., Plan] | None = None
    """Makes a ``Plan`` of averages of windows or bins: in cpu.py the class ``Averages``, whose
    functions take a mask too. If it is None, a plan calls the functions."""
    maxima: Callable[..., Plan] | None = None
    """Makes a ``Plan`` of maxima, or of these and their indices: in cpu.py the class ``Maxima``.
    All its functions but the gradient take a mask too."""
    reads_masks: bool = False
    """Whether maxima and averages of plain tensors take a ``mask``. If not, or if they raise
    NoKernelError, ``operators`` compose pools under a mask of the others."""
    takes_bools: bool = False
    """Whether maxima take bools as they are. If not, ``operators`` pass uint8 of 0 and 1."""

    # A backend is in the key of each call, which would hash all of its functions.
    __hash__ = object.__hash__  # type: ignore[misc]

    @classmethod
    def of(cls, name: str, functions: Mapping[str, Any], **more: Any) -> Self:
        """The backend with those of a module's ``functions`` that have the name of a field."""
        fields = {field: functions[field] for field in cls._fields if field in functions}
        return cls(**(fields | {"name": name} | more))

    def planned_averages(
        self, like: Tensor, windows: AnyWindow, include_padding: bool, divisor: Divisor
    ) -> Plan:
        """The plan of averages of plain tensors that lie as ``like``."""
        if self.averages is not None:
            return self.averages(kind_of(like), windows, include_padding, divisor)
        sizes = like.shape[2:]
        if isinstance(windows, Window):
            windows.output_sizes(sizes)  # rejected before any work

        def run(input: Tensor) -> Any:
            return self.average_pooling(input, windows, include_padding, divisor)

        def gradient(arriving: Tensor) -> Any:
            return self.average_pooling_grad(arriving, sizes, windows, include_padding, divisor)

        return Plan(run, run, gradient)

    def planned_maxima(self, like: Tensor, window: Window, numbering: Numbering | None) -> Plan:
        """The same of maxima. With a ``numbering`` their indices are results too."""
        if self.maxima is not None:
            return self.maxima(kind_of(like), window, numbering)
        sizes = like.shape[2:]
        window.output_sizes(sizes)  # rejected before any work
        is_last = is_channels_last(like)

        def run(input: Tensor) -> Any:
            if numbering is None:
                return self.max_pooling(input, window)
            return self.max_pooling_with_indices(
                input, window, numbering.dtype, numbering.per_plane
            )

        def run_with_taps(input: Tensor) -> Any:
            values, taps = self.max_pooling_with_taps(input, window)
            if numbering is None:
                return values, taps
            indices = self.max_pooling_indices(
                taps, sizes, window, numbering.dtype, numbering.per_plane
            )
            return values, indices, taps

        def gradient(arriving: Tensor, taps: Tensor) -> Any:
            dtype = tap_dtype(window.taps)
            if taps.shape != arriving.shape or taps.dtype is not dtype:
                # A hook of saved tensors has changed them.
                raise RuntimeError(
                    f"taps must have shape {tuple(arriving.shape)} and data type {dtype}, got "
                    f"{tuple(taps.shape)} and {taps.dtype}"
                )
            return self.max_pooling_grad_from_taps(arriving, taps, sizes, window, is_last)

        return Plan(run, run_with_taps, gradient)

    def max_pooling_gather(self, input: Tensor, taps: Tensor, window: Window) -> Any:
        """The element of ``input`` at each window's tap, 0 where the window is empty."""
        sizes = input.shape[2:]
        positions = self.max_pooling_indices(taps, sizes, window, position_dtype(sizes), True)
        return self.gather_positions(input, positions, False)

    def max_pooling_grad(self, input: Tensor, arriving: Tensor, window: Window) -> Any:
        """The gradient of maxima whose winners are found again."""
        _, taps = self.max_pooling_with_taps(input, window)
        sizes, is_last = input.shape[2:], is_channels_last(input)
        return self.max_pooling_grad_from_taps(arriving, taps, sizes, window, is_last)

    def quantized_linear_average_pooling(self, input: Tensor, *given: Any) -> Any:
        """Quantized averages. Scales and zero points are arguments of their own."""
        return self.quantized_averages(input, given[:4], *given[4:])

    def adaptive_max_pooling(self, input: Tensor, output_sizes: Sizes, **under: Tensor) -> Any:
        """Maxima of bins and their positions, ``under`` a mask if there is one."""
        bins, dtype = tuple(output_sizes), position_dtype(input.shape[2:])
        return self.max_pooling_with_indices(input, bins, dtype, True, **under)

    def adaptive_average_pooling(self, input: Tensor, output_sizes: Sizes) -> Any:
        """Averages of bins."""
        return self.average_pooling(input, tuple(output_sizes), False, None)

    def adaptive_average_pooling_grad(self, arriving: Tensor, spatial_sizes: Sizes) -> Any:
        """The gradient of averages of bins."""
        bins = tuple(arriving.shape[2:])
        return self.average_pooling_grad(arriving, spatial_sizes, bins, False, None)
