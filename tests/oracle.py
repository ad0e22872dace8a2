"""What the operators mean, window by window in plain numpy: written from the rules, importing
nothing of the package.

Slow and literal on purpose. Rules G2-G4 are walked through window by window instead of computed by
formula, sums are kept in extended precision, and every function loops over windows and asks which
taps each really reads.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass(frozen=True)
class Pooling:
    """A window request in DirectML's words, one entry per spatial dimension."""

    window_size: tuple[int, ...]
    strides: tuple[int, ...]
    start_padding: tuple[int, ...]
    end_padding: tuple[int, ...]
    dilations: tuple[int, ...]
    ceil_mode: bool = False

    @property
    def rank(self):
        return len(self.window_size)


@dataclass(frozen=True)
class Bins:
    """As many windows as these along each axis, covering it evenly: what adaptive pooling is asked
    for."""

    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Reading:
    """What one window reads: its taps inside the input, and how many taps lie inside the padded
    box."""

    output: tuple[int, ...]
    taps: tuple[int, ...]
    """Row-major numbers of the taps inside the input, in order."""
    positions: tuple[tuple[int, ...], ...]
    """The input positions of the same taps."""
    taps_in_box: int

    @functools.cached_property
    def elements(self):
        """Index that takes a tensor's elements at these positions into a last dimension, in the
        taps' order."""
        return (..., *np.array(self.positions).T)

    @functools.cached_property
    def tap_numbers(self):
        """``taps`` as an array."""
        return np.array(self.taps)


def tap_positions(pooling, axis, output):
    """Input positions of the taps of window ``output``; negative in the start padding (G2)."""
    first = output * pooling.strides[axis] - pooling.start_padding[axis]
    return [first + tap * pooling.dilations[axis] for tap in range(pooling.window_size[axis])]


def output_size(pooling, axis, size):
    """Windows along an axis (G3), by sliding the window until it no longer fits; 0 where there is
    none."""
    box_end = size + pooling.end_padding[axis]
    # Window -1 stands one stride before the box: if only it "fits", the first window is the one
    # that ceil_mode may add.
    if tap_positions(pooling, axis, -1)[-1] >= box_end:
        return 0
    fitting = -1
    while tap_positions(pooling, axis, fitting + 1)[-1] < box_end:
        fitting += 1
    leaves_remainder = tap_positions(pooling, axis, fitting)[-1] != box_end - 1
    starts_before_input_end = tap_positions(pooling, axis, fitting + 1)[0] < size
    if pooling.ceil_mode and leaves_remainder and starts_before_input_end:
        fitting += 1
    return fitting + 1


def output_sizes(pooling, sizes):
    if isinstance(pooling, Bins):
        return pooling.outputs
    return tuple(output_size(pooling, axis, size) for axis, size in enumerate(sizes))


@functools.cache
def readings(pooling, sizes):
    """Every window in row-major order of the output."""
    return [
        reading(pooling, sizes, output)
        for output in itertools.product(*(range(size) for size in output_sizes(pooling, sizes)))
    ]


def bin_positions(size, outputs, output):
    """Elements of which some part lies in one of ``outputs`` equal parts of an axis, in exact
    fractions."""
    start, stop = Fraction(output * size, outputs), Fraction((output + 1) * size, outputs)
    return [position for position in range(size) if position + 1 > start and position < stop]


def reading(pooling, sizes, output):
    if isinstance(pooling, Bins):
        parts = [bin_positions(*axis) for axis in zip(sizes, pooling.outputs, output, strict=True)]
        positions = tuple(itertools.product(*parts))
        return Reading(output, tuple(range(len(positions))), positions, len(positions))
    per_axis = [tap_positions(pooling, axis, position) for axis, position in enumerate(output)]
    taps, inside, in_box = [], [], 0
    for tap, position in enumerate(itertools.product(*per_axis)):
        if all(0 <= coordinate < size for coordinate, size in zip(position, sizes, strict=True)):
            taps.append(tap)
            inside.append(position)
        in_box += all(
            coordinate < size + end
            for coordinate, size, end in zip(position, sizes, pooling.end_padding, strict=True)
        )
    return Reading(output, tuple(taps), tuple(inside), in_box)


def divisors(window, are_there, include_padding, divisor_override):
    """What the sum of each sample and channel is divided by (A1, A2, A5): the elements that are
    there count, and padding where it does (K3); 1 where nothing does (A3)."""
    if divisor_override is not None:
        return np.full(are_there.shape[:-1], divisor_override)
    padding = window.taps_in_box - len(window.taps) if include_padding else 0
    return np.maximum(are_there.sum(-1) + padding, 1)


