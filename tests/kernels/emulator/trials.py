"""Runs one kernel of a test, or a few lines of PTX written by hand."""

import re

import compiler
import torch
from torch import Tensor

from emulator import machine
from emulator.memory import Memory


def launch(
    kernel,
    tensors: list[Tensor],
    constants: dict,
    programs: int = 1,
    edit=None,
    sizes=(),
    only=None,
    aligned=True,
) -> Memory:
    """Run a kernel with 128 threads, its PTX perhaps edited."""
    types = (
        *(compiler.POINTERS[str(each.dtype).removeprefix("torch.")] for each in tensors),
        *["i32"] * len(sizes),
    )
    pointers = tuple(range(len(tensors) if aligned else 0))
    made = compiler.ptx(compiler.Request(kernel, types, pointers, tuple(constants.items())))
    memory = Memory()
    arguments = [
        memory.address(each, name) for each, name in zip(tensors, kernel.arg_names, strict=False)
    ]
    ptx = edit(made.text) if edit else made.text
    machine.run(
        ptx, memory, [*arguments, *sizes], programs, made.shared_bytes, only or range(programs)
    )
    return memory


def without_barriers(ptx: str) -> str:
    edited = re.sub(r"bar\.sync[^;]*;", "", ptx)
    assert edited != ptx
    return edited


HEADER = """
.visible .entry hand(.param .u64 .ptr .global target) .reqntid 64
{ .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
  ld.param.b64 %rd1, [target]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd2, %r1, 4, %rd1; mov.u32 %r2, 0;
"""


def run_by_hand(body: str) -> Tensor:
    target, memory = torch.zeros(64, dtype=torch.int32), Memory()
    machine.run(HEADER + body + "ret; }", memory, [memory.address(target, "target")], 1, 1024, [0])
    return target
