"""Single pooling calls beside their peers: ``python -m benchmarks rows``.

rows.txt has every row. A row's contestants are first compared: maxima, indices and quantized
averages must be equal, other results equal except for rounding. Then their calls take turns.
"""

import ctypes
import importlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

import torch_dmlpool as dmlpool
from benchmarks import common
from benchmarks.common import (
    ATEN,
    COPY,
    GROUPS,
    OURS,
    SMALL_SECONDS,
    WORKLOADS,
    Calls,
    Disagreement,
    Named,
    Workload,
    compiled,
    conditions,
    in_turn,
    rotating,
    select,
    several,
    times,
)
from torch_dmlpool.tensors import TensorFunction, Tensors, in_format
from torch_dmlpool.timing import Call, Times

PLAIN, ONNX_RUNTIME, CUDNN = "without a mask", "ONNX Runtime", "cuDNN"
COMPILED = INDUCTOR, LOWERED, CALLED = "torch.compile", "ours, compiled", "ours, called compiled"
SCALE, ZERO_POINTS = 2.0**-5, {"uint8": 128, "int8": -4}
"""Scales are powers of two and zero points even, so that real numbers represent every average:
results must be equal, bit for bit."""


class Absent(Exception):  # noqa: N818 - a peer that takes no part, and why
    """A peer is not installed, or cannot do what a row asks."""


@dataclass(frozen=True)
class Problem:
    """A row with inputs to rotate through, and in training a gradient for each."""

    row: Workload
    inputs: list[Tensor]
    gradients: list[Tensor]
    mask: Tensor | None


