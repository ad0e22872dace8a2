"""What the benchmarks share: the table of rows, conditions, results on disk, Markdown tables, calls
in turn."""

import argparse
import datetime
import functools
import itertools
import json
import math
import re
import statistics
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import timing
from torch_dmlpool.backends import library
from torch_dmlpool.bench.conditions import processor, version_of
from torch_dmlpool.tensors import TensorFunction, Tensors, in_format
from torch_dmlpool.timing import Call, Times
from torch_dmlpool.window import Function, Named, Window
from torch_dmlpool.window import Ints as Sizes

ROOT = Path(__file__).parent.parent
Calls = dict[str, Call]
RESULTS = Path(__file__).parent / "results"
OURS, ATEN, COPY = "ours", "ATen", "copy"
HOST, HOST_OF_ATEN, T_OF_INDUCTOR = "host", "host of ATen", "Inductor"
"""On a GPU, of a call to the operators: what the host takes."""
SMALL_SECONDS = 50e-6
"""Where ATen takes less, a row is about the cost of a call: it has a difference, not a ratio."""


MODES = {
    "forward": "",
    "indices": "with indices",
    "recorded": "recording the graph",
    "training": "forward + backward",
    "quantized": "quantized",
    "unpooled": "unpooled",
    "sets": "sets of rows",
}
"""What is timed: the values; those and the indices of maxima; autograd's book-keeping without a
backward pass; both passes; averages of integers that stand for real numbers. Maxima that are
written where they were, and sets of rows, are only checked on a GPU."""
WAYS = dict(zip("FIRTQUS", MODES, strict=True))
APART = {"models", "filters", "windows", "halves", "peers", "lowered", "kernelbench", "prepared"}
APART |= {"smoke", "smoke_types"}
"""Groups that are measured when they are asked for."""
TABLE = Path(__file__).with_name("rows.txt")
PUBLISHED = {
    "max 64x192x65536 window 8/1 pad 4 dilation 3": (10.7, 2.85),
    "max 32x64x512x512 window 4/1 pad 1": (10.8, 4.33),
    "max 16x32x128x128x128 window 3/2 pad 1 dilation 3": (3.93, 5.65),
    "avg 64x128x65536 window 8/1 pad 4": (5.47, 3.13),
    "avg 16x64x2048x2048 window 11/11": (6.40, 6.34),
    "avg 16x32x128x128x256 window 3/2 pad 1": (8.69, 8.70),
}
"""KernelBench's pooling problems, with the milliseconds of PyTorch and of torch.compile that it
publishes for an H100."""


