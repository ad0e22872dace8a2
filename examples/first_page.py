"""README's first table on this machine: minima and maxima of large windows, "same" padding, volumes
and tokens under a mask, in plain PyTorch and in this package.
"""

import datetime
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as theirs

import torch_dmlpool as dmlpool
from torch_dmlpool import nn as layers
from torch_dmlpool import timing
from torch_dmlpool.bench import conditions
from torch_dmlpool.nn import functional as ours

SECONDS = 2


def races(device: str) -> dict[str, list[Callable[[], Tensor]]]:
    """Plain PyTorch's call and this package's."""
    plane, maps = torch.rand(1, 1, 512, 512), torch.rand(4, 64, 112, 112)
    volume, tokens = torch.rand(1, 32, 16, 56, 56), torch.randn(32, 128, 768)
    plane, maps, volume, tokens = (each.to(device) for each in (plane, maps, volume, tokens))
    mask = torch.arange(128, device=device) < torch.randint(16, 129, (32, 1), device=device)

    def separable(input: Tensor) -> Tensor:
        return theirs.max_pool2d(theirs.max_pool2d(input, (1, 31), 1, (0, 15)), (31, 1), 1, (15, 0))

    def formula() -> Tensor:
        weights = mask.unsqueeze(-1).to(tokens.dtype)
        return (tokens * weights).sum(1) / weights.sum(1)

    erosion, dilation = layers.MinPool2d(31, 1, "same"), layers.MaxPool2d(31, 1, "same")
    end, filled = ((0, 1), (0, 1), (0, 1)), partial(theirs.pad, value=-torch.inf)
    return {
        "opening 31x31": [
            lambda: separable(-separable(-plane)),
            lambda: dilation(erosion(plane)),
        ],
        'maximum 3/2 "same"': [
            lambda: theirs.max_pool2d(filled(maps, (0, 1, 0, 1)), 3, 2),
            lambda: ours.max_pool2d(maps, 3, 2, "same"),
        ],
        "maximum 3/2, 3-D, padded at the end": [
            lambda: theirs.max_pool3d(filled(volume, (0, 1) * 3), 3, 2),
            lambda: ours.max_pool3d(volume, 3, 2, end),
        ],
        "mean of tokens under a mask": [formula, lambda: dmlpool.token_pooling(tokens, mask)],
    }


def milliseconds(call: Callable[[], Tensor], device: str) -> float:
    finish = torch.cuda.synchronize if device == "cuda" else lambda: None
    finish()
    start = time.perf_counter()
    call()
    finish()
    return 1e3 * (time.perf_counter() - start)


def circumstances(device: torch.device) -> str:
    """What the times depend on: the machine, its threads and load, the version and the day."""
    machine = conditions.described(device)
    named = machine.get("GPU", machine["processor"])
    busy = timing.load()
    warning = "" if busy is None else "\nThe machine was busy, so that the times say little."
    threads = f"{torch.get_num_threads()} threads, PyTorch {torch.__version__}"
    return f"{named}, {threads}, {datetime.date.today()}{warning}"


def main() -> None:
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, calls in races(device).items():
        with torch.inference_mode():
            torch.testing.assert_close(calls[1](), calls[0]())
            rounds, end = [], time.perf_counter() + SECONDS
            while time.perf_counter() < end:
                rounds.append([milliseconds(call, device) for call in calls])
        plain, here = map(min, zip(*rounds, strict=True))
        print(f"{name:38}plain PyTorch {plain:6.2f} ms, torch_dmlpool {here:5.2f} ms")
    print(circumstances(torch.device(device)))


if __name__ == "__main__":
    main()
