"""Tensors to pool, in every type, layout and kind; how results are compared with the oracle."""

from __future__ import annotations

import ctypes
import math
import mmap
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import oracle
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SIGNED_FOR = [torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]
INTEGERS = SIGNED_FOR + UNSIGNED
INDEX_TYPES = [torch.int32, torch.int64, torch.uint32, torch.uint64]


def name_of(value):
    """Test ids for data types: ``float16`` instead of ``dtype0``."""
    return str(value).removeprefix("torch.")


def seeded(*sizes, seed=0):
    return torch.Generator().manual_seed(hash((sizes, seed)) % 2**31)


def ties(*sizes, dtype=torch.float32, seed=0):
    """Few distinct values, so that most windows have several greatest elements; both ends of the
    type occur."""
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


def any_bytes(bools):
    """``bools`` whose True are 1 to 255, as in views of images; PyTorch reads each as True."""
    drawn = torch.randint(1, 256, bools.shape, generator=seeded(*bools.shape), dtype=torch.uint8)
    return (bools.to(torch.uint8) * drawn).view(torch.bool)


MASKS: dict[str, Callable[[Sequence[int]], Sequence[int]]] = {
    "each element": lambda sizes: sizes,
    "each sample": lambda sizes: (sizes[0], 1, *sizes[2:]),
    "each channel": lambda sizes: (1, *sizes[1:]),
    "one plane": lambda sizes: sizes[2:],
    "one row": lambda sizes: (*(1 for _ in sizes[3:]), sizes[-1]),
    "whole planes": lambda sizes: (*sizes[:2], *(1 for _ in sizes[2:])),
    "one element": lambda sizes: [1] * len(sizes),
}
"""Shapes that broadcast to an input's: of as many dimensions, or of the spatial ones alone."""


def mask_of(name, sizes):
    """Half of it True, and for each element no element of the first plane at all."""
    shape = MASKS[name](sizes)
    mask = torch.rand(*shape, generator=seeded(*shape, 5)) < 0.5
    if name == "each element":
        mask[0, 0] = False
    return any_bytes(mask)


def masked(name, input):
    """A mask for the input, and what the oracle takes for it."""
    if name == "no mask":
        return None, None
    mask = mask_of(name, tuple(input.shape)).to(input.device)
    return mask, to_numpy(mask.expand(input.shape))


def distinct(*sizes, dtype=torch.float64, seed=0):
    """No two elements alike, and none nearer than numerical differentiation steps: max is smooth
    there."""
    count = math.prod(sizes)
    numbers = torch.randperm(count, generator=seeded(*sizes, seed=seed)) - count / 2
    return (numbers / 7).reshape(sizes).to(dtype)


def normal(*sizes, dtype=torch.float32, seed=0):
    return torch.randn(sizes, generator=seeded(*sizes, seed=seed), dtype=torch.float64).to(dtype)


def special(*sizes, dtype=torch.float32, seed=0):
    """Ties of NaNs, infinities and both zeros, and a plane of -inf; of signed integers nothing that
    padding exceeds."""
    values = ties(*sizes, dtype=dtype, seed=seed)
    if not dtype.is_floating_point:
        return values if dtype in UNSIGNED else values.clamp(max=-2)
    chosen = torch.rand(sizes, generator=seeded(*sizes, seed=seed))
    for bound, value in ((0.4, -math.inf), (0.15, math.nan), (0.05, math.inf)):
        values[chosen < bound] = value
    values[:1, :1] = -math.inf
    return values


def listed(outputs):
    return [outputs] if isinstance(outputs, Tensor) else list(outputs)


def results(function, input, parameters=(), **arguments):
    """The outputs, and the gradients of the input and of parameters for one that the output's shape
    alone decides."""
    leaf = input.detach().requires_grad_(input.is_floating_point())
    outputs = listed(function(leaf, **arguments))
    if not outputs[0].requires_grad:
        return outputs
    incoming = normal(*outputs[0].shape, dtype=outputs[0].dtype, seed=7).to(input.device)
    gradients = torch.autograd.grad(outputs[0], [leaf, *parameters], incoming)
    return [*(output.detach() for output in outputs), *gradients]


def channels_last(tensor):
    """Channels innermost, in PyTorch's format where the rank has one (4-D, 5-D)."""
    return tensor.movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1)


