"""Models written by torch.onnx.export with this package's translations and run by ONNX Runtime,
against the oracle."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cases
import operators
import oracle
import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool.onnx import translations

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

DYNAMIC = torch.export.Dim.AUTO
FEW = [*cases.SMALL, cases.case("ceil refused in end padding")]
ALL = [*cases.LINES, *cases.FEW, cases.case("dilated", "padding above the window")]
ALL += [
    cases.case("taps straddle the input", "padded"),
    cases.case("padded", "ceil refused in end padding"),
]


class Model(torch.nn.Module):
    """Functions of one input each."""

    def __init__(self, functions: Sequence[Callable[[Tensor], Any]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: Tensor) -> list[Any]:
        return [function(input) for function, input in zip(self.functions, inputs, strict=True)]


@dataclass
class Exported:
    """A model in ONNX Runtime: the kinds of its nodes, and what it computes."""

    nodes: list[str]
    run: Callable[..., list[Tensor]]


def export(
    model: torch.nn.Module, inputs: Sequence[Tensor], dynamic: bool = False, **options: bool
) -> Exported:
    """With this package's table, or with ``has_table=False`` as torch.nn's layers are exported."""
    has_table = options.pop("has_table", True)
    shapes: Any = tuple(dict.fromkeys([0, *range(2, input.dim())], DYNAMIC) for input in inputs)
    program = torch.onnx.export(
        model.eval(),
        tuple(inputs),
        dynamo=True,
        verbose=False,
        dynamic_shapes=((shapes,) if isinstance(model, Model) else shapes) if dynamic else None,
        custom_translation_table=translations(**options) if has_table else None,
    )
    assert program is not None
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), settings, providers=["CPUExecutionProvider"]
    )
    names = [input.name for input in session.get_inputs()]

    def run(*inputs: Tensor) -> list[Tensor]:
        return [
            torch.from_numpy(array)
            for array in session.run(
                None, {name: input.numpy() for name, input in zip(names, inputs, strict=True)}
            )
        ]

    return Exported([node.op_type for node in program.model.graph], run)


def all_of(case: cases.Case) -> Callable[[Tensor], Any]:
    """What a window can be asked for."""
    window = case.arguments
    per_plane = samples.spelled_out(case.pooling)

    def function(input: Tensor) -> Any:
        return [
            dmlpool.max_pooling(input, **window),
            *dmlpool.max_pooling(input, **window, return_indices=True),
            torch.ops.dmlpool.max_pooling_with_indices(input, *per_plane, torch.int32, True)[1],
            dmlpool.average_pooling(input, **window),
            dmlpool.average_pooling(input, **window, include_padding=True),
            dmlpool.average_pooling(input, **window, divisor_override=-3),
            dmlpool.lp_pooling(input, **window),
            dmlpool.lp_pooling(input, **window, p=2.5),
            dmlpool.lp_pooling(input, **window, p=math.inf),
        ]

    return function


OUTPUTS = 10


def check(case: cases.Case, input: Tensor, results: list[Tensor]) -> None:
    maxima, values, indices, positions, *averages, norms, broken, greatest = results
    expected = oracle.maximum(samples.to_numpy(input), case.pooling)
    samples.assert_same(maxima, expected.values)
    samples.assert_same(values, expected.values)
    samples.assert_same(indices, expected.indices)
    samples.assert_same(positions, expected.plane_indices)
    taps = math.prod(case.pooling.window_size)
    for average, divisor in zip(averages, [(False, None), (True, None), (False, -3)], strict=True):
        exact = oracle.average(samples.to_numpy(input), case.pooling, *divisor)
        # A runtime adds in an order of its own, and three operations may follow.
        samples.assert_gradient(average, *exact, taps + 3)
    window = case.arguments
    torch.testing.assert_close(norms, dmlpool.lp_pooling(input, **window))
    torch.testing.assert_close(broken, dmlpool.lp_pooling(input, **window, p=2.5))
    samples.assert_same(greatest, dmlpool.lp_pooling(input, **window, p=math.inf))


def check_all(chosen: list[cases.Case], dynamic: bool, more: Sequence[int]) -> None:
    inputs = [samples.ties(2, 3, *case.sizes) for case in chosen]
    run = export(Model([all_of(case) for case in chosen]), inputs, dynamic).run
    for larger in more:
        inputs = [
            samples.ties(2 + larger, 3, *(size + larger for size in case.sizes), seed=1)
            for case in chosen
        ]
        results = run(*inputs)
        assert len(results) == OUTPUTS * len(chosen)
        for number, (case, input) in enumerate(zip(chosen, inputs, strict=True)):
            try:
                check(case, input, results[number * OUTPUTS :][:OUTPUTS])
            except AssertionError as error:
                raise AssertionError(f"{case.name}, {larger} larger") from error


@pytest.mark.parametrize(
    ("chosen", "dynamic"),
    [
        (FEW, False),
        *(pytest.param(ALL, dynamic, marks=pytest.mark.slow) for dynamic in (False, True)),
    ],
    ids=["few", "all", "all, dynamic"],
)
def test_windows(chosen: list[cases.Case], dynamic: bool) -> None:
    """G3, A1 to A5, M1 to M4: sizes known when the model is exported, or not."""
    check_all(chosen, dynamic, [0, 1, 3] if dynamic else [0])


def test_standard_nodes() -> None:
    """Where ONNX has the words, one node says it all: asymmetric padding, dilations, ceil_mode,
    whole planes."""
    images, window = torch.randn(2, 3, 9, 8), (3, 2, (1, 0), (2, 1), (1, 2))
    functions = {
        "AveragePool": lambda x: dmlpool.average_pooling(x, *window),
        "MaxPool": lambda x: dmlpool.max_pooling(x, *window, ceil_mode=True),
        "LpPool": lambda x: dmlpool.lp_pooling(x, *window, p=3),
        "GlobalAveragePool": lambda x: dmlpool.nn.functional.adaptive_avg_pool2d(x, 1),
        "GlobalMaxPool": lambda x: dmlpool.max_pooling(x, x.shape[2:]),
        "GlobalLpPool": lambda x: dmlpool.lp_pooling(x, x.shape[2:]),
        "ArgMax": lambda x: dmlpool.max_pooling(x, x.shape[2:], return_indices=True)[1],
        "ReduceMean": lambda x: dmlpool.average_pooling(x, (1, x.shape[3])),
    }
    exported = export(Model(list(functions.values())), [images] * len(functions), dynamic=True)
    kinds = [node for node in exported.nodes if node in functions]
    assert kinds == [*functions, "AveragePool"]
    larger = torch.randn(3, 3, 12, 11)
    for result, function in zip(
        exported.run(*[larger] * len(functions)), functions.values(), strict=True
    ):
        torch.testing.assert_close(result, function(larger))


TYPES = [
    torch.float16,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
]
QUANTIZED: list[dict[str, Any]] = [
    {"start_padding": 1, "strides": 2, "include_padding": True},
    {"start_padding": (1, 0), "end_padding": (0, 1), "ceil_mode": True},
    {"start_padding": 1, "input_scale": torch.tensor([0.5, 0.25, 1.5])},
    {"output_zero_point": torch.tensor([3, 4, 251], dtype=torch.uint8)},
    {"window_size": (7, 5), "output_scale": torch.tensor([0.5, 0.25, 1.5])},
    {"dilations": 2, "end_padding": 2},
    {"strides": 2, "start_padding": 1, "include_padding": True, "ceil_mode": True},
    {"start_padding": 4},
    {"output_zero_point": 0, "output_dtype": torch.int8},
]


def quantized(options: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    scales = {
        "input_scale": 0.75,
        "input_zero_point": 130,
        "output_scale": 0.5,
        "output_zero_point": 7,
    }
    return lambda x: dmlpool.quantized_linear_average_pooling(
        x, **{**scales, "window_size": 3, **options}
    )


def adaptive(input: Tensor) -> tuple[Tensor, ...]:
    maxima = dmlpool.adaptive_max_pooling(input, (3, 2), return_indices=True)
    return dmlpool.adaptive_average_pooling(input, (2, 3)), *maxima


@pytest.mark.slow
def test_types_bins_and_integers() -> None:
    """M7, A4 and Q1: every type that MaxPool can be given, uneven bins, and integers that stand for
    real numbers."""
    pooling = cases.case("padding above the window", "uneven padding").pooling
    window = vars(pooling)
    inputs = [samples.ties(2, 3, 4, 6, dtype=dtype) for dtype in TYPES]
    functions: list[Any] = [lambda x: dmlpool.max_pooling(x, **window, return_indices=True)] * len(
        TYPES
    )
    functions += [lambda x: dmlpool.average_pooling(x.half(), 3).float()]
    functions += [lambda x: dmlpool.average_pooling(x.bfloat16(), 3).float()]
    functions += [lambda x: dmlpool.max_pooling(x.bfloat16(), 3).float()]
    floats = samples.normal(2, 3, 7, 5)
    functions += [quantized(options) for options in QUANTIZED]
    integers = samples.integers(2, 3, 7, 5, dtype=torch.uint8)
    inputs += [floats] * 3 + [integers] * len(QUANTIZED)
    functions += [adaptive, lambda x: dmlpool.adaptive_max_pooling(x, (3, 2), return_indices=True)]
    inputs += [samples.ties(2, 3, 7, 5), samples.ties(2, 3, 7, 5, dtype=torch.int16)]
    exported = export(Model(functions), inputs)
    results = iter(exported.run(*inputs))
    for dtype, input in zip(TYPES, inputs, strict=False):
        expected = oracle.maximum(samples.to_numpy(input), pooling)
        values = next(results)
        assert values.dtype == dtype
        samples.assert_same(values, expected.values)
        samples.assert_same(next(results), expected.indices)
    for function in functions[len(TYPES) :][:3]:
        torch.testing.assert_close(next(results), function(floats), rtol=0.004, atol=0)
    for function in functions[len(TYPES) + 3 :][: len(QUANTIZED)]:
        result, expected = next(results), function(integers)
        assert result.dtype == expected.dtype
        # Near a half and on it a runtime that computes in float32 may round to the other side.
        assert (result.int() - expected.int()).abs().max() <= 1
        assert (result == expected).float().mean() > 0.7
    torch.testing.assert_close(next(results), adaptive(inputs[-2])[0])
    for input in inputs[-2:]:
        for expected in dmlpool.adaptive_max_pooling(input, (3, 2), return_indices=True):
            samples.assert_same(next(results), expected)
    assert exported.nodes.count("QuantizeLinear") == len(QUANTIZED)


@pytest.mark.parametrize(
    "dynamic", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["static", "dynamic"]
)
def test_exact(dynamic: bool) -> None:
    """M2, M3 and Q1: what a runtime may decide otherwise, and does not with exact=True."""
    windows = [cases.case("plain"), cases.case("padding above the window", "uneven padding")]
    functions: list[Any] = [
        lambda x, window=case.arguments: dmlpool.max_pooling(x, **window, return_indices=True)
        for case in windows
    ]
    functions += [quantized(options) for options in QUANTIZED]
    functions += [quantized({"window_size": (7, 5)})] if not dynamic else []
    functions += [
        lambda x: dmlpool.max_pooling(x, x.shape[2:], return_indices=True),
        lambda x: dmlpool.max_pooling(x, x.shape[2:]),
    ]
    inputs = [samples.special(2, 3, *case.sizes) for case in windows]
    integers = [
        samples.integers(2, 3, 7, 5, dtype=torch.uint8, seed=seed)
        for seed in range(len(functions) - 4)
    ]
    inputs += [*integers, samples.special(2, 3, 7, 5), samples.special(2, 3, 7, 5)]
    if not dynamic:
        functions += [lambda x: dmlpool.adaptive_max_pooling(x, (3, 2), return_indices=True)]
        inputs += [samples.special(2, 3, 7, 5)]
    results = iter(export(Model(functions), inputs, dynamic, exact=True).run(*inputs))
    for function, input in zip(functions, inputs, strict=True):
        expected = function(input)
        for tensor in expected if isinstance(expected, tuple) else [expected]:
            samples.assert_same(next(results), tensor)


def test_a_network_of_layers() -> None:
    """Exported with gradients switched on and off: no tap numbers, the same nodes."""
    network, input = operators.Pools(), samples.normal(2, 3, 14, 13)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            exported = export(network, [input], dynamic=not gradients)
        pools = [node for node in exported.nodes if "Pool" in node]
        assert [pool for pool in pools if pool != "GlobalAveragePool"] in (
            ["MaxPool", "AveragePool", "MaxPool"],
            # the mask of empty windows, if sizes are dynamic
            ["MaxPool", "MaxPool", "AveragePool", "MaxPool"],
        )
        for image in (
            [input]
            if gradients
            else [input, samples.normal(3, 3, 17, 16), samples.normal(1, 3, 12, 18)]
        ):
            for result, expected in zip(exported.run(image), network(image), strict=True):
                torch.testing.assert_close(result, expected.detach())


PLANE = ([3, 3], [1, 1], [0, 0], [0, 0], [1, 1], False)
WITHOUT_TABLE: dict[str, Callable[[Tensor], Any]] = {
    "maximum": dmlpool.nn.MaxPool2d(3, 2, 1),
    "average": dmlpool.nn.AvgPool2d(3, 2, 1),
    "global average": dmlpool.nn.AdaptiveAvgPool2d(1),
    "minimum": dmlpool.nn.MinPool2d(2),
}
OF_KNOWN_SIZES: dict[str, Callable[[Tensor], Any]] = {
    "same": dmlpool.nn.MaxPool2d(2, 1, "same"),
    "ceil": dmlpool.nn.AvgPool2d(3, 2, 1, ceil_mode=True),
    "divisor": dmlpool.nn.AvgPool2d(2, divisor_override=-3),
    "norm": dmlpool.nn.LPPool2d(2, 2),
    "uneven": dmlpool.nn.AdaptiveAvgPool2d((3, 5)),
    "mask": lambda x: dmlpool.nn.functional.avg_pool2d(x, 3, 1, 1, mask=x[:, :1] > 0),
    "by name": lambda x: torch.ops.dmlpool.average_pooling(x, *PLANE, False, None),
}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_without_a_table(dynamic: bool) -> None:
    """Plain pools are PyTorch's, which its own translations write; others need known sizes."""
    functions = [*({} if dynamic else OF_KNOWN_SIZES).values(), *WITHOUT_TABLE.values()]
    input = samples.ties(2, 3, 14, 13)
    exported = export(Model(functions), [input] * len(functions), dynamic, has_table=False)
    kinds = [node for node in exported.nodes if "Pool" in node or node == "ReduceMean"]
    assert kinds[-4:] == ["MaxPool", "AveragePool", "ReduceMean", "MaxPool"]
    assert len(kinds) == 4 + (not dynamic)
    image = samples.ties(3, 3, 16, 19) if dynamic else input
    for result, function in zip(exported.run(*[image] * len(functions)), functions, strict=True):
        torch.testing.assert_close(result, function(image))


