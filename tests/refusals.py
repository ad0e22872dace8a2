"""Every public argument with every kind of wrong value, which tests/test_refusals.py tries.

A request is refused if it raises; what it raises is kept in tests/refusals.md, which the test
compares word for word. ``python tests/refusals.py`` writes that page anew.
"""

import functools
import inspect
import itertools
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cases
import operators
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import nn
from torch_dmlpool.nn import functional

PAGE = Path(__file__).with_suffix(".md")


class Wrong(NamedTuple):
    """A value that must be refused, by what the page calls it."""

    name: str
    value: Any


class Request(NamedTuple):
    """A call that is right but for one argument."""

    function: str
    argument: str
    wrong: str
    call: Callable[[], object]


class Refused(NamedTuple):
    """What a request raises."""

    argument: str
    wrong: str
    kind: str
    message: str


def plainly(*values):
    return [Wrong(repr(value), value) for value in values]


def named(*values):
    return [Wrong(str(value), value) for value in values]


Row = tuple[str, Callable[..., object], dict[str, Any], dict[str, list[Wrong]]]
"""A name, what is called, right arguments, and wrong ones."""
SPATIAL = (6, 4, 5)
"""Spatial sizes of the right inputs: as many of the last as there are dimensions."""


def planes(rank=2, dtype=torch.float32):
    return torch.ones(2, 3, *SPATIAL[-rank:]).to(dtype)


