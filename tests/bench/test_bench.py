"""python -m torch_dmlpool bench: what it compares and measures, and what its exit code means."""

import functools
import re
import time
from pathlib import Path
from types import ModuleType

import pytest
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import __main__ as program
from torch_dmlpool import backends, bench, timing
from torch_dmlpool.backends import triton
from torch_dmlpool.bench import calls, conditions, models, rows
from torch_dmlpool.nn import measuring
from torch_dmlpool.timing import Times

CPU = torch.device("cpu")
KERNELS = Path(dmlpool.__file__).parent.parent / "kernels"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a few elements, on a machine that does nothing else."""
    reduced = [row._replace(sizes=(2, 14, 14)) for row in rows.ROWS]
    monkeypatch.setattr(rows, "ROWS", reduced)
    monkeypatch.setattr(rows, "operands", functools.partial(rows.operands, batch=8))
    monkeypatch.setattr(timing, "load", lambda: None)
    measured = timing.in_turn
    monkeypatch.setattr(
        timing, "in_turn", lambda calls, device, *_, **__: measured(calls, device, 0.0, least=3)
    )


def test_forty_calls_are_equal() -> None:
    checked = calls.check(CPU, time.monotonic() + 300)
    assert str(checked) == "40 of 40 equal, 0 not begun"
    assert checked.is_right


def test_the_calls_have_each_data_type_layout_and_operator() -> None:
    """The forty every data type, rank and layout; with ``every`` each operator has each of its."""
    listed = list(calls.calls())
    assert {call.input.dtype for call in listed} == {*calls.FLOATS, *calls.WHOLE_NUMBERS}
    for name in ("NCHW", "NHWC"):
        assert sum(name in call.name for call in listed) >= 12
    assert {call.input.dim() for call in listed} == {3, 4, 5}
    assert len({call.name for call in listed}) == 40
    assert sum(bool(call.input.isnan().any()) for call in listed) >= 15
    every = {(c.compute, c.input.dtype, c.input.is_contiguous()) for c in calls.calls(True)}
    named = {each.compute for each in listed if tuple(each.input.shape) == calls.PLANES}
    assert len(named) == 7
    for compute in named:
        for dtype in calls.TYPES.get(compute, calls.FLOATS):
            assert {(compute, dtype, True), (compute, dtype, False)} <= every


def test_the_calls_reach_every_kernel_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what would be launched; every kernel that a launch names is among them."""
    pytest.importorskip("triton")
    launched = set()
    monkeypatch.setattr(triton, "launch", lambda how, *_: launched.add(how.kernel))
    for call in calls.calls():
        call.compute(triton.BACKEND, call.input, call.window)
    named = set()
    for path in KERNELS.glob("*.py"):
        named |= set(re.findall(r'"([a-z_]+\.[a-z_]+)"', path.read_text(encoding="utf-8")))
    assert launched == named


def test_a_wrong_result_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, small: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """And so is a call that raises."""

    def refuses(*_: object) -> None:
        raise ValueError("no such window")

    backend = backends.chosen("cpu")[0]
    broken = backend._replace(
        average_pooling=lambda *given: backend.average_pooling(*given) + 1,
        adaptive_max_pooling=refuses,
    )
    monkeypatch.setattr(calls, "chosen", lambda _: (broken, None))
    assert program.main(["bench", "--device", "cpu", "--seconds", "200", "--no-compile"]) == 1
    said = capsys.readouterr().out
    assert re.search(r"31 of 40 equal, 0 not begun", said)
    assert "WRONG averages, 3x3/2, float32, NCHW, 2x16x24x32: 6144 of 6144 elements differ" in said
    assert "ValueError: no such window" in said


