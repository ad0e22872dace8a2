"""What averages on the CPU promise, whatever serves them: layouts, threads, default types, large sums (E3, G7, Q6)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import samples
import torch
from torch import Tensor

import torch_dmlpool as dmlpool

pool = dmlpool.quantized_linear_average_pooling


@pytest.fixture
def restored() -> Iterator[None]:
    """Puts the default data type and the number of threads back."""
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    yield
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)


def test_quantized_averages_of_one_channel_in_channels_last() -> None:
    """G7: strides of a dimension of size 1 change nothing."""
    for sizes in ((2, 1, 6, 7), (2, 1, 4, 6, 7)):
        image = torch.arange(torch.Size(sizes).numel()).to(torch.uint8).view(sizes)
        last = image.contiguous(memory_format=torch.channels_last if len(sizes) == 4 else torch.channels_last_3d)
        strided = last.as_strided(sizes, (last.stride(0), 1, *last.stride()[2:]))
        assert torch.equal(pool(strided, 0.1, 3, 0.1, 3, 2), pool(image, 0.1, 3, 0.1, 3, 2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.usefixtures("restored")
def test_the_default_data_type_changes_no_quantized_average(dtype: torch.dtype) -> None:
    image = samples.normal(1, 4, 200, 200).mul(50).to(torch.int8)
    expected = pool(image, 0.3, None, 0.1, 5, 2)
    torch.set_default_dtype(dtype)
    assert torch.equal(pool(image, 0.3, None, 0.1, 5, 2), expected)


def test_quantized_sums_of_a_large_image_do_not_overflow() -> None:
    """Q6: 3000 x 3000 elements of 255 sum to more than 2^31."""
    image = torch.full((1, 1, 3000, 3000), 255, dtype=torch.uint8)
    assert pool(image, 0.1, None, 0.1, None, 3000).tolist() == [[[[255]]]]


def slices(image: Tensor) -> Iterator[Tensor]:
    """The same numbers with other strides."""
    yield image.transpose(2, 3).contiguous().transpose(2, 3)
    yield torch.stack([image, image], 3).select(3, 0)
    yield torch.nn.functional.pad(image, (1, 2, 3, 4))[..., 3:-4, 1:-2]
    yield image.contiguous(memory_format=torch.channels_last)
    yield image.repeat_interleave(2, 1)[:, ::2]


def test_averages_of_any_strides() -> None:
    """G7: forward and backward, within a rounding of the contiguous result."""
    image = samples.normal(2, 3, 9, 11)
    expected = dmlpool.average_pooling(image, 3, 2, 1, 1)
    expected_gradient = dmlpool.average_pooling_grad(image, (2, 3, 17, 21), 3, 2, 1, 1)
    for other in slices(image):
        torch.testing.assert_close(dmlpool.average_pooling(other, 3, 2, 1, 1), expected)
        torch.testing.assert_close(dmlpool.average_pooling_grad(other, (2, 3, 17, 21), 3, 2, 1, 1), expected_gradient)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.usefixtures("restored")
def test_the_number_of_threads_changes_no_bit(channels_last: bool) -> None:
    """E3: long sums, small, wide and tiling windows, forward and backward."""
    image = samples.normal(2, 6, 300, 301)
    image = samples.channels_last(image) if channels_last else image
    for window, stride in ((300, 1), (3, 1), (31, 1), (64, 64)):
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            average = dmlpool.average_pooling(image, window, stride)
            results.append((average, dmlpool.average_pooling_grad(average, image.shape, window, stride)))
        for average, gradient in results[1:]:
            assert torch.equal(average, results[0][0])
            assert torch.equal(gradient, results[0][1])
