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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import nn
from torch_dmlpool.nn import functional, quantized

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


def plainly(*values: object) -> list[Wrong]:
    return [Wrong(repr(value), value) for value in values]


SPATIAL = (6, 4, 5)
"""Spatial sizes of the right inputs: as many of the last as there are dimensions."""


def planes(rank: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(2, 3, *SPATIAL[-rank:]).to(dtype)


def quietly(make: Callable[[], Tensor]) -> Tensor:
    """PyTorch warns of what is a prototype there; here it is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def quantized_planes(scale: float = 0.5) -> Tensor:
    return quietly(lambda: torch.quantize_per_tensor(planes(), scale, 4, torch.quint8))


NOT_TENSORS = [*plainly(None, 3, "image"), Wrong("a nested list", [[[[1.0]]]])]
NOT_TENSORS += [Wrong("a NumPy array", planes().numpy())]
NOT_DENSE = [
    Wrong("a sparse tensor", quietly(lambda: planes().to_sparse())),
    Wrong(
        "a nested tensor", quietly(lambda: torch.nested.nested_tensor([torch.ones(3, 4, 5)] * 2))
    ),
]
NOT_PLAIN = [Wrong("a quantized tensor", quantized_planes())]


def of_type(dtype: torch.dtype, tensor: Tensor | None = None) -> Wrong:
    return Wrong(
        f"a tensor of {str(dtype)[6:]}",
        quietly(lambda: (planes() if tensor is None else tensor).to(dtype)),
    )


UNPOOLED = [*map(of_type, (torch.bool, torch.complex64, torch.float8_e4m3fn))]
NOT_ORDERED, NOT_AVERAGED = UNPOOLED[1:], UNPOOLED[::2]
INTEGERS = [*map(of_type, (torch.int32, torch.uint8))]


def of_shape(*sizes: int, dtype: torch.dtype = torch.float32) -> Wrong:
    return Wrong(f"a tensor of shape {sizes}", torch.ones(sizes).to(dtype))


def ranks(dtype: torch.dtype = torch.float32) -> list[Wrong]:
    return [of_shape(*sizes, dtype=dtype) for sizes in ((), (5,), (4, 5), (1, 1, 2, 3, 4, 5))]


def empty_planes(dtype: torch.dtype = torch.float32) -> list[Wrong]:
    return [of_shape(*sizes, dtype=dtype) for sizes in ((2, 3, 0, 5), (2, 3, 4, 0), (0, 3, 0, 5))]


FLOAT_TENSORS = [*NOT_TENSORS, *NOT_DENSE, *NOT_PLAIN, *UNPOOLED, *INTEGERS, *ranks()]
AVERAGED = [*NOT_TENSORS, *NOT_DENSE, *NOT_PLAIN, *NOT_AVERAGED, *INTEGERS, *ranks()]
UNPOOLABLE = [*NOT_TENSORS, *NOT_DENSE, *NOT_PLAIN, *NOT_AVERAGED, *ranks()]
INTEGER_TENSORS = [
    *NOT_TENSORS,
    *NOT_PLAIN,
    *UNPOOLED,
    of_type(torch.int32),
    of_type(torch.float32),
    *ranks(torch.uint8),
]

NOT_INTS = [
    *plainly(2.0, math.nan, "2", True, (2, None), (2, True), {2, 3}),
    Wrong("a tensor of two ints", torch.tensor([2, 2])),
]
COUNTS = plainly((), (2,), (2, 2, 2), [2, 2, 2, 2])
ABSURD = plainly(2**31, 2**40, 2**62, 2**63, 2**200, (1, 2**31))
AT_LEAST_1 = [*NOT_INTS, *COUNTS, *plainly(0, -1, (1, 0), -(2**63)), *ABSURD]
AT_LEAST_0 = [*NOT_INTS, *COUNTS, *plainly(-1, (0, -4), -(2**63)), *ABSURD]
TOO_LARGE = plainly(5, (4, 6), 2**31 - 1)
FLAGS = plainly(1, 0, None, "yes")
DIVISORS = [
    *plainly(0, 2.0, True, "2", (2, 2), 2**63, -(2**63) - 1, 2**200),
    Wrong("a tensor", torch.tensor(2)),
]
NORMS = plainly(0, 0.5, -1, -math.inf, math.nan, True, None, "2", (2,), 2j, 2**1100)
INDEX_TYPES = [
    Wrong(str(value), value)
    for value in (torch.float32, torch.int8, torch.uint16, torch.bool, int, None)
]
INDEX_TYPES += plainly("int64")
MASKS = [
    *plainly(True, "mask", [True, False]),
    *(of_type(dtype, torch.ones(2, 1, 4, 5)) for dtype in (torch.float32, torch.uint8)),
    *(of_shape(*sizes, dtype=torch.bool) for sizes in ((2, 5), (2, 4, 5), (1, 2, 3, 4, 5))),
    of_shape(2, 1, 2, 5, dtype=torch.bool),
    Wrong("a sparse tensor", torch.ones(4, 5, dtype=torch.bool).to_sparse()),
    Wrong("a tensor on another device", torch.ones(4, 5, dtype=torch.bool, device="meta")),
]
GRADIENTS = [
    *NOT_TENSORS,
    *NOT_DENSE,
    *UNPOOLED,
    *(of_type(dtype, torch.ones(2, 3, 3, 4)) for dtype in (torch.float64, torch.float16)),
    Wrong("a tensor on another device", torch.ones(2, 3, 3, 4, device="meta")),
    *itertools.starmap(
        of_shape,
        ((2, 3, 4, 5), (1, 3, 3, 4), (2, 4, 3, 4), (2, 3, 4, 3), (2, 3, 3), (2, 3, 1, 3, 4)),
    ),
]
SIZES = [
    *plainly(
        5,
        None,
        "size",
        (),
        (4, 5),
        (1, 2, 3, 4, 5),
        (2, 3, 4.0, 5),
        (2, True, 4, 5),
        (2, 3, 4, 6),
        (1, 3, 4, 5),
    ),
    *plainly((2, -3, 4, 5), (2, 3, 0, 5), (2, 3, -4, 5), (2, 3, 4, 2**62), (2, 3, 4, 2**200)),
    Wrong("a tensor", torch.tensor([2, 3, 4, 5])),
]
OUTPUT_SIZES = [
    *plainly(2.0, "7", True, (1, 2, 3), (), (2, 2.0), (None, "2"), -1, (1, -1)),
    *ABSURD,
]


def channelwise(value: float) -> Tensor:
    return torch.tensor([0.5, value, 2.0])


SCALES = [
    *plainly(0.0, -0.5, math.nan, math.inf, 1e-50, 1e39, "0.1", True, 1j, (0.1, 0.2, 0.3)),
    Wrong("a tensor of 0", torch.zeros(())),
    *(Wrong(f"a channel of {value}", channelwise(value)) for value in (-1.0, math.nan, math.inf)),
    *(of_shape(*sizes) for sizes in ((2,), (3, 1), (1, 3, 1), (1, 3, 1, 2), (2, 3, 4, 5), (0,))),
    Wrong("a tensor of int32", torch.ones((), dtype=torch.int32)),
    Wrong("a sparse tensor", torch.ones(3).to_sparse()),
    Wrong("a tensor on another device", torch.ones((), device="meta")),
]
REQUIRED_SCALES = [
    *SCALES,
    *plainly(None),
    Wrong("a scale that requires a gradient", torch.ones(3, requires_grad=True)),
]
ZERO_POINTS = [
    *plainly(256, -1, 2**62, 2**200, 1.5, math.nan, True, "3", (3,)),
    *(
        Wrong(f"a tensor of shape {sizes}", torch.zeros(sizes, dtype=torch.uint8))
        for sizes in ((2,), (3, 1), (0,))
    ),
    Wrong("a tensor on another device", torch.zeros((), dtype=torch.uint8, device="meta")),
]
PLAIN_ZERO_POINTS = [
    *ZERO_POINTS,
    *(of_type(dtype, torch.tensor(3)) for dtype in (torch.int8, torch.int64)),
]
ANY_ZERO_POINTS = [
    *ZERO_POINTS,
    Wrong("a tensor of 256", torch.tensor(256)),
    of_type(torch.float32, torch.tensor(3)),
]
QUANTIZED_TYPES = [
    Wrong(str(value), value) for value in (torch.int32, torch.float32, int)
] + plainly("int8")
INDICES = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)
ALL_INDICES = [
    *NOT_TENSORS,
    *NOT_DENSE,
    *UNPOOLED,
    *(of_type(dtype, INDICES) for dtype in (torch.float32, torch.int16, torch.uint8)),
    of_shape(2, 3, 4, 4, dtype=torch.int64),
    of_shape(3, 4, 5, dtype=torch.int64),
    Wrong("a tensor on another device", INDICES.to("meta")),
    Wrong("an index past its plane", torch.where(INDICES == 7, 20, INDICES)),
    Wrong("an index below its plane", torch.where(INDICES == 27, 0, INDICES)),
    Wrong("an index of -2", torch.where(INDICES == 7, -2, INDICES)),
    Wrong("an index of 2**62", torch.where(INDICES == 7, 2**62, INDICES)),
]

SCALES_AND_ZEROS = (
    (torch.ones(2), torch.zeros(2, dtype=torch.int64)),
    (torch.ones(3), torch.ones(3) / 2),
)
QUANTIZED_TENSORS = [
    *NOT_TENSORS,
    *map(of_type, (torch.float32, torch.uint8)),
    *(
        Wrong(name, quietly(make))
        for name, make in {
            "a tensor of qint32": lambda: torch.quantize_per_tensor(planes(), 0.5, 3, torch.qint32),
            "a tensor quantized along axis 0": lambda: torch.quantize_per_channel(
                planes(), *SCALES_AND_ZEROS[0], 0, torch.quint8
            ),
            "a tensor quantized with float zero points": lambda: torch.quantize_per_channel(
                planes(), *SCALES_AND_ZEROS[1], 1, torch.quint8
            ),
            "a tensor of two dimensions": lambda: torch.quantize_per_tensor(
                planes()[0, 0], 1.0, 0, torch.qint8
            ),
        }.items()
    ),
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
    "output_dtype": QUANTIZED_TYPES,
}
"""What is wrong of an argument in DirectML's words, wherever no function has values of its own."""
ORDERED = [*NOT_TENSORS, *NOT_DENSE, *NOT_PLAIN, *NOT_ORDERED, *ranks(), *empty_planes()]
FUNCTIONS: dict[Callable[..., object], tuple[dict[str, Any], dict[str, list[Wrong]]]] = {
    dmlpool.average_pooling: (
        {"input": planes(), "window_size": 2},
        {"input": [*AVERAGED, *empty_planes()]},
    ),
    dmlpool.average_pooling_grad: (
        {"input_gradient": torch.ones(2, 3, 3, 4), "input_size": (2, 3, 4, 5), "window_size": 2},
        {"input_gradient": [*AVERAGED, *GRADIENTS[-6:]]},
    ),
    dmlpool.max_pooling: ({"input": planes(), "window_size": 2}, {"input": ORDERED}),
    dmlpool.min_pooling: ({"input": planes(), "window_size": 2}, {"input": ORDERED}),
    dmlpool.max_pooling_grad: (
        {"input": planes(), "input_gradient": torch.ones(2, 3, 3, 4), "window_size": 2},
        {},
    ),
    dmlpool.lp_pooling: ({"input": planes(), "window_size": 2}, {}),
    dmlpool.adaptive_average_pooling: (
        {"input": planes(), "output_size": 2},
        {"input": [*AVERAGED, *empty_planes()]},
    ),
    dmlpool.adaptive_max_pooling: ({"input": planes(), "output_size": 2}, {"input": ORDERED}),
    dmlpool.adaptive_min_pooling: ({"input": planes(), "output_size": 2}, {"input": ORDERED}),
    dmlpool.max_unpooling: (
        {"input": planes(), "indices": INDICES, "output_size": (2, 3, 4, 5)},
        {"input": UNPOOLABLE, "output_size": [*SIZES[:8], *SIZES[9:13], SIZES[-1]]},
    ),
    dmlpool.quantized_linear_average_pooling: (
        {
            **{
                "input": planes(dtype=torch.uint8),
                "window_size": 2,
                "input_scale": 0.5,
                "input_zero_point": 3,
            },
            **{"output_scale": 0.25, "output_zero_point": None},
        },
        {
            "input": [*INTEGER_TENSORS, *empty_planes(torch.uint8)],
            "output_scale": REQUIRED_SCALES,
            "output_zero_point": [*ZERO_POINTS, PLAIN_ZERO_POINTS[-1]],
            "output_dtype": [*QUANTIZED_TYPES, Wrong("torch.quint8", torch.quint8)],
        },
    ),
    dmlpool.quantized_average_pooling: (
        {"input": quantized_planes(), "window_size": 2},
        {
            "input": QUANTIZED_TENSORS,
            "output_dtype": [*QUANTIZED_TYPES, Wrong("torch.qint32", torch.qint32)],
        },
    ),
    dmlpool.quantized_max_pooling: (
        {"input": quantized_planes(), "window_size": 2},
        {"input": QUANTIZED_TENSORS},
    ),
}
"""The functions in DirectML's words: a right request, and wrong values that are its own."""

# PyTorch's words, for each number of dimensions: its own few values where the code is shared.
TAKEN = {"()", "(2,)"}
"""An empty stride and lists of one entry, which PyTorch reads as nothing and as one int."""


def as_torch(values: list[Wrong]) -> list[Wrong]:
    return [value for value in values if value.name not in TAKEN]


def arguments_of(function: Callable[..., object], values: dict[str, Any]) -> dict[str, Any]:
    """Those of the values that the function has arguments for."""
    return {name: values[name] for name in values if name in inspect.signature(function).parameters}


PADDINGS = plainly(
    None, "full", "causal", ((1, 0),), ((1, 0), (1,)), ((0, 0), (-1, 0)), ((0, 0.5), (0, 0))
)
FOR_IMAGES: dict[str, list[Wrong]] = {
    "kernel_size": [*as_torch(AT_LEAST_1), *plainly((), None)],
    "stride": as_torch(AT_LEAST_1),
    "padding": [*as_torch(AT_LEAST_0), *PADDINGS],
    "dilation": as_torch(AT_LEAST_1),
    "ceil_mode": FLAGS,
    "output_size": OUTPUT_SIZES,
    "count_include_pad": FLAGS,
    "divisor_override": DIVISORS,
    "return_indices": FLAGS,
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
NOT_IMAGES = [*NOT_TENSORS[:3], of_shape(5), of_shape(1, 1, 2, 3, 4, 5)]
NOT_FLOATS = [*NOT_DENSE[:1], *NOT_PLAIN, *UNPOOLED[:1], *INTEGERS[:1]]
RIGHT = {"kernel_size": 2, "output_size": 2, "norm_type": 2}
LAYERS = ["AvgPool", "MaxPool", "MinPool", "LPPool", "AdaptiveAvgPool", "AdaptiveMaxPool"]
LAYERS += ["AdaptiveMinPool", "MaxUnpool"]


def wrong_images(layer: str, rank: int) -> list[Wrong]:
    if layer == "MaxUnpool":
        types = NOT_FLOATS[:3]
    else:
        is_ordered = "Max" in layer or "Min" in layer
        types = [*NOT_FLOATS[:2], NOT_ORDERED[0]] if is_ordered else NOT_FLOATS
    dense = types if rank == 2 else []
    if layer not in ("LPPool", "MaxUnpool"):  # which take quantized tensors
        dense = [one for one in dense if one not in NOT_PLAIN]
    other = [of_shape(2, 3, *SPATIAL[-rank:], 7)] if rank == 3 else []
    return [*NOT_IMAGES[: None if rank == 2 else 1], *other, *dense]


Row = tuple[str, Callable[..., object], dict[str, Any], dict[str, list[Wrong]]]
"""A name, what is called, right arguments, and wrong ones."""


def unpooling_rows(rank: int) -> tuple[Tensor, dict[str, list[Wrong]]]:
    """Right indices, and wrong values of what only unpooling takes."""
    indices = (
        torch.arange(planes(rank)[0, 0].numel()).view(SPATIAL[-rank:]).expand(planes(rank).shape)
    )
    wrong = [
        *NOT_TENSORS[:1],
        Wrong("a tensor of float32", planes(rank)),
        Wrong("a tensor on another device", indices.to("meta")),
        Wrong("an index past the plane", indices + 2**40),
        of_shape(2, 3, *SPATIAL[-rank:-1], 3, dtype=torch.int64),
    ]
    sizes = plainly(12, "8", *([(3,), (40, 40)] if rank == 2 else []))
    return indices, {"indices": wrong, "output_size": sizes}


def torch_rows(rank: int) -> Iterator[Row]:
    """The functions of nn.functional and the layers of nn."""
    for layer in LAYERS:
        kind, family = (
            getattr(nn, f"{layer}{rank}d"),
            re.sub("(?<=[a-z])(?=[A-Z])|(?<=LP)", "_", layer).lower(),
        )
        wrong, right = (
            arguments_of(kind, FOR_IMAGES if rank == 2 else FEW),
            arguments_of(kind, RIGHT),
        )
        tensors, wrong_tensors, more = (
            {"input": planes(rank)},
            {"input": wrong_images(layer, rank)},
            {},
        )
        if layer != "MaxUnpool":
            wrong_tensors["mask"] = MASKS if rank == 2 else [*MASKS[:1], MASKS[3], MASKS[7]]
        if layer == "MaxUnpool":
            tensors["indices"], unpooled = unpooling_rows(rank)
            wrong_tensors |= unpooled
            more = (
                {"output_size": [*unpooled["output_size"], *plainly((2, 3, 8))]} if rank > 1 else {}
            )
        function = getattr(functional, f"{family}{rank}d")
        yield (
            f"nn.functional.{family}{rank}d",
            function,
            tensors | right,
            wrong | wrong_tensors | more,
        )
        if layer.endswith("MaxPool"):
            # Its return_indices is ignored, as torch's is.
            function, name = (
                getattr(functional, f"{family}{rank}d_with_indices"),
                f"{family}{rank}d_with_indices",
            )
            yield (
                f"nn.functional.{name}",
                function,
                tensors | right,
                arguments_of(kind, FEW) | wrong_tensors,
            )
        yield f"nn.{layer}{rank}d", kind, right, wrong
        yield f"nn.{layer}{rank}d", _forward(kind, right), tensors, wrong_tensors
    parameters = {
        "input_scale": SCALES,
        "input_zero_point": ANY_ZERO_POINTS,
        "output_scale": SCALES,
    }
    parameters |= {"output_zero_point": ANY_ZERO_POINTS, "output_dtype": QUANTIZED_TYPES}
    # What fits the channels, the device and the type is known with the input alone.
    told = {
        "-1",
        "a tensor on another device",
        *(f"a tensor of shape {sizes}" for sizes in ((2,), (0,))),
    }
    parameters = {
        name: [row for row in rows if row.name not in told] for name, rows in parameters.items()
    }
    kind = getattr(quantized, f"AvgPool{rank}d")
    wrong = {
        **arguments_of(kind, FEW),
        "count_include_pad": FLAGS,
        **(parameters if rank == 2 else {}),
    }
    yield f"nn.quantized.AvgPool{rank}d", kind, {"kernel_size": 2}, wrong
    wrong_types = [
        Wrong("a tensor of float32", planes(rank)),
        Wrong("a tensor of int32", planes(rank).int()),
    ]
    forward = _forward(kind, {"kernel_size": 2})
    right = {"input": planes(rank, torch.uint8)}
    yield f"nn.quantized.AvgPool{rank}d", forward, right, {"input": [*NOT_IMAGES[:4], *wrong_types]}
    kind = getattr(quantized, f"AdaptiveAvgPool{rank}d")
    wrong = {**arguments_of(kind, FEW), **(parameters if rank == 2 else {})}
    yield f"nn.quantized.AdaptiveAvgPool{rank}d", kind, {"output_size": 1}, wrong
    forward = _forward(kind, {"output_size": 1})
    wrong = {"input": [*NOT_IMAGES[:4], *wrong_types]}
    yield f"nn.quantized.AdaptiveAvgPool{rank}d", forward, right, wrong
    kind = getattr(quantized, f"MaxPool{rank}d")
    wrong = arguments_of(kind, FOR_IMAGES if rank == 2 else FEW)
    yield f"nn.quantized.MaxPool{rank}d", kind, {"kernel_size": 2}, wrong


def _forward(kind: Callable[..., Any], arguments: dict[str, Any]) -> Callable[..., object]:
    return lambda **tensors: kind(**arguments)(**tensors)


def rows() -> Iterator[Row]:
    for function, (right, own) in FUNCTIONS.items():
        yield function.__name__, function, right, arguments_of(function, WRONG | own)
    for rank in (1, 2, 3):
        yield from torch_rows(rank)


def right_requests() -> list[Callable[[], object]]:
    """A call of everything with nothing wrong in it."""
    return [functools.partial(function, **right) for _, function, right, _ in rows()]


def requests() -> dict[str, list[Request]]:
    """All requests, by the function or layer that they are made of."""
    found: dict[str, list[Request]] = {}
    for name, function, right, wrong in rows():
        for argument, value in (
            (argument, value) for argument, values in wrong.items() for value in values
        ):
            call = functools.partial(function, **{**right, argument: value.value})
            found.setdefault(name, []).append(Request(name, argument, value.name, call))
    return found


def refusal(request: Request) -> Refused:
    """What a request raises; an exception of another kind, or none, is passed on."""
    try:
        result = request.call()
    except (TypeError, ValueError, RuntimeError) as error:
        kinds = (
            kind.__name__
            for kind in (TypeError, ValueError, RuntimeError)
            if isinstance(error, kind)
        )
        return Refused(request.argument, request.wrong, next(kinds), str(error))
    raise AssertionError(
        f"{request.function} accepted {request.argument}={request.wrong}: {type(result).__name__}"
    )


def page(refused: dict[Refused, list[str]]) -> str:
    """tests/refusals.md: one section per argument, one row per wrong value and message."""
    lines = [
        "# All error messages",
        "",
        "Each row is a call with one wrong argument, the error that it raises before anything is "
        "computed, and the",
        "functions and layers that raise it. The tests make each call and compare the whole "
        "message.",
        "`python tests/refusals.py` writes this page; `docs/errors.md` has the frequent messages "
        "with what to do.",
        "The other arguments are right: inputs of shape (2, 3, 5), (2, 3, 4, 5) or (2, 3, 6, 4, "
        "5), and windows of size 2.",
    ]
    arguments: dict[str, list[Refused]] = {}
    for row in refused:
        arguments.setdefault(row.argument, []).append(row)
    for argument, rows in arguments.items():
        lines += [
            "",
            f"## `{argument}`",
            "",
            "| value | raises | message | where |",
            "| --- | --- | --- | --- |",
        ]
        for row in rows:
            message = row.message.replace("|", "\\|").replace("\n", " ")
            where = ", ".join(dict.fromkeys(refused[row]))
            lines.append(f"| {row.wrong} | {row.kind} | {message} | {where} |")
    return "\n".join(lines) + "\n"


def collected() -> dict[Refused, list[str]]:
    """Every refusal with the functions and layers that give it."""
    found: dict[Refused, list[str]] = {}
    for request in itertools.chain(*requests().values()):
        found.setdefault(refusal(request), []).append(request.function)
    return found


if __name__ == "__main__":
    PAGE.write_text(page(collected()))
