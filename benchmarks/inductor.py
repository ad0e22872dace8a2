"""Inductor's own Triton kernels for a pooling call, as torch.compile makes them of PyTorch's
functions for an H200, without a GPU: generated, compiled by the Triton at hand, and counted like
ours. Of the blocks that Inductor would try on the GPU the best one counts.

Three calls that an H200 measured were predicted within 14 %. Atomic additions count as nothing.
"""

import math
import re
import runpy
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from torch import Tensor
from torch._dynamo import device_interface
from torch._inductor import config, scheduler
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional
from triton.compiler import ASTSource

from benchmarks import kernels
from torch_dmlpool.window import Arguments, Function, Named

H200 = SimpleNamespace(
    major=9,
    minor=0,
    multi_processor_count=kernels.PROCESSORS,
    warp_size=32,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    name="NVIDIA H200",
    total_memory=140 * 2**30,
    shared_memory_per_block_optin=232448,
    L2_cache_size=50 * 2**20,
    gcnArchName="",
)
ANSWERS = {
    "current_device": 0,
    "device_count": 1,
    "is_available": True,
    "is_bf16_supported": True,
    "get_device_properties": H200,
    "get_device_capability": (9, 0),
    "set_device": None,
    "get_compute_capability": 90,
    "is_triton_capable": True,
    "get_raw_stream": 0,
    "raise_if_triton_unavailable": None,
}
"""What PyTorch says of a GPU, by the functions that it asks."""
prims = torch.ops.prims
Generated = list[tuple[str, str, Arguments]]
"""Name, source and arguments of each kernel that a compiled graph launches."""


@contextmanager
def h200() -> Iterator[None]:
    """Inside, Inductor generates kernels for an H200 that is not there."""
    interface = device_interface.CudaInterface
    with ExitStack() as stack:

        def patched(owner, name, *value, **how):
            stack.enter_context(mock.patch.object(owner, name, *value, **how))

        for name, value in ANSWERS.items():
            for owner in (torch.cuda, interface, interface.Worker):
                if hasattr(owner, name):
                    patched(owner, name, return_value=value)
        patched(torch.version, "cuda", "13.0")
        patched(triton_helpers, "set_driver_to_gpu")
        # PyTorch 2.11 allocates on the GPU for the first of its fake tensors.
        patched(fake_tensor, "init_gpu_context", create=True)
        # PyTorch keeps the answer from before, when no GPU was there.
        patched(scheduler, "has_triton", return_value=True)
        patched(triton.runtime.driver, "_active", kernels.NoDriver())
        stack.enter_context(config.patch(compile_threads=1, fx_graph_cache=False))
        device_interface.register_interface_for_device("cuda", interface)
        device_interface.register_interface_for_device("cuda:0", interface)
        yield


def wrapper(function: Function, inputs: Sequence[Tensor]) -> str:
    """The Python code that Inductor generates for a function of tensors like these, on a GPU."""
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    with mode, torch.no_grad():
        fakes = [
            torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device="cuda")
            for each in inputs
        ]
        traced = make_fx(function, decomposition_table=select_decomp_table())(*fakes)
        graph = GraphLowering(traced, example_inputs=fakes, shape_env=mode.shape_env)
        debug = V.set_debug_handler(torch._inductor.debug.DebugContext())
        with V.set_graph_handler(graph), V.set_fake_mode(mode), debug:
            graph.run(*fakes)
            code = graph.codegen()[0]
    return str(getattr(code, "value", code))


def launched(code: str, inputs: Sequence[Tensor]) -> Generated:
    """What the generated code launches, in turn, for tensors without memory."""
    found = []

    def kernel(_, name, source, **__):
        return SimpleNamespace(run=lambda *each, **_: found.append((name, source, each)))

    def empty(sizes, strides, dtype):
        return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")

    guards, scope = torch._C._dynamo.guards, {"__name__": "wrapper"}
    with (
        mock.patch.object(AsyncCompile, "triton", kernel),
        mock.patch.object(guards, "_empty_strided_cuda", empty),
        mock.patch.object(torch.cuda, "_DeviceGuard", mock.MagicMock()),
        mock.patch.object(torch._C, "_cuda_getCurrentRawStream", create=True),
    ):
        exec(compile(code, "wrapper", "exec"), scope)
        scope["call"](list(inputs))  # type: ignore[operator]
    return found


