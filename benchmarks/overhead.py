"""Host time of a call to the Triton backend up to the driver, without a GPU: ``python -m
benchmarks.overhead``. With ``cpu``, that of small calls on the CPU, which ``small_calls`` measures.

The kernels are compiled for sm_90 as ever and everything runs as it would in front of a GPU, on CPU
tensors, but what would ask the driver to load or to launch a kernel does nothing: Triton's C
launcher and the driver are not in it.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget

from torch_dmlpool import backends, nn
from torch_dmlpool.backends import triton as triton_backend
from torch_dmlpool.window import Window


class Driver:
    """As much of Triton's driver as compiling and launching ask for."""

    utils = SimpleNamespace(
        load_binary=lambda *_: (1, 1, 32, 0, 1024),
        get_device_properties=lambda _: {"max_shared_mem": 232_448},
    )

    @staticmethod
    def launcher_cls(*_: object) -> object:
        return lambda *_: None

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, *_: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def microseconds(call: object, repetitions: int = 400, rounds: int = 15) -> float:
    """Least over rounds of the mean processor time of a call: other processes only ever add to
    it."""
    for _ in range(20):
        call()
    times = []
    for _ in range(rounds):
        before = time.process_time()
        for _ in range(repetitions):
            call()
        times.append((time.process_time() - before) / repetitions)
    return min(times) * 1e6


def main() -> None:
    triton.runtime.driver.set_active(Driver())
    triton_backend.launch = lambda how, *arguments: triton_backend._run(how, arguments, 0)
    input = torch.zeros(2, 8, 32, 32)
    window = Window.directml(2, 3, 2, 1, 1)
    output, taps = triton_backend.max_pooling_with_taps(input, window)
    calls = {
        "average_pooling": lambda: triton_backend.average_pooling(input, window, False, None),
        "average_pooling_grad": lambda: triton_backend.average_pooling_grad(
            output, (32, 32), window, False, None
        ),
        "max_pooling": lambda: triton_backend.max_pooling(input, window),
        "max_pooling_with_taps": lambda: triton_backend.max_pooling_with_taps(input, window),
        "max_pooling_grad_from_taps": lambda: triton_backend.max_pooling_grad_from_taps(
            output, taps, (32, 32), window, False
        ),
    }
    whole, long = Window.directml(2, 32), Window.directml(2, 31, 1, 15, 15)
    for name, each in (("whole", whole), ("31/1", long)):
        calls[f"average_pooling, {name}"] = partial(
            triton_backend.average_pooling, input, each, False, None
        )
        calls[f"max_pooling, {name}"] = partial(triton_backend.max_pooling, input, each)
    calls["adaptive_average_pooling to 1"] = partial(
        triton_backend.adaptive_average_pooling, input, (1, 1)
    )
    backends.serving = lambda _: triton_backend.BACKEND
    for layer in (nn.AvgPool2d(3, 2, 1), nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(1)):
        calls[f"nn.{type(layer).__name__}"] = partial(layer, input)
    print(
        f"Triton {triton.__version__}, PyTorch {torch.__version__}; microseconds on the host, "
        "without the driver"
    )
    for name, call in calls.items():
        print(f"{name:30} {microseconds(call):6.1f}")
    print(f"{'torch.empty':30} {microseconds(lambda: torch.empty(2, 8, 16, 16)):6.1f}")


if __name__ == "__main__":
    if sys.argv[1:] == ["cpu"]:
        from benchmarks import small_calls

        small_calls.main()
    else:
        main()
