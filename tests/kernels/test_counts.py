"""No size of an image or of a window makes another kernel: what would be compiled is counted."""

import itertools
import random
from collections.abc import Iterable

import pytest
import torch

pytest.importorskip("triton")

from benchmarks import gpu

EVERY = 29  # of the sizes
draw = random.Random(7)
IMAGES = [(draw.randint(32, 1024), draw.randint(32, 1024)) for _ in range(100)][::EVERY]
PLANES = [(h, w) for h in range(1, 35) for w in range(1, 35)][::EVERY]
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = tuple(
    getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
)
DTYPES = dict.fromkeys(gpu.OPERATORS, FLOATS)
DTYPES |= dict.fromkeys(("max", "taps", "adaptive max"), FLOATS + INTEGERS)
DTYPES["quantized avg"] = (torch.int8, torch.uint8)
CASES = [(operator, dtype) for operator, dtypes in DTYPES.items() for dtype in dtypes]


def kernels_of(requests: Iterable[gpu.Request]) -> int:
    """Different kernels that compute all the requests on an H200."""
    with gpu.recorded() as found:
        for request in requests:
            request.prepared()[1]()
    return len(set(found))


@pytest.mark.parametrize(("operator", "dtype"), CASES, ids=str)
def test_few_kernels_serve_all_sizes(operator: str, dtype: torch.dtype) -> None:
    """Each takes a second or more to compile where it is first launched."""
    if operator.startswith("adaptive"):
        images = [(8, 64, *image) for image in IMAGES]
        given = [
            gpu.request(operator, image, dtype, False, outputs=(n, n))
            for image in images
            for n in (7, 6, 1)
        ]
        assert kernels_of(given) <= 12
        return
    for shapes in ([(8, 64, n) for n in range(1, 513, EVERY)], [(8, 64, *each) for each in PLANES]):
        assert kernels_of(gpu.request(operator, s, dtype, False, s[2:]) for s in shapes) <= 12
    for window in ((3, 2, 1), (2,), (3, 1, 1)):
        given = [
            gpu.request(operator, (1, 64, *image), dtype, last, *window)
            for image in IMAGES
            for last in (False, True)
        ]
        assert kernels_of(given) <= 24, window


@pytest.mark.parametrize("operator", ["max", "taps", "avg"])
def test_no_length_of_a_window_makes_another_kernel(operator: str) -> None:
    """Nor its stride and padding: eight groups of neighbours share what they read."""
    given = itertools.product(range(65, 257, 3), (1, 2, 4, 8))
    shape, dtype = (4, 8, 1000), torch.float32
    windows = [(length, stride, length // 2) for length, stride in given]
    assert kernels_of(gpu.request(operator, shape, dtype, False, *each) for each in windows) <= 8


def test_kernels_are_told_apart_by_what_is_compiled() -> None:
    """Another batch makes no kernel; another data type, window or layout does."""
    shapes, halves, floats = ((2, 64, 56, 56), (3, 64, 56, 56)), torch.float16, torch.float32
    given = [gpu.request("max", shape, floats, False, 3, 2, 1) for shape in shapes]
    assert kernels_of(given) == 1
    given.append(gpu.request("max", shapes[0], halves, False, 3, 2, 1))
    given.append(gpu.request("max", shapes[0], floats, False, 3, 1, 1))
    given.append(gpu.request("max", shapes[0], floats, True, 3, 2, 1))
    assert kernels_of(given) == 4
