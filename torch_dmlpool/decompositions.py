"""Decompositions of the operators into ATen's, for programs that run without this package."""

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from torch_dmlpool import counterparts, tensors
from torch_dmlpool._private import OpOverload
from torch_dmlpool.backends import aten, reference
from torch_dmlpool.backends.reductions import are_ints, covers
from torch_dmlpool.registry import OPERATORS
from torch_dmlpool.window import AXIS_NAMES, Arguments, Divisor, Function, Sizes, Window

__all__ = ["decompositions"]
_ATEN = torch.ops.aten
_DYNAMIC = (
    "average_pooling",
    "max_pooling",
    "max_pooling_with_indices",
    "quantized_linear_average_pooling",
    "quantized_linear_average_pooling_of_numbers",
)
"""Operators that slices compute even where image sizes are dynamic. Batch sizes may be dynamic for
all operators."""


def decompositions(*, pools: Literal["aten", "slices"] = "aten") -> dict[OpOverload, Function]:
    """The table with which ``ExportedProgram.run_decompositions`` replaces the pooling operators by
    ATen's.

    Args:
        pools: ``"aten"`` makes ATen's pools wherever their windows are the same, and slices and
            maxima elsewhere. ``"slices"`` makes slices and maxima everywhere, for runtimes that
            have only a plain loop for a pool.

    Returns:
        A decomposition for each operator. Results are the operators' own, with two exceptions:
        ATen's averages have ATen's rounding, those of slices the error bound of rule E6; and of
        several NaN in a window ATen's indices name the last. With dynamic image sizes averages,
        maxima, maxima with indices, p-norms and quantized averages are decomposed, adaptive
        averages and maxima too where they become ATen's; the others stay operators.

    Raises:
        ValueError: ``pools`` is another value. While a program is decomposed: a window that depends
            on dynamic sizes, unless it covers the whole dimension without padding.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> from torch_dmlpool.decompositions import decompositions
        >>> layer = dmlpool.nn.MaxPool2d(3, 2, padding=1).eval()
        >>> program = torch.export.export(layer, (torch.ones(1, 3, 8, 8),))
        >>> program = program.run_decompositions(decompositions())
        >>> [node.name for node in program.graph.nodes if "pool" in str(node.target)]
        ['max_pool2d_with_indices']
    """
    if pools not in ("aten", "slices"):
        raise ValueError(f'pools must be "aten" or "slices", got {pools!r}')
    atens = _ATENS if pools == "aten" else {}

    def of(operator: Any) -> Function:
        pool = atens.get(operator.name)
        return lambda *arguments, **_: _decomposed(operator, arguments, pool, _DYNAMIC)

    return {operator.overload: of(operator) for operator in OPERATORS.values()}


def _decomposed(
    operator: Any, given: Arguments, pool: Function | None, dynamic: Sequence[str]
) -> Any:
    """The results of ATen's ``pool`` for a call of ``operator``, or else of the reference backend.
    NotImplemented, which keeps the call, if image sizes are dynamic, ATen has no such pool and
    ``dynamic`` does not name the operator.
    """
    # The reference reads the bits of elements, and the bits of a lazily negated view lack the
    # negation.
    arguments = [each.resolve_neg() if isinstance(each, Tensor) else each for each in given]
    if operator.is_composite:
        return operator.decomposed(tuple(arguments))
    input, before = arguments[0], operator.window_at
    lists: list[Any] = [each.shape[2:] if isinstance(each, Tensor) else each for each in arguments]
    is_known = all(are_ints(*each) for each in lists if isinstance(each, (list, tuple)))
    rank = input.dim() - 2
    if before is not None:
        window = Window.directml(rank, *lists[before : before + 6])
        arguments[before : before + 6] = [window]
    # ATen rejects integers in most of its pools.
    if pool and input.is_floating_point() and counterparts.takes("max_pool", rank, input):
        results = pool(*arguments)
        if results is not None:
            return results
    if operator.name in dynamic or is_known:
        sizes = zip(input.shape[2:], AXIS_NAMES[rank], strict=True)
        for axis, (size, dimension) in window.along(sizes) if before is not None else ():
            if type(axis.window) is not int and not covers(axis, size):
                raise ValueError(
                    "window_size depends on dynamic sizes in spatial dimension "
                    f"{dimension}: it can be decomposed if it is a number, or if it covers the "
                    "whole dimension without padding"
                )
        return operator.kernel_of(reference.BACKEND)(*arguments)
    return NotImplemented


