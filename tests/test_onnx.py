"""Models written by torch.onnx.export with this package's translations: what their nodes are, and
what ONNX Runtime makes of them beside the operators.

Nodes are such that every version of ONNX Runtime reads them alike: test_onnx_versions.py runs all
forms in several, from every opset.
"""

import io
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import cases
import onnx_forms
import operators
import pytest
import samples
import torch
from onnx_forms import Form, Shared
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool.onnx import translations

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
PLANE = ([3, 3], [1, 1], [0, 0], [0, 0], [1, 1], False)


def exported(forms, *, opset=20, dynamic=False, exact=False, has_table=True):
    """Forms side by side: nodes as ``kinds`` lists them, which a runtime must compute rightly."""
    forms = [form for form in forms if not dynamic or form.larger is not None]
    model = Shared(forms).eval()
    program = onnx_forms.export(
        model,
        model.inputs,
        table={"exact": exact} if has_table else None,
        dynamic_shapes=model.dynamic_shapes(dynamic),
        opset_version=opset,
    )
    for inputs in [model.inputs, model.larger] if dynamic else [model.inputs]:
        found = iter(run(program.model_proto.SerializeToString(), inputs))
        for form, expected in zip(forms, model(*inputs), strict=True):
            results = [next(found) for _ in expected]
            assert not onnx_forms.complaint(form, results, expected), form.name
    return program


