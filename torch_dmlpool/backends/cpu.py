"""The CPU backend: a call of the compiled kernels for each operator.

What each operator computes is said in ``reference``, and how the library is loaded in ``library``.
Where a function has a ``mask``, elements are left out where that is False. A mask has as many
samples as the input, or 1, and so with channels.
"""

import ctypes
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool._private import empty_strided_cpu as _new
from torch_dmlpool.backends import reference, segments
from torch_dmlpool.backends.interface import AnyWindow, Backend, Kind, Parameters, kind_of

# ``library.dmlpool_X`` is X of kernels/cpu/operators.h: ``load`` of library.py attaches these.
from torch_dmlpool.backends.library import (
    DONE,
    INDICES,
    OUTSIDE,
    POSITIONS,
    TAPS,
    error_of,
    library,
)
from torch_dmlpool.backends.library import missing as missing
from torch_dmlpool.backends.problems import (
    CpuProblem,
    problem_of,
    quantization,
    remembered_problem,
)
from torch_dmlpool.tensors import (
    Mask,
    Numbering,
    Pair,
    Tensors,
    full_sizes,
    in_format,
    is_channels_last,
    lowest,
    position_dtype,
    tap_dtype,
)
from torch_dmlpool.window import Divisor, Sizes, Window


def _results(problem: CpuProblem, dtype: torch.dtype) -> Tensor:
    """Memory for an element of each window."""
    return _new(problem.output_sizes, problem.output_strides, dtype)


def _run_kernel(
    output: Tensor,
    function: Any,
    problem: CpuProblem,
    *operands: Tensor,
    mask: Mask = None,
    fill: float = 0,
    more: tuple[int | None, ...] = (),
) -> Tensor:
    """Call a function of the library and return ``output``, which it fills. It gets the address of
    the problem, the ``operands`` as they lie in its memory format and, after the output, ``more``
    addresses.

    Under a mask the problem has that too, and takes ``fill`` for the elements that are left out.
    """
    if problem.is_empty:
        return output.zero_()
    address, is_last = problem.address, problem.channels_last
    if mask is not None:
        mask = in_format(mask.expand(full_sizes(mask, problem.sizes[2:])), is_last)
        struct = problem.under(mask, output.dtype, fill)
        address = ctypes.c_void_p(struct.buffer_info()[0])
    operands = tuple([in_format(each, is_last) for each in operands])
    addresses = [each.data_ptr() for each in operands]
    code = function(address, *addresses, output.data_ptr(), *more)
    if code:
        raise error_of(function, code)
    return output


def _lies_as(tensor: Tensor, problem: CpuProblem, dtype: torch.dtype) -> bool:
    """Whether ``tensor`` has the sizes, strides and data type of a problem's results, and has
    elements.
    """
    return (
        tensor.stride() == problem.output_strides
        and tensor.shape == problem.output_sizes
        and tensor.dtype is dtype
        and tensor.is_cpu
        and not problem.is_empty
    )


def _check_fit(tensor: Tensor, sizes: Sizes, dtype: torch.dtype) -> None:
    """Reject what arrives at windows, or numbers of winners, of other sizes or another type:
    backward operators get here what a hook of saved tensors may have changed.
    """
    if tensor.shape != sizes or tensor.dtype is not dtype or not tensor.is_cpu:
        raise RuntimeError(
            f"a tensor of sizes {tuple(sizes)} and {dtype} on the CPU was expected, got sizes "
            f"{tuple(tensor.shape)} and {tensor.dtype} on {tensor.device}"
        )


