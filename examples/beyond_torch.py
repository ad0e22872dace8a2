"""What torch.nn's pools cannot do or get wrong, beside this package's answers, and what both cost;
draws beyond_torch.png.
"""

import datetime
import statistics
import textwrap
import time
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch
from matplotlib import pyplot
from torch import Tensor
from torch.nn import functional as theirs

import torch_dmlpool as dmlpool
from torch_dmlpool import timing
from torch_dmlpool.bench import conditions
from torch_dmlpool.nn import functional as ours

BOTH = theirs, ours
image, point = torch.arange(64.0).view(1, 1, 8, 8), torch.ones(1, 1, 1, 1)
REQUESTS = {
    "padding that differs at start and end": lambda pools: (
        pools.avg_pool2d(image, 3, 2, ((0, 1), (2, 1))).shape
    ),
    'padding="same", with a stride': lambda pools: pools.avg_pool2d(image, 3, 2, "same").shape,
    "more padding than half a window": lambda pools: pools.avg_pool2d(image, 3, 2, 2).shape,
    "dilated averages": lambda pools: pools.avg_pool2d(image, 3, 1, dilation=2).shape,
    "maxima of uint16": lambda pools: pools.max_pool2d(image.to(torch.uint16), 8).item(),
    "index of a window of padding alone": lambda pools: pools.max_pool2d(
        point, 2, 1, 1, 2, return_indices=True
    )[1],
    "8-bit averages that are not exact": lambda pools: f"{wrong_integers(pools):.1%}",
}


def wrong_integers(pools: ModuleType) -> float:
    """The share of averages of uint8 that differ from the exact ones, rounded half to even."""
    integers = torch.randint(
        0, 256, (1, 16, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    exact = (integers.unfold(2, 2, 2).unfold(3, 2, 2).sum((-1, -2)) / 4 - 7).double().round() + 7
    averages = dmlpool.quantized_linear_average_pooling(
        integers, 0.1, 7, 0.1, 7, window_size=2, strides=2
    )
    if pools is theirs:
        averages = theirs.avg_pool2d(
            torch._make_per_tensor_quantized_tensor(integers, 0.1, 7), 2
        ).int_repr()
    return (averages != exact).double().mean().item()


def saved_bytes(pool: Callable[[Tensor], Tensor], images: Tensor) -> int:
    """What is kept for the backward pass, the input among it."""
    saved: dict[int, int] = {}

    def note(kept: Tensor) -> Tensor:
        saved[kept.data_ptr()] = kept.nbytes
        return kept

    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        pool(images)
    return sum(saved.values())


def milliseconds(pools: ModuleType, images: Tensor) -> float:
    finish = torch.cuda.synchronize if images.is_cuda else lambda: None
    finish()
    start = time.perf_counter()
    pools.max_pool2d(images, 3, 2, 1).sum().backward()
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
    warnings.simplefilter("ignore")  # PyTorch announces the end of its quantized tensors
    for title, request in REQUESTS.items():
        print(f"\n{title}")
        for name, pools in {"torch.nn": theirs, "torch_dmlpool": ours}.items():
            try:
                answer = str(request(pools))
            except (RuntimeError, TypeError, NotImplementedError) as error:
                answer = f"{type(error).__name__}: {error}".partition("\n")[0]
            print(textwrap.fill(f"  {name:15}{answer}", 100, subsequent_indent=" " * 17))
    print(
        "\ngradients of 3-D averages on a GPU under torch.use_deterministic_algorithms(True) "
        "(not run here)\n"
        "  torch.nn       raises an error\n  torch_dmlpool  always deterministic"
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = torch.rand(8, 64, 112, 112, device=device, requires_grad=True)
    rounds = [[milliseconds(pools, images) for pools in BOTH] for _ in range(9)]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3), layout="constrained")
    windows = [partial(pools.max_pool2d, kernel_size=3, stride=2, padding=1) for pools in BOTH]
    kept = [saved_bytes(pool, images) / 2**20 for pool in windows]
    times = [statistics.median(times) for times in zip(*rounds, strict=True)]
    figure.suptitle(f"MaxPool2d(3, 2, 1) of 8x64x112x112 float32 on {device}")
    figure.supxlabel(circumstances(images.device), fontsize="small", color="0.4")
    print(f"\n{figure.get_suptitle()}\n  {figure.get_supxlabel()}")
    figures = {
        "MiB kept for the backward pass, input included": kept,
        "ms, forward and backward": times,
    }
    for axis, (unit, values) in zip(axes, figures.items(), strict=True):
        print(f"  {unit}: torch.nn {values[0]:.1f}, torch_dmlpool {values[1]:.1f}")
        bars = axis.barh(["torch.nn", "torch_dmlpool"], values, color=["0.7", "C0"])
        axis.bar_label(bars, fmt="%.1f", padding=3)
        axis.set(title=unit, xlim=(0, 1.2 * max(values)))
    figure.savefig("beyond_torch.png", dpi=100)
    print("chart: beyond_torch.png")


if __name__ == "__main__":
    main()
