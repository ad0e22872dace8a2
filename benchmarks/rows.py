"""Single pooling calls beside their peers: ``python -m benchmarks rows``.

rows.txt has every row. A row's contestants are first compared: maxima, indices and quantized
averages must be equal, other results equal except for rounding. Then their calls take turns.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import torch_dmlpool as dmlpool
from benchmarks import common
from benchmarks.common import SMALL_SECONDS, Disagreement
from torch_dmlpool.timing import Call, Times
from torch_dmlpool.window import Window

OURS, COPY, ATEN, PLAIN, INDUCTOR = "ours", "copy", "ATen", "without a mask", "torch.compile"
MODES = {
    "forward": "",
    "indices": "with indices",
    "recorded": "recording the graph",
    "training": "forward + backward",
    "quantized": "quantized",
}
"""What is timed: the values; those and the indices of maxima; autograd's book-keeping without a
backward pass; both passes; averages of integers that stand for real numbers."""
WAYS = {"F": "forward", "T": "training", "I": "indices", "R": "recorded", "Q": "quantized"}
GROUPS = {
    "core": "max and average pools, layouts, ranks and gradients",
    "overhead": "tiny tensors: what a call costs",
    "networks": "pools of well-known networks, in one to three spatial dimensions",
    "published": "geometries for which other kernel libraries publish times",
    "types": "data types beside float32",
    "quantized": "averages of 8-bit integers with scales and zero points",
    "batches": "one pool over batches of 1 to 256",
    "extremes": "windows that tile an image, long rows, one window over everything",
    "masks": "pools under a mask, half of it True",
    "large": "windows of 2 to 31 over tensors that no cache of a GPU holds; in no other list",
}
TABLE = Path(__file__).with_suffix(".txt")
COLUMNS = "seconds", "skipped", "kept"


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
    mask: str = ""  # for each sample or element
    groups: tuple[str, ...] = field(default=(), compare=False)
    origin: str = field(default="", compare=False)  # where this pool is met

    @property
    def rank(self) -> int:
        return len(self.window)

    @property
    def pool(self) -> str:
        """``max 8x64x112x112 window 3/2 pad 1``, then options and the type if not float32."""
        parts = [self.family, "x".join(map(str, self.sizes))]
        parts.append(f"window {_short(self.window)}/{_short(self.stride)}")
        parts += [f"pad {_short(self.padding)}"] * any(self.padding)
        parts += [f"dilation {_short(self.dilation)}"] * (max(self.dilation) > 1)
        parts += ["ceil"] * self.ceil_mode + ["padding not counted"] * (not self.include_padding)
        return " ".join(parts + [self.dtype] * (self.dtype != "float32"))

    @property
    def name(self) -> str:
        parts = [self.pool, *["channels_last"] * self.channels_last, MODES[self.mode]]
        return " ".join(filter(None, [*parts, self.mask and f"mask of each {self.mask}"]))

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @functools.cached_property
    def geometry(self) -> Window:
        arguments = (self.rank, self.window, self.stride, self.padding, self.dilation)
        return Window.pytorch(*arguments, self.ceil_mode)

    @property
    def output_sizes(self) -> tuple[int, ...]:
        return (*self.sizes[:2], *self.geometry.output_sizes(self.sizes[2:]))

    @property
    def bytes_read(self) -> int:
        return math.prod(self.sizes) * self.torch_dtype.itemsize

    @property
    def memory_format(self) -> torch.memory_format:
        if not self.channels_last:
            return torch.contiguous_format
        return torch.channels_last if self.rank == 2 else torch.channels_last_3d

    @property
    def kind(self) -> str:
        """What rows must share for a common mean."""
        layout = "channels_last" if self.channels_last else "contiguous"
        return f"{MODES[self.mode] or 'forward'}, {layout}, {self.dtype}"

    @property
    def bytes_moved(self) -> int:
        """What no implementation can avoid: each input read once, each result written once."""
        written = self.torch_dtype.itemsize + 8 * (self.mode == "indices")
        moved = self.bytes_read + math.prod(self.output_sizes) * written
        return moved * (1 + (self.mode == "training"))

    @property
    def arguments(self) -> dict[str, Any]:
        """As PyTorch's pools take them."""
        names = {"kernel_size": self.window, "stride": self.stride, "padding": self.padding}
        if self.family == "max":
            return {**names, "dilation": self.dilation, "ceil_mode": self.ceil_mode}
        return {**names, "ceil_mode": self.ceil_mode, "count_include_pad": self.include_padding}

    def random(self, sizes: Sequence[int], generator: torch.Generator) -> Tensor:
        """A tensor of this row's type and layout: normal numbers, or the whole range of an integer
        type."""
        how: dict[str, Any] = {"generator": generator, "device": generator.device}
        if self.torch_dtype.is_floating_point:
            tensor = torch.randn(sizes, **how).to(self.torch_dtype)
        else:
            limits = torch.iinfo(self.torch_dtype)
            tensor = torch.randint(limits.min, limits.max, sizes, dtype=self.torch_dtype, **how)
        return tensor.contiguous(memory_format=self.memory_format)


