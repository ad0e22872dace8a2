"""Random requests for the CPU's kernels."""

import random

from torch_dmlpool.window import Window


def request(seed: int) -> tuple[tuple[int, ...], Window, bool]:
    """Sizes of a tensor, a window along its spatial dimensions, and whether it is channels_last."""
    chance = random.Random(seed)
    rank = chance.choice([1, 2, 2, 2, 3])
    is_whole = chance.random() < 0.2
    while True:
        sizes = [chance.randint(1, {1: 3000, 2: 70, 3: 16}[rank]) for _ in range(rank)]
        axes = []
        for size in sizes:
            window = chance.choice([1, 2, 3, 3, 5, 7, chance.randint(1, 40), size])
            stride = chance.choice([1, 1, 2, 3, window, chance.randint(1, 9)])
            padding = chance.choice([0, 0, window // 2])
            dilation = chance.choice([1, 1, 1, 2])
            axes.append((size, 1, 0, 1) if is_whole else (window, stride, padding, dilation))
        spans = [(window - 1) * dilation + 1 for window, _, _, dilation in axes]
        if all(
            span <= size + 2 * padding
            for span, size, (_, _, padding, _) in zip(spans, sizes, axes, strict=True)
        ):
            break
    windows, strides, paddings, dilations = zip(*axes, strict=True)
    is_last = rank > 1 and chance.random() < 0.5
    channels = chance.choice([3, 16, 40, 330]) if is_last else chance.choice([1, 3])
    window = Window.directml(rank, windows, strides, paddings, paddings, dilations)
    return (chance.choice([1, 2]), channels, *sizes), window, is_last