def variants(name: str, source: str, folder: str) -> tuple[Any, Named]:
    """The kernel, and how Inductor would compile it: its meta data and the blocks to try."""
    found = {}

    def noted(size_hints, configs, triton_meta, *_, **__):  # noqa: ARG001
        found.update(configs=configs, meta=triton_meta)
        return lambda function: function

    path = Path(folder, f"{name}.py")  # Triton reads a kernel's source from its file
    path.write_text(source)
    with mock.patch.object(triton_heuristics, "cached_autotune", noted):
        return runpy.run_path(str(path))[name], found


def counted(kernel, meta: Named, block, arguments: Arguments, step: int):
    """The counts of a launch with these blocks, whose lanes read ``step`` bytes apart."""
    names, chosen = kernel.arg_names, block.kwargs
    constants = {**meta["constants"], **{k: v for k, v in chosen.items() if k in names}}
    signature = {name: meta["signature"].get(name, "constexpr") for name in names}
    signature |= dict.fromkeys(constants, "constexpr")
    places = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, places, meta["configs"][0])
    options = {**kernels.OPTIONS, "num_warps": block.num_warps, "num_stages": block.num_stages}
    binary = triton.compile(source, target=kernels.NoDriver().get_current_target(), options=options)
    sizes = dict(
        zip([name for name in names if signature[name] != "constexpr"], arguments, strict=True)
    )
    axes = [
        math.ceil(sizes.get(f"{axis}numel", 1) / chosen.get(f"{axis.upper()}BLOCK", 1))
        for axis in "xy"
    ]
    turns = math.ceil(sizes.get("r0_numel", 1) / chosen.get("R0_BLOCK", 2**31))
    moved = sum({id(each): each.nbytes for each in arguments if isinstance(each, Tensor)}.values())

    def clocks(each):
        if each.base != "LDG" or turns > 1:
            return float(each.words)
        return kernels.clocks_of(max(step, 4 * each.words), each.words)

    warp = kernels.one_warp(kernels.machine_code(binary.asm["cubin"]), lambda _: turns, clocks)
    return kernels.Counts(math.prod(axes), block.num_warps, moved, *warp)


def expected(function: Function, inputs: Sequence[Tensor], step: int) -> float:
    """The seconds T that an H200 should take for what Inductor makes of a function of these
    tensors, if that calls no operator of ATen."""
    with h200(), tempfile.TemporaryDirectory() as folder:
        code = wrapper(function, inputs)
        if re.search(r"= (extern_kernels|torch\.ops|aten)\.", code.partition("def call")[2]):
            raise NotImplementedError("calls ATen")
        best = []
        for name, source, arguments in launched(code, inputs):
            kernel, found = variants(name, source, folder)
            tried = [
                counted(kernel, found["meta"], each, arguments, step) for each in found["configs"]
            ]
            best.append(min(tried, key=lambda each: kernels.predicted([each])))
    return kernels.predicted(best)


def call(operator: str, row) -> tuple[Function, list[Tensor]] | None:
    """What PyTorch's function does in a row, as torch.compile sees it, and what it reads."""
    pool = row.pool_of(functional)
    x, y = (row.random(sizes, "meta") for sizes in (row.sizes, row.output_sizes))
    how = [list(each) for each in (row.window, row.stride, row.padding, row.dilation)]

    def taps(x):
        return prims._low_memory_max_pool_with_offsets(x, *how, row.ceil_mode)

    def backward(pool, *arguments):
        name = f"{pool.replace('pool', f'pool{row.rank}d')}_backward"
        return getattr(torch.ops.aten, name).default(*arguments)

    def max_grad(g, taps, x):
        size, *others = how
        indices = prims._low_memory_max_pool_offsets_to_indices(
            taps, size, list(x.shape[2:]), *others
        )
        return backward("max_pool_with_indices", g, x, *how, row.ceil_mode, indices)

    def avg_grad(g, x):
        return backward("avg_pool", g, x, *how[:3], row.ceil_mode, row.include_padding, None)

    calls = {
        **dict.fromkeys(("max", "avg", "adaptive avg"), (pool, [x])),
        "taps": (taps, [x]),
        "max grad": (max_grad, [y, y.to(torch.int8), x]),
        "avg grad": (avg_grad, [y, x]),
        "adaptive grad": (partial(backward, "_adaptive_avg_pool"), [y, x]),
    }
    return calls.get(operator)
