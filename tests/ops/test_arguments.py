"""Registered operators called by name with arguments that disagree: each is refused before a
backend reads or writes anything (G5, G6, G8, A5, M4, M6, Q3 and Q4)."""

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from operators import NAMES, by_name, operators
from torch import Tensor
from torch._subclasses import FakeTensorMode

import torch_dmlpool as dmlpool
from torch_dmlpool import backends
from torch_dmlpool.backends import reference
from torch_dmlpool.window import ArgumentError

Rows = dict[str, Any]
"""Wrong values of an argument by what they are called: a value, or a function of the right one."""


def resized(dimension: int) -> Callable[[Tensor], Tensor]:
    """One element more along a dimension."""
    return lambda tensor: torch.cat((tensor, tensor.narrow(dimension, 0, 1)), dimension)


def of_type(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor.to(dtype)


# Wrong tensors.

POOLED: Rows = {
    "nothing": None,
    "a number": 3.0,
    "a list of tensors": lambda tensor: [tensor],
    "a sparse tensor": lambda tensor: tensor.to_sparse(),
    "no dimension": lambda tensor: tensor[0, 0, 0, 0],
    "two dimensions": lambda tensor: tensor[0, 0],
    "six dimensions": lambda tensor: tensor[None, None],
    "bool": of_type(torch.bool),
    "complex64": of_type(torch.complex64),
    "float8": of_type(torch.float8_e4m3fn),
    "no rows": lambda tensor: tensor[:, :, :0],
}
FLOAT = {**POOLED, "int32": of_type(torch.int32), "uint8": of_type(torch.uint8)}
BESIDE: Rows = {
    "on another device": lambda tensor: tensor.to("meta"),
    "another batch": resized(0),
    "other channels": resized(1),
    "one dimension less": lambda tensor: tensor[..., 0],
    "one dimension more": lambda tensor: tensor[..., None],
}
"""Wrong for a tensor beside others."""
SIZED: Rows = {"more rows": resized(2), "more columns": resized(3)}
"""Wrong for a tensor whose spatial sizes follow from the others."""
NUMBERS = {key: POOLED[key] for key in POOLED if key != "no rows"}
NUMBERS |= {"float32": of_type(torch.float32), "int16": of_type(torch.int16)}
TAPS = {**NUMBERS, "int64": of_type(torch.int64)}
POSITIONS = {**NUMBERS, "uint8": of_type(torch.uint8)}
OTHER_FLOATS: Rows = {"float64": of_type(torch.float64), "float16": of_type(torch.float16)}
PARAMETER: Rows = {
    "a number": 0.5,
    "a sparse tensor": lambda tensor: torch.ones(3).to(tensor.dtype).to_sparse(),
    "two entries": lambda tensor: torch.ones(2).to(tensor.dtype),
    "no entry": lambda tensor: torch.ones(0).to(tensor.dtype),
    "an entry per column": lambda tensor: torch.ones(1, 1, 1, 3).to(tensor.dtype),
    "on another device": lambda tensor: tensor.to("meta"),
    "complex64": of_type(torch.complex64),
    "int64": of_type(torch.int64),
}
SCALE: Rows = {
    "nothing": None,
    **PARAMETER,
    "zero": torch.zeros(1),
    "negative": torch.tensor([0.5, -1.0, 2.0]),
    "not a number": torch.tensor([0.5, 1.0, math.nan]),
    "infinite": torch.full((), math.inf),
}
ZERO_POINT: Rows = {**PARAMETER, "float32": of_type(torch.float32)}

MASK: Rows = {
    "nothing": None,
    "a number": 1.0,
    "a sparse tensor": lambda tensor: tensor.to_sparse(),
    "uint8": of_type(torch.uint8),
    "float32": of_type(torch.float32),
    "more samples": resized(0),
    "more channels": resized(1),
    **SIZED,
    "on another device": BESIDE["on another device"],
}
OTHER_THAN_MASK: Rows = {"on another device": BESIDE["on another device"], **SIZED}

# Wrong numbers.

SCALE_NUMBER: Rows = {
    "zero": 0.0,
    "negative": -0.5,
    "not a number": math.nan,
    "infinite": math.inf,
    "past float32": 1e39,
    "a word": "0.5",
}
NO_LIST: Rows = {
    "nothing": None,
    "a word": "2",
    "fractions": [2.5, 2.5],
    "no entries": [],
    "one entry less": lambda sizes: list(sizes)[1:],
    "one entry more": lambda sizes: [*sizes, 1],
    "past 64 bits": [2**63, 1],
}
AT_LEAST_1 = {**NO_LIST, "zero": [0, 1], "negative": [1, -1], "past 31 bits": [1, 2**31]}
AT_LEAST_0 = {**NO_LIST, "negative": [0, -1], "past 31 bits": [2**31, 0]}
SPATIAL: Rows = {
    **NO_LIST,
    "zero": lambda sizes: [0, *sizes[1:]],
    "negative": lambda sizes: [*sizes[:-1], -1],
    "all negative": lambda sizes: [-size for size in sizes],
    "past all memory": [2**62, 2**62],
}
BINS = {**SPATIAL, "negative": lambda sizes: [*sizes[:-1], -2]}
"""-1 stands for the input's size in a trace of torch.jit."""
OTHER_SIZES: Rows = {
    "one row more": lambda sizes: [sizes[0] + 8, *sizes[1:]],
    "one column less": lambda sizes: [*sizes[:-1], sizes[-1] - 2],
}
"""Wrong for spatial sizes that follow from the gradient's."""
NO_INT: Rows = {"a fraction": 0.5, "a word": "3"}
FLAG: Rows = {"a word": "yes", "a list": [True]}
INDEX_TYPE: Rows = {"float32": torch.float32, "int8": torch.int8, "bool": torch.bool, "a word": "x"}
WINDOW: dict[str, Rows] = {
    "window_size": {**AT_LEAST_1, "larger than the input": [1, 40], "very large": [2**31 - 1, 1]},
    "strides": AT_LEAST_1,
    "start_padding": AT_LEAST_0,
    "end_padding": AT_LEAST_0,
    "dilations": {**AT_LEAST_1, "wider than the input": [20, 20]},
    "ceil_mode": FLAG,
}
DIVISOR: Rows = {"zero": 0, "a fraction": 2.5, "a word": "2", "past 64 bits": 2**63}

OUTPUT_TYPE: Rows = {"int32": torch.int32, "float32": torch.float32, "a word": "uint8"}
ANYWHERE: dict[str, Rows] = {
    **WINDOW,
    **dict.fromkeys(("include_padding", "per_plane", "channels_last", "bins"), FLAG),
    "divisor_override": DIVISOR,
    "index_dtype": INDEX_TYPE,
    "output_dtype": OUTPUT_TYPE,
    "mask": MASK,
    "spatial_sizes": SPATIAL,
    "output_sizes": BINS,
}
"""What is wrong of an argument, whichever operator has it."""
QUANTIZED: Rows = {**POOLED, "int16": of_type(torch.int16), "float32": of_type(torch.float32)}
GIVEN_OUTPUT: Rows = {"spatial_sizes": {**SPATIAL, **OTHER_SIZES}}
OF_OPERATORS: dict[str, dict[str, Rows]] = {
    "average_pooling": {"input": FLOAT},
    "average_pooling_grad": {"input_gradient": {**FLOAT, **SIZED}, **GIVEN_OUTPUT},
    "max_pooling": {"input": POOLED},
    "max_pooling_with_taps": {"input": POOLED},
    "max_pooling_with_indices": {"input": POOLED},
    "max_pooling_indices": {"taps": {**TAPS, **SIZED}, **GIVEN_OUTPUT},
    "max_pooling_grad": {
        "input": {**FLOAT, **BESIDE, **OTHER_FLOATS},
        "input_gradient": {**FLOAT, **BESIDE, **SIZED, **OTHER_FLOATS},
    },
    "max_pooling_grad_from_taps": {
        "input_gradient": {**FLOAT, **BESIDE, **SIZED},
        "taps": {**TAPS, **BESIDE, **SIZED},
        **GIVEN_OUTPUT,
    },
    "max_pooling_gather": {"input": {**FLOAT, **BESIDE}, "taps": {**TAPS, **BESIDE, **SIZED}},
    "lp_pooling": {
        "input": FLOAT,
        "p": {
            **{"below 1": 0.5, "zero": 0.0, "negative": -1.0},
            **{"not a number": math.nan, "a word": "2"},
        },
    },
    "masked_average_pooling": {"input": {**FLOAT, **OTHER_THAN_MASK}},
    "masked_max_pooling": {"input": {**POOLED, **OTHER_THAN_MASK}},
    "masked_max_pooling_with_indices": {"input": {**POOLED, **OTHER_THAN_MASK}},
    "adaptive_average_pooling": {"input": FLOAT},
    "adaptive_average_pooling_grad": {"input_gradient": FLOAT},
    "adaptive_max_pooling": {"input": POOLED},
    "max_unpooling": {
        "input": {**POOLED, **BESIDE, **SIZED},
        "indices": {**POSITIONS, **BESIDE, **SIZED},
    },
    "unique_positions": {"positions": POSITIONS},
    "gather_positions": {"input": {**POOLED, **BESIDE}, "positions": {**POSITIONS, **BESIDE}},
    "scatter_positions": {
        "input": {**FLOAT, **BESIDE, **SIZED},
        "positions": {**POSITIONS, **BESIDE, **SIZED},
    },
    "quantized_linear_average_pooling_of_numbers": {
        "input": QUANTIZED,
        "input_scale": SCALE_NUMBER,
        "input_zero_point": {**NO_INT, "past int8": 128, "below int8": -129},
        "output_scale": SCALE_NUMBER,
        "output_zero_point": {**NO_INT, "past uint8": 256, "negative": -1},
    },
    "quantized_linear_average_pooling": {
        "input": {**QUANTIZED, "on another device": BESIDE["on another device"]},
        "input_scale": SCALE,
        "input_zero_point": {**ZERO_POINT, "uint8": of_type(torch.uint8)},
        "output_scale": SCALE,
        "output_zero_point": {**ZERO_POINT, "int8": of_type(torch.int8)},
    },
}


def arguments_of(name: str) -> list[str]:
    schema = getattr(operators, name).default._schema
    return [each.name for each in schema.arguments if not each.kwarg_only]


WRONG = {
    name: {
        argument: {**ANYWHERE, **OF_OPERATORS[name]}[argument] for argument in arguments_of(name)
    }
    for name in NAMES
}
"""What is wrong of each argument of each operator."""


class Row(NamedTuple):
    """A call that is right but for one argument."""

    name: str
    argument: str
    wrong: str
    arguments: list[Any]


def right(name: str) -> dict[str, Any]:
    """Right arguments by their names."""
    _, values = by_name(name)
    arguments = dict(zip(arguments_of(name), values, strict=True))
    if name == "quantized_linear_average_pooling":
        arguments["input_zero_point"] = torch.tensor([3], dtype=torch.int8)
    return arguments


def rows(name: str) -> Iterator[Row]:
    for argument, wrong in WRONG[name].items():
        for label, value in wrong.items():
            values = right(name)
            values[argument] = (
                value(values[argument])
                if callable(value) and not isinstance(value, (Tensor, torch.dtype))
                else value
            )
            yield Row(name, argument, label, list(values.values()))


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_of_every_operator_has_rows(name: str) -> None:
    """None is forgotten, and none is left over."""
    assert {*OF_OPERATORS[name]} <= {*arguments_of(name)}
    assert all(len(wrong) >= 2 for wrong in WRONG[name].values())


class Reached(BaseException):
    """A backend is called."""


@contextlib.contextmanager
def no_backend() -> Iterator[None]:
    """Inside, a call of a backend is seen."""

    def reached(*_: object) -> None:
        raise Reached

    functions = {
        name: reached for name, each in reference.BACKEND._asdict().items() if callable(each)
    }
    table = reference.BACKEND._replace(**functions)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "serving", lambda _: table)
        yield