def average(values, pooling, include_padding=False, divisor_override=None, mask=None):
    """Averages in extended precision of the elements that are there (K1 to K3), and beside each the
    Σ|x| / |divisor| that rule E6 measures errors by; 0 of none."""
    shape = values.shape[:2] + output_sizes(pooling, values.shape[2:])
    averages, magnitudes = np.zeros(shape, np.longdouble), np.zeros(shape, np.longdouble)
    values = values.astype(np.longdouble)
    mask = np.broadcast_to(True if mask is None else mask, values.shape)
    for window in readings(pooling, values.shape[2:]):
        if window.taps:
            are_there = mask[window.elements]
            elements = np.where(are_there, values[window.elements], 0)
            counts = divisors(window, are_there, include_padding, divisor_override)
            averages[(..., *window.output)] = elements.sum(-1) / counts
            magnitudes[(..., *window.output)] = np.abs(elements).sum(-1) / np.abs(counts)
    return averages, magnitudes


def average_grad(gradient, sizes, pooling, include_padding=False, divisor_override=None, mask=None):
    """Each window's gradient, divided as its sum was, added to the elements that it read (A6);
    magnitudes as above."""
    shape = gradient.shape[:2] + tuple(sizes)
    result, magnitudes = np.zeros(shape, np.longdouble), np.zeros(shape, np.longdouble)
    gradient = gradient.astype(np.longdouble)
    mask = np.broadcast_to(True if mask is None else mask, shape)
    for window in readings(pooling, tuple(sizes)):
        if window.taps:
            are_there = mask[window.elements]
            counts = divisors(window, are_there, include_padding, divisor_override)
            # A window's positions are all different, so that adding to them at once loses nothing.
            shares = (gradient[(..., *window.output)] / counts)[..., None] * are_there
            result[window.elements] += shares
            magnitudes[window.elements] += np.abs(shares)
    return result, magnitudes


def quantized_average(
    values, input_scales, input_zeros, output_scales, output_zeros, pooling, include_padding, dtype
):
    """Quantized averages in rational arithmetic (Q1, Q2); a scale and a zero point for each channel
    on either side."""
    result = np.zeros(values.shape[:2] + output_sizes(pooling, values.shape[2:]), dtype)
    for window in readings(pooling, values.shape[2:]):
        sums = np.zeros(values.shape[:2], np.int64)
        if window.taps:
            zeros = np.array(input_zeros, np.int64)[:, None]
            sums = (values[window.elements].astype(np.int64) - zeros).sum(-1)
        count = (window.taps_in_box if include_padding else len(window.taps)) or 1
        for sample, channel in np.ndindex(sums.shape):
            scales = input_scales[channel], output_scales[channel], output_zeros[channel]
            found = requantized(int(sums[sample, channel]), count, *scales, dtype)
            result[(sample, channel, *window.output)] = found
    return result


@functools.lru_cache(maxsize=2**16)
def requantized(sum, count, input_scale, output_scale, zero, dtype):
    """One result of Q1: Python rounds a fraction's half to even."""
    exact = Fraction(input_scale) * sum / (count * Fraction(output_scale))
    ends = np.iinfo(dtype)
    return min(max(round(exact) + zero, ends.min), ends.max)


def ends(dtype):
    """What a maximum of nothing is (M1, N1), and a minimum (N2)."""
    if dtype.kind == "b":
        return False, True
    if dtype.kind == "f":
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max


@dataclass(frozen=True)
class Maximum:
    """Everything that max pooling can be asked for."""

    values: np.ndarray
    taps: np.ndarray
    """Row-major number of the winning tap inside its window; 0 where the window is empty."""
    plane_indices: np.ndarray
    """PyTorch's indices, inside the spatial plane; -1 where the window is empty."""
    indices: np.ndarray
    """DirectML's indices, over the whole tensor in logical order (M4); -1 where the window is
    empty."""


def maximum(values, pooling, mask=None):
    """The first greatest element of every window (M1-M4); a NaN is greater than all else, and the
    first NaN wins. Under a mask only what is there can win (K4)."""
    # numpy's argmax is the rule itself: the first of equals, and the first NaN before everything.
    return _extremum(values, pooling, np.argmax, ends(values.dtype)[0], mask)


def minimum(values, pooling, mask=None):
    """The first least element of every window (N2); the first NaN wins here too, by numpy's
    rule."""
    return _extremum(values, pooling, np.argmin, ends(values.dtype)[1], mask)


