"""Kernels inside compiled programs: traced for a CUDA device that is not there, up to its machine code (E2)."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_dmlpool as dmlpool
from torch_dmlpool import backends
from torch_dmlpool.backends import torch_backend
from torch_dmlpool.packages import inlined_kernels

triton = pytest.importorskip("triton")
compiler = pytest.importorskip("triton.backends.compiler")

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="compiles kernels: TRITON_INTERPRET=1 replaces the compiler"
)
TARGET = compiler.GPUTarget("cuda", 90, 32)


class Driver:
    """What asks a driver is told of a device of compute capability 9.0."""

    def get_current_target(self) -> Any:
        return TARGET

    def get_current_device(self) -> int:
        return 0


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What asks finds a CUDA device that Triton serves."""
    if torch.cuda.is_available():
        pytest.skip("a device is here, and would be asked")
    from torch_dmlpool.backends import triton_backend, triton_launches

    serving = {"cuda": triton_backend, "cpu": torch_backend}
    monkeypatch.setattr(backends, "serving", serving.__getitem__)
    monkeypatch.setattr(triton_launches, "_generation", lambda _: 9)
    triton.runtime.driver.set_active(Driver())
    yield
    triton.runtime.driver._active = None


class Few(torch.nn.Module):
    """With operators around and between them."""

    def forward(self, input: Tensor, integers: Tensor) -> tuple[Any, ...]:
        features, indices = dmlpool.max_pooling(input.relu(), 3, 2, 1, 1, return_indices=True)
        pooled = dmlpool.quantized_linear_average_pooling(integers, 0.5, 3, 0.25, 2, 2)
        return dmlpool.average_pooling(features, 2, dilations=2) * 2, indices, pooled


class Network(Few):
    """Every family that inference has."""

    def forward(self, input: Tensor, integers: Tensor) -> tuple[Any, ...]:
        return (
            *super().forward(input, integers),
            dmlpool.max_pooling(input, (2, 5), 2),
            dmlpool.nn.functional.adaptive_avg_pool2d(input, 3),
            dmlpool.lp_pooling(input, 2, 2),
        )


def program_of(module: torch.nn.Module, device: str, **options: Any) -> torch.export.ExportedProgram:
    with FakeTensorMode():
        input = torch.empty(2, 8, 16, 16, device=device)
        integers = torch.empty(input.shape, dtype=torch.uint8, device=device)
        return torch.export.export(module, (input, integers), **options)


def inlined(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    assert "dmlpool" in program.graph_module.code
    with FakeTensorMode():
        # Operators made of others are taken apart first, as AOTInductor does.
        program = program.run_decompositions(torch.export.default_decompositions())
        with inlined_kernels():
            return program.run_decompositions({})


LAUNCH = "triton_kernel_wrapper_functional"


@pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) > (3, 7),
    reason="PyTorch 2.13 does not see which pointers a kernel only reads in what later versions of Triton write",
)
def test_operators_become_launches(fake_cuda: None) -> None:
    """No operator is left, and each launch writes what it makes and nothing else."""
    program = program_of(Few(), "cuda")
    graph = inlined(program).graph
    assert "dmlpool" not in str(graph)
    written = [node.kwargs["tensors_to_clone"] for node in graph.nodes if str(node.target) == LAUNCH]
    assert written == [["y", "t"], ["target"], ["target"]]
    results = [node.meta["val"] for node in graph.output_node().args[0]]
    assert [(tuple(each.shape), each.dtype) for each in results] == [
        ((2, 8, 6, 6), torch.float32),
        ((2, 8, 8, 8), torch.int64),
        ((2, 8, 15, 15), torch.uint8),
    ]
    # Outside, a compiler sees the operators as ever.
    assert "dmlpool.max_pooling" in program.run_decompositions({}).graph_module.code


def test_other_devices_keep_their_operators(fake_cuda: None) -> None:
    code = inlined(program_of(Few(), "cpu")).graph_module.code
    assert "triton" not in code
    assert "dmlpool.average_pooling" in code


