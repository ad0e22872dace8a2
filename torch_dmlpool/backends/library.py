"""The compiled kernels of the CPU (kernels/cpu/library.cpp) as Python sees them: which library is
loaded, whether it fits this package, its structs, and the errors of its functions.

A library takes pointers, structs of numbers and PyTorch's own threads, so it is tied to no version
of Python or PyTorch. It is tied to this package: its version and the layout of its structs are
compared when it is loaded. ``library`` is None where there is none that can be used, and
``missing`` then says why and what to do.
"""

import ctypes
import itertools
import re
import sys
from pathlib import Path
from typing import Any

import torch

from torch_dmlpool import kernels

VERSION = 8
"""``VERSION`` in kernels/cpu/library.cpp: the version of what functions and numbers mean."""
LEVELS = {"AVX512": ("avx512", "avx2", "default"), "AVX2": ("avx2", "default")}
"""The libraries that run on a processor, the fastest first, by the processor's capability as
PyTorch names it."""
ENDING = "dll" if sys.platform == "win32" else "so"
TORCH_CPU = {"win32": "torch_cpu.dll", "darwin": "libtorch_cpu.dylib"}.get(
    sys.platform, "libtorch_cpu.so"
)
"""PyTorch's own library, whose threads the kernels use."""
TAPS, POSITIONS, INDICES = range(3)
"""What the number of a winner is: ``Numbering`` in kernels/cpu/operators.h."""
DONE, NO_MEMORY, FAILED, OUTSIDE = range(4)
"""What a function returns: ``Code`` in kernels/cpu/library.cpp."""


_NUMBER, _POINTER = ctypes.c_int64, ctypes.c_void_p


def _struct(title: str, fields: str, **types: Any) -> type[ctypes.Structure]:
    """A class of structs with these fields, in order: numbers but for those whose types are
    given.
    """
    pairs = [(field, types.get(field, _NUMBER)) for field in fields.split()]
    return type(title, (ctypes.Structure,), {"_fields_": pairs})


AxisStruct = _struct("Axis", "size outputs window stride padding dilation")
"""``Axis`` of kernels/cpu/geometry.h, which has the next three structs too."""
Counting = _struct("Counting", "include_padding divisor end_padding", end_padding=_NUMBER * 3)
Masking = _struct("Masking", "groups planes is_own step channels fill mask", mask=_POINTER)
Problem = _struct(
    "Problem",
    "planes channels axes counting type bytes numbering are_minima masking",
    axes=AxisStruct * 3,
    counting=Counting,
    masking=Masking,
)
Quantization = _struct(
    "Quantization",
    "input_scale output_scale input_zero output_zero "
    "input_scales output_scales input_zeros output_zeros channels low high",
    **dict.fromkeys(("input_scale", "output_scale", "input_zero", "output_zero"), _POINTER),
)
"""``Quantization`` and ``Segments`` are structs of kernels/cpu/operators.h."""
Segments = _struct(
    "Segments",
    "segments channels length set_step row_step mask_step type divisor are_minima correction",
)


_Line = _struct("Line", "name declared bytes", name=ctypes.c_char_p, declared=ctypes.c_char_p)
"""``Line`` of kernels/cpu/library.cpp."""


_Function = _struct("Function", "address operands", address=_POINTER)
"""``Function`` of kernels/cpu/library.cpp."""


def layout() -> dict[str, tuple[list[str], int]]:
    """The fields of each struct and its bytes: what ``dmlpool_layout`` of a library that fits
    says.
    """
    structs = AxisStruct, Counting, Masking, Problem, Quantization, Segments
    return {
        struct.__name__: ([name for name, *_ in struct._fields_], ctypes.sizeof(struct))
        for struct in structs
    }


def _difference(library: Any) -> str | None:
    """The first difference between what a library says of itself and this package, or None."""
    if not hasattr(library, "dmlpool_version"):
        return "it says no version"
    library.dmlpool_version.restype = _NUMBER
    version = library.dmlpool_version()
    if version != VERSION:
        return f"it has version {version}, not {VERSION}"
    library.dmlpool_layout.restype = ctypes.POINTER(_Line)
    theirs: dict[str, tuple[list[str], int]] = {}
    for line in library.dmlpool_layout():
        if line.name is None:  # the table ends here
            break
        # Each name in "int64_t size, end_padding[3];" that is declared.
        names = re.findall(r"\w+(?=[,;[]|$)", line.declared.decode())
        theirs[line.name.decode()] = names, line.bytes
    ours = layout()
    different = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
    return f"{different[0]} is laid out otherwise" if different else None


def load(path: Path) -> tuple[Any, str | None]:
    """The library at ``path``, or why it cannot be used."""
    try:
        library = ctypes.CDLL(str(path))
        difference = _difference(library)
        if difference is not None:
            return None, (
                f"{path.name} was built from other sources than this package ({difference}): "
                "install torch_dmlpool again, from source"
            )
        library.dmlpool_operators.restype = ctypes.POINTER(_Function)
        library.dmlpool_names.restype = ctypes.c_char_p
        operators = library.dmlpool_operators()
        for at, name in enumerate(library.dmlpool_names().decode().split(", ")):
            operator = operators[at]
            prototype: Any = ctypes.CFUNCTYPE(ctypes.c_int32, *(_POINTER,) * operator.operands)
            function = prototype(operator.address)
            function.__name__ = f"dmlpool_{name}"
            setattr(library, function.__name__, function)
        library.dmlpool_message.restype = ctypes.c_char_p
        library.dmlpool_use_threads.argtypes = _POINTER, _POINTER
        library.dmlpool_use_threads.restype = None
        torchs = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / TORCH_CPU))
        threads = torchs.torch_parallel_for, torchs.torch_get_num_threads
    except (OSError, AttributeError) as error:
        why = f"{path.name} cannot be used: {error}; install torch_dmlpool again, from source"
        return None, why
    library.dmlpool_use_threads(*(ctypes.cast(function, _POINTER) for function in threads))
    return library, None


def _load() -> tuple[Any, str | None]:
    """The library for this processor, or why there is none."""
    levels = LEVELS.get(torch.backends.cpu.get_cpu_capability(), ("default",))
    for folder, level in itertools.product(kernels.__path__, levels):
        path = Path(folder, f"cpu_{level}.{ENDING}")
        if path.is_file():
            return load(path)
    return None, (
        f"cpu_{levels[0]}.{ENDING} was not built: install a wheel of this platform, or a C++ "
        "compiler and then torch_dmlpool again, from source"
    )


library, missing = _load()
"""The library has ``dmlpool_average_pooling`` and its like: a function for each name in the table
``OPERATORS`` of kernels/cpu/library.cpp, which ``load`` attaches. kernels/cpu/operators.h says what
each computes and takes."""


def error_of(function: Any, code: int) -> Exception:
    """The exception for the code of a function that did not return DONE."""
    operator = function.__name__.removeprefix("dmlpool_")
    if code == NO_MEMORY:
        return MemoryError(
            f"{operator}: there is no memory for what it needs on the CPU beside its operands"
        )
    reason = library.dmlpool_message().decode(errors="replace")
    return RuntimeError(f"{operator}: its kernel failed on the CPU: {reason}")