def _extremum(values, pooling, choose, nothing, mask):
    """What ``choose`` chooses of the elements of every window; ``nothing`` where there is none."""
    mask = np.broadcast_to(True if mask is None else mask, values.shape)
    batch, channels, *sizes = values.shape
    shape = (batch, channels, *output_sizes(pooling, sizes))
    best = np.full(shape, nothing, values.dtype)
    taps, plane = np.zeros(shape, np.int64), np.full(shape, -1, np.int64)
    for window in readings(pooling, tuple(sizes)):
        if window.taps:
            elements, where = values[window.elements], (..., *window.output)
            are_there = mask[window.elements]
            first = _first(choose, elements, are_there)
            is_any, numbers = are_there.any(-1), window.tap_numbers
            places = np.ravel_multi_index(window.elements[1:], sizes)
            chosen = np.take_along_axis(elements, first[..., None], -1)[..., 0]
            best[where] = np.where(is_any, chosen, best[where])
            taps[where] = np.where(is_any, numbers[first], 0)
            plane[where] = np.where(is_any, places[first], -1)
    planes = np.arange(batch * channels).reshape(batch, channels, *[1] * len(sizes))
    whole = np.where(plane < 0, -1, plane + planes * int(np.prod(sizes)))
    return Maximum(best, taps, plane, whole)


def _first(choose, elements, are_there):
    """Which element of the last dimension is chosen of those that are there; 0 of none."""
    if are_there.all():
        return choose(elements, -1)
    found = np.zeros(elements.shape[:-1], np.int64)
    for place in np.ndindex(found.shape):
        (numbers,) = np.nonzero(are_there[place])
        if len(numbers):
            found[place] = numbers[choose(elements[place][numbers], -1)]
    return found


def maximum_grad(values, gradient, pooling):
    return handed_back(maximum(values, pooling), gradient, values.shape)


def handed_back(maximum, gradient, shape):
    """The gradient handed to each window's winner, overlaps added in extended precision (M5)."""
    result, is_any = np.zeros(math.prod(shape), np.longdouble), maximum.indices >= 0
    np.add.at(result, maximum.indices[is_any], gradient.astype(np.longdouble)[is_any])
    return result.reshape(shape)


def norm(values, pooling, p):
    """The p-norm of what every window reads, in extended precision; 0 where it reads nothing."""
    norms = np.zeros(values.shape[:2] + output_sizes(pooling, values.shape[2:]), np.longdouble)
    magnitudes = np.abs(values.astype(np.longdouble))
    for window in readings(pooling, values.shape[2:]):
        if window.taps:
            elements = magnitudes[window.elements]
            exponent = np.longdouble(p)
            norms[(..., *window.output)] = (
                elements.max(-1) if p == np.inf else (elements**exponent).sum(-1) ** (1 / exponent)
            )
    return norms


def unpooled(values, plane_indices, sizes):
    """Every element written at its index in its plane, one after the other, and which elements were
    not overwritten."""
    planes = values.shape[0] * values.shape[1]
    result = np.zeros((planes, math.prod(sizes)), values.dtype)
    writers = np.full(result.shape, -1)
    flat, indices = values.reshape(planes, -1), plane_indices.reshape(planes, -1).astype(np.int64)
    for plane, element in np.ndindex(flat.shape):
        if indices[plane, element] != -1:
            result[plane, indices[plane, element]] = flat[plane, element]
            writers[plane, indices[plane, element]] = element
    elements = np.arange(flat.shape[1])
    kept = np.array([np.isin(elements, plane) for plane in writers])
    return result.reshape(*values.shape[:2], *sizes), kept.reshape(values.shape)


def pooled_sets(rows, offsets, mask, reduction):
    """Each set of ``(L, C)`` rows in turn, in extended precision, and the row of each maximum or
    minimum; -1 where there is none."""
    sets, channels = len(offsets) - 1, rows.shape[1]
    extreme = -np.inf if reduction == "max" else np.inf
    results = np.full((sets, channels), 0 if reduction in ("mean", "sum") else extreme, rows.dtype)
    winners = np.full((sets, channels), -1)
    for number in range(sets):
        kept = np.arange(offsets[number], offsets[number + 1])
        kept = kept if mask is None else kept[mask[kept]]
        for channel in range(channels):
            elements = rows[kept, channel]
            if not len(kept):
                continue
            if reduction in ("mean", "sum"):
                total = elements.astype(np.longdouble).sum()
                results[number, channel] = total / (len(kept) if reduction == "mean" else 1)
                continue
            are_nan = np.isnan(elements)
            find = np.argmax if reduction == "max" else np.argmin
            first = int(are_nan.argmax() if are_nan.any() else find(elements))
            results[number, channel], winners[number, channel] = elements[first], kept[first]
    return results, winners


def statistics(values, mask, correction):
    """Mean and deviation of each plane of ``(N, C, W)`` under a mask of that shape, in extended
    precision."""
    means, deviations = np.zeros((2, *values.shape[:2]), np.longdouble)
    for plane in np.ndindex(values.shape[:2]):
        elements = values[plane][mask[plane]].astype(np.longdouble)
        if len(elements):
            means[plane] = elements.sum() / len(elements)
        if len(elements) > max(correction, 0):
            squares = ((elements - means[plane]) ** 2).sum()
            deviations[plane] = np.sqrt(squares / (len(elements) - correction))
    return means, deviations
