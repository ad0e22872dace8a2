"""Results that nobody measured, for tests of what is made of results."""

from __future__ import annotations

from benchmarks.results import Curve, Quartiles, Results, RowResult


def row_result(
    name: str = "max 8x64x112x112 window 3/1 pad 1",
    groups=("core",),
    kind: str = "forward, contiguous, float32",
    window=(3, 3),
    **milliseconds: float,
) -> RowResult:
    seconds = {peer: Quartiles(0.9e-3 * time, 1e-3 * time, 1.1e-3 * time) for peer, time in milliseconds.items()}
    return RowResult(name, groups, "", kind, 200, 100, 5, 1, seconds, window=window)


def results(*rows: RowResult, **changes) -> Results:
    conditions = {
        "date": "2030-01-31T12:00:00+00:00",
        "machine": {"processor": "a processor", "cores": 2, "caches": {"L2": "1024K"}, "cpu_capability": "AVX2"},
        "device": "cpu",
        "threads": 2,
        "busy_processes": 0,
        "load_average": {"start": 0.1, "end": 0.2},
        "rounds": 5,
        "scaling": False,
        "quick": False,
        "versions": {"python": "3.11.0"},
        "peers": {"ours": "1", "copy": "2", "ATen": "2", "oneDNN": "3"},
        "absent": {"JAX": "not installed"},
    }
    return Results({**conditions, **changes}, rows)


def curve(variable: str, values, cost, outputs: int = 10, **others) -> Curve:
    """Of calls that take ``cost(value)`` seconds, ours, and what ``others`` take."""
    contestants = {"ours": cost, **others}
    rows = tuple(
        RowResult(
            f"{variable} {value}",
            ("scaling",),
            "",
            "forward, contiguous, float32",
            *(2, 1, 1, 1),
            {name: Quartiles.of([seconds(value)]) for name, seconds in contestants.items()},
            outputs=outputs,
        )
        for value in values
    )
    return Curve("a curve", variable, tuple(values), rows)
