"""Whole kernels with their inline assembly, emulated, under the interpreter; launched as a GPU would launch them."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator

import numpy as np
import oracle
import pytest
import quantities
import samples
import torch

triton = pytest.importorskip("triton")

import kernel_checks  # noqa: E402
from assembly import of_tensors  # noqa: E402
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle  # noqa: E402

from torch_dmlpool.backends import triton as triton_launches  # noqa: E402
from torch_dmlpool.window import Window  # noqa: E402


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], list[object]]]:
    """Makes the backend launch as on a target, assembly included, and records what it launches."""
    added = InterpreterBuilder.create_fadd

    def as_gpus_add(self: object, lhs: object, rhs: object) -> object:
        """numpy keeps a NaN's bits; a GPU makes it canonical, which ``comparable`` relies on."""
        total = added(self, lhs, rhs)
        if total.data.dtype != np.float32:
            return total
        return TensorHandle(
            np.where(np.isnan(total.data), np.uint32(0x7FFFFFFF).view(np.float32), total.data), total.dtype
        )

    monkeypatch.setattr(InterpreterBuilder, "create_fadd", as_gpus_add)
    monkeypatch.setattr(triton.language, "inline_asm_elementwise", of_tensors)
    recorder = kernel_checks.Recorder(triton_launches.earlier_launch)
    monkeypatch.setattr(triton_launches, "earlier_launch", recorder)

    def aim_at(target: str) -> list[object]:
        monkeypatch.setattr(triton_launches, "target", lambda _: target)
        return recorder.record

    kernel_checks.forget_launches()
    yield aim_at
    kernel_checks.forget_launches()


LAST = "channels last"
FORWARD = {
    "keys": ("float16", (1, 2, 9, 16), (7, 1, 3), "contiguous", "max_stream"),
    "keys of bfloat16 along channels": ("bfloat16", (1, 4, 9, 6), ((6, 4), 1, (2, 1)), LAST, "max_stream"),
    "pairs": ("float32", (1, 2, 9, 8), ((4, 7), 1, (2, 3)), "contiguous", "max_stream"),
    "pairs along channels": ("float32", (1, 4, 9, 5), (5, 1, 2), LAST, "max_stream"),
    "pairs, two bytes": ("bfloat16", (1, 1, 17, 8), ((4, 60), 1, (0, 30)), "contiguous", "max_windows"),
    "unrolled": ("float16", (1, 2, 9, 16), (3, 2, 1), "contiguous", "max_windows"),
    "unrolled, one dimension": ("bfloat16", (2, 2, 16), (3, 1, 1), "sliced", "max_windows"),
    "unrolled, volume": ("float32", (1, 4, 4, 5, 4), (2, 2, 1), LAST, "max_windows"),
}


@pytest.mark.parametrize("name", FORWARD)
def test_launched_forward(name: str, assembled: Callable[[str], list[object]]) -> None:
    """M1 to M3, M6: whole kernels with assembly give values and taps, whatever bits the NaNs have."""
    dtype, sizes, window, layout, kernel = FORWARD[name]
    input = kernel_checks.lowest_and_awkward(*sizes, dtype=getattr(torch, dtype))
    input = samples.LAYOUTS[layout](input)
    window = Window.directml(len(sizes) - 2, *window, window[2])
    expected = oracle.maximum(samples.to_numpy(input), kernel_checks.pooling_of(window))
    record = assembled("cuda")  # the same from sm_90 on
    values, taps = kernel_checks.backend.max_pooling_with_taps(input, window)
    samples.assert_same(values, expected.values)
    samples.assert_same(taps, expected.taps)
    assert record[-1].kernel == kernel
    assert record[-1].launch.constants["ASM"]


@pytest.mark.parametrize("name", kernel_checks.PACKED)
def test_launched_pairs(name: str, assembled: Callable[[str], list[object]]) -> None:
    """M1, M2, M7: two 16-bit numbers in a word, from sm_90 on; halves from sm_80 on."""
    kernel_checks.assert_packed(name, assembled("sm_90"), asm=True)


@pytest.mark.parametrize("name", kernel_checks.KEYED)
def test_launched_keys_of_bytes(name: str, assembled: Callable[[str], list[object]]) -> None:
    """M2 to M4, M6: bytes with their position."""
    kernel_checks.assert_keyed(name, assembled("sm_90"), asm=True)


@pytest.mark.parametrize("name", ["stream of float16", "bfloat16 along channels, stride 2"])
def test_launched_pairs_before_sm_90(name: str, assembled: Callable[[str], list[object]]) -> None:
    """M1, M2: halves are compared in pairs there, too."""
    kernel_checks.assert_packed(name, assembled("cuda"), asm=True)


