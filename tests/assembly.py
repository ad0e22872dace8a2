"""Device functions run on numpy arrays from their own source: plain twins as they stand, assembly by the emulator."""

from __future__ import annotations

import types
from collections.abc import Callable

import numpy as np
import ptx
import triton.language as tl
from triton.runtime.jit import ConstexprFunction

KIND_OF = {tl.float32: "f", tl.int32: "r", tl.int16: "h"}
ARRAY_TYPE = {"f": np.float32, "r": np.int32, "h": np.int16}
ELEMENT_TYPE = {tl.float16: np.float16, **{dtype: ARRAY_TYPE[kind] for dtype, kind in KIND_OF.items()}}


class Lanes(np.ndarray):
    """An array with the one method of Triton's tensors that a twin calls."""

    def to(self, dtype: object, bitcast: bool = False) -> Lanes:
        return self.view(ELEMENT_TYPE[dtype]) if bitcast else self.astype(ELEMENT_TYPE[dtype])


def lanes(values: object, dtype: type = np.int32) -> Lanes:
    """As an array; of numbers past the type's range the bits that fit."""
    values = np.asarray(values)
    return (values if values.dtype.kind == "f" else values.astype(np.int64)).astype(dtype).view(Lanes)


def where(condition: np.ndarray, a: object, b: object) -> Lanes:
    kept = next(one for one in (a, b) if isinstance(one, np.ndarray))
    return np.where(condition, a, b).astype(kept.dtype).view(Lanes)


def maximum(a: np.ndarray, b: np.ndarray, propagate_nan: object = None) -> Lanes:
    """Of floating-point numbers as numpy's: a NaN wins."""
    assert isinstance(b, int) or a.dtype == b.dtype
    assert a.dtype.kind != "f" or propagate_nan is tl.PropagateNan.ALL
    return np.maximum(a, b)


def emulated(
    asm: object, constraints: object, args: object, dtype: object, is_pure: bool, pack: int
) -> Lanes | tuple[Lanes, ...]:
    """``tl.inline_asm_elementwise`` on arrays; whatever registers a compiler may let share must make no difference."""
    asm, constraints = str(getattr(asm, "value", asm)), str(getattr(constraints, "value", constraints))
    dtypes = tuple(dtype) if isinstance(dtype, (tuple, list, tl.tuple)) else (dtype,)
    outputs, inputs = ptx.outputs_and_inputs(constraints)
    assert [KIND_OF[one] for one in dtypes] == [one.strip("=&") for one in outputs]
    named = ptx.operands_of(asm)
    assert named <= set(range(len(outputs) + len(inputs)))
    # A word of windows may reach none of a lane's inputs by one of its halves, and leave that half's sum unread.
    assert len(outputs) > 2 or len(named) == len(outputs) + len(inputs)
    assert is_pure
    assert pack == 1
    arrays = np.broadcast_arrays(*(np.asarray(one) for one in args))
    for array, kind in zip(arrays, inputs, strict=True):
        assert array.dtype == ARRAY_TYPE[kind]
    flat = [array.ravel() for array in arrays]
    results = ptx.run(asm, constraints, flat)
    if (asm, constraints) not in CHECKED:
        assert sharing_matters(asm, constraints, flat) is None
        CHECKED.add((asm, constraints))
    shaped = tuple(
        bits.view(ARRAY_TYPE[KIND_OF[one]]).reshape(arrays[0].shape).view(Lanes)
        for bits, one in zip(results, dtypes, strict=True)
    )
    return shaped if isinstance(dtype, (tuple, list, tl.tuple)) else shaped[0]


CHECKED: set[tuple[str, str]] = set()


def sharing_matters(asm: str, constraints: str, inputs: list[np.ndarray]) -> tuple[int, int] | None:
    """The first output and input, if any, that may share a register by the constraints but not by the result."""
    outputs, kinds = ptx.outputs_and_inputs(constraints)
    expected = ptx.run(asm, constraints, inputs)
    for output, kind in enumerate(outputs):
        for input, other in enumerate(kinds, len(outputs)):
            if kind == f"={other}":
                results = ptx.run(asm, constraints, inputs, {output: input})
                if not all((a == b).all() for a, b in zip(results, expected, strict=True)):
                    return output, input
    return None


PLAIN = types.SimpleNamespace(
    where=where, minimum=np.minimum, maximum=maximum, zeros_like=np.zeros_like, static_range=range,
    float32=tl.float32, float16=tl.float16, int32=tl.int32, int16=tl.int16, PropagateNan=tl.PropagateNan,
    inline_asm_elementwise=emulated,
)  # fmt: skip


def plainly(function: object) -> Callable[..., object]:
    """A device function as Python on arrays, with all that it calls."""
    raw = function.fn
    namespace = dict(raw.__globals__) | {"tl": PLAIN}
    for name in raw.__code__.co_names:
        value = namespace.get(name)
        if isinstance(value, tl.constexpr):
            namespace[name] = value.value
        elif hasattr(value, "fn"):  # of triton's, compiled or interpreted
            computed = isinstance(value, ConstexprFunction)
            namespace[name] = value.fn if computed else plainly(value)
    return types.FunctionType(raw.__code__, namespace, raw.__name__, raw.__defaults__)


def of_tensors(
    asm: object, constraints: str, args: object, dtype: object, is_pure: bool, pack: int
) -> object | tuple[object, ...]:
    """``emulated`` for the interpreter's tensors."""
    from triton.runtime.interpreter import TensorHandle

    _, kinds = ptx.outputs_and_inputs(str(getattr(constraints, "value", constraints)))
    arrays = [
        one.handle.data if isinstance(one, tl.tensor) else ARRAY_TYPE[kind](getattr(one, "value", one))
        for one, kind in zip(args, kinds, strict=True)
    ]
    several = isinstance(dtype, (tuple, list, tl.tuple))
    results = emulated(asm, constraints, arrays, dtype, is_pure, pack)
    tensors = tuple(
        tl.tensor(TensorHandle(np.array(one), of), tl.block_type(of, list(one.shape)))
        for one, of in zip(results if several else (results,), dtype if several else (dtype,), strict=True)
    )
    return tensors if several else tensors[0]
