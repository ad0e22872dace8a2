"""Who is measured: our operators and every peer that is installed, each with its version and what
it cannot do.

A peer binds itself to a row's inputs and gives one call per input. Only the call is timed; what it
returns is turned into tensors (values, then indices or the input's gradient) outside.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from benchmarks import foreign, quantized
from benchmarks.bound import Absent, Bound, Pool, Problem
from benchmarks.memory import train
from benchmarks.workloads import Workload

OURS, COPY, ATEN, DETOUR, BY_AXIS = "ours", "copy", "ATen", "float32 detour", "ATen by axis"


@dataclass(frozen=True)
class Peer:
    """A contestant: ``version`` and ``bind`` raise :class:`Absent` with the reason where it cannot
    take part."""

    name: str
    version: Callable[[], str]
    bind: Callable[[Problem], list[Bound]]
    devices: tuple[str, ...] = ("cpu", "cuda")
    # threads that go on spinning after a call, and would slow the next contestant down
    own_threads: bool = False
    optional: bool = False  # takes part only when asked for
    compiles: bool = False  # each row first, which a glance has no time for


def torch_calls(pool: Pool, problem: Problem) -> list[Bound]:
    """Calls of a pool that works on torch tensors, in the row's mode."""
    mode = problem.workload.mode
    if mode == "training":
        return [
            Bound(functools.partial(train, pool, input.detach().requires_grad_(), gradient))
            for input, gradient in zip(problem.inputs, problem.gradients, strict=True)
        ]
    if mode == "recorded":
        return [
            Bound(functools.partial(pool, input.detach().requires_grad_()))
            for input in problem.inputs
        ]
    return [Bound(functools.partial(pool, input)) for input in problem.inputs]


def our_pool(workload: Workload) -> Pool:
    """Our operator as a user calls it; indices as PyTorch counts them, so that they can be
    compared."""
    if workload.mode == "indices":
        pool = getattr(dmlpool.nn.functional, f"max_pool{workload.rank}d")
        return functools.partial(pool, **_torch_arguments(workload), return_indices=True)
    arguments: dict[str, Any] = {
        "window_size": workload.window,
        "strides": workload.stride,
        "start_padding": workload.padding,
        "end_padding": workload.padding,
        "dilations": workload.dilation,
        "ceil_mode": workload.ceil_mode,
    }
    if workload.family == "max":
        return functools.partial(dmlpool.max_pooling, **arguments)
    return functools.partial(
        dmlpool.average_pooling, include_padding=workload.include_padding, **arguments
    )


def _bind_ours(problem: Problem) -> list[Bound]:
    if problem.workload.mode == "quantized":
        return quantized.bind_ours(problem)
    return torch_calls(our_pool(problem.workload), problem)


def _bind_our_integers(problem: Problem) -> list[Bound]:
    if problem.workload.mode != "quantized" or problem.workload.per_channel:
        raise Absent("in quantized rows alone, beside ours of quantized tensors")
    return torch_calls(quantized.our_pool_of_integers(problem), problem)


def our_layer(workload: Workload) -> Pool:
    """Our layer, which stands in for torch.nn's."""
    if workload.mode == "indices":
        raise Absent("returns what ours returns in this row")
    name = {"max": "MaxPool", "average": "AvgPool"}[workload.family]
    layer: Pool = getattr(dmlpool.nn, f"{name}{workload.rank}d")(**_torch_arguments(workload))
    return layer


def aten_pool(workload: Workload) -> Pool:
    """PyTorch's own operator, called as directly as Python can."""
    rank, pools = workload.rank, torch._C._nn
    if workload.family == "average":
        average = torch.avg_pool1d if rank == 1 else getattr(pools, f"avg_pool{rank}d")
        return _by_position(average, workload)
    if workload.mode != "indices":
        return _by_position(getattr(torch, f"max_pool{rank}d"), workload)
    indexed = (
        torch.max_pool1d_with_indices
        if rank == 1
        else getattr(pools, f"max_pool{rank}d_with_indices")
    )
    return _by_position(indexed, workload)