@pytest.mark.parametrize(
    "name", ["max_pooling", "lp_pooling", "max_unpooling", "masked_max_pooling"]
)
def test_a_right_call_reaches_a_backend(name: str) -> None:
    """So the tests of wrong arguments would see a call that does."""
    operator, values = by_name(name)
    with no_backend(), pytest.raises(Reached):
        operator(*values)


def refusal(call: Callable[..., object], arguments: list[Any]) -> Exception | None:
    try:
        with no_backend():
            call(*arguments)
    except (TypeError, ValueError, RuntimeError) as error:
        return error
    except Reached:
        pass
    return None


def faked(row: Row) -> Exception | None:
    """What is raised for fake tensors in place of real ones."""
    with FakeTensorMode() as mode:

        def fake(value: Any) -> Any:
            if isinstance(value, list):
                return [fake(entry) for entry in value]
            return mode.from_tensor(value) if isinstance(value, Tensor) else value

        return refusal(getattr(operators, row.name), [fake(value) for value in row.arguments])


# Only the layout of fake tensors is known; numbers are known.
VALUES = ("zero", "negative", "not a number", "infinite")


def is_of_values(row: Row) -> bool:
    """Whether the elements of a scale are wrong."""
    return isinstance(row.arguments[1], Tensor) and (
        row.argument.endswith("_scale") and row.wrong in VALUES
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_disagrees_is_refused_in_words(name: str) -> None:
    """In eager mode and with fake tensors alike, by a message that names an argument or what it
    leaves."""
    subjects = [*WRONG[name], "the window", "the input", "the output"]
    for row in rows(name):
        error = refusal(getattr(operators, name), row.arguments)
        assert error is not None, row
        assert not isinstance(error, NotImplementedError), row
        assert any(subject in str(error) for subject in subjects), (row, error)
        fake = faked(row)
        if is_of_values(row):
            assert fake is None, row
        else:
            assert type(fake) is type(error), (row, fake)
            if isinstance(error, ArgumentError):
                assert str(fake) == str(error), row


def check_compiled(chosen: Iterator[Row]) -> None:
    for row in chosen:
        torch._dynamo.reset()
        compiled = torch.compile(getattr(operators, row.name), backend="eager", fullgraph=True)
        error = refusal(compiled, row.arguments)
        assert error is not None, row
        assert row.wrong != "past float32" or "finite and above 0 in float32" in str(error), error


def test_other_sizes_and_scales_are_refused_while_compiling() -> None:
    for name in ("max_pooling_grad_from_taps", "gather_positions"):
        check_compiled(row for row in rows(name) if row.wrong in ("other channels", "zero"))
    name = "quantized_linear_average_pooling_of_numbers"
    check_compiled(row for row in rows(name) if row.wrong == "past float32")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_disagrees_is_refused_while_compiling(name: str) -> None:
    """Values of scales alone are not known."""
    check_compiled(row for row in rows(name) if not is_of_values(row))


@pytest.mark.parametrize("name", ["max_pooling_grad_from_taps", "scatter_positions"])
def test_rows_have_no_channels_innermost(name: str) -> None:
    """PyTorch has no memory format for them."""
    operator, values = by_name(name)
    tensors = [argument[:, :, 0] for argument in values if isinstance(argument, Tensor)]
    flat = [
        argument[1:] if isinstance(argument, (list, tuple)) else argument for argument in values
    ]
    with pytest.raises(ValueError, match="channels_last must be False for one spatial dimension"):
        operator(*tensors, *flat[len(tensors) : -1], True)
    message = re.escape(str(2**63))
    with pytest.raises(ValueError, match=f"fewer than {message} elements in a plane"):
        operators.unique_positions(torch.zeros(1, 1, 2, 2, dtype=torch.int64), [2**62, 2])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda x: dmlpool.max_pooling(x[0], (2, 2)), "got .*: an operator's input has a batch"),
        (lambda x: dmlpool.nn.MaxPool2d(x, 2), r"a tensor of shape .*a layer is built before"),
        (lambda x: dmlpool.nn.MaxPool2d(x[0, 0, 0, 0], 2), r"a layer is built before"),
        (lambda _: dmlpool.nn.MaxPool2d(2, padding="causal"), "is for one spatial dimension"),
        (lambda _: dmlpool.nn.MaxPool3d(2, padding="SAME"), "got 'SAME': write 'same'"),
        (lambda x: dmlpool.nn.AvgPool2d(2, mask=x > 0), r"called: layer\(input, mask=mask\)"),
        (
            lambda x: dmlpool.max_pooling(x, 2, count_include_pad=1),
            "unexpected.*'count_include_pad'",
        ),
        (
            # torch.nn.functional.pad has the start and the end beside one another.
            lambda _: dmlpool.nn.MaxPool1d(3, padding=(32, 0)),
            r"^padding must be one int or one pair \(\(start, end\),\), got \(32, 0\): to pad 32 "
            r"at the start and 0 at the end write padding=\(\(32, 0\),\)$",
        ),
        (lambda _: dmlpool.maxpool, "did you mean torch_dmlpool.max_pooling"),
        (lambda _: dmlpool.nn.max_pooling, "'torch_dmlpool.nn' .*mean torch_dmlpool.max_pooling"),
    ],
)
def test_a_mistake_is_told_what_was_meant(call: Any, told: str) -> None:
    """G4 and G5, and names of other functions."""
    with pytest.raises((TypeError, ValueError, AttributeError), match=told) as raised:
        call(torch.rand(2, 3, 8, 8))
    assert isinstance(raised.value, dmlpool.ArgumentError) is isinstance(raised.value, ValueError)
