"""``torch_dmlpool.morphology``: SciPy's numbers, gradients, compilers and errors."""

import functools
import re
from collections.abc import Callable
from typing import Any

import cases
import numpy as np
import pytest
import samples
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import torch_dmlpool as dmlpool
from torch_dmlpool import morphology

ndimage = pytest.importorskip("scipy.ndimage")
TYPES = [*samples.FLOATS, *samples.INTEGERS, torch.bool]


def ball(radius, rank):
    axes = np.ogrid[(slice(-radius, radius + 1),) * rank]
    return torch.from_numpy(np.asarray(sum(axis**2 for axis in axes) <= radius**2))


def of(*rows):
    return torch.tensor([[mark == "x" for mark in row] for row in rows])


def scattered(*sizes):
    footprint = torch.rand(sizes, generator=samples.seeded(*sizes)) < 0.4
    footprint.view(-1)[-1] = True
    return footprint


FOOTPRINTS = {
    "box": torch.ones(5, 3, dtype=torch.bool),
    "even box": torch.ones(4, 2, dtype=torch.bool),
    "row": torch.ones(1, 9, dtype=torch.bool),
    "cross": of(" x ", "xxx", " x "),
    "disk 2": ball(2, 2),
    "disk 7": ball(7, 2),
    "corner": of("x  ", "xx ", "xxx"),
    "even corner": of("xx  ", "x   "),
    "ring": of("xxxx", "x  x", "xxxx"),
    "beside the centre": of("   xx", "     ", "x    "),
    "beyond the image": scattered(5, 40),
    "scattered": scattered(6, 7),
    "one element": of("    x"),
    "a row of elements": scattered(8),
    "an even row": torch.tensor([True, False, False, True]),
    "ball": ball(3, 3),
    "scattered volume": scattered(2, 4, 3),
}


def array(images):
    """In a type that SciPy filters: a wider one for half precision."""
    return (images.float() if images.dtype in samples.FLOATS[2:] else images).numpy()


def scipys(name, images, footprint):
    """The filter of each plane, with a border that never wins. SciPy filters in float64, which has
    not every integer, so it gets their ranks among all values and both ends of the type."""
    values = array(images)
    ends = {"f": lambda: (-np.inf, np.inf), "b": lambda: (False, True)}
    limits = ends.get(
        values.dtype.kind, lambda: (np.iinfo(values.dtype).min, np.iinfo(values.dtype).max)
    )()
    ordered = np.unique(np.append(values, np.array(limits, values.dtype)))
    how = {"footprint": footprint.numpy(), "mode": "constant"}
    dilation = functools.partial(ndimage.grey_dilation, **how, cval=0)
    erosion = functools.partial(ndimage.grey_erosion, **how, cval=len(ordered) - 1)
    minus = np.bitwise_xor if values.dtype.kind == "b" else np.subtract
    made: dict[str, Callable[[Any], Any]] = {
        "dilation": lambda plane: ordered[dilation(plane)],
        "erosion": lambda plane: ordered[erosion(plane)],
        "opening": lambda plane: ordered[dilation(erosion(plane))],
        "closing": lambda plane: ordered[erosion(dilation(plane))],
        "gradient": lambda plane: minus(ordered[dilation(plane)], ordered[erosion(plane)]),
        "top_hat": lambda plane: minus(ordered[plane], ordered[dilation(erosion(plane))]),
        "bottom_hat": lambda plane: minus(ordered[erosion(dilation(plane))], ordered[plane]),
    }
    ranks = np.searchsorted(ordered, values).reshape(-1, *images.shape[2:]).astype("int32")
    with np.errstate(invalid="ignore", over="ignore"):
        return np.stack([made[name](plane) for plane in ranks]).reshape(images.shape)


def images_for(footprint, dtype=torch.float32):
    sizes = {1: (2, 3, 29), 2: (2, 3, 17, 22), 3: (2, 1, 9, 8, 7)}[footprint.dim()]
    if dtype is torch.bool:
        return torch.rand(sizes, generator=samples.seeded(*sizes)) < 0.5
    return samples.ties(*sizes, dtype=dtype)


