"""Launches that work on one axis after the other, on dense tensors: pure functions of sizes and
windows.

The kernels are not compiled for sizes: windows, strides, paddings, dilations, divisors and lengths
are numbers at run time, and the blocks below are the only ones.
"""

from collections.abc import Callable, Iterable
from math import prod
from typing import Any, NamedTuple

from . import launch
from .launch import Along, Axis, Block, Launch, Mode, Part, Request

SUM, GREATEST, FIRST_GREATEST = range(3)  # ``Mode.operation``: what ``folding.fold`` computes
OF_ROWS = 3  # ``Mode.mask`` of a mask of all channels, which are innermost
LEFT = 4  # ``Mode.mask`` of a launch that reads what the one before has left
WHOLE, WINDOWS, BINS = range(3)  # KIND of ``folding.fold``: one window, windows or adaptive bins
ANY = 2**63
# What a program owns, by the most elements of a window or bin: windows, positions of each, how many
# of these a thread loads at once, and whether it compensates its sums (rule E6). The keys say
# whether it adds up, and whether the axis is the innermost one. One warp has a window's positions,
# where these are few enough, so that the tree over them stays short.
SHORT = {2: (512, 1, 2), 8: (512, 1, 8)}  # a thread has all of a window
BLOCKS = {
    (True, True): {
        **SHORT,
        96: (64, 8, 8),
        128: (32, 16, 8),
        384: (16, 32, 8),
        1024: (4, 128, 8),
        2048: (2, 256, 8),
        ANY: (1, 512, 16, True),
    },
    (True, False): {
        **SHORT,
        64: (64, 16, 4),
        128: (64, 16, 8),
        256: (32, 32, 8),
        ANY: (32, 64, 8, True),
    },
    (False, True): {**SHORT, 96: (64, 16, 2), 1536: (4, 256, 2), ANY: (1, 1024, 2)},
    (False, False): {**SHORT, 16: (128, 8, 1), 96: (64, 16, 2), ANY: (32, 32, 2)},
}
# Whole axes of more elements than the first number are folded twice, first into slices of the
# second number, so that enough programs run. The keys say whether the axis is the innermost one.
# Slices depend on the length alone, so that a sample's bits do not depend on its batch.
SLICES = {True: (16_384, 8192), False: (1024, 512)}
# How many neighbouring windows a lane of ``sliding.share`` computes, and up to which stride. It
# reads at once what not all of them have in common, so that registers limit both.
SHARED = ((8, 1), (8, 2), (4, 4), (2, 8), (2, 16))
# Windows of at least SHARES_FROM elements and SHARES_OVER strides go to ``sliding.share``.
SHARES_FROM, SHARES_OVER = 9, 4
# Elements that a lane of ``folding.fold`` loads at once, of 16 bytes at most, where their number
# divides what lies side by side: more than 96 positions of a plane, or columns. The keys say
# whether the axis is the innermost one.
VECTORS = {True: 4, False: 8}
SPREAD = 1024  # elements of a program of ``spread``: twice as many need too many registers


class Step(NamedTuple):
    """What ``folding.fold`` does along one axis. Its docstring says more."""

    mode: Mode
    divisor: int = 1
    below: int = 1  # what a tap along this axis is multiplied by: the taps of the axes further in
    shift: int = 0  # the length of a slice where an axis is cut into slices, else 0


def folds(
    request: Request,
    operation: int,
    counting: tuple[int, int] = (0, 1),
    kinds: tuple[int, ...] = (0,) * 4,
) -> tuple[Launch, ...]:
    """Launches of windows or bins. Each but the last writes a workspace that the next reads.

    Maxima go innermost axis first, so that of equal ones the first row's first column wins; sums
    outermost first.
    """
    launches: list[Launch] = []
    below = 1
    for along in launch.one_axis_at_a_time(request, innermost_first=operation != SUM):
        count, divisor = _divisor_along(request, along, counting)
        numbered = not along.first and operation == FIRST_GREATEST
        mask = request.masking
        if not along.first:
            mask = LEFT * (mask > 0 and (numbered or count > 2))
        kept = 0
        if request.adjoint:
            mask, kept = 0, request.masking * along.last
        step = Step(Mode(operation, count, numbered, kinds, mask, kept), divisor, below)
        slice_from, size = SLICES[along.inner == 1]
        if along.part.is_whole and along.source > slice_from and count % 4 == 0:
            slices = launch.divided(along.source, size)
            cut = along._replace(
                targets=slices, part=Part(along.source, slices, Axis(size, size), False), last=False
            )
            own = step.mode._replace(count=3 if count else 0)
            launches.append(_fold(request, cut, step._replace(mode=own, divisor=1, shift=size)))
            along = along._replace(
                source=slices, part=Part(slices, 1, Axis(slices), False), first=False
            )
            numbered = operation == FIRST_GREATEST
            mask = LEFT * (mask > 0 and (numbered or count > 2))
            step = step._replace(mode=step.mode._replace(numbered=numbered, mask=mask), below=0)
        shared = operation != FIRST_GREATEST and _overlapping(request, along)
        launches.append(
            _share(request, along, step, shared) if shared else _fold(request, along, step)
        )
        below *= along.source if along.part.bins else along.axis.window
    return tuple(launches)


