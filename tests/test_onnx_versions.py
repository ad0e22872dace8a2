"""Every exported form of every layer in several versions of ONNX Runtime, from each opset that can
be asked for.

`make test-onnx-versions` installs the versions beside one another and runs this; elsewhere it is
skipped. What a form is written as, every day and in one version, is in test_onnx.py.
"""

import collections
import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_forms
import pytest
import samples
import torch
from onnx_forms import Form, Shared

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
OPTIMIZED = 20
KINDS = [(rank, exact) for rank in (2, 1, 3) for exact in (False, True)]
NAMES = [f"{rank}-D, {'exact' if exact else 'usual'}" for rank, exact in KINDS]


@pytest.fixture(autouse=True)
def sooner(monkeypatch):
    """What the exporter does alike for every opset is done once, by private names of PyTorch's."""
    from torch.onnx._internal.exporter import _fx_passes

    decompose: Any = _fx_passes.decompose_with_registry
    done: dict[int, Any] = {}

    def once(program, registry):
        if id(program) not in done:
            done[id(program)] = program, decompose(program, registry)
        return done[id(program)][1]

    monkeypatch.setattr(_fx_passes, "decompose_with_registry", once)


class Program:
    """Forms side by side, captured once for all opsets."""

    def __init__(self, forms, dynamic, exact):
        self.forms = [form for form in forms if not dynamic or form.larger is not None]
        self.model, self.dynamic, self.exact = Shared(self.forms).eval(), dynamic, exact
        self.captured = torch.export.export(
            self.model,
            tuple(self.model.inputs),
            dynamic_shapes=self.model.dynamic_shapes(dynamic),
            strict=False,
        )
        self.expected = [
            [samples.listed(form.function(input)) for input in self.given(form.input, form.larger)]
            for form in self.forms
        ]

    def given(self, example, larger):
        return [example, larger] if self.dynamic else [example]

    def exported(self, opset, **options):
        """The model, whose inputs are called as their numbers say."""
        return onnx_forms.export(
            self.captured,
            self.model.inputs,
            table={"exact": self.exact},
            opset_version=opset,
            input_names=[f"input_{number}" for number in range(len(self.model.inputs))],
            **options,
        )


def save(folder, name, number, arrays):
    np.savez(
        folder / f"{name}.{number}.npz", **{key: value.numpy() for key, value in arrays.items()}
    )


def run_everywhere(folder):
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


def is_too_new(text):
    """Whether a runtime has refused a model because it does not know the opset yet."""
    return isinstance(text, str) and "opset" in text and "till" in text


def check(complaints):
    listed = "\n".join(f"{text} ({count} times)" for text, count in sorted(complaints.items()))
    assert not complaints, f"{complaints.total()} wrong:\n{listed}"


class Group:
    """Models that are written to one folder and run at a time, and what each must give."""

    def __init__(self, folder, forms, dynamic, exact):
        self.folder = folder
        self.programs: dict[str, Program] = {}
        """By whether they can have every opset that is written; dilated averages need 19."""
        for name, is_late in (("early", False), ("late", True)):
            chosen = [form for form in forms if form.is_refused_before_19 == is_late]
            if chosen:
                self.programs[name] = Program(chosen, dynamic, exact)
        self.contents: dict[str, list[tuple[Form, list[Any]]]] = {}
        """By the first part of a file's name: forms, and what each gives for every input."""

    def write(self):
        for name, program in self.programs.items():
            self.contents[name] = list(zip(program.forms, program.expected, strict=True))
            given = program.given(program.model.inputs, program.model.larger)
            for number, tensors in enumerate(given):
                save(self.folder, name, number, named(tensors))
            for opset in range(WRITTEN + 1, NEWEST_OPSET + 1):
                # The exporter's optimizations take most of the time, so one opset that all
                # versions know has them, and none where sizes are dynamic.
                is_optimized = opset == OPTIMIZED and not program.dynamic
                model = program.exported(opset, optimize=is_optimized)
                assert model.model.opset_imports[""] == opset
                onnx.save(model.model_proto, self.folder / f"{name}.{opset}.onnx")
        if "early" in self.programs:
            self._write_converted(self.programs["early"])

    def _write_converted(self, program):
        """13 to 17 are made of 18: forms of the same nodes together, as one that cannot be
        converted keeps others back.
        """
        proto = program.exported(WRITTEN, optimize=False).model_proto
        outputs, parts = iter([output.name for output in proto.graph.output]), []
        for each in program.expected:
            parts.append([next(outputs) for _ in each[0]])
        extractor = onnx.utils.Extractor(proto)

        inputs = [each.name for each in proto.graph.input]

        def extracted(numbers):
            model = extractor.extract_model(
                inputs, [output for number in numbers for output in parts[number]]
            )
            # Forms with equal masks share a mask's node, which may read the input of another form.
            read = {name for node in model.graph.node for name in node.input}
            read |= {each.name for each in model.graph.output}
            kept = [each for each in model.graph.input if each.name in read]
            del model.graph.input[:]
            model.graph.input.extend(kept)
            return model

        alike: dict[Any, list[int]] = {}
        for number in range(len(parts)):
            alike.setdefault(kind_of(extracted([number])), []).append(number)
        for numbers in alike.values():
            name = f"early-{numbers[0]}"
            self.contents[name] = [
                (program.forms[each], program.expected[each]) for each in numbers
            ]
            for opset, model in converted(extracted(numbers)).items():
                onnx.save(model, self.folder / f"{name}.{opset}.onnx")

    def complaints(self, version, file, optimized, outcome):
        """What is wrong with what one model gave in one version."""
        name, opset, _ = file.split(".")
        where = f"{version}, opset {opset}, optimized {optimized}"
        if isinstance(outcome, str):
            names = [form.name for form, _ in self.contents[name]]
            yield f"{where}: {names[:3]} and {len(names[3:])} more: {outcome}"
            return
        for number, results in enumerate(outcome.values()):
            iterator = iter(results)
            for form, expected in self.contents[name]:
                own = [next(iterator) for _ in expected[number]]
                text = onnx_forms.complaint(form, own, expected[number])
                if text:
                    yield f"{where}: {form.name}: {text}"
            assert next(iterator, None) is None


