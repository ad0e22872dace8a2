"""Numbers that are not Python's, in every argument that takes numbers: each is the int or the float
that it says, or is refused by name (rules G6 and A5)."""

import decimal
import fractions
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import samples
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool.nn import functional as F  # noqa: N812

Call = Callable[[Any], torch.Tensor]
IMAGE = samples.normal(1, 2, 9, 8)
SMALL = samples.normal(1, 2, 4, 4)
VALUES, INDICES = dmlpool.nn.MaxPool2d(2, return_indices=True)(SMALL)
ENTRIES: dict[str, Call] = {
    "window_size": lambda v: dmlpool.average_pooling(IMAGE, v),
    "strides": lambda v: dmlpool.max_pooling(IMAGE, 3, v),
    "start_padding": lambda v: dmlpool.min_pooling(IMAGE, 3, 1, v),
    "end_padding": lambda v: dmlpool.average_pooling(IMAGE, 3, 1, 0, v, include_padding=True),
    "dilations": lambda v: dmlpool.lp_pooling(IMAGE, 2, 1, 0, 0, v),
    "kernel_size": lambda v: F.avg_pool2d(IMAGE, v),
    "stride": lambda v: F.min_pool2d(IMAGE, 3, v),
    "padding": lambda v: F.max_pool2d(IMAGE, 3, 1, v),
    "dilation": lambda v: F.max_pool2d(IMAGE, 2, 1, 0, v),
    "output_size": lambda v: F.adaptive_avg_pool2d(IMAGE, v),
    "output_size of maxima": lambda v: dmlpool.adaptive_max_pooling(IMAGE, v),
    "output_size of minima": lambda v: dmlpool.adaptive_min_pooling(IMAGE, v),
    "kernel_size of unpooling": lambda v: F.max_unpool2d(VALUES, INDICES * 0, v, 2),
    "a layer": lambda v: dmlpool.nn.AvgPool2d(v, v)(IMAGE),
    "a layer of one dimension": lambda v: dmlpool.nn.AvgPool1d(np.max(v))(IMAGE[0]),
    "an adaptive layer": lambda v: dmlpool.nn.AdaptiveMaxPool2d(v)(IMAGE),
}
FORMS: dict[str, Callable[[Any], Any]] = {
    "a number": lambda kind: kind(2),
    "a tuple": lambda kind: (kind(2), kind(1)),
    "a list": lambda kind: [kind(1), kind(2)],
    "an array": lambda kind: np.array([2, 1], kind),
    "an array of no dimension": lambda kind: np.array(2, kind),
}
PAIRS: dict[str, Callable[[Any], Any]] = {
    "pairs": lambda kind: ((kind(1), kind(0)), (kind(0), kind(1))),
    "pairs of arrays": lambda kind: [np.array([1, 0], kind), np.array([0, 1], kind)],
    "an array of pairs": lambda kind: np.array([[1, 0], [0, 1]], kind),
}
INTEGERS = [np.dtype(code).type for code in "bBhHiIlLqQ"]
SINGLE: dict[str, Call] = {
    "divisor_override": lambda v: dmlpool.average_pooling(IMAGE, 2, divisor_override=v),
    "divisor of F": lambda v: F.avg_pool2d(IMAGE, 2, divisor_override=v),
    "divisor of a layer": lambda v: dmlpool.nn.AvgPool2d(2, divisor_override=v)(IMAGE),
    "divisor of a gradient": lambda v: dmlpool.average_pooling_grad(
        SMALL, (1, 2, 5, 5), 2, divisor_override=v
    ),
    "p": lambda v: dmlpool.lp_pooling(IMAGE, 2, p=v),
    "norm_type": lambda v: F.lp_pool2d(IMAGE, v, 2),
    "norm of a layer": lambda v: dmlpool.nn.LPPool2d(v, 2)(IMAGE),
}
FULL: dict[str, Call] = {
    "input_size": lambda v: dmlpool.average_pooling_grad(SMALL, v, 2),
    "output_size of max_unpooling": lambda v: dmlpool.max_unpooling(SMALL, MANY, v),
    "output_size of max_unpool2d": lambda v: F.max_unpool2d(VALUES, INDICES, 2, output_size=v),
}
MANY = torch.tensor([0, 25]).view(1, 2, 1, 1) + torch.arange(16).view(4, 4)


@pytest.mark.parametrize("argument", ENTRIES)
def test_numpys_integers_are_pythons(argument):
    """G6: of every type and in every form, twice, as the second call may find the first one's."""
    call, forms = ENTRIES[argument], {**FORMS, **(PAIRS if argument == "padding" else {})}
    for name, form in forms.items():
        expected = call(form(int))
        for kind in INTEGERS * 2:
            assert torch.equal(call(form(kind)), expected), (name, kind)


