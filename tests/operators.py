"""A right call of every public function and of every registered operator, by its name."""

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import cases
import samples
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import torch_dmlpool as dmlpool
from torch_dmlpool.decompositions import decompositions
from torch_dmlpool.window import Window

operators = torch.ops.dmlpool
WINDOW = (3, 2, 1, 1)
"""Windows that overlap, on padding."""


TABLE = decompositions()


class Decomposed(TorchDispatchMode):
    """Operators are taken apart where they are called."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return TABLE.get(function, function)(*args, **(kwargs or {}))


def int8(x):
    return (x * 40).clamp(-128, 127).to(torch.int8)


def quantized(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(x, 0.05, 3, torch.quint8)


def _average_grad(x):
    sizes = [2 * size - 1 for size in x.shape[2:]]
    return dmlpool.average_pooling_grad(x, (*x.shape[:2], *sizes), *WINDOW)


def _max_grad(x):
    return dmlpool.max_pooling_grad(x, dmlpool.average_pooling(x, *WINDOW), *WINDOW)


def _unpooled(x):
    values, indices = dmlpool.max_pooling(x, *WINDOW, return_indices=True)
    return dmlpool.max_unpooling(values, indices, x.shape)


def _requantized(x, scale, zero_point):
    rest = (scale, zero_point, 0.3, -2, *WINDOW)
    return dmlpool.quantized_linear_average_pooling(int8(x), *rest)


class QuantizedAverages(torch.nn.Module):
    """Averages of 8-bit integers over a window in a layer's words, which may be "same"."""

    def __init__(self, rank, window, count_include_pad=True, **numbers):
        super().__init__()
        self.rank, self.window, self.counted = rank, window, count_include_pad
        scale, zero_point = numbers["input_scale"], numbers.get("input_zero_point", 0)
        self.numbers = {
            "input_zero_point": zero_point,
            "output_scale": scale,
            "output_zero_point": zero_point,
            **numbers,
        }

    def forward(self, input):
        *window, ceil_mode = Window.pytorch(
            self.rank, **self.window, sizes=input.shape[2:]
        ).arguments
        names = "window_size", "strides", "start_padding", "end_padding", "dilations"
        how = dict(zip(names, window, strict=True)) | self.numbers
        how |= {"include_padding": self.counted, "ceil_mode": ceil_mode}
        return dmlpool.quantized_linear_average_pooling(input, **how)


def _quantized_averages(x):
    return dmlpool.quantized_average_pooling(quantized(x), *WINDOW, output_scale=0.1).int_repr()