def named(tensors):
    return {f"input_{place}": tensor for place, tensor in enumerate(tensors)}


def kind_of(model):
    """Forms of one kind have the same nodes with the same attributes and types, and so can have the
    same opsets."""
    nodes = [
        (node.op_type, len(node.input), sorted(each.name for each in node.attribute))
        for node in model.graph.node
    ]
    return str((nodes, [input.type.tensor_type.elem_type for input in model.graph.input]))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("half", onnx_forms.HALVES)
@pytest.mark.parametrize(("rank", "exact"), KINDS, ids=NAMES)
def test_every_opset(rank, exact, half, dynamic, tmp_path):
    group = Group(tmp_path, onnx_forms.HALVES[half](rank, exact), dynamic, exact)
    group.write()
    wrong: collections.Counter[str] = collections.Counter()
    ran = set()
    for version, models in run_everywhere(tmp_path).items():
        for (file, optimized), outcome in models.items():
            if not is_too_new(outcome):
                ran.add(file)
                wrong.update(group.complaints(version, file, optimized, outcome))
    check(wrong)
    assert ran == {path.name for path in tmp_path.glob("*.onnx")}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_ceil_mode_without_a_table(dynamic, tmp_path):
    """W5: PyTorch's own nodes, where all versions read them alike; in the cases of the reports
    slices."""
    forms = onnx_forms.with_ceil_mode()
    forms += [] if dynamic else onnx_forms.with_ceil_mode(False)
    model = Shared(forms).eval()
    given = [model.inputs, model.larger] if dynamic else [model.inputs]
    for number, inputs in enumerate(given):
        save(tmp_path, "pools", number, named(inputs))
    for opset in (13, 18, 19, 20, 22):
        program = onnx_forms.export(
            model,
            model.inputs,
            table=None,
            dynamic_shapes=model.dynamic_shapes(dynamic),
            opset_version=opset,
            input_names=list(named(model.inputs)),
        )
        onnx.save(program.model_proto, tmp_path / f"pools.{opset}.onnx")
    wrong: collections.Counter[str] = collections.Counter()
    for version, models in run_everywhere(tmp_path).items():
        for (file, _), outcome in models.items():
            if is_too_new(outcome):
                continue
            for inputs, results in zip(given, outcome.values(), strict=True):
                for form, result, expected in zip(forms, results, model(*inputs), strict=True):
                    text = onnx_forms.complaint(form, [result], expected)
                    wrong[f"{version}, {file}: {form.name}: {text}"] += bool(text)
    check(+wrong)


def converted(model, optimized=()):
    """By the opset that is reached, what becomes of a model of opset 18 when 13 to 18 are asked
    for.

    The exporter does the same, one after another, which the next test compares. It optimizes all;
    here 18 and the first that is reached are, and those of ``optimized``, as that takes most of the
    time.
    """
    from onnxscript import ir, optimizer, version_converter

    reached: dict[int, Any] = {}
    for opset in range(13, WRITTEN + 1):
        program = ir.from_proto(copy.deepcopy(model))
        version_converter.convert_version(program, opset, fallback=True)
        got = program.opset_imports[""]
        if got in reached:
            continue
        is_first = not reached.keys() - {WRITTEN}
        if is_first or got == WRITTEN or got in optimized:
            optimizer.optimize(program)
        reached[got] = ir.to_proto(program)
    return reached
