"""Ten networks of torchvision and timm, as they are and converted to this package: ``python -m
benchmarks --models``.

The networks are whole, with random weights and the images that they are made for. Both contestants
of a row are called in turn in one process on one thread, whose processor time is measured. A row's
figure is the original's median over the converted's; eager rows take the middle one of three
builds. ``python -m benchmarks.report`` puts the table into the README.
"""

from __future__ import annotations

import copy
import datetime
import importlib
import importlib.metadata
import json
import math
import statistics
import time
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torch_dmlpool as dmlpool
from benchmarks import machine

BUILDS = 3
LEAST_CALLS = 4


def torchvision() -> Any:
    """torchvision, also where its own operators do not load.

    The wheel on PyPI is built for CUDA. Beside PyTorch for CPUs its operators are missing, and the
    import fails because it describes two of them. The networks call neither.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    _KEPT.append(library)
    return importlib.import_module("torchvision")


_KEPT: list[torch.library.Library] = []
"""The definitions are withdrawn when their library is collected."""


def vision(name: str, **rest: Any) -> Callable[[], nn.Module]:
    return lambda: torchvision().models.get_model(name, weights=None, **rest)


def timm(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torchvision()  # timm imports it
        return importlib.import_module("timm").create_model(name, pretrained=False)

    return build


IMAGE = 1, 3, 224, 224
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "ResNet-18": (vision("resnet18"), IMAGE),
    "VGG-11 with batch norm": (vision("vgg11_bn"), IMAGE),
    "SqueezeNet 1.1": (vision("squeezenet1_1"), IMAGE),
    "GoogLeNet": (vision("googlenet", aux_logits=False, init_weights=False), IMAGE),
    "DenseNet-121": (vision("densenet121"), IMAGE),
    "EfficientNet-B0": (vision("efficientnet_b0"), IMAGE),
    "S3D, 16 frames": (vision("s3d"), (1, 3, 16, 224, 224)),
    "PoolFormer-S12 (timm)": (timm("poolformer_s12"), IMAGE),
    "ResNet-50-D (timm)": (timm("resnet50d"), IMAGE),
    "Inception-v4 (timm)": (timm("inception_v4"), (1, 3, 299, 299)),
}


def cases(named: str) -> Iterator[tuple[str, bool, bool, bool]]:
    """Network, compiled or not, training or not, channels_last or not: the quick ones first."""
    for is_compiled in (False, True):
        for is_training in (False, True):
            for name in MODELS:
                if named.lower() in f"{name} {'compiled' if is_compiled else 'eager'}".lower():
                    for channels_last in (False, True):
                        yield name, is_compiled, is_training, channels_last


def contestant(
    model: nn.Module, key: str, is_compiled: bool, is_training: bool
) -> Callable[[Tensor], Any]:
    def forward(input: Tensor) -> Tensor:
        return model(input)

    if is_compiled:  # code of its own, so that neither is looked up behind the other
        code = forward.__code__.replace(co_name=f"forward_{key}")
        forward = torch.compile(
            types.FunctionType(code, globals(), code.co_name, None, forward.__closure__)
        )
    if not is_training:

        def inferred(input: Tensor) -> Tensor:
            with torch.no_grad():
                return forward(input)

        return inferred
    parameters = list(model.parameters())

    def trained(input: Tensor) -> Any:
        output = forward(input)
        return output, *torch.autograd.grad(output, [input, *parameters], torch.ones_like(output))

    return trained


def measure(
    name: str, is_compiled: bool, is_training: bool, channels_last: bool, seconds: float
) -> dict[str, Any]:
    """The middle one of several builds, as where a build's objects lie in memory moves a row by 1
    %; one build of compiled networks, which take minutes to compile."""
    builds = 1 if is_compiled else BUILDS
    rows = sorted(
        (
            _measured(name, is_compiled, is_training, channels_last, seconds / builds)
            for _ in range(builds)
        ),
        key=lambda row: row["ratio"],
    )
    return rows[builds // 2]


def _measured(
    name: str, is_compiled: bool, is_training: bool, channels_last: bool, seconds: float
) -> dict[str, Any]:
    """Milliseconds of both contestants, after the networks have been compared."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    build, sizes = MODELS[name]
    model, input = build().train(is_training), torch.randn(sizes)
    if channels_last:
        layout = torch.channels_last if len(sizes) == 4 else torch.channels_last_3d
        model, input = model.to(memory_format=layout), input.contiguous(memory_format=layout)
    input.requires_grad_(is_training)
    # Both are copies: a copy of a network may be slower by 1 % than the network itself.
    original, converted = copy.deepcopy(model), dmlpool.nn.convert(model, inplace=False).model
    # Where weights and statistics lie in memory moves a row by 2 %.
    for kept in (torch.nn.Module.parameters, torch.nn.Module.buffers):
        for ours, theirs in zip(kept(converted), kept(original), strict=True):
            ours.data = theirs.data
    compare(original, converted, input)
    both = {
        key: contestant(model, key, is_compiled, is_training)
        for key, model in (("original", original), ("converted", converted))
    }
    for call in both.values():
        call(input)  # compiles, and allocates what the calls after it reuse
    times = in_turn(both, input, seconds)
    medians = {key: statistics.median(spent) * 1e3 for key, spent in times.items()}
    return {
        "model": name,
        "sizes": sizes,
        "compiled": is_compiled,
        "training": is_training,
        "channels_last": channels_last,
        **medians,
        "ratio": medians["original"] / medians["converted"],
        "calls": len(times["original"]),
    }


