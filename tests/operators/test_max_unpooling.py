"""Max unpooling: both index bases, what is skipped, what is overwritten, derivatives that know of
it, refusals."""

import cases
import numpy as np
import oracle
import pytest
import samples
import torch

import torch_dmlpool as dmlpool

operators = torch.ops.dmlpool
POOLED = [
    *cases.SMALL,
    cases.case("gaps between windows", "floor drops a remainder"),
    cases.case("wide", "padded"),
]


def pooled(case, device, index_dtype=torch.int64, dtype=torch.float32):
    """An element for each window, and where the window's maximum lies: in the whole tensor, and in
    its plane."""
    input = samples.ties(2, 3, *case.sizes).to(device)
    _, indices = dmlpool.max_pooling(
        input, **case.arguments, return_indices=True, index_dtype=index_dtype
    )
    positions = operators.max_pooling_with_indices(
        input, *samples.spelled_out(case.pooling), torch.int64, True
    )[1]
    return samples.distinct(*indices.shape, dtype=dtype, seed=3).to(device), indices, positions


@cases.in_pairs(case=POOLED, dtype=samples.FLOATS + samples.INTEGERS)
def test_elements_return_to_their_maxima(case, dtype, device):
    """R1, R2 and M4: empty windows skipped in every index type, and of several with one index the
    last one written."""
    for index_dtype in samples.INDEX_TYPES:
        input, indices, positions = pooled(case, device, index_dtype, dtype)
        expected, _ = oracle.unpooled(
            samples.to_numpy(input), samples.to_numpy(positions), case.sizes
        )
        samples.assert_same(dmlpool.max_unpooling(input, indices, (2, 3, *case.sizes)), expected)
        for numbers, per_plane in ((indices, False), (positions, True), (positions.int(), True)):
            found = operators.max_unpooling(input, numbers, list(case.sizes), per_plane)
            samples.assert_same(found, expected)


@cases.parametrized(POOLED)
def test_the_gradient_goes_to_what_was_written(case, device):
    """R2: an overwritten element has none; the gradient of the gradient is unpooled again."""
    input, indices, positions = pooled(case, device)
    leaf = input.requires_grad_()
    output = dmlpool.max_unpooling(leaf, indices, (2, 3, *case.sizes))
    gradient = samples.normal(*output.shape, seed=5).to(device).requires_grad_()
    (found,) = torch.autograd.grad(output, leaf, gradient, create_graph=True)
    _, kept = oracle.unpooled(samples.to_numpy(input), samples.to_numpy(positions), case.sizes)
    gathered = (
        gradient.detach()
        .flatten(2)
        .gather(2, positions.clamp(min=0).flatten(2))
        .view(positions.shape)
    )
    samples.assert_same(found.detach(), np.where(kept, samples.to_numpy(gathered), 0))
    (second,) = torch.autograd.grad(found, gradient, input.detach())
    samples.assert_same(second, output.detach())


def test_indices_outside_write_nothing(device):
    """R3, where they are not looked at: by name, under transforms, on devices that would have to be
    waited for."""
    input = torch.arange(1.0, 7.0, device=device).view(1, 1, 6)
    wrong = torch.tensor([[[0, 5, -2, 2**40, 3, -(2**50)]]], device=device)
    expected = [[[1, 0, 0, 5]]]
    assert operators.max_unpooling(input, wrong, [4], True).tolist() == expected
    assert operators.max_unpooling(input, wrong, [4], False).tolist() == expected
    mapped = torch.func.vmap(lambda x, i: operators.max_unpooling(x, i, [4], False))
    assert mapped(input[None], wrong[None])[0].tolist() == expected
    other = torch.tensor([[[4, 5, -1, -1, -1, -1]]] * 2, device=device)
    assert operators.max_unpooling(input.repeat(2, 1, 1), other, [4], False).tolist() == [
        [[0] * 4],
        [[1, 2, 0, 0]],
    ]


def test_unique_positions(device):
    """The last of several stays, all else becomes -1; of the type that the plane needs."""
    positions = torch.tensor([[[3, 0, 3, -1, 9, 4, 0, 1, 3]]], device=device)
    for typed in (positions, positions.int()):
        unique = operators.unique_positions(typed, [4])
        assert (unique.dtype, unique.tolist()) == (
            torch.int32,
            [[[-1, -1, -1, -1, -1, -1, 0, 1, 3]]],
        )


@pytest.mark.parametrize("order", ["sorted", "drawn", "one place"])
@pytest.mark.parametrize("is_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("sizes", [(1, 1, 500, 700), (1, 5, 300, 400), (9, 2, 60, 50)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=samples.name_of)
def test_the_last_of_equal_indices_stays_in_every_part_of_a_plane(dtype, sizes, is_last, order):
    """Large planes are written part by part by several threads; it alone has a gradient."""
    plane = sizes[2] * sizes[3]
    count = plane // 150 * 50
    positions = np.random.default_rng(plane).integers(-1, plane, (sizes[0] * sizes[1], count))
    positions = np.sort(positions) if order == "sorted" else positions
    positions = np.full_like(positions, plane // 2) if order == "one place" else positions
    rows, firsts = np.arange(len(positions))[:, None], np.arange(len(positions))[:, None] * plane
    last = np.full((len(positions), plane + 1), -1)
    last[rows, positions] = np.arange(count)  # NumPy keeps the last of equal ones
    stays = (positions >= 0) & (last[rows, positions] == np.arange(count))
    elements = np.random.default_rng(1).integers(1, 100, positions.shape)
    expected = np.zeros((len(positions), plane + 1))
    expected[rows, positions] = elements
    input, indices = (
        torch.from_numpy(each).view(*sizes[:2], 50, -1)
        for each in (elements, np.where(positions < 0, -1, positions + firsts))
    )
    if is_last:
        input, indices = samples.channels_last(input), samples.channels_last(indices)
    leaf = input.to(dtype).requires_grad_(dtype.is_floating_point)
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        unpooled = dmlpool.max_unpooling(leaf, indices, sizes)
        torch.set_num_threads(before)
        if dtype.is_floating_point:
            (gradient,) = torch.autograd.grad(unpooled.sum(), leaf)
            assert np.array_equal(gradient.float().reshape(stays.shape).numpy(), stays)
        found = unpooled.detach().double().reshape(len(positions), plane)
        assert np.array_equal(found.numpy(), expected[:, :plane])


def test_vmap_counts_inside_each_sample(device):
    """M4: whole-tensor indices are those of the tensor that the function sees; either operand
    mapped alone."""
    images = [samples.ties(2, 2, 4, 6, seed=seed).to(device) for seed in range(3)]
    pairs = [dmlpool.max_pooling(image, 2, 1, return_indices=True) for image in images]
    values, indices = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
    unpool = lambda v, i: dmlpool.max_unpooling(v, i, (2, 2, 4, 6))  # noqa: E731 - one function for three calls
    expected = [unpool(*pair) for pair in pairs]
    samples.assert_same(
        torch.func.vmap(unpool, (None, 0))(values[0], indices)[1], unpool(values[0], indices[1])
    )
    samples.assert_same(
        torch.func.vmap(unpool)(values, indices.to(torch.uint32)), torch.stack(expected)
    )
