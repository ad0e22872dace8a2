"""What a few programs of a launch read, write and compute, by Triton's interpreter, without a GPU.

The interpreter's memory answers 0 and notes addresses; operations are counted by weights. In a loop
of run-time length some turns run and the others are counted as theirs. No kernel is known by name.
The weights were fitted to the instructions of PTX that programs of 46 launches execute, which the
tests' emulator counts: the sums are .5 to 1.4 times as many, where a division, 22 instructions of
machine code, counts as one. A process that imports this interprets kernels from then on.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import numpy as np
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

PROCESSORS, MOST_BESIDE = 132, 8  # programs on a multiprocessor, whose L1 they share
L1_SECTORS, SECTOR, LINE = 192 * 1024 // 32, 5, 7  # the last two as powers of 2
IN_FLIGHT = 256  # bytes of a lane
# Instructions of a warp. Most on addresses and masks are folded where a lane owns several elements,
# not where it owns one at most; a reduction's are those of a tree of shuffles.
ACCESS, ON_LOADED, ON_ADDRESSES, ON_SMALL = 2.0, 1.2, 0.13, 0.6
DIVISION, REDUCTION = 22.0, 165.0
TURNS, ENDS = 16, 3  # of a long loop: turns that run for all others, and beside them


class Program:
    """What one program does, added up; what happens in a loop counts ``weight`` times."""

    def __init__(self, programs: int, warps: int) -> None:
        self.lanes = 32 * warps
        self.weight, self.in_loop = 1.0, False
        self.sectors = self.missed = self.lines = self.instructions = 0.0
        self.far_waits = self.near_waits = 0.0
        self.held_bytes = 0.0  # of a lane, by loads that are waited for together
        beside = min(MOST_BESIDE, -(-programs // PROCESSORS))
        self._l1 = L1_SECTORS // max(1, beside)
        self._recent: deque[np.ndarray] = deque()
        self._forget_loads()

    def _forget_loads(self) -> None:
        self._bytes = self._loads = 0.0
        self._depth = self._new = 0

    def wait(self, weight: float) -> None:
        """All loads so far have come, before what counts ``weight`` times."""
        if self._bytes:
            rounds = max(self._depth, -(-self._bytes // (IN_FLIGHT * self.lanes)))
            # The compiler unrolls short loops by four: their loads wait together.
            rounds *= self.weight * (0.25 if self.in_loop and self._loads <= 2 else 1.0)
            if self._new:
                self.far_waits += rounds
            else:
                self.near_waits += rounds
            self.held_bytes = max(self.held_bytes, min(self._bytes / self.lanes, IN_FLIGHT))
        self._forget_loads()
        self.weight = weight

    def computes(self, elements: int, cost: float) -> None:
        """Each warp takes part, also in what has fewer elements than there are lanes."""
        self.instructions += self.weight * cost * max(elements, self.lanes) / 32

    def accesses(self, pointers: TensorHandle, mask: np.ndarray, is_load: bool) -> None:
        """A load or store of a block, by vectors of neighbours where there are lanes enough."""
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        address = np.atleast_1d(pointers.data).astype(np.int64)
        on = np.broadcast_to(np.atleast_1d(mask), address.shape)
        fastest = _fastest_axis(address)
        address, on = (np.moveaxis(each, fastest, -1) for each in (address, on))
        width = _vector(address, size, self.lanes)
        self.computes(address.size // width, ACCESS)
        if not on.any():
            return
        of_warps = _rows(address, 32 * width), _rows(on, 32 * width)
        self.sectors += self.weight * _different(*of_warps, SECTOR)
        self.lines += self.weight * _different(*of_warps, LINE)
        touched = np.unique(address[on] >> SECTOR)
        new = touched.size
        if is_load and self._recent:
            new -= int(np.isin(touched, np.concatenate(self._recent)).sum())
        self.missed += self.weight * new
        self._recent.append(touched)
        while sum(each.size for each in self._recent) > self._l1 and len(self._recent) > 1:
            self._recent.popleft()
        if is_load:
            self._loads += address.size / width / self.lanes
            self._bytes += max(int(on.sum()), self.lanes) * max(size, 4)  # a register each
            self._new += new

    def depends(self, depth: int) -> None:
        """A load is the last of ``depth`` that wait for each other."""
        self._depth = max(self._depth, depth)


def _fastest_axis(address: np.ndarray) -> int:
    """The axis along which addresses grow least."""
    steps = []
    for axis in range(address.ndim):
        step = np.abs(np.diff(address, axis=axis))
        step = step[step > 0]
        steps.append(step.min() if step.size else np.inf)
    return max(range(address.ndim), key=lambda axis: (-steps[axis], axis))


def _vector(address: np.ndarray, size: int, lanes: int) -> int:
    """Neighbours that one lane accesses at once."""
    width = 1
    while (
        2 * width * size <= 16
        and address.shape[-1] % (2 * width) == 0
        and address.size >= 2 * width * lanes
    ):
        vectors = address.reshape(-1, 2 * width)
        if (np.diff(vectors, axis=1) != size).any() or (vectors[:, 0] % (2 * width * size)).any():
            break
        width *= 2
    return width


def _rows(values: np.ndarray, length: int) -> np.ndarray:
    flat = values.reshape(-1)
    return np.pad(flat, (0, -flat.size % length)).reshape(-1, length)


def _different(address: np.ndarray, on: np.ndarray, shift: int) -> int:
    """Blocks of ``2**shift`` bytes that rows access, each row's counted by itself."""
    number = np.sort(np.where(on, address >> shift, -1), axis=1)
    changes = (number[:, 1:] != number[:, :-1]) & (number[:, 1:] >= 0)
    return int(changes.sum() + (number[:, 0] >= 0).sum())