def quietly(make, *arguments):
    """PyTorch warns of what is a prototype there; here it is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make(*arguments)


def of_type(dtype, tensor=None):
    tensor = planes() if tensor is None else tensor
    return Wrong(f"a tensor of {str(dtype)[6:]}", quietly(tensor.to, dtype))


def of_shape(*sizes, dtype=torch.float32):
    return Wrong(f"a tensor of shape {sizes}", torch.ones(sizes).to(dtype))


def of_shapes(*shapes, dtype=torch.float32):
    return [of_shape(*sizes, dtype=dtype) for sizes in shapes]


def elsewhere(*sizes, dtype=torch.float32):
    return Wrong("a tensor on another device", torch.ones(sizes, dtype=dtype, device="meta"))


def ranks(dtype=torch.float32):
    return of_shapes((), (5,), (4, 5), (1, 1, 2, 3, 4, 5), dtype=dtype)


def empty_planes(dtype=torch.float32):
    return of_shapes((2, 3, 0, 5), (2, 3, 4, 0), (0, 3, 0, 5), dtype=dtype)


QUANTIZED = quietly(torch.quantize_per_tensor, planes(), 0.5, 4, torch.quint8)
NESTED = quietly(torch.nested.nested_tensor, [torch.ones(3, 4, 5)] * 2)
NOT_TENSORS = [*plainly(None, 3, "image"), Wrong("a nested list", [[[[1.0]]]])]
NOT_TENSORS += [Wrong("a NumPy array", planes().numpy())]
NOT_DENSE = [Wrong("a sparse tensor", quietly(planes().to_sparse))]
NOT_DENSE += [Wrong("a nested tensor", NESTED)]
NOT_PLAIN = [Wrong("a quantized tensor", QUANTIZED)]
UNPOOLED = [*map(of_type, (torch.bool, torch.complex64, torch.float8_e4m3fn))]
NOT_ORDERED, NOT_AVERAGED = UNPOOLED[1:], UNPOOLED[::2]
INTEGERS = [*map(of_type, (torch.int32, torch.uint8))]
NEITHER = [*NOT_TENSORS, *NOT_DENSE, *NOT_PLAIN]
FLOAT_TENSORS = [*NEITHER, *UNPOOLED, *INTEGERS, *ranks()]
AVERAGED = [*NEITHER, *NOT_AVERAGED, *INTEGERS, *ranks()]
ORDERED = [*NEITHER, *NOT_ORDERED, *ranks(), *empty_planes()]
UNPOOLABLE = [*NEITHER, *NOT_AVERAGED, *ranks()]
INTEGER_TENSORS = [*NOT_TENSORS, *NOT_PLAIN, *UNPOOLED, of_type(torch.int32)]
INTEGER_TENSORS += [of_type(torch.float32), *ranks(torch.uint8)]

NOT_INTS = plainly(2.0, math.nan, "2", True, (2, None), (2, True), {2, 3})
NOT_INTS += [Wrong("a tensor of two ints", torch.tensor([2, 2]))]
COUNTS = plainly((), (2,), (2, 2, 2), [2, 2, 2, 2])
ABSURD = plainly(2**31, 2**40, 2**62, 2**63, 2**200, (1, 2**31))
AT_LEAST_1 = [*NOT_INTS, *COUNTS, *plainly(0, -1, (1, 0), -(2**63)), *ABSURD]
AT_LEAST_0 = [*NOT_INTS, *COUNTS, *plainly(-1, (0, -4), -(2**63)), *ABSURD]
TOO_LARGE = plainly(5, (4, 6), 2**31 - 1)
FLAGS = plainly(1, 0, None, "yes")
DIVISORS = plainly(0, 2.0, True, "2", (2, 2), 2**63, -(2**63) - 1, 2**200)
DIVISORS += [Wrong("a tensor", torch.tensor(2.0))]
NORMS = plainly(0, 0.5, -1, -math.inf, math.nan, True, None, "2", (2,), 2j, 2**1100)
INDEX_TYPES = named(torch.float32, torch.int8, torch.uint16, torch.bool, int, None)
INDEX_TYPES += plainly("int64")
MASKS = [
    *plainly(True, "mask", [True, False]),
    *(of_type(dtype, torch.ones(2, 1, 4, 5)) for dtype in (torch.float32, torch.uint8)),
    *of_shapes((), (5,), (3, 4, 5), (1, 2, 3, 4, 5), (2, 5), (2, 1, 2, 5), dtype=torch.bool),
    Wrong("a sparse tensor", torch.ones(4, 5, dtype=torch.bool).to_sparse()),
    elsewhere(4, 5, dtype=torch.bool),
]
SHAPES = (2, 3, 4, 5), (1, 3, 3, 4), (2, 4, 3, 4), (2, 3, 4, 3), (2, 3, 3), (2, 3, 1, 3, 4)
GRADIENTS = [
    *NOT_TENSORS,
    *NOT_DENSE,
    *UNPOOLED,
    *(of_type(dtype, torch.ones(2, 3, 3, 4)) for dtype in (torch.float64, torch.float16)),
    elsewhere(2, 3, 3, 4),
    *of_shapes(*SHAPES),
]
SIZES = [
    *plainly(5, None, "size", (), (4, 5), (1, 2, 3, 4, 5), (2, 3, 4.0, 5), (2, True, 4, 5)),
    *plainly((2, 3, 4, 6), (1, 3, 4, 5), (2, -3, 4, 5), (2, 3, 0, 5), (2, 3, -4, 5)),
    *plainly((2, 3, 4, 2**62), (2, 3, 4, 2**200)),
    Wrong("a tensor", torch.tensor([2, 3, 4, 5])),
]
OUTPUT_SIZES = plainly(2.0, "7", True, (1, 2, 3), (), (2, 2.0), (None, "2"), -1, (1, -1))
OUTPUT_SIZES += ABSURD
SCALES = [
    *plainly(0.0, -0.5, math.nan, math.inf, 1e-50, 1e39, "0.1", True, 1j, (0.1, 0.2, 0.3)),
    Wrong("a tensor of 0", torch.zeros(())),
    *(
        Wrong(f"a channel of {value}", torch.tensor([0.5, value, 2.0]))
        for value in (-1.0, math.nan, math.inf)
    ),
    *of_shapes((2,), (3, 1), (1, 3, 1), (1, 3, 1, 2), (2, 3, 4, 5), (0,)),
    Wrong("a tensor of int32", torch.ones((), dtype=torch.int32)),
    Wrong("a sparse tensor", torch.ones(3).to_sparse()),
    elsewhere(),
]
REQUIRED_SCALES = [*SCALES, *plainly(None)]
REQUIRED_SCALES += [Wrong("a scale that requires a gradient", torch.ones(3, requires_grad=True))]
ZERO_POINTS = [
    *plainly(256, -1, 2**62, 2**200, 1.5, math.nan, True, "3", (3,)),
    *of_shapes((2,), (3, 1), (0,), dtype=torch.uint8),
    elsewhere(dtype=torch.uint8),
]
PLAIN_ZERO_POINTS = [*ZERO_POINTS, of_type(torch.int8, torch.tensor(3))]
PLAIN_ZERO_POINTS += [of_type(torch.int64, torch.tensor(3))]
ANY_ZERO_POINTS = [*ZERO_POINTS, Wrong("a tensor of 256", torch.tensor(256))]
ANY_ZERO_POINTS += [of_type(torch.float32, torch.tensor(3))]
QUANTIZED_INTEGERS = [*named(torch.int32, torch.float32, int), *plainly("int8")]
INDICES = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
ALL_INDICES = [
    *NOT_TENSORS,
    *NOT_DENSE,
    *UNPOOLED,
    *(of_type(dtype, INDICES) for dtype in (torch.float32, torch.int16, torch.uint8)),
    *of_shapes((2, 3, 4, 4), (3, 4, 5), dtype=torch.int64),
    Wrong("a tensor on another device", INDICES.to("meta")),
    Wrong("an index past its plane", torch.where(INDICES == 7, 20, INDICES)),
    Wrong("an index below its plane", torch.where(INDICES == 27, 0, INDICES)),
    Wrong("an index of -2", torch.where(INDICES == 7, -2, INDICES)),
    Wrong("an index of 2**62", torch.where(INDICES == 7, 2**62, INDICES)),
]


def per_channel(zero_points, axis):
    scales = torch.ones(len(zero_points))
    return quietly(torch.quantize_per_channel, planes(), scales, zero_points, axis, torch.quint8)


QUANTIZED_TENSORS = [
    *NOT_TENSORS,
    *map(of_type, (torch.float32, torch.uint8)),
    Wrong("a tensor of qint32", torch.quantize_per_tensor(planes(), 0.5, 3, torch.qint32)),
    Wrong("a tensor quantized along axis 0", per_channel(torch.zeros(2).long(), 0)),
    Wrong("a tensor quantized with float zero points", per_channel(torch.ones(3) / 2, 1)),
    Wrong("a tensor of two dimensions", QUANTIZED[0, 0]),
]

WRONG: dict[str, list[Wrong]] = {
    "input": [*FLOAT_TENSORS, *empty_planes()],
    "window_size": [*AT_LEAST_1, *plainly(None), *TOO_LARGE],
    "strides": [*AT_LEAST_1, *plainly(None)],
    "start_padding": [*AT_LEAST_0, *plainly(None)],
    "end_padding": [*AT_LEAST_0, *plainly(None)],
    "dilations": [*AT_LEAST_1, *plainly(None, 2**31 - 1)],
    "ceil_mode": FLAGS,
    "include_padding": FLAGS,
    "divisor_override": DIVISORS,
    "input_gradient": GRADIENTS,
    "input_size": SIZES,
    "return_indices": FLAGS,
    "index_dtype": INDEX_TYPES,
    "p": NORMS,
    "mask": MASKS,
    "output_size": OUTPUT_SIZES,
    "indices": ALL_INDICES,
    "input_scale": REQUIRED_SCALES,
    "input_zero_point": PLAIN_ZERO_POINTS,
    "output_scale": SCALES,
    "output_zero_point": ANY_ZERO_POINTS,
    "output_dtype": QUANTIZED_INTEGERS,
}
"""What is wrong of an argument in DirectML's words, wherever no function has values of its own."""
POOLED: dict[str, Any] = {"input": planes(), "window_size": 2}
BINNED: dict[str, Any] = {"input": planes(), "output_size": 2}
RECORDED: dict[str, Any] = {"input_gradient": torch.ones(2, 3, 3, 4), "window_size": 2}
SCALED: dict[str, Any] = {"input_scale": 0.5, "input_zero_point": 3, "output_scale": 0.25}
REDUCTIONS = plainly("median", "", None, 3, ["mean"])
OFFSETS = [
    *NOT_TENSORS,
    *(
        Wrong(f"offsets {each}", torch.tensor(each).long())
        for each in ([], [0, 5, 3], [-1, 9], [0, 10])
    ),
    of_type(torch.float32, torch.tensor([0, 9])),
    of_shape(1, 2, dtype=torch.int64),
    elsewhere(2, dtype=torch.int64),
]
ROW_MASKS = [*plainly(True), of_type(torch.float32, torch.ones(9))]
ROW_MASKS += of_shapes((8,), (9, 1), dtype=torch.bool)
FUNCTIONS: dict[Callable[..., object], tuple[dict[str, Any], dict[str, list[Wrong]]]] = {
    dmlpool.average_pooling: (POOLED, {"input": [*AVERAGED, *empty_planes()]}),
    dmlpool.average_pooling_grad: (
        {**RECORDED, "input_size": (2, 3, 4, 5)},
        {"input_gradient": [*AVERAGED, *GRADIENTS[-6:]]},
    ),
    dmlpool.max_pooling: (POOLED, {"input": ORDERED}),
    dmlpool.min_pooling: (POOLED, {"input": ORDERED}),
    dmlpool.max_pooling_grad: ({**RECORDED, "input": planes()}, {}),
    dmlpool.lp_pooling: (POOLED, {}),
    dmlpool.adaptive_average_pooling: (BINNED, {"input": [*AVERAGED, *empty_planes()]}),
    dmlpool.adaptive_max_pooling: (BINNED, {"input": ORDERED}),
    dmlpool.adaptive_min_pooling: (BINNED, {"input": ORDERED}),
    dmlpool.max_unpooling: (
        {"input": planes(), "indices": INDICES, "output_size": (2, 3, 4, 5)},
        {"input": UNPOOLABLE, "output_size": [*SIZES[:8], *SIZES[9:13], SIZES[-1]]},
    ),
    dmlpool.quantized_linear_average_pooling: (
        {**POOLED, "input": planes(dtype=torch.uint8), **SCALED, "output_zero_point": None},
        {
            "input": [*INTEGER_TENSORS, *empty_planes(torch.uint8)],
            "output_scale": REQUIRED_SCALES,
            "output_zero_point": [*ZERO_POINTS, PLAIN_ZERO_POINTS[-1]],
            "output_dtype": [*QUANTIZED_INTEGERS, *named(torch.quint8)],
        },
    ),
    dmlpool.quantized_average_pooling: (
        {**POOLED, "input": QUANTIZED},
        {"input": QUANTIZED_TENSORS, "output_dtype": [*QUANTIZED_INTEGERS, *named(torch.qint32)]},
    ),
    dmlpool.quantized_max_pooling: ({**POOLED, "input": QUANTIZED}, {"input": QUANTIZED_TENSORS}),
    dmlpool.segment_pooling: (
        {"input": torch.ones(9, 4), "offsets": torch.tensor([0, 9])},
        {
            "input": [*NEITHER, *UNPOOLED, *INTEGERS, of_shape()],
            "offsets": OFFSETS,
            "reduction": REDUCTIONS,
            "mask": ROW_MASKS,
            "return_indices": [Wrong("True for a mean", True)],
        },
    ),
    dmlpool.token_pooling: (
        {"tokens": torch.ones(1, 9, 4)},
        {
            "tokens": [*NEITHER, *UNPOOLED, *INTEGERS, *of_shapes((9, 4), (1, 9, 4, 1))],
            "mask": [*ROW_MASKS[:2], *of_shapes((9,), (1, 8), dtype=torch.bool)],
            "reduction": REDUCTIONS,
        },
    ),
    dmlpool.statistics_pooling: (
        {"input": planes()},
        {"input": FLOAT_TENSORS, "correction": plainly(-1, 1.5, True, None), "mask": MASKS},
    ),
}
"""The functions in DirectML's words: a right request, and wrong values that are its own."""