PAIR = {"return_indices": True}
EVERYTHING: dict[str, Callable[[Tensor], Tensor | tuple[Tensor, ...]]] = {
    "average_pooling": lambda x: dmlpool.average_pooling(x, *WINDOW),
    "average_pooling, whole planes": lambda x: dmlpool.average_pooling(x, x.shape[2:]),
    "average_pooling, float16": lambda x: dmlpool.average_pooling(x.half(), *WINDOW),
    "average_pooling, masked": lambda x: dmlpool.average_pooling(x, *WINDOW, mask=x[:1, :1] > 0),
    "average_pooling_grad": _average_grad,
    "max_pooling": lambda x: dmlpool.max_pooling(x, *WINDOW),
    "max_pooling, dilated": lambda x: dmlpool.max_pooling(x, 3, 1, 2, 2, 2),
    "max_pooling, indices": lambda x: dmlpool.max_pooling(x, *WINDOW, **PAIR),
    "max_pooling, integers": lambda x: dmlpool.max_pooling(int8(x), *WINDOW),
    "max_pooling, bools": lambda x: dmlpool.max_pooling(x > 0, *WINDOW),
    "max_pooling, masked": lambda x: dmlpool.max_pooling(x, *WINDOW, **PAIR, mask=x > 0),
    "max_pooling_grad": _max_grad,
    "min_pooling": lambda x: dmlpool.min_pooling(x, *WINDOW),
    "min_pooling, indices": lambda x: dmlpool.min_pooling(x, *WINDOW, **PAIR),
    "adaptive_min_pooling": lambda x: dmlpool.adaptive_min_pooling(x, (3, 4)),
    "lp_pooling": lambda x: dmlpool.lp_pooling(x, *WINDOW),
    "lp_pooling, p 3": lambda x: dmlpool.lp_pooling(x, *WINDOW, p=3),
    "adaptive_average_pooling": lambda x: dmlpool.adaptive_average_pooling(x, 4),
    "adaptive_max_pooling": lambda x: dmlpool.adaptive_max_pooling(x, (3, 4)),
    "adaptive_max_pooling, indices": lambda x: dmlpool.adaptive_max_pooling(x, 3, **PAIR),
    "max_unpooling": _unpooled,
    "quantized_linear_average_pooling": lambda x: _requantized(x, 0.5, 1),
    "quantized_linear_average_pooling, per channel": lambda x: _requantized(
        x, torch.tensor([0.5, 0.25, 0.125]), None
    ),
    "quantized_average_pooling": _quantized_averages,
    "quantized_max_pooling": lambda x: dmlpool.quantized_max_pooling(
        quantized(x), *WINDOW
    ).int_repr(),
    "nn.MaxPool2d": dmlpool.nn.MaxPool2d(3, 2, "same"),
    "nn.AvgPool2d": dmlpool.nn.AvgPool2d(3, 2, ((1, 0), (0, 1))),
}
"""Functions of a float32 ``(N, 3, H, W)`` image."""


SAME = (3, 1, 1, 1)


def _masked(name, *arguments, **more):
    return lambda input, mask: getattr(dmlpool, name)(input, *arguments, **more, mask=mask)


MASKED: dict[str, Callable[[Tensor, Tensor | None], Tensor | tuple[Tensor, Tensor]]] = {
    "average_pooling": _masked("average_pooling", *SAME),
    "average_pooling, counted": _masked("average_pooling", *SAME, include_padding=True),
    "average_pooling, by 3": _masked("average_pooling", *SAME, divisor_override=3),
    "max_pooling": _masked("max_pooling", *SAME),
    "max_pooling, indices": _masked("max_pooling", *SAME, **PAIR),
    "min_pooling": _masked("min_pooling", *SAME),
    "min_pooling, indices": _masked("min_pooling", *SAME, **PAIR),
    "lp_pooling": _masked("lp_pooling", *SAME),
    "lp_pooling, p 3": _masked("lp_pooling", *SAME, p=3),
    "lp_pooling, p inf": _masked("lp_pooling", *SAME, p=math.inf),
    "adaptive_average_pooling": _masked("adaptive_average_pooling", 3),
    "adaptive_max_pooling": _masked("adaptive_max_pooling", 3),
    "adaptive_max_pooling, indices": _masked("adaptive_max_pooling", 3, **PAIR),
    "adaptive_min_pooling, indices": _masked("adaptive_min_pooling", 3, **PAIR),
    "adaptive_average_pooling, whole": _masked("adaptive_average_pooling", 1),
    "adaptive_max_pooling, whole": _masked("adaptive_max_pooling", 1),
    "adaptive_min_pooling, whole, indices": _masked("adaptive_min_pooling", 1, **PAIR),
}
"""Functions of an input and a mask or None; the windows keep the sizes."""


def everything(name, image):
    """The results of one of them and, where there is one, its gradient."""
    return samples.results(EVERYTHING[name], image)


class Pools(torch.nn.Module):
    """Layers of this package beyond torch.nn's, and indices; what is exported."""

    def __init__(self):
        super().__init__()
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3),
            dmlpool.nn.MaxPool2d(3, 2, "same"),
            dmlpool.nn.AvgPool2d(2, 1, ((1, 0), (0, 1)), True, dilation=2),
        )
        self.last = dmlpool.nn.MaxPool2d(2, return_indices=True)
        self.pooled = dmlpool.nn.AdaptiveAvgPool2d(1)

    def forward(self, input):
        values, indices = self.last(self.features(input))
        return values, indices, self.pooled(values)