@pytest.mark.parametrize("footprint", FOOTPRINTS.values(), ids=FOOTPRINTS)
@pytest.mark.parametrize("name", morphology.__all__)
def test_filters_equal_scipys_for_any_footprint(name, footprint):
    """F1: those of even sizes, beside the centre and larger than the image too."""
    images = images_for(footprint)
    found = getattr(morphology, name)(images, footprint)
    np.testing.assert_array_equal(found.numpy(), scipys(name, images, footprint))


@pytest.mark.parametrize("dtype", TYPES, ids=samples.name_of)
@pytest.mark.parametrize("name", morphology.__all__)
def test_every_ordered_type_is_exact(name, dtype):
    """F2: both ends of integers too; differences wrap around as numpy's do."""
    for footprint in (FOOTPRINTS["disk 2"], FOOTPRINTS["beside the centre"], scattered(4)):
        images = images_for(footprint, dtype)
        found = getattr(morphology, name)(images, footprint)
        assert found.dtype is dtype
        np.testing.assert_array_equal(array(found), scipys(name, images, footprint))


@pytest.mark.parametrize("footprint", [3, 4, (1, 6), [2, 5], np.int64(3)])
def test_ints_are_the_sizes_of_a_box(footprint):
    images = torch.rand(2, 3, 12, 13)
    box = torch.ones(*(footprint if isinstance(footprint, (tuple, list)) else (footprint,) * 2))
    for name in morphology.__all__:
        filtered = getattr(morphology, name)
        assert torch.equal(filtered(images, footprint), filtered(images, box.bool()))


def test_a_disk_costs_a_pool_for_every_rectangle_and_is_read_once():
    """Not one for every element: 709 of them are 10 rectangles."""
    boxes, values = morphology._read(ball(15, 2))
    assert (len(boxes), sum(values)) == (10, 709)
    assert morphology._read(ball(15, 2))[0] is boxes


def test_nan_wins_and_nothing_else_does_outside():
    images = torch.zeros(1, 1, 9)
    images[..., 4] = torch.nan
    for name in ("dilation", "erosion"):
        found = getattr(morphology, name)(images, torch.tensor([True, False, True]))
        assert found.isnan().flatten().nonzero().flatten().tolist() == [3, 5]
    for footprint, value in ((torch.tensor([False, False, True]), -torch.inf), (9, 0.0)):
        assert morphology.dilation(torch.zeros(1, 1, 3), footprint)[0, 0, 0] == value


@pytest.mark.parametrize("name", morphology.__all__)
def test_derivatives(name):
    generator = samples.seeded(1)
    images = torch.randperm(48, generator=generator).view(1, 2, 4, 6).double().requires_grad_()
    for footprint in ((2, 3), FOOTPRINTS["cross"], FOOTPRINTS["beside the centre"]):
        # Where a footprint lies outside, differences of infinities would be compared.
        inside = functools.partial(_finite, getattr(morphology, name), footprint)
        assert gradcheck(inside, images, check_forward_ad=True)
        assert gradgradcheck(inside, images, fast_mode=True)


def _finite(filtered, footprint, images):
    found = filtered(images, footprint)
    return torch.where(found.isfinite(), found, 0)


@pytest.mark.parametrize("name", ["dilation", "erosion", "opening", "closing"])
@pytest.mark.parametrize("kind", ["ties", "nan", "half"])
def test_a_gradient_has_the_sum_of_what_arrives(name, kind):
    """F2: it goes to one of equal elements, whole, also between rectangles."""
    images = torch.zeros(1, 2, 8, 9, dtype=torch.float16 if kind == "half" else torch.float32)
    if kind == "nan":
        images[0, 0, 3, 3] = images[0, 1, 4, 5] = torch.nan
    images.requires_grad_()
    arriving = torch.randint(1, 9, images.shape, generator=samples.seeded(2)).to(images.dtype)
    for footprint in (FOOTPRINTS["cross"], FOOTPRINTS["disk 2"], 3):
        found = getattr(morphology, name)(images, footprint)
        (gradient,) = torch.autograd.grad(found, images, arriving)
        assert gradient.double().sum() == arriving.double().sum()
        assert torch.equal(gradient, gradient.round())  # no halves