OF_PLAIN_TENSORS = [
    function.__name__
    for function, (right, _) in FUNCTIONS.items()
    if right.get("input") is not QUANTIZED
]

# The registered operators, as compiled graphs and exported programs call them by name. What their
# schemas do not take is PyTorch's to refuse.

CASE = cases.Case((cases.Edge("rows", 4, window=2), cases.Edge("columns", 5, window=2)))
"""The request that is right above."""
BY_SCHEMA = {"ceil_mode", "include_padding", "per_plane", "channels_last", "bins"}
OUTPUT = 2, 3, 3, 4


def taken(values):
    """Those that a schema takes where it has a tensor, but for nested ones, which PyTorch does not
    pass on to an operator without a derivative."""
    return [
        each
        for each in values
        if each.value is None or (isinstance(each.value, Tensor) and not each.value.is_nested)
    ]


def recorded(right, *types):
    """Wrong tensors where one of the output's sizes is right: wrong whatever there is besides, for
    the window, and beside another tensor."""
    return [
        *taken([*NEITHER, *UNPOOLED]),
        *(of_type(each, torch.ones(OUTPUT)) for each in types),
        *ranks(right),
        *of_shapes((2, 3, 3), (2, 3, 3, 4, 1), (2, 3, 4, 4), (2, 3, 3, 5), dtype=right),
        *of_shapes((1, 3, 3, 4), (2, 4, 3, 4), dtype=right),
        elsewhere(*OUTPUT, dtype=right),
    ]