class Averages:
    """The plan of averages of tensors of one kind, over a window or bins."""

    def __init__(
        self, kind: Kind, windows: AnyWindow, include_padding: bool, divisor: Divisor
    ) -> None:
        self.request = windows, include_padding, divisor
        self.problem = problem_of(kind, windows, counted=(include_padding, divisor))

    def run(self, input: Tensor, mask: Mask = None) -> Tensor:
        problem, pool = self.problem, library.dmlpool_average_pooling
        output = _new(problem.output_sizes, problem.output_strides, problem.dtype)
        if mask is not None or not problem.is_ready:
            return _run_kernel(output, pool, problem, input, mask=mask)
        code = pool(problem.address, input.data_ptr(), output.data_ptr())
        if code:  # not by `_run_kernel`, which would slow small calls
            raise error_of(pool, code)
        return output

    run_with_taps = run  # averages have none

    def gradient(self, arriving: Tensor, mask: Mask = None) -> Tensor:
        problem, spread = self.problem, library.dmlpool_average_pooling_grad
        dtype = problem.dtype
        output = _new(problem.sizes, problem.strides, dtype)
        if mask is None and _lies_as(arriving, problem, dtype):
            code = spread(problem.address, arriving.data_ptr(), output.data_ptr())
            if code:
                raise error_of(spread, code)
            return output
        _check_fit(arriving, problem.output_sizes, dtype)
        is_last = is_channels_last(arriving)
        if mask is None and is_last != problem.channels_last:
            # The gradient lies as what arrives (rule G7).
            as_arriving = _kind_of_input(arriving, problem.sizes[2:], is_last)
            return _averages_plan(as_arriving, *self.request).gradient(arriving)
        return _run_kernel(output, spread, problem, arriving, mask=mask)


class Maxima:
    """The plan of maxima of tensors of one kind, of a window or bins, with a ``numbering`` of
    their indices too; of minima of numbers if ``are_minima``.
    """

    def __init__(
        self, kind: Kind, windows: Any, numbering: Numbering | None = None, are_minima: bool = False
    ) -> None:
        self.kind, self.windows, self.numbering = kind, windows, numbering
        self.are_minima = are_minima
        # The problem of the results, the one with taps and the one of the gradient. The first call
        # that needs one makes it: training never uses the first, inference only the first.
        self.problem: CpuProblem | None = None
        self.with_taps: CpuProblem | None = None
        self.back: CpuProblem | None = None

    def run(self, input: Tensor, mask: Mask = None) -> Any:
        problem, numbering = self.problem, self.numbering
        if problem is None:
            numbered = numbering and _numbered(numbering.dtype, numbering.per_plane)
            problem = self.problem = self._problem(numbered)
        if numbering is not None:
            return self._with_winners(input, problem, mask)
        return self._fill(_results(problem, problem.dtype), problem, input, mask, None)

    def run_with_taps(self, input: Tensor, mask: Mask = None) -> Tensors:
        if self.with_taps is None:
            self.with_taps = self._problem((None, TAPS))
        values, taps = self._with_winners(input, self.with_taps, mask)
        if self.numbering is None:
            return values, taps
        index_dtype, per_plane = self.numbering
        given = self.kind.shape[2:], self.windows, index_dtype, per_plane
        return values, max_pooling_indices(taps, *given), taps

    def gradient(self, arriving: Tensor, taps: Tensor) -> Tensor:
        back, dtype = self.back, self.kind.dtype
        if back is None:
            back = self.with_taps  # the same, unless it is of a wider type
            if back is None or back.wider is not None:
                back = problem_of(self.kind, self.windows, (None, TAPS), self.kind.shape[2:])
            self.back = back
        output = _new(back.sizes, back.strides, dtype)
        spread = library.dmlpool_max_pooling_grad_from_taps
        are_ready = _lies_as(arriving, back, dtype) and _lies_as(taps, back, back.number_dtype)
        if are_ready:
            code = spread(back.address, arriving.data_ptr(), taps.data_ptr(), output.data_ptr())
            if code:
                raise error_of(spread, code)
            return output
        _check_fit(arriving, back.output_sizes, dtype)
        _check_fit(taps, back.output_sizes, back.number_dtype)
        return _run_kernel(output, spread, back, arriving, taps)

    def _problem(self, numbered: tuple[torch.dtype | None, int] | None) -> CpuProblem:
        return problem_of(self.kind, self.windows, numbered, are_minima=self.are_minima)

    def _fill(
        self,
        values: Tensor,
        problem: CpuProblem,
        input: Tensor,
        mask: Mask,
        winners_at: int | None,
    ) -> Tensor:
        """``values`` filled with a problem's maxima, whose numbers go to address ``winners_at``."""
        pool = library.dmlpool_max_pooling
        if mask is not None or not problem.is_ready:
            fill = lowest(values.dtype)
            if self.are_minima:
                fill = -fill if values.is_floating_point() else torch.iinfo(values.dtype).max
            return _run_kernel(
                values, pool, problem, input, mask=mask, fill=fill, more=(winners_at,)
            )
        code = pool(problem.address, input.data_ptr(), values.data_ptr(), winners_at)
        if code:
            raise error_of(pool, code)
        return values

    def _with_winners(self, input: Tensor, problem: CpuProblem, mask: Mask) -> Pair:
        """The maxima of a problem and the numbers of their winners."""
        source = input if problem.wider is None else input.to(problem.wider)
        values, winners = _results(problem, source.dtype), _results(problem, problem.number_dtype)
        self._fill(values, problem, source, mask, winners.data_ptr())
        if problem.wider is not None:
            # An empty window's maximum is the lowest value of the input's type, not of the wider
            # one.
            if not input.is_floating_point():
                values = values.clamp(min=lowest(input.dtype))
            values = values.to(input.dtype)
        return values, winners