def _sliced(tensor):
    """Every other element of a larger tensor along the last dimension, and a border cut off the one
    before."""
    *leading, rows, columns = tensor.shape
    view = tensor.new_zeros(*leading, rows + 2, 2 * columns + 1)[..., 1:-1, 1::2]
    return view.copy_(tensor)


def _offset(tensor):
    """Contiguous, but beginning at an odd element of its storage, and on a CPU at odd addresses."""
    memory = unaligned(tensor.new_zeros(tensor.numel() + 3))
    return memory[3:].view(tensor.shape).copy_(tensor)


def unaligned(tensor):
    """The same on a CPU in elements that lie at odd addresses, as those of a buffer may. PyTorch
    itself cannot copy complex numbers there."""
    if tensor.device.type != "cpu" or tensor.is_complex() or not tensor.numel():
        return tensor
    memory = bytearray(tensor.numel() * tensor.itemsize + 1)
    elements = torch.frombuffer(memory, dtype=tensor.dtype, offset=1)
    return elements.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


def forbid(begin, size):
    """Whoever touches this memory from now on crashes."""
    if sys.platform == "win32":
        no_access, before = 1, ctypes.byref(ctypes.c_ulong())
        assert ctypes.windll.kernel32.VirtualProtect(begin, size, no_access, before)
    else:
        assert ctypes.CDLL(None).mprotect(begin, size, 0) == 0


def fenced(tensor, at_end=True):
    """The same without gaps between its elements, and with a page after or before it that a CPU
    must not touch."""
    if tensor.device.type != "cpu":
        return tensor
    size, page = tensor.numel() * tensor.itemsize, mmap.PAGESIZE
    room = -(-size // page) * page
    memory = torch.frombuffer(mmap.mmap(-1, room + 2 * page), dtype=torch.uint8)
    for fence in (0, page + room):
        forbid(ctypes.c_void_p(memory.data_ptr() + fence), ctypes.c_size_t(page))
    elements = memory[page : page + room].view(tensor.dtype)
    begin = elements.storage_offset() + at_end * (room - size) // tensor.itemsize
    return elements.as_strided(tensor.shape, tensor.stride(), begin).copy_(tensor)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": Tensor.contiguous,
    "channels last": channels_last,
    "channels last, sliced": lambda x: channels_last(_sliced(x))[..., ::1],
    "sliced": _sliced,
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "batch and channels transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "storage offset": _offset,
    "expanded over the batch": lambda x: x[:1].expand(x.shape),
    "expanded over channels": lambda x: x[:, :1].expand(x.shape),
    "expanded over columns": lambda x: x[..., :1].expand(x.shape),
    "one element everywhere": lambda x: x.flatten()[:1].view([1] * x.dim()).expand(x.shape),
    "before a fence": lambda x: fenced(x.contiguous()),
    "after a fence": lambda x: fenced(x.contiguous(), at_end=False),
    "channels last, before a fence": lambda x: fenced(channels_last(x)),
    "channels last, after a fence": lambda x: fenced(channels_last(x), at_end=False),
}
"""Layouts of a tensor. The expanded ones change its values: compute what is expected from the
layout's result."""


