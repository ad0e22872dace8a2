"""Tensors whose elements are not what lies in their memory, or which PyTorch handles in a way of
its own."""

from collections.abc import Callable

import torch
from torch import Tensor


class Overriding(torch.Tensor):
    """A subclass that overrides functions of PyTorch's and nothing else."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


def plain(tensor: Tensor) -> Tensor:
    """The same numbers in memory of their own, as a tensor of no special kind."""
    if tensor._is_zerotensor():
        return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    with torch.inference_mode(False):
        copied = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return copied.copy_(tensor.detach().as_subclass(Tensor))


def negated(tensor: Tensor) -> Tensor:
    return torch._neg_view(tensor.neg())


def imaginary(tensor: Tensor) -> Tensor:
    """The imaginary part of a conjugated tensor, which is the way that most negated views come
    about."""
    return torch.complex(torch.zeros_like(tensor), tensor.neg()).conj().imag


def inferred(tensor: Tensor) -> Tensor:
    with torch.inference_mode():
        return tensor.clone()


NEGATIVE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
NEGATIVE += (torch.int8, torch.int16, torch.int32, torch.int64)
ANY = (*NEGATIVE, torch.uint8, torch.uint16, torch.uint32, torch.uint64)

KINDS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[torch.dtype, ...]]] = {
    "negated": (negated, NEGATIVE),
    "imaginary": (imaginary, (torch.float64, torch.float32)),
    "zeros without memory": (
        # A part of others: its pointer is not 0.
        lambda tensor: torch._efficientzerotensor(
            (2, *tensor.shape), dtype=tensor.dtype, device=tensor.device
        )[1],
        ANY,
    ),
    "expanded": (
        lambda tensor: tensor[(slice(1),) * min(2, tensor.dim())].expand(tensor.shape),
        ANY,
    ),
    "one element everywhere": (lambda tensor: tensor.flatten()[0].expand(tensor.shape), ANY),
    "made in inference mode": (inferred, ANY),
    "overriding functions": (lambda tensor: tensor.as_subclass(Overriding), ANY),
}
"""How to make each kind of a tensor, and the data types that PyTorch has it for. Some kinds have
other numbers than the tensor that they are made of."""


WITHOUT_INDUCTOR = ("negated", "imaginary", "zeros without memory", "overriding functions")
"""Inputs that PyTorch 2.13 does not compile right, whoever's operators are called. Inductor's code
reads tensors as they lie in memory: ``torch.compile(lambda x: x + 1)`` gives wrong numbers for the
first two, and ends the process for the third. Of the fourth it refuses every custom operator."""


def made(kind: str, tensor: Tensor) -> Tensor | None:
    """The kind of a tensor, None where PyTorch has none of this data type."""
    make, dtypes = KINDS[kind]
    return make(tensor.detach()) if tensor.dtype in dtypes else None