# The interpreter reports to this program.
now: Program


def depth_of(value: object) -> int:
    """Loads that wait for each other behind a value."""
    return getattr(value, "depth", 0)


def loaded(pointers: TensorHandle, mask: TensorHandle | None) -> TensorHandle:
    depth = 1 + max(depth_of(pointers), depth_of(mask))
    on = np.True_ if mask is None else mask.data
    now.accesses(pointers, np.asarray(on), True)
    if np.any(on):
        now.depends(depth)
    element = pointers.get_element_ty()
    zeros = np.zeros(pointers.data.shape, interpreter._get_np_dtype(element))
    result = TensorHandle(zeros, element)
    result.depth = depth
    return result


def stored(pointers: TensorHandle, mask: TensorHandle | None) -> None:
    now.accesses(pointers, np.asarray(True if mask is None else mask.data), False)


FREE = ("splat", "broadcast", "expand", "reshape", "trans", "join", "split", "cat", "bitcast")
NO_INSTRUCTION = ("create_get", "create_make_range")
CALLS_ANOTHER = ("create_sdiv", "create_udiv")
DIVIDES = ("create_idiv", "create_srem", "create_urem")


def noted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """An operation that counts, and whose result waits for what it is made of."""
    is_free = name in CALLS_ANOTHER or name.startswith(NO_INSTRUCTION)
    is_free = is_free or any(each in name for each in FREE)

    @functools.wraps(method)
    def computed(*given: Any, **named: Any) -> Any:
        result = method(*given, **named)
        depth = max(map(depth_of, given), default=0)
        parts = result if isinstance(result, tuple) else (result,)
        for part in parts:
            if isinstance(part, TensorHandle):
                part.depth = max(depth, depth_of(part))
        if not is_free and isinstance(result, TensorHandle):
            elements = result.data.size
            cost = ON_ADDRESSES if elements >= now.lanes else ON_SMALL
            if name in DIVIDES and (depth or elements >= now.lanes):
                now.computes(elements, DIVISION)
            elif depth or elements > 1:
                now.computes(elements, ON_LOADED if depth else cost)
        return result

    return computed


