"""How each kernel is launched: frozen descriptions made by pure functions of the problem.

A ``window`` here is any dataclass with ``axes``, each a dataclass of ``window``, ``stride``,
``start_padding``, ``end_padding``, ``dilation`` and ``ceil_mode``. Nothing here touches a tensor,
so everything is testable without one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd, prod
from typing import Any, NamedTuple

VECTOR_BYTES = 16  # the widest load and store there is
# 4 warps of 32 or 2 of 64: fewer lanes than threads would send tl.split through shared memory
LANES = 128
# 23 warps on each of 132 multiprocessors hide memory's latency. With fewer lanes in all, each owns
# fewer rows.
LANES_ENOUGH = 98_304
# 32-bit arithmetic below this; the margin holds the lanes and tiles past the end
WIDE_FROM = 2**31 - 2**24


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch on a one-dimensional grid (y and z end at 65,535, x does not): plain,
    hashable data.

    A kernel takes its tensors (and numbers), then ``sizes``, a tuple of integers and tuples that is
    never specialised, then ``constants`` by name. ``backends.triton.launch`` runs one. With
    ``triton.compile`` it compiles for any target: the signature is the tensors' pointers and
    ``size_types``, the constants are ``dict(constants)``.
    """

    kernel: str  # module and function in torch_dmlpool.kernels: "max_pooling.max_tile"
    programs: int
    sizes: tuple[Any, ...]
    constants: tuple[tuple[str, Any], ...]
    size_types: tuple[Any, ...]  # "i32" or "i64" for each number
    results: int  # elements of each tensor that it writes
    # what the backend has made ready to run it, for each device
    ready: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls, kernel: str, programs: int, results: int, sizes: tuple[Any, ...], **constants: Any
    ) -> "Launch":
        """Makes a launch and derives ``size_types`` from the sizes."""
        return cls(kernel, programs, sizes, tuple(constants.items()), _types(sizes), results)


def _types(sizes: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        [
            _types(each)
            if isinstance(each, tuple)
            else "i32"
            if -0x8000_0000 <= each < 0x8000_0000
            else "i64"
            for each in sizes
        ]
    )


class Axis(NamedTuple):
    """A window along one axis, as kernels are compiled for it. The defaults describe an axis that
    is missing.
    """

    window: int = 1
    stride: int = 1
    start: int = 0  # padding
    end: int = 0
    dilation: int = 1

    @property
    def extent(self) -> int:
        """Positions from the first tap to the last."""
        return (self.window - 1) * self.dilation + 1


@lru_cache(maxsize=1024)
def axes_of(window: Any) -> tuple[Axis, ...]:
    """A window's axes over depths, rows and columns: no size changes them."""
    axes = [
        Axis(axis.window, axis.stride, axis.start_padding, axis.end_padding, axis.dilation)
        for axis in ([] if window is None else window.axes)
    ]
    return (*[Axis()] * (3 - len(axes)), *axes)


class Request(NamedTuple):
    """What a call of an operator computes: dense results from a source of any strides, which is the
    input or the incoming gradient.

    The kernels that work on one axis at a time need a source that is dense in the results' order.
    """

    window: Any  # None for adaptive bins
    shape: tuple[int, ...]  # of the source
    strides: tuple[int, ...]
    target_sizes: tuple[int, ...]  # spatial ones
    element_size: int
    aligned: bool  # all tensors start at multiples of 16 bytes
    channels_last: bool  # the results' memory order
    adjoint: bool = False
    # whether the device runs PTX from sm_80 on; for maxima also a floating type of at most 4 bytes
    asm: bool = False
    include_padding: bool = False  # of averages
    divisor_override: int | None = None
    mask: tuple[
        int, ...
    ] = ()  # five strides of a dense mask of all samples, if there is one: of the input

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The window over depths, rows and columns."""
        return axes_of(self.window)

    @property
    def is_dilated(self) -> bool:
        """Whether the window is, along some axis."""
        return any(axis.dilation > 1 for axis in self.axes)

    @property
    def rank(self) -> int:
        """Spatial dimensions. Rows in (N, W, C) order are images of one row."""
        return max(len(self.target_sizes), 1 + self.channels_last)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Spatial sizes of the source; 1 along a missing axis."""
        return (1,) * (5 - len(self.shape)) + self.shape[2:]  # type: ignore[return-value]

    @property
    def masking(self) -> int:
        """0 without a mask, 1 under one of each channel, 2 under one of all channels, 3 where these
        are innermost.
        """
        is_one = self.mask[1:2] == (0,) and self.shape[1] > 1
        return bool(self.mask) + is_one * (1 + self.channels_last)

    @property
    def targets(self) -> tuple[int, int, int]:
        """Spatial sizes of the results."""
        return (1,) * (3 - len(self.target_sizes)) + self.target_sizes  # type: ignore[return-value]

    @property
    def vector(self) -> int:
        """Elements of the widest vectors that the source can be read in: along its rows, or along
        its channels if the results are in channels_last.
        """
        sn, sc, sd, sh, sw = five_strides(self.shape, self.strides)
        along, size, others = sw, self.shape[-1], (sn, sc, sd, sh)
        if self.channels_last:
            along, size, others = sc, self.shape[1], (sn, sd, sh, sw)
        elif self.adjoint and self.mask:  # rows of the mask are read in these vectors, too
            others = *others, self.targets[2]
        return vector_width(self.element_size, self.aligned and along == 1, size, *others)


