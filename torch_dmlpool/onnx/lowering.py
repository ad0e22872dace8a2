"""Nodes in the graph that is exported, and windows in a form that every runtime reads in the same
way.
"""

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from torch_dmlpool import counterparts
from torch_dmlpool.window import AXIS_NAMES, Axis, Window

Pair: TypeAlias = tuple[Any, Any]
# Numbers, and values that the graph computes.
Entries: TypeAlias = Sequence[Any]


class Asked(NamedTuple):
    """A window as an operator's schema has it: numbers, and values that the graph computes."""

    window_size: Entries
    strides: Entries
    start_padding: Entries
    end_padding: Entries
    dilations: Entries
    ceil_mode: bool


class Emitter:
    """Writes nodes to the graph that is being exported.

    The exporter's values have Python's operators. Numbers, and lists of numbers and values, may be
    passed to a node for constants where it takes int64, or a type that is not the input's.
    Constants of all other types are made by :meth:`constant`.
    """

    def __init__(self, exact: bool) -> None:
        from onnxscript import evaluator, ir

        self.exact, self.ir, self.types = exact, ir, ir.DataType
        self.op: Any = evaluator.default().opset  # type: ignore[attr-defined]
        """ONNX's operators in the version that is exported."""

    def constant(self, values: Any, dtype: Any) -> Any:
        """A constant of the ONNX type ``dtype``."""
        return self.op.Constant(value=self.ir.tensor(values, dtype=dtype))

    def cast(self, value: Any, before: Any, after: Any) -> Any:
        """``value``, which has type ``before``, in type ``after``."""
        return value if before == after else self.op.Cast(value, to=after)

    def reduced(self, kind: str, tensor: Any, axes: Any = None, keepdims: int = 0) -> Any:
        """The Reduce node of this ``kind``, over all dimensions or ``axes``."""
        result = getattr(self.op, f"Reduce{kind}")(tensor, axes, keepdims=keepdims)
        # The exporter writes this attribute although it has its default value. Opsets before 18
        # lack it, and tools that convert models to them leave it in.
        result.producer().attributes.pop("noop_with_empty_axes", None)
        return result

    def widened(self, input: Any) -> Pair:
        """``input`` in float32 instead of half precision, and its type then (rule A4)."""
        types = self.types
        dtype = types.FLOAT if input.dtype in (types.FLOAT16, types.BFLOAT16) else input.dtype
        return self.cast(input, input.dtype, dtype), dtype


def spatial_sizes(input: Any) -> list[Any]:
    """Spatial sizes; None for what is not known before the model runs."""
    return [size if isinstance(size, int) else None for size in input.shape[2:]]


def _is_whole(entry: Any, size: Any) -> bool:
    """Whether a window's size is the input's own size, also if both are known only when the model
    runs.
    """
    if entry is size or isinstance(entry, int) or isinstance(size, int):
        return bool(entry == size)
    origin = entry.producer()
    node = origin and origin.meta.get("node")
    value = node and node.meta.get("val")
    # Both are printed from PyTorch's own expressions.
    return isinstance(value, torch.SymInt) and str(value.node) == size.value


def _numbers(name: str, entries: Entries) -> list[int]:
    """``entries`` of the argument ``name``; rejects those that are known only when the
    model runs.
    """
    for entry, dimension in zip(entries, AXIS_NAMES[len(entries)], strict=True):
        if not isinstance(entry, int):
            raise ValueError(
                f"{name} depends on dynamic sizes in spatial dimension {dimension}, but ONNX's "
                "nodes hold numbers: export with fixed spatial sizes, or let the window cover "
                "whole dimensions without padding"
            )
    return list(entries)