def for_onnx(operator: Any, given: Arguments) -> Any:
    """The results in a program that PyTorch writes for ONNX by its own translations alone.

    These write plain maxima and averages right, but leave divisors out, fix the sizes of adaptive
    pools, and round quotients of dynamic sizes otherwise than Python. So other windows are taken
    apart if sizes are known. Else, and for indices, the result is NotImplemented.
    """
    if operator.name not in _IN_ONNX:
        return NotImplemented
    return _decomposed(operator, given, _IN_ONNX[operator.name], ())


def _averages_in_onnx(
    input: Tensor, window: Window, include_padding: bool, divisor: Divisor
) -> Tensor | None:
    same = counterparts.for_onnx(window, input.shape[2:], include_padding)
    return _averages(input, same[0], same[1], None) if same and divisor is None else None


def _maxima_in_onnx(input: Tensor, window: Window) -> Tensor | None:
    same = counterparts.for_onnx(window, input.shape[2:])
    return same and _maxima(input, same[0])


def _averages(
    input: Tensor, window: Window, include_padding: bool, divisor: Divisor
) -> Tensor | None:
    rank = window.rank
    if divisor is None and all(itertools.starmap(covers, window.along(input.shape[2:]))):
        mean = _ATEN.mean.dim(input, [*range(-1, -rank - 1, -1)], True)
        return tensors.laid_out_like(mean, input)
    arguments = aten.arguments_of("avg_pool", window, input.shape[2:])
    if arguments is None or not counterparts.takes("avg_pool", rank, input):
        return None
    sizes, strides, padding, _, ceil_mode = arguments
    pools = _ATEN.avg_pool2d.default, _ATEN.avg_pool3d.default
    return aten.called(pools, input, sizes, strides, padding, ceil_mode, include_padding, divisor)


def _maxima(input: Tensor, window: Window) -> Tensor | None:
    found = aten.max_pooled(input, window)
    return found and found[0]


def _maxima_with_indices(
    input: Tensor, window: Window, index_dtype: torch.dtype, per_plane: bool
) -> Any:
    found = aten.max_pooled(input, window)
    return found and (found[0], tensors.numbered(found[1], input.shape, index_dtype, per_plane))


def _bins(pools: Sequence[OpOverload], input: Tensor, output_sizes: Sizes) -> Any:
    return aten.called(pools, input, [1, *output_sizes] if len(output_sizes) == 1 else output_sizes)


def _bin_averages(input: Tensor, output_sizes: Sizes) -> Any:
    pools = _ATEN._adaptive_avg_pool2d.default, _ATEN._adaptive_avg_pool3d.default
    # ATen adds volumes of half precision in half precision (rule A4).
    wide = tensors.widened(input) if input.dim() == 5 else input
    return _bins(pools, wide, output_sizes).to(input.dtype)


def _bin_maxima(input: Tensor, output_sizes: Sizes) -> Any:
    if not are_ints(*output_sizes):
        return None
    pools = _ATEN.adaptive_max_pool2d.default, _ATEN.adaptive_max_pool3d.default
    values, positions = _bins(pools, input, output_sizes)
    return values, positions.to(tensors.position_dtype(input.shape[2:]))


_ATENS: dict[str, Function] = {
    "average_pooling": _averages,
    "max_pooling": _maxima,
    "max_pooling_with_indices": _maxima_with_indices,
    "adaptive_average_pooling": _bin_averages,
    "adaptive_max_pooling": _bin_maxima,
}
"""By the operator's name what makes ATen's pool of it, or returns None."""
_IN_ONNX = {
    "average_pooling": _averages_in_onnx,
    "max_pooling": _maxima_in_onnx,
    "adaptive_average_pooling": None,
    "lp_pooling": None,
}
"""The same where PyTorch's translations for ONNX write that; None for an operator that is taken
apart."""