def _by_position(operator: Callable[..., Any], workload: Workload) -> Pool:
    arguments = tuple(_torch_arguments(workload).values())
    return lambda tensor: operator(tensor, *arguments)


def _torch_arguments(workload: Workload) -> dict[str, Any]:
    """In the order in which PyTorch's pools take them."""
    arguments: dict[str, Any] = {
        "kernel_size": workload.window,
        "stride": workload.stride,
        "padding": workload.padding,
    }
    if workload.family == "max":
        return {**arguments, "dilation": workload.dilation, "ceil_mode": workload.ceil_mode}
    return {
        **arguments,
        "ceil_mode": workload.ceil_mode,
        "count_include_pad": workload.include_padding,
    }


def _bind_aten(problem: Problem) -> list[Bound]:
    pool = aten_pool(problem.workload)
    if problem.workload.mode == "quantized":
        return quantized.bind_quantized(pool, problem)
    return torch_calls(pool, problem)


def _bind_detour(problem: Problem) -> list[Bound]:
    """What a program does whose PyTorch has no pool of the type."""
    workload, pool = problem.workload, aten_pool(problem.workload)
    if workload.mode == "quantized":
        return torch_calls(quantized.pool_over_real_numbers(pool, problem), problem)
    if workload.mode != "forward" or workload.dtype not in ("float16", "bfloat16"):
        raise Absent("in quantized rows and in forward rows of 16 bits alone")
    if workload.family != "average" or workload.rank != 3:
        raise Absent("ATen pools this type itself")
    return torch_calls(lambda tensor: pool(tensor.float()).to(tensor.dtype), problem)