ALONE, FOR_WINDOWS = slice(-7), slice(-3)
"""Those that are wrong whatever there is besides, and they with those wrong for the window."""
ARRIVING = recorded(torch.float32, torch.int32, torch.uint8)
TAPS = recorded(torch.uint8, torch.float32, torch.int16, torch.int64)
POSITIONS = recorded(torch.int32, torch.float32, torch.int16, torch.uint8)
OTHER_TYPES = [of_type(each, torch.ones(OUTPUT)) for each in (torch.float64, torch.float16)]
FLOATS = taken([*FLOAT_TENSORS, *empty_planes()])
ORDERS = taken([*NEITHER, *UNPOOLED, *ranks(), *empty_planes()])
OTHERS = [elsewhere(2, 3, 4, 5), *of_shapes((2, 3, 5, 5), (2, 3, 4, 6))]
"""Wrong for the input beside what has sizes that follow from it."""
SIZES_BY_NAME = plainly([], [4], [4, 5, 1], [0, 5], [4, -2], [-4, -5], [2**62, 2])
RECORDED_SIZES = {"spatial_sizes": [*SIZES_BY_NAME, *plainly([12, 5], [4, 3])]}
SCALE_NUMBERS = plainly(0.0, -0.5, math.nan, math.inf, 1e39)
BY_NAME: dict[str, list[Wrong]] = {
    "input": FLOATS,
    **{
        name: plainly([], [2], [2, 2, 2], [1, -1], [2**31, 1], *more)
        for name, more in {
            "window_size": ([0, 1], [1, 40], [2**31 - 1, 1]),
            "strides": ([0, 1],),
            "start_padding": (),
            "end_padding": (),
            "dilations": ([0, 1], [20, 20]),
        }.items()
    },
    "divisor_override": plainly(0),
    "index_dtype": INDEX_TYPES[:4],
    "p": plainly(0.0, 0.5, -1.0, math.nan),
    "mask": [*NOT_TENSORS[:1], *MASKS[3:]],
    "spatial_sizes": SIZES_BY_NAME,
    "output_sizes": SIZES_BY_NAME,
    "output_dtype": QUANTIZED_INTEGERS[:2],
}
"""What is wrong of an argument, wherever no operator has values of its own."""
OPERATORS: dict[str, dict[str, list[Wrong]]] = {
    "average_pooling_grad": {"input_gradient": ARRIVING[FOR_WINDOWS], **RECORDED_SIZES},
    "max_pooling": {"input": ORDERS},
    "max_pooling_with_taps": {"input": ORDERS},
    "max_pooling_with_indices": {"input": ORDERS},
    "max_pooling_indices": {"taps": TAPS[FOR_WINDOWS], **RECORDED_SIZES},
    "max_pooling_grad": {
        "input": [*FLOATS, *OTHERS, *map(of_type, (torch.float64, torch.float16))],
        "input_gradient": [*ARRIVING, *OTHER_TYPES],
    },
    "max_pooling_grad_from_taps": {"input_gradient": ARRIVING, "taps": TAPS, **RECORDED_SIZES},
    "max_pooling_gather": {"input": [*FLOATS, *OTHERS], "taps": TAPS},
    "masked_average_pooling": {"input": [*FLOATS, *OTHERS]},
    "masked_max_pooling": {"input": [*ORDERS, *OTHERS]},
    "masked_max_pooling_with_indices": {"input": [*ORDERS, *OTHERS]},
    "adaptive_average_pooling_grad": {"input_gradient": FLOATS},
    "adaptive_max_pooling": {"input": ORDERS},
    "max_unpooling": {"input": ORDERS, "indices": recorded(torch.int64, torch.float32)},
    "unique_positions": {"positions": POSITIONS[ALONE]},
    "gather_positions": {
        "input": [*ORDERS, *OTHERS[:1]],
        "positions": [*POSITIONS[:-5], *POSITIONS[-3:]],  # without other spatial sizes
    },
    "scatter_positions": {"input": ARRIVING, "positions": POSITIONS},
    "quantized_linear_average_pooling": {
        "input": [*taken(INTEGER_TENSORS), *empty_planes(torch.int8), *OTHERS[:1]],
        "input_scale": taken(REQUIRED_SCALES),
        "input_zero_point": taken([*ZERO_POINTS, *PLAIN_ZERO_POINTS[-1:]]),
        "output_scale": taken(REQUIRED_SCALES),
        "output_zero_point": taken(PLAIN_ZERO_POINTS),
    },
    "quantized_linear_average_pooling_of_numbers": {
        "input": [*taken(INTEGER_TENSORS), *empty_planes(torch.int8)],
        "input_scale": SCALE_NUMBERS,
        "input_zero_point": plainly(128, -129),
        "output_scale": SCALE_NUMBERS,
        "output_zero_point": plainly(256, -1),
    },
}


