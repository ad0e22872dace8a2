"""docs/refusals.md, kept true: every public argument × every kind of wrong value, exception and whole message."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable

import pytest
import refusals
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import nn
from torch_dmlpool.backends import cpu

REQUESTS = refusals.requests()
# PyTorch 2.13 warns of the first quantized tensor of a process, wherever that is.
pytestmark = pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning")


def test_every_public_function_and_layer_is_in_the_table() -> None:
    """And every argument of each, but what takes models or is ignored as PyTorch ignores it."""
    public = {name: getattr(dmlpool, name) for name in dmlpool.__all__ if name not in ("Window", "__version__", "nn")}
    public |= {f"nn.functional.{name}": getattr(nn.functional, name) for name in nn.functional.__all__}
    public |= {f"nn.quantized.{name}": getattr(nn.quantized, name) for name in nn.quantized.__all__}
    layers = {"Conversion", "convert", "functional", "integer_pooling", "quantized", "rerouted"}
    public |= {f"nn.{name}": getattr(nn, name) for name in nn.__all__ if name not in layers}
    assert set(public) == set(REQUESTS)
    for name, function in public.items():
        if "1d" in name or "3d" in name:
            continue
        arguments = set(inspect.signature(function).parameters)
        if name.endswith("with_indices"):
            arguments.remove("return_indices")
        assert arguments <= {request.argument for request in REQUESTS[name]}, name


def test_what_is_right_is_accepted() -> None:
    """So each of the refusals below is due to the one argument that is wrong."""
    for calls in refusals.right_requests().values():
        for call in calls:
            call()


@pytest.mark.parametrize("name", REQUESTS)
def test_refusals_name_what_is_wrong(name: str) -> None:
    """G5, G6, G8, A5, M4, Q3 and Q4: a TypeError or a ValueError itself, which names the argument or what it leaves."""
    subjects = {"the window", "the input", "the output", *(request.argument for request in REQUESTS[name])}
    for request in REQUESTS[name]:
        refused = refusals.refusal(request)
        # A scale that requires a gradient is right in every other respect.
        assert refused.kind in ("TypeError", "ValueError") or "requires a gradient" in request.wrong, refused
        named = re.match(r"(?:\w+pool\dd: )?(the \w+|\w+)", refused.message)
        assert named is not None, refused
        assert named[1] in subjects or refused.kind == "RuntimeError", refused


def test_the_page_is_up_to_date() -> None:
    """Word for word; python tests/refusals.py writes it."""
    expected = refusals.page(refusals.collected())
    assert refusals.PAGE.read_text() == expected, "run python tests/refusals.py and read what has changed"


# What the reference and ATen compute with (refusals of scales and indices look at them by other operations), and
# what the compiled library is called by.
WORKING = re.compile(r"aten::.*(pool|maximum|amax|mean|sum|add|pow|scatter|gather|div|quantize_per)|dmlpool_")


def operations(calls: list[Callable[[], object]]) -> set[str]:
    """PyTorch's operations and the library's functions that run while something is called and refused or not."""
    called: set[str] = set()

    class Recorded:
        def __getattr__(self, name: str) -> object:
            called.add(name)
            return getattr(library, name)

    library = cpu.library
    with pytest.MonkeyPatch.context() as patch, torch.autograd.profiler.profile() as profile:
        if library is not None:
            patch.setattr(cpu, "library", Recorded())
        for call in calls:
            with contextlib.suppress(TypeError, ValueError, RuntimeError):
                call()
    return {event.name for event in profile.function_events} | called


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter computes outside of PyTorch")
def test_no_wrong_input_reaches_a_kernel() -> None:
    """Nothing that pools runs, by what PyTorch's profiler and the compiled library see."""
    right = operations([call for calls in refusals.right_requests().values() for call in calls])
    working = {name for name in right if WORKING.match(name)}
    assert len(working) > 6
    wrong = operations([request.call for requests in REQUESTS.values() for request in requests])
    assert wrong
    assert not wrong & working