class InputWindow:
    """A window over an input, in a form that every runtime reads in the same way: without
    ``ceil_mode``. Lists have an entry for each dimension.

    - ``sizes``: the input's, None where a size is open; ``window``: with the padding that is known
    - ``start``, ``after``: the padding, numbers or values that the graph computes
    - ``overhang``: elements that ``ceil_mode`` lets the last window reach past the padding
    - ``end``: ``after`` and ``overhang``, what a node pads
    - ``cut``: whether windows that start past an input of open size are sliced off the results
    - ``may_be_empty``: whether a window may read padding alone
    """

    def __init__(
        self,
        emit: Emitter,
        input: Any,
        asked: Asked,
        reduced: Sequence[bool] = (),
        source: Any = None,
    ) -> None:
        """``reduced`` says which dimensions a reduction has already taken to one element;
        ``source`` is its result, None if there was none.
        """
        window_size, strides, starts, ends, dilations, ceil_mode = asked
        self.emit, self.sizes = emit, spatial_sizes(input)
        self.input = input if source is None else source
        if any(reduced):
            lists = window_size, strides, self.sizes
            window_size, strides, self.sizes = (
                [1 if done else entry for done, entry in zip(reduced, each, strict=True)]
                for each in lists
            )
        windows = _numbers("window_size", window_size)
        steps, gaps = _numbers("strides", strides), _numbers("dilations", dilations)
        # Only padding may be computed in the graph, as that of "same" is: then a Pad node pads.
        self.start, self.after = starts, ends
        self.is_computed = not all(isinstance(pad, int) for pad in (*starts, *ends))
        before, after = (
            [pad if isinstance(pad, int) else 0 for pad in side] for side in (starts, ends)
        )
        self.window = Window.directml(len(windows), windows, steps, before, after, gaps, ceil_mode)
        axes = list(self.window.along(self.sizes))
        self.overhang = [_overhang(axis, size) for axis, size in axes]
        self.end = list(map(operator.add, ends, self.overhang))
        self.cut = [
            size is None
            and ceil_mode
            and (not isinstance(end, int) or counterparts.starts_past(axis, size))
            for (axis, size), end in zip(axes, ends, strict=True)
        ]
        pads = zip(windows * 2, [*starts, *self.end], strict=True)
        self.is_padded = self.is_computed or any(padding >= window for window, padding in pads)
        """Whether a Pad node is needed: runtimes reject padding that reaches the window's size."""
        self.may_be_empty = self.is_computed or any(axis.may_be_empty(size) for axis, size in axes)
        self.is_dilated = any(axis.dilation != 1 for axis in self.window.axes)

    @property
    def attributes(self) -> dict[str, list[int]]:
        """The window as nodes have it, without padding."""
        window_size, strides, _, _, dilations, _ = self.window.arguments
        shape = {"kernel_shape": window_size, "strides": strides}
        return shape | ({"dilations": dilations} if self.is_dilated else {})

    def counts_padding(self, include_padding: bool) -> bool:
        """Whether ``include_padding`` is True and there is padding to count."""
        return include_padding and (self.is_computed or any((*self.start, *self.after)))

    def run(self, operator: str, tensor: Any, fill: Any, dtype: Any, **attributes: Any) -> Any:
        """A pooling node over ``tensor``, which has the input's spatial sizes; ``fill`` is what
        padding holds.
        """
        op = self.emit.op
        attributes |= self.attributes
        if self.is_dilated and operator == "AveragePool" and op.version < 19:
            raise ValueError(f"dilations of averages need opset 19, got opset_version={op.version}")
        pads = [*self.start, *self.end]
        may_be_miscounted = "count_include_pad" in attributes and op.version >= 19
        if self.is_padded or (may_be_miscounted and counterparts.is_miscounted(pads, self.end)):
            tensor = self.pad(tensor, self.start, self.end, fill, dtype)
        elif any(pads):
            attributes["pads"] = pads
        return self.sliced(getattr(op, operator)(tensor, **attributes))

    def pad(self, tensor: Any, start: Entries, end: Entries, fill: Any, dtype: Any) -> Any:
        """``tensor`` with ``fill`` around it."""
        op, pads = self.emit.op, [0, 0, 0, *start, 0, 0, 0, *end]
        # ONNX Runtime merges a Pad node of zeros into the pooling node after it, whatever it pads
        # and even if that node takes maxima. A leading dimension that is added and removed again,
        # at no cost, keeps the two apart.
        return op.Squeeze(
            op.Pad(op.Unsqueeze(tensor, [0]), pads, self.emit.constant(fill, dtype)), [0]
        )

    def sliced(self, pooled: Any) -> Any:
        """``pooled`` without windows that start past the input (rule G3)."""
        if not any(self.cut):
            return pooled
        if isinstance(pooled, Sequence):
            return tuple(self.sliced(output) for output in pooled)
        op, ends = self.emit.op, {}
        for number, (axis, start, after) in enumerate(
            zip(self.window.axes, self.start, self.after, strict=True), 2
        ):
            if self.cut[number - 2]:
                size = op.Shape(self.input, start=number, end=number + 1)
                starting_inside = op.Div(size + (start + axis.stride - 1), axis.stride)
                ends[number] = op.Max(
                    op.Div(size + (start + after - axis.extent), axis.stride) + 1, starting_inside
                )
        return op.Slice(pooled, [0] * len(ends), op.Concat(*ends.values(), axis=0), list(ends))

    def ones(self) -> Any:
        """A plane of ones in float32, of the input's spatial sizes."""
        op, types = self.emit.op, self.emit.types
        batch = self.emit.constant([1, 1], types.INT64)
        shape = op.Concat(batch, op.Shape(self.input, start=2), axis=0)
        return op.ConstantOfShape(shape, value=self.emit.ir.tensor([1.0], dtype=types.FLOAT))

    def empty_windows(self) -> Any:
        """A mask of the windows that read no element; None where there are none."""
        if not self.may_be_empty:
            return None
        inside = self.run("MaxPool", self.ones(), 0.0, self.emit.types.FLOAT)[0]
        # A runtime may give its lowest number for an empty window.
        return self.emit.op.Not(inside > 0.0)

    def counts(self, include_padding: bool, dtype: Any) -> Any:
        """The number of taps that each window counts, at least 1 (rules A1 to A3)."""
        op, float32 = self.emit.op, self.emit.types.FLOAT
        mask, start, end = self.ones(), self.start, self.end
        if include_padding:
            mask = self.pad(mask, start, self.after, 1.0, float32)
            start, end = [0] * self.window.rank, self.overhang
        shares = self.sliced(
            op.AveragePool(self.pad(mask, start, end, 0.0, float32), **self.attributes)
        )
        return self.emit.cast(
            op.Max(op.Round(shares * float(self.window.taps)), 1.0), float32, dtype
        )

    def shares(self, tensor: Any, dtype: Any) -> Any:
        """Sums over windows, divided by the number of taps of the whole window."""
        return self.run("AveragePool", tensor, 0.0, dtype, count_include_pad=1)

    def sums(self, tensor: Any, dtype: Any) -> Any:
        """Sums over windows."""
        return self.shares(tensor, dtype) * self.emit.constant(float(self.window.taps), dtype)


def _overhang(axis: Axis, size: int | None) -> int:
    """The end padding that stands for ``ceil_mode``; for dynamic sizes the most that it can be."""
    if not axis.ceil_mode:
        return 0
    if size is None:
        return axis.stride - 1
    last = axis.first_position(axis.output_size(size) - 1) + axis.extent
    return max(0, last - size - axis.end_padding)


def reducible(input: Any, asked: Asked) -> list[bool]:
    """For each dimension, whether the window covers it from end to end. Then a reduction takes the
    place of the window, and the size may be dynamic.
    """
    window_size, _, starts, ends, dilations, _ = asked
    along = zip(window_size, input.shape[2:], starts, ends, dilations, strict=True)
    return [
        _is_whole(entry, size) and start == end == 0 and step == 1
        for entry, size, start, end, step in along
    ]
