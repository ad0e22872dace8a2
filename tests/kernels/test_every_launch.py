"""Every launch of every operator is compiled for GPUs, though none is there.

The interpreter runs code that no GPU's compiler takes, and sees none of the launches that are for GPUs alone.
"""

from __future__ import annotations

import importlib
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import samples
import torch
from torch import Tensor

pytest.importorskip("triton._C.libtriton")

from torch_dmlpool.kernels.launch import Launch
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend

from benchmarks import compiler, sass
from torch_dmlpool import kernels
from torch_dmlpool.backends import triton as backend
from torch_dmlpool.window import Window

TARGETS = {
    "sm_90": (compiler.SM_90, "sm_90"),
    "sm_80": (GPUTarget("cuda", 80, 32), "cuda"),
    "sm_100": (GPUTarget("cuda", 100, 32), "sm_90"),
    "gfx942": (GPUTarget("hip", "gfx942", 64), "hip"),
}
"""Each with what the launches know it as."""
MODES = ("ADJOINT", "BINS", "KINDS", "CHANNELS", "WITH", "WITH_TAPS")
"""What decides most of all which code of a kernel runs."""


class Made(NamedTuple):
    """A launch, and the names of its tensors' types; of a number its type."""

    launch: Launch
    operands: tuple[str | type, ...]

    def main_form(self) -> tuple[object, ...]:
        """The kernel, the type of its elements, and which of its code is meant."""
        chosen = {name: value for name, value in self.launch.constants if name in MODES}
        return self.launch.kernel, self.operands[0], tuple(sorted(chosen.items()))

    def form(self) -> tuple[object, ...]:
        """The same with the types of all that it works on, and with every choice between two."""
        chosen = [one for one in self.launch.constants if type(one[1]) is bool or one[0] in (*MODES, "RANK")]
        return self.launch.kernel, self.operands, tuple(sorted(chosen))

    @property
    def whole(self) -> tuple[object, ...]:
        """All that is compiled differently."""
        return self.launch.kernel, self.operands, self.launch.constants, self.launch.size_types

    def request(self) -> compiler.Request:
        kernel = backend.kernel_named(*self.launch.kernel.split("."))
        numbers = {float: "fp32", int: "i32"}
        types = [numbers[each] if isinstance(each, type) else compiler.POINTERS[each] for each in self.operands]
        aligned = tuple(i for i, each in enumerate(self.operands) if isinstance(each, str))
        return compiler.Request(kernel, (*types, *self.launch.size_types), aligned, self.launch.constants)


def compile_to_ir(made: Made, target: GPUTarget) -> None:
    """No further than to Triton's own intermediate representation: where types have to fit."""
    request, made_for = made.request(), make_backend(target)
    options = made_for.parse_options(request.options())
    context = ir.context()
    ir.load_dialects(context)
    made_for.load_dialects(context)
    functions = made_for.get_codegen_implementation(options), made_for.get_module_map()
    request.source().make_ir(target, options, *functions, context)


