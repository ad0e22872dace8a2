"""Every form in which an operator of this package is exported to ONNX, by name; how forms are
exported, and how far a runtime's results may be off.

A form is a layer or a function with its inputs. Many are exported at a time, as it takes the
exporter longer to begin than to write a pool.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import operators
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool.onnx import translations

SIZES = {1: (8,), 2: (9, 8), 3: (5, 6, 4)}
"""Odd and even: padding ``"same"`` has the same ends in one dimension and others in another."""
LARGER = {1: (11,), 2: (8, 11), 3: (6, 7, 9)}


IN_EVERY_RANK = (
    "plain",
    "same",
    "first dimension padded",
    "ends unlike",
    "ceil",
    "windows in padding",
    "dilated",
)
"""Windows for one and three dimensions, where the others differ from these in nothing."""


@dataclass(frozen=True)
class Form:
    """A layer or function, what it is given, and how near to it a runtime must come."""

    name: str
    function: Callable[..., Any]
    input: Tensor
    larger: Tensor | None
    """An input of other sizes than what was exported; None where sizes cannot be dynamic."""
    bound: str = "equal"
    """How far results may be off: "equal", "close" for rounding, "step" for one of an integer."""
    is_refused_before_19: bool = False


def windows(rank):
    """Windows in the words of layers, with every kind of padding."""

    def window(size, stride, padding=0, **rest):
        return {"kernel_size": size, "stride": stride, "padding": padding, **rest}

    ones, zeros = (1,) * (rank - 1), (0,) * (rank - 1)
    every = {
        "plain": window(3, 2),
        "padded alike": window(3, 2, 1),
        "same": window(3, 2, "same"),
        "same, even window": window(2, 1, "same"),
        "same, gaps": window(2, 3, "same"),
        "first dimension padded": window((5, *ones), 1, (2, *zeros)),
        "last dimension padded": window((*ones, 5), 1, (*zeros, 2)),
        "ends unlike": window(3, 2, ((1, 0), (2, 1), (0, 2))[:rank]),
        "ends unlike, the other way": window(3, 1, ((0, 2), (1, 2), (2, 0))[:rank]),
        "ceil": window(3, 2, 1, ceil_mode=True),
        "ceil, not padded": window(3, 2, ceil_mode=True),
        "ceil, same": window(3, 2, "same", ceil_mode=True),
        "windows in padding": window(2, 1, 3),
        "dilated": window(2, 1, "same", dilation=2),
        "dilated, ends unlike": window(2, 2, ((1, 2), (0, 1), (2, 1))[:rank], dilation=2),
    }
    return every if rank == 2 else {name: every[name] for name in IN_EVERY_RANK}


def _inputs(rank, make, **options):
    return {
        "input": make(2, 3, *SIZES[rank], **options),
        "larger": make(3, 3, *LARGER[rank], **options),
    }


def _layer(name, rank):
    return getattr(dmlpool.nn, f"{name}{rank}d")


def _both(kind, layer, name, inputs, *size, **window):
    """A layer without and with indices."""
    return [
        Form(
            f"{kind}, indices {indices}, {name}",
            layer(*size, **window, return_indices=indices),
            **inputs,
        )
        for indices in (False, True)
    ]


def averages(rank):
    average, norm = _layer("AvgPool", rank), _layer("LPPool", rank)
    given: Any = {**_inputs(rank, samples.normal), "bound": "close"}
    for name, window in windows(rank).items():
        layers = {
            "counted": average(**window),
            "not counted": average(**window, count_include_pad=False),
            "divisor": average(**window, divisor_override=-5),
            "fractional norm": norm(2.5, **window),
        }
        for kind, layer in layers.items():
            yield Form(
                f"average, {kind}, {name}",
                layer,
                **given,
                is_refused_before_19="dilation" in window,
            )
        for p in (1, 2, 3, math.inf) if name == "same" else (2, math.inf):
            yield Form(f"norm {p}, {name}", norm(p, **window), **given)


def maxima(rank, make=samples.ties):
    given = _inputs(rank, make)
    for name, window in windows(rank).items():
        yield from _both("maximum", _layer("MaxPool", rank), name, given, **window)
    for index_dtype, padding in ((torch.int32, 0), (torch.int64, 1), (torch.int64, 3)):
        options = {"index_dtype": index_dtype, "start_padding": padding, "return_indices": True}
        function = functools.partial(dmlpool.max_pooling, window_size=3, strides=2, **options)
        yield Form(f"maximum, {index_dtype} of the tensor, {padding}", function, **given)


def minima(rank, make=samples.ties):
    """Maxima in the opposite order: one window of each kind, as the nodes between are theirs."""
    given, same = _inputs(rank, make), windows(rank)["same"]
    for name in ("plain", "same", "ceil", "windows in padding", "dilated"):
        yield from _both("minimum", _layer("MinPool", rank), name, given, **windows(rank)[name])
    for dtype in (torch.int8, torch.uint8, torch.int16, torch.int32, torch.float16):
        given = _inputs(rank, samples.ties, dtype=dtype)
        yield from _both("minimum", _layer("MinPool", rank), str(dtype), given, **same)
    for name, size in {"one": 1, "uneven": 3}.items():
        given = _inputs(rank, make) | ({} if name == "one" else {"larger": None})
        yield from _both("adaptive minimum", _layer("AdaptiveMinPool", rank), name, given, size)


def bools(rank):
    """Maxima and minima of bools, which runtimes pool as bytes."""
    given = _inputs(rank, samples.normal)
    layers = {
        f"{kind}, indices {indices}, {name}": _layer(f"{kind}Pool", rank)(
            **windows(rank)[name], return_indices=indices
        )
        for kind in ("Max", "Min")
        for name in ("plain", "same", "windows in padding")
        for indices in (False, True)
    }
    for kind in ("Max", "Min"):
        layers[f"{kind}, whole"] = _layer(f"Adaptive{kind}Pool", rank)(1)
    for name, layer in layers.items():
        yield Form(f"bool, {name}", lambda x, layer=layer: layer(x > 0.5), **given)


def _masked(layer, per_sample, input):
    """A layer's result under a mask, some of whose windows have no element."""
    return layer(input, mask=(input[:, :1] if per_sample else input) > 0)


