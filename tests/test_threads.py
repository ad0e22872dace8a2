"""E3 and E6: the same bits run after run, by any number of threads, and for several callers at
once, also in forks."""

import multiprocessing
import random
import sys
import threading
import warnings

import operators
import pytest
import samples
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import torch_dmlpool as dmlpool
from torch_dmlpool import nn
from torch_dmlpool.backends import cpu

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning"
    ),
    # Python 3.12 and later, of every fork beside threads, which PyTorch always has.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
IMAGES = [
    samples.normal(2, 3, 11, 12),
    samples.channels_last(samples.normal(2, 3, 9, 8, seed=1)),
    samples.normal(3, 3, 40, 33, seed=2),
]


@pytest.fixture
def restored():
    """PyTorch's settings are put back."""
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture
def one_thread(restored):
    """Each of the callers uses one thread, so that a busy machine is not asked for eight times its
    cores."""
    torch.set_num_threads(1)


def at_once(calls):
    """Run each in a thread of its own, begun together; what one raises is raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(len(calls))

    def run(call):
        start.wait()
        try:
            call()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if failures:
        raise failures[0]


def bits_of(tensors):
    return [samples.bits(tensor).tobytes() for tensor in tensors]


def everything():
    """The bits of each operator's results, and of its gradient, for each image."""
    return {
        (name, number): bits_of(operators.everything(name, image))
        for name in operators.EVERYTHING
        for number, image in enumerate(IMAGES)
    }


def test_eight_threads_call_everything_at_once(monkeypatch, one_thread):
    """The same bits in every run and thread, also under deterministic algorithms, which refuse
    nothing."""
    expected = everything()
    torch.use_deterministic_algorithms(True)
    filters = list(warnings.filters)

    def caller(seed):
        def call_everything():
            requests = list(expected) * 2
            random.Random(seed).shuffle(requests)
            for name, number in requests:
                found = bits_of(operators.everything(name, IMAGES[number]))
                assert found == expected[name, number], f"{name} of image {number}"

        return call_everything

    # Quantized tensors are made here under catch_warnings, which no two threads may do at once.
    images = {image.shape: operators.quantized(image) for image in IMAGES}
    monkeypatch.setattr(operators, "quantized", lambda image: images[image.shape])
    at_once([caller(seed) for seed in range(8)])
    assert warnings.filters == filters


def replica_of(module):
    replica = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        replica._modules[name] = replica_of(child)
    for name, parameter in module._parameters.items():
        setattr(replica, name, parameter)
    return replica


def test_replicas_in_threads(one_thread):
    """DataParallel makes replicas without calling their constructors, and calls each in a thread of
    its own."""
    pools = nn.MaxPool2d(2, padding="same"), nn.AvgPool2d(3, 1, dilation=2), nn.LPPool2d(2, 2)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), *pools)
    images = [samples.normal(2, 3, 21, 23, seed=seed) for seed in range(4)]
    with torch.no_grad():
        expected = [model(image) for image in images]
    found: dict[int, Tensor] = {}

    def calling(number):
        replica = replica_of(model)
        return lambda: found.__setitem__(number, replica(images[number]))

    at_once([calling(number) for number in range(len(images))])
    for number, output in enumerate(expected):
        assert torch.equal(found[number].detach(), output)
    sum(output.sum() for output in found.values()).backward()
    assert model[0].weight.grad is not None


def _in_child(sender):
    torch.set_num_threads(1)
    sender.send(everything())


NO_FORK = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system forks no processes"
)


@NO_FORK
def test_a_forked_child_pools_after_its_parent():
    """The child uses what the parent cached: results and gradients, bit for bit."""
    expected = everything()
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_in_child, args=(sender,))
    child.start()
    try:
        assert receiver.poll(120), "the child hangs"
        assert receiver.recv() == expected
        child.join(30)
        assert child.exitcode == 0
    finally:
        child.kill()


class Pooled(Dataset):
    """Images that are pooled where they are loaded."""

    def __init__(self):
        self.pool = nn.MaxPool2d(3, 2, padding="same", return_indices=True)

    def __len__(self):
        return 6

    def __getitem__(self, number):
        return self.pool(samples.normal(3, 20, 21, seed=number))


