"""Every refusal by its text (G5, G6, G8, A5, M4): TypeError or ValueError, eager and on the meta device alike."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

operators = torch.ops.dmlpool
FLOATS = "float32, float16, bfloat16, float64"
ALL_TYPES = f"{FLOATS}, int8, int16, int32, int64, uint8, uint16, uint32, uint64"
INDEX_TYPES = "int32, int64, uint32, uint64"
PLANES = torch.ones(2, 3, 4, 5)
GRADIENT = torch.ones(2, 3, 3, 4)


def beside(tensor: object, other: Tensor) -> Tensor:
    """The other operand, on the same device."""
    return other.to(tensor.device) if isinstance(tensor, Tensor) else other


# Every public function as a function of the tensor that it pools, or whose gradient it takes.
FUNCTIONS: dict[str, tuple[str, str, Callable[..., object]]] = {
    "average_pooling": ("input", FLOATS, lambda tensor, *window: dmlpool.average_pooling(tensor, *window)),
    "average_pooling_grad": (
        "input_gradient",
        FLOATS,
        lambda tensor, *window: dmlpool.average_pooling_grad(tensor, (2, 3, 4, 5), *window),
    ),
    "lp_pooling": ("input", FLOATS, lambda tensor, *window: dmlpool.lp_pooling(tensor, *window)),
    "max_pooling": ("input", ALL_TYPES, lambda tensor, *window: dmlpool.max_pooling(tensor, *window)),
    "max_pooling_with_indices": (
        "input",
        ALL_TYPES,
        lambda tensor, *window: dmlpool.max_pooling(tensor, *window, return_indices=True),
    ),
    "max_pooling_grad": (
        "input",
        FLOATS,
        lambda tensor, *window: dmlpool.max_pooling_grad(tensor, beside(tensor, GRADIENT), *window),
    ),
    "max_pooling_grad, gradient": (
        "input_gradient",
        FLOATS,
        lambda tensor, *window: dmlpool.max_pooling_grad(beside(tensor, PLANES), tensor, *window),
    ),
}
functions = pytest.mark.parametrize("function", FUNCTIONS)


def refused(
    kind: type[Exception], message: str, call: Callable[..., object], *arguments: object, **rest: object
) -> None:
    """Refused with exactly this text, and by no subclass of the exception."""
    with pytest.raises(kind, match=f"^{re.escape(message)}$") as refusal:
        call(*arguments, **rest)
    assert type(refusal.value) is kind


NOT_TENSORS = [None, 3, 1.5, "image", [[[1.0, 2.0]]], PLANES.numpy(), PLANES.shape]


@pytest.mark.parametrize("value", NOT_TENSORS, ids=lambda value: type(value).__name__)
@functions
def test_not_a_tensor(function: str, value: object) -> None:
    """G6."""
    name, _, call = FUNCTIONS[function]
    refused(TypeError, f"{name} must be a torch.Tensor, got {type(value).__name__}", call, value, 2)


UNSUPPORTED = [torch.bool, torch.complex64, torch.complex32, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental:UserWarning")
@pytest.mark.parametrize("dtype", UNSUPPORTED, ids=str)
@functions
def test_data_types_that_nothing_pools(function: str, dtype: torch.dtype) -> None:
    """G6: the message lists what is supported."""
    name, types, call = FUNCTIONS[function]
    message = f"{name} has data type {str(dtype)[6:]}; supported are {types}"
    refused(TypeError, message, call, torch.ones(2, 3, 4, 5).to(dtype), 2)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.uint16, torch.uint64], ids=str)
@pytest.mark.parametrize("function", [name for name, row in FUNCTIONS.items() if row[1] == FLOATS])
def test_integers_have_no_average_and_no_gradient(function: str, dtype: torch.dtype) -> None:
    """G6 and M7."""
    name, types, call = FUNCTIONS[function]
    refused(TypeError, f"{name} has data type {str(dtype)[6:]}; supported are {types}", call, PLANES.to(dtype), 2)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@functions
def test_quantized_tensors(function: str) -> None:
    """G6: they have operators of their own; here their type is named."""
    name, types, call = FUNCTIONS[function]
    tensor = torch.quantize_per_tensor(PLANES, 0.5, 3, torch.quint8)
    refused(TypeError, f"{name} has data type quint8; supported are {types}", call, tensor, 2)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning", "ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("tensor", "named"),
    [
        (lambda: PLANES.to_sparse(), "layout torch.sparse_coo"),
        (lambda: PLANES[0, 0].to_sparse_csr(), "layout torch.sparse_csr"),
        (lambda: torch.nested.nested_tensor([torch.ones(3, 4, 5)] * 2), "a nested tensor"),
        (lambda: torch.nested.nested_tensor([torch.ones(3, 4, 5)] * 2, layout=torch.jagged), "a nested tensor"),
    ],
    ids=["sparse_coo", "sparse_csr", "nested", "jagged"],
)
@functions
def test_tensors_that_are_not_dense(function: str, tensor: Callable[[], Tensor], named: str) -> None:
    """G6."""
    name, _, call = FUNCTIONS[function]
    refused(TypeError, f"{name} must be a dense tensor (torch.strided), got {named}", call, tensor(), 2)


@pytest.mark.parametrize("sizes", [(), (5,), (4, 5), (1, 1, 2, 3, 4, 5), (0,) * 7], ids=str)
@pytest.mark.parametrize("device", ["cpu", "meta"])
@functions
def test_ranks(function: str, sizes: tuple[int, ...], device: str) -> None:
    """G1 and G5."""
    name, _, call = FUNCTIONS[function]
    message = (
        f"{name} must be (N, C, *spatial) with 1 to 3 spatial dimensions, got {len(sizes)} dimensions: shape {sizes}"
    )
    refused(ValueError, message, call, torch.ones(sizes, device=device), 2)


WINDOWS = [
    ((2.0,), TypeError, "window_size must be ints, got 2.0 of type float (window_size=2.0)"),
    ((None,), TypeError, "window_size must be ints, got None of type NoneType (window_size=None)"),
    (("2",), TypeError, "window_size must be ints, got '2' of type str (window_size='2')"),
    ((True,), TypeError, "window_size must be ints, got True of type bool (window_size=True)"),
    (((2, 2, 2),), ValueError, "window_size must be one int or 2 ints (H, W), got 3 entries: (2, 2, 2)"),
    ((0,), ValueError, "window_size must be at least 1, got 0 in spatial dimension H (window_size=0)"),
    ((2, (1, 0)), ValueError, "strides must be at least 1, got 0 in spatial dimension W (strides=(1, 0))"),
    ((2, 1, -1), ValueError, "start_padding must be at least 0, got -1 in spatial dimension H (start_padding=-1)"),
    (
        (2, 1, 0, (0, -4)),
        ValueError,
        "end_padding must be at least 0, got -4 in spatial dimension W (end_padding=(0, -4))",
    ),
    ((2, 1, 0, 0, 0), ValueError, "dilations must be at least 1, got 0 in spatial dimension H (dilations=0)"),
    ((2, 1, 0, 0, (1,)), ValueError, "dilations must be one int or 2 ints (H, W), got 1 entries: (1,)"),
    (
        (2, 1, 2**31),
        ValueError,
        "start_padding must be at most 2147483647, got 2147483648 in spatial dimension H (start_padding=2147483648)",
    ),
    (
        ((2, 2**40),),
        ValueError,
        "window_size must be at most 2147483647, got 1099511627776 in spatial dimension W "
        "(window_size=(2, 1099511627776))",
    ),
    (
        ((2, 6),),
        ValueError,
        "the window leaves no output in spatial dimension W: window_size 6 with dilation 1 spans 6 positions, "
        "but the padded input has only 5 (0 + 5 + 0)",
    ),
    (
        (2, 1, (1, 0), (1, 0), 2**31 - 1),
        ValueError,
        "the window leaves no output in spatial dimension H: window_size 2 with dilation 2147483647 spans 2147483648 "
        "positions, but the padded input has only 6 (1 + 4 + 1)",
    ),
    (
        (2**31 - 1, 1, 0, 3),
        ValueError,
        "the window leaves no output in spatial dimension H: window_size 2147483647 with dilation 1 spans 2147483647 "
        "positions, but the padded input has only 7 (0 + 4 + 3)",
    ),
]


@pytest.mark.parametrize("window", WINDOWS, ids=[str(row[0]) for row in WINDOWS])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@functions
def test_windows(function: str, device: str, window: tuple[tuple[object, ...], type[Exception], str]) -> None:
    """G5 and G6, by every function, before it looks at anything else that follows from the window."""
    arguments, kind, message = window
    tensor = GRADIENT if FUNCTIONS[function][0] == "input_gradient" else PLANES
    refused(kind, message, FUNCTIONS[function][2], tensor.to(device), *arguments)


@pytest.mark.parametrize("sizes", [(1, 1, 0, 3), (1, 1, 3, 0), (0, 2, 0, 3)], ids=str)
@pytest.mark.parametrize("function", ["average_pooling", "max_pooling", "max_pooling_with_indices", "max_pooling_grad"])
def test_spatial_dimensions_without_elements(function: str, sizes: tuple[int, ...]) -> None:
    """G5: even where padding would leave windows, and even where the batch is empty."""
    name = "H" if sizes[2] == 0 else "W"
    message = f"the input has size 0 in spatial dimension {name}; every spatial size must be at least 1"
    refused(ValueError, message, FUNCTIONS[function][2], torch.ones(sizes), 2, 1, 2, 2)


FLAGS = [("ceil_mode", name) for name in FUNCTIONS] + [
    ("include_padding", "average_pooling"),
    ("include_padding", "average_pooling_grad"),
    ("return_indices", "max_pooling"),
]


@pytest.mark.parametrize("value", [1, 0, None, "no"], ids=repr)
@pytest.mark.parametrize(("flag", "function"), FLAGS, ids=str)
def test_flags(flag: str, function: str, value: object) -> None:
    """G6: a misplaced number must not pass for a switch."""
    calls = {
        "average_pooling": lambda **rest: dmlpool.average_pooling(PLANES, 2, **rest),
        "average_pooling_grad": lambda **rest: dmlpool.average_pooling_grad(GRADIENT, PLANES.shape, 2, **rest),
        "max_pooling": lambda **rest: dmlpool.max_pooling(PLANES, 2, **rest),
        "max_pooling_with_indices": lambda **rest: dmlpool.max_pooling(PLANES, 2, return_indices=True, **rest),
    }
    call = calls.get(function, lambda **rest: dmlpool.max_pooling_grad(PLANES, GRADIENT, 2, **rest))
    refused(TypeError, f"{flag} must be a bool, got {value!r} of type {type(value).__name__}", call, **{flag: value})


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (0, ValueError, "divisor_override must not be 0"),
        (2.0, TypeError, "divisor_override must be an int or None, got 2.0 of type float"),
        (True, TypeError, "divisor_override must be an int or None, got True of type bool"),
        ("2", TypeError, "divisor_override must be an int or None, got '2' of type str"),
        ((2, 2), TypeError, "divisor_override must be an int or None, got (2, 2) of type tuple"),
    ],
    ids=repr,
)
def test_divisors(value: object, kind: type[Exception], message: str) -> None:
    """A5."""
    for call in (
        lambda **rest: dmlpool.average_pooling(PLANES, 2, **rest),
        lambda **rest: dmlpool.average_pooling_grad(GRADIENT, PLANES.shape, 2, **rest),
    ):
        refused(kind, message, call, divisor_override=value)


@pytest.mark.parametrize("sizes", [(2, 3, 3, 3), (2, 3, 4, 4), (1, 3, 3, 4), (2, 4, 3, 4), (2, 3, 4, 3)], ids=str)
def test_gradients_of_other_sizes(sizes: tuple[int, ...]) -> None:
    """G8: both shapes are named."""
    message = f"input_gradient must have the forward output's shape (2, 3, 3, 4), got shape {sizes}"
    for device in ("cpu", "meta"):
        gradient = torch.ones(sizes, device=device)
        refused(ValueError, message, dmlpool.max_pooling_grad, PLANES.to(device), gradient, 2)
        refused(ValueError, message, dmlpool.average_pooling_grad, gradient, (2, 3, 4, 5), 2)


def test_gradients_of_another_rank() -> None:
    """G8."""
    with pytest.raises(ValueError, match=re.escape("(2, 3, 3, 4)")):
        dmlpool.max_pooling_grad(PLANES, torch.ones(2, 3, 3), 2)
    with pytest.raises(ValueError, match=re.escape("(N, C, *spatial) with 3 entries, got (2, 3, 4, 5)")):
        dmlpool.average_pooling_grad(torch.ones(2, 3, 3), (2, 3, 4, 5), 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_gradients_of_another_type(dtype: torch.dtype) -> None:
    """G8: both types are named."""
    message = f"input_gradient must have the input's data type float32, got {str(dtype)[6:]}"
    refused(TypeError, message, dmlpool.max_pooling_grad, PLANES, GRADIENT.to(dtype), 2)


def test_gradients_on_another_device() -> None:
    """G6 and G8: both devices are named."""
    message = "input_gradient must be on the input's device cpu, got meta"
    refused(ValueError, message, dmlpool.max_pooling_grad, PLANES, GRADIENT.to("meta"), 2)
    message = "input_gradient must be on the input's device meta, got cpu"
    refused(ValueError, message, dmlpool.max_pooling_grad, PLANES.to("meta"), GRADIENT, 2)


@pytest.mark.parametrize(
    ("size", "kind", "message"),
    [
        (5, TypeError, "input_size must be a sequence of ints (N, C, *spatial), got 5 of type int"),
        (None, TypeError, "input_size must be a sequence of ints (N, C, *spatial), got None of type NoneType"),
        ((2, 3, 4.0, 5), TypeError, "input_size must be ints, got 4.0 of type float (input_size=(2, 3, 4.0, 5))"),
        ((2, True, 4, 5), TypeError, "input_size must be ints, got True of type bool (input_size=(2, True, 4, 5))"),
        (
            (4, 5),
            ValueError,
            "input_size must be the full size (N, C, *spatial) with 4 entries, got (4, 5)",
        ),
        (
            (2, 3, 4, 6),
            ValueError,
            "input_gradient must have the forward output's shape (2, 3, 3, 5), got shape (2, 3, 3, 4)",
        ),
        (
            (1, 3, 4, 5),
            ValueError,
            "input_gradient must have the forward output's shape (1, 3, 3, 4), got shape (2, 3, 3, 4)",
        ),
        (
            (2, -3, 4, 5),
            ValueError,
            "input_size must be at least 0, got -3 in dimension C (input_size=(2, -3, 4, 5))",
        ),
        (
            (2, 3, 0, 5),
            ValueError,
            "the input has size 0 in spatial dimension H; every spatial size must be at least 1",
        ),
        (
            (2, 3, -4, 5),
            ValueError,
            "the input has size -4 in spatial dimension H; every spatial size must be at least 1",
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, (tuple, int)) else "",
)
def test_input_sizes(size: object, kind: type[Exception], message: str) -> None:
    """E8 and G8."""
    refused(kind, message, dmlpool.average_pooling_grad, GRADIENT, size, 2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.bool, "int64", int, None], ids=str)
def test_index_types(dtype: object) -> None:
    """G6 and M4."""
    name = str(dtype)[6:] if isinstance(dtype, torch.dtype) else repr(dtype)
    message = f"index_dtype must be one of {INDEX_TYPES}, got {name}"
    refused(TypeError, message, dmlpool.max_pooling, PLANES, 2, return_indices=True, index_dtype=dtype)


@pytest.mark.parametrize(("dtype", "most"), [(torch.int32, 2**31), (torch.uint32, 2**32 - 1)], ids=["int32", "uint32"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_index_types_that_cannot_number_the_input(device: str, dtype: torch.dtype, most: int) -> None:
    """M4: refused before any work, on an input that could never be computed here; one element less is accepted."""
    for elements in (2**34, most + 1):
        input = torch.zeros((), device=device, dtype=torch.uint8).expand(1, 1, elements)
        message = f"index_dtype {str(dtype)[6:]} numbers at most {most} elements, the input has {elements}"
        refused(ValueError, message, dmlpool.max_pooling, input, 2, return_indices=True, index_dtype=dtype)
    if device == "meta":
        values, indices = dmlpool.max_pooling(input[..., :most], 2, 2, return_indices=True, index_dtype=dtype)
        assert values.shape[-1] == indices.shape[-1] == most // 2


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_operators_refuse_too(device: str) -> None:
    """G5, G6, G8 and M6 where somebody calls torch.ops.dmlpool directly, or torch.export replays a graph."""
    input, window = PLANES.to(device), ([2, 2], [1, 1], [0, 0], [0, 0], [1, 1], False)
    taps = torch.zeros(2, 3, 3, 4, dtype=torch.uint8, device=device)
    gradient = GRADIENT.to(device)
    refused(
        ValueError,
        "strides must be at least 1, got 0 in spatial dimension W (strides=(1, 0))",
        lambda: operators.max_pooling(input, [2, 2], [1, 0], *window[2:]),
    )
    refused(
        TypeError,
        f"input has data type int32; supported are {FLOATS}",
        lambda: operators.average_pooling(input.int(), *window, False, None),
    )
    refused(
        ValueError,
        "divisor_override must not be 0",
        lambda: operators.average_pooling(input, *window, False, 0),
    )
    refused(
        TypeError,
        "taps of a window of 4 taps must have data type uint8, or int32 where they are positions, got int64",
        lambda: operators.max_pooling_grad_from_taps(gradient, taps.long(), [4, 5], *window, False),
    )
    refused(
        ValueError,
        "taps must have the forward output's shape (2, 3, 4, 4), got shape (2, 3, 3, 4)",
        lambda: operators.max_pooling_indices(taps, [5, 5], *window, torch.int64, True),
    )
    with pytest.raises(ValueError, match=re.escape("(2, 3, 3, 4)")):
        operators.max_pooling_grad_from_taps(gradient[:1], taps, [4, 5], *window, False)
    with pytest.raises(ValueError, match=re.escape("(2, 3, 3, 4)")):
        operators.max_pooling_gather(input, taps[:, :1], *window)


def test_refusals_come_before_any_work() -> None:
    """An input far too large to compute on is refused at once, for the last argument as for the first."""
    huge = torch.zeros((), dtype=torch.float32).expand(2**20, 2**20, 4, 5)
    for call, kind in (
        (lambda: dmlpool.max_pooling(huge, 2, dilations=9), ValueError),
        (lambda: dmlpool.max_pooling(huge, 2, return_indices=True, index_dtype=torch.int32), ValueError),
        (lambda: dmlpool.average_pooling(huge, 2, divisor_override=0), ValueError),
        (lambda: dmlpool.average_pooling_grad(huge, (2**20, 2**20, 5, 7), 2), ValueError),
        (lambda: dmlpool.max_pooling_grad(huge, GRADIENT, 2), ValueError),
        (lambda: dmlpool.max_pooling_grad(huge, huge.view(torch.int32), 2), TypeError),
    ):
        with pytest.raises(kind):
            call()


QUANTIZED = torch.zeros(2, 3, 4, 5, dtype=torch.uint8)
PER_CHANNEL = torch.tensor([0.5, 1.0, 2.0])
FITS = {"input_scale": 0.1, "input_zero_point": 3, "output_scale": 0.2, "output_zero_point": None}


def quantized(tensor: object = QUANTIZED, window: object = 2, *rest: object, **changes: object) -> Tensor:
    parameters = {**FITS, **changes}
    return dmlpool.quantized_linear_average_pooling(tensor, *(parameters.pop(name) for name in FITS), window, *rest,
                                                    **parameters)  # fmt: skip


def channelwise(value: float) -> Tensor:
    return torch.tensor([0.5, value, 2.0])


SHAPES = "must have one element or one per channel, shape (3,) or (1, 3, 1, 1), got shape"
QUANTIZED_REFUSALS = [
    ({"input_scale": 0.0}, ValueError, "input_scale must be finite and above 0 in float32, got 0.0"),
    ({"output_scale": -0.5}, ValueError, "output_scale must be finite and above 0 in float32, got -0.5"),
    ({"input_scale": float("nan")}, ValueError, "input_scale must be finite and above 0 in float32, got nan"),
    ({"output_scale": float("inf")}, ValueError, "output_scale must be finite and above 0 in float32, got inf"),
    ({"input_scale": 1e-50}, ValueError, "input_scale must be finite and above 0 in float32, got 1e-50"),
    ({"output_scale": 1e39}, ValueError, "output_scale must be finite and above 0 in float32, got 1e+39"),
    ({"input_scale": torch.zeros(())}, ValueError, "input_scale must be finite and above 0 in float32, got 0.0"),
    (
        {"output_scale": channelwise(-1.0)},
        ValueError,
        "output_scale must be finite and above 0 in float32, got -1.0 in channel 1",
    ),
    (
        {"input_scale": channelwise(float("nan")).view(1, 3, 1, 1)},
        ValueError,
        "input_scale must be finite and above 0 in float32, got nan in channel 1",
    ),
    (
        {"input_scale": channelwise(float("inf"))},
        ValueError,
        "input_scale must be finite and above 0 in float32, got inf in channel 1",
    ),
    ({"input_scale": torch.ones(2)}, ValueError, f"input_scale {SHAPES} (2,)"),
    ({"output_scale": torch.ones(3, 1)}, ValueError, f"output_scale {SHAPES} (3, 1)"),
    ({"output_scale": torch.ones(1, 3, 1)}, ValueError, f"output_scale {SHAPES} (1, 3, 1)"),
    ({"input_zero_point": torch.zeros(4, dtype=torch.uint8)}, ValueError, f"input_zero_point {SHAPES} (4,)"),
    ({"input_scale": "0.1"}, TypeError, "input_scale must be a number or a tensor, got '0.1' of type str"),
    ({"input_scale": None}, TypeError, "input_scale must be a number or a tensor, got None of type NoneType"),
    ({"output_scale": True}, TypeError, "output_scale must be a number or a tensor, got True of type bool"),
    (
        {"output_scale": torch.ones((), dtype=torch.int32)},
        TypeError,
        f"output_scale has data type int32; supported are {FLOATS}",
    ),
    ({"input_zero_point": 256}, ValueError, "input_zero_point must be 0 to 255, the range of uint8, got 256"),
    ({"input_zero_point": -1}, ValueError, "input_zero_point must be 0 to 255, the range of uint8, got -1"),
    (
        {"output_zero_point": 128, "output_dtype": torch.int8},
        ValueError,
        "output_zero_point must be -128 to 127, the range of int8, got 128",
    ),
    (
        {"input_zero_point": 1.5},
        TypeError,
        "input_zero_point must be ints, got 1.5 of type float (input_zero_point=1.5)",
    ),
    (
        {"input_zero_point": torch.tensor(3, dtype=torch.int8)},
        TypeError,
        "input_zero_point must have the input's data type uint8, got int8",
    ),
    (
        {"output_zero_point": torch.tensor(3, dtype=torch.uint8), "output_dtype": torch.int8},
        TypeError,
        "output_zero_point must have the output's data type int8, got uint8",
    ),
    (
        {"output_zero_point": torch.tensor(3)},
        TypeError,
        "output_zero_point has data type int64; supported are uint8",
    ),
    ({"output_dtype": torch.int32}, TypeError, "output_dtype must be one of int8, uint8, got int32"),
    ({"output_dtype": "int8"}, TypeError, "output_dtype must be one of int8, uint8, got 'int8'"),
    (
        {"input_scale": torch.ones((), device="meta")},
        ValueError,
        "input_scale must be on the input's device cpu, got meta",
    ),
    ({"ceil_mode": 1}, TypeError, "ceil_mode must be a bool, got 1 of type int"),
    ({"include_padding": 1}, TypeError, "include_padding must be a bool, got 1 of type int"),
]


@pytest.mark.parametrize(
    ("changes", "kind", "message"), QUANTIZED_REFUSALS, ids=[str(index) for index in range(len(QUANTIZED_REFUSALS))]
)
def test_scales_and_zero_points(changes: dict[str, object], kind: type[Exception], message: str) -> None:
    """Q3 and Q4, by name and number."""
    quantized()
    refused(kind, message, quantized, **changes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.int32, torch.uint16, torch.bool], ids=str)
def test_what_is_not_quantized(dtype: torch.dtype) -> None:
    """G6: the message lists what is supported."""
    message = f"input has data type {str(dtype)[6:]}; supported are int8, uint8"
    refused(TypeError, message, quantized, QUANTIZED.to(dtype))


@pytest.mark.parametrize("window", WINDOWS, ids=[str(row[0]) for row in WINDOWS])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_windows_of_quantized_averages(device: str, window: tuple[tuple[object, ...], type[Exception], str]) -> None:
    """G5 and G6."""
    arguments, kind, message = window
    refused(kind, message, quantized, QUANTIZED.to(device), *arguments)


def test_the_quantized_operator_refuses_too() -> None:
    """Q3 and Q4 where somebody calls torch.ops.dmlpool directly."""
    operator = operators.quantized_linear_average_pooling
    window, rest = ([2, 2], [1, 1], [0, 0], [0, 0], [1, 1], False), (False, torch.uint8)
    message = "output_scale must be finite and above 0 in float32, got 0.0"
    refused(ValueError, message, lambda: operator(QUANTIZED, PER_CHANNEL, None, torch.zeros(1), None, *window, *rest))
    refused(
        ValueError, f"input_scale {SHAPES} (2,)",
        lambda: operator(QUANTIZED, PER_CHANNEL[:2], None, PER_CHANNEL, None, *window, *rest),
    )  # fmt: skip
    for device in ("cpu", "meta"):
        refused(
            TypeError, "output_dtype must be one of int8, uint8, got float32",
            lambda: operator(
                QUANTIZED.to(device), PER_CHANNEL.to(device), None, PER_CHANNEL.to(device), None, *window, False,  # noqa: B023
                torch.float32,
            ),
        )  # fmt: skip