def _short(numbers: Sequence[int]) -> str:
    """One number where all are the same."""
    return str(numbers[0]) if len(set(numbers)) == 1 else "x".join(map(str, numbers))


def _rows(line: str) -> Iterator[Workload]:
    """The rows of a line of the table."""
    text, _, origin = line.partition(" # ")
    group, families, sizes, window, *options = text.split()
    shape = tuple(map(int, sizes.split("x")))
    rank = len(shape) - 2

    def entries(numbers: str) -> tuple[int, ...]:
        found = tuple(map(int, numbers.split("x")))
        return found * rank if len(found) == 1 else found

    def option(letter: str, usual: str) -> tuple[int, ...]:
        matching = (one[1:] for one in options if one[0] == letter and one[1].isdigit())
        return entries(next(matching, usual))

    ways = next((one for one in options if set(one) <= set("FTIRQftiq")), "F")
    words = [one.split(",") for one in options]
    types = next((one for one in words if "int" in one[0] or "float" in one[0]), ["float32"])
    masks = next((one for one in words if one[0] == "sample"), [""])
    size, _, step = window.partition("/")
    numbers = entries(size), entries(step or size), option("p", "0"), option("d", "1")
    flags = "ceil" in options, "uncounted" not in options
    for family, dtype, mask, way in itertools.product(families.split(","), types, masks, ways):
        mode = WAYS[way.upper()]
        if mode != "indices" or family == "max":
            how = (*flags, dtype, way.islower(), mode, mask)
            yield Workload(family, shape, *numbers, *how, (group,), origin)


def _table() -> tuple[Workload, ...]:
    """Every row once; a row that several groups name belongs to all of them."""
    rows: dict[str, Workload] = {}
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    for row in itertools.chain.from_iterable(map(_rows, lines)):
        known = rows.get(row.name, row)
        groups = tuple(dict.fromkeys([*known.groups, *row.groups]))
        rows[row.name] = replace(known, groups=groups, origin=known.origin or row.origin)
    return tuple(rows.values())


WORKLOADS = _table()


def select(wanted: str) -> list[Workload]:
    """The rows that a comma-separated list names: ``all``, groups, or text of a name or origin.

    Raises:
        ValueError: An entry names nothing.
    """
    found: set[Workload] = set()
    for text in (entry.strip().casefold() for entry in wanted.split(",")):
        usual = [row for row in WORKLOADS if row.groups != ("large",)]
        named = [row for row in usual if text in f"{row.name} {row.origin}".casefold()]
        grouped = [row for row in WORKLOADS if text in row.groups]
        rows = usual if text == "all" else grouped or (named if text else [])
        if not rows:
            raise ValueError(f"no row is named {text!r}; groups are all, {', '.join(GROUPS)}")
        found.update(rows)
    return [row for row in WORKLOADS if row in found]


SCALE, ZERO_POINTS = 2.0**-5, {"uint8": 128, "int8": -4}
"""Scales are powers of two and zero points even, so that real numbers represent every average:
results must be equal, bit for bit."""
Pool = Callable[[Tensor], Any]