@pytest.mark.parametrize("argument", [*SINGLE, *FULL])
def test_single_numbers_and_full_sizes(argument):
    """G6 and A5: numpy's integers, arrays and tensors of no dimension, and arrays of full sizes."""
    call = (SINGLE | FULL)[argument]
    asked: Any = (1, 2, 5, 5) if argument != "output_size of max_unpool2d" else (1, 2, 4, 4)
    asked = 3 if argument in SINGLE else asked
    expected = call(asked)
    for kind in INTEGERS:
        forms = [np.array(asked, kind)]
        forms += [kind(asked)] if argument in SINGLE else [tuple(forms[0]), list(forms[0])]
        for form in forms:
            assert torch.equal(call(form), expected), kind
    if argument in SINGLE:
        assert torch.equal(call(torch.tensor(3)), expected)


@pytest.mark.parametrize("argument", ["p", "norm_type", "norm of a layer"])
def test_norms_are_real_numbers_of_any_kind(argument):
    """G6. What is finite in another type but not as a float is refused."""
    call = SINGLE[argument]
    kinds = np.float16, np.float32, np.float64, np.longdouble, fractions.Fraction, decimal.Decimal
    for kind in kinds:
        assert torch.equal(call(kind(2.5)), call(2.5)), kind
        for wrong in (0.5, -1, math.nan) if kind is not fractions.Fraction else (0.5, -1):
            with pytest.raises(ValueError, match=f"^{argument.split()[0]}.* must be at least 1"):
                call(kind(wrong))
    assert torch.equal(call(np.float32(math.inf)), call(math.inf))
    for large in (decimal.Decimal("1e400"), fractions.Fraction(10**400), np.longdouble("1e400")):
        with pytest.raises(ValueError, match=r"must be at most 1.79"):
            call(large)


WRONG = [
    *(np.float16(2), np.float32(2), np.float64(2), np.longdouble(2), np.complex64(2), np.True_),
    *(np.str_("2"), np.bytes_(b"2"), np.void(b"2"), np.timedelta64(2, "s"), np.datetime64(2, "s")),
    *(b"\2\1", bytearray(b"\2\1"), memoryview(b"\2\1"), iter([2]), {2: 2}, {2, 3}, 2j, object()),
    *(np.array(2.0), np.array([2.0, 2.0]), np.array([True, True]), np.array("2"), np.array([[2]])),
    *(torch.tensor(True), torch.tensor(2.0), torch.nn.Parameter(torch.ones(3))),
]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
def test_what_is_no_number_is_refused_by_name(value):
    """G6, alone, in tuples and in pairs of padding; what has only bytes in it too. Fractions are
    numbers for norms alone."""
    for argument, call in (ENTRIES | SINGLE | FULL).items():
        forms = [value] if argument in SINGLE else [value, (value, value)]
        for each in [*forms, *[((value,) * 2,) * 2] * (argument == "padding")]:
            is_norm = "p" in argument.split() or "norm" in argument
            is_real = isinstance(value, np.floating)
            if (is_norm and is_real) or argument == "a layer of one dimension":
                continue
            with pytest.raises((TypeError, ValueError), match=r"^\w+ must ") as wrong:
                call(each)
            assert len(str(wrong.value)) < 1000


@pytest.mark.parametrize("call", [ENTRIES["padding"], ENTRIES["output_size"], SINGLE["p"]])
def test_errors_are_short_whatever_is_passed(call):
    long = [2] * 10**5, range(10**12), "s" * 10**5, -(10**4000), -(10**5000), np.full(10**5, -2)
    for value in long:
        with pytest.raises((TypeError, ValueError)) as wrong:
            call(value)
        assert 20 < len(str(wrong.value)) < 1000


@pytest.mark.parametrize("wrong", [[torch.int8], np.array([1, 2]), "int8", 8, {}])
def test_data_types_of_any_other_kind_are_refused_by_name(wrong):
    """Arrays and what has no hash too."""
    plain = torch.ones(1, 1, 4, dtype=torch.int8)
    with pytest.raises(TypeError, match=r"^index_dtype must be one of "):
        dmlpool.max_pooling(IMAGE, 2, return_indices=True, index_dtype=wrong)
    with pytest.raises(TypeError, match=r"^output_dtype must be one of "):
        dmlpool.quantized_linear_average_pooling(plain, 1.0, 0, 1.0, 0, 2, output_dtype=wrong)


LAYERS: dict[str, Callable[[Any], torch.nn.Module]] = {
    "kernel_size": lambda n: dmlpool.nn.MaxPool2d((n(2), n(3)), n(2)),
    "padding": lambda n: dmlpool.nn.AvgPool2d(3, padding=((n(1), n(0)), (n(1), n(2)))),
    "dilation": lambda n: dmlpool.nn.AvgPool2d(2, dilation=np.array([2, 1], n)),
    "divisor_override": lambda n: dmlpool.nn.AvgPool2d(2, divisor_override=n(3)),
    "output_size": lambda n: dmlpool.nn.AdaptiveAvgPool2d(np.array([2, 4], n)),
    "norm_type": lambda n: dmlpool.nn.LPPool2d(n(2), n(2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_compiled_layers_take_numpys_integers(name):
    """As one graph, as eager layers do and layers of Python's ints."""
    expected = LAYERS[name](int)
    for kind in (np.int16, np.uint16):
        torch._dynamo.reset()
        layer = LAYERS[name](kind)
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        assert torch.equal(compiled(IMAGE), expected(IMAGE))
        assert torch.equal(layer(IMAGE), expected(IMAGE))