def _bind_by_axis(problem: Problem) -> list[Bound]:
    """ATen's operator along the last axis, then along the one before: its loops at the cost of one
    axis at a time."""
    workload = problem.workload
    if "scaling" not in workload.groups:
        raise Absent("in scaling curves alone")
    if workload.ceil_mode or not workload.include_padding:
        raise Absent("averages of averages are right where every window has the same divisor")
    pools = []
    for axis in reversed(range(workload.rank)):
        along = {
            name: tuple(
                getattr(workload, name)[axis] if place == axis else neutral
                for place in range(workload.rank)
            )
            for name, neutral in (("window", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
        }
        pools.append(aten_pool(replace(workload, **along)))
    return torch_calls(
        lambda tensor: functools.reduce(lambda partial, pool: pool(partial), pools, tensor), problem
    )


def _bind_copy(problem: Problem) -> list[Bound]:
    """A copy of the input to memory that is there already: as fast as bytes move."""
    destination = torch.empty_like(problem.inputs[0])
    return [
        Bound(functools.partial(destination.copy_, input), lambda _: ()) for input in problem.inputs
    ]


def _bind_layer(problem: Problem) -> list[Bound]:
    if "overhead" not in problem.workload.groups:
        raise Absent("measured on tiny tensors, where it differs from ours")
    return torch_calls(our_layer(problem.workload), problem)


def _bind_compiled(problem: Problem) -> list[Bound]:
    """Static shapes and one graph per row: the best that torch.compile makes of ATen's operator."""
    torch._dynamo.reset()
    pool = aten_pool(problem.workload)
    if problem.workload.mode == "quantized":
        pool = quantized.pool_over_real_numbers(pool, problem)
    return torch_calls(torch.compile(pool, fullgraph=True, dynamic=False), problem)


def _bind_onednn(problem: Problem) -> list[Bound]:
    """PyTorch's oneDNN operators on tensors in oneDNN's own format; getting there is not timed."""
    workload = problem.workload
    if workload.dtype != "float32":
        raise Absent("bound for float32 alone")
    if workload.mode not in ("forward", "training") or workload.channels_last or workload.rank == 1:
        raise Absent("plain 2-D and 3-D pools alone, without indices")
    if workload.family == "average" and workload.ceil_mode and workload.include_padding:
        raise Absent("wrong in ceil_mode: its divisor counts what lies past the padding")
    if workload.family == "max":
        if any(step > 1 for step in workload.dilation):
            raise Absent("no dilation")
        pool = _by_position(getattr(torch, f"mkldnn_max_pool{workload.rank}d"), workload)
    else:
        pool = aten_pool(workload)
    inputs = [input.to_mkldnn() for input in problem.inputs]
    gradients = [gradient.to_mkldnn() for gradient in problem.gradients]
    calls = torch_calls(pool, Problem(workload, inputs, gradients))
    return [Bound(call.run, _dense) for call in calls]


def _dense(returned: Any) -> tuple[Tensor, ...]:
    tensors = returned if isinstance(returned, tuple) else (returned,)
    return tuple(tensor.to_dense() for tensor in tensors)


def _onednn_version() -> str:
    if not torch.backends.mkldnn.is_available():
        raise Absent("this PyTorch has no oneDNN")
    lines = [
        line
        for line in torch.__config__.show().splitlines()
        if "oneDNN" in line or "MKL-DNN" in line
    ]
    return lines[0].partition(" v")[2].split()[0] if lines else "unknown version"


def _compiler_version() -> str:
    return f"of PyTorch {torch.__version__}"


def _torch_version() -> str:
    return str(torch.__version__)


def _package_version(package: str, module: str) -> str:
    """The version of a package that can be imported."""
    foreign.imported(module)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        # a folder of that name, which Python takes for a package
        raise Absent("not installed") from None


PEERS = (
    Peer(OURS, lambda: dmlpool.__version__, _bind_ours),
    Peer(COPY, _torch_version, _bind_copy),
    Peer(ATEN, _torch_version, _bind_aten),
    Peer(DETOUR, _torch_version, _bind_detour),
    Peer(BY_AXIS, _torch_version, _bind_by_axis),
    Peer("our integers", lambda: dmlpool.__version__, _bind_our_integers),
    Peer("our layer", lambda: dmlpool.__version__, _bind_layer),
    Peer("torch.compile", _compiler_version, _bind_compiled, optional=True),
    Peer(
        "ONNX Runtime",
        functools.partial(_package_version, "onnxruntime", "onnxruntime"),
        foreign.bind_onnx_runtime,
        devices=("cpu",),
        own_threads=True,
    ),
    Peer("oneDNN", _onednn_version, _bind_onednn, devices=("cpu",)),
    Peer(
        "JAX",
        functools.partial(_package_version, "jax", "jax"),
        foreign.bind_jax,
        own_threads=True,
        compiles=True,
    ),
    Peer(
        "FlagGems",
        functools.partial(_package_version, "flag-gems", "flag_gems"),
        lambda problem: torch_calls(foreign.flag_gems_pool(problem.workload), problem),
        devices=("cuda",),
    ),
)


def present(
    device: str, with_optional: bool, quick: bool = False, compiling: bool = True
) -> tuple[dict[Peer, str], dict[str, str]]:
    """The peers that can take part on a device, with their versions, and why each of the others
    cannot."""
    here: dict[Peer, str] = {}
    absent: dict[str, str] = {}
    for peer in PEERS:
        if device not in peer.devices:
            continue
        if peer.compiles and not compiling:
            absent[peer.name] = "compiles each row, which was not wanted"
            continue
        if peer.optional and not with_optional:
            absent[peer.name] = "not asked for (--compile asks)"
            continue
        if peer.compiles and quick:
            absent[peer.name] = "compiles each row, too long for a quick run"
            continue
        try:
            here[peer] = peer.version()
        except Absent as reason:
            absent[peer.name] = str(reason)
    return here, absent


def pools(workload: Workload) -> dict[str, Pool]:
    """The two whose memory is counted."""
    return {OURS: our_pool(workload), ATEN: aten_pool(workload)}
