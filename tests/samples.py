"""Tensors to pool and ways to compare results: types, data with many ties, layouts, the error bound of averages."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SIGNED = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
INTEGERS = SIGNED + UNSIGNED
INDEX_TYPES = [torch.int32, torch.int64, torch.uint32, torch.uint64]


def name_of(value: object) -> str:
    """Test ids for data types: ``float16`` instead of ``dtype0``."""
    return str(value).removeprefix("torch.")


def seeded(*sizes: int, seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(hash((sizes, seed)) % 2**31)


def ties(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Few distinct values, so that most windows have several greatest elements; both ends of the type occur."""
    generator = seeded(*sizes, seed=seed)
    small = torch.randint(-2, 3, sizes, generator=generator)
    if dtype.is_floating_point:
        # Negative zeros tie with positive ones (M2).
        signs = torch.where(torch.rand(sizes, generator=generator) < 0.5, -1.0, 1.0)
        return (small.double() * signs).to(dtype)
    # By numpy: PyTorch 2.11 lacks masks and torch.where for wide unsigned types on a CPU.
    values = (small + (2 if dtype in UNSIGNED else 0)).to(dtype)
    chosen, array = torch.rand(sizes, generator=generator).numpy(), values.numpy()
    array[chosen < 0.2], array[chosen > 0.8] = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return values


def distinct(*sizes: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """No two elements alike, and none nearer than numerical differentiation steps: max is smooth there."""
    count = math.prod(sizes)
    return ((torch.randperm(count, generator=seeded(*sizes, seed=seed)) - count / 2) / 7).reshape(sizes).to(dtype)


def normal(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=seeded(*sizes, seed=seed), dtype=torch.float64).to(dtype)


def channels_last(tensor: Tensor) -> Tensor:
    """Channels innermost, in PyTorch's format where the rank has one (4-D, 5-D)."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


def _sliced(tensor: Tensor) -> Tensor:
    """Every other element of a larger tensor along the last dimension, and a border cut off the one before."""
    *leading, rows, columns = tensor.shape
    larger = torch.zeros(*leading, rows + 2, 2 * columns + 1, dtype=tensor.dtype, device=tensor.device)
    view = larger[..., 1 : 1 + rows, 1 : 1 + 2 * columns : 2]
    return view.copy_(tensor)


def _offset(tensor: Tensor) -> Tensor:
    """Contiguous, but beginning at an odd element of its storage."""
    flat = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype, device=tensor.device)
    return flat[3:].view(tensor.shape).copy_(tensor)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda tensor: tensor.contiguous(),
    "channels last": channels_last,
    "channels last, sliced": lambda tensor: channels_last(_sliced(tensor))[..., ::1],
    "sliced": _sliced,
    "transposed": lambda tensor: tensor.transpose(-1, -2).contiguous().transpose(-1, -2),
    "batch and channels transposed": lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
    "storage offset": _offset,
    "expanded over the batch": lambda tensor: tensor[:1].expand(tensor.shape),
    "expanded over channels": lambda tensor: tensor[:, :1].expand(tensor.shape),
    "expanded over columns": lambda tensor: tensor[..., :1].expand(tensor.shape),
    "one element everywhere": lambda tensor: tensor.flatten()[:1].view([1] * tensor.dim()).expand(tensor.shape),
}
"""Layouts of a tensor. The expanded ones change its values: compute what is expected from the layout's result."""


def to_numpy(tensor: Tensor) -> np.ndarray:
    """The values, exactly; bfloat16, which numpy lacks, as float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def assert_same(result: Tensor, expected: np.ndarray | Tensor) -> None:
    """Equal as values: NaN equals NaN and the sign of a zero does not matter (M3)."""
    if isinstance(expected, Tensor):
        assert result.dtype == expected.dtype
        expected = to_numpy(expected)
    assert tuple(result.shape) == expected.shape
    np.testing.assert_array_equal(to_numpy(result), expected)


def bits(tensor: Tensor) -> np.ndarray:
    """The elements' bytes, for comparing bit for bit."""
    tensor = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensor.view(torch.uint8).numpy() if tensor.dim() else tensor.numpy()


UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def _assert_within(result: Tensor, exact: np.ndarray, magnitudes: np.ndarray, roundings: int) -> None:
    accumulated = UNIT_ROUNDOFF[torch.float64 if result.dtype == torch.float64 else torch.float32]
    bound = roundings * accumulated * magnitudes
    if result.dtype in (torch.float16, torch.bfloat16):
        # The one rounding at the end (A4); half a unit of the smallest subnormal number where that is larger.
        smallest = float(torch.finfo(result.dtype).smallest_normal) * UNIT_ROUNDOFF[result.dtype]
        bound = bound + np.maximum(UNIT_ROUNDOFF[result.dtype] * (np.abs(exact) + bound), smallest)
    assert tuple(result.shape) == exact.shape
    error = np.abs(to_numpy(result).astype(np.longdouble) - exact)
    worst = np.argmax(error - bound) if error.size else 0
    assert (error <= bound).all(), f"error {error.flat[worst]:.3g} where the bound is {bound.flat[worst]:.3g}"


def assert_average(result: Tensor, exact: np.ndarray, magnitudes: np.ndarray, taps: int) -> None:
    """Rule E6: |error| ≤ (2 + ⌈log₂ taps⌉) · 2⁻²⁴ · Σ|x| / |divisor| before the one rounding (2⁻⁵³ for float64)."""
    _assert_within(result, exact, magnitudes, 2 + math.ceil(math.log2(taps)))


def assert_gradient(result: Tensor, exact: np.ndarray, magnitudes: np.ndarray, terms: int) -> None:
    """A sum of ``terms`` gradients: one rounding for each share and one for each addition, in any order."""
    _assert_within(result, exact, magnitudes, 2 + terms)
