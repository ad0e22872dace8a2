"""What torch.nn's pools refuse or get wrong, beside this package's answers, and what both cost:
beyond_torch.png.
"""

import statistics
import time
import warnings

import torch
from matplotlib import pyplot
from torch.nn import functional as theirs

import torch_dmlpool as dmlpool
from torch_dmlpool.nn import functional as ours

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


def wrong_integers(pools) -> float:  # type: ignore[no-untyped-def]
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


def saved_mebibytes(pools, images: torch.Tensor) -> float:  # type: ignore[no-untyped-def]
    """What the backward pass keeps beside the input, which the layer before keeps anyway."""
    saved: dict[int, int] = {}
    note = lambda kept: saved.update({kept.data_ptr(): kept.nbytes}) or kept  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        pools.max_pool2d(images, 3, 2, 1)
    return sum(size for address, size in saved.items() if address != images.data_ptr()) / 2**20


def milliseconds(pools, images: torch.Tensor) -> float:  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    pools.max_pool2d(images, 3, 2, 1).sum().backward()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    warnings.simplefilter("ignore")  # PyTorch announces the end of its quantized tensors
    for title, request in REQUESTS.items():
        print(f"\n{title}")
        for name, pools in {"torch.nn": theirs, "torch_dmlpool": ours}.items():
            try:
                answer = str(request(pools))
            except (RuntimeError, TypeError, NotImplementedError) as error:
                answer = f"{type(error).__name__}: {error}".partition("\n")[0]
            print(f"  {name:15}{answer[:100]}")
    print(
        "\ndeterministic gradients on CUDA: PyTorch raises for AvgPool3d and others under "
        "torch.use_deterministic_algorithms(True), torch_dmlpool for none"
    )
    print(
        "gradient without indices: "
        f"{dmlpool.max_pooling_grad(image, image[..., ::2, ::2], 2, 2).sum():.0f}"
    )
    images = torch.rand(8, 64, 112, 112, requires_grad=True)
    rounds = [[milliseconds(pools, images) for pools in (theirs, ours)] for _ in range(9)]
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 2.6), layout="constrained")
    for axis, unit, values in (
        (
            axes[0],
            "MiB saved for the backward pass",
            [saved_mebibytes(pools, images) for pools in (theirs, ours)],
        ),
        (
            axes[1],
            "ms, forward and backward",
            [statistics.median(times) for times in zip(*rounds, strict=True)],
        ),
    ):
        print(f"{unit}: torch.nn {values[0]:.1f}, torch_dmlpool {values[1]:.1f}")
        axis.bar_label(
            axis.barh(["torch.nn", "torch_dmlpool"], values, color=["0.7", "C0"]),
            fmt="%.1f",
            padding=3,
        )
        axis.set(title=unit, xlim=(0, 1.2 * max(values)))
    figure.suptitle("MaxPool2d(3, 2, 1) of 8 x 64 x 112 x 112 float32")
    figure.savefig("beyond_torch.png", dpi=100)


if __name__ == "__main__":
    main()