def compare(original: nn.Module, converted: nn.Module, input: Tensor) -> None:
    """Outputs and gradients of both, by float64: in float32 the gradients of a deep network may be
    off by a tenth, so that differences there say nothing."""
    found = []
    for model in (original, converted):
        torch.manual_seed(1)  # for dropout
        given = input.detach().double().requires_grad_(input.requires_grad)
        result = contestant(copy.deepcopy(model).double(), "", False, input.requires_grad)(given)
        output, *gradients = result if isinstance(result, tuple) else (result,)
        found.append([output.detach(), *(part.flatten() for part in gradients)])
    for what, parts in (("outputs", slice(1)), ("gradients", slice(1, None))):
        first, second = (
            torch.cat([torch.zeros(0), *(part.flatten() for part in one[parts])]) for one in found
        )
        error = float((first - second).norm())
        if not error <= 1e-6 * float(first.norm()):
            raise AssertionError(
                f"the {what} differ by {error:.1e}, their norm is {first.norm():.1e}"
            )


def in_turn(
    both: dict[str, Callable[[Tensor], Any]], input: Tensor, seconds: float
) -> dict[str, list[float]]:
    """Seconds of the thread's processor time for each call."""
    times: dict[str, list[float]] = {key: [] for key in both}
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times["original"]) < LEAST_CALLS:
        # Whoever is called second finds a warmer cache: they take turns at that too.
        for key in sorted(both, reverse=len(times["original"]) % 2 == 1):
            start = time.thread_time()
            both[key](input)
            times[key].append(time.thread_time() - start)
    return times


def markdown(results: dict[str, Any]) -> str:
    """A table of ratios, a line for each network, contiguous and channels_last beside each other;
    where and when."""
    found = {
        (row["model"], row["compiled"], row["training"], row["channels_last"]): row["ratio"]
        for row in results["rows"]
    }
    columns = [(compiled, training) for compiled in (False, True) for training in (False, True)]
    titles = [
        f"{'compiled' if c else 'eager'}, {'training' if t else 'forward'}" for c, t in columns
    ]
    lines = [f"| | {' | '.join(titles)} |", "|---|" + "---:|" * len(columns)]

    def cell(ratios: Iterable[float | None]) -> str:
        return " / ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)

    for name in dict.fromkeys(row["model"] for row in results["rows"]):
        cells = [
            cell(found.get((name, *column, last)) for last in (False, True)) for column in columns
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    means = [cell(_mean(found, (*column, last)) for last in (False, True)) for column in columns]
    lines.append(f"| **geometric mean** | {' | '.join(means)} |")
    known = results["conditions"]
    place = f"{known['machine']['processor']}, {known['machine']['cpu_capability']}"
    threads = "one thread" if known["threads"] == 1 else f"{known['threads']} threads"
    conditions = (
        f"Contiguous / channels_last. Batches of one; {place}; {threads}; "
        f"PyTorch {known['versions']['torch']}, torchvision {known['versions']['torchvision']}, "
        f"timm {known['versions']['timm']}; {known['date'].partition('T')[0]}."
    )
    if any(" - " in line for line in lines):
        conditions += " A dash: not measured; means are of what was."
    return "\n".join([*lines, "", conditions])


def _mean(found: dict[Any, float], way: tuple[bool, bool, bool]) -> float | None:
    """The geometric mean of what was run that way."""
    ratios = [ratio for (_, *run), ratio in found.items() if tuple(run) == way]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else None


def _versions() -> dict[str, str]:
    torchvision()
    return {name: importlib.metadata.version(name) for name in ("torchvision", "timm")}


def run(named: str, seconds: float, path: Path) -> int:
    """Measure the networks whose name contains ``named``, print each row as it comes, and write
    JSON after each: a run takes long."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    conditions = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(torch.device("cpu")),
        "threads": 1,
        "versions": machine.versions() | _versions(),
        "seconds": seconds,
    }
    results = {"conditions": conditions, "rows": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    for case in cases(named):
        row = measure(*case, seconds=seconds)
        rows.append(row)
        way = (
            f"{'compiled' if row['compiled'] else 'eager':8} "
            f"{'training' if row['training'] else 'forward':8}"
        )
        layout = "channels_last" if row["channels_last"] else ""
        print(
            f"{row['model']:24} {way} {layout:13} {row['original']:8.3f} ms "
            f"{row['converted']:8.3f} ms "
            f"{row['ratio']:5.2f}x",
            flush=True,
        )
        path.write_text(json.dumps(results, indent=1) + "\n")
    print(markdown(results))
    return 0