@dataclass(frozen=True)
class Workload:
    """One row of the table, with one entry per spatial dimension in its window arguments."""

    family: str  # max, average or adaptive average
    sizes: Sizes
    window: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    ceil_mode: bool = False
    include_padding: bool = True
    dtype: str = "float32"
    channels_last: bool = False
    mode: str = "forward"
    mask: str = ""  # for each sample or element
    outputs: Sizes = ()  # of adaptive pools
    groups: tuple[str, ...] = field(default=(), compare=False)

    @property
    def rank(self) -> int:
        return len(self.window)

    @property
    def pool(self) -> str:
        """``max 8x64x112x112 window 3/2 pad 1``, then options and the type if not float32."""
        parts = [self.family, "x".join(map(str, self.sizes))]
        if self.outputs:
            parts.append(f"to {short(self.outputs)}")
        else:
            parts.append(f"window {short(self.window)}/{short(self.stride)}")
            parts += [f"pad {short(self.padding)}"] * any(self.padding)
            parts += [f"dilation {short(self.dilation)}"] * (max(self.dilation) > 1)
        parts += ["ceil"] * self.ceil_mode + ["padding not counted"] * (not self.include_padding)
        return " ".join(parts + [self.dtype] * (self.dtype != "float32"))

    @property
    def name(self) -> str:
        parts = [self.pool, *["channels_last"] * self.channels_last, MODES[self.mode]]
        return " ".join(filter(None, [*parts, self.mask and f"mask of each {self.mask}"]))

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def geometry(self) -> Window:
        sizes = self.window, self.stride, self.padding, self.dilation
        return Window.pytorch(self.rank, *sizes, self.ceil_mode)

    @property
    def output_sizes(self) -> Sizes:
        return (*self.sizes[:2], *(self.outputs or self.geometry.output_sizes(self.sizes[2:])))

    @property
    def mask_sizes(self) -> Sizes:
        return (self.sizes[0], self.sizes[1] if self.mask == "element" else 1, *self.sizes[2:])

    @property
    def layout(self) -> str:
        return "channels_last" if self.channels_last else "contiguous"

    @property
    def kind(self) -> str:
        """What rows must share for a common mean."""
        return f"{MODES[self.mode] or 'forward'}, {self.layout}, {self.dtype}"

    @property
    def bytes_moved(self) -> int:
        """What no implementation can avoid: each input read once, each result written once."""
        written = self.torch_dtype.itemsize + 8 * (self.mode == "indices")
        read = math.prod(self.sizes) * self.torch_dtype.itemsize
        return (read + math.prod(self.output_sizes) * written) * (1 + (self.mode == "training"))

    def pool_of(self, functions) -> TensorFunction:
        """A call of ``torch.nn.functional`` or of this package's functions of the same names."""
        how = {"kernel_size": self.window, "stride": self.stride}
        how |= {"padding": self.padding, "ceil_mode": self.ceil_mode}
        if self.outputs:
            how = {"output_size": self.outputs}
        elif self.family == "average":
            how["count_include_pad"] = self.include_padding
        else:
            how |= {"dilation": self.dilation, "return_indices": self.mode == "indices"}
        name = self.family.replace("average", "avg").replace(" ", "_")
        return functools.partial(getattr(functions, f"{name}_pool{self.rank}d"), **how)

    def random(
        self, sizes: Sequence[int], device: str, generator: torch.Generator | None = None
    ) -> Tensor:
        """A tensor of this row's type and layout: normal numbers, or the whole range of an integer
        type."""
        how = {"generator": generator, "device": device}
        if self.torch_dtype.is_floating_point:
            tensor = torch.randn(sizes, **how).to(self.torch_dtype)
        else:
            limits = torch.iinfo(self.torch_dtype)
            most = min(limits.max, 2**63 - 1)  # what randint takes
            tensor = torch.randint(limits.min, most, sizes, dtype=self.torch_dtype, **how)
        return in_format(tensor, self.channels_last)


def short(numbers: Sequence[int]) -> str:
    """One number where all are the same."""
    return "x".join(map(str, numbers[:1] if len(set(numbers)) == 1 else numbers))


LINE = re.compile(
    r"""(\S+)\ (\S+)\ (\S+)\ (to)?([\dx]+)(?:/([\dx]+))?  # group, families, sizes, window
    (?:\ p([\dx]+))?(?:\ d([\dx]+))?(\ ceil)?(\ uncounted)?(?:\ ([FIRTQUSfirtqu]+))?  # ways
    (?:\ ((?:u?int|b?float)[\w,]+))?(?:\ ((?:sample|element)[a-z,]*))?(\ \#.*)?""",
    re.VERBOSE,
)


