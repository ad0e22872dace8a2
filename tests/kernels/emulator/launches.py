"""Launches of the Triton backend on CPU tensors: compiled for sm_90 as on a GPU, and run by the
emulator."""

import struct
from typing import Any

import compiler
from torch import Tensor
from torch.utils._pytree import tree_leaves

from emulator import machine
from emulator.memory import FaultError, Memory
from torch_dmlpool.backends import triton as backend


def launch(how: Any, *arguments: Any) -> None:
    """Stands in for the backend's: over meta tensors the last program alone runs, and must write
    the end of each."""
    kernel = backend.kernel_named(*how.kernel.split("."))
    memory, types, bits = Memory(), [], []
    for name, argument in zip(kernel.arg_names, arguments, strict=False):
        if isinstance(argument, Tensor):
            types.append(compiler.POINTERS[str(argument.dtype).removeprefix("torch.")])
            bits.append(memory.address(argument, name))
        else:
            types.append("fp32" if isinstance(argument, float) else "i32")
            bits.append(
                struct.unpack(
                    "<I", struct.pack("<f" if isinstance(argument, float) else "<i", argument)
                )[0]
            )
    aligned = tuple(
        i for i, type_name in enumerate(types) if type_name[0] == "*" and bits[i] % 16 == 0
    )
    made = compiler.ptx(compiler.Request(kernel, (*types, how.size_types), aligned, how.constants))
    bits += [size & (2**64 - 1) for size in tree_leaves(how.sizes)]
    huge = any(segment.data is None for segment in memory.segments)
    programs = range(how.programs - 1 if huge else 0, how.programs)
    machine.run(made.text, memory, bits, how.programs, made.shared_bytes, programs)
    for segment in memory.segments:
        if segment.stored not in (0, segment.size):
            raise FaultError(
                f"the last program of {how.kernel} does not store the end of {segment.name}"
            )
