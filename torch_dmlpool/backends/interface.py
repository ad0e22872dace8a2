"""What a backend offers: a function for each operator of ``ops``, in one table."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self, cast

from torch import Tensor

from torch_dmlpool import tensors
from torch_dmlpool.window import Window

Function = Callable[..., Any]
AnyWindow = Window | Sequence[int]
"""A sliding window, or how many adaptive bins there are along each spatial dimension."""


class Plan(Protocol):
    """What computes a pool of plain tensors of one kind, and its gradient.

    A backend makes it of the input's sizes, strides and data type, and the operator's arguments.
    """

    is_planned: bool  # whether it has a gradient

    def run(self, input: Tensor) -> Any:
        """The results."""

    def record(self, input: Tensor) -> Sequence[Tensor]:
        """The results of maxima, and the taps of their winners after them."""

    def gradient(self, arriving: Tensor, taps: Tensor | None = None) -> Tensor:
        """The gradient of the input. The tensors may lie in memory in any way."""


class Backend(NamedTuple):
    """The functions of a backend, and those that are made of them. ``BACKEND`` at the end of each
    backend's file is one of these.

    Each takes what its operator in ``ops`` does: checked tensors, a ``Window`` in place of six
    lists, or the output sizes of bins, then the rest. What it computes is said in ``reference``.
    """

    name: str
    max_pooling: Function
    max_pooling_with_taps: Function
    max_pooling_with_indices: Function
    max_pooling_indices: Function
    max_pooling_grad_from_taps: Function
    adaptive_max_pooling: Function
    unique_positions: Function
    gather_positions: Function
    scatter_positions: Function
    average_pooling: Function
    average_pooling_grad: Function
    quantized_linear_average_pooling: Function
    masked: Function  # the input with a fill where the mask is False
    segment_sums: Function
    segment_shares: Function
    segment_maxima: Function
    statistics: Function
    statistics_grad: Function
    max_unpooling: Function | None = None
    """Max unpooling, the positions that its gradient reads, and whether an index is wrong. If it is
    None, ``ops`` composes it of the other operators."""
    planned_averages: Function | None = None
    """Makes a ``Plan`` of averages of windows or bins. If it is None, ``ops`` calls the functions
    above."""
    planned_maxima: Function | None = None
    """Makes a ``Plan`` of maxima, or of these and their indices."""
    masked_average_pooling: Function | None = None
    """This and the next six are pools under a mask, whose tensors are plain. If it is None, ``ops``
    composes them of the other operators."""
    masked_average_pooling_grad: Function | None = None
    masked_max_pooling: Function | None = None
    masked_max_pooling_with_taps: Function | None = None
    masked_max_pooling_with_indices: Function | None = None
    masked_adaptive_max_pooling: Function | None = None
    masked_max_pooling_grad_from_taps: Function | None = None
    takes_bools: bool = False
    """Whether maxima take bools as they are. If not, ``ops`` gives uint8 of 0 and 1."""

    def __hash__(self) -> int:
        # A backend is in the key of each call, which would hash all of its functions.
        return hash(self.name)

    @classmethod
    def of(cls, name: str, functions: Mapping[str, Any], **more: Any) -> Self:
        """The backend with those of a module's ``functions`` that have the name of a field."""
        fields = {field: functions[field] for field in cls._fields if field in functions}
        return cls(**(fields | {"name": name} | more))

    def max_pooling_gather(self, input: Tensor, taps: Tensor, window: Window) -> Tensor:
        """The element of ``input`` at each window's tap, 0 where the window is empty."""
        sizes = input.shape[2:]
        numbering = tensors.position_dtype(math.prod(sizes)), True
        positions = self.max_pooling_indices(taps, sizes, window, *numbering)
        return cast(Tensor, self.gather_positions(input, positions, False))

    def max_pooling_grad(self, input: Tensor, input_gradient: Tensor, window: Window) -> Tensor:
        """The gradient of maxima whose winners are found again."""
        _, taps = self.max_pooling_with_taps(input, window)
        request = taps, input.shape[2:], window, tensors.is_channels_last(input)
        return cast(Tensor, self.max_pooling_grad_from_taps(input_gradient, *request))

    def adaptive_average_pooling(self, input: Tensor, output_sizes: Sequence[int]) -> Tensor:
        """Averages of bins."""
        return cast(Tensor, self.average_pooling(input, tuple(output_sizes), False, None))

    def adaptive_average_pooling_grad(
        self, input_gradient: Tensor, spatial_sizes: Sequence[int]
    ) -> Tensor:
        """The gradient of averages of bins."""
        request = spatial_sizes, tuple(input_gradient.shape[2:]), False, None
        return cast(Tensor, self.average_pooling_grad(input_gradient, *request))