def _masked_above(layer, per_sample, input):
    """Maxima likewise, without what a runtime may make of -inf or inf."""
    values, *indices = samples.listed(_masked(layer, per_sample, input))
    return [values.clamp(-100, 100), *indices]


def masked(rank, is_exact=False):
    given = _inputs(rank, samples.normal)
    if rank == 3:
        # PyTorch takes the size of an intermediate result for fixed where the example's is 1.
        given["input"] = samples.normal(2, 3, 5, 6, 5)
    for number, (name, window) in enumerate(windows(rank).items()):
        layers = {
            f"{kind}, indices {indices}": _layer(f"{kind}Pool", rank)(
                **window, return_indices=indices
            )
            for kind in ("Max", "Min")
            for indices in (False, True)
        }
        if not is_exact:
            average = _layer("AvgPool", rank)
            layers |= {
                "average": average(**window, count_include_pad=False),
                "average, counted": average(**window),
                "average, divisor": average(**window, divisor_override=3),
                "norm": _layer("LPPool", rank)(2, **window),
            }
        yield from _under_masks(layers, number % 2 == 1, name, given, is_exact)
    for size, per_sample in itertools.product((1, 3), (False, True)):
        layers = {
            f"maximum, indices {indices}": _layer("AdaptiveMaxPool", rank)(
                size, return_indices=indices
            )
            for indices in (False, True)
        }
        if not is_exact:
            layers["average"] = _layer("AdaptiveAvgPool", rank)(size)
        fixed = {} if size == 1 else {"larger": None}
        yield from _under_masks(layers, per_sample, f"to {size}", {**given, **fixed}, is_exact)


def _under_masks(layers, per_sample, name, given, is_exact):
    for kind, layer in layers.items():
        is_maximum = "indices" in kind
        function = _masked_above if is_maximum and not is_exact else _masked
        yield Form(
            f"masked {kind}, per {'sample' if per_sample else 'element'}, {name}",
            functools.partial(function, layer, per_sample),
            **given,
            bound="equal" if is_maximum else "close",
            is_refused_before_19="average" in kind and "dilated" in name,
        )


def types(rank):
    window = windows(rank)["same"]
    narrow = [dtype for dtype in samples.INTEGERS if dtype.itemsize < 8]
    for dtype in (*narrow, torch.float16):
        given = _inputs(rank, samples.ties, dtype=dtype)
        yield from _both("maximum", _layer("MaxPool", rank), str(dtype), given, **window)
    for dtype in (torch.float16, torch.bfloat16):
        layer = _layer("AvgPool", rank)(**window)
        yield Form(
            f"average, {dtype}",
            lambda x, layer=layer, dtype=dtype: layer(x.to(dtype)).float(),
            **_inputs(rank, samples.normal),
            bound="half",
        )