def _divisor_along(request: Request, along: Along, counting: tuple[int, int]) -> tuple[int, int]:
    """``(COUNT, divisor)`` of one axis, as ``folding.fold`` takes them."""
    count, divisor = counting
    if count > 2:
        return 3 + along.last, 1
    if request.window is None:
        if request.adjoint:
            return 0, 1
        return (1, 1) if along.part.bins else (0, along.source)
    if count == 0:
        if divisor >= ANY:  # more taps than 64 bits count: each axis divides by its own
            return 0, along.axis.window
        return 0, divisor if along.last else 1
    return (0, along.axis.window) if along.part.is_whole else (count, 1)


def overlaps(request: Request, axes: Callable[[Iterable[object]], bool] = any) -> bool:
    """Whether windows along ``any`` axis, or ``all`` axes, overlap so much that ``sliding`` shares
    what they have in common.
    """
    return axes(_overlapping(request, along) for along in launch.one_axis_at_a_time(request))


def _overlapping(request: Request, along: Along) -> tuple[int, int] | None:
    """The first entry of ``SHARED`` that fits windows which overlap much; None where they overlap
    little, or where ``folding`` is as fast.
    """
    axis = along.axis
    if request.window is None or request.adjoint or request.mask or along.part.is_whole:
        return None
    if axis.dilation > 1 or axis.window < max(SHARES_FROM, SHARES_OVER * axis.stride):
        return None
    fits = (each for each in SHARED if axis.stride <= min(each[1], axis.window // (each[0] - 1)))
    return next(fits, None)


def _share(request: Request, along: Along, step: Step, shared: tuple[int, int]) -> Launch:
    axis = along.axis
    groups = launch.divided(along.targets, shared[0])
    lanes = along.outer * along.inner * groups
    turns = launch.divided(min(axis.window - (shared[0] - 1) * axis.stride, along.source), 8)
    sizes = (
        *(lanes, turns, step.divisor, launch.divider(groups), launch.divider(along.inner)),
        (along.source, along.targets, axis.window, axis.stride, axis.start, axis.end),
        _planes(request, along.outer * along.inner),
    )
    reach = max((groups + 1) * shared[0] * axis.stride + axis.window, along.source)
    largest = lanes + launch.LANES, along.results, (reach + axis.start + axis.end) * along.inner
    constants = {
        "MODE": step.mode,
        "SHARED": shared,
        "ROWS": along.inner == 1,
        "WIDE": max(largest) >= launch.WIDE_FROM,
    }
    return Launch.of(
        "sliding.share", launch.divided(lanes, launch.LANES), along.results, sizes, **constants
    )


def _fold(request: Request, along: Along, step: Step) -> Launch:
    axis, part = along.axis, along.part
    bins = part.bins or (request.adjoint and request.window is None)
    bound = min(axis.window, launch.divided(along.source, axis.dilation))
    if bins:
        bound = launch.widest_bin(along.source, along.targets)
    elif request.adjoint:
        bound = min(launch.windows_over(axis), along.source)
    kind = BINS if bins else WHOLE if part.is_whole and not request.adjoint else WINDOWS
    block = _block(request, along, step, kind, bound)
    farthest = launch.farthest(part.inputs, part.outputs, axis)
    largest = [along.results, (along.source + 1) * along.inner, farthest]
    if bins:
        largest += [(along.targets + 1) ** 2, (along.source + 1) ** 2 if request.adjoint else 0]
    sizes = (
        *(along.results, launch.divided(bound, block.positions * block.loads), step.divisor),
        *map(launch.divider, (along.source, along.inner, along.targets)),
        (axis.window, launch.divider(axis.stride), *axis[2:4], launch.divider(axis.dilation)),
        (step.below, step.shift, 0 if along.last and not request.mask else -1),
        _planes(request, along.results),
    )
    constants = {
        "MODE": step.mode,
        "KIND": kind,
        "ADJOINT": request.adjoint,
        "BLOCK": block,
        "WIDE": max(largest) >= launch.WIDE_FROM,
    }
    return Launch.of(
        "folding.fold",
        launch.divided(along.results, block.results),
        along.results,
        sizes,
        **constants,
    )


def _block(request: Request, along: Along, step: Step, kind: int, bound: int) -> Block:
    """What a program of ``folding.fold`` owns, of windows or bins of at most ``bound`` elements."""
    is_sum, rows = step.mode.operation == SUM, along.inner == 1
    blocks: Any = BLOCKS[is_sum, rows]
    # Comparisons round nothing: a thread may have more of them, and the tree over threads fewer. It
    # has all of a short row where a plane has several.
    most = 4 if rows and bound <= 16 and not along.part.is_whole else 96 if bound <= 768 else bound
    wanted = bound if is_sum else min(bound, most)
    block = Block(rows, *blocks[min(longest for longest in blocks if wanted <= longest)])
    vector = min(VECTORS[rows], launch.VECTOR_BYTES // request.element_size)
    is_long = bound > 96 and (kind == WHOLE or step.shift > 0) if rows else block.positions > 1
    # A vector has one byte of the mask.
    near = request.shape[1] if step.mode.mask == OF_ROWS else along.source if rows else along.inner
    if is_long and near % vector == 0:
        block = block._replace(vector=vector)
    return block


def _planes(request: Request, elements: int) -> tuple[Any, ...]:
    """The dividers by which ``addressing.channel_of`` finds the channel of an element, and how many
    elements a plane of the source has.
    """
    batch, channels = request.shape[:2]
    neighbours = 1 if request.channels_last else elements // (batch * channels)
    return launch.divider(neighbours), launch.divider(channels), prod(request.sizes)


def spread(
    request: Request, counting: tuple[int, int] = (0, 1), *, with_taps: bool = False
) -> tuple[Launch, ...] | None:
    """The gradient of undilated windows that do not overlap and count as many elements, or of bins
    of one size; else None.
    """
    count, divisor = counting
    is_one = launch.is_one_window(request)
    if is_one and count:
        count, divisor = 0, request.window.taps
    parts = []
    for inputs, outputs, axis, bins in launch.parts(request):
        if outputs == 1:  # no other window starts before the end
            axis = axis._replace(stride=max(axis.stride, inputs + axis.start))
        if bins and inputs % outputs == 0:
            axis = Axis(inputs // outputs, inputs // outputs)
        elif bins or count or axis.stride < axis.window or axis.extent > axis.window:
            return None
        if (inputs, outputs, axis.window) != (1, 1, 1) or axis.start:
            parts.append((inputs, outputs, axis))
    if request.window is None:
        divisor = prod(axis.window for _, _, axis in parts)
    if divisor >= ANY:
        return None
    rank = 0 if is_one else max(len(parts), 1)
    parts = [(1, 1, Axis())] * (3 - len(parts)) + parts
    batch, channels = request.shape[:2]
    elements = batch * channels * prod(inputs for inputs, _, _ in parts)
    largest = [elements, *(launch.farthest(*part) for part in parts)]
    axes = tuple(
        (
            *(launch.divider(inputs), launch.divider(axis.stride)),
            *(outputs, axis.window, axis.start),
        )
        for inputs, outputs, axis in reversed(parts)
    )
    sizes = elements, divisor, _planes(request, elements), axes
    constants = {
        "TAPS": with_taps,
        "RANK": rank,
        "CHANNELS": request.channels_last,
        "MASK": request.masking,
        "WIDE": max(largest) >= launch.WIDE_FROM,
        "B": SPREAD,
    }
    return (
        Launch.of(
            "spreading.spread", launch.divided(elements, SPREAD), elements, sizes, **constants
        ),
    )