def run(model, inputs):
    """The outputs, arrays of numpy."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    names = [input.name for input in session.get_inputs()]
    return session.run(None, {name: each.numpy() for name, each in zip(names, inputs, strict=True)})


def kinds(program):
    return [node.op_type for node in program.model.graph]


def on(
    functions,
    make=samples.ties,
    larger=(3, 3, 16, 19),
):
    """Functions of one image, whose averages may be rounded otherwise."""
    inputs = make(2, 3, 14, 13), make(*larger)
    return [Form(name, function, *inputs, "close") for name, function in functions.items()]


FORMS = list(itertools.product((2, 1, 3), (False, True), onnx_forms.HALVES, (False, True)))
DAILY = [(2, True, "maxima and averages", False), (2, False, "minima and masks", True)]


@pytest.mark.parametrize(
    ("rank", "exact", "half", "dynamic", "step"),
    [
        *((*request, 31) for request in DAILY),
        *(pytest.param(*request, 1, marks=pytest.mark.slow) for request in FORMS),
    ],
)
def test_every_form(rank, exact, half, dynamic, step):
    """M2, M3, M7, A4 and Q1: every layer and data type, and with ``exact`` what a runtime may
    decide otherwise."""
    exported(onnx_forms.HALVES[half](rank, exact)[::step], dynamic=dynamic, exact=exact)


def test_standard_nodes():
    """Where ONNX has the words, one node says it all: asymmetric padding, dilations, ceil_mode,
    whole planes."""
    window = 3, 2, (1, 0), (2, 1), (1, 2)
    functions = {
        "AveragePool": lambda x: dmlpool.average_pooling(x, *window),
        "MaxPool": lambda x: dmlpool.max_pooling(x, *window, ceil_mode=True),
        "LpPool": lambda x: dmlpool.lp_pooling(x, *window, p=3),
        "GlobalAveragePool": lambda x: dmlpool.nn.functional.adaptive_avg_pool2d(x, 1),
        "GlobalMaxPool": lambda x: dmlpool.max_pooling(x, x.shape[2:]),
        "ReduceSum": lambda x: dmlpool.lp_pooling(x, x.shape[2:]),
        "ArgMax": lambda x: dmlpool.max_pooling(x, x.shape[2:], return_indices=True)[1],
        "ReduceMean": lambda x: dmlpool.average_pooling(x, (1, x.shape[3])),
    }
    program = exported(on(functions, samples.normal), dynamic=True)
    assert [kind for kind in kinds(program) if kind in functions] == [*functions, "AveragePool"]


def test_a_network_of_layers():
    """Exported with gradients switched on and off: no tap numbers, the same nodes."""
    network, input = operators.Pools().eval(), samples.normal(2, 3, 14, 13)
    for gradients in (True, False):
        shapes = None if gradients else (dict.fromkeys([0, 2, 3], torch.export.Dim.AUTO),)
        with torch.set_grad_enabled(gradients):
            program = onnx_forms.export(network, [input], table={}, dynamic_shapes=shapes)
        pools = [kind for kind in kinds(program) if "Pool" in kind and kind != "GlobalAveragePool"]
        # the mask of empty windows, if sizes are dynamic
        mask = ["MaxPool"] * (len(pools) - 3)
        assert pools == [*mask, "MaxPool", "AveragePool", "MaxPool"]
        assert len(pools) <= 4 - gradients
        larger = [] if gradients else [samples.normal(3, 3, 17, 16), samples.normal(1, 3, 12, 18)]
        for image in (input, *larger):
            found = map(torch.from_numpy, run(program.model_proto.SerializeToString(), [image]))
            for result, expected in zip(found, network(image), strict=True):
                torch.testing.assert_close(result, expected.detach())


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
def test_without_a_table(dynamic):
    """Plain pools are PyTorch's, which its own translations write, as one node with ``ceil_mode``
    too, of any image size; others need known sizes."""
    forms = on({**({} if dynamic else OF_KNOWN_SIZES), **WITHOUT_TABLE})
    pools = [
        kind
        for kind in kinds(
            exported([*forms, *onnx_forms.with_ceil_mode()], dynamic=dynamic, has_table=False)
        )
        if "Pool" in kind or kind == "ReduceMean"
    ]
    one_node_each = ["MaxPool", "AveragePool", "ReduceMean", "MaxPool"]
    one_node_each += ["MaxPool"] * 2 + ["AveragePool"] * 3
    assert pools[-9:] == one_node_each
    assert len(pools) == 9 + (not dynamic)


def test_each_export_knows_its_own_table():
    """A table that was given before, that failed, that is kept or that was made a part of another
    says nothing of an export without one."""
    layer, image = dmlpool.nn.MaxPool2d(3, 2), samples.normal(1, 2, 9, 9)
    table = translations()
    merged = {**table, torch.ops.aten.relu.default: lambda x: x}

    def found(model, input, **options):
        with onnx_forms.quiet():
            program = torch.onnx.export(
                model.eval(), (input,), dynamo=True, verbose=False, **options
            )
        return kinds(program)

    indices = dmlpool.nn.MaxPool2d(2, return_indices=True)
    for given in (table, merged):
        assert "MaxPool" in found(indices, image, custom_translation_table=given)
        del given
    with pytest.raises(torch.onnx.OnnxExporterError):
        found(layer, image.to(torch.int64), custom_translation_table=merged)
    del merged
    assert found(layer, image) == ["MaxPool"]
    with pytest.raises(torch.onnx.OnnxExporterError) as failed:
        found(indices, image)
    names_the_table(failed)


def names_the_table(failed):
    table = "custom_translation_table=torch_dmlpool.onnx.translations()"
    assert str(failed.value.__cause__).startswith(f"torch.onnx.export needs {table} for max_pool")


def test_the_cause_of_a_failed_export_names_the_table():
    """Sizes are left open in this export."""
    with pytest.raises(torch.onnx.OnnxExporterError) as failed:
        exported(on({"same": OF_KNOWN_SIZES["same"]}), dynamic=True, has_table=False)
    names_the_table(failed)


def older(layer, input):
    """By the TorchScript exporter, a program of any batch and image size."""
    file, axes = io.BytesIO(), {"x": dict.fromkeys([0, 2, 3], "size")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            layer.eval(), (input,), file, dynamo=False, input_names=["x"], dynamic_axes=axes
        )
    return file.getvalue()


def test_the_older_exporter_finds_pytorchs_pools():
    """Whatever has been imported: torchvision imports this module, which is another than the one
    that ``torch.onnx`` has at first."""
    import onnx
    import torch.onnx.symbolic_helper

    pools = dmlpool.nn.MaxPool2d(3, 2, 1), dmlpool.nn.AvgPool2d(2), dmlpool.nn.AdaptiveAvgPool2d(1)
    network = torch.nn.Sequential(*pools)
    model = older(network, samples.normal(2, 3, 14, 13))
    nodes = [node.op_type for node in onnx.load_from_string(model).graph.node]
    assert nodes == ["MaxPool", "AveragePool", "GlobalAveragePool"]
    image = samples.normal(3, 3, 17, 16)
    torch.testing.assert_close(torch.from_numpy(*run(model, [image])), network(image))
    with pytest.raises(
        TypeError, match=r"dynamo=False writes only the pools that .*use dynamo=True"
    ):
        older(dmlpool.nn.MinPool2d(2), image)


class Recorder:
    """Where a translation writes its nodes; a refusal writes none."""

    def __init__(self, version):
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
}


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals(text):
    """In words, when the model is exported: ONNX cannot say it, or would say something else."""
    from onnxscript import evaluator, ir

    operator, arguments, options = REFUSALS[text]
    error = TypeError if "int64" in text else ValueError
    shape = ir.Shape(options.get("sizes", [2, 3, 8, 8]))
    input = ir.Value(
        name="input", shape=shape, type=ir.TensorType(ir.DataType[options.get("dtype", "FLOAT")])
    )
    symbol = ir.Value(name="size", shape=ir.Shape([]), type=ir.TensorType(ir.DataType.INT64))

    def with_values(entry):
        if isinstance(entry, list):
            return [with_values(inner) for inner in entry]
        return symbol if entry == SYMBOL else entry

    translate = translations()[getattr(torch.ops.dmlpool, operator).default]
    recorder: Any = Recorder(options.get("version", 20))
    with evaluator.default_as(recorder), pytest.raises(error, match=text):
        translate(input, *map(with_values, arguments))
    assert recorder.nodes == []


def counted(rank):
    """Averages that count padding in each window, and what else is made of such averages."""
    forms = [form for form in onnx_forms.averages(rank) if "average, counted" in form.name]
    names = ("average, divisor, same", "average, fractional norm, same")
    more = [form for form in onnx_forms.averages(rank) if form.name in names]
    return [*forms, *more, *quantized(rank)]


def quantized(rank):
    ends = tuple(f"counted True, {name}" for name in ("same", "ceil", "ends unlike"))
    every = [form for form in onnx_forms.quantized(rank) if "uint8," in form.name]
    return [form for form in every if form.name.endswith(ends)]


def miscounted(program):
    """AveragePool nodes that ONNX Runtime 1.21 to 1.24 gets wrong from opset 19 on.

    It bounds the windows along dimension i by entry 2i + 1 of the pads, which must be no less than
    the padding at that end.
    """
    found = []
    for node in program.model.graph:
        if node.op_type == "AveragePool" and "pads" in node.attributes:
            pads = node.attributes["pads"].as_ints()
            ends = pads[len(pads) // 2 :]
            is_counted = node.attributes["count_include_pad"].as_int()
            if is_counted and any(b < end for b, end in zip(pads[1::2], ends, strict=True)):
                found.append(node)
    return found


@cases.each(
    ("rank", "dynamic", "exact"),
    itertools.product((2, 3), (False, True), (False, True)),
    [(2, False, False), (2, False, True)],
)
def test_counted_padding(rank, dynamic, exact):
    """A1, A2: written out by a Pad node where some runtimes miscount it, and by none elsewhere."""
    program = exported(quantized(rank) if exact else counted(rank), dynamic=dynamic, exact=exact)
    assert miscounted(program) == []
    for node in program.model.graph:
        # A Pad node right before would be merged into the AveragePool node.
        if node.op_type == "AveragePool":
            producer = node.inputs[0].producer()
            assert producer is None or producer.op_type != "Pad"


def test_masked_integers():
    """K4: types that ONNX Runtime pools without a mask it pools with one; Where lacks some."""
    request = {"window_size": 3, "strides": 2, "start_padding": 1, "return_indices": True}
    pools = itertools.product(
        (dmlpool.max_pooling, dmlpool.min_pooling), (torch.int16, torch.int8, torch.int32)
    )
    functions = {
        f"{pool.__name__} of {dtype}": lambda x, pool=pool, dtype=dtype: pool(
            x.to(dtype), **request, mask=x > 1
        )
        for pool, dtype in pools
    }
    exported(on(functions))


@cases.each(("dynamic", "exact"), itertools.product((False, True), (False, True)), [(True, False)])
def test_unpooling(dynamic, exact):
    """Indices in planes and in the whole tensor, -1, and several alike, of which the last stays."""
    forms = list(onnx_forms.unpooling(2))
    program = exported(forms, dynamic=dynamic, exact=exact)
    assert kinds(program).count("ScatterElements") == len(forms) * (1 + exact)


MISSING = """
import sys, torch, torch_dmlpool, torch_dmlpool.onnx
assert not any(name.split('.')[0] in ('onnx', 'onnxscript', 'onnxruntime') for name in sys.modules)
sys.modules['onnxscript'] = None
torch_dmlpool.onnx.translations()
"""


@pytest.mark.slow
def test_onnxscript_is_imported_when_it_is_needed(python):
    finished = python("-c", MISSING, fails=True)
    text = "which is not installed: pip install torch-dmlpool[onnx]"
    assert text in finished.stderr
    assert "ImportError" in finished.stderr
