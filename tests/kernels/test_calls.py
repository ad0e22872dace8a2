"""Public calls with Triton's kernels: gradients that are planned with the pool are those of the
operators, any byte of a bool but 0 is True, and lazy tensors are read as they show."""

from collections.abc import Callable

import cases
import pytest
import samples
import torch
from operators import NAMES, operators, with_lazy
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool import backends
from torch_dmlpool.backends import fallbacks

backend = pytest.importorskip("torch_dmlpool.backends.triton")

Pool = Callable[[Tensor], Tensor]
POOLS: dict[str, Pool] = {
    "maxima": lambda x: dmlpool.max_pooling(x, 3, 2, 1, 1),
    "maxima of long windows": lambda x: dmlpool.max_pooling(x, 9, 1, 4, 4),
    "averages": lambda x: dmlpool.average_pooling(x, 2, 2),
    "counted averages": lambda x: dmlpool.average_pooling(x, 3, 2, 1, 1),
    "averages of planes": lambda x: dmlpool.average_pooling(x, (8, 6)),
    "bins": lambda x: dmlpool.adaptive_average_pooling(x, (3, 4)),
    "planes": lambda x: dmlpool.adaptive_average_pooling(x, 1),
    "masked": lambda x: sum(
        f(x, 3, 2, mask=x[:, :1] > 0) for f in (dmlpool.max_pooling, dmlpool.average_pooling)
    ),
}
ARRIVING = {
    "as it lies": lambda y: y,
    "expanded": lambda y: y.flatten()[:1].view(1, 1, 1, 1).expand(y.shape),
    "not aligned": lambda y: torch.cat([y.flatten()[:1], y.flatten()])[1:].view(y.shape),
}


@cases.in_pairs(
    pool=list(POOLS), arriving=list(ARRIVING), layout=["contiguous", "channels last", "sliced"]
)
def test_gradients_are_the_operators(pool, arriving, layout, monkeypatch):
    """G7, M5, A6: numbers and strides, wherever the input and what arrives lie."""
    input = samples.LAYOUTS[layout](samples.ties(2, 3, 8, 6, dtype=torch.float16)).requires_grad_()
    monkeypatch.setattr(backends, "serving", lambda _: backend.BACKEND)
    output = POOLS[pool](input)
    given = ARRIVING[arriving](samples.normal(*output.shape).to(output))
    (planned,) = torch.autograd.grad(output, input, given, retain_graph=True)
    # A gradient that is recorded itself is computed by operators.
    (composed,) = torch.autograd.grad(output, input, given, create_graph=True)
    assert torch.equal(planned, composed)
    assert planned.stride() == composed.stride()


@pytest.mark.parametrize("pool", ["maxima", "averages"])
@pytest.mark.parametrize("is_forward", [True, False], ids=["forward", "backward"])
def test_a_kernel_that_is_missing_leaves_gradients_right(pool, is_forward, monkeypatch):
    """E7: plain PyTorch computes them, and says so."""

    def missing(*_):
        raise fallbacks.KernelError("no compiler")

    def called():
        with monkeypatch.context() as patch:
            patch.setattr(backend, "launch", missing if is_forward else backend.launch)
            output = POOLS[pool](input)
            patch.setattr(backend, "launch", missing)
            return torch.autograd.grad(output.sum(), input)[0]

    input = samples.distinct(1, 2, 8, 6).requires_grad_()
    expected = torch.autograd.grad(POOLS[pool](input).sum(), input)[0]
    monkeypatch.setattr(fallbacks, "_warned", [])
    with pytest.warns(dmlpool.SlowBackendWarning, match="no compiler"):
        gradient = called()
    assert torch.equal(gradient, expected)


WRONG = {"shape": lambda taps: taps.repeat(8, 1, 1, 1), "sizes": lambda taps: taps.transpose(0, 1)}


@pytest.mark.parametrize("wrong", WRONG)
def test_saved_taps_of_another_shape_are_rejected(wrong, monkeypatch):
    """Before any launch, with an error that says what differs."""
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda taps: taps, WRONG[wrong])
    with hooks:
        output = dmlpool.max_pooling(samples.normal(1, 4, 6, 6).requires_grad_(), 2, 2)
    monkeypatch.setattr(backend, "launch", None)
    with pytest.raises(RuntimeError, match=r"\(8, 4, 3, 3\)|\(4, 1, 3, 3\)"):
        output.sum().backward()
    monkeypatch.undo()
    taps = torch.zeros(1, 4, 3, 3, dtype=torch.uint8)
    gradient = torch.ones(2, 4, 3, 3)
    with pytest.raises(RuntimeError, match="fit a gradient of the same sizes"):
        backend.max_pooling_grad_from_taps(gradient, taps, (6, 6), None, False)


MASKED = {
    "averages": lambda x, mask: dmlpool.average_pooling(x, 2, 1, 1, 0, 1, True, mask=mask),
    "bins": lambda x, mask: dmlpool.adaptive_average_pooling(x, (2, 3), mask=mask),
    "maxima": lambda x, mask: dmlpool.max_pooling(x, 2, return_indices=True, mask=mask),
    "maxima of bools": lambda _, mask: dmlpool.max_pooling(mask, 2, return_indices=True),
    "minima of bools": lambda _, mask: dmlpool.min_pooling(mask, 2, return_indices=True),
}


@pytest.mark.parametrize("pool", MASKED)
@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
def test_any_byte_of_a_bool_but_0_is_true(pool, layout):
    """K1, N1: as PyTorch reads them."""
    kept = samples.LAYOUTS[layout](torch.rand(2, 3, 6, 6, generator=samples.seeded(6)) < 0.5)
    images = samples.LAYOUTS[layout]((kept * torch.arange(6).add(250)).to(torch.uint8))
    input = torch.full((2, 3, 6, 6), -torch.inf).masked_fill(kept.flip(-1), 1.0)
    found, right = (
        samples.listed(MASKED[pool](input, mask)) for mask in (images.view(torch.bool), kept)
    )
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


@cases.in_pairs(kind=list(samples.KINDS), name=NAMES)
def test_kernels_read_what_lazy_tensors_show(kind, name):
    """G7, of operators called by name."""
    for given, expected in with_lazy(kind, name):
        results = samples.listed(getattr(operators, name)(*given))
        for result, right in zip(results, expected, strict=True):
            torch.testing.assert_close(result.detach().as_subclass(Tensor), right)
