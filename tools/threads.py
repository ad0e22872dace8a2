"""Pools with one thread and with four of tools/threads.cpp, whose results must have the same bits:
``python tools/sanitize.py`` runs it with a library that ThreadSanitizer checks.
"""

import sys

import torch
from torch import Tensor

import torch_dmlpool as dmlpool
from torch_dmlpool.backends import cpu

# Rows, tiles of a long row, boxes, whole planes and parts of one, blocks of channels of which the
# last one is short: sizes, and a window with its stride and its padding.
CALLS = {
    torch.contiguous_format: [
        ((1, 6, 56, 56), (3, 2, 1)),
        ((1, 1, 200_000), (3, 1, 1)),
        ((1, 1, 100_000), (200, 7, 20)),
        ((1, 3, 8, 20, 20), (3, 1, 1)),
        ((1, 2, 90, 90), (20, 1, 9)),
        ((1, 64, 7, 7), (7, 1, 0)),
        ((1, 2, 600, 600), (600, 1, 0)),
    ],
    torch.channels_last: [
        ((1, 330, 40, 40), (31, 1, 2)),
        ((2, 100, 40, 40), (13, 1, 6)),
        ((2, 33, 30, 30), (3, 1, 1)),
    ],
}


def results(threads: int, image: Tensor, window: tuple[int, int, int]) -> list[Tensor]:
    """The results of pools and of their gradients. Unpooling adds what arrives at an element."""
    cpu.library.dmlpool_own_threads(threads)
    leaf, rank, functional = image.requires_grad_(), image.dim() - 2, dmlpool.nn.functional
    max_pool, max_unpool = (getattr(functional, f"max_{p}pool{rank}d") for p in ("", "un"))
    maxima, indices = max_pool(leaf, *window, return_indices=True)
    found = [maxima, max_pool(leaf, *window)]
    found.append(getattr(functional, f"avg_pool{rank}d")(leaf, *window))
    found.append(max_unpool(maxima, indices, *window, output_size=image.shape))
    for each in tuple(found):
        found += torch.autograd.grad(each, leaf, each.detach(), retain_graph=True)
    size, *steps = window
    integers, scale = (image.detach() * 255).byte(), torch.tensor(0.5)
    known = integers, scale, None, scale, None, size, *steps, steps[1]
    return [indices, dmlpool.quantized_linear_average_pooling(*known), *found]


different = []
for layout, calls in CALLS.items():
    for sizes, window in calls:
        image = torch.rand(sizes, generator=torch.Generator().manual_seed(0))
        image = image.contiguous(memory_format=layout)
        pairs = zip(results(1, image, window), results(4, image, window), strict=True)
        different += [(sizes, window) for one, four in pairs if not torch.equal(one, four)]
if different:
    sys.exit(f"four threads give other bits than one: {different}")
