"""Every launch of every operator is compiled for GPUs, though none is there.

The interpreter runs code that no GPU's compiler takes, and sees none of the launches that are for
GPUs alone.
"""

import contextlib
import importlib
import itertools
import math
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cases
import pytest
import samples
import torch
from torch import Tensor

pytest.importorskip("triton._C.libtriton")

import compiler
import triton
from torch_dmlpool.kernels.launch import Launch
from triton.backends.compiler import GPUTarget

from benchmarks.kernels import machine_code
from torch_dmlpool import kernels, tensors
from torch_dmlpool.backends import fallbacks
from torch_dmlpool.backends import triton as backend
from torch_dmlpool.window import Window

TARGETS = {
    "sm_90": (compiler.SM_90, True),
    "sm_80": (GPUTarget("cuda", 80, 32), True),
    "sm_100": (GPUTarget("cuda", 100, 32), True),
    "gfx942": (GPUTarget("hip", "gfx942", 64), False),
}
"""Each with whether it runs PTX."""
OTHERS = {
    "sm_120": (GPUTarget("cuda", 120, 32), True),
    "gfx1100": (GPUTarget("hip", "gfx1100", 32), False),
    "gfx1201": (GPUTarget("hip", "gfx1201", 32), False),
}


class Made(NamedTuple):
    """A launch, and the names of its tensors' types; of a number its type."""

    launch: Launch
    operands: tuple[str | type, ...]

    def kernel(self):
        """With the type of its elements."""
        return self.launch.kernel, self.operands[0]

    def form(self):
        """The types of all that it works on, and every choice that decides which of a kernel's code
        runs."""
        modes = ("KIND", "COUNT", "RANK", "OP", "V", "MASK")
        given = dict(self.launch.constants)
        for group in ("FORM", "MODE"):
            given |= given.pop(group)._asdict() if group in given else {}
        left = ("groups", "tile", "vector", "store", "divisor")
        chosen = [
            one
            for one in given.items()
            if type(one[1]) is bool or one[0] in modes or (one[0].islower() and one[0] not in left)
        ]
        return self.launch.kernel, self.operands, tuple(sorted(chosen))

    def whole(self):
        """All that is compiled differently."""
        return self.launch.kernel, self.operands, self.launch.constants, self.launch.size_types

    def request(self):
        kernel = backend.kernel_named(*self.launch.kernel.split("."))
        numbers = {float: "fp32", int: "i32"}
        types = [
            numbers[each] if isinstance(each, type) else compiler.POINTERS[each]
            for each in self.operands
        ]
        aligned = tuple(i for i, each in enumerate(self.operands) if isinstance(each, str))
        return compiler.Request(
            kernel, (*types, self.launch.size_types), aligned, self.launch.constants
        )