def test_what_is_not_begun_is_a_failure(small: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--device", "cpu", "--seconds", "0", "--no-compile"]) == 1
    said = capsys.readouterr().out
    assert "0 of 40 equal, 40 not begun" in said
    assert "NOT BEGUN maxima, 3x3/2, float32, NCHW, 2x16x24x32" in said


def factory() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A model for --model."""
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.MaxPool2d(2), torch.nn.AvgPool2d(2)
    return torch.nn.Sequential(*layers), (torch.rand(1, 3, 16, 16),)


def test_a_run_from_its_first_line_to_its_verdicts(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Conditions, results, rows, a model and verdicts."""
    module = ModuleType("users_package")
    vars(module)["factory"] = factory
    monkeypatch.setitem(__import__("sys").modules, "users_package", module)
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    monkeypatch.setattr(measuring, "TOLERATED", 1e9)
    arguments = ["--device", "cpu", "--seconds", "200", "--model", "users_package:factory"]
    assert bench.main(arguments) == 0
    said = capsys.readouterr().out
    assert f"  runs on                 {conditions.backend_of(CPU)}" in said
    assert "  40 of 40 equal, 0 not begun" in said
    for rival in (rows.ATEN, rows.COMPILED):
        assert len(re.findall(rf"_pool2d\(.* {re.escape(rival)} .*x  [fsc]", said)) == 8
        assert f"Beside {rival}, torch_dmlpool is " in said
    assert "users_package:factory: replaced 2, left 0" in said
    assert re.search(r"\n  pooling layers took \d+\.\d% of it\n", said)
    assert len(re.findall(r"(?:inference|training), .*, converted .* as it is .*x ", said)) == 3


REFUSED = [
    *(("--model", name, "") for name in ("torch_dmlpool.nothing:f", "torch_dmlpool:no", "torch")),
    *(("--device", name, f"{name}: ") for name in ("cuda", "meta", "nowhere", "cpu:x")),
    *(("--seconds", each, f"must be at least 0, got {each}") for each in ("-1", "nan", "inf")),
]


@pytest.mark.parametrize(("option", "value", "reason"), REFUSED)
def test_what_cannot_be_measured_is_said_before_any_work(
    option: str,
    value: str,
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: None)
    with pytest.raises(SystemExit) as refused:
        bench.main([option, value])
    said = str(refused.value) if option == "--model" else capsys.readouterr().err
    assert (option in said, reason in said) == (True, True)


def test_a_model_is_not_compiled_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, small: None
) -> None:
    monkeypatch.setattr(models, "loaded", lambda *_: factory())
    monkeypatch.setattr(torch, "compile", None)
    said = "\n".join(models.measure("users_package:factory", CPU, 1.0, None, compiles=False))
    assert said.count(", converted ") == 2
    assert "compile" not in said


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        (Times(1.0, 2.0, 3.0), Times(4.0, 5.0, 6.0), "faster"),
        (Times(4.0, 5.0, 6.0), Times(1.0, 2.0, 3.0), "slower"),
        (Times(1.0, 2.0, 4.0), Times(3.0, 5.0, 6.0), "cannot tell"),
    ],
)
def test_quartiles_that_overlap_tell_nothing(ours: Times, theirs: Times, expected: str) -> None:
    assert timing.verdict(ours, theirs) == expected
    row = rows.Measured("a pool", rows.ATEN, ours, theirs)
    assert row.line(None).endswith(f"x  {expected}")
    assert row.line("9 processes").endswith("x  cannot tell")
    assert rows.MEANINGS[expected] in rows.verdict([row], None)
    assert "busy" in rows.verdict([row], "9 processes")


def test_what_cannot_be_compiled_is_said_once(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise RuntimeError("no C++ compiler\nand more")

    monkeypatch.setattr(torch, "compile", refuses)
    bench.main(["--device", "cpu", "--seconds", "200"])
    said = capsys.readouterr().out
    assert "Beside torch.compile, not measured (RuntimeError: no C++ compiler).\n" in said


def test_samples_are_taken_in_turn() -> None:
    """Each call first as often as the other, and short calls several times in a sample."""
    order: list[str] = []
    found = timing.in_turn(
        {name: (lambda name=name: order.append(name)) for name in "ab"}, CPU, 0.0, least=4
    )
    assert set(found) == {"a", "b"}
    changes = [name for name, before in zip(order, ["", *order], strict=False) if name != before]
    assert "".join(changes[-6:]) in ("abababa", "babab", "ababab", "bababa")
    assert order.count("a") > 100


def test_what_serves_a_device_is_said_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert conditions.backend_of(torch.device("meta")).startswith(
        "plain PyTorch (SLOW: there are no"
    )
    monkeypatch.setenv("TORCH_DMLPOOL_TRITON", "0")
    assert "TORCH_DMLPOOL_TRITON=0" in conditions.backend_of(torch.device("cuda"))
    described = conditions.described(CPU)
    assert set(described) >= {"processor", "threads", "load", "torch", "runs on"}