def operator_rows():
    for name, values in operators.calls_of(CASE).items():
        operator = getattr(operators.operators, name).default
        arguments = [each.name for each in operator._schema.arguments if not each.kwarg_only]
        right = dict(zip(arguments, map(samples.plain, values), strict=True))
        table = {**BY_NAME, **OPERATORS.get(name, {})}
        wrong = {each: table[each] for each in arguments if each not in BY_SCHEMA}
        yield f"ops.{name}", operator, right, wrong


# PyTorch's words, for each number of dimensions: its own few values where the code is shared.


def as_torch(values):
    """Without an empty stride and lists of one entry, which PyTorch reads as nothing and as one
    int."""
    return [value for value in values if value.name not in {"()", "(2,)"}]


def arguments_of(function, values):
    """Those of the values that the function has arguments for."""
    return {name: values[name] for name in values if name in inspect.signature(function).parameters}


PADDINGS = plainly(None, "full", "causal", "SAME", ((1, 0),), ((1, 0), (1,)), ((0, 0), (-1, 0)))
PADDINGS += plainly(((0, 0.5), (0, 0)), (1, 1, 0, 0))
FOR_IMAGES: dict[str, list[Wrong]] = {
    **WRONG,
    "kernel_size": [*as_torch(AT_LEAST_1), *plainly((), None)],
    "stride": as_torch(AT_LEAST_1),
    "padding": [*as_torch(AT_LEAST_0), *PADDINGS],
    "dilation": as_torch(AT_LEAST_1),
    "count_include_pad": FLAGS,
    "norm_type": NORMS,
}
FEW: dict[str, list[Wrong]] = {
    "kernel_size": plainly(2.0, 0, (2, 2, 2, 2), 2**31),
    "stride": plainly(True, 0, (2, 2, 2, 2), 2**40),
    "padding": plainly("full", -1, (1, 1, 1, 1), 2**62),
    "dilation": plainly("2", 0, (2, 2, 2, 2), 2**31),
    "ceil_mode": plainly(1),
    "output_size": plainly(2.0, -1, (2, 2, 2, 2), 2**31),
}
RIGHT = {"kernel_size": 2, "output_size": 2, "norm_type": 2}
LAYERS = ["AvgPool", "MaxPool", "MinPool", "LPPool", "AdaptiveAvgPool", "AdaptiveMaxPool"]
LAYERS += ["AdaptiveMinPool", "MaxUnpool"]
NOT_IMAGES = [*NOT_TENSORS[:3], of_shape(5), of_shape(1, 1, 2, 3, 4, 5)]