def parsed(line: str) -> Iterator[Workload]:
    """The rows of a line of the table."""
    found = LINE.fullmatch(line)
    if found is None:
        raise ValueError(f"rows.txt: {line}")
    group, families, sizes, to, size, step, padding, dilation, *options = found.groups()
    ceil, uncounted, ways, types, masks, _ = options
    shape = tuple(map(int, sizes.split("x")))

    def numbers(text):
        found = tuple(map(int, text.split("x")))
        return found * (len(shape) - 2) if len(found) == 1 else found

    geometry = tuple(map(numbers, (size, step or size, padding or "0", dilation or "1")))
    how = (shape, *geometry, bool(ceil), not uncounted)
    kinds = families, types or "float32", masks or ""
    for *kind, way in itertools.product(*(each.split(",") for each in kinds), ways or "F"):
        family, dtype, mask = kind
        if way.upper() != "I" or family == "max":
            last = dtype, way.islower(), WAYS[way.upper()], mask, geometry[0] if to else ()
            yield Workload(f"adaptive {family}" if to else family, *how, *last, groups=(group,))


def _table():
    """Every row once; a row that several groups name belongs to all of them."""
    rows = {}
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    for row in itertools.chain.from_iterable(map(parsed, lines)):
        known = rows.get(row.name, row)
        rows[row.name] = replace(known, groups=tuple(dict.fromkeys([*known.groups, *row.groups])))
    return tuple(rows.values())


WORKLOADS = _table()
GROUPS = list(dict.fromkeys(group for row in WORKLOADS for group in row.groups))


def select(wanted: str) -> list[Workload]:
    """The rows that a comma-separated list names: ``all``, groups, or text of a name."""
    found = set()
    for text in (entry.strip().casefold() for entry in wanted.split(",")):
        usual = [row for row in WORKLOADS if not APART.issuperset(row.groups)]
        named = [row for row in usual if text in row.name.casefold()]
        grouped = [row for row in WORKLOADS if text in row.groups]
        rows = usual if text == "all" else grouped or (named if text else [])
        if not rows:
            raise SystemExit(f"no row is named {text!r}; groups are all, {', '.join(GROUPS)}")
        found.update(rows)
    return [row for row in WORKLOADS if row in found]


Task = tuple[str, Callable[[], Named]]
"""A row's name, and what finds the rest of it."""
Measured = tuple[list[Named], int]


class Disagreement(Exception):  # noqa: N818 - a finding about a result
    """A contestant's result differs from the reference's."""


def conditions(device: str = "cpu", packages: Iterable[str] = (), **more) -> Named:
    """What figures depend on. Nothing names the machine."""
    capability = torch.backends.cpu.get_cpu_capability()
    machine = {"processor": processor(), "cpu_capability": capability}
    if device != "cpu":
        machine["gpu"] = torch.cuda.get_device_name(device)
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "device": device,
        "threads": torch.get_num_threads(),
        "compiler": compiler(),
        "load": timing.load(),
        "versions": {"torch_dmlpool": dmlpool.__version__, "torch": str(torch.__version__)}
        | {name: version_of(name) for name in packages},
        **more,
    }


def compiler() -> str:
    """What has compiled the kernels of the CPU, by what it has written into the library."""
    path = getattr(library.library, "_name", None)
    found = path and re.search(rb"(GCC|clang)[^\0]*? ([\d.]+)\0", Path(path).read_bytes())
    return b" ".join(found.groups()).decode() if found else "no compiler"


def sentence(known: Named) -> str:
    """Where, with which versions and when, for the line below a table."""
    machine = known["machine"]
    place = machine.get("gpu") or f"{machine['processor']}, {machine['cpu_capability']}"
    threads = known.get("threads")
    names = {"torch": "PyTorch", "onnxruntime": "ONNX Runtime"}
    versions = [f"{names.get(name, name)} {what}" for name, what in known["versions"].items()]
    parts = [place, *([count(threads, "thread")] if threads else []), ", ".join(versions)]
    parts += [f"kernels by {known['compiler']}"] if "compiler" in known else []
    parts += filter(None, [known.get("load")])
    return "; ".join([*parts, re.sub(r"T\S+", "", known["date"])])


def in_turn(calls: Calls, seconds: float, device: str = "cpu", least: int = 5) -> dict[str, Times]:
    """Times of calls that take turns: processor time where one thread computes, which other
    processes disturb less, else time by the clock.
    """
    is_alone = device == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if is_alone else time.perf_counter
    return timing.in_turn(calls, torch.device(device), seconds, least, clock)