def combined(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """A reduction, or a scan, which counts as one: shapes without values."""
    results = []
    scans = isinstance(self, interpreter.ScanOps)
    for each in inputs:
        data, depth = each.handle.data, depth_of(each.handle)
        now.computes(now.lanes, REDUCTION)
        if not scans:
            data = data.max() if self.axis is None else data.max(self.axis, keepdims=self.keep_dims)
        result = self.to_tensor(data, each.dtype)
        result.handle.depth = depth
        results.append(result)
    return results


def turns(*given: Any, **_: Any) -> Iterator[int]:
    """``range``; where its length is a number at run time the middle of a long loop stands for all
    turns, after one that warms L1."""
    # Triton 3.6 keeps a number in an array of one entry, which NumPy 2.4 converts by item() alone.
    numbers = (each.handle.data.item() if isinstance(each, tl.tensor) else each for each in given)
    span = range(*map(int, numbers))
    if not any(isinstance(each, tl.tensor) for each in given):
        yield from span
        return
    outer, was_in_loop = now.weight, now.in_loop
    chosen = [(i, 1.0) for i in range(len(span))]
    if len(span) > TURNS + 2 * ENDS:
        middle = (len(span) - TURNS) // 2
        each = (len(span) - ENDS) / TURNS
        chosen = [(0, 1.0), (1, 1.0), (middle - 1, 0.0)]
        chosen += [(middle + i, each) for i in range(TURNS)] + [(len(span) - 1, 1.0)]
    for i, weight in chosen:
        now.wait(outer * weight)
        now.in_loop = len(span) >= 4
        yield span[i]
    now.wait(outer)
    now.in_loop = was_in_loop


@functools.cache
def prepare_interpreter() -> None:
    """For the rest of this process."""
    for name in dir(InterpreterBuilder):
        if name.startswith("create_") and "load" not in name and "store" not in name:
            setattr(InterpreterBuilder, name, noted(name, getattr(InterpreterBuilder, name)))
    InterpreterBuilder.create_load = lambda _, *given: loaded(given[0], None)
    InterpreterBuilder.create_masked_load = lambda _, *given: loaded(given[0], given[1])
    InterpreterBuilder.create_store = lambda _, *given: stored(given[0], None)
    InterpreterBuilder.create_masked_store = lambda _, *given: stored(given[0], given[2])
    interpreter.ReduceOps.apply_impl = interpreter.ScanOps.apply_impl = combined
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    tl.range = turns
    if not hasattr(tl.tensor, "__index__"):
        tl.tensor.__index__ = lambda self: int(self.handle.data.item())
    # Once is enough: a launch, and every call inside one, would do it again.
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()


def arguments_of(how: Any, operands: tuple[Any, ...], function: Any, names: list[str]) -> Any:
    """By name, as the interpreter has them; each tensor lies far from the others."""
    places: dict[int, int] = {}
    given = []
    for each in operands:
        if isinstance(each, Tensor):
            place = places.setdefault(id(each), (len(places) + 1) << 44)
            given.append(SimpleNamespace(dtype=each.dtype, data_ptr=lambda place=place: place))
        else:
            given.append(each)
    constants = {name: value for name, value in how.constants if name in names}
    every = inspect.getcallargs(function, *given, how.sizes, **constants)
    return {
        name: value if name in constants else interpreter._implicit_cvt(value)
        for name, value in every.items()
    }


def programs_of(
    kernel: Any, how: Any, operands: tuple[Any, ...], warps: int, chosen: list[int]
) -> list[Program]:
    """What the chosen programs of a launch do."""
    global now
    prepare_interpreter()
    for name, module in list(sys.modules.items()):
        if name.startswith("torch_dmlpool.kernels."):
            vars(module)["range"] = turns
    function, done = kernel.rewrite(), []
    now = Program(how.programs, warps)
    arguments = arguments_of(how, operands, function, kernel.arg_names)
    interpreter.interpreter_builder.set_grid_dim(how.programs, 1, 1)
    for number in chosen:
        now = Program(how.programs, warps)
        interpreter.interpreter_builder.set_grid_idx(number, 0, 0)
        with np.errstate(all="ignore"):
            function(**arguments)
        now.wait(1.0)
        done.append(now)
    return done
