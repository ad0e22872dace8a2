"""Peers give our answers, or say why they do not take part; wrong answers are found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("benchmarks.peers")

from benchmarks import harness, memory, onnx_model, peers
from benchmarks.bound import Bound
from benchmarks.workloads import select

SETTINGS = harness.Settings(torch.device("cpu"), rounds=1, row_seconds=0.0)
PRESENT, ABSENT = peers.present("cpu", with_optional=False)


def reduced(row):
    """The same window over one sample, few channels, and the smallest spatial sizes that keep what is special."""
    spatial = tuple(
        min(size, (window - 1) * step + 1 + 2 * stride + 1)
        for size, window, step, stride in zip(row.sizes[2:], row.window, row.dilation, row.stride, strict=True)
    )
    return replace(row, sizes=(min(row.sizes[0], 2), min(row.sizes[1], 3), *spatial))


REDUCED = list(dict.fromkeys(map(reduced, select("all"))))


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=[pytest.mark.slow] if number % 16 else [])
        for number, row in enumerate(REDUCED)
    ],
)
def test_everyone_agrees_or_says_why_not(row) -> None:
    """ATen's results, exactly for maxima and indices; a peer may be absent, never wrong or broken."""
    calls, skipped = harness.bind(list(PRESENT), harness.problem(row, SETTINGS))
    # ATen knows no scales of channels, and on a CPU no 3-D averages of 16 bits.
    without_aten = row.per_channel or (row.family == "average" and row.rank == 3 and row.torch_dtype.itemsize == 2)
    reference = peers.DETOUR if without_aten else peers.ATEN
    assert {peers.OURS, reference, peers.COPY} <= {peer.name for peer in calls}
    assert not [reason for reason in skipped.values() if reason.startswith(("wrong:", "failed:"))]
    for peer, bound in calls.items():
        assert len(bound) == harness.INPUTS, peer.name


def peer_that_returns(change) -> peers.Peer:
    """ATen with its results changed."""

    def bind(problem):
        aten = peers.torch_calls(peers.aten_pool(problem.workload), problem)
        return [Bound(call.run, lambda returned, call=call: change(call.collect(returned))) for call in aten]

    return peers.Peer("changed", lambda: "1", bind)


@pytest.mark.parametrize(
    ("family", "change", "finding"),
    [
        ("max", lambda parts: (parts[0] + 1e-6, *parts[1:]), "values differ by up to 1.*e-06"),
        ("average", lambda parts: (parts[0] + 1e-3,), "values differ by up to 0.001"),
        ("max", lambda parts: (parts[0][1:], *parts[1:]), "values are torch.float32 of"),
        ("average", lambda parts: (parts[0].double(),), "values are torch.float64 of"),
    ],
)
def test_a_wrong_peer_is_left_out(family: str, change, finding: str) -> None:
    row = next(row for row in REDUCED if row.family == family and row.mode == "forward" and row.sizes[0] == 2)
    aten = next(peer for peer in PRESENT if peer.name == peers.ATEN)
    wrong = peer_that_returns(change)
    calls, skipped = harness.bind([aten, wrong], harness.problem(row, SETTINGS))
    assert list(calls) == [aten]
    assert skipped["changed"].startswith("wrong: ")
    with pytest.raises(AssertionError, match=finding):
        raise AssertionError(skipped["changed"])
    with pytest.raises(harness.Disagreement, match="our values"):
        harness.bind([aten, replace(wrong, name=peers.OURS)], harness.problem(row, SETTINGS))


def test_bytes_kept_for_the_backward_pass() -> None:
    """M6: one byte per output for ours; ATen keeps int64 indices. Averages keep nothing beside the input."""
    row = replace(next(row for row in REDUCED if row.mode == "training" and row.family == "max"), window=(3, 3))
    input = torch.randn(row.sizes)
    outputs = torch.Size(row.output_sizes).numel()
    kept = {name: memory.kept_for_backward(pool, input) for name, pool in peers.pools(row).items()}
    assert kept["ours"]["extra"] == outputs
    assert kept["ATen"]["extra"] == 8 * outputs
    assert kept["ATen"]["all"] == 8 * outputs + 4 * input.numel()
    row = replace(row, family="average")
    assert memory.kept_for_backward(peers.our_pool(row), input)["extra"] == 0


def test_the_onnx_model_is_what_the_onnx_package_reads() -> None:
    onnx = pytest.importorskip("onnx")
    row = next(row for row in REDUCED if row.mode == "indices")
    model = onnx.load_model_from_string(onnx_model.pooling_model(row))
    onnx.checker.check_model(model, full_check=True)
    assert [output.name for output in model.graph.output] == ["values", "indices"]
    row = next(row for row in REDUCED if row.mode == "quantized" and row.channels_last)
    model = onnx.load_model_from_string(onnx_model.pooling_model(row))
    onnx.checker.check_model(model)
    (node,) = model.graph.node
    assert (node.domain, node.op_type) == ("com.microsoft", "QLinearAveragePool")
    assert {constant.name for constant in model.graph.initializer} == set(node.input[1:])