class Block(NamedTuple):
    """What a program that folds windows owns: ``results`` windows by ``positions`` of each, of
    which a thread reads ``loads`` at once.
    """

    rows: bool  # whether a window's positions are neighbours in memory, else windows are
    results: int
    positions: int
    loads: int
    compensated: bool = False  # whether sums are compensated, as a thread adds up many elements
    vector: int = 1  # neighbours in memory that a thread loads together, of whole axes' sums


class Mode(NamedTuple):
    """What ``fold`` and ``share`` compute of a window: see ``folding.fold``. ``kinds`` say how two
    scales and zero points are given: 0 as numbers, 1 as tensors of one entry, 2 of one per channel.
    """

    operation: int  # ``folding.SUM``, ``GREATEST`` or ``FIRST_GREATEST``
    # what divides: a number (0), elements inside the input (1) or padded input (2), those that a
    # mask keeps (4), or these in the launch after this one (3)
    count: int = 0
    numbered: bool = False  # whether the launches before have left numbers
    kinds: tuple[int, ...] = (0, 0, 0, 0)
    mask: int = 0  # which elements there are: see ``folding.LEFT``
    kept: int = 0  # which results there are, the same


class Form(NamedTuple):
    """What a tile kernel is compiled for beside windows: see ``tile_launch``."""

    rank: int
    channels: bool  # whether vectors are of channels, which are innermost, else of columns
    tile: tuple[int, int, int]  # depths, rows and columns that a lane owns
    vector: int  # elements of a vector of the source
    store: int  # elements of a vector of the results
    wide: bool  # whether positions need 64 bits
    unit: bool  # whether vectors of columns are neighbours in memory
    mask: int  # ``Request.masking``


class Tile(NamedTuple):
    """What a lane owns: depths, rows and columns of results (of source elements, for an adjoint),
    and its vectors.
    """

    sizes: tuple[int, int, int]
    vector: int