def test_vmap_and_channels_last():
    images, footprint = torch.rand(4, 2, 3, 9, 8), FOOTPRINTS["disk 2"]
    filtered = functools.partial(morphology.opening, footprint=footprint)
    expected = torch.stack([filtered(each) for each in images])
    assert torch.equal(torch.vmap(filtered)(images), expected)
    each = images[0].contiguous(memory_format=torch.channels_last).requires_grad_()
    assert torch.equal(filtered(each), expected[0])
    assert filtered(each).is_contiguous(memory_format=torch.channels_last)


@cases.each("name", morphology.__all__, ["gradient"])
def test_torch_compile_makes_one_graph(name, fresh_compiler):
    """Also of a footprint that is a tensor; another one of its sizes is no wrong number."""
    filtered = getattr(morphology, name)
    compiled = torch.compile(filtered, fullgraph=True, backend="aot_eager")
    for footprint in (3, FOOTPRINTS["cross"]):
        images = torch.rand(2, 3, 8, 9, requires_grad=True)
        found, expected = compiled(images, footprint), filtered(images, footprint)
        assert torch.equal(found, expected)
        gradients = [torch.autograd.grad(each.sum(), images)[0] for each in (found, expected)]
        assert torch.equal(*gradients)
    with pytest.raises(RuntimeError, match="footprint has other elements than where this was"):
        compiled(images, ~FOOTPRINTS["cross"])


class Opening(torch.nn.Module):
    def __init__(self, is_buffer):
        super().__init__()
        self.footprint: Tensor
        if is_buffer:
            self.register_buffer("footprint", ball(2, 2))
        else:
            self.footprint = ball(2, 2)

    def forward(self, images):
        return morphology.opening(images, self.footprint)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_torch_export_takes_a_footprint_as_a_constant(strict):
    images, larger = torch.rand(2, 3, 8, 9), torch.rand(2, 3, 11, 9)
    sizes = ({2: torch.export.Dim("height", min=2, max=64)},)
    model = Opening(is_buffer=False)
    program = torch.export.export(model, (images,), dynamic_shapes=sizes, strict=strict)
    assert torch.equal(program.module()(larger), model(larger))


def test_torch_export_refuses_a_footprint_that_it_traces():
    with pytest.raises(dmlpool.ArgumentError, match="footprint must have known elements, got a"):
        torch.export.export(Opening(is_buffer=True), (torch.rand(2, 3, 8, 9),), strict=False)


IMAGES = torch.zeros(1, 1, 4, 4)
WRONG = {
    "images must be a torch.Tensor, got int": (TypeError, 3, 3),
    "images must be (N, C, *spatial) with 1 to 3 spatial dimensions, got shape (4, 4)": (
        *(ValueError, IMAGES[0, 0], 3),
    ),
    "images must have a size of at least 1 in spatial dimension W, got 0": (
        *(ValueError, IMAGES[..., :0], FOOTPRINTS["cross"]),
    ),
    "images has data type complex64; supported are float32": (TypeError, IMAGES.cfloat(), 3),
    "footprint must be at least 1, got 0 in spatial dimension H": (ValueError, IMAGES, (0, 3)),
    "footprint must be one int or 2 ints (H, W), got (1, 2, 3)": (ValueError, IMAGES, (1, 2, 3)),
    "footprint must be ints, got 1.5 of type float": (TypeError, IMAGES, 1.5),
    "footprint must be ints, got None of type NoneType": (TypeError, IMAGES, None),
    "footprint must be ints, got True of type bool": (TypeError, IMAGES, True),
    "footprint must be ints or a bool tensor, got a tensor of float32": (
        *(TypeError, IMAGES, torch.ones(3, 3)),
    ),
    "footprint must have the 2 spatial dimensions of images, got shape (3,)": (
        *(ValueError, IMAGES, torch.ones(3).bool()),
    ),
    "footprint must have an element that is True, got shape (3, 3)": (
        *(ValueError, IMAGES, torch.zeros(3, 3).bool()),
    ),
    "footprint must have an element that is True, got shape (0, 3)": (
        *(ValueError, IMAGES, torch.zeros(0, 3).bool()),
    ),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_is_wrong_is_named(message):
    kind, *wrong = WRONG[message]
    for name in morphology.__all__:
        with pytest.raises(kind, match=f"^{re.escape(message)}"):
            getattr(morphology, name)(*wrong)
