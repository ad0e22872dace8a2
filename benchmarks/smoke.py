"""Forty calls that reach each kernel, data type and layout, which `make gpu` compares with the
reference on the CPU.

Inputs are small whole numbers with many ties and, in floating point, NaN for maxima. Sums of them
are exact, so that averages may differ by the last rounding alone.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_dmlpool.backends.interface import Backend
from torch_dmlpool.window import Window

Compute = Callable[[Backend, Tensor, Window], Any]
HALF, FLOAT, BFLOAT, DOUBLE = torch.float16, torch.float32, torch.bfloat16, torch.float64
LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


class Call(NamedTuple):
    """One of the forty: a function of a backend, and the input on the CPU."""

    name: str
    compute: Compute
    input: Tensor
    window: Window


def maxima(backend: Backend, input: Tensor, window: Window) -> Any:
    return backend.max_pooling(input, window)


def winners(backend: Backend, input: Tensor, window: Window) -> Any:
    return backend.max_pooling_with_indices(input, window, torch.int64, True)


def gradient_of_maxima(backend: Backend, input: Tensor, window: Window) -> Any:
    values, taps = backend.max_pooling_with_taps(input, window)
    gradient = (values.nan_to_num(3) % 5).to(input.dtype)
    channels_last = not input.is_contiguous()
    return backend.max_pooling_grad_from_taps(
        gradient, taps, input.shape[2:], window, channels_last
    )


def averages(backend: Backend, input: Tensor, window: Window) -> Any:
    return backend.average_pooling(input, window, False, None)


def gradient_of_averages(backend: Backend, input: Tensor, window: Window) -> Any:
    sizes = [  # the sizes of an input that has as many averages
        (size - 1) * axis.stride + axis.extent - axis.start_padding - axis.end_padding
        for size, axis in zip(input.shape[2:], window.axes, strict=True)
    ]
    return backend.average_pooling_grad(input, sizes, window, True, None)


def adaptive_averages(backend: Backend, input: Tensor, _: Window) -> Any:
    return backend.adaptive_average_pooling(input, (7, 5))


def adaptive_maxima(backend: Backend, input: Tensor, _: Window) -> Any:
    return backend.adaptive_max_pooling(input, (7, 5))


def adaptive_gradient(backend: Backend, input: Tensor, _: Window) -> Any:
    return backend.adaptive_average_pooling_grad(input, (50, 33))


def quantized(backend: Backend, input: Tensor, window: Window) -> Any:
    scale = torch.full((1,), 0.1, dtype=torch.float32, device=input.device)
    return backend.quantized_linear_average_pooling(
        input, scale, None, scale * 0.7, None, window, False, input.dtype
    )


def unpooled(backend: Backend, input: Tensor, window: Window) -> Any:
    values, indices = backend.max_pooling_with_indices(input, window, torch.int64, True)
    return backend.scatter_positions(values, indices, input.shape[2:], False, False)


def sets(backend: Backend, input: Tensor, _: Window) -> Any:
    rows = input.flatten(0, 2)
    offsets = torch.tensor([0, 1, 1, 90, 240], dtype=torch.int64, device=input.device)
    sums = backend.segment_sums(rows, offsets, None, True)
    return sums, *backend.segment_maxima(rows, offsets, None, False)


STEM = Window.directml(2, 3, 2, 1, 1)
HALVES = Window.directml(2, 2, 2)
UNEVEN = Window.directml(2, (3, 5), 1, (0, 2), (1, 1))
LARGE = Window.directml(2, 17, 1, 8, 8)
SIXTEENTHS = Window.directml(2, 4, 2, 1, 1)  # of averages whose gradients are exact
FRACTIONS = Window.directml(2, 32, 2, 8, 7)
DILATED = Window.directml(2, 3, 1, 2, 2, 2)
WHOLE = Window.directml(2, (24, 32))
ROW = Window.directml(1, 5, 2, 2, 1)
LONG_ROW = Window.directml(1, 65, 2, 2, 1)
VOLUME = Window.directml(3, (2, 3, 3), 2, 0, 1)
PLANES, ODD = (2, 16, 24, 32), (2, 5, 25, 33)
# Each line says what is computed, the window, the data type, the layout and the input's sizes.
REQUESTS: list[tuple[Compute, Window, torch.dtype, str, tuple[int, ...]]] = [
    (maxima, STEM, FLOAT, "NCHW", PLANES),
    (maxima, STEM, HALF, "NHWC", PLANES),
    (maxima, LARGE, BFLOAT, "NCHW", PLANES),
    (maxima, LARGE, FLOAT, "NHWC", ODD),
    (maxima, DILATED, DOUBLE, "NCHW", ODD),
    (maxima, UNEVEN, torch.int8, "NHWC", PLANES),
    (maxima, HALVES, torch.uint8, "NCHW", ODD),
    (maxima, HALVES, torch.int16, "NHWC", PLANES),
    (maxima, STEM, torch.int32, "NCHW", ODD),
    (maxima, STEM, torch.int64, "NHWC", ODD),
    (maxima, WHOLE, HALF, "NCHW", PLANES),
    (maxima, LONG_ROW, FLOAT, "NCHW", (2, 6, 301)),
    (maxima, VOLUME, FLOAT, "NCHW", (1, 4, 6, 13, 14)),
    (winners, STEM, FLOAT, "NCHW", PLANES),
    (winners, HALVES, HALF, "NHWC", ODD),
    (winners, LARGE, BFLOAT, "NHWC", PLANES),
    (winners, UNEVEN, torch.uint8, "NCHW", PLANES),
    (gradient_of_maxima, STEM, FLOAT, "NCHW", PLANES),
    (gradient_of_maxima, STEM, HALF, "NHWC", ODD),
    (gradient_of_maxima, HALVES, FLOAT, "NHWC", PLANES),
    (gradient_of_maxima, LARGE, BFLOAT, "NCHW", PLANES),
    (gradient_of_maxima, WHOLE, FLOAT, "NCHW", PLANES),
    (averages, STEM, FLOAT, "NCHW", PLANES),
    (averages, HALVES, HALF, "NHWC", PLANES),
    (averages, LARGE, BFLOAT, "NHWC", ODD),
    (averages, WHOLE, FLOAT, "NHWC", PLANES),
    (averages, WHOLE, HALF, "NCHW", PLANES),
    (averages, VOLUME, FLOAT, "NCHW", (1, 4, 6, 13, 14)),
    (gradient_of_averages, HALVES, FLOAT, "NCHW", PLANES),
    (gradient_of_averages, SIXTEENTHS, HALF, "NHWC", PLANES),
    (gradient_of_averages, FRACTIONS, DOUBLE, "NCHW", ODD),
    (quantized, STEM, torch.uint8, "NCHW", PLANES),
    (quantized, HALVES, torch.int8, "NHWC", PLANES),
    (quantized, WHOLE, torch.uint8, "NCHW", PLANES),
    (adaptive_averages, STEM, FLOAT, "NCHW", ODD),
    (adaptive_averages, STEM, HALF, "NHWC", ODD),
    (adaptive_gradient, STEM, FLOAT, "NCHW", (2, 5, 7, 5)),
    (adaptive_maxima, STEM, FLOAT, "NCHW", ODD),
    (unpooled, HALVES, FLOAT, "NCHW", PLANES),
    (sets, STEM, FLOAT, "NCHW", ODD),
]

FLOATS = (HALF, FLOAT, BFLOAT, DOUBLE)
WHOLE_NUMBERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
TYPES: dict[Compute, tuple[torch.dtype, ...]] = {
    maxima: FLOATS + WHOLE_NUMBERS,
    winners: FLOATS + WHOLE_NUMBERS,
    quantized: (torch.int8, torch.uint8),
    unpooled: (),
}


def calls(every: bool = False) -> Iterator[Call]:
    """The forty, with inputs that are the same in every run. With ``every`` those of ``PLANES`` in
    each data type that the operator takes, and in both layouts, too.
    """
    generator = torch.Generator().manual_seed(0)
    requests = list(REQUESTS)
    for compute, window, _, _, shape in REQUESTS if every else ():
        dtypes = TYPES.get(compute, FLOATS) if shape is PLANES else ()
        requests += [(compute, window, dtype, name, shape) for dtype in dtypes for name in LAYOUTS]
    for compute, window, dtype, layout, shape in dict.fromkeys(requests):
        input = torch.randint(0, 90, shape, generator=generator, dtype=torch.int64, device="cpu")
        input = (input if dtype is torch.uint8 else input - 45).to(dtype)
        takes_non_numbers = compute in (maxima, winners, gradient_of_maxima, adaptive_maxima)
        if dtype.is_floating_point and takes_non_numbers:
            input[0, 0].view(-1)[7::97] = float("nan")
        if len(shape) == 4:
            input = input.contiguous(memory_format=LAYOUTS[layout])
        words = compute.__name__.replace("_", " ")
        size = "x".join(str(axis.window) for axis in window.axes)
        name = f"{words}, {size}/{window.axes[-1].stride}, {str(dtype)[6:]}, {layout}"
        yield Call(f"{name}, {'x'.join(map(str, shape))}", compute, input, window)


def difference(expected: Any, found: Any) -> str:
    """What differs, if anything; averages may differ by two units in the last place."""
    pairs = zip(_listed(expected), _listed(found), strict=True)
    for wanted, got in pairs:
        here = got.cpu()
        if (wanted.dtype, wanted.shape) != (here.dtype, here.shape):
            return (
                f"{here.dtype} {tuple(here.shape)} in place of {wanted.dtype} {tuple(wanted.shape)}"
            )
        is_real = wanted.dtype.is_floating_point
        allowed = 2 * torch.finfo(wanted.dtype).eps if is_real else 0.0
        same = torch.isclose(wanted.double(), here.double(), rtol=allowed, atol=0.0, equal_nan=True)
        if not same.all():
            return f"{int((~same).sum())} of {same.numel()} elements differ"
    return ""


def _listed(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)