@pytest.mark.parametrize("name", ["same", "indices"])
def test_the_cause_of_a_failed_export_names_the_table(name: str) -> None:
    function = OF_KNOWN_SIZES.get(name, dmlpool.nn.MaxPool2d(2, return_indices=True))
    with pytest.raises(torch.onnx.OnnxExporterError) as failed:
        export(Model([function]), [samples.ties(2, 3, 9, 8)], name == "same", has_table=False)
    table = "custom_translation_table=torch_dmlpool.onnx.translations()"
    assert str(failed.value.__cause__).startswith(f"torch.onnx.export needs dynamo=True, {table}")


def older(layer: torch.nn.Module, input: Tensor) -> Exported:
    """By the TorchScript exporter, in a program of any batch and image size."""
    import io

    import onnx

    file, axes = io.BytesIO(), {"x": dict.fromkeys([0, 2, 3], "size")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            layer.eval(), (input,), file, dynamo=False, input_names=["x"], dynamic_axes=axes
        )
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    nodes = [node.op_type for node in onnx.load_from_string(file.getvalue()).graph.node]
    return Exported(
        nodes,
        lambda image: [
            torch.from_numpy(array) for array in session.run(None, {"x": image.numpy()})
        ],
    )


def test_the_older_exporter_finds_pytorchs_pools() -> None:
    """Whatever has been imported: torchvision imports this module, which is another than the one
    that ``torch.onnx`` has at first."""
    import torch.onnx.symbolic_helper

    layers = [
        dmlpool.nn.MaxPool2d(3, 2, 1),
        dmlpool.nn.AvgPool2d(2),
        dmlpool.nn.AdaptiveAvgPool2d(1),
    ]
    network = torch.nn.Sequential(*layers)
    exported = older(network, samples.normal(2, 3, 14, 13))
    assert exported.nodes == ["MaxPool", "AveragePool", "GlobalAveragePool"]
    image = samples.normal(3, 3, 17, 16)
    torch.testing.assert_close(exported.run(image), [network(image)])
    with pytest.raises(
        TypeError, match=r"dynamo=False writes only the pools that .*use dynamo=True"
    ):
        older(dmlpool.nn.MinPool2d(2), image)