_averages_plan, _maxima_plan = lru_cache(4096)(Averages), lru_cache(4096)(Maxima)
"""The plans of operators' calls; a call that is prepared keeps its own."""


def _kind_of_input(arriving: Tensor, sizes: Sizes, channels_last: bool) -> Kind:
    """The kind of an input of spatial ``sizes`` at whose results a gradient arrives."""
    return Kind((*arriving.shape[:2], *sizes), None, arriving.dtype, channels_last)


def masked(input: Tensor, mask: Tensor, fills_lowest: bool) -> Tensor:
    problem = remembered_problem(kind_of(input), input.shape[2:])
    output = _new(problem.sizes, problem.strides, input.dtype)
    fill = lowest(input.dtype) if fills_lowest else 0
    return _run_kernel(output, library.dmlpool_masked, problem, input, mask=mask, fill=fill)


def max_pooling(input: Tensor, window: Window, mask: Mask = None) -> Any:
    return _maxima_plan(kind_of(input), window).run(input, mask)


def max_pooling_with_taps(input: Tensor, window: Window, mask: Mask = None) -> Any:
    """Maxima and the taps of their winners. A window without an element has tap 0, or under a mask
    -1.
    """
    return _maxima_plan(kind_of(input), window).run_with_taps(input, mask)


def max_pooling_with_indices(
    input: Tensor, windows: AnyWindow, index_dtype: torch.dtype, per_plane: bool, mask: Mask = None
) -> Any:
    return _maxima_plan(kind_of(input), windows, Numbering(index_dtype, per_plane)).run(input, mask)


def _numbered(index_dtype: torch.dtype, per_plane: bool) -> tuple[torch.dtype, int]:
    """The data type of numbers of winners, and what they are."""
    return index_dtype, POSITIONS if per_plane else INDICES