def tile_launch(kernel: str, request: Request, tile: Tile, **constants: Any) -> "Launch":
    """A launch of one lane for each tile, in vectors of columns, or of channels where these are
    innermost.

    The kernel gets sizes and strides of the source in vectors, but the stride along a vector of one
    element as it is, and the width of the results in the vectors that they are stored in.
    """
    axes, sizes, targets, width = request.axes, request.sizes, request.targets, tile.vector
    batch, channels = request.shape[:2]
    strides = five_strides(request.shape, request.strides)
    sn, sc, sd, sh, sw = strides if width == 1 else (stride // width for stride in strides)
    owned = [
        part * axis.stride if request.adjoint else part
        for part, axis in zip(tile.sizes, axes, strict=True)
    ]
    tiles = [divided(target, part) for target, part in zip(targets, owned, strict=True)]
    ends, store = targets, width
    if request.channels_last:
        lengths = (channels // width, *sizes)
        spans = (
            in_plane_span((*sizes, channels), (*strides[2:], strides[1])),
            prod(targets) * channels,
        )
    else:
        store = gcd(vector_width(request.element_size, request.aligned, targets[2]), owned[2])
        lengths, ends = (
            (channels, *sizes[:2], sizes[2] // width),
            (*targets[:2], targets[2] // store),
        )
        spans = in_plane_span(sizes, strides[2:]), prod(targets)
    lanes = batch * lengths[0] * prod(tiles)
    inputs, outputs = (targets, sizes) if request.adjoint else (sizes, targets)
    wide = max(lanes, *spans, *map(farthest, inputs, outputs, axes)) >= WIDE_FROM
    unit = strides[4] == 1 or sizes[2] == 1
    mask = request.masking
    form = Form(request.rank, request.channels_last, tile.sizes, width, store, wide, unit, mask)
    kept = tuple(stride // (1 if mask == 3 else width) for stride in request.mask)
    dividers = tuple(map(divider, (*tiles[::-1], lengths[0])))
    numbers = ((lanes, *lengths), (sn, sc, sd, sh, sw), ends, dividers, kept)
    results, programs = batch * channels * prod(targets), divided(lanes, LANES)
    constants |= dict(zip(("DEPTH", "ROW", "COLUMN"), axes, strict=True))
    return Launch.of(kernel, programs, results, numbers, **constants, FORM=form)


class Part(NamedTuple):
    """A spatial axis of an input. Neighbouring axes that a window takes whole are one axis of all
    their elements.
    """

    inputs: int
    outputs: int
    axis: Axis
    bins: bool  # whether it has adaptive bins, which ``axis`` does not describe

    @property
    def is_whole(self) -> bool:
        """Whether one window takes all of it."""
        axis = self.axis
        return self.outputs == 1 and axis.start == 0 and axis.window == axis.extent == self.inputs

    @property
    def is_kept(self) -> bool:
        """Whether each output is the input at its position, so that no launch is needed."""
        return not self.bins and (self.inputs, *self.axis[:4]) == (self.outputs, 1, 1, 0, 0)


def parts(request: Request) -> list[Part]:
    """The axes from the outermost on, where neighbours that a window takes whole are one part."""
    sizes, counts = request.sizes, request.targets
    if request.adjoint:
        sizes, counts = counts, sizes
    result: list[Part] = []
    for size, count, axis in zip(sizes, counts, request.axes, strict=True):
        bins = request.window is None and count > 1
        part = Part(size, count, Axis(size) if request.window is None else axis, bins)
        if result and result[-1].is_whole and part.is_whole:
            size *= result.pop().inputs
            part = Part(size, 1, Axis(size), False)
        result.append(part)
    return result


def is_one_window(request: Request) -> bool:
    """Whether a plane has one window, which takes it whole."""
    plane, *others = parts(request)
    return plane.is_whole and not others


class Along(NamedTuple):
    """A launch along one axis of dense tensors: ``source`` elements become ``targets``, and
    neighbours along the axis lie ``inner`` elements apart.
    """

    source: int
    targets: int
    inner: int
    outer: int
    part: Part
    first: bool
    last: bool

    @property
    def axis(self) -> Axis:
        """The window along it."""
        return self.part.axis

    @property
    def results(self) -> int:
        """Elements that the tensor has after this axis."""
        return self.outer * self.targets * self.inner


def one_axis_at_a_time(request: Request, *, innermost_first: bool = False) -> Iterator[Along]:
    """The axes along which a window or bins change anything; at least one axis."""
    each = parts(request)
    used = [i for i, part in enumerate(each) if not part.is_kept] or [len(each) - 1]
    used = used[::-1] if innermost_first else used
    ends = [(part.inputs, part.outputs)[:: -1 if request.adjoint else 1] for part in each]
    now = [source for source, _ in ends]
    batch, channels = request.shape[:2]
    for i in used:
        source, now[i] = ends[i]
        inner = prod(now[i + 1 :]) * (channels if request.channels_last else 1)
        outer = batch * channels * prod(now) // (inner * now[i])
        yield Along(source, now[i], inner, outer, each[i], i == used[0], i == used[-1])


def farthest(inputs: int, outputs: int, axis: Axis) -> int:
    """The largest number in the arithmetic of positions along an axis."""
    beyond = axis.start + axis.end + axis.extent - 1 + axis.stride
    return max(max(inputs, outputs * axis.stride) + beyond, axis.stride**2)


def five_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int, int, int]:
    """Strides as ``N, C, D, H, W``; 0 along a dimension of size 1, whose stride means nothing."""
    meant = [0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True)]
    return (*meant[:2], *([0] * (5 - len(meant))), *meant[2:])  # type: ignore[return-value]


def in_plane_span(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first of a plane to its last, for spatial sizes and strides."""
    return sum((size - 1) * abs(stride) for size, stride in zip(sizes, strides, strict=True)) + 1


def vector_width(element_size: int, aligned: bool, *divisible: int) -> int:
    """Elements per vector: as many as 16 bytes hold and divide every length and stride; 1 for an
    unaligned tensor.
    """
    if not aligned:  # Triton knows a pointer as a multiple of 16 bytes or not at all
        return 1
    return gcd(VECTOR_BYTES // element_size, *divisible)


def divided(total: int, part: int) -> int:
    """``total / part``, rounded up."""
    return -(-total // part)


def widest_bin(size: int, outputs: int) -> int:
    """The most elements of an adaptive bin."""
    common = gcd(size, outputs)
    return divided((size + outputs) // common - 1, outputs // common)


def windows_over(axis: Axis) -> int:
    """The most windows that have a tap on one position."""
    return divided(axis.window, axis.stride // gcd(axis.stride, axis.dilation))


def divider(number: int) -> tuple[int, int, int]:
    """``number``, multiplier and shift by which kernels divide by it (``addressing.over``): exact
    below 2**31 (Granlund and Montgomery, "Division by invariant integers using multiplication").
    """
    shift = (number - 1).bit_length()
    multiplier = 2**32 * (2**shift - number) // number + 1
    return number, multiplier - (2**32 if multiplier >= 2**31 else 0), shift
