"""Whole networks as they are and with this package's pools: ``python -m benchmarks models``.

The networks are torchvision's and timm's and a U-Net, with random weights and the images that they
are made for. Both contestants of a row take turns, on a CPU on one thread in batches of one, on a
GPU in larger batches under bfloat16 autocast. A ratio is the original's median over the
converted's.
"""

import copy
import functools
import importlib
import itertools
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

import torch_dmlpool as dmlpool
from benchmarks import common
from benchmarks.common import (
    OURS,
    Disagreement,
    Named,
    Sizes,
    compiled,
    conditions,
    in_turn,
    mean,
    sentence,
)
from torch_dmlpool.tensors import memory_format
from torch_dmlpool.timing import Call

ORIGINAL = "original"
WIDTHS = 32, 64, 128, 256, 512
GPU_BATCH = 32


def torchvision():
    """torchvision, also where its own operators do not load: beside PyTorch for CPUs the wheel on
    PyPI has none, and the import fails because it describes two of them. No network calls them."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    for name in ("nms", "qnms"):
        schema = "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", schema)
    return importlib.import_module("torchvision")


def vision(name: str, **how) -> Callable[[], nn.Module]:
    return lambda: torchvision().models.get_model(name, weights=None, **how)


def timm(name: str) -> Callable[[], nn.Module]:
    # timm imports torchvision.
    return lambda: torchvision() and importlib.import_module("timm").create_model(name)


class UNet(nn.Module):
    """Two convolutions, and below them a max pool, the same of the other widths and a transposed
    convolution, whose result two convolutions join with theirs."""

    def __init__(self, channels: int = 3, widths: Sizes = WIDTHS):
        super().__init__()
        width, *deeper = widths
        self.down, self.below = _twice(channels, width), None
        if deeper:
            up = nn.ConvTranspose2d(deeper[0], width, 2, 2)
            self.below = nn.Sequential(nn.MaxPool2d(2), UNet(width, deeper), up)
            self.joined = _twice(2 * width, width)

    def forward(self, input: Tensor) -> Tensor:
        kept = self.down(input)
        if self.below is None:
            return kept
        return self.joined(torch.cat([kept, self.below(kept)], 1))


def _twice(channels, width):
    layers = []
    for inputs in (channels, width):
        layers += [nn.Conv2d(inputs, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
        layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


IMAGE = 1, 3, 224, 224
MODELS = {
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
    "ResNet-50": (vision("resnet50"), IMAGE),
    "U-Net": (UNet, (1, 3, 256, 256)),
}
Way = tuple[str, bool, bool, bool]
"""A network, compiled or not, training or not, channels_last or not."""


def ways(named: str) -> list[Way]:
    """Those whose text has ``named``; the quick ones first."""
    flags = (False, True)
    return [
        (name, *way)
        for *way, name in itertools.product(flags, flags, flags, MODELS)
        if named.lower() in f"{name} {title(*way[:2])}".lower()
    ]


def title(is_compiled: bool, is_training: bool) -> str:
    return f"{'compiled' if is_compiled else 'eager'}, {'training' if is_training else 'forward'}"


def contestant(model: nn.Module, is_compiled: bool, input: Tensor) -> Call:
    """A call of the network, in training where the input wants a gradient."""

    def forward(input):
        with torch.autocast(input.device.type, torch.bfloat16, enabled=input.is_cuda):
            return model(input)

    run = compiled(forward) if is_compiled else forward
    leaves = [input, *model.parameters()]

    def inferred():
        with torch.no_grad():
            return run(input)

    def trained():
        output = run(input)
        return output, *torch.autograd.grad(output, leaves, torch.ones_like(output))

    return trained if input.requires_grad else inferred


def ratio(row: Named) -> float:
    before, after = (row["seconds"][key] for key in (ORIGINAL, OURS))
    return before / after


def measure(way: Way, seconds: float, device: str) -> Named:
    name, is_compiled, is_training, channels_last = way
    torch.compiler.reset()
    torch.manual_seed(0)
    build, sizes = MODELS[name]
    sizes = sizes if device == "cpu" else (GPU_BATCH, *sizes[1:])
    laid_out = memory_format(channels_last, len(sizes))
    model = build().train(is_training).to(device, memory_format=laid_out)
    input = torch.randn(sizes, device=device).to(memory_format=laid_out)
    input.requires_grad_(is_training)
    # Both are copies: a copy of a network may be slower by 1 % than the network itself.
    original, converted = copy.deepcopy(model), dmlpool.nn.convert(model, inplace=False).model
    # Where weights and statistics lie in memory moves a row by 2 %.
    converted.load_state_dict(original.state_dict(), assign=True)
    compare(original, converted, input[:2].detach().requires_grad_(is_training))
    both = {ORIGINAL: original, OURS: converted}
    calls = {key: contestant(one, is_compiled, input) for key, one in both.items()}
    peak = {}
    for key, call in calls.items() if device != "cpu" else ():
        call()
        torch.cuda.reset_peak_memory_stats()
        call()
        peak[key] = torch.cuda.max_memory_allocated()
    taken = in_turn(calls, seconds, device, least=4)
    row = {"model": name, "sizes": sizes, "compiled": is_compiled, "training": is_training}
    row |= {"channels_last": channels_last, "peak": peak}
    return row | {"seconds": {who: each.median for who, each in taken.items()}}


def compare(original: nn.Module, converted: nn.Module, input: Tensor):
    """Outputs and gradients of both, by float64: in float32 the gradients of a deep network may be
    off by a tenth, so that differences there say nothing."""
    found = []
    for model in (original, converted):
        torch.manual_seed(1)  # for dropout
        precise = input.detach().double().requires_grad_(input.requires_grad)
        with torch.autocast(input.device.type, enabled=False):
            result = contestant(copy.deepcopy(model).double(), False, precise)()
        found.append([each.detach() for each in common.several(result)])
    differences = [first - second for first, second in zip(*found, strict=True)]
    for what, which in (("outputs", slice(1)), ("gradients", slice(1, None))):
        error, size = (get_total_norm(listed[which]) for listed in (differences, found[0]))
        if not error <= 1e-6 * size:
            raise Disagreement(f"the {what} differ by {error:.1e}")


def markdown(results: Named) -> str:
    """A table of ratios, a line for each network; where and when."""
    rows = results["rows"]
    found = defaultdict(list)
    for row in rows:
        for name in (row["model"], "**geometric mean**"):
            found[name, row["compiled"], row["training"], row["channels_last"]].append(ratio(row))

    def cell(*way):
        return f"{mean(found[way]):.2f}" if way in found else "-"

    columns = list(itertools.product((False, True), (False, True)))
    lines = [
        (name, *(f"{cell(name, *way, False)} / {cell(name, *way, True)}" for way in columns))
        for name in [*dict.fromkeys(row["model"] for row in rows), "**geometric mean**"]
    ]
    on_cpu = results["conditions"]["device"] == "cpu"
    note = f"Contiguous / channels_last.{' Batches of one.' * on_cpu}"
    table = common.table(["", *(title(*way) for way in columns)], lines)
    return f"{table}\n\n" + textwrap.fill(f"{note} {sentence(results['conditions'])}.", 120)


def main(arguments: Sequence[str]) -> int:
    parser = common.parser("models", __doc__, 1.0, 'such as "ResNet" or "eager, forward"')
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    seconds, device = options.row_seconds, options.device
    tasks = [
        (f"{way[0]} {title(*way[1:3])}", functools.partial(measure, way, seconds, device))
        for way in ways(options.words)
    ]
    known = conditions(device, ["torchvision", "timm"])
    rows, status = common.run(options, tasks, known)
    if rows:
        print(markdown({"conditions": known, "rows": rows}))
    return status