class Absent(Exception):  # noqa: N818 - a peer that takes no part, and why
    """A peer is not installed, or cannot do what a row asks."""


@dataclass(frozen=True)
class Problem:
    """A row with inputs to rotate through, and in training a gradient for each."""

    row: Workload
    inputs: list[Tensor]
    gradients: list[Tensor]
    mask: Tensor | None


def problem(row: Workload, device: str, seed: int = 0) -> Problem:
    """Fresh tensors for a row; the same seed gives the same ones."""
    generator = torch.Generator(device).manual_seed(seed)
    needed = math.prod(row.sizes) * row.torch_dtype.itemsize
    number = 1 if "overhead" in row.groups else max(1, min(3, 2**30 // needed))
    inputs = [row.random(row.sizes, generator) for _ in range(number)]
    gradients = [row.random(row.output_sizes, generator) for _ in inputs]
    if row.mode == "quantized":
        with warnings.catch_warnings():  # these types are deprecated, and measured while they exist
            warnings.simplefilter("ignore", UserWarning)
            pack = torch._make_per_tensor_quantized_tensor
            packed = [pack(input, SCALE, ZERO_POINTS[row.dtype]) for input in inputs]
        inputs = [each.contiguous(memory_format=row.memory_format) for each in packed]
    mask = None
    if row.mask:
        of_channels = row.sizes[1] if row.mask == "element" else 1
        sizes = (row.sizes[0], of_channels, *row.sizes[2:])
        mask = torch.rand(sizes, generator=generator, device=device) < 0.5
    return Problem(row, inputs, gradients if row.mode == "training" else [], mask)


def ours(problem: Problem) -> Pool:
    """Our operator as a user calls it; indices as PyTorch counts them."""
    row = problem.row
    if row.mode == "indices":
        pool = getattr(dmlpool.nn.functional, f"max_pool{row.rank}d")
        return functools.partial(pool, **row.arguments, return_indices=True)
    how: dict[str, Any] = {"window_size": row.window, "strides": row.stride}
    how |= {"start_padding": row.padding, "end_padding": row.padding, "ceil_mode": row.ceil_mode}
    if row.family == "average":
        how["include_padding"] = row.include_padding
    if row.mode == "quantized":
        return functools.partial(dmlpool.quantized_average_pooling, **how)
    pool = {"max": dmlpool.max_pooling, "average": dmlpool.average_pooling}[row.family]
    how["dilations"] = row.dilation
    return functools.partial(pool, **how, mask=problem.mask)


def aten(problem: Problem) -> Pool:
    """PyTorch's own operations. Where its pools do not know the type or the mask, what a program
    does then: it converts, pools and converts back, or fills and counts."""
    row, mask = problem.row, problem.mask
    if row.mode == "indices":
        pool = getattr(functional, f"max_pool{row.rank}d_with_indices")
    elif row.family == "max":
        pool = getattr(torch, f"max_pool{row.rank}d")
    else:
        pool = getattr(functional, f"avg_pool{row.rank}d")
    arguments = tuple(row.arguments.values())
    if mask is not None and row.family == "max":
        return lambda x: pool(torch.where(mask, x, -math.inf), *arguments)
    if mask is not None:
        sums = functools.partial(pool, **{**row.arguments, "divisor_override": 1})
        return lambda x: sums(torch.where(mask, x, 0)) / sums(mask.to(x.dtype)).clamp(min=1)
    if row.family == "average" and row.rank == 3 and row.torch_dtype.itemsize == 2:
        return lambda x: pool(x.float(), *arguments).to(x.dtype)
    return lambda x: pool(x, *arguments)


def train(pool: Pool, input: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The forward and the backward pass that training rows time."""
    values = pool(input)
    return values, torch.autograd.grad(values, input, gradient)[0]


def bound(pool: Pool, problem: Problem) -> list[Call]:
    """Calls of a pool on each input, in the row's mode."""
    if problem.row.mode == "training":
        pairs = zip(problem.inputs, problem.gradients, strict=True)
        return [functools.partial(train, pool, x.detach().requires_grad_(), g) for x, g in pairs]
    leaves = problem.inputs
    if problem.row.mode == "recorded":
        leaves = [input.detach().requires_grad_() for input in problem.inputs]
    return [functools.partial(pool, input) for input in leaves]


def _copies(problem: Problem) -> list[Call]:
    """A copy to memory that is there already: as fast as bytes move."""
    destination = torch.empty_like(problem.inputs[0])
    return [functools.partial(destination.copy_, input) for input in problem.inputs]


def _compiled(problem: Problem) -> list[Call]:
    """Static shapes and one graph per row: the best that Inductor makes of ATen's operator."""
    torch.compiler.reset()
    return bound(torch.compile(aten(problem), fullgraph=True, dynamic=False), problem)


def _plain(problem: Problem) -> list[Call]:
    if problem.mask is None:
        raise Absent("in rows with a mask alone")
    return bound(ours(replace(problem, mask=None)), problem)


def _onnx_runtime(problem: Problem) -> list[Call]:
    """A session on a one-node model, its input bound beforehand."""
    row = problem.row
    if row.mode in ("training", "recorded") or row.mask:
        raise Absent("inference alone, without masks")
    if row.channels_last and row.mode != "quantized":
        raise Absent("takes N, C, … order alone")
    if row.dtype in ("bfloat16", "int64", "int32", "int16"):
        raise Absent(f"no {row.dtype}, or none from NumPy")
    try:
        runtime, model = importlib.import_module("onnxruntime"), onnx_model(row)
    except ImportError as reason:
        raise Absent(f"not installed: {reason}") from None
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    # Its threads would go on spinning into the next contestant's time, on the same cores.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    calls: list[Call] = []
    for input in problem.inputs:
        dense = input.int_repr() if input.is_quantized else input
        array = dense.movedim(1, -1).numpy() if row.channels_last else dense.numpy()
        binding = session.io_binding()
        binding.bind_ortvalue_input("input", runtime.OrtValue.ortvalue_from_numpy(array))
        for output in session.get_outputs():
            binding.bind_output(output.name, "cpu")
        calls.append(functools.partial(_run, session, binding))
    return calls


def _run(session: Any, binding: Any) -> Any:
    session.run_with_iobinding(binding)
    return binding


def onnx_model(row: Workload) -> bytes:
    """The row's operator: ONNX's own, or ONNX Runtime's QLinearAveragePool."""
    parser = importlib.import_module("onnx.parser")
    kind = {"float32": "float", "float64": "double"}.get(row.dtype, row.dtype)

    def tensor(name: str, kind: str, sizes: tuple[int, ...]) -> str:
        ordered = (sizes[0], *sizes[2:], sizes[1]) if row.channels_last else sizes
        return f"{kind}{list(ordered)} {name}"

    how: dict[str, Any] = {"kernel_shape": list(row.window), "strides": list(row.stride)}
    how |= {"pads": [*row.padding, *row.padding], "ceil_mode": int(row.ceil_mode)}
    if row.family == "average":
        how["count_include_pad"] = int(row.include_padding)
    name, inputs, constants = {"max": "MaxPool", "average": "AveragePool"}[row.family], "input", ""
    if row.mode == "quantized":
        name, how["channels_last"] = "com.microsoft.QLinearAveragePool", int(row.channels_last)
        inputs += "".join(f", {side}_{what}" for side in "xy" for what in ("scale", "zero"))
        zero = f"= {{{ZERO_POINTS[row.dtype]}}}"
        both = (f"float {s}_scale = {{{SCALE}}}, {kind} {s}_zero {zero}" for s in "xy")
        constants = f"<{', '.join(both)}>"
    else:
        how["dilations"] = list(row.dilation)
    outputs = {"values": kind} | ({"indices": "int64"} if row.mode == "indices" else {})
    results = ", ".join(tensor(name, of, row.output_sizes) for name, of in outputs.items())
    attributes = ", ".join(f"{key} = {value}" for key, value in how.items())
    text = f"""<ir_version: 10, opset_import: ["": 22, "com.microsoft": 1]>
        pooling ({tensor("input", kind, row.sizes)}) => ({results}) {constants}
        {{ {", ".join(outputs)} = {name} <{attributes}> ({inputs}) }}"""
    return parser.parse_model(text).SerializeToString()


PEERS: dict[str, Callable[[Problem], list[Call]]] = {
    ATEN: lambda problem: bound(aten(problem), problem),
    OURS: lambda problem: bound(ours(problem), problem),
    COPY: _copies,
    PLAIN: _plain,
    "ONNX Runtime": _onnx_runtime,
    INDUCTOR: _compiled,
}
"""The first that does a row is what the others must agree with."""
UNCOMPARED = COPY, PLAIN


def results(row: Workload, returned: Any) -> tuple[Tensor, ...]:
    """What a contestant returned, as tensors without scales."""
    if hasattr(returned, "copy_outputs_to_cpu"):  # of ONNX Runtime, whose indices count over all
        values, *indices = (torch.tensor(array) for array in returned.copy_outputs_to_cpu())
        values = values.movedim(-1, 1) if row.channels_last else values
        returned = (values, *(index % math.prod(row.sizes[2:]) for index in indices))
    listed = returned if isinstance(returned, tuple) else (returned,)
    return tuple((one.int_repr() if one.is_quantized else one).detach() for one in listed)


def compare(row: Workload, expected: Sequence[Tensor], found: Sequence[Tensor]) -> None:
    """Maxima, indices and quantized averages exactly; other averages and gradients within a few
    roundings: sums are grouped and rounded in different places."""
    for part, (wanted, got) in enumerate(zip(expected, found, strict=True)):
        is_gradient = row.mode == "training" and part == 1
        what = "gradients" if is_gradient else ("values", "indices")[part]
        if (wanted.shape, wanted.dtype) != (got.shape, got.dtype):
            raise Disagreement(f"{what} are {got.dtype} of {tuple(got.shape)}")
        is_exact = row.mode == "quantized" or (row.family == "max" and not is_gradient)
        roundings = 16 if row.torch_dtype.itemsize == 2 else max(64, math.prod(row.window))
        allowed = 0.0 if is_exact else roundings * torch.finfo(row.torch_dtype).eps
        if not torch.allclose(wanted, got, rtol=allowed, atol=allowed):
            error = (wanted.double() - got.double()).abs().max().item()
            raise Disagreement(f"{what} differ by up to {error:.3g}")


def contestants(
    problem: Problem, names: Sequence[str] = tuple(PEERS)
) -> tuple[dict[str, Call], dict[str, str]]:
    """Everybody's calls, tried once and compared; and who takes no part, and why.

    Raises:
        Disagreement: Our own result is not the reference's.
    """
    row, expected = problem.row, None
    calls: dict[str, Call] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            listed = PEERS[name](problem)
            found = results(row, listed[0]())
            if expected is None:
                expected = found
            elif name not in UNCOMPARED:
                compare(row, expected, found)
        except Absent as reason:
            skipped[name] = str(reason)
        except Exception as reason:
            if name == OURS:
                raise Disagreement(f"{row.name}: our {reason}") from reason
            is_wrong = isinstance(reason, Disagreement)
            first = str(reason).strip().partition("\n")[0][:160]
            skipped[name] = f"wrong: {first}" if is_wrong else f"failed: {first}"
        else:
            calls[name] = common.rotating(listed)
    return calls, skipped


@dataclass(frozen=True)
class Result:
    """What a row's contestants took, and the bytes that training kept."""

    row: Workload
    seconds: dict[str, Times]
    skipped: dict[str, str]
    kept: dict[str, int]

    @classmethod
    def of(cls, data: dict[str, Any]) -> Result | None:
        """A line of the file that :func:`main` writes; None where the table has no such row."""
        row = next((row for row in WORKLOADS if row.name == data["name"]), None)
        seconds = {name: Times(*taken) for name, taken in data["seconds"].items()}
        return row and cls(row, seconds, data["skipped"], data["kept"])

    @property
    def is_small(self) -> bool:
        """By the lower quartile, as a busy machine can stretch the shortest call."""
        reference = self.seconds.get(ATEN, self.seconds[OURS])
        return "overhead" in self.row.groups or reference.lower < SMALL_SECONDS

    def ratio(self, peer: str) -> float | None:
        """How many times as long as ours the peer takes."""
        if peer not in self.seconds:
            return None
        return self.seconds[peer].median / self.seconds[OURS].median

    @property
    def of_copy(self) -> float | None:
        """Our bytes a second over a copy's; of no use where a call costs more than its bytes."""
        ratio = None if self.is_small else self.ratio(COPY)
        return None if ratio is None else ratio * self.row.bytes_moved / (2 * self.row.bytes_read)

    def compared(self, peer: str) -> str:
        """The ratio; of tiny tensors by how many microseconds ours is longer."""
        ratio = self.ratio(peer)
        if ratio is None:
            return ""
        longer = (self.seconds[OURS].median - self.seconds[peer].median) * 1e6
        return f"{longer:+.1f} µs" if self.is_small else common.times(ratio)


def kept(pool: Pool, input: Tensor) -> int:
    """Bytes that a forward pass keeps for its backward beside its input and output."""
    storages: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    leaf = input.detach().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        values = pool(leaf)
    for each in (leaf, values):
        storages.pop(each.untyped_storage().data_ptr(), None)
    return sum(storages.values())


def measure(row: Workload, names: Sequence[str], device: str, seconds: float) -> Result:
    """One row of the table."""
    tensors = problem(row, device)
    calls, skipped = contestants(tensors, names)
    pools = {OURS: ours, ATEN: aten} if row.mode == "training" and not row.mask else {}
    bytes_kept = {name: kept(make(tensors), tensors.inputs[0]) for name, make in pools.items()}
    failed = {who: why for who, why in skipped.items() if why.startswith(("wrong", "failed"))}
    return Result(row, common.in_turn(calls, seconds, device), failed, bytes_kept)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks rows", description=__doc__)
    listed = "; ".join(f"{name}: {meaning}" for name, meaning in GROUPS.items())
    parser.add_argument("rows", nargs="?", default="all", help=f"groups or text of names. {listed}")
    parser.add_argument("--row-seconds", type=float, default=1.5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--compile", action="store_true", help="torch.compile too: seconds a row")
    parser.add_argument("--list", action="store_true", help="print the rows' names alone")
    parser.add_argument("--out", type=Path, help="written after each row; default: for all rows")
    options = parser.parse_args(arguments)
    try:
        chosen = select(options.rows)
    except ValueError as reason:
        parser.error(str(reason))
    if options.list:
        print("\n".join(row.name for row in chosen))
        return 0
    torch.set_num_threads(options.threads)
    names = [name for name in PEERS if name != INDUCTOR or options.compile]
    names = [name for name in names if name != "ONNX Runtime" or options.device == "cpu"]
    path = options.out
    if path is None and options.rows == "all":
        path = common.RESULTS / ("cpu.json" if options.device == "cpu" else "gpu_beside.json")
    packages = ["onnxruntime"] if "ONNX Runtime" in names else []
    known = common.conditions(options.device, packages, row_seconds=options.row_seconds)
    lines, wrong = [], 0
    for row in chosen:
        try:
            found = measure(row, names, options.device, options.row_seconds)
        except Disagreement as reason:
            wrong += 1
            print(f"WRONG RESULT: {reason}", flush=True)
            continue
        peers = [f"{one} {found.compared(one)}" for one in found.seconds if one not in (OURS, COPY)]
        taken = found.seconds[OURS].median * 1e6
        print(f"{row.name:66} {taken:9.1f} us, {', '.join(peers)}", flush=True)
        lines.append({"name": row.name} | {key: getattr(found, key) for key in COLUMNS})
        if path is not None:
            common.save(path, {"conditions": known, "rows": lines})
    return min(wrong, 1)