def too_small(rank):
    """Inputs that no window of 2 fits, with samples and without."""
    return of_shapes((2, 3, *(1,) * rank), (3, *(1,) * rank))


def wrong_images(layer, rank):
    types = [*NOT_DENSE[:1], *NOT_PLAIN, *UNPOOLED[:1], *INTEGERS[:1]]
    if layer == "MaxUnpool":
        types.pop()
    elif "Max" in layer or "Min" in layer:
        types[2:] = NOT_ORDERED[:1]
    if layer not in ("LPPool", "MaxUnpool"):  # the others take quantized tensors
        types.pop(1)
    small = [] if layer.startswith("Adaptive") or layer == "MaxUnpool" else too_small(rank)
    if rank == 2:
        return [*NOT_IMAGES, *types, *small]
    return [*NOT_IMAGES[:1], *([of_shape(2, 3, *SPATIAL, 7)] * (rank == 3)), *small]


def unpooling_rows(rank):
    """Right indices, and wrong values of what only unpooling takes."""
    sizes = SPATIAL[-rank:]
    indices = torch.arange(math.prod(sizes)).view(sizes).expand(2, 3, *sizes)
    wrong = [
        *NOT_TENSORS[:1],
        Wrong("a tensor of float32", planes(rank)),
        Wrong("a tensor on another device", indices.to("meta")),
        Wrong("an index past the plane", indices + 2**40),
        of_shape(2, 3, *sizes[:-1], 3, dtype=torch.int64),
    ]
    return indices, {
        "indices": wrong,
        "output_size": plainly(12, "8", *([(3,), (40, 40)] if rank == 2 else [])),
    }