def max_pooling_indices(
    taps: Tensor, spatial_sizes: Sizes, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Tensor:
    numbered = _numbered(index_dtype, per_plane)
    problem = remembered_problem(kind_of(taps), window, numbered, tuple(spatial_sizes))
    _check_fit(taps, problem.output_sizes, tap_dtype(window.taps))
    indices = _results(problem, index_dtype)
    return _run_kernel(indices, library.dmlpool_max_pooling_indices, problem, taps)


def max_pooling_grad_from_taps(
    arriving: Tensor, taps: Tensor, spatial_sizes: Sizes, window: Window, channels_last: bool
) -> Any:
    """The gradient of the input: each window's gradient is added to its winner's."""
    kind = _kind_of_input(arriving, spatial_sizes, channels_last)
    return _maxima_plan(kind, window).gradient(arriving, taps)


def max_unpooling(
    input: Tensor, indices: Tensor, spatial_sizes: Sizes, per_plane: bool, has_unique: bool
) -> tuple[Tensor, Tensor | None, bool]:
    """Zeros with each element at its index, with ``has_unique`` the positions that the gradient
    reads, and whether an index is outside its plane.
    """
    numbered, sizes = _numbered(indices.dtype, per_plane), tuple(spatial_sizes)
    problem = remembered_problem(kind_of(input), input.shape[2:], numbered, sizes)
    output, unique = _new(problem.sizes, problem.strides, input.dtype), None
    if has_unique:
        unique = _results(problem, position_dtype(spatial_sizes))
    if problem.is_empty:
        return output.zero_(), unique, False
    source, numbers = (in_format(each, problem.channels_last) for each in (input, indices))
    unpool = library.dmlpool_max_unpooling
    code = unpool(problem.address, *map(segments.address, (source, numbers, output, unique)))
    if code not in (DONE, OUTSIDE):
        raise error_of(unpool, code)
    return output, unique, code == OUTSIDE


def unique_positions(positions: Tensor, spatial_sizes: Sizes) -> Tensor:
    """Positions, with -1 for those outside the plane and for all but the last of equal ones."""
    numbered = position_dtype(spatial_sizes), POSITIONS
    sizes = tuple(spatial_sizes)
    problem = remembered_problem(kind_of(positions), positions.shape[2:], numbered, sizes)
    unique = _results(problem, problem.number_dtype)
    return _run_kernel(unique, library.dmlpool_unique_positions, problem, positions)


def gather_positions(input: Tensor, positions: Tensor, _: bool = False) -> Tensor:
    """The element at each position, 0 outside the plane.

    The last argument is unused: the operator has it for its adjoint.
    """
    dtype, numbered = input.dtype, (positions.dtype, POSITIONS)
    kind = Kind(positions.shape, positions.stride(), dtype)
    problem = remembered_problem(kind, positions.shape[2:], numbered, input.shape[2:])
    _check_fit(input, problem.sizes, dtype)
    gathered = _results(problem, dtype)
    return _run_kernel(gathered, library.dmlpool_gather_positions, problem, input, positions)


def scatter_positions(
    input: Tensor, positions: Tensor, spatial_sizes: Sizes, _: bool, channels_last: bool
) -> Tensor:
    """Zeros with each element added at its position. The operator's flag ``bins``, whether
    positions may be equal, makes no difference here.
    """
    dtype, numbered, sizes = input.dtype, (positions.dtype, POSITIONS), tuple(spatial_sizes)
    kind = Kind(positions.shape, None, dtype, channels_last)
    problem = remembered_problem(kind, positions.shape[2:], numbered, sizes)
    _check_fit(input, problem.output_sizes, dtype)
    scattered = _new(problem.sizes, problem.strides, dtype)
    return _run_kernel(scattered, library.dmlpool_scatter_positions, problem, input, positions)


def average_pooling(
    input: Tensor, windows: AnyWindow, include_padding: bool, divisor: Divisor, mask: Mask = None
) -> Any:
    """Averages of windows or bins."""
    return _averages_plan(kind_of(input), windows, include_padding, divisor).run(input, mask)


def average_pooling_grad(
    arriving: Tensor,
    spatial_sizes: Sizes,
    windows: AnyWindow,
    include_padding: bool,
    divisor: Divisor,
    mask: Mask = None,
) -> Any:
    """The gradient of an input of ``spatial_sizes``, which lies as ``arriving`` does."""
    kind = _kind_of_input(arriving, spatial_sizes, is_channels_last(arriving))
    return _averages_plan(kind, windows, include_padding, divisor).gradient(arriving, mask)


def quantized_averages(
    input: Tensor,
    parameters: Parameters,
    window: Window,
    include_padding: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    # This raises an error if a window does not fit.
    problem = remembered_problem(kind_of(input), window, counted=(include_padding, None))
    if window.taps > 1 << 20:  # a quotient in float64 may become a half that it is not
        slow = reference.quantized_averages
        return slow(input, parameters, window, include_padding, output_dtype)
    output = _results(problem, output_dtype)
    are_tensors = any(isinstance(each, Tensor) for each in parameters)
    # The numbers in a tensor may change, so their struct is not remembered.
    make_struct = quantization.__wrapped__ if are_tensors else quantization
    struct, _alive = make_struct(input.shape[1], output_dtype, parameters)
    pool, more = library.dmlpool_quantized_averages, (ctypes.addressof(struct),)
    return _run_kernel(output, pool, problem, input, more=more)


BACKEND = Backend.of(
    "cpu",
    vars(segments) | globals(),
    averages=Averages,
    maxima=Maxima,
    max_unpooling=max_unpooling,
    reads_masks=True,
    takes_bools=True,
)