def whole_planes(rank):
    """Windows as long as the input, and adaptive pooling."""
    floats, ties = _inputs(rank, samples.normal), _inputs(rank, samples.ties)
    row = (1,) * (rank - 1)
    functions: dict[str, Callable[[Tensor], Any]] = {
        "average, whole": lambda x: dmlpool.average_pooling(x, x.shape[2:]),
        "average, whole rows": lambda x: dmlpool.average_pooling(x, (*row, x.shape[-1])),
        "norm 2, whole": lambda x: dmlpool.lp_pooling(x, x.shape[2:]),
        "norm 2.5, whole": lambda x: dmlpool.lp_pooling(x, x.shape[2:], p=2.5),
        "norm inf, whole": lambda x: dmlpool.lp_pooling(x, x.shape[2:], p=math.inf),
    }
    for name, function in functions.items():
        yield Form(name, function, **floats, bound="close")
    for indices in (False, True):
        yield Form(
            f"maximum, whole, indices {indices}",
            lambda x, indices=indices: dmlpool.max_pooling(x, x.shape[2:], return_indices=indices),
            **ties,
        )
    halves = tuple(size // 2 if size % 2 == 0 else 1 for size in SIZES[rank])
    for name, size in {"one": 1, "none": None, "even": halves, "uneven": 3}.items():
        larger = {} if name in ("one", "none") else {"larger": None}
        average = _layer("AdaptiveAvgPool", rank)(size)
        yield Form(f"adaptive average, {name}", average, **{**floats, **larger}, bound="close")
        maximum = _layer("AdaptiveMaxPool", rank)
        yield from _both("adaptive maximum", maximum, name, {**ties, **larger}, size)


QUANTIZATION: dict[str, dict[str, Any]] = {
    "uint8": {"input_scale": 0.75, "input_zero_point": 130, "output_scale": 0.5},
    "uint8 to int8": {
        "input_scale": 0.75,
        "input_zero_point": 7,
        "output_scale": 0.5,
        "output_zero_point": -3,
        "output_dtype": torch.int8,
    },
    "per channel": {
        "input_scale": torch.tensor([0.5, 0.25, 1.5]),
        "input_zero_point": torch.tensor([3, 4, 251], dtype=torch.uint8),
        "output_scale": 0.5,
        "output_zero_point": 9,
    },
}


def quantized(rank, bound="step"):
    given = _inputs(rank, samples.integers, dtype=torch.uint8)
    kinds = [(scales, counted) for scales in QUANTIZATION for counted in (True, False)]
    for number, (name, window) in enumerate(windows(rank).items()):
        # Each window with scales of every kind, counted or not in turn, and uint8 in both ways.
        for scales, counted in kinds[:2] + kinds[2 + number % 2 :: 2]:
            yield Form(
                f"quantized, {scales}, counted {counted}, {name}",
                operators.QuantizedAverages(rank, window, counted, **QUANTIZATION[scales]),
                **given,
                bound=bound,
                is_refused_before_19="dilation" in window,
            )
    scales = {**QUANTIZATION["uint8"], "output_zero_point": 3}
    yield Form(
        "quantized, whole",
        lambda x: dmlpool.quantized_linear_average_pooling(x, **scales, window_size=x.shape[2:]),
        **given,
        bound=bound,
    )


class Unpooled(torch.nn.Module):
    """What a pool has kept, changed, back in its place."""

    def __init__(self, rank, window, is_sized):
        super().__init__()
        self.pool = _layer("MaxPool", rank)(**window, return_indices=True)
        self.unpool, self.is_sized = _layer("MaxUnpool", rank)(**window), is_sized

    def forward(self, input):
        values, indices = self.pool(input)
        return self.unpool(values + 1, indices, input.shape if self.is_sized else None)


def _in_its_tensor(input):
    """By indices that count in the whole tensor, -1 of windows in padding among them."""
    values, indices = dmlpool.max_pooling(input, 3, 2, 4, return_indices=True)
    return dmlpool.max_unpooling(values, indices, input.shape)


def _one_after_another(input):
    """Several elements with one index, of which the last stays."""
    _, indices = dmlpool.max_pooling(input, 3, 1, 1, 1, return_indices=True)
    return dmlpool.max_unpooling(input, indices, input.shape)


def unpooling(rank):
    ties = _inputs(rank, samples.ties)
    for name in ("plain", "same", "first dimension padded", "ends unlike"):
        layer = Unpooled(rank, windows(rank)[name], True)
        yield Form(f"unpooling, sized, {name}", layer, **ties)
    even = {"input": samples.ties(2, 3, *[8] * rank), "larger": samples.ties(3, 3, *[6] * rank)}
    yield Form("unpooling", Unpooled(rank, {"kernel_size": 2}, False), **even)
    for dtype in (torch.float32, torch.float16, torch.int8, torch.int32):
        given = _inputs(rank, samples.ties, dtype=dtype)
        yield Form(f"unpooling, in its tensor, {dtype}", _in_its_tensor, **given)
    yield Form("unpooling, several alike", _one_after_another, **ties)


def first_half(rank, exact):
    """Everything but what `second_half` has; with ``exact`` what is exported otherwise then."""
    if exact:
        return [*maxima(rank, samples.special), *quantized(rank, "equal"), *unpooling(rank)]
    families = (averages, maxima, types, whole_planes, quantized, unpooling)
    return [form for family in families for form in family(rank)]


def second_half(rank, exact):
    """Minima, bools and masks, which are made of the others."""
    if exact:
        return [*minima(rank, samples.special), *masked(rank, is_exact=True)]
    return [form for family in (minima, bools, masked) for form in family(rank)]


HALVES = {"maxima and averages": first_half, "minima and masks": second_half}


BOUNDS = {"close": 2e-5, "half": 8e-3}


def complaint(form, results, wanted):
    """How what a runtime gave differs from the form; nothing if it is near enough."""
    for result, tensor in zip(results, wanted, strict=True):
        array = samples.to_numpy(tensor)
        if result.shape != array.shape or result.dtype != array.dtype:
            return f"{result.shape} {result.dtype} instead of {array.shape} {array.dtype}"
        if form.bound == "equal" or (form.bound == "close" and array.dtype.kind != "f"):
            if not np.array_equal(result, array, equal_nan=array.dtype.kind == "f"):
                return f"{(result != array).sum()} of {array.size} unlike"
        elif form.bound == "step":
            steps = np.abs(result.astype(int) - array.astype(int)).max()
            if steps > 1:
                return f"{steps} steps off"
        else:
            bound = BOUNDS[form.bound]
            if not np.allclose(result, array, rtol=bound, atol=bound, equal_nan=True):
                return f"off by {np.abs(result - array).max()}"
    return ""


def with_ceil_mode(is_read_alike=True):
    """Windows with ``ceil_mode`` that become one node without a table; and others, which need known
    sizes.
    """
    pools, nn = {}, dmlpool.nn
    if is_read_alike:
        pools = {
            "GoogLeNet and SqueezeNet": nn.MaxPool2d(3, 2, ceil_mode=True),
            "maxima, padded": nn.MaxPool2d(3, 2, 1, ceil_mode=True),
            "ResNet-D": nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False),
            "nothing to count": nn.AvgPool2d(3, 2, ceil_mode=True),
            "padding not counted": nn.AvgPool2d(3, 2, 1, True, count_include_pad=False),
        }
    else:
        pools = {
            "a window that starts past the input": nn.MaxPool2d(2, 2, 1, ceil_mode=True),
            "another one": nn.MaxPool2d((3, 1), (2, 3), ceil_mode=True),
            "padding counted": nn.AvgPool2d(3, 2, 1, ceil_mode=True),
            "unlike paddings counted": nn.AvgPool2d((3, 1), 1, (1, 0)),
        }
    inputs = samples.ties(2, 3, 14, 13), samples.ties(3, 3, 16, 19)
    return [Form(name, layer, *inputs, "close") for name, layer in pools.items()]


