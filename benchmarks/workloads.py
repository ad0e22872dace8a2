"""The one table of workloads: what is pooled, how, in which type and layout, and which groups it
belongs to.

Every row can be asked of PyTorch's own operators too: symmetric padding of at most half a window,
no dilated average. Quantized rows are the exception: PyTorch's know one scale, which the output
shares.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torch_dmlpool.window import Window

MODES = {
    "forward": "",
    "indices": "with indices",
    "recorded": "recording the graph",
    "training": "forward + backward",
    "quantized": "quantized",
}
"""What is timed: the values; those and the indices of the maxima; autograd's book-keeping without a
backward pass; both passes; averages of integers that stand for real numbers."""

GROUPS = {
    "core": "what every release is judged by: max and average, layouts, ranks and gradients",
    "overhead": "tiny tensors: what a call costs",
    "networks": "pools of well-known networks, in one to three spatial dimensions",
    "published": "geometries for which other kernel libraries publish times",
    "types": "data types beside float32",
    "quantized": "averages of 8-bit integers with scales and zero points",
    "batches": "one pool over batches of 1 to 256",
    "extremes": "windows that tile an image, long rows, one window over everything: "
    "values, indices, training",
    "large": "windows of 2 to 31 over tensors that no cache of a GPU holds, "
    "in every type and layout; in no other list",
}


@dataclass(frozen=True)
class Workload:
    """One row of the table, with one entry per spatial dimension in its window arguments."""

    family: str  # max or average
    sizes: tuple[int, ...]
    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    ceil_mode: bool = False
    include_padding: bool = True
    dtype: str = "float32"
    channels_last: bool = False
    mode: str = "forward"
    # quantized: a scale for each channel of the input, another one for the output
    per_channel: bool = False
    groups: tuple[str, ...] = field(default=(), compare=False)
    origin: str = field(default="", compare=False)  # where this pool is met

    @property
    def rank(self) -> int:
        return len(self.window)

    @property
    def name(self) -> str:
        """``max 8x64x112x112 window 3/2 pad 1``, then whatever is not the default."""
        window = _short(self.window)
        parts = [
            self.family,
            "x".join(map(str, self.sizes)),
            f"window {window}/{_short(self.stride)}",
        ]
        if any(self.padding):
            parts.append(f"pad {_short(self.padding)}")
        if any(step > 1 for step in self.dilation):
            parts.append(f"dilation {_short(self.dilation)}")
        if self.ceil_mode:
            parts.append("ceil")
        if not self.include_padding:
            parts.append("padding not counted")
        if self.dtype != "float32":
            parts.append(self.dtype)
        if self.channels_last:
            parts.append("channels_last")
        if self.mode != "forward":
            parts.append(MODES[self.mode])
        if self.per_channel:
            parts.append("per channel")
        return " ".join(parts)

    def of_one(self) -> Workload:
        """The same with a batch of one."""
        return replace(self, sizes=(1, *self.sizes[1:]))

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @functools.cached_property
    def geometry(self) -> Window:
        padding = [(amount, amount) for amount in self.padding]
        return Window.pytorch(
            self.rank, self.window, self.stride, padding, self.dilation, self.ceil_mode
        )

    @property
    def output_sizes(self) -> tuple[int, ...]:
        return (*self.sizes[:2], *self.geometry.output_sizes(self.sizes[2:]))

    @property
    def bytes_moved(self) -> int:
        """What no implementation can avoid: each input read once and each result written once,
        forward and back."""
        itemsize = self.torch_dtype.itemsize
        inputs, outputs = math.prod(self.sizes) * itemsize, math.prod(self.output_sizes)
        if self.mode == "indices":
            return inputs + outputs * (itemsize + torch.int64.itemsize)
        return (inputs + outputs * itemsize) * (2 if self.mode == "training" else 1)

    @property
    def memory_format(self) -> torch.memory_format:
        if not self.channels_last:
            return torch.contiguous_format
        return torch.channels_last if self.rank == 2 else torch.channels_last_3d

    def random(self, sizes: Sequence[int], generator: torch.Generator) -> Tensor:
        """A tensor of this row's type and layout: normal numbers, or the whole range of an integer
        type."""
        device, dtype = generator.device, self.torch_dtype
        if dtype.is_floating_point:
            tensor = torch.randn(sizes, generator=generator, device=device).to(dtype)
        else:
            limits = torch.iinfo(dtype)
            tensor = torch.randint(
                limits.min, limits.max, sizes, generator=generator, device=device, dtype=dtype
            )
        return tensor.contiguous(memory_format=self.memory_format)


def _short(numbers: Sequence[int]) -> str:
    """One number where all are the same."""
    return str(numbers[0]) if len(set(numbers)) == 1 else "x".join(map(str, numbers))


def _row(
    groups: str,
    families: str,
    sizes: str,
    window: str,
    pad: int | str = 0,
    *,
    dilation: int = 1,
    ceil: bool = False,
    include_padding: bool = True,
    origin: str = "",
) -> Iterator[Workload]:
    """One forward row per family from shorthand: sizes ``8x64x112x112``, window ``3/2`` or
    ``1x2x2``, pad ``1x2``."""
    shape = tuple(int(size) for size in sizes.split("x"))
    rank = len(shape) - 2
    taps, _, steps = window.partition("/")

    def entries(text: str) -> tuple[int, ...]:
        numbers = tuple(int(number) for number in text.split("x"))
        return numbers * rank if len(numbers) == 1 else numbers

    for family in families.split():
        yield Workload(
            family,
            shape,
            entries(taps),
            entries(steps or taps),
            entries(str(pad)),
            (dilation,) * rank,
            ceil,
            include_padding,
            groups=tuple(groups.split()),
            origin=origin,
        )


def _core() -> Iterator[Workload]:
    first = [
        *_row("core", "max average", "8x64x112x112", "3/1", 1),
        *_row("core", "max average", "8x64x112x112", "3/2", 1),
        *_row("core", "max average", "8x256x56x56", "2/2"),
    ]
    volumes = [
        *_row("core", "max average", "2x64x16x56x56", "3/2", 1),
        *_row("core", "max average", "2x64x16x56x56", "2/2"),
    ]
    lines = list(_row("core", "max average", "8x64x16384", "3/2", 1))
    large = list(_row("core", "max average", "2x64x112x112", "31/1", 15))
    for row in [*first, *large, *volumes, *lines]:
        yield row
    for row in [*first, *volumes, *lines]:
        yield replace(row, mode="training")
    for row in first:
        if row.family == "max":
            yield replace(row, mode="indices")
    for row in [*first, *large, *volumes]:
        yield replace(row, channels_last=True)
    for row in [*first, *volumes]:
        yield replace(row, channels_last=True, mode="training")


def _overhead() -> Iterator[Workload]:
    for row in _row("overhead", "max average", "1x1x4x4", "2/2"):
        for mode in ("forward", "recorded", "training"):
            yield replace(row, mode=mode)
    yield replace(next(_row("overhead", "max", "1x1x4x4", "2/2")), mode="indices")
    yield from _row("overhead", "max average", "1x1x16", "2/2")
    yield from _row("overhead", "max average", "1x1x4x4x4", "2/2")
    yield from _row("overhead", "max average", "1x8x16x16", "3/2", 1)


def _networks() -> Iterator[Workload]:
    group = "networks"
    for stage, sizes in enumerate(
        ("8x64x224x224", "8x128x112x112", "8x256x56x56", "8x512x28x28", "8x512x14x14"), 1
    ):
        yield from _row(group, "max", sizes, "2/2", origin=f"VGG-16, pool {stage}")
    for stage, sizes in enumerate(("32x64x55x55", "32x192x27x27", "32x256x13x13"), 1):
        yield from _row(group, "max", sizes, "3/2", origin=f"AlexNet, pool {stage}")
    for window in (5, 9, 13):
        yield from _row(
            group, "max", "8x256x20x20", f"{window}/1", window // 2, origin="SPPF and SPP, YOLO"
        )
    for window in (60, 30, 20, 10):
        yield from _row(group, "average", "2x512x60x60", str(window), origin="PSPNet's pyramid")
    yield from _row(group, "average", "32x2048x7x7", "7/1", origin="ResNet-50, global")
    yield from _row(group, "average", "8x192x35x35", "3/1", 1, origin="Inception v3, branch")
    yield from _row(group, "average", "8x256x56x56", "2/2", origin="DenseNet, transition")
    yield from _row(group, "max average", "16x128x16000", "4/4", origin="waveforms")
    series = [
        *_row(group, "max average", "64x128x128", "3/2", 1, origin="sensor series"),
        *_row(group, "max average", "64x128x64", "2/2", origin="sensor series"),
        *_row(group, "average", "64x64x64", "8/8", origin="sensor series"),
    ]
    for row in series:
        yield row
        yield replace(row, mode="training")
    yield from _row(group, "max", "4x64x8x56x56", "3/2", 1, origin="video, ResNet 3-D stem")
    yield from _row(
        group, "max", "4x64x16x112x112", "1x3x3/1x2x2", "0x1x1", origin="video, I3D pool"
    )
    yield from _row(group, "max", "4x192x8x28x28", "3/1", 1, origin="video, I3D branch")
    yield from _row(
        group, "max average", "1x32x96x96x96", "2/2", origin="medical volumes, U-Net 3-D"
    )
    yield from _row(group, "average", "32x96x56x56", "56", origin="squeeze-and-excitation, global")
    (stem,) = _row(group, "max", "32x64x112x112", "3/2", 1, origin="ResNet-50, stem")
    (sppf,) = _row(group, "max", "8x256x20x20", "5/1", 2, origin="SPPF and SPP, YOLO")
    (head,) = _row(group, "average", "32x2048x7x7", "7/1", origin="ResNet-50, global")
    (transition,) = _row(group, "average", "8x256x56x56", "2/2", origin="DenseNet, transition")
    (volume,) = _row(group, "max", "1x32x96x96x96", "2/2", origin="medical volumes, U-Net 3-D")
    waveforms = _row(group, "max average", "16x128x16000", "4/4", origin="waveforms")
    yield stem
    for row in (stem, sppf, head, transition, volume, *waveforms):
        yield replace(row, mode="training")
    for row in (stem, sppf, head, volume):
        yield replace(row, channels_last=True)


def _published() -> Iterator[Workload]:
    """Each geometry in float32 and in the type for which times are published."""
    half, brain, group = "float16", "bfloat16", "published"
    rows = [
        (half, _row(group, "max", "32x64x112x112", "3/2", 1)),
        (half, _row(group, "max", "16x128x56x56", "2/2")),
        (half, _row(group, "max", "32x64x55x55", "3/2", ceil=True)),
        (half, _row(group, "max", "32x80x4096", "3/3")),
        (half, _row(group, "max", "64x256x128", "128/1")),
        (brain, _row(group, "max", "16x128x2048", "5/2", 2, dilation=2, ceil=True)),
        (half, _row(group, "max", "8x64x16x112x112", "1x2x2")),
        (half, _row(group, "max", "4x128x16x56x56", "2/2")),
        (brain, _row(group, "max", "2x64x32x112x112", "3/2", 1, ceil=True)),
        (half, _row(group, "average", "2x64x112x112", "3/2", 1)),
        (half, _row(group, "average", "2x128x56x56", "5/2", 2)),
        (
            brain,
            _row(group, "average", "3x96x55x57", "3x5/2", "1x2", ceil=True, include_padding=False),
        ),
        (half, _row(group, "average", "4x128x4096", "3/2", 1)),
        (half, _row(group, "average", "2x256x32000", "5/4", 2)),
        (brain, _row(group, "average", "2x128x2048", "4/2", 1, ceil=True, include_padding=False)),
        (half, _row(group, "average", "1x32x16x56x56", "2/2")),
        (
            half,
            _row(group, "average", "2x64x8x28x28", "2x3x3/2", 1, ceil=True, include_padding=False),
        ),
        (brain, _row(group, "average", "2x24x10x20x22", "2x2x3/2", "0x1x1")),
    ]
    for dtype, (row,) in rows:
        yield row
        yield replace(row, dtype=dtype)


def _types() -> Iterator[Workload]:
    rows = [
        *_row("types", "max average", "8x64x112x112", "3/2", 1),
        *_row("types", "max average", "8x256x56x56", "2/2"),
    ]
    for row in rows:
        for dtype in ("float64", "float16", "bfloat16"):
            yield replace(row, dtype=dtype)
        if row.family == "max":
            for dtype in ("int8", "uint8", "int16", "int32", "int64"):
                yield replace(row, dtype=dtype)
    for row in rows[:2]:
        for dtype in ("float16", "bfloat16"):
            yield replace(row, dtype=dtype, mode="training")
            yield replace(row, dtype=dtype, channels_last=True)
    yield replace(rows[0], dtype="int8", channels_last=True)


def _quantized() -> Iterator[Workload]:
    rows = [
        *_row("quantized", "average", "8x256x56x56", "2/2"),
        *_row("quantized", "average", "8x64x112x112", "3/2", 1),
        *_row("quantized", "average", "8x64x56x56", "7/1", 3),
        *_row("quantized", "average", "8x64x56x56", "7/7"),
        *_row("quantized", "average", "8x2048x7x7", "7/1", origin="ResNet-50, global"),
    ]
    for row in rows:
        yield replace(row, dtype="uint8", mode="quantized")
    yield replace(rows[0], dtype="int8", mode="quantized")
    for row in rows[:2]:
        yield replace(row, dtype="uint8", mode="quantized", channels_last=True)
        yield replace(row, dtype="uint8", mode="quantized", per_channel=True)


def _batches() -> Iterator[Workload]:
    for batch in (1, 4, 16, 64, 256):
        yield from _row("batches", "max average", f"{batch}x64x56x56", "3/2", 1)


def _extremes() -> Iterator[Workload]:
    group = "extremes"
    rows = [
        *_row(group, "max average", "4x8x256x256", "32/32"),
        *_row(group, "max average", "4x8x256x256", "64/64"),
        *_row(group, "max average", "8x16x16000", "400/160", origin="spectral frames"),
        *_row(group, "max average", "8x16x16000", "1000/500"),
        *_row(group, "max", "32x128x200", "200", origin="text CNN, global"),
        *_row(group, "max", "8x128x1000", "1000"),
        *_row(group, "max", "8x1024x2048", "2048", origin="PointNet, global"),
        *_row(group, "max average", "2x32x112x112", "112", origin="global"),
        *_row(group, "average", "2x96x14x14", "14", origin="EfficientNet, squeeze-and-excitation"),
    ]
    for row in rows:
        for mode in ("forward", "training", *(("indices",) if row.family == "max" else ())):
            for channels_last in (False, True)[: row.rank]:
                yield replace(row, mode=mode, channels_last=channels_last)


def _large() -> Iterator[Workload]:
    """As many bytes in every type: 98 MiB, and 24 or more for the window of 31."""
    batches = {"float32": 32, "float16": 64, "bfloat16": 64, "int8": 128}
    for window, pad in (("2/2", 0), ("3/2", 1), ("3/1", 1), ("5/1", 2), ("7/1", 3), ("31/1", 15)):
        for dtype, batch in batches.items():
            size = f"{batch // 4 if pad == 15 else batch}x64x112x112"
            for row in _row("large", "max average", size, window, pad):
                for channels_last in (False, True):
                    one = replace(row, dtype=dtype, channels_last=channels_last)
                    if dtype == "int8" and row.family == "average":
                        one = replace(one, dtype="uint8", mode="quantized")
                    yield one
                    if row.family == "max" and pad < 15:
                        yield replace(one, mode="indices")
                    if dtype != "int8" and pad < 15:
                        yield replace(one, mode="training")


def _table() -> tuple[Workload, ...]:
    """Every row once, in order; a row that several groups name belongs to all of them."""
    rows: dict[str, Workload] = {}
    for build in (
        _core,
        _overhead,
        _networks,
        _published,
        _types,
        _quantized,
        _batches,
        _extremes,
        _large,
    ):
        for row in build():
            known = rows.get(row.name, row)
            groups = tuple(dict.fromkeys([*known.groups, *row.groups]))
            rows[row.name] = replace(known, groups=groups, origin=known.origin or row.origin)
    return tuple(rows.values())


WORKLOADS = _table()


def select(wanted: str) -> list[Workload]:
    """The rows that a comma-separated list names: ``all``, groups, or text that a row's name or
    origin contains.

    Rows of the group ``large`` alone have to be asked for by its name.

    Raises:
        ValueError: An entry that names nothing.
    """
    found: set[str] = set()
    for entry in filter(None, (part.strip() for part in wanted.split(","))):
        text = entry.casefold()
        if text in GROUPS:
            rows = [row for row in WORKLOADS if text in row.groups]
        else:
            rows = [row for row in WORKLOADS if row.groups != ("large",)]
            if text != "all":
                rows = [row for row in rows if text in f"{row.name} {row.origin}".casefold()]
        if not rows:
            raise ValueError(f"no row is named {entry!r}; groups are all, {', '.join(GROUPS)}")
        found |= {row.name for row in rows}
    if not found:
        raise ValueError(f"no rows are named; groups are all, {', '.join(GROUPS)}")
    return [row for row in WORKLOADS if row.name in found]