def compile_wholly(made: Made, target: GPUTarget) -> None:
    """To machine code. NVIDIA's pads no signed type with a word that is one element's sign (Triton 3.6 to 3.8)."""
    hip = target.backend == "hip"
    binary = compiler.binary(made.request()._replace(warps=made.launch.num_warps // (2 if hip else 1)), target)
    assert binary.asm["hsaco" if hip else "cubin"]
    assert "0xffffffffffff" not in binary.asm.get("ptx", "")


SIZES = {1: [(4, 64, 4096), (3, 5, 4097)], 2: [(4, 64, 112, 112), (3, 5, 113, 113)], 3: [(4, 64, 32, 32, 32)]}
MORE_SIZES = {1: [(3, 6, 4098)], 2: [(3, 6, 114, 114)], 3: [(2, 3, 33, 33, 33), (2, 6, 34, 34, 34)]}
HUGE = (1, 1, 2**16, 2**16)
WINDOWS = {
    1: [(3, 1, 1), (70, 1, 35)],
    2: [(2, 2, 0), (3, 1, 1), (3, 2, 1), (3, 1, 2, 2, 2), (3, 1, 4), (5, 1, 2), (6, 1, 3), (31, 1, 15), (70, 1, 35)],
    3: [(2, 2, 0), (3, 1, 1), (31, 1, 15)],
}
MORE_WINDOWS = {
    1: [(7, 1, 3), (2, 2, 0), (31, 2, 15), (13, 1, 12, 12, 2)],
    2: [(size, 1, size // 2) for size in (2, 4, 7, 8, 9, 11, 13, 15, 16, 20, 64)]
    + [(size, 2, 0) for size in (4, 5, 7, 17, 31)]
    + [(size, 1, 0) for size in ((3, 1), (1, 3), (5, 3), (7, 9), (9, 7), (2, 16), (31, 3), (3, 31), (13, 20), 112)]
    + [(3, 3, 0), (7, 7, 0), (7, 1, 6), (3, 2, 2, 2, 2), (5, 1, 6, 6, 3), (7, 1, 6, 6, 2), (13, 1, 12, 12, 2)],
    3: [(3, 2, 1), (3, 1, 2, 2, 2), (5, 1, 2), (7, 1, 3), (16, 1, 8)],
}
"""Size, stride and padding before, then perhaps padding after and dilation."""


def problems(dtype: torch.dtype, every: bool) -> Iterator[tuple[Tensor, Window]]:
    """Tensors without memory beside windows: contiguous, channels last, of odd sizes, sliced, larger than 2³¹."""
    for rank in (1, 2, 3):
        tensors = [torch.empty(sizes, dtype=dtype, device="meta") for sizes in SIZES[rank]]
        if every:
            tensors += [torch.empty(sizes, dtype=dtype, device="meta") for sizes in MORE_SIZES[rank]]
            tensors.append(tensors[0][..., ::2])
        if rank > 1:
            tensors += [samples.channels_last(one) for one in (tensors if every else tensors[:1])]
        for size, stride, start, *rest in WINDOWS[rank] + (MORE_WINDOWS[rank] if every else []):
            end, dilation = rest or (start, 1)
            window = Window.directml(rank, size, stride, start, end, dilation)
            for tensor in tensors:
                try:
                    window.output_sizes(tensor.shape[2:])
                except ValueError:  # larger than what it would pool
                    continue
                yield tensor, window
    yield torch.empty(HUGE, dtype=dtype, device="meta"), Window.directml(2, 3, 1, 1, 1)


def maxima(dtype: torch.dtype, every: bool) -> Iterator[Callable[[], object]]:
    for input, window in problems(dtype, every):
        yield lambda input=input, window=window: backend.max_pooling(input, window)
        yield lambda input=input, window=window: backend.max_pooling_with_taps(input, window)
        yield lambda input=input, window=window: backend.max_pooling_with_indices(input, window, torch.int64, False)
        yield lambda input=input, window=window: backend.max_pooling_with_indices(input, window, torch.int64, True)


def gathered(dtype: torch.dtype, every: bool) -> Iterator[Callable[[], object]]:
    for input, window in problems(dtype, every):
        taps = backend.max_pooling_with_taps(input, window)[1]
        yield lambda input=input, window=window, taps=taps: backend.max_pooling_gather(input, taps, window)
        for of, in_plane in itertools.product(samples.INDEX_TYPES, (False, True)):
            yield lambda given=(taps, input.shape[2:], window, of, in_plane): backend.max_pooling_indices(*given)


def max_gradients(dtype: torch.dtype, every: bool) -> Iterator[Callable[[], object]]:
    for input, window in problems(dtype, every):
        values, taps = backend.max_pooling_with_taps(input, window)
        for gradient in (values, values.contiguous()):
            yield lambda input=input, window=window, taps=taps, gradient=gradient: backend.max_pooling_grad_from_taps(
                gradient, taps, input.shape[2:], window, window.rank > 1 and input.stride(1) == 1
            )


def averages(dtype: torch.dtype, every: bool) -> Iterator[Callable[[], object]]:
    for input, window in problems(dtype, every):
        output = backend.average_pooling(input, window, True, None)
        for given in ((True, None), (False, None), (True, 7)):
            yield lambda input=input, window=window, given=given: backend.average_pooling(input, window, *given)
            yield lambda input=input, window=window, given=given, output=output: backend.average_pooling_grad(
                output, input.shape[2:], window, *given
            )


def quantized(dtype: torch.dtype, every: bool) -> Iterator[Callable[[], object]]:
    for input, window in problems(dtype, every):
        for results, channels in ((dtype, 1), (dtype, input.shape[1]), (torch.int8, 0), (torch.uint8, 0)):
            scale = torch.empty(channels, device="meta") if channels else 0.5
            zero, other = (torch.empty(channels, dtype=of, device="meta") if channels else 3 for of in (dtype, results))
            yield (
                lambda given=(input, scale, zero, scale, other, window, channels == 1, results): (
                    backend.quantized_linear_average_pooling(*given)
                )
            )


def bins(dtype: torch.dtype, every: bool) -> Iterator[Callable[[], object]]:
    """Adaptive pooling and its gradients."""
    for shape in (one for sizes in (SIZES, MORE_SIZES if every else {}) for rank in sizes for one in sizes[rank]):
        inputs = [torch.empty(shape, dtype=dtype, device="meta")]
        if len(shape) > 3:
            inputs.append(samples.channels_last(inputs[0]))
        for input, size in itertools.product(inputs, (1, 7)):
            yield from of_bins(input, (size,) * (len(shape) - 2))
    yield from of_bins(torch.empty(HUGE, dtype=dtype, device="meta"), (7, 7))


def of_bins(input: Tensor, sizes: tuple[int, ...]) -> Iterator[Callable[[], object]]:
    values, _ = backend.adaptive_max_pooling(input, sizes)
    yield lambda: backend.adaptive_max_pooling(input, sizes)
    if input.dtype.is_floating_point:
        yield lambda: backend.adaptive_average_pooling(input, sizes)
        yield lambda: backend.adaptive_average_pooling_grad(values, input.shape[2:])


Calls = Callable[[torch.dtype, bool], Iterator[Callable[[], object]]]
FAMILIES: dict[str, tuple[Calls, list[torch.dtype]]] = {
    "max": (maxima, samples.FLOATS + samples.INTEGERS),
    "max gradient": (max_gradients, samples.FLOATS),
    "gather": (gathered, [torch.float64, torch.float16, torch.int8]),
    "average": (averages, samples.FLOATS),
    "quantized": (quantized, [torch.int8, torch.uint8]),
    "adaptive and positions": (bins, [*samples.FLOATS, torch.int8, torch.uint64]),
}


class Collector:
    """Makes the backend launch as on a target, and keeps the launches instead of running them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[Made] = []
        self.target = ""
        monkeypatch.setattr(backend, "target", lambda _: self.target)
        monkeypatch.setattr(backend, "launch", self.launch)

    def launch(self, launch: Launch, *operands: object) -> None:
        names = (samples.name_of(one.dtype) if isinstance(one, Tensor) else type(one) for one in operands)
        self.made.append(Made(launch, tuple(names)))

    def __call__(self, family: str, dtype: torch.dtype, target: str, every: bool = False) -> list[Made]:
        """Launches that are compiled differently, of a small or of a large choice of problems."""
        self.target = target
        calls, _ = FAMILIES[family]
        result = {}
        for call in calls(dtype, every):
            self.made.clear()
            call()
            result.update({made.whole: made for made in self.made})
        return list(result.values())


@pytest.fixture
def launches_of(monkeypatch: pytest.MonkeyPatch) -> Collector:
    return Collector(monkeypatch)


def first_of_each(launches: list[Made], form: Callable[[Made], object]) -> list[Made]:
    """The first launch of each form: the shortest code, as windows are in order."""
    result: dict[object, Made] = {}
    for made in launches:
        result.setdefault(form(made), made)
    return list(result.values())


def assert_compiles(launches: list[Made], target: str, compile: Callable[[Made, GPUTarget], None]) -> None:
    assert launches
    failures = []
    for made in launches:
        try:
            compile(made, TARGETS[target][0])
        except Exception as error:  # Triton's says where, not for which launch
            failures.append(f"{made}: {error}")
    assert not failures, "\n".join(failures)


EACH_TYPE = pytest.mark.parametrize(
    ("family", "dtype"),
    [
        pytest.param(family, dtype, id=f"{family}, {samples.name_of(dtype)}")
        for family, (_, dtypes) in FAMILIES.items()
        for dtype in dtypes
    ],
)


@EACH_TYPE
def test_types_fit(family: str, dtype: torch.dtype, launches_of: Collector) -> None:
    """G6, M7, Q1: every kernel becomes Triton's intermediate representation for every type, layout and mode."""
    assert_compiles(first_of_each(launches_of(family, dtype, "sm_90"), Made.main_form), "sm_90", compile_to_ir)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16], ids=samples.name_of)
def test_no_padding_is_a_sign(dtype: torch.dtype, launches_of: Collector) -> None:
    """M1: Triton 3.6 to 3.8 fill masked loads of signed 8- and 16-bit types with -1 in all but one element."""
    for made in first_of_each(launches_of("max", dtype, "sm_90"), Made.main_form):
        assert "0xffffffffffff" not in compiler.ptx(made.request()).text, made


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "sm_80", "gfx942"])
@EACH_TYPE
def test_all_types_fit(family: str, dtype: torch.dtype, target: str, launches_of: Collector) -> None:
    """The same with every choice that a launch makes."""
    launches = launches_of(family, dtype, TARGETS[target][1], every=target == "sm_90")
    assert_compiles(first_of_each(launches, Made.form), target, compile_to_ir)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("family", FAMILIES)