def problem(row: Workload, device: str) -> Problem:
    """Fresh tensors for a row, always the same ones."""
    generator = torch.Generator(device).manual_seed(0)
    needed = math.prod(row.sizes) * row.torch_dtype.itemsize
    number = 1 if "overhead" in row.groups else max(1, min(3, 2**30 // needed))
    inputs = [row.random(row.sizes, device, generator) for _ in range(number)]
    gradients = [row.random(row.output_sizes, device, generator) for _ in inputs]
    if row.mode == "quantized":
        with warnings.catch_warnings():  # these types are deprecated, and measured while they exist
            warnings.simplefilter("ignore", UserWarning)
            pack = torch._make_per_tensor_quantized_tensor
            inputs = [
                in_format(pack(input, SCALE, ZERO_POINTS[row.dtype]), row.channels_last)
                for input in inputs
            ]
    mask = None
    if row.mask:
        mask = torch.rand(row.mask_sizes, generator=generator, device=device) < 0.5
    return Problem(row, inputs, gradients if row.mode == "training" else [], mask)


def ours(problem: Problem) -> TensorFunction:
    """Our function of the same name as PyTorch's, or the operator of quantized tensors."""
    row, mask = problem.row, problem.mask
    if row.mode != "quantized":
        pool = row.pool_of(dmlpool.nn.functional)
        return pool if mask is None else partial(pool, mask=mask)
    window = row.window, row.stride, row.padding, row.padding
    how = {"include_padding": row.include_padding, "ceil_mode": row.ceil_mode}
    return lambda x: dmlpool.quantized_average_pooling(x, *window, **how)


def aten(problem: Problem) -> TensorFunction:
    """PyTorch's own operations. Where its pools do not know the type or the mask, what a program
    does then: it converts, pools and converts back, or fills and counts."""
    row, mask = problem.row, problem.mask
    pool = row.pool_of(functional)
    if mask is not None and row.family == "max":
        return lambda x: pool(torch.where(mask, x, -math.inf))
    if mask is not None:
        sums = partial(pool, divisor_override=1)
        return lambda x: sums(torch.where(mask, x, 0)) / sums(mask.to(x.dtype)).clamp(min=1)
    is_half_volume = row.family == "average" and row.rank == 3 and row.torch_dtype.itemsize == 2
    if is_half_volume and problem.inputs[0].is_cpu:
        return lambda x: pool(x.float()).to(x.dtype)
    return pool


def train(pool: TensorFunction, input: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The forward and the backward pass that training rows time."""
    values = pool(input)
    return values, torch.autograd.grad(values, input, gradient)[0]


def bound(pool: TensorFunction, problem: Problem) -> list[Call]:
    """Calls of a pool on each input, in the row's mode."""
    if problem.row.mode == "training":
        pairs = zip(problem.inputs, problem.gradients, strict=True)
        return [partial(train, pool, x.detach().requires_grad_(), g) for x, g in pairs]
    leaves = problem.inputs
    if problem.row.mode == "recorded":
        leaves = [input.detach().requires_grad_() for input in problem.inputs]
    return [partial(pool, input) for input in leaves]


def _copies(problem):
    """Copies that move as many bytes, to memory that is there already."""
    elements = problem.row.bytes_moved // 8
    sources = [input.new_ones(elements, dtype=torch.float32) for input in problem.inputs]
    destination = torch.empty_like(sources[0])
    return [partial(destination.copy_, source) for source in sources]


def _plain(problem):
    if problem.mask is None:
        raise Absent("in rows with a mask alone")
    return bound(ours(replace(problem, mask=None)), problem)


def _compiled(pool_of, problem, lowers=True):
    """Static shapes and one graph per row: the best that Inductor makes of a pool. It is compiled
    at its first call."""
    dmlpool.inductor.lower(lowers)
    return bound(compiled(pool_of(problem), fullgraph=True), problem)


def _onnx_runtime(problem):
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
    try:
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except runtime.capi.onnxruntime_pybind11_state.NotImplemented:
        raise Absent(f"has no kernel for {row.dtype}") from None
    calls = []
    for input in problem.inputs:
        dense = input.int_repr() if input.is_quantized else input
        array = dense.movedim(1, -1).numpy() if row.channels_last else dense.numpy()
        binding = session.io_binding()
        binding.bind_ortvalue_input("input", runtime.OrtValue.ortvalue_from_numpy(array))
        for output in session.get_outputs():
            binding.bind_output(output.name, "cpu")
        calls.append(lambda binding=binding: (session.run_with_iobinding(binding), binding)[1])
    return calls


def onnx_model(row: Workload) -> bytes:
    """The row's operator: ONNX's own, or ONNX Runtime's QLinearAveragePool."""
    kind = {"float32": "float", "float64": "double"}.get(row.dtype, row.dtype)

    def tensor(name, kind, sizes):
        ordered = (sizes[0], *sizes[2:], sizes[1]) if row.channels_last else sizes
        return f"{kind}{list(ordered)} {name}"

    how = {"kernel_shape": list(row.window), "strides": list(row.stride)}
    how |= {"pads": [*row.padding, *row.padding], "ceil_mode": int(row.ceil_mode)}
    name, inputs, constants = "MaxPool", "input", ""
    if row.family == "average":
        name, how["count_include_pad"] = "AveragePool", int(row.include_padding)
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
    return importlib.import_module("onnx.parser").parse_model(text).SerializeToString()


def _cudnn(problem):
    """cuDNN 9's pooling, from the library that PyTorch for CUDA brings; PyTorch itself does not use
    it. Modes: maxima 0, averages that count padding 1, others 2; NaN is passed on (1). It pools two
    or three axes."""
    row = problem.row
    if row.mode != "forward" or row.mask or row.outputs or max(row.dilation) > 1 or row.ceil_mode:
        raise Absent("values of windows alone, without dilation")
    if not torch.cuda.is_available():
        raise Absent("no GPU")
    try:
        folder = next(iter(importlib.import_module("nvidia.cudnn").__path__))
        library = ctypes.CDLL(str(Path(folder, "lib", "libcudnn.so.9")), ctypes.RTLD_GLOBAL)
    except (ImportError, OSError) as reason:
        raise Absent(f"not installed: {reason}") from None

    def call(name, *arguments):
        if code := getattr(library, name)(*arguments):
            raise RuntimeError(f"{name} returns {code}")

    def new(name):
        pointer = ctypes.c_void_p()
        call(name, ctypes.byref(pointer))
        return pointer

    def array(numbers):
        return (ctypes.c_int * len(numbers))(*numbers)

    def described(tensor):
        tensor = tensor.unsqueeze(2) if tensor.dim() == 3 else tensor
        about = new("cudnnCreateTensorDescriptor")
        kind = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 9}[tensor.dtype]
        how = tensor.dim(), array(tensor.shape), array(tensor.stride())
        call("cudnnSetTensorNdDescriptor", about, kind, *how)
        return about, ctypes.c_void_p(tensor.data_ptr())

    handle, window = new("cudnnCreate"), new("cudnnCreatePoolingDescriptor")
    numbers = [
        *[(1, 0, 1)] * (row.rank == 1),
        *zip(row.window, row.padding, row.stride, strict=True),
    ]
    mode = 0 if row.family == "max" else 2 - row.include_padding
    arrays = map(array, zip(*numbers, strict=True))
    call("cudnnSetPoolingNdDescriptor", window, mode, 1, len(numbers), *arrays)
    one, zero = (ctypes.byref(ctypes.c_float(each)) for each in (1, 0))
    output = torch.empty_like(aten(problem)(problem.inputs[0]))
    target = described(output)

    def run(_, source):
        call("cudnnPoolingForward", handle, window, one, *source, zero, *target)
        return output

    return [partial(run, input, described(input)) for input in problem.inputs]


def _filter(library, dilated):
    """The maximum filter of a library, which writes each plane to memory that is there already."""

    def calls(problem):
        if "filters" not in problem.row.groups:
            raise Absent("in the group filters alone")
        try:
            known = importlib.import_module(library)
        except ImportError as reason:
            raise Absent(f"not installed: {reason}") from None
        box, output = torch.ones(problem.row.window).byte(), torch.empty_like(problem.inputs[0])

        def run(input):
            for plane, written in zip(input.flatten(0, 1), output.flatten(0, 1), strict=True):
                dilated(known, plane, box, written)
            return output

        return [partial(run, input) for input in problem.inputs]

    return calls


PEERS = {
    ATEN: lambda problem: bound(aten(problem), problem),
    OURS: lambda problem: bound(ours(problem), problem),
    COPY: _copies,
    PLAIN: _plain,
    ONNX_RUNTIME: _onnx_runtime,
    INDUCTOR: partial(_compiled, aten),
    LOWERED: partial(_compiled, ours),
    CALLED: partial(_compiled, ours, lowers=False),
    CUDNN: _cudnn,
    "SciPy": _filter(
        "scipy.ndimage",
        lambda it, x, box, y: it.maximum_filter(x.numpy(), box.shape, output=y.numpy()),
    ),
    "OpenCV": _filter("cv2", lambda it, x, box, y: it.dilate(x.numpy(), box.numpy(), y.numpy())),
    "scikit-image": _filter(
        "skimage.morphology",
        lambda it, x, box, y: it.dilation(x.numpy(), box.numpy(), out=y.numpy()),
    ),
    "kornia": _filter(
        "kornia.morphology", lambda it, x, box, y: y.copy_(it.dilation(x[None, None], box)[0, 0])
    ),
}
"""The first that does a row is what the others must agree with."""
UNCOMPARED = COPY, PLAIN


def results(row: Workload, returned) -> Tensors:
    """What a contestant returned, as tensors without scales."""
    if hasattr(returned, "copy_outputs_to_cpu"):  # of ONNX Runtime, whose indices count over all
        values, *indices = (torch.tensor(array) for array in returned.copy_outputs_to_cpu())
        values = values.movedim(-1, 1) if row.channels_last else values
        returned = (values, *(index % math.prod(row.sizes[2:]) for index in indices))
    found = several(returned)
    return tuple((one.int_repr() if one.is_quantized else one).detach() for one in found)


def compare(row: Workload, expected: Sequence[Tensor], found: Sequence[Tensor]):
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


def contestants(problem: Problem, names: Sequence[str]) -> tuple[Calls, dict[str, str]]:
    """Everybody's calls, tried once and compared; and who takes no part, and why.

    Raises:
        Disagreement: Our own result is not the reference's.
    """
    row, expected = problem.row, None
    calls = {}
    skipped = {}
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
            what = "wrong" if isinstance(reason, Disagreement) else "failed"
            first = str(reason).strip().partition("\n")[0]
            skipped[name] = f"{what}: {first[:160]}"
        else:
            calls[name] = rotating(listed)
    return calls, skipped


@dataclass(frozen=True)
class Result:
    """What a row's contestants took."""

    row: Workload
    seconds: dict[str, Times]

    @classmethod
    def of(cls, data: Named) -> Self | None:
        """A row of the file that :func:`main` writes; None where the table has no such row."""
        row = next((row for row in WORKLOADS if row.name == data["name"]), None)
        seconds = {name: Times(*taken) for name, taken in data["seconds"].items()}
        return row and cls(row, seconds)

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
        """A copy's time over ours; of no use where a call costs more than its bytes."""
        return None if self.is_small else self.ratio(COPY)

    def compared(self, peer: str) -> str:
        """The ratio; of tiny tensors by how many microseconds ours is longer."""
        ratio = self.ratio(peer)
        if ratio is None:
            return ""
        if self.is_small:
            return f"{(self.seconds[OURS].median - self.seconds[peer].median) * 1e6:+.1f} µs"
        return f"**{times(ratio)}**" if ratio < 1 and peer != PLAIN else times(ratio)


def measure(row: Workload, names: Sequence[str], device: str, seconds: float) -> Named:
    """One row of the table, as :class:`Result` reads it."""
    calls, skipped = contestants(problem(row, device), names)
    broken = {
        k: why for k, why in skipped.items() if why.startswith(("wrong", "failed", "not inst"))
    }
    return {"seconds": in_turn(calls, seconds, device), "skipped": broken}


def main(arguments: Sequence[str]) -> int:
    words = f"text of names, or groups: all, {', '.join(GROUPS)}"
    parser = common.parser("rows", __doc__, 1.5, words)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="torch.compile too: seconds a row")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    names = [name for name in PEERS if options.compile or name not in COMPILED]
    names.remove(ONNX_RUNTIME if options.device == "cuda" else CUDNN)
    how = names, options.device, options.row_seconds
    tasks = [(row.name, partial(measure, row, *how)) for row in select(options.words or "all")]
    known = conditions(options.device, ["onnxruntime"] * (ONNX_RUNTIME in names))
    return common.run(options, tasks, known)[1]