def torch_rows(rank):
    """The functions of nn.functional and the layers of nn."""
    for layer in LAYERS:
        kind = getattr(nn, f"{layer}{rank}d")
        family = re.sub("(?<=[a-z])(?=[A-Z])|(?<=LP)", "_", layer).lower()
        wrong, right = (
            arguments_of(kind, FOR_IMAGES if rank == 2 else FEW),
            arguments_of(kind, RIGHT),
        )
        tensors, wrong_tensors = {"input": planes(rank)}, {"input": wrong_images(layer, rank)}
        more: dict[str, list[Wrong]] = {}
        if layer == "MaxUnpool":
            tensors["indices"], unpooled = unpooling_rows(rank)
            wrong_tensors |= unpooled
            if rank > 1:
                more["output_size"] = [*unpooled["output_size"], *plainly((2, 3, 8))]
        else:
            mask = of_shape(3, *SPATIAL[-rank:], dtype=torch.bool)
            wrong_tensors["mask"] = MASKS if rank == 2 else [*MASKS[:1], MASKS[3], mask]
        wrongs = {"": wrong | wrong_tensors | more}
        if layer.endswith("MaxPool"):
            # Its return_indices is ignored, as torch's is.
            wrongs["_with_indices"] = arguments_of(kind, FEW) | wrong_tensors
        for ending, values in wrongs.items():
            name = f"{family}{rank}d{ending}"
            yield f"nn.functional.{name}", getattr(functional, name), tensors | right, values
        yield f"nn.{layer}{rank}d", kind, right, wrong
        yield f"nn.{layer}{rank}d", _forward(kind, right), tensors, wrong_tensors
        if layer != "MaxUnpool":
            mask = of_shape(1, 3, *SPATIAL[-rank:], dtype=torch.bool)
            image = {"input": planes(rank)[0]}
            yield f"nn.{layer}{rank}d", _forward(kind, right), image, {"mask": [mask]}


