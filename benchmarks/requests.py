"""Calls of the Triton backend, by rows of rows.txt: what `make gpu` times, checks and compiles."""

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.common import Sizes, Workload, parsed, select, several
from torch_dmlpool import tensors
from torch_dmlpool.backends import reference
from torch_dmlpool.backends import triton as backend
from torch_dmlpool.tensors import Tensors, in_format
from torch_dmlpool.timing import Call
from torch_dmlpool.window import Arguments


@dataclass(frozen=True)
class Request:
    """An operator of a backend, for a row's sizes and its window or output sizes."""

    operator: str
    row: Workload

    @property
    def name(self) -> str:
        return f"{self.operator}{self.row.pool.removeprefix(self.row.family)} {self.row.layout}"

    @functools.cached_property
    def by(self):
        return self.row.outputs or self.row.geometry

    @property
    def sizes(self) -> Sizes:
        return self.row.output_sizes if "grad" in self.operator else self.row.sizes

    def call(self, served, *read: Tensor):
        return OPERATORS[self.operator](served, self, *read)

    def prepared(self, device: str = "meta") -> tuple[Tensors, Call]:
        """What is read, and the call of the backend, which returns what is written."""
        read = [self.row.random(self.sizes, device)]
        if self.operator == "max grad":
            dtype = tensors.tap_dtype(self.by.taps)
            taps = torch.randint(self.by.taps, self.sizes, dtype=dtype, device=device)
            read.append(in_format(taps, self.row.channels_last))
        if self.row.mask:
            kept = torch.ones(self.row.mask_sizes, device=device)
            read.append(in_format(kept.bool(), self.row.channels_last))
        return tuple(read), functools.partial(self.call, backend.BACKEND, *read)

    def whole_numbers(self) -> Tensors:
        """What is read, on the CPU: small whole numbers with many ties, NaN in maxima, and winners
        of such. Sums of them are exact, so that averages may differ by the last rounding alone."""
        sizes, dtype = self.sizes, self.row.torch_dtype
        most, least = (5, 0) if "grad" in self.operator else (90, 45 * (dtype != torch.uint8))
        input = (torch.randint(most, sizes, generator=torch.Generator().manual_seed(0)) - least).to(
            dtype
        )
        if dtype.is_floating_point and self.row.family.endswith("max") and most > 5:
            input[0, 0].view(-1)[7::97] = float("nan")
        read = in_format(input, self.row.channels_last)
        if self.operator != "max grad":
            return (read,)
        taps = replace(self, operator="taps")
        return read, taps.call(reference.BACKEND, *taps.whole_numbers())[1]


def _unpooled(on, of, x):
    return on.scatter_positions(*_winners(on, of, x), of.row.sizes[2:], False, False)


def _winners(on, of, x):
    return on.max_pooling_with_indices(x, of.by, torch.int64, True)


def _sets(on, _, x):
    rows, ends = x.flatten(0, 2), torch.tensor([0, 1, 1, 90, 240], device=x.device)
    return on.segment_sums(rows, ends, None, True), *on.segment_maxima(rows, ends, None, False)


OPERATORS = {
    "max": lambda on, of, x, *mask: on.max_pooling(x, of.by, *mask),
    "indices": _winners,
    "unpool": _unpooled,
    "sets": _sets,
    "taps": lambda on, of, x, *mask: on.max_pooling_with_taps(x, of.by, *mask),
    "max grad": lambda on, of, g, taps, *_: on.max_pooling_grad_from_taps(
        g, taps, of.row.sizes[2:], of.by, of.row.channels_last
    ),
    "avg": lambda on, of, x, *mask: on.average_pooling(
        x, of.by, of.row.include_padding, None, *mask
    ),
    "avg grad": lambda on, of, g, *mask: on.average_pooling_grad(
        *(tensors.widened(g) if mask else g, of.row.sizes[2:], of.by, of.row.include_padding),
        *((1, g.dtype, *mask) if mask else (None,)),
    ),
    "quantized avg": lambda on, of, x: on.quantized_averages(
        x, (0.5, 3, 0.5, 3), of.by, of.row.include_padding, x.dtype
    ),
    "adaptive avg": lambda on, of, x: on.adaptive_average_pooling(x, of.by),
    "adaptive max": lambda on, of, x: on.adaptive_max_pooling(x, of.by),
    "adaptive grad": lambda on, of, g: on.adaptive_average_pooling_grad(g, of.row.sizes[2:]),
}
ASKED = {
    ("max", "training"): ("taps", "max grad"),
    ("max", "indices"): ("indices",),
    ("max", "unpooled"): ("unpool",),
    ("average", "training"): ("avg grad",),
    ("average", "quantized"): ("quantized avg",),
    ("average", "sets"): ("sets",),
    ("adaptive average", "training"): ("adaptive grad",),
}
"""What rows ask for that are not the forward operator of inference."""


def requests(rows: Iterable[Workload]) -> list[Request]:
    """What the rows ask for, each once."""
    found = [
        Request(operator, row)
        for row in rows
        for operator in ASKED.get((row.family, row.mode), [row.family.replace("average", "avg")])
    ]
    # The first of the same name has its place, the last one's groups.
    return list({each.name: each for each in [*found, *reversed(found)]}.values())


def request(operator: str, text: str) -> Request:
    """An operator for a row as the table has it, such as ``2x8x32x32 3/2 p1 f float16``."""
    family = "average" if "avg" in operator or operator == "adaptive grad" else "max"
    (row,) = parsed(f"prepared {family} {text}")
    return Request(operator, row)


def rows() -> list[Request]:
    """What is measured: first what no GPU has measured, then the others."""
    models = [replace(each, sizes=(32, *each.sizes[1:])) for each in select("models")]
    folds = [each for each in models if each.outputs]
    found = select("halves")
    found += [replace(each, channels_last=True) for each in folds]
    found += [replace(each, mode="training") for each in models]
    found += select("masks")
    return requests([*found, *select("kernelbench"), *models, *select("windows")])


def checked(types: bool = True) -> list[Request]:
    """What is compared with the reference: a call of each kernel, rank and layout, and with
    ``types`` each operator in each of its data types too."""
    return requests(select("smoke, smoke_types" if types else "smoke"))


@contextmanager
def launches() -> Iterator[list[tuple[Any, Arguments]]]:
    """Inside, what the backend would launch on an H200 is listed, with its operands, not run."""
    found = []
    with (
        mock.patch.object(backend, "runs_ptx", return_value=True),
        mock.patch.object(backend, "launch", lambda how, *operands: found.append((how, operands))),
    ):
        yield found


def kernels_of(asked: Iterable[Request]) -> list[Arguments]:
    """The kernels that are launched, each once, with names of data types: what compiles it has no
    PyTorch."""
    with launches() as launched:
        for each in asked:
            each.prepared()[1]()
    found = []
    for how, arguments in launched:
        *known, kinds = backend.what_is_compiled(how, arguments, 0)
        named = [(str(kind[0]), kind[1]) if isinstance(kind, tuple) else kind for kind in kinds]
        found.append((*known, tuple(named)))
    return list(dict.fromkeys(found))


def compare(expected, found):
    """Raise an AssertionError that says what differs, if anything; averages may differ by two units
    in the last place."""
    for wanted, got in zip(several(expected), several(found), strict=True):
        allowed = 2 * torch.finfo(wanted.dtype).eps if wanted.is_floating_point() else 0.0
        torch.testing.assert_close(got.cpu(), wanted, rtol=allowed, atol=0.0, equal_nan=True)
