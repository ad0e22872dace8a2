"""What torch.nn's pools cannot do or get wrong, beside this package's answers, and what both keep
for the backward pass; draws beyond_torch.png.
"""

import textwrap
import warnings
from types import ModuleType

import torch
from matplotlib import pyplot
from torch import Tensor, nn
from torch.nn import functional as theirs

import torch_dmlpool as dmlpool
from torch_dmlpool import nn as layers
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


def blocks(pools: ModuleType) -> dict[str, nn.Sequential]:
    """A pool alone, and in the places that it has in networks."""
    first, last = nn.Conv2d(64, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)
    pool, normalized = pools.MaxPool2d(2), (nn.BatchNorm2d(64), nn.ReLU(inplace=True))
    return {
        "pool": nn.Sequential(pool),
        "conv, pool, ReLU, conv": nn.Sequential(first, pool, nn.ReLU(), last),
        "conv, ReLU, pool, conv": nn.Sequential(first, nn.ReLU(), pool, last),
        "conv, batch norm, ReLU, pool, conv": nn.Sequential(first, *normalized, pool, last),
    }


def saved_bytes(model: nn.Module, images: Tensor) -> int:
    """What a forward pass keeps for the backward pass besides the images and the parameters."""
    saved: dict[int, int] = {}

    def note(kept: Tensor) -> Tensor:
        saved[kept.untyped_storage().data_ptr()] = kept.untyped_storage().nbytes()
        return kept

    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        model(images)
    known = {each.untyped_storage().data_ptr() for each in (images, *model.state_dict().values())}
    return sum(size for address, size in saved.items() if address not in known)


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
    images = torch.rand(8, 64, 112, 112, requires_grad=True)
    title = "MiB kept for the backward pass, 8x64x112x112 float32, pools 2x2"
    figure, axis = pyplot.subplots(figsize=(9, 3), layout="constrained")
    print(f"\n{title}")
    for number, (name, pools) in enumerate({"torch.nn": nn, "torch_dmlpool": layers}.items()):
        models = blocks(pools)
        kept = [saved_bytes(model, images) / 2**20 for model in models.values()]
        places = [place + 0.4 * number for place in range(len(kept))]
        bars = axis.barh(places, kept, 0.4, label=name, color=("0.7", "C0")[number])
        axis.bar_label(bars, fmt="%.1f", padding=3)
        sizes = (f"{block} {size:.1f}" for block, size in zip(models, kept, strict=True))
        print(f"  {name:15}{'; '.join(sizes)}")
    axis.set(title=title, xlim=(0, 80))
    axis.set_yticks([place + 0.2 for place in range(len(models))], models)
    axis.invert_yaxis()
    axis.legend()
    figure.savefig("beyond_torch.png", dpi=100)
    print("chart: beyond_torch.png")


if __name__ == "__main__":
    main()
