"""Kernels compiled without a GPU, by Triton alone: their PTX, or an assembled binary."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

SM_90 = GPUTarget("cuda", 90, 32)
POINTERS = {
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float64": "*fp64",
    "int8": "*i8",
    "uint8": "*u8",
    "int16": "*i16",
    "uint16": "*u16",
    "int32": "*i32",
    "uint32": "*u32",
    "int64": "*i64",
    "uint64": "*u64",
}
"""Triton's notation of tensors by their data types' names."""


class Request(NamedTuple):
    """A kernel, its arguments' types in Triton's notation and which are multiples of 16, its
    constants, its warps."""

    kernel: Any
    types: tuple[str | tuple[str, ...], ...]
    aligned: tuple[int, ...]
    constants: tuple[tuple[str, Any], ...]
    warps: int = 4

    def source(self):
        names = self.kernel.arg_names
        signature = dict(zip(names, self.types, strict=False)) | dict.fromkeys(
            names[len(self.types) :], "constexpr"
        )
        attributes = {(i,): [["tt.divisibility", 16]] for i in self.aligned}
        return ASTSource(
            fn=self.kernel, signature=signature, constexprs=dict(self.constants), attrs=attributes
        )

    def options(self):
        return {"num_warps": self.warps, "enable_fp_fusion": True}


class Ptx(NamedTuple):
    text: str
    shared_bytes: int


def ir_of(request, target=SM_90):
    """Triton's own intermediate representation, before any pass."""
    source, compiler = request.source(), make_backend(target)
    options = compiler.parse_options(request.options())
    context = ir.context()
    ir.load_dialects(context)
    compiler.load_dialects(context)
    functions = compiler.get_codegen_implementation(options), compiler.get_module_map()
    module = source.make_ir(target, options, *functions, context)
    module.context = context  # a module does not keep it alive
    return module


def lowered(request, last):
    """For sm_90, from the first to the ``last`` of Triton's stages; nothing is assembled or written
    to its cache."""
    source, compiler, module = request.source(), make_backend(SM_90), ir_of(request)
    options = compiler.parse_options(request.options())
    metadata: dict[str, Any] = {"target": SM_90, **options.__dict__}
    stages: dict[str, Any] = {}
    compiler.add_stages(stages, options, source.language)
    for name in list(stages)[: list(stages).index(last) + 1]:
        module = stages[name](module, metadata)
    return module, metadata


@functools.cache
def ptx(request):
    module, metadata = lowered(request, "ptx")
    return Ptx(str(module), metadata["shared"])


def binary(request, target=SM_90):
    """What Triton would run, from its cache where it is there."""
    return triton.compile(request.source(), target=target, options=request.options())