class Overriding(Tensor):
    """A subclass that overrides functions of PyTorch's and nothing else."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


def plain(value):
    """The numbers of a tensor in memory of their own, as a tensor of no special kind; what is no
    tensor as it is."""
    if not isinstance(value, Tensor):
        return value
    if value._is_zerotensor():
        return torch.zeros(value.shape, dtype=value.dtype, device=value.device)
    with torch.inference_mode(False):
        copied = torch.empty(value.shape, dtype=value.dtype, device=value.device)
        return copied.copy_(value.detach().as_subclass(Tensor))


def _imaginary(tensor):
    """The imaginary part of a conjugated tensor, which is the way that most negated views come
    about."""
    return torch.complex(torch.zeros_like(tensor), tensor.neg()).conj().imag


def _without_memory(tensor):
    """A part of others: its pointer is not 0."""
    sizes = 2, *tensor.shape
    return torch._efficientzerotensor(sizes, dtype=tensor.dtype, device=tensor.device)[1]


def _inferred(tensor):
    with torch.inference_mode():
        return tensor.clone()


NUMBERS = FLOATS + INTEGERS
KINDS: dict[str, tuple[Callable[[Tensor], Tensor], list[torch.dtype]]] = {
    "negated": (lambda x: torch._neg_view(x.neg()), FLOATS + SIGNED_FOR),
    "imaginary": (_imaginary, FLOATS[:2]),
    "zeros without memory": (_without_memory, NUMBERS),
    "expanded": (lambda x: x[(slice(1),) * min(2, x.dim())].expand(x.shape), NUMBERS),
    "one element everywhere": (lambda x: x.flatten()[0].expand(x.shape), NUMBERS),
    "made in inference mode": (_inferred, NUMBERS),
    "overriding functions": (lambda x: x.as_subclass(Overriding), NUMBERS),
}
"""Tensors whose elements are not what lies in their memory, or which PyTorch handles in a way of
its own: how to make each kind, and the data types that PyTorch has it for. Some kinds have other
numbers than the tensor that they are made of."""


def of_kind(kind, tensor):
    """The kind of a tensor, None where PyTorch has none of this data type."""
    make, dtypes = KINDS[kind]
    return make(tensor.detach()) if tensor.dtype in dtypes else None


def to_numpy(tensor):
    """The values, exactly; bfloat16, which numpy lacks, as float32, and bools as 0 and 1."""
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bool:
        return tensor.to(torch.uint8).numpy().view(bool)
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def assert_same(result, expected):
    """Equal as values: NaN equals NaN and the sign of a zero does not matter (M3)."""
    if isinstance(expected, Tensor):
        assert result.dtype == expected.dtype
        expected = to_numpy(expected)
    assert tuple(result.shape) == expected.shape
    np.testing.assert_array_equal(to_numpy(result), expected)


def bits(tensor):
    """The elements' bytes, for comparing bit for bit."""
    tensor = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
    return tensor.view(torch.uint8).numpy() if tensor.dim() else tensor.numpy()


UNIT_ROUNDOFF = {dtype: torch.finfo(dtype).eps / 2 for dtype in FLOATS}


def _assert_within(result, exact, magnitudes, roundings, terms, sides=1):
    accumulated = UNIT_ROUNDOFF[torch.float64 if result.dtype == torch.float64 else torch.float32]
    # What the oracle's own sum may be off by: a long double is a double on Windows and ARM Macs.
    oracles = (terms + 2) * float(np.finfo(np.longdouble).eps) / 2
    bound = (roundings * accumulated + oracles) * magnitudes
    if result.dtype in (torch.float16, torch.bfloat16):
        # The one rounding at the end (A4); half a unit of the smallest subnormal number where that
        # is larger.
        smallest = float(torch.finfo(result.dtype).smallest_normal) * UNIT_ROUNDOFF[result.dtype]
        bound = bound + np.maximum(UNIT_ROUNDOFF[result.dtype] * (np.abs(exact) + bound), smallest)
    assert tuple(result.shape) == exact.shape
    error = np.abs(to_numpy(result).astype(np.longdouble) - exact) / sides
    worst = np.argmax(error - bound) if error.size else 0
    assert (error <= bound).all(), (
        f"error {error.flat[worst]:.3g} where the bound is {bound.flat[worst]:.3g}"
    )


def assert_average(result, exact, magnitudes, taps):
    """Rule E6: |error| ≤ (2 + ⌈log₂ taps⌉) · 2⁻²⁴ · Σ|x| / |divisor| before the one rounding (2⁻⁵³
    for float64)."""
    _assert_within(result, exact, magnitudes, 2 + math.ceil(math.log2(taps)), taps)


def assert_near(result, right, magnitudes, roundings):
    """Two sums of the same terms in other orders: each is within a bound on roundings of the exact
    one."""
    assert result.dtype == right.dtype
    exact, added = (to_numpy(each).astype(np.longdouble) for each in (right, magnitudes.abs()))
    _assert_within(result, exact, added, roundings, 0, sides=2)


def assert_gradient(result, exact, magnitudes, terms):
    """A sum of ``terms`` gradients: one rounding for each share and one for each addition, in any
    order."""
    _assert_within(result, exact, magnitudes, 2 + terms, terms)


def assert_norms(result, exact, taps):
    """Powers, sums, and a root, which divides the relative error of the sum by p: a few roundings
    more than an average."""
    _assert_within(result, exact, exact, 12 + math.ceil(math.log2(taps)), taps)


operators = torch.ops.dmlpool


def spelled_out(pooling):
    """The six window arguments of the registered operators."""
    return tuple(
        list(entry) if isinstance(entry, tuple) else entry for entry in vars(pooling).values()
    )