def test_machine_code_of_some(family: str, target: str, launches_of: Collector) -> None:
    """E7: launches drawn from a large choice of problems, other ones for each device, become machine code."""
    _, dtypes = FAMILIES[family]
    launches = [made for dtype in dtypes for made in launches_of(family, dtype, TARGETS[target][1], every=True)]
    launches.sort(key=lambda made: zlib.crc32(f"{target} {made.whole}".encode()))
    assert_compiles(launches[: 30 if family == "max" else 12], target, compile_wholly)


OTHER_TARGETS = [pytest.param(target, marks=pytest.mark.slow) for target in TARGETS if target != "sm_90"]


@pytest.mark.parametrize("target", ["sm_90", *OTHER_TARGETS])
def test_rows_are_read_by_16_bytes_and_nothing_spills(target: str, launches_of: Collector) -> None:
    """E7: a contiguous float16 batch under window 3: maxima, with taps, averages, and their gradients."""
    launches_of.target = TARGETS[target][1]
    window = Window.directml(2, 3, 1, 1, 1)
    input = torch.empty((32, 64, 112, 112), dtype=torch.float16, device="meta")
    output, taps = backend.max_pooling_with_taps(input, window)
    backend.max_pooling(input, window)
    backend.max_pooling_grad_from_taps(output, taps, input.shape[2:], window, False)
    backend.average_pooling(input, window, True, None)
    backend.average_pooling_grad(output, input.shape[2:], window, True, None)
    assert len(launches_of.made) == 5
    for made in launches_of.made:
        hip = target == "gfx942"
        binary = compiler.binary(
            made.request()._replace(warps=made.launch.num_warps // (2 if hip else 1)), TARGETS[target][0]
        )
        if hip:
            assert re.search(r"load_dwordx4", binary.asm["amdgcn"]), made
            # Scalar registers that are too many stay in lanes of vector registers: no memory is touched.
            used = re.findall(r"\.(?:vgpr_spill_count|private_segment_fixed_size): +(\d+)", binary.asm["amdgcn"])
            assert used == ["0", "0"], made
        else:
            assert re.search(r"ld\.global\S*\.v4\.b32", binary.asm["ptx"]), made
            assert sass.machine_code(binary.asm["cubin"]).spills == 0, made


def test_every_kernel_is_launched(launches_of: Collector) -> None:
    """A new kernel is compiled here, too; ten are enough."""
    launched = {
        made.launch.kernel.split(".")[1]
        for family, (_, dtypes) in FAMILIES.items()
        for dtype in (torch.float32, torch.int8)
        if dtype in dtypes
        for made in launches_of(family, dtype, "sm_90")
    }
    exist = set()
    for path in (path for folder in kernels.__path__ for path in Path(folder).glob("*.py")):
        for one in vars(importlib.import_module(f"{kernels.__name__}.{path.stem}")).values():
            if getattr(one, "do_not_specialize", None):  # a kernel, not a function within one
                exist.add(one.fn.__name__)
    assert launched == exist
    assert len(exist) <= 10


def test_little_assembly() -> None:
    """At most two pieces, each of which needs a reason beside it and an instruction that the emulator knows."""
    sources = [path.read_text() for folder in kernels.__path__ for path in Path(folder).glob("*.py")]
    assert sources
    assert sum(source.count("inline_asm_elementwise(") for source in sources) <= 2
