"""Elements as parts of wider integers: copied to a narrower type, PyTorch's keep their low ends.

Where memory has low ends first, that reads every second element of a row by vectors, as no other operation does.
"""

from __future__ import annotations

import functools
from functools import partial

import torch
from torch import Tensor

from torch_dmlpool.backends import operations
from torch_dmlpool.backends.tape import Tape

INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By the number of their bytes."""


def are_low_ends(stride: int, dtype: torch.dtype) -> bool:
    """Whether every stride-th element of a row is one end of an integer."""
    return stride in (2, 4, 8) and stride * dtype.itemsize <= max(INTEGERS)


def record_low_ends(tape: Tape, source: Tensor, stride: int, out: Tensor) -> None:
    """Record a copy of every stride-th element of the rows of ``source``, which are whole words, to rows of ``out``."""
    words = source.view(INTEGERS[stride * source.dtype.itemsize])[..., : out.shape[-1]]
    tape.record(operations.copy, words, out.view(INTEGERS[out.dtype.itemsize]))


def record_every_second(tape: Tape, source: Tensor, offset: int, out: Tensor) -> None:
    """Record a copy of the elements ``offset, offset + 2, ...`` of contiguous rows."""
    places = (source.shape[-1], *source.stride()[:-1], source.storage_offset())
    if not (tape.reads_words and are_low_ends(2, source.dtype)) or any(place % 2 for place in places):
        tape.record(operations.copy, source[..., offset::2], out)
        return
    bytes_ = source.dtype.itemsize
    words = source.view(INTEGERS[2 * bytes_])
    if offset == 1:
        upper = tape.scratch("upper halves", tuple(words.shape[1:]), words.dtype)
        tape.record(partial(operations.shift_right, 8 * bytes_), words, upper)
        words = upper
    tape.record(operations.copy, words, out.view(INTEGERS[bytes_]))


@functools.lru_cache(maxsize=1024)
def number_with_low_byte(byte: int, dtype: torch.dtype) -> float | None:
    """A floating-point number, 1 or more and below 4, whose bits end in ``byte`` while those of 0 do not; or None.

    1 and 2 differ in their exponents alone, of which bfloat16 has a bit in that byte.
    """
    for power in (1.0, 2.0):
        bits = int(torch.tensor(power, dtype=dtype).view(INTEGERS[dtype.itemsize]).item())
        if bits & 255 == 0 and byte <= 255:
            ending = torch.tensor(bits | byte, dtype=INTEGERS[dtype.itemsize]).view(dtype).item()
            if power <= ending < 2 * power:
                return float(ending)
    return None