def calls_of(case, dtype=torch.float32, channels=3, batch=2):
    """Arguments of every registered operator; what it can be differentiated by requires a
    gradient."""
    window, sizes, last = samples.spelled_out(case.pooling), list(case.sizes), case.rank > 1
    outputs = list(case.output_sizes)
    input = samples.distinct(batch, channels, *sizes, dtype=dtype)
    gradient = samples.normal(batch, channels, *outputs, dtype=dtype)
    taps = operators.max_pooling_with_taps(input, *window)[1]
    indices = operators.max_pooling_with_indices(input, *window, torch.int32, True)[1]
    mask = samples.normal(batch, 1, *sizes) > -0.5
    integers = samples.integers(batch, channels, *sizes, dtype=torch.int8)
    output = torch.tensor([0.3]), torch.tensor([3], dtype=torch.uint8)
    for leaf in (input, gradient):
        leaf.requires_grad_()
    quantizing = "quantized_linear_average_pooling"
    return {
        "average_pooling": (input, *window, True, None),
        "average_pooling_grad": (gradient, sizes, *window, False, 3),
        "max_pooling": (input, *window),
        "max_pooling_with_taps": (input, *window),
        "max_pooling_with_indices": (input, *window, torch.int32, False),
        "max_pooling_indices": (taps, sizes, *window, torch.uint32, True),
        "max_pooling_grad": (input, gradient, *window),
        "max_pooling_grad_from_taps": (gradient, taps, sizes, *window, last),
        "max_pooling_gather": (input, taps, *window),
        "lp_pooling": (input, *window, 3.0),
        "masked_average_pooling": (input, mask, *window, True, None),
        "masked_max_pooling": (input, mask, *window),
        "masked_max_pooling_with_indices": (input, mask, *window, torch.int32, False),
        "adaptive_average_pooling": (input, outputs),
        "adaptive_average_pooling_grad": (gradient, sizes),
        "adaptive_max_pooling": (input, outputs),
        "max_unpooling": (gradient, indices, sizes, True),
        "unique_positions": (indices, sizes),
        "gather_positions": (input, indices, False),
        "scatter_positions": (gradient, indices, sizes, True, last),
        quantizing: (
            integers,
            torch.rand(channels) + 0.5,
            None,
            *output,
            *window,
            False,
            torch.uint8,
        ),
        f"{quantizing}_of_numbers": (integers, 0.5, -3, 0.3, 3, *window, False, torch.uint8),
    }


CASE = cases.case("plain", "adjacent windows")
calls_of_the_case = functools.cache(functools.partial(calls_of, CASE))
NAMES = list(calls_of_the_case())
Call = tuple[Callable[..., Any], Sequence[object]]
"""An operator and its arguments."""


@functools.cache
def by_name(name):
    """A right call of an operator, with tensors that nothing is known of."""
    arguments = tuple(map(samples.plain, calls_of_the_case()[name]))
    return getattr(operators, name).default, arguments


def with_lazy(kind, name):
    """Arguments of which one tensor after the other is of a kind, then all of them, each with the
    results for the same numbers in plain tensors."""
    operator, arguments = by_name(name)
    converted = {
        number: tensor
        for number, argument in enumerate(arguments)
        # A scale of 0 is refused.
        if isinstance(argument, Tensor)
        and (argument.dim() > 1 or kind != "zeros without memory")
        and (tensor := samples.of_kind(kind, argument)) is not None
    }
    found = []
    for chosen in [*([each] for each in converted), *([list(converted)] * (len(converted) > 1))]:
        arriving = [converted[n] if n in chosen else each for n, each in enumerate(arguments)]
        found.append((arriving, samples.listed(operator(*map(samples.plain, arriving)))))
    return found
