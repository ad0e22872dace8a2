"""The model of ``benchmarks.cliffs``: what traced programs read, wait for and compute."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_requests

pytest.importorskip("triton")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def traced() -> dict[str, Any]:
    script = Path(__file__).with_name("traced_by_hand.py")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_sectors_and_lines_are_those_of_each_warp_s_access(traced: dict[str, Any]) -> None:
    """For 128 floats read and 128 written: 16 sectors and 4 lines each, or one for each float."""
    side_by_side, strided = traced["one element"], traced["strided"]
    assert (side_by_side["sectors"], side_by_side["lines"]) == (32, 8)
    assert (strided["sectors"], strided["lines"]) == (128 + 16, 128 + 4)
    assert traced["vectors"]["sectors"] == 8 * side_by_side["sectors"]


def test_vectors_take_an_instruction_for_four_elements(traced: dict[str, Any]) -> None:
    narrow, wide = traced["one element"]["instructions"], traced["vectors"]["instructions"]
    accesses = 2 * 2 * 128 / 32  # of the load and the store, two each for a warp
    addresses = narrow - accesses
    assert wide == pytest.approx(8 * accesses / 4 + 8 * addresses)


def test_loads_that_depend_on_loads_wait_for_them(traced: dict[str, Any]) -> None:
    assert traced["one element"]["far_waits"] == 1
    assert traced["looked up"]["far_waits"] == 2


def test_divisions_by_numbers_at_run_time_are_many_instructions(traced: dict[str, Any]) -> None:
    more = traced["divided"]["instructions"] - traced["one element"]["instructions"]
    assert 4 * 21 <= more < 4 * 24  # of four warps


def test_some_turns_of_a_long_loop_stand_for_all(traced: dict[str, Any]) -> None:
    few, every = traced["long loop"], traced["every turn"]
    assert few["missed"] == every["missed"] == 1000 * 16 + 1
    for name in ("sectors", "lines", "instructions", "far_waits"):
        assert few[name] == pytest.approx(every[name], rel=0.01)
    assert few["far_waits"] == pytest.approx(250, rel=0.02)  # four turns wait together


def test_a_pooling_at_the_speed_of_memory_is_no_cliff(traced: dict[str, Any]) -> None:
    assert traced["bound"] == "memory"
    assert 0.7 < traced["times"] < 1.2
    assert traced["status"] == [0, 1]


def test_requests_are_those_of_the_table_of_kernelbench_and_of_models() -> None:
    table, models = list(gpu_requests.table()), list(gpu_requests.models())
    assert len({each.name for each in table}) == len(table) == 105
    assert len(list(gpu_requests.kernelbench())) == 6
    assert len(models) == 2 * 167
    assert {each.shape[0] for each in models} == {32, 256}
    trained = list(gpu_requests.models(training=True))
    assert len(trained) == 2 * len(models)
    for each in (*table, *trained):
        _, call = each.prepared()
        assert callable(call)
