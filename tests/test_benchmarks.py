"""`make bench`: contestants compute the same, runs write what the documentation
shows, limits hold."""

import importlib
import importlib.util
import itertools
from dataclasses import replace

import cases
import pytest
import torch

import torch_dmlpool as dmlpool
from benchmarks import calls, common, models, report, rows
from benchmarks.__main__ import QUESTIONS

NAMES = [name for name in rows.PEERS if name not in rows.COMPILED]


def reduced(row):
    """The same window over one sample, few channels, and the smallest spatial sizes that keep what
    is special."""
    spatial = tuple(
        min(size, (window - 1) * step + 1 + 2 * stride + 1)
        for size, window, step, stride in zip(
            row.sizes[2:], row.window, row.dilation, row.stride, strict=True
        )
    )
    return replace(row, sizes=(min(row.sizes[0], 2), min(row.sizes[1], 3), *spatial))


REDUCED = list(dict.fromkeys(map(reduced, rows.select("all"))))


@pytest.fixture(autouse=True)
def threads():
    """Benchmarks choose the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@cases.each("row", REDUCED, REDUCED[::40])
def test_everyone_agrees_or_says_why_not(row):
    """ATen's results, exactly for maxima and indices; a peer may be absent, never wrong or
    broken."""
    found, skipped = rows.contestants(rows.problem(row, "cpu"), NAMES)
    assert {rows.OURS, rows.ATEN, rows.COPY} <= set(found)
    assert (rows.PLAIN in found) == bool(row.mask)
    assert not [reason for reason in skipped.values() if reason.startswith(("wrong:", "failed:"))]


@pytest.mark.parametrize(
    ("family", "change", "finding"),
    [
        ("max", lambda values: values + 1e-6, "values differ by up to 1"),
        ("average", lambda values: values.double(), "values are torch.float64 of"),
    ],
)
def test_a_wrong_peer_is_left_out(family, change, finding, monkeypatch):
    """And a wrong result of ours is an error."""
    row = next(row for row in REDUCED if (row.family, row.mode) == (family, "forward"))

    def wrong(problem):
        pool = rows.aten(problem)
        return rows.bound(lambda input: change(pool(input)), problem)

    monkeypatch.setitem(rows.PEERS, "changed", wrong)
    found, skipped = rows.contestants(rows.problem(row, "cpu"), [rows.ATEN, "changed"])
    assert list(found) == [rows.ATEN]
    assert skipped["changed"].startswith(f"wrong: {finding}")
    monkeypatch.setitem(rows.PEERS, rows.OURS, wrong)
    with pytest.raises(common.Disagreement, match="our values"):
        rows.contestants(rows.problem(row, "cpu"), NAMES)


def test_rows_are_measured_and_shown(tmp_path, capsys):
    """What a run writes becomes lines of a table."""
    path = tmp_path / "run.json"
    asked = ["1x1x4x4 window 2/2,1x64x56x56 window 3/2 forward mask", "--row-seconds", "0"]
    assert (
        rows.main(["max 1x1x4x4 window 2/2", *asked[1:], "--threads", "1", "--out", str(path)]) == 0
    )
    names = [row.name for row in rows.select("max 1x1x4x4 window 2/2")]
    assert all(name in capsys.readouterr().out for name in names[:1])
    known, results = report.measured(common.load(path))
    assert [result.row.name for result in results] == names
    assert known["threads"] == 1
    for result in results:
        assert {rows.OURS, rows.COPY, rows.ATEN} <= set(result.seconds)
        assert all(0 < each.lower <= each.median <= each.upper for each in result.seconds.values())
    assert "| max 1x1x4x4 window 2/2 | " in report.rows_of(results, "overhead")


@pytest.mark.parametrize("page", ["README.md", *report.PAGES.values()])
def test_pages_have_what_was_measured(page):
    """``python -m benchmarks report`` has been run since, and the page is not longer than what is
    read."""
    text = (common.ROOT / page).read_text(encoding="utf-8")
    if page == "README.md":
        assert report.with_models(text, report.networks()) == text
    else:
        assert report.pages()[page] == text
        assert len(text.splitlines()) <= (150 if page == "docs/benchmarks.md" else 300)


@pytest.mark.parametrize("name", QUESTIONS)
def test_each_question_has_a_command(name, capsys):
    """``python -m benchmarks NAME --help`` says what it measures."""
    if name in ("gpu", "overhead"):
        pytest.importorskip("triton")
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(f"benchmarks.{name}").main(["--help"])
    assert capsys.readouterr().out.startswith(f"usage: python -m benchmarks {name} ")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what timm and torchvision warn of is theirs
@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
@pytest.mark.parametrize("name", models.MODELS)
def test_each_network_has_pools_to_convert(name):
    """In the versions that are installed; beside PyTorch for CPUs torchvision has no operators."""
    build, _ = models.MODELS[name]
    found = dmlpool.nn.convert(build())
    assert found.replaced
    assert not found.left


def test_whole_networks_are_measured_in_every_way(tmp_path, monkeypatch, capsys):
    """Each way is a row with a ratio, the table has a line for each network, and converted networks
    give what the originals give."""
    layers = torch.nn.Conv2d(3, 4, 3), torch.nn.Dropout(0.5), torch.nn.MaxPool2d(2)
    small = {"small": (lambda: torch.nn.Sequential(*layers), (1, 3, 12, 12))}
    monkeypatch.setattr(models, "MODELS", {**small, "other": small["small"]})
    path = tmp_path / "models.json"
    assert len(models.ways("")) == 2 * len(models.ways("eager")) == 16
    assert models.main(["small eager", "--row-seconds", "0", "--out", str(path)]) == 0
    results = common.load(path)
    found = [(row["training"], row["channels_last"]) for row in results["rows"]]
    assert found == list(itertools.product((False, True), (False, True)))
    assert all(models.ratio(row) > 0 for row in results["rows"])
    table = models.markdown(results)
    assert table in capsys.readouterr().out
    assert f"| small | {models.ratio(results['rows'][0]):.2f} / " in table
    assert "| - / - | - / - |" in table  # nothing was compiled


def test_a_converted_network_that_differs_is_no_row():
    pool, image = torch.nn.MaxPool2d(2), torch.randn(1, 2, 4, 4)
    models.compare(pool, dmlpool.nn.MaxPool2d(2), image)
    with pytest.raises(common.Disagreement, match="the outputs differ by"):
        models.compare(pool, torch.nn.Sequential(pool, torch.nn.Sigmoid()), image)

    class Passing(torch.nn.Module):
        """The same maxima, whose gradient all elements of a window share."""

        def forward(self, input):
            averages = torch.nn.functional.avg_pool2d(input, 2)
            return averages + (pool(input) - averages).detach()

    with pytest.raises(common.Disagreement, match="the gradients differ by"):
        models.compare(pool, Passing(), image.requires_grad_())


def test_calls_of_real_models_are_measured_and_shown(tmp_path, capsys):
    """In every layout and mode, beside ATen, a copy and the sibling: the table names each way."""
    path, words = tmp_path / "calls.json", "max 1x128x8x8x8 batch=1"
    asked = calls.rows(words, 1, [1])
    columns = {" ".join(calls.way(row.name)) for row in asked}
    assert columns == {
        f"{mode} {layout} batch=1 threads=1"
        for mode in calls.LARGE
        for layout in ("contiguous", "channels_last")
    }
    arguments = [words, "--threads", "1", "--row-seconds", "0", "--out", str(path)]
    assert calls.main(arguments) == 0
    printed, results = capsys.readouterr().out, common.load(path)
    assert [row["name"] for row in results["rows"]] == [row.name for row in asked]
    for row in results["rows"]:
        assert row["seconds"].keys() == {rows.ATEN, rows.OURS, rows.COPY, calls.SIBLING}
    for table in (calls.markdown, calls.least, calls.behind):
        assert table(results) in printed
    assert "kernels by " in calls.markdown(results)
    for column in columns:
        mode, layout, *_ = column.split()
        assert f"| {mode} | {layout} | 1 | 1 | " in printed


def test_a_call_of_a_real_model_must_give_what_aten_gives(monkeypatch, capsys):
    functions = dmlpool.nn.functional
    pool = functions.max_pool2d
    monkeypatch.setattr(functions, "max_pool2d", lambda *given, **how: pool(*given, **how) + 1)
    asked = ["max contiguous batch=1", "--sample", "70", "--threads", "1"]
    assert calls.main([*asked, "--row-seconds", "0"]) == 1
    assert "WRONG max 1x" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no row's name has all of these words: max median"):
        calls.main(["max median"])


def test_a_call_behind_aten_is_measured_again(monkeypatch):
    """For longer, and the second time counts. Calls below 50 us are behind by a difference."""
    both = [(100e-6, 200e-6), (100e-6, 125e-6), (100e-6, 50e-6), (10e-6, 20e-6)]
    found = [calls.is_behind({rows.ATEN: aten, rows.OURS: ours}) for aten, ours in both]
    assert found == [True, True, False, True]
    taken: list[float] = []

    def in_turn(_, seconds, device):
        assert device == "cpu"
        taken.append(seconds)
        ours = 200e-6 if len(taken) == 1 else 100e-6
        times = {rows.ATEN: 100e-6, rows.OURS: ours}
        return {who: common.Times(each, each, each) for who, each in times.items()}

    monkeypatch.setattr(calls, "in_turn", in_turn)
    row = calls.Row("max forward contiguous batch=1 threads=1", 1, dict)
    assert calls.measure(row, 1.0)["seconds"][rows.OURS] == 100e-6
    assert taken == [1.0, calls.LONGER]


def test_a_wheel_takes_turns_with_the_checkout(capsys):
    """In a process that imports the package from another folder: here the same one."""
    asked = ["average forward contiguous batch=1", "--sample", "70", "--threads", "1"]
    assert calls.main([*asked, "--row-seconds", "0", "--wheel", str(common.ROOT)]) == 0
    printed = capsys.readouterr().out
    assert f"| {calls.WHEEL} | " in printed
    assert ", the wheel's " in printed


@pytest.mark.skipif(calls.library.library is None, reason="no compiled kernels")
def test_implementations_are_switched_off_one_by_one_and_all(monkeypatch, capsys):
    """Each is a line of the table, beside what noise makes of a ratio, and all are on again after
    each call."""
    switch, bits = calls.implementations()
    masks: list[int] = []
    monkeypatch.setattr(
        calls, "implementations", lambda: (lambda mask: (masks.append(mask), switch(mask)), bits)
    )
    asked = ["max forward contiguous batch=1", "--sample", "100", "--ablate"]
    assert calls.main([*asked, "--row-seconds", "0"]) == 0
    printed = capsys.readouterr().out
    for name in ("nothing", *bits, "all"):
        assert f"| without {name} | " in printed
    assert {0, *bits.values(), sum(bits.values())} == set(masks)
    assert masks[1::2] == [0] * (len(masks) // 2)


@pytest.mark.slow
def test_a_call_to_the_triton_backend_is_measured_without_a_gpu(python):
    """In a process of its own, whose driver launches nothing."""
    pytest.importorskip("triton")
    printed = python("-m", "benchmarks", "overhead", "--row-seconds", "0", cwd=common.ROOT).stdout
    for name in ("torch.empty", "layer AvgPool2d, 3/2", "max with its gradient, 2/2", "max grad"):
        line = next(line for line in printed.splitlines() if line.startswith(f"| {name}"))
        assert float(line.strip(" |").split(" | ")[-1]) > 0