class Recorder:
    """Where a translation writes its nodes; a refusal writes none."""

    def __init__(self, version: int) -> None:
        import onnxscript

        self.opset, self.nodes = onnxscript.values.Opset("", version), []


SYMBOL = "u0"
DEPENDS = "depends on dynamic sizes"
REFUSALS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    f"strides {DEPENDS} in spatial dimension W": (
        "max_pooling",
        ([3, 3], [1, SYMBOL], *PLANE[2:]),
        {},
    ),
    f"window_size {DEPENDS} in spatial dimension H": (
        "average_pooling",
        ([SYMBOL, 3], *PLANE[1:], False, None),
        {},
    ),
    f"divisor_override {DEPENDS}": ("average_pooling", (*PLANE, False, SYMBOL), {}),
    "maxima of int64 cannot be written for ONNX": ("max_pooling", PLANE, {"dtype": "INT64"}),
    "dilations of averages need opset 19, got opset_version=18": (
        "average_pooling",
        (*PLANE[:4], [2, 1], False, False, None),
        {"version": 18},
    ),
    "has windows that depend on dynamic sizes": (
        "adaptive_max_pooling",
        ([3, 3],),
        {"sizes": [2, 3, SYMBOL, 8]},
    ),
    "only where they come straight from max_pooling_with_taps": (
        "max_pooling_indices",
        ([8, 8], *PLANE, 7, False),
        {},
    ),
}


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals(text: str) -> None:
    """In words, when the model is exported: ONNX cannot say it, or would say something else."""
    from onnxscript import evaluator, ir

    operator, arguments, options = REFUSALS[text]
    error = TypeError if "int64" in text else ValueError
    shape = ir.Shape(options.get("sizes", [2, 3, 8, 8]))
    input = ir.Value(
        name="input", shape=shape, type=ir.TensorType(ir.DataType[options.get("dtype", "FLOAT")])
    )
    symbol = ir.Value(name="size", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))

    def with_values(entry: Any) -> Any:
        if isinstance(entry, list):
            return [with_values(inner) for inner in entry]
        return symbol if entry == SYMBOL else entry

    translate = translations()[getattr(torch.ops.dmlpool, operator).default]
    recorder: Any = Recorder(options.get("version", 20))
    with evaluator.default_as(recorder), pytest.raises(error, match=text):
        translate(input, *map(with_values, arguments))
    assert recorder.nodes == []


MISSING = """
import sys, torch, torch_dmlpool, torch_dmlpool.onnx
assert not any(name.split('.')[0] in ('onnx', 'onnxscript', 'onnxruntime') for name in sys.modules)
sys.modules['onnxscript'] = None
torch_dmlpool.onnx.translations()
"""


@pytest.mark.slow
def test_onnxscript_is_imported_when_it_is_needed(python: Callable[..., Any]) -> None:
    finished = python("-c", MISSING, fails=True)
    text = "which is not installed: pip install torch-dmlpool[onnx]"
    assert text in finished.stderr
    assert "ImportError" in finished.stderr