QUANTIZED = {
    "walk": ("contiguous", (1, 2, 8, 16), ((3, 3), (1, 1), (1, 1), (1, 1)), "quantized_stream"),
    "walk along channels": (LAST, (1, 8, 7, 6), ((4, 3), (1, 1), (2, 1), (1, 1)), "quantized_stream"),
    "unrolled": ("contiguous", (1, 2, 9, 16), ((3, 3), (2, 2), (1, 1), (1, 1)), "quantized_tile"),
    "unrolled along channels": (LAST, (1, 8, 7, 6), ((2, 2), (2, 2), (0, 0), (0, 0)), "quantized_tile"),
}


@pytest.mark.parametrize("name", QUANTIZED)
def test_launched_quantized_average(name: str, assembled: Callable[[str], list[object]]) -> None:
    """Q1, Q2: results are cut off and packed by assembly, of either type."""
    layout, shape, window, kernel = QUANTIZED[name]
    record = assembled("sm_90")
    for pair in ((torch.int8, torch.uint8), (torch.uint8, torch.int8)):
        input = samples.LAYOUTS[layout](quantities.integers(*shape, dtype=pair[0]))
        parameters = quantities.drawn(len(name), shape[1], pair, ties=True)
        pooling = oracle.Pooling(*window, (1, 1))
        quantities.check(input, parameters, pooling, True, output_dtype=pair[1], forms=["per channel"] * 4)
        assert record[-1].kernel == kernel
        assert record[-1].launch.constants["ASM"]


WORDS_OF = "grad_words_of_"
BACKWARD = {
    "words": ("sm_90", "float16", (1, 2, 9, 16), (5, 1, 2), "contiguous", WORDS_OF + "columns"),
    "words, much padding": ("sm_90", "float32", (1, 2, 9, 16), ((4, 5), 1, (8, 2)), "contiguous", WORDS_OF + "columns"),
    "words of channels": ("sm_90", "bfloat16", (1, 4, 7, 6), ((4, 5), 1, (3, 6)), LAST, WORDS_OF + "channels"),
    "windows": ("sm_90", "float32", (1, 2, 8, 8), (3, 1, 1), "contiguous", "grad_windows"),
    "windows, stride": ("cuda", "float16", (1, 4, 8, 8), (3, 2, 1), LAST, "grad_windows"),
    "rows and columns": ("cuda", "float16", (1, 2, 8, 8), (4, 1, 2), "contiguous", "grad_windows"),
    "rows and columns, dilated": ("sm_90", "bfloat16", (1, 2, 8, 8), (4, 1, 3, 3, 2), "sliced", "grad_windows"),
    "rows and columns, 3-D": ("cuda", "float32", (1, 2, 3, 6, 8), ((2, 4, 4), (2, 1, 1), 1), "sliced", "grad_windows"),
}  # fmt: skip


@pytest.mark.parametrize("name", BACKWARD)
def test_launched_gradient(name: str, assembled: Callable[[str], list[object]]) -> None:
    """M5: whole kernels with assembly send each window's gradient to its winner, before sm_90 and from then on."""
    target, dtype, sizes, (window, stride, start, *rest), layout, kernel = BACKWARD[name]
    input = samples.LAYOUTS[layout](kernel_checks.awkward(*sizes, dtype=getattr(torch, dtype)))
    record = assembled(target)
    window = Window.directml(len(sizes) - 2, window, stride, start, *(rest or (start,)))
    kernel_checks.assert_gradient(input, window, samples.LAYOUTS[layout])
    assert record[-1].kernel == kernel
    assert record[-1].launch.constants["ASM"]
    if kernel == "grad_windows":
        assert record[-1].launch.constants["SEPARABLE"] == name.startswith("rows and columns")


def test_targets(monkeypatch: pytest.MonkeyPatch, assembled: Callable[[str], list[object]]) -> None:
    """E7: before sm_80 no maximum keeps NaNs and there is no arithmetic of bfloat16: the twins run there."""
    tensor = types.SimpleNamespace(device=torch.device("cuda", 0))
    aim = triton_launches.target
    for generation, target in ((7, "sm_70"), (8, "cuda"), (9, "sm_90"), (12, "sm_90")):
        monkeypatch.setattr(triton_launches, "_generation", lambda _, found=generation: found)
        assert aim(tensor) == target
    record = assembled("sm_70")
    input = kernel_checks.awkward(1, 1, 3, 8, dtype=torch.float16)
    window = Window.directml(2, 4, 1, 1, 2)
    _, taps = kernel_checks.backend.max_pooling_with_taps(input, window)
    kernel_checks.backend.max_pooling_grad(input, torch.ones_like(taps, dtype=input.dtype), window)
    assert [one.launch.constants["ASM"] for one in record[-2:]] == [False, False]
