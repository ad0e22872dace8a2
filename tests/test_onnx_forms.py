"""What forms are written as in ONNX, so that every version of ONNX Runtime reads them alike.

test_onnx_versions.py runs all forms in several versions; here one version runs, and the nodes are
looked at.
"""

import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import cases
import onnx_forms
import pytest
import torch
from onnx_forms import Form, Shared

from torch_dmlpool.onnx import translations

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The exporter says that it converts to older opsets."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def exported(
    forms: Sequence[Form], *, opset: int = 20, dynamic: bool = False, exact: bool = False
) -> Any:
    model = Shared(forms).eval()
    sizes = [
        dict.fromkeys([0, *range(2, input.dim())], torch.export.Dim.DYNAMIC)
        for input in model.inputs
    ]
    return torch.onnx.export(
        model,
        tuple(model.inputs),
        dynamo=True,
        verbose=False,
        opset_version=opset,
        dynamic_shapes=(tuple(sizes),) if dynamic else None,
        custom_translation_table=translations(exact=exact),
    )


def check_results(program: Any, forms: Sequence[Form], dynamic: bool = False) -> None:
    model = Shared(forms)
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [input.name for input in session.get_inputs()]
    for inputs in [model.inputs, model.larger] if dynamic else [model.inputs]:
        feed = {name: input.numpy() for name, input in zip(names, inputs, strict=True)}
        results = iter(session.run(None, feed))
        for expected in model(*inputs):
            for tensor in expected:
                # One step of an integer that is rounded after an average in float32.
                bound = 2e-5 if tensor.is_floating_point() else 1
                result = torch.from_numpy(next(results))
                torch.testing.assert_close(result, tensor, rtol=0, atol=bound)


def counted(rank: int) -> list[Form]:
    """Averages that count padding in each window, and what else is made of such averages."""
    forms = [form for form in onnx_forms.averages(rank) if "average, counted" in form.name]
    kinds = ("average, divisor, same", "average, fractional norm, same")
    more = [form for form in onnx_forms.averages(rank) if form.name in kinds]
    return [*forms, *more, *quantized(rank)]


def quantized(rank: int) -> list[Form]:
    kinds = [f"counted True, {name}" for name in ("same", "ceil", "ends unlike")]
    every = [form for form in onnx_forms.quantized(rank) if "uint8," in form.name]
    return [form for form in every if any(form.name.endswith(kind) for kind in kinds)]


def miscounted(program: Any) -> list[Any]:
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
def test_counted_padding(rank: int, dynamic: bool, exact: bool) -> None:
    """A1, A2: written out by a Pad node where some runtimes miscount it, and by none elsewhere."""
    forms = quantized(rank) if exact else counted(rank)
    program = exported(forms, dynamic=dynamic, exact=exact)
    assert miscounted(program) == []
    for node in program.model.graph:
        # A Pad node right before would be merged into the AveragePool node.
        if node.op_type == "AveragePool":
            producer = node.inputs[0].producer()
            assert producer is None or producer.op_type != "Pad"
    check_results(program, forms, dynamic)


def test_padding_that_is_counted_right_stays_in_the_node() -> None:
    """So that runtimes can merge it with what stands around it: in one dimension always, elsewhere
    where ends are alike or the node has opset 18."""
    alike = ("padded alike", "last dimension padded")
    planes = [form for form in counted(2) if form.name.split("counted, ")[-1] in alike]
    rows = [form for form in counted(1) if "same" in form.name or "ends unlike" in form.name]
    early = [form for form in counted(2) if not form.is_refused_before_19]
    for opset, forms in ((20, [*planes, *rows]), (18, early)):
        program = exported(forms, opset=opset)
        nodes = [node for node in program.model.graph if node.op_type == "AveragePool"]
        pads = [node for node in nodes if "pads" in node.attributes]
        assert len(pads) >= 6
        assert bool(miscounted(program)) is (opset == 18)


def test_reductions_of_older_opsets() -> None:
    """Adaptive maxima and whole planes: no attribute that opset 17 does not have."""
    # LpPool keeps a model at opset 18.
    every = [*onnx_forms.whole_planes(2), *onnx_forms.quantized(2, "equal")]
    names = ("adaptive average, uneven", "average, whole", "average, whole rows")
    names += ("adaptive maximum, indices True, uneven", "quantized, whole")
    forms = [form for form in every if form.name in names]
    assert len(forms) == len(names)
    for exact in (False, True):
        program = exported(forms, opset=17, exact=exact)
        assert program.model.opset_imports[""] == 17
        reductions = [node for node in program.model.graph if node.op_type.startswith("Reduce")]
        assert len(reductions) >= 2
        assert not [node for node in reductions if "noop_with_empty_axes" in node.attributes]
        check_results(program, forms)


def test_no_bytes_are_compared_under_a_mask() -> None:
    """ONNX Runtime 1.20 has no Equal of uint8, which pooled masks are."""
    forms = [form for form in onnx_forms.masked(1) if "indices True" in form.name][::5]
    program = exported(forms)
    compared = [
        node for node in program.model.graph if node.op_type in ("Equal", "Less", "Greater")
    ]
    assert compared
    assert not [node for node in compared if node.inputs[0].dtype.name in ("UINT8", "INT8")]
    check_results(program, forms)


def test_norms_of_whole_planes() -> None:
    """Norms over sizes that are left open, in an opset whose GlobalLpPool no Runtime has."""
    forms = [form for form in onnx_forms.whole_planes(2) if "norm" in form.name]
    assert len(forms) == 3
    for opset in (20, 22):
        program = exported(forms, opset=opset, dynamic=True)
        kinds = [node.op_type for node in program.model.graph]
        assert kinds.count("GlobalLpPool") == (opset == 20)
        check_results(program, forms, dynamic=True)


def test_maxima_of_bytes_in_padding_that_is_computed() -> None:
    """Which may hold a window: then a value is chosen, for which Runtimes before 1.25 have no
    int8."""
    forms = [form for form in onnx_forms.types(2) if "False, torch.int8" in form.name]
    program = exported(forms, dynamic=True)
    chosen = [node.outputs[0].dtype for node in program.model.graph if node.op_type == "Where"]
    assert [dtype.name for dtype in chosen] == ["FLOAT"]
    check_results(program, forms, dynamic=True)


@cases.each(("dynamic", "exact"), itertools.product((False, True), (False, True)), [(True, False)])
def test_unpooling(dynamic: bool, exact: bool) -> None:
    """Indices in planes and in the whole tensor, -1, and several alike, of which the last stays."""
    forms = list(onnx_forms.unpooling(2))
    program = exported(forms, dynamic=dynamic, exact=exact)
    nodes = [node for node in program.model.graph if node.op_type == "ScatterElements"]
    assert len(nodes) == len(forms) * (1 + exact)
    check_results(program, forms, dynamic)


def test_masked_averages_of_planes_of_any_size() -> None:
    """Height and width left open: the sum of a whole plane, divided by what is there."""
    forms = [each for each in onnx_forms.masked(2) if "masked average, to 1" in each.name]
    assert len(forms) == 2
    program = exported(forms, dynamic=True)
    check_results(program, forms, dynamic=True)