@functools.cache
def _known(make):
    return functools.cache(make)


@contextlib.contextmanager
def quiet():
    """The exporter says that it converts to older opsets. PyTorch's table of translations is made
    once, which takes as long as exporting a small model."""
    from torch.onnx._internal.exporter import _registration

    apis: Any = _registration.onnxscript_apis
    logging.disable(logging.WARNING)
    try:
        with mock.patch.object(apis, "get_torchlib_ops", _known(apis.get_torchlib_ops)):
            yield
    finally:
        logging.disable(logging.NOTSET)


def export(model, inputs, *, table, **options):
    """A model, or what ``torch.export`` has captured, as ONNX with this package's translations, or
    without if ``table`` is None.
    """
    table_of_ours = None if table is None else translations(**table)
    with quiet():
        return torch.onnx.export(
            model,
            tuple(inputs),
            dynamo=True,
            verbose=False,
            custom_translation_table=table_of_ours,
            **options,
        )


class Shared(torch.nn.Module):
    """Forms side by side, on as few inputs as have their types and values."""

    def __init__(self, forms):
        super().__init__()
        self.forms, self.inputs, self.larger = list(forms), [], []
        self.places: list[int] = []
        for form in forms:
            pairs = zip(self.inputs, self.larger, strict=True)
            alike = [place for place, pair in enumerate(pairs) if _are_alike(form, *pair)]
            if not alike:
                self.inputs.append(form.input)
                self.larger.append(form.larger)
            self.places += alike or [len(self.inputs) - 1]

    def forward(self, *inputs):
        return [
            samples.listed(form.function(inputs[place]))
            for form, place in zip(self.forms, self.places, strict=True)
        ]

    def dynamic_shapes(self, dynamic):
        """Every batch and image size open, or none."""
        any_size = torch.export.Dim.DYNAMIC
        shapes = [dict.fromkeys([0, *range(2, each.dim())], any_size) for each in self.inputs]
        return (tuple(shapes),) if dynamic else None


def _are_alike(form, input, larger):
    def bits(tensor):
        return None if tensor is None else (tensor.dtype, samples.bits(tensor).tobytes())

    return bits(form.input) == bits(input) and bits(form.larger) == bits(larger)