@pytest.mark.parametrize(
    "start", [pytest.param("fork", marks=NO_FORK), pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_data_loaders(start):
    """Layers in a dataset go to its workers, forked or pickled."""
    dataset = Pooled()
    loader = DataLoader(dataset, batch_size=2, num_workers=2, multiprocessing_context=start)
    for number, (values, indices) in enumerate(loader):
        for part in range(2):
            expected = dataset[2 * number + part]
            assert torch.equal(values[part], expected[0])
            assert torch.equal(indices[part], expected[1])


SHARED = {
    "contiguous": [
        ((1, 6, 56, 56), (3, 2, 1)),
        ((1, 1, 200_000), (3, 1, 1)),
        ((1, 1, 100_000), (200, 7, 20)),
        ((1, 3, 8, 20, 20), (3, 1, 1)),
        ((1, 2, 90, 90), (20, 1, 9)),
        ((1, 64, 7, 7), (7, 1, 0)),
        ((1, 2, 600, 600), (600, 1, 0)),
    ],
    "channels last": [
        ((1, 330, 40, 40), (31, 1, 2)),
        ((2, 100, 40, 40), (13, 1, 6)),
        ((2, 33, 30, 30), (3, 1, 1)),
    ],
}
"""Rows, tiles of a long row, boxes, whole planes and parts of one, blocks of channels of which the
last one is short: sizes, and a window with its stride and its padding."""


def shared(image, window):
    """The results of pools and of their gradients. Unpooling adds what arrives at an element."""
    leaf, rank = image.detach().requires_grad_(), image.dim() - 2
    max_pool, avg_pool, unpool = (
        getattr(nn.functional, f"{name}pool{rank}d") for name in ("max_", "avg_", "max_un")
    )
    maxima, indices = max_pool(leaf, *window, return_indices=True)
    found = [maxima, max_pool(leaf, *window), avg_pool(leaf, *window)]
    found.append(unpool(maxima, indices, *window, output_size=image.shape))
    for each in tuple(found):
        found += torch.autograd.grad(each, leaf, each.detach(), retain_graph=True)
    size, *steps = window
    known = (image * 255).byte(), torch.tensor(0.5), None, torch.tensor(0.5), None
    averages = dmlpool.quantized_linear_average_pooling(*known, size, *steps, steps[1])
    return [indices, averages, *found]


EVERY_WAY = [(layout, *call) for layout, calls in SHARED.items() for call in calls]


@pytest.mark.parametrize(
    ("layout", "sizes", "window", "dtype"),
    [(*way, dtype) for way, dtype in zip(EVERY_WAY, samples.FLOATS * 3, strict=False)],
)
def test_every_way_to_share_work_gives_the_same_bits(layout, sizes, window, dtype, one_thread):
    """Long and short windows, in the next data type each. tools/sanitize.py runs it with a library
    that has threads of its own."""
    threads = getattr(cpu.library, "dmlpool_own_threads", torch.set_num_threads)
    image = torch.rand(sizes, generator=torch.Generator().manual_seed(0)).to(dtype)
    image = samples.LAYOUTS[layout](image)
    threads(1)
    expected = bits_of(shared(image, window))
    for count in (2, 5):
        threads(count)
        assert bits_of(shared(image, window)) == expected


def masked(image, mask):
    """Results and gradients of pools under a mask, of tokens and sets, and of statistics."""
    found: list[Tensor] = []
    around = {"start_padding": 1, "end_padding": 1, "mask": mask}
    tokens = image.flatten(2).transpose(1, 2)
    lengths = torch.linspace(0, tokens.shape[1], 40).long()

    def add(results, leaf):
        for each in (results,) if isinstance(results, Tensor) else results:
            found.append(each.detach())
            if each.dtype.is_floating_point:
                found.extend(torch.autograd.grad(each, leaf, each.detach(), retain_graph=True))

    leaf = image.detach().requires_grad_()
    add(dmlpool.max_pooling(leaf, 3, 2, **around, return_indices=True), leaf)
    add(dmlpool.average_pooling(leaf, 3, 2, **around), leaf)
    add(dmlpool.average_pooling(leaf, image.shape[2:], mask=mask), leaf)
    add(dmlpool.adaptive_average_pooling(leaf, 7, mask=mask), leaf)
    add(dmlpool.statistics_pooling(leaf, mask), leaf)
    leaf = tokens.detach().requires_grad_()
    for reduction in ("mean", "max"):
        add(dmlpool.token_pooling(leaf, mask.flatten(2)[:, 0], reduction), leaf)
        add(dmlpool.segment_pooling(leaf[0], lengths, reduction), leaf)
    return found


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("sizes", [(2, 70, 60, 50), (1, 6, 150, 140)], ids=str)
def test_masked_pools_and_sets_share_work(layout, sizes, one_thread):
    """As above."""
    threads = getattr(cpu.library, "dmlpool_own_threads", torch.set_num_threads)
    image = samples.LAYOUTS[layout](samples.normal(*sizes))
    mask = samples.normal(sizes[0], 1, *sizes[2:], seed=3) > -0.5
    threads(1)
    expected = masked(image, mask)
    threads(4)
    assert bits_of(masked(image, mask)) == bits_of(expected)
