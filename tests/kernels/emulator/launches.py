"""Kernels on CPU tensors: compiled for sm_90 as on a GPU, and run by the emulator."""

import struct

import compiler
from torch import Tensor
from torch.utils._pytree import tree_leaves

from emulator import machine
from emulator.memory import FaultError, Memory
from torch_dmlpool.backends import triton as backend


def launch(how, *arguments):
    """Stands in for the backend's."""
    kernel = backend.kernel_named(*how.kernel.split("."))
    run(kernel, arguments, how.constants, how.programs, how.sizes, how.size_types)


def run(
    kernel,
    arguments,
    constants,
    programs,
    sizes=(),
    size_types=(),
    edit=str,
):
    """Over meta tensors the last program alone runs, and must write the end of each. ``edit``
    changes the PTX."""
    memory, types, bits = Memory(), [], []
    for name, argument in zip(kernel.arg_names, arguments, strict=False):
        if isinstance(argument, Tensor):
            types.append(compiler.POINTERS[str(argument.dtype).removeprefix("torch.")])
            bits.append(memory.address(argument, name))
        else:
            types.append("fp32" if isinstance(argument, float) else "i32")
            packed = struct.pack("<f" if isinstance(argument, float) else "<i", argument)
            bits += struct.unpack("<I", packed)
    aligned = tuple(
        i for i, type_name in enumerate(types) if type_name[0] == "*" and bits[i] % 16 == 0
    )
    types += [size_types] if size_types else []
    made = compiler.ptx(compiler.Request(kernel, tuple(types), aligned, constants))
    bits += [size & (2**64 - 1) for size in tree_leaves(sizes)]
    is_huge = any(segment.data is None for segment in memory.segments)
    chosen = range(programs - 1 if is_huge else 0, programs)
    machine.run(edit(made.text), memory, bits, made.shared_bytes, chosen)
    for segment in memory.segments:
        if segment.stored not in (0, segment.size):
            raise FaultError(f"the last program does not store the end of {segment.name}")
