"""Complex numbers in what is linear: the real and the imaginary parts are pooled alone (rule A7).

PyTorch's own operators take them apart and put them together, and so their derivatives follow
PyTorch's convention.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from torch_dmlpool import tensors


def by_parts(pool: Callable[[Tensor], Tensor], input: Tensor) -> Tensor:
    """What a linear ``pool``, which takes real numbers, makes of ``input``, real or complex."""
    if not input.is_complex():
        return pool(input)
    return tensors.laid_out_like(torch.complex(pool(input.real), pool(input.imag)), input)
