"""No size of an image or of a window makes another kernel: what would be compiled is counted."""

import random

import pytest

pytest.importorskip("triton")

from benchmarks import requests
from benchmarks.requests import request

EVERY = 29  # of the sizes
draw = random.Random(7)
IMAGES = [(draw.randint(32, 1024), draw.randint(32, 1024)) for _ in range(100)][::EVERY]
PLANES = [(h, w) for h in range(1, 35) for w in range(1, 35)][::EVERY]
FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
OPERATORS = [name for name in requests.OPERATORS if name not in ("unpool", "sets")]
DTYPES = dict.fromkeys(OPERATORS, FLOATS)
DTYPES |= dict.fromkeys(("max", "taps", "adaptive max"), FLOATS + INTEGERS)
DTYPES["quantized avg"] = ("int8", "uint8")
CASES = [(operator, dtype) for operator, dtypes in DTYPES.items() for dtype in dtypes]


def kernels_of(asked):
    """Different kernels that compute all the requests on an H200."""
    return len(requests.kernels_of(asked))


@pytest.mark.parametrize(("operator", "dtype"), CASES)
def test_few_kernels_serve_all_sizes(operator, dtype):
    """Each takes a second or more to compile where it is first launched."""
    if operator.startswith("adaptive"):
        images = [f"8x64x{h}x{w}" for h, w in IMAGES]
        given = [f"{image} to{n} {dtype}" for image in images for n in (7, 6, 1)]
        assert kernels_of(request(operator, each) for each in given) <= 12
        return
    for planes in ([f"{n}" for n in range(1, 513, EVERY)], [f"{h}x{w}" for h, w in PLANES]):
        given = [f"8x64x{plane} {plane} {dtype}" for plane in planes]
        assert kernels_of(request(operator, each) for each in given) <= 12
    for window in ("3/2 p1", "2", "3/1 p1"):
        given = [f"1x64x{h}x{w} {window} {way} {dtype}" for h, w in IMAGES for way in "Ff"]
        assert kernels_of(request(operator, each) for each in given) <= 24, window


@pytest.mark.parametrize("operator", ["max", "taps", "avg"])
def test_no_length_of_a_window_makes_another_kernel(operator):
    """Nor its stride and padding: eight groups of neighbours share what they read."""
    windows = [f"{n}/{stride} p{n // 2}" for n in range(65, 257, 3) for stride in (1, 2, 4, 8)]
    assert kernels_of(request(operator, f"4x8x1000 {each}") for each in windows) <= 8


ASKED = {"3/2 p1": None, "2": None, "3/1 p1": None, "31/1 p15": None, "to7": 4, "to1": 3, "": 3}
"""Windows, bins and whole planes; how many kernels there may be, if more than of one image."""


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("way", "Ff")
def test_an_image_of_another_size_compiles_nothing(asked, way):
    """After the first image, of sizes that 16 bytes divide, as those of networks mostly are. Bins
    and slices may take another of four tiles along each axis."""
    images = [(h, w) for h in (256, 400, 1024) for w in (272, 512, 784)]
    for operator in OPERATORS:
        if (
            operator.startswith("adaptive") is asked.startswith("to")
            and "quantized" not in operator
        ):
            texts = [f"8x64x{h}x{w} {asked or f'{h}x{w}'} {way} float16" for h, w in images]
            listed = [request(operator, each) for each in texts]
            first, every = kernels_of(listed[:1]), kernels_of(listed)
            positions = operator == "indices"  # takes one more, for all windows
            assert every <= max((ASKED[asked] or 0) + positions, first), operator
            # Plain PyTorch computes gradients of maxima of long windows that overlap.
            assert every > 0 or (operator, asked) == ("max grad", "31/1 p15")