def _forward(kind, arguments):
    return lambda **tensors: kind(**arguments)(**tensors)


def rows():
    for function, (right, own) in FUNCTIONS.items():
        yield function.__name__, function, right, arguments_of(function, WRONG | own)
    for rank in (1, 2, 3):
        yield from torch_rows(rank)
    yield from operator_rows()
    for layer in (nn.SegmentPool, nn.TokenPool):
        yield f"nn.{layer.__name__}", layer, {}, {"reduction": REDUCTIONS}
    pooled: Callable[..., object] = lambda correction=1: nn.StatisticsPool(correction)(planes())  # noqa: E731
    yield "nn.StatisticsPool", pooled, {}, {"correction": plainly(-1, 1.5)}


def right_requests():
    """A call of everything with nothing wrong in it."""
    return [functools.partial(function, **right) for _, function, right, _ in rows()]


@functools.cache
def requests():
    """All requests, by the function or layer that they are made of."""
    found: dict[str, list[Request]] = {}
    for name, function, right, wrong in rows():
        for argument, values in wrong.items():
            for value in values:
                call = functools.partial(function, **{**right, argument: value.value})
                found.setdefault(name, []).append(Request(name, argument, value.name, call))
    return found


KINDS = {
    TypeError: "TypeError",
    dmlpool.ArgumentError: "ValueError",
    RuntimeError: "RuntimeError",
}


def refusal(request):
    """What a request raises; an exception of another kind, or none, is passed on."""
    try:
        result = request.call()
    except tuple(KINDS) as error:
        kind = next(name for kind, name in KINDS.items() if isinstance(error, kind))
        return Refused(request.argument, request.wrong, kind, str(error))
    call = f"{request.function} accepted {request.argument}={request.wrong}"
    raise AssertionError(f"{call}: {type(result).__name__}")


ABOUT = """# All error messages

Each row is a call with one wrong argument, the error that it raises before anything is computed, and the
functions, layers and operators (`ops` is `torch.ops.dmlpool`) that raise it. The tests make each call and
compare the whole message.
`python tests/refusals.py` writes this page; `docs/errors.md` has the frequent messages with what to do.
The other arguments are right: inputs of shape (2, 3, 5), (2, 3, 4, 5) or (2, 3, 6, 4, 5), and windows of size 2.
"""  # noqa: E501


def page(refused):
    """tests/refusals.md: one section per argument, one row per wrong value and message."""
    arguments: dict[str, list[Refused]] = {}
    for row in refused:
        arguments.setdefault(row.argument, []).append(row)
    text = ABOUT
    for argument, rows in arguments.items():
        text += f"\n## `{argument}`\n\n| value | raises | message | where |\n"
        text += "| --- | --- | --- | --- |\n"
        for row in rows:
            message = row.message.replace("|", "\\|").replace("\n", " ")
            where = ", ".join(dict.fromkeys(refused[row]))
            text += f"| {row.wrong} | {row.kind} | {message} | {where} |\n"
    return text


def collected():
    """Every refusal with the functions and layers that give it."""
    found: dict[Refused, list[str]] = {}
    for request in itertools.chain(*requests().values()):
        found.setdefault(refusal(request), []).append(request.function)
    return found


if __name__ == "__main__":
    PAGE.write_text(page(collected()))
