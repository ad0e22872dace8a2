"""Every kernel, type and layout on a GPU against the reference on the CPU: a line for each as it is
done."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool.backends import fallbacks, reference
from torch_dmlpool.backends import triton as backend
from torch_dmlpool.window import Window


def smoke_calls() -> Iterator[tuple[str, Callable[[Any, Any], Any], Any]]:
    """Name, a call of a backend on an input, and the input on the CPU; a tiled window and one that
    is not."""
    floats = [torch.float16, torch.float32, torch.bfloat16, torch.float64]
    numbers = [*floats, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]

    def max_backward(backend: Any, x: Tensor, window: Window) -> Any:
        values, taps = backend.max_pooling_with_taps(x, window)
        return backend.max_pooling_grad_from_taps(
            values, taps, x.shape[2:], window, not x.is_contiguous()
        )

    def average_backward(include_padding: bool) -> Callable[[Any, Tensor, Window], Any]:
        def backward(backend: Any, x: Tensor, w: Window) -> Any:
            sizes = [w.axes[0].stride * n for n in x.shape[2:]]
            return backend.average_pooling_grad(x, sizes, w, include_padding, None)

        return backward

    def quantized(backend: Any, x: Tensor, window: Window) -> Any:
        scale = torch.full((1,), 0.1, device=x.device)
        return backend.quantized_linear_average_pooling(
            x, scale, None, scale * 0.7, None, window, False, x.dtype
        )

    operators: dict[str, tuple[Callable[[Any, Any, Window], Any], list[torch.dtype]]] = {
        "max": (lambda backend, x, window: backend.max_pooling(x, window), numbers),
        "taps": (lambda backend, x, window: backend.max_pooling_with_taps(x, window), numbers),
        "indices": (
            lambda backend, x, window: backend.max_pooling_with_indices(
                x, window, torch.int64, True
            ),
            numbers,
        ),
        "max backward": (max_backward, floats),
        "average": (
            lambda backend, x, window: backend.average_pooling(x, window, False, None),
            floats,
        ),
        "average backward": (average_backward(True), floats),
        "average backward, padding left out": (average_backward(False), floats),
        "quantized": (quantized, [torch.int8, torch.uint8]),
        "adaptive average": (
            lambda backend, x, _: backend.adaptive_average_pooling(x, (7, 5)),
            floats,
        ),
        "adaptive max": (lambda backend, x, _: backend.adaptive_max_pooling(x, (7, 5)), floats),
    }
    windows = {
        "3/1": Window.directml(2, 3, 1, 1, 1),
        "2/2": Window.directml(2, 2, 2),
        "17/1": Window.directml(2, 17, 1, 8, 8),
    }
    generator = torch.Generator().manual_seed(0)
    for size, window in windows.items():
        for name, (operator, dtypes) in operators.items():
            if "adaptive" in name and size != "3/1":
                continue
            for dtype, special in itertools.product(dtypes, (False, True)):
                if special and not (name in ("max", "taps") and dtype.is_floating_point):
                    continue
                x = torch.randint(-90, 0, (2, 16, 24, 32), generator=generator).to(dtype)
                if special:  # several in some windows, and a window of the lowest value alone
                    for number, value in enumerate((math.nan, math.inf, -math.inf, 0.0, -0.0)):
                        x.view(-1)[number::23] = value
                    x[:, :8, :6, :6] = -math.inf
                for layout, form in (
                    ("NCHW", torch.contiguous_format),
                    ("NHWC", torch.channels_last),
                ):

                    def call(backend, x, operator=operator, window=window):
                        return operator(backend, x, window)

                    yield (
                        f"{name}{' NaN' * special} {size} {str(dtype)[6:]} {layout}",
                        call,
                        x.contiguous(memory_format=form),
                    )


def smoke(end: float, every: int, device: str = "cuda") -> int:
    """Each call on the device and on the CPU: a line at once; 1 if one differs or was not begun."""
    wrong = left = 0
    for name, call, input in list(smoke_calls())[::every]:
        if time.monotonic() > end:
            left += 1
            print(f"not begun: {name}", flush=True)
            continue
        try:
            found = by_kernels(functools.partial(call, backend, input.to(device)))
            say = differences(call(reference, input), found)
        except Exception as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else ""
            say = f"{type(error).__name__}: {first}"
        wrong += bool(say)
        print(f"WRONG {name}: {say}" if say else f"ok {name}", flush=True)
    print(f"{wrong} wrong, {left} not begun", flush=True)
    return 1 if wrong or left else 0  # what was not begun is not known to be right


def by_kernels(call: Callable[[], Any]) -> Any:
    """A call's results, unless plain PyTorch computed them in place of a kernel that failed."""
    fallbacks._warned.clear()
    results = call()
    if fallbacks._warned:
        raise RuntimeError(fallbacks._warned[0])
    return results


def differences(expected: Any, found: Any) -> str:
    """Nothing where results are the same, or sums differ by roundings alone."""
    pairs = zip(
        *([each] if isinstance(each, torch.Tensor) else each for each in (expected, found)),
        strict=True,
    )
    for wanted, got in pairs:
        got = got.cpu()
        if wanted.dtype != got.dtype or wanted.shape != got.shape:
            return f"{got.dtype} {tuple(got.shape)} instead of {wanted.dtype} {tuple(wanted.shape)}"
        exact = not wanted.dtype.is_floating_point
        allowed = 0.0 if exact else 8 * torch.finfo(wanted.dtype).eps
        if not torch.allclose(
            wanted.double(),
            got.double(),
            rtol=allowed,
            atol=0.0 if exact else allowed,
            equal_nan=True,
        ):
            return f"{int((wanted != got).sum())} of {got.numel()} elements differ"
    return ""


def options(description: str) -> argparse.Namespace:
    """The options of a step of `make gpu`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--deadline", type=float, default=600.0, help="begin nothing after this many seconds"
    )
    parser.add_argument("--every", type=int, default=1, help="only every Nth call or row")
    return parser.parse_args()


if __name__ == "__main__":
    given = options(__doc__)
    sys.exit(smoke(time.monotonic() + given.deadline, given.every))