def check_maximum(input, pooling):
    """Values, both kinds of index, and taps."""
    expected = oracle.maximum(to_numpy(input), pooling)
    arguments = spelled_out(pooling)
    assert_same(dmlpool.max_pooling(input, **vars(pooling)), expected.values)
    values, indices = dmlpool.max_pooling(input, **vars(pooling), return_indices=True)
    assert_same(values, expected.values)
    assert_same(indices, expected.indices)
    assert values.dtype == input.dtype
    assert indices.dtype == torch.int64
    values, taps = operators.max_pooling_with_taps(input, *arguments)
    assert_same(values, expected.values)
    assert_same(taps, expected.taps)
    values, positions = operators.max_pooling_with_indices(input, *arguments, torch.int32, True)
    assert_same(values, expected.values)
    assert_same(positions, expected.plane_indices)
    for per_plane, numbers in ((False, expected.indices), (True, expected.plane_indices)):
        rest = input.shape[2:], *arguments, torch.int64, per_plane
        assert_same(operators.max_pooling_indices(taps, *rest), numbers)


def whole_gradient(input, pooling, seed=1):
    """An incoming gradient of small whole numbers: sums are exact in every type, so results must be
    equal."""
    sizes = (*input.shape[:2], *oracle.output_sizes(pooling, input.shape[2:]))
    return ties(*sizes, dtype=input.dtype, seed=seed).to(input.device)


def check_maximum_gradient(input, gradient, pooling):
    """The gradient operator, autograd's backward pass, and the two operators in between."""
    maximum = oracle.maximum(to_numpy(input), pooling)
    expected = oracle.handed_back(maximum, to_numpy(gradient), input.shape)
    arguments = spelled_out(pooling)
    assert_same(dmlpool.max_pooling_grad(input, gradient, **vars(pooling)), expected)

    leaf = input.detach().requires_grad_()
    pooled = dmlpool.max_pooling(leaf, **vars(pooling))
    assert_same(*torch.autograd.grad(pooled, leaf, gradient), expected)

    _, taps = operators.max_pooling_with_taps(input, *arguments)
    for channels_last in (False, True)[: input.dim() - 2]:
        rest = taps, input.shape[2:], *arguments, channels_last
        assert_same(operators.max_pooling_grad_from_taps(gradient, *rest), expected)
    gathered = np.where(maximum.plane_indices < 0, 0, maximum.values)
    assert_same(operators.max_pooling_gather(input, taps, *arguments), gathered)


def check_average(input, pooling, include_padding=False, divisor_override=None, mask="no mask"):
    """The average within the bound of E6."""
    divisor = {"include_padding": include_padding, "divisor_override": divisor_override}
    there, whole = masked(mask, input)
    result = dmlpool.average_pooling(input, **vars(pooling), **divisor, mask=there)
    assert result.dtype == input.dtype
    expected = oracle.average(to_numpy(input), pooling, **divisor, mask=whole)
    assert_average(result, *expected, math.prod(pooling.window_size))
    return result


def check_average_gradient(
    gradient, sizes, pooling, include_padding=False, divisor_override=None, mask="no mask"
):
    """Autograd's backward pass, and the gradient operator, which has no mask."""
    divisor = {"include_padding": include_padding, "divisor_override": divisor_override}
    input_size = (*gradient.shape[:2], *sizes)
    leaf = torch.zeros(input_size, dtype=gradient.dtype, device=gradient.device, requires_grad=True)
    there, whole = masked(mask, leaf)
    output = dmlpool.average_pooling(leaf, **vars(pooling), **divisor, mask=there)
    results = [*torch.autograd.grad(output, leaf, gradient)]
    if there is None:
        result = dmlpool.average_pooling_grad(gradient, input_size, **vars(pooling), **divisor)
        results.append(result)
    expected = oracle.average_grad(to_numpy(gradient), sizes, pooling, **divisor, mask=whole)
    for result in results:
        assert result.dtype == gradient.dtype
        assert_gradient(result, *expected, math.prod(pooling.window_size))


QUANTIZED_INTEGERS = [torch.uint8, torch.int8]
PARAMETER_FORMS = ["number", "0-D", "one element", "per channel", "per channel, spread"]
TIES = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0]
"""Scales whose quotients make many true ties."""