SIZES = {
    1: [(4, 64, 4096), (3, 5, 4097), (3, 6, 4098)],
    2: [(4, 64, 112, 112), (3, 5, 113, 113), (3, 6, 114, 114)],
    3: [(4, 64, 32, 32, 32), (2, 3, 33, 33, 33), (2, 6, 34, 34, 34)],
}
HUGE = (1, 1, 2**16, 2**16)
WINDOWS = {
    1: [(3, 1, 1), (70, 1, 35), (7, 1, 3), (2, 2, 0), (31, 2, 15), (13, 1, 12, 12, 2)],
    2: [
        (3, 1, 1),
        (70, 1, 35),
        (2, 2, 0),
        (3, 2, 1),
        (3, 1, 2, 2, 2),
        (3, 1, 4),
        (6, 1, 3),
        (7, 1, 6, 6, 2),
    ]
    + [(size, 1, size // 2) for size in (2, 4, 5, 7, 9, 11, 13, 16, 20, 31)]
    + [(size, 2, 0) for size in (4, 5, 7, 17, 31)]
    + [(size, 1, 0) for size in ((3, 1), (1, 3), (5, 3), (7, 9), (2, 16), (31, 3), (3, 31), 112)]
    + [(3, 3, 0), (7, 7, 0), (3, 2, 2, 2, 2), (5, 1, 6, 6, 3), (13, 1, 12, 12, 2)],
    3: [(3, 1, 1), (31, 1, 15), (2, 2, 0), (3, 2, 1), (3, 1, 2, 2, 2), (5, 1, 2), (7, 1, 3)],
}
"""Size, stride and padding before, then perhaps padding after and dilation."""


def problems(dtype, every):
    """Tensors without memory beside windows: contiguous, channels last, of odd sizes, sliced,
    larger than 2³¹."""
    for rank in (1, 2, 3):
        tensors = [
            torch.empty(shape, dtype=dtype, device="meta")
            for shape in SIZES[rank][: None if every else 1]
        ]
        tensors += [samples.channels_last(one) for one in tensors if rank > 1]
        tensors += [tensors[0][..., ::2]] * every
        for size, stride, start, *rest in WINDOWS[rank][: None if every else 2]:
            end, dilation = rest or (start, 1)
            window = Window.directml(rank, size, stride, start, end, dilation)
            extent = (window.axes[-1].window - 1) * dilation + 1
            fitting = [one for one in tensors if one.shape[-1] + start + end >= extent]
            yield from ((one, window) for one in fitting)
    yield torch.empty(HUGE, dtype=dtype, device="meta"), Window.directml(2, 3, 1, 1, 1)


def results_of(input, window):
    results = input.new_empty((*input.shape[:2], *window.output_sizes(input.shape[2:])))
    return samples.channels_last(results) if window.rank > 1 and input.stride(1) == 1 else results


def taps_of(input, window):
    return results_of(input, window).to(tensors.tap_dtype(window.taps))


def maxima(input, window):
    for under in masks_of(input):
        backend.max_pooling(input, window, **under)
        backend.max_pooling_with_taps(input, window, **under)
    backend.max_pooling_with_indices(input, window, torch.int64, False)
    backend.max_pooling_with_indices(input, window, torch.int64, True)


def masks_of(input):
    """No mask, one of all channels, and one of each."""
    yield {}
    yield {"mask": input.new_empty((input.shape[0], 1, *input.shape[2:]), dtype=torch.bool)}
    yield {"mask": torch.empty_like(input, dtype=torch.bool)}


def gathered(input, window):
    taps = taps_of(input, window)
    backend.BACKEND.max_pooling_gather(input, taps, window)
    for of, in_plane in itertools.product(samples.INDEX_TYPES, (False, True)):
        backend.max_pooling_indices(taps, input.shape[2:], window, of, in_plane)


def max_gradients(input, window):
    given, taps, last = (
        results_of(input, window),
        taps_of(input, window),
        window.rank > 1 and input.stride(1) == 1,
    )
    for gradient in (given, given.contiguous()):
        backend.max_pooling_grad_from_taps(gradient, taps, input.shape[2:], window, last)


def averages(input, window):
    for divisor in ((True, None), (False, None), (True, 7)):
        for under in masks_of(input):
            with contextlib.suppress(fallbacks.NoKernelError):
                backend.average_pooling(input, window, *divisor, **under)
        backend.average_pooling_grad(results_of(input, window), input.shape[2:], window, *divisor)
    masked_gradients(results_of(input, window), input, window, 1)


def masked_gradients(gradient, input, *by):
    """Gradients of averages, from shares in the type of sums."""
    given = tensors.widened(gradient), input.shape[2:], by[0], False, by[1], input.dtype
    for under in masks_of(input):
        with contextlib.suppress(fallbacks.NoKernelError):
            backend.average_pooling_grad(*given, **under)


def quantized(input, window):
    for results, channels in (
        (input.dtype, 1),
        (input.dtype, input.shape[1]),
        (torch.int8, 0),
        (torch.uint8, 0),
    ):
        scale = torch.empty(channels, device="meta") if channels else 0.5
        zero, other = (
            input.new_empty(channels, dtype=of) if channels else 3 for of in (input.dtype, results)
        )
        given = ((scale, zero, scale, other), window, channels == 1, results)
        backend.quantized_averages(input, *given)


def bins(input, window):
    """Adaptive pooling and its gradients."""
    outputs = window.output_sizes(input.shape[2:])
    for under in masks_of(input):
        backend.BACKEND.adaptive_max_pooling(input, outputs, **under)
        if input.dtype.is_floating_point:
            backend.average_pooling(input, tuple(outputs), False, None, **under)
    if input.dtype.is_floating_point:
        backend.BACKEND.adaptive_average_pooling_grad(results_of(input, window), input.shape[2:])
        masked_gradients(results_of(input, window), input, tuple(outputs), None)


def sets(input, _):
    """Ragged ones and samples, with a mask and without."""
    for channels in (64, 3):
        rows = input.new_empty((1000, channels))
        mask = rows.new_empty(1000, dtype=torch.bool)
        for flags in itertools.product((False, True), (None, mask)):
            is_flag, kept = flags
            offsets = rows.new_empty(9, dtype=(torch.int32, torch.int64)[is_flag])
            backend.segment_sums(rows, offsets, kept, is_flag)
            backend.segment_maxima(rows, offsets, kept, is_flag)
            kept = None if kept is None else kept.view(10, 100)
            backend.segment_maxima(rows.view(10, 100, channels), None, kept, is_flag)


FAMILIES: dict[str, tuple[Callable[[Tensor, Window], None], list[torch.dtype]]] = {
    "max": (maxima, samples.FLOATS + samples.INTEGERS),
    "max gradient": (max_gradients, samples.FLOATS),
    "gather": (gathered, [torch.float64, torch.float16, torch.int8]),
    "average": (averages, samples.FLOATS),
    "quantized": (quantized, [torch.int8, torch.uint8]),
    "adaptive": (bins, [*samples.FLOATS, torch.int8, torch.uint64]),
    "sets": (sets, samples.FLOATS),
}


class Collector:
    """Makes the backend launch as on a target, and keeps the launches instead of running them."""

    def __init__(self, monkeypatch):
        self.made: list[Made] = []
        self.runs_ptx = False
        monkeypatch.setattr(backend, "runs_ptx", lambda _: self.runs_ptx)
        monkeypatch.setattr(backend, "launch", self.launch)

    def launch(self, launch, *operands):
        names = (
            samples.name_of(one.dtype) if isinstance(one, Tensor) else type(one) for one in operands
        )
        self.made.append(Made(launch, tuple(names)))

    def __call__(self, family, dtype, runs_ptx, alike, every=False):
        """The first of the launches that are ``alike``: the shortest code, as windows are in
        order."""
        self.runs_ptx, result = runs_ptx, {}
        for input, window in problems(dtype, every):
            FAMILIES[family][0](input, window)
            for made in self.made:
                result.setdefault(alike(made), made)
            self.made.clear()
        return list(result.values())


@pytest.fixture
def launches_of(monkeypatch):
    return Collector(monkeypatch)


def assert_compiles(launches, compile):
    assert launches
    failures = []
    for made in launches:
        try:
            compile(made)
        except Exception as error:  # Triton's says where, not for which launch
            failures.append(f"{made}: {error}")
    assert not failures, "\n".join(failures)


def to_machine_code(made, target):
    """NVIDIA's pads no signed type with a word that is one element's sign (Triton 3.6 to 3.8); all
    ones are right."""
    on = (TARGETS | OTHERS)[target][0]
    binary = compiler.binary(made.request()._replace(warps=128 // on.warp_size), on)
    assert binary.asm["hsaco" if on.backend == "hip" else "cubin"]
    assert not re.search("0xf{12}(?!f{4})", binary.asm.get("ptx", ""))
    assert not apart(made, binary.asm["ttgir"])
    return binary


LAYOUT = re.compile(
    r"^(#\w+) = #ttg.blocked<{sizePerThread = \[(.*?)\], "
    r"threadsPerWarp = \[(.*?)\].*order = \[(\d)",
    re.MULTILINE,
)
ACCESS = re.compile(r"tt.(?:load|store) .*: tensor<(\d+)x((?:\d+x)+)!tt.ptr<\w+>, (#\w+)>")


def apart(made, dialect):
    """The loads and stores of a kernel, its layouts chosen, in which neighbouring threads do not
    take neighbours along the last axis of a block of two, which lie side by side in memory, or
    along the last two of three: vectors. Of a mask of all channels they read one byte together."""
    reads_one = getattr(dict(made.launch.constants).get("MODE"), "mask", 0) == 3
    layouts = {
        name: (*map(numbers_of, rest), int(first)) for name, *rest, first in LAYOUT.findall(dialect)
    }
    found = []
    for access in ACCESS.finditer(dialect):
        if reads_one and "ptr<i8>" in access[0]:
            continue
        sizes = [int(each) for each in access[2].rstrip("x").split("x")]
        columns, ((_, *each), (down, *threads), first) = math.prod(sizes), layouts[access[3]]
        own, beside = math.prod(each), math.prod(threads)
        most = min(columns // own, down * beside) if own < columns else 1
        if (most > 1 and first != len(sizes)) or beside < most:
            found.append(access[0])
    return found


def numbers_of(text):
    return [int(each) for each in text.split(", ")]


EACH_TYPE = pytest.mark.parametrize(
    ("family", "dtype"),
    [
        pytest.param(family, dtype, id=f"{family}, {samples.name_of(dtype)}")
        for family, (_, dtypes) in FAMILIES.items()
        for dtype in dtypes
    ],
)


@cases.each(
    ("target", "every"),
    [("sm_90", False), *((each, True) for each in TARGETS if each != "sm_100")],
    [("sm_90", False)],
)
@EACH_TYPE
def test_types_fit(family, dtype, target, every, launches_of):
    """G6, M7, Q1: kernels become Triton's intermediate representation for every type, then with
    every choice."""
    launches = launches_of(
        family, dtype, TARGETS[target][1], Made.form if every else Made.kernel, every
    )
    assert_compiles(launches, lambda made: compiler.ir_of(made.request(), TARGETS[target][0]))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@EACH_TYPE
def test_machine_code_of_some(family, dtype, target, launches_of):
    """E7: launches drawn from a large choice of problems, other ones for each device, become
    machine code."""
    launches = launches_of(family, dtype, TARGETS[target][1], Made.whole, every=True)
    launches.sort(key=lambda made: zlib.crc32(f"{target} {made.whole()}".encode()))
    assert_compiles(launches[:2], lambda made: to_machine_code(made, target))


def pooled_every_way(input, window):
    output, taps = backend.max_pooling_with_taps(input, window)
    backend.max_pooling(input, window)
    backend.max_pooling_grad_from_taps(output, taps, input.shape[2:], window, input.stride(1) == 1)
    backend.average_pooling(input, window, True, None)
    backend.average_pooling_grad(output, input.shape[2:], window, True, None)


@cases.each("target", TARGETS, ["sm_90"])
def test_rows_are_read_by_16_bytes_and_nothing_spills(target, launches_of):
    """E7: a contiguous float16 batch under window 3: maxima, with taps, averages, and their
    gradients."""
    launches_of.runs_ptx = TARGETS[target][1]
    window = Window.directml(2, 3, 1, 1, 1)
    input = torch.empty((32, 64, 112, 112), dtype=torch.float16, device="meta")
    pooled_every_way(input, window)
    assert len(launches_of.made) == 5
    for made in launches_of.made:
        # The assembler of Triton 3.8 keeps one half of maxima in local memory.
        is_spilled = triton.__version__.startswith("3.8.") and made is launches_of.made[1]
        assert_vectors(made, target, 2 * is_spilled)


def assert_vectors(made, target, spills=0):
    """16 bytes are read at once, and no more than this many words are spilled."""
    binary = to_machine_code(made, target)
    if target == "gfx942":
        assert re.search(r"load_dwordx4", binary.asm["amdgcn"]), made
    else:
        assert re.search(r"ld\.global\S*\.v(4\.b32|2\.b64)", binary.asm["ptx"]), made
    assert spilled(binary) <= spills, made


def spilled(binary):
    """The instructions that touch local memory, or its bytes on AMD's GPUs: what these keep in
    other registers touches none."""
    if "amdgcn" in binary.asm:
        return int(re.findall(r"\.private_segment_fixed_size: +(\d+)", binary.asm["amdgcn"])[0])
    return sum(each.base in ("LDL", "STL") for each in machine_code(binary.asm["cubin"]))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS | OTHERS)
def test_nothing_spills_in_the_calls_of_networks(target, launches_of):
    """E7: float16 under the windows that networks use most, in both layouts, with masks too."""
    launches_of.runs_ptx = (TARGETS | OTHERS)[target][1]
    plane, volume = (
        torch.empty(32, 64, *sizes, dtype=torch.float16, device="meta")
        for sizes in ((112, 112), (16, 28, 28))
    )
    for input in (plane, volume, *map(samples.channels_last, (plane, volume))):
        windows = ((2, 2), (3, 1, 1), (3, 2, 1), (5, 1, 2)) if input.dim() == 4 else ((3, 2, 1),)
        for window in windows:
            pooled_every_way(input, Window.directml(input.dim() - 2, *window))
        mask = torch.empty_like(input, dtype=torch.bool)
        window = Window.directml(input.dim() - 2, 3, 2, 1, 1)
        backend.max_pooling_with_taps(input, window, mask=mask)
        averages = backend.average_pooling(input, window, False, None, mask=mask)
        masked_gradients(averages, input, window, 1)
    assert len(launches_of.made) == 70
    found = {made: spilled(to_machine_code(made, target)) for made in launches_of.made}
    # ptxas keeps a few values of 3/2 without winners in local memory.
    most = 8 if launches_of.runs_ptx else 0
    assert not {made: count for made, count in found.items() if count > most}


EVERY = [("sm_90", False), *((each, True) for each in TARGETS)]


@cases.each(("target", "every"), EVERY, EVERY[:1])
def test_sets_of_rows_are_read_by_16_bytes_and_nothing_spills(target, every, launches_of):
    """E7: sums, means, maxima and minima, with a mask and without; every day of one type each."""
    for number, dtype in enumerate(samples.FLOATS):
        launches_of.made.clear()
        sets(torch.empty(0, dtype=dtype, device="meta"), Window.directml(1, 1))
        chosen = {
            made.form(): made for made in launches_of.made if dict(made.launch.constants)["V"] > 1
        }
        assert len(chosen) >= 8
        for made in list(chosen.values())[0 if every else number :: 1 if every else 8]:
            assert_vectors(made, target)


BLOCKS: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = [
    *(("max", (size, size), window) for size in (16, 15) for window in ((3, 1, 1), (2, 2))),
    *(("max gradient", (16, 16), window) for window in ((3, 1, 1), (3, 2, 1))),
    ("max gradient", (1, 40), ((1, 9), 1, (0, 4))),
    *(("average", (size, size), (3, 2, 1, 1)) for size in (16, 15)),
    *(("average", (1, size), ((1, size),)) for size in (4, 16, 49, 96, 225, 768, 784, 1500, 3000)),
    ("max", (1, 2000), ((1, 2000),)),
    ("max", (9, 90), (70, 1, 35, 35)),
    ("adaptive", (45, 40), (6, 6)),
    ("adaptive", (30, 33), (5, 6)),
    ("average", (10, 10), (10,)),
    ("quantized", (14, 14), (14,)),
    ("sets", (4, 4), (2, 2)),
]
"""Families, sizes and windows that reach every block of threads."""


def test_neighbouring_threads_touch_neighbouring_memory(launches_of):
    """E7: every kernel's loads and stores, as the Triton at hand lays out blocks."""
    launches_of.runs_ptx, chosen = True, {}
    for family, sizes, window in BLOCKS:
        dtype = torch.int8 if family == "quantized" else torch.float32
        input = torch.empty((3, 8, *sizes), dtype=dtype, device="meta")
        for source in (input, samples.channels_last(input)):
            FAMILIES[family][0](source, Window.directml(2, *window))
    for made in launches_of.made:
        given = dict(made.launch.constants)
        form = given.get("FORM")
        blocks = form and (form.channels, form.vector, form.store, form.mask)
        mode = given.get("MODE", ())[-2:]
        blocks = blocks, mode, *map(given.get, ("BLOCK", "ROWS", "V", "MASK"))
        chosen.setdefault((made.launch.kernel, blocks), made)
    wrong = {
        str(made.launch): apart(made, str(compiler.lowered(made.request(), "ttgir")[0]))
        for made in chosen.values()
    }
    assert not {launch: found for launch, found in wrong.items() if found}
    assert len({made.launch.kernel for made in chosen.values()}) >= 7


def test_every_kernel_is_launched(launches_of):
    """A new kernel is compiled here, too; ten are enough, with one piece of inline assembly."""
    launched = {
        made.launch.kernel.split(".")[1]
        for family, (_, dtypes) in FAMILIES.items()
        for made in launches_of(family, dtypes[0], "sm_90", Made.kernel)
    }
    exist, sources = (
        set(),
        [path for folder in kernels.__path__ for path in Path(folder).glob("*.py")],
    )
    for path in sources:
        for one in vars(importlib.import_module(f"{kernels.__name__}.{path.stem}")).values():
            if getattr(one, "do_not_specialize", None):  # a kernel, not a function within one
                exist.add(one.fn.__name__)
    assert launched == exist
    assert len(exist) <= 10
    assert sum(path.read_text().count("inline_asm_elementwise(") for path in sources) <= 1