def parser(name: str, about: str | None, seconds: float, words: str) -> argparse.ArgumentParser:
    """What commands that measure rows have in common."""
    found = argparse.ArgumentParser(prog=f"python -m benchmarks {name}", description=about)
    found.add_argument("words", nargs="?", default="", help=words)
    found.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    found.add_argument("--row-seconds", type=float, default=seconds)
    found.add_argument("--list", action="store_true", help="print the rows' names alone")
    found.add_argument("--out", type=Path, help="written after each row, as a run takes long")
    return found


def run(options: argparse.Namespace, tasks: list[Task], known: Named) -> Measured:
    """What such a command does then."""
    if not tasks:
        raise SystemExit(f"no row's name has all of these words: {options.words}")
    if options.list:
        print("\n".join(name for name, _ in tasks))
        return [], 0
    return measured(tasks, known | {"row_seconds": options.row_seconds}, options.out)


def measured(
    tasks: Iterable[Task], known: Named, out: Path | None, end: float = math.inf
) -> Measured:
    """The rows that tasks find, each printed and saved at once, and 1 if one has failed or was not
    begun by ``end``, a time of ``time.monotonic``."""
    rows = []
    failed = {}
    for name, task in tasks:
        try:
            if time.monotonic() > end:
                raise TimeoutError("not begun")
            rows.append({"name": name, **task()})
        except Exception as reason:  # a row that fails hides no other
            failed[name] = f"{type(reason).__name__}: {reason}"
            print(f"WRONG {name}: {failed[name]}", flush=True)
        else:
            print(line(rows[-1]), flush=True)
        if out is not None:
            save(out, {"conditions": known, "rows": rows, "failed": failed})
    print(f"{len(rows)} rows, {len(failed)} failed or not begun", flush=True)
    return rows, int(bool(failed))


def line(row: Named) -> str:
    """What everybody took, and how many times as long as ours that is."""
    seconds = {
        who: getattr(taken, "median", taken) for who, taken in row.get("seconds", {}).items()
    }
    parts = [
        f"{who} {each * 1e6:.1f} us ({times(each / seconds[OURS])})"
        for who, each in seconds.items()
    ]
    parts += [f"{who} {why}" for who, why in row.get("skipped", {}).items()]
    return f"{row['name']:66} {', '.join(parts)}"


def compiled(function: Function, **how) -> Function:
    """torch.compile's function of static shapes. Its code is its own, so that what was compiled of
    the same function before is not looked up in its place."""

    def call(*inputs):
        return function(*inputs)

    own = types.FunctionType(call.__code__.replace(), globals(), closure=call.__closure__)
    return torch.compile(own, dynamic=False, **how)


def several(results) -> Tensors:
    """One result or several, as a tuple."""
    return results if isinstance(results, tuple) else (results,)


def rotating(calls: Sequence[Call]) -> Call:
    """A call of each in turn, so that no input stays in the nearest cache."""
    if len(calls) == 1:
        return calls[0]
    following = itertools.cycle(calls).__next__
    return lambda: following()()


def save(path: Path, data: Named):
    """JSON with a line for each entry of a list."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data).replace("}, {", "},\n{") + "\n", encoding="utf-8")


def load(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))


def table(head: Sequence[object], lines: Iterable[Sequence[object]], words: int = 1) -> str:
    """A Markdown table, whose columns after the first ``words`` are numbers."""
    ruler = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (head, ruler, *lines))


def times(ratio: float) -> str:
    """A ratio in three digits, such as ``12.3x``."""
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.3g}x" if ratio >= 10 else f"{ratio:.2f}x"


def count(number: int, one: str) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{number} {one}{'s' * (number != 1)}"


mean = statistics.geometric_mean
