"""Every length of a row from 1 to 272, which is two blocks of 128 and a vector, against numpy: the
last block of a row overlaps the one before, and errors there show at some lengths alone."""

from fractions import Fraction

import numpy as np
import pytest
import samples
import torch

import torch_dmlpool as dmlpool

LENGTHS = range(1, 273)


def images(length, layout, dtype):
    """Rows of that length along W; with channels last also along the channels."""
    if layout == "channels":
        return samples.channels_last(samples.ties(1, length, 2, 4, dtype=dtype, seed=length))
    image = samples.ties(1, 3, 2, length, dtype=dtype, seed=length)
    return image if layout == "contiguous" else samples.channels_last(image)


def windows(image, fill, padding):
    """The taps of each window of three columns, as float64, which holds all of them."""
    pads = [(0, 0)] * 3 + [(padding, padding)]
    padded = np.pad(image.contiguous().double().numpy(), pads, constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, 3, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
@pytest.mark.parametrize("layout", ["contiguous", "channels last", "channels"])
def test_every_length_of_a_row(layout, dtype):
    """M1 to M5, A1 to A6: maxima, minima, averages, norms and gradients; sums are exact."""
    around = {"window_size": (1, 3), "start_padding": (0, 1), "end_padding": (0, 1)}
    is_float = dtype.is_floating_point
    for length in LENGTHS:
        image = images(length, layout, dtype)
        taps = windows(image, -np.inf, 1)
        values, indices = dmlpool.max_pooling(image, **around, return_indices=True)
        assert np.array_equal(values.numpy(), taps.max(-1)), length
        assert np.array_equal(dmlpool.max_pooling(image, **around).numpy(), taps.max(-1)), length
        least = dmlpool.min_pooling(image, **around).numpy()
        assert np.array_equal(least, windows(image, np.inf, 1).min(-1)), length
        width = image.shape[3]
        places = np.arange(image.numel()).reshape(image.shape) + taps.argmax(-1) - 1
        assert np.array_equal(indices.numpy(), places), length
        if not is_float:
            continue
        sums = windows(image, 0, 1).sum(-1)
        asked = {**around, "divisor_override": 1}
        assert np.array_equal(dmlpool.average_pooling(image, **asked).numpy(), sums), length
        counts = windows(torch.ones(1, 1, 1, width), 0, 1).sum(-1)
        means = dmlpool.average_pooling(image, **around).numpy()
        np.testing.assert_allclose(means, sums / counts, rtol=1e-6, atol=1e-6)
        squares = windows(image * image, 0, 1).sum(-1)
        norms = dmlpool.lp_pooling(image, **around, dilations=1).numpy()
        np.testing.assert_allclose(norms, np.sqrt(squares), rtol=1e-6)
        back = dmlpool.average_pooling_grad(image, image.shape, **asked).numpy()
        assert np.array_equal(back, sums), length
        expected = np.zeros(image.numel())
        np.add.at(expected, places, image.numpy())
        found = dmlpool.max_pooling_grad(image, image, **around).contiguous().numpy()
        assert np.array_equal(found.ravel(), expected), length
        if layout != "channels":
            pooled, winners = dmlpool.max_pooling(image, (2, 1), (2, 1), return_indices=True)
            filled = np.zeros(image.numel())
            filled[winners.numpy().ravel()] = pooled.numpy().ravel()
            whole = dmlpool.max_unpooling(pooled, winners, image.shape).contiguous().numpy()
            assert np.array_equal(whole.ravel(), filled), length


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize(("scale", "step"), [(0.7, 4.9), (1 / 3, 1.0)])
def test_halves_in_every_length_of_a_row(layout, scale, step):
    """Q1 and Q2: what is rounded exactly reaches as far as the last block does."""
    numbers = [torch.tensor(each, dtype=torch.float32).item() for each in (scale, step)]
    factor = Fraction(numbers[0]) / (2 * Fraction(numbers[1]))
    exact = np.array([max(-128, min(127, round(n * factor))) for n in range(-260, 260)])
    for length in LENGTHS:
        rows = samples.integers(4, 1, 2, 2 * length, dtype=torch.int8, seed=length)
        if layout != "contiguous":
            rows = samples.channels_last(rows.view(4, 1, 2, 2 * length).transpose(1, 3))
            pairs, window = (rows.to(torch.int32) - 1).sum(2, keepdim=True), (2, 1)
        else:
            pairs, window = (rows.to(torch.int32) - 1).unflatten(-1, (-1, 2)).sum(-1), (1, 2)
        found = dmlpool.quantized_linear_average_pooling(
            rows, numbers[0], 1, numbers[1], 0, window, window
        )
        assert np.array_equal(found.numpy(), exact[pairs.numpy() + 260]), length