def test_dynamic_sizes_are_refused(fake_cuda: None) -> None:
    dynamic = {0: torch.export.Dim("batch", min=2)}
    with pytest.raises(Exception, match="max_pooling_with_indices depends on a dynamic size, s"):
        inlined(program_of(Few(), "cuda", dynamic_shapes=(dynamic, dynamic)))


@pytest.mark.slow
@pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="what stands in for a device are insides of PyTorch 2.13"
)
def test_machine_code(fake_cuda: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor's code holds the kernels with all that they call, and Triton compiles them from there."""
    code = code_of_inductor(inlined(program_of(Network(), "cuda")), monkeypatch)
    sources = re.findall(r"^(\w+) = async_compile\.triton\('\w+', '''(.*?)''', device_str", code, re.S | re.M)
    compiled = {}
    for name, source in sources:
        if "user_autotune" in source:
            path = tmp_path / f"{name}.py"
            path.write_text(source.replace("\\'", "'").replace("\\\\", "\\"))
            compiled[name.rsplit("_", 1)[0]] = machine_code(name, path, monkeypatch)
    assert set(compiled) == {"max_windows", "sum_tile", "quantized_tile", "sum_bins"}
    assert all(code.startswith(b"\x7fELF") for code in compiled.values())


def code_of_inductor(program: torch.export.ExportedProgram, monkeypatch: pytest.MonkeyPatch) -> str:
    """What Inductor writes for a device that it is told of."""
    from torch._inductor import config, scheduler
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.post_grad import decompose_triton_kernel_wrapper_functional
    from torch._inductor.graph import GraphLowering
    from torch._inductor.runtime.hints import DeviceProperties
    from torch._inductor.virtualized import V

    known = {"multi_processor_count": 132, "major": 9, "regs_per_multiprocessor": 65536, "warp_size": 32}
    threads = {"max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024}
    properties = DeviceProperties(type="cuda", index=0, cc=90, **known, **threads)
    monkeypatch.setattr(DeviceProperties, "create", classmethod(lambda *_: properties))
    device = types.SimpleNamespace(**known, **threads, minor=0, total_memory=2**36, name="a device")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: device)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(scheduler, "has_triton", lambda *_: True)
    (mode,) = {node.meta["val"].fake_mode for node in program.graph.nodes if node.op == "placeholder"}
    with mode:
        graph_module = program.run_decompositions(select_decomp_table()).graph_module
    decompose_triton_kernel_wrapper_functional(graph_module.graph)
    graph_module.recompile()
    inputs = [node.meta["val"] for node in graph_module.graph.nodes if node.op == "placeholder"]
    with (
        V.set_debug_handler(DebugContext()),
        V.set_fake_mode(mode),
        config.patch({"triton.autotune_at_compile_time": False}),
    ):
        lowering = GraphLowering(graph_module, inputs)
        with V.set_graph_handler(lowering):
            lowering.run(*inputs)
            return lowering.codegen()[0].value


def machine_code(name: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """The kernel in a module that Inductor wrote, compiled with the signature and the constants that stand there."""
    from torch._inductor.runtime import triton_heuristics

    found: dict[str, Any] = {}

    def user_autotune(**arguments: Any) -> Any:
        return lambda kernel: found.update(kernel=kernel, **arguments)

    monkeypatch.setattr(triton_heuristics, "user_autotune", user_autotune)
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, name, module)
    specification.loader.exec_module(module)
    kernel, meta, (configuration,) = found["kernel"], found["triton_meta"], found["configs"]
    constants = {**meta["constants"], **configuration.get("kwargs", configuration)}
    numbers = {
        (kernel.arg_names.index(argument),): value
        for argument, value in constants.items()
        if meta["signature"].get(argument) == "constexpr"
    }
    source = triton.compiler.ASTSource(kernel, meta["signature"], numbers, meta["configs"][0])
    return triton.compile(source, target=TARGET).asm["cubin"]
