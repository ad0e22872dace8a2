"""Every exported form of every layer in several versions of ONNX Runtime, from each opset that can
be asked for.

`make test-onnx-versions` installs the versions beside one another and runs this; elsewhere it is
skipped. What a form is written as, every day and in one version, is in test_onnx.py.
"""

import collections
import copy
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_forms
import pytest
import samples
import torch
from onnx_forms import Form, Shared

from torch_dmlpool.onnx import translations

pytest.importorskip("onnxscript")
onnx = pytest.importorskip("onnx")

FOLDER = Path(__file__).parent.parent / ".onnxruntime"
"""Each version in a folder of its own, as ``pip install --target`` leaves it."""
RUNTIMES = sorted(FOLDER.glob("*")) if FOLDER.is_dir() else []
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(RUNTIMES) < 4, reason="make test-onnx-versions installs the versions"),
    pytest.mark.filterwarnings("ignore"),
]
NEWEST_OPSET = 24
WRITTEN = 18
"""The opset that the exporter writes when an older one is asked for, and then converts."""
KINDS = [(rank, exact) for rank in (2, 1, 3) for exact in (False, True)]
NAMES = [f"{rank}-D, {'exact' if exact else 'usual'}" for rank, exact in KINDS]
BOUNDS = {"close": 2e-5, "half": 8e-3}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The exporter warns of each conversion."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the exporter does alike for every opset is done once: most of its time.

    These are private names of PyTorch's. Without them all takes longer.
    """
    from torch.onnx._internal.exporter import _fx_passes, _registration

    functions: Any = getattr(_registration, "onnxscript_apis", None)
    if functions is not None:
        known = functions.get_torchlib_ops()
        monkeypatch.setattr(functions, "get_torchlib_ops", lambda: known)
    decompose: Any = getattr(_fx_passes, "decompose_with_registry", None)
    done: dict[int, Any] = {}

    def once(program: Any, registry: Any) -> Any:
        if id(program) not in done:
            done[id(program)] = program, decompose(program, registry)
        return done[id(program)][1]

    if decompose is not None:
        monkeypatch.setattr(_fx_passes, "decompose_with_registry", once)


class Program:
    """Forms side by side, captured once for all opsets."""

    def __init__(self, forms: Sequence[Form], dynamic: bool, exact: bool) -> None:
        self.forms = [form for form in forms if not dynamic or form.larger is not None]
        self.model, self.dynamic, self.exact = Shared(self.forms).eval(), dynamic, exact
        sizes = [
            dict.fromkeys([0, *range(2, input.dim())], torch.export.Dim.DYNAMIC)
            for input in self.model.inputs
        ]
        self.captured = torch.export.export(
            self.model,
            tuple(self.model.inputs),
            dynamic_shapes=(tuple(sizes),) if dynamic else None,
            strict=False,
        )
        self.expected = [
            [samples.listed(form.function(input)) for input in self.given(form.input, form.larger)]
            for form in self.forms
        ]

    def given(self, example: Any, larger: Any) -> list[Any]:
        return [example, larger] if self.dynamic else [example]

    def exported(self, opset: int, **options: Any) -> Any:
        """The model, whose inputs are called as their numbers say."""
        return torch.onnx.export(
            self.captured,
            tuple(self.model.inputs),
            dynamo=True,
            verbose=False,
            opset_version=opset,
            input_names=[f"input_{number}" for number in range(len(self.model.inputs))],
            custom_translation_table=translations(exact=self.exact),
            **options,
        )


def save(folder: Path, name: str, number: int, arrays: dict[str, torch.Tensor]) -> None:
    np.savez(
        folder / f"{name}.{number}.npz", **{key: value.numpy() for key, value in arrays.items()}
    )


def run_everywhere(folder: Path) -> dict[str, dict[tuple[str, bool], Any]]:
    """By version, what each model in ``folder`` gave with and without optimizations."""
    runner = Path(__file__).parent / "onnx_runner.py"
    for runtime in RUNTIMES:
        subprocess.run(
            [sys.executable, runner, folder],
            env={**os.environ, "PYTHONPATH": str(runtime)},
            check=True,
            timeout=3000,
        )
    found = {}
    for path in folder.glob("results-*.pickle"):
        with path.open("rb") as file:
            found[path.stem.removeprefix("results-")] = pickle.load(file)
    assert len(found) == len(RUNTIMES)
    return found


def complaint(form: Form, results: Sequence[np.ndarray], wanted: Sequence[torch.Tensor]) -> str:
    """How what a runtime gave differs from the form; nothing if it is near enough."""
    for result, tensor in zip(results, wanted, strict=True):
        array = samples.to_numpy(tensor)
        if result.shape != array.shape or result.dtype != array.dtype:
            return f"{result.shape} {result.dtype} instead of {array.shape} {array.dtype}"
        if form.bound == "equal":
            if not np.array_equal(result, array, equal_nan=array.dtype.kind == "f"):
                return f"{(result != array).sum()} of {array.size} unlike"
        elif form.bound == "step":
            steps = np.abs(result.astype(int) - array.astype(int)).max()
            if steps > 1:
                return f"{steps} steps off"
        else:
            bound = BOUNDS[form.bound]
            if not np.allclose(result, array, rtol=bound, atol=bound, equal_nan=True):
                return f"off by {np.abs(result - array).max()}"
    return ""


def is_too_new(text: Any) -> bool:
    """Whether a runtime has refused a model because it does not know the opset yet."""
    return isinstance(text, str) and "opset" in text and "till" in text


def check(complaints: collections.Counter[str]) -> None:
    listed = "\n".join(f"{text} ({count} times)" for text, count in sorted(complaints.items()))
    assert not complaints, f"{complaints.total()} wrong:\n{listed}"


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("rank", "exact"), KINDS, ids=NAMES)
def test_opsets_that_are_written(rank: int, exact: bool, dynamic: bool, tmp_path: Path) -> None:
    """All forms in one model."""
    program = Program(onnx_forms.forms(rank, exact), dynamic, exact)
    for opset in range(WRITTEN + 1, NEWEST_OPSET + 1):
        # The exporter's optimizations take most of the time; without them runtimes see more nodes.
        model = program.exported(opset, optimize=opset in (20, NEWEST_OPSET))
        assert model.model.opset_imports[""] == opset
        onnx.save(model.model_proto, tmp_path / f"forms.{opset}.onnx")
    for number, tensors in enumerate(program.given(program.model.inputs, program.model.larger)):
        named = {f"input_{place}": tensor for place, tensor in enumerate(tensors)}
        save(tmp_path, "forms", number, named)
    wrong: collections.Counter[str] = collections.Counter()
    ran = set()
    for version, models in run_everywhere(tmp_path).items():
        for (name, optimized), outcome in models.items():
            where = f"{version}, {name}, optimized {optimized}"
            if is_too_new(outcome):
                continue
            ran.add(name)
            if isinstance(outcome, str):
                wrong[f"{where}: {outcome}"] += 1
                continue
            for number, results in enumerate(outcome.values()):
                iterator = iter(results)
                for form, each in zip(program.forms, program.expected, strict=True):
                    own = [next(iterator) for _ in each[number]]
                    text = complaint(form, own, each[number])
                    if text:
                        wrong[f"{where}: {form.name}: {text}"] += 1
                assert next(iterator, None) is None
    check(wrong)
    assert len(ran) == NEWEST_OPSET - WRITTEN


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("rank", "exact"), KINDS, ids=NAMES)
def test_opsets_that_are_converted(rank: int, exact: bool, dynamic: bool, tmp_path: Path) -> None:
    """13 to 17 are made of 18: each form by itself, as one that cannot be keeps others back."""
    forms = [form for form in onnx_forms.forms(rank, exact) if not form.is_refused_before_19]
    program = Program(forms, dynamic, exact)
    proto = program.exported(WRITTEN, optimize=False).model_proto
    extractor = onnx.utils.Extractor(proto)
    outputs = iter([output.name for output in proto.graph.output])
    for number, (form, each) in enumerate(zip(program.forms, program.expected, strict=True)):
        input = f"input_{program.model.places[number]}"
        alone = extractor.extract_model([input], [next(outputs) for _ in each[0]])
        for opset, model in converted(alone).items():
            onnx.save(model, tmp_path / f"{number}.{opset}.onnx")
        for size, tensor in enumerate(program.given(form.input, form.larger)):
            save(tmp_path, str(number), size, {input: tensor})
    wrong: collections.Counter[str] = collections.Counter()
    for version, models in run_everywhere(tmp_path).items():
        for (name, optimized), outcome in models.items():
            number, opset, _ = name.split(".")
            form, each = program.forms[int(number)], program.expected[int(number)]
            where = f"{version}, opset {opset}, optimized {optimized}: {form.name}"
            if isinstance(outcome, str):
                wrong[f"{where}: {outcome}"] += 1
                continue
            for results, tensors in zip(outcome.values(), each, strict=True):
                text = complaint(form, results, tensors)
                if text:
                    wrong[f"{where}: {text}"] += 1
    check(wrong)


def converted(model: Any) -> dict[int, Any]:
    """By the opset that is reached, what becomes of a model of opset 18 when 13 to 18 are asked
    for.

    The exporter does the same, one after another, which the next test compares.
    """
    from onnxscript import ir, optimizer, version_converter

    reached = {}
    for opset in range(13, WRITTEN + 1):
        program = ir.from_proto(copy.deepcopy(model))
        version_converter.convert_version(program, opset, fallback=True)
        optimizer.optimize(program)
        reached[program.opset_imports[""]] = ir.to_proto(program)
    return reached


@pytest.mark.parametrize("opset", [13, 15, 17, 18])
def test_the_exporter_converts_so(opset: int) -> None:
    form = next(form for form in onnx_forms.forms(2, False) if "adaptive maximum" in form.name)
    program = Program([form], False, False)
    model = program.exported(opset)
    alike = converted(program.exported(WRITTEN, optimize=False).model_proto)
    reached = model.model.opset_imports[""]
    nodes = [node.op_type for node in alike[reached].graph.node]
    assert nodes == [node.op_type for node in model.model.graph]