@dataclass(frozen=True)
class Parameters:
    """The four parameters, an entry per channel each."""

    input_scales: tuple[float, ...]
    input_zeros: tuple[int, ...]
    output_scales: tuple[float, ...]
    output_zeros: tuple[int, ...]

    def given(self, forms, types, rank):
        """The arguments of the public function; a form for all channels takes the first one's
        entry."""
        kinds = (torch.float32, types[0], torch.float32, types[1])
        return [given(*row, rank) for row in zip(vars(self).values(), forms, kinds, strict=True)]

    def understood(self, forms):
        """What arguments given in ``forms`` mean."""
        pairs = zip(vars(self).values(), forms, strict=True)
        return Parameters(
            *(row if "channel" in form else row[:1] * len(row) for row, form in pairs)
        )


def given(entries, form, dtype, rank):
    tensor = torch.tensor(entries, dtype=dtype)
    return {
        "number": entries[0],
        "0-D": tensor[0],
        "one element": tensor[:1].view([1] * (rank + 2)),
        "per channel": tensor,
        "per channel, spread": tensor.view(1, -1, *[1] * rank),
    }[form]


def float32(number):
    return float(np.float32(number))


def drawn(seed, channels, types, ties=False):
    """Parameters of no special kind, or of many ties; the result mostly neither constant nor cut
    off."""
    chosen = random.Random(seed)

    def scales():
        if ties:
            return tuple(chosen.choice(TIES) for _ in range(channels))
        return tuple(float32(chosen.uniform(0.05, 0.2)) for _ in range(channels))

    def zeros(dtype):
        ends = torch.iinfo(dtype)
        return tuple(chosen.randint(ends.min, ends.max) for _ in range(channels))

    return Parameters(scales(), zeros(types[0]), scales(), zeros(types[1]))


def integers(*sizes, dtype, seed=0):
    ends = torch.iinfo(dtype)
    generator = seeded(*sizes, seed=seed)
    return torch.randint(ends.min, ends.max + 1, sizes, generator=generator).to(dtype)


def check_quantized(
    input, parameters, pooling, include_padding=False, *, output_dtype=None, forms=None
):
    """Q1, Q2 and G7 for one call: the exact result, in the memory format of the input."""
    forms = ["number"] * 4 if forms is None else forms
    output_dtype = output_dtype or input.dtype
    arguments = [
        argument.to(input.device) if isinstance(argument, Tensor) else argument
        for argument in parameters.given(forms, (input.dtype, output_dtype), input.dim() - 2)
    ]
    rest: Any = {"include_padding": include_padding, "output_dtype": output_dtype}
    result = dmlpool.quantized_linear_average_pooling(input, *arguments, **vars(pooling), **rest)
    meant = vars(parameters.understood(forms)).values()
    dtype = torch.empty(0, dtype=output_dtype).numpy().dtype
    expected = oracle.quantized_average(to_numpy(input), *meant, pooling, include_padding, dtype)
    assert result.dtype == output_dtype
    assert_same(result, expected)
    return result


Quotient = tuple[int, float, float]
"""A sum and the two scales: ``sum · input_scale / (divisor · output_scale)``."""


def near_halves(divisor, count, largest=2**24):
    """Quotients one unit of their denominator beside ``k + 1/2``, on either side, for an odd
    ``divisor``.

    With scales ``m`` and ``n``, integers of 24 bits, ``2 · sum · m = (2k + 1) · divisor · n ± 1``:
    for a given ``m`` that asks for one ``n`` modulo ``2m``.
    """
    found: list[Quotient] = []
    for m in range(largest - 1, largest // 2, -2):
        for k, unit in ((97, 1), (98, 1), (97, -1), (98, -1)):
            if math.gcd((2 * k + 1) * divisor, m) > 1:
                continue
            n = -unit * pow((2 * k + 1) * divisor, -1, 2 * m) % (2 * m)
            total, rest = divmod((2 * k + 1) * divisor * n + unit, 2 * m)
            if n < 2**24 and total < 255 * divisor:
                assert rest == 0
                found.append((total, float(m), float(n)))
        if len(found) >= count:
            return found
    raise AssertionError("no such quotients")


def check_near_halves(taps):
    """Sums whose quotient float64 takes for a half, with scales that are alike, unlike and far
    apart."""
    for quotient in [*near_halves(taps, 8), *near_halves(taps, 8, 2**22), (taps, 1.0, 2.0**60)]:
        total, *scales = quotient
        image = torch.full((1, 1, taps), total // taps, dtype=torch.uint8)
        image[..., : total % taps] += 1
        result = dmlpool.quantized_linear_average_pooling(image, scales[0], 0, scales[1], 0, taps)
        assert result.item() == oracle.requantized(total, taps, *scales, 0, np.uint8), quotient
