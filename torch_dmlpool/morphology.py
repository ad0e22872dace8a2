"""Flat morphology: the greatest and the least element under a footprint of any form.

A footprint is the union of the largest boxes in it, so the maximum over it is the greatest of the
maxima over these boxes. Each is a max pooling, whose time hardly depends on the size of its window.
"""

import functools
import itertools
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from torch_dmlpool._private import _assert_async, constant_in_graphs
from torch_dmlpool.keywords import with_directml_names
from torch_dmlpool.operators.max_pooling import max_pooling
from torch_dmlpool.operators.min_pooling import min_pooling
from torch_dmlpool.tensors import ORDERED_TYPES, SIGNED_FOR, check_pooled, name_of, signed
from torch_dmlpool.window import ArgumentError, Integers, check_spatial_sizes, entries

__all__ = ["bottom_hat", "closing", "dilation", "erosion", "gradient", "opening", "top_hat"]

Box: TypeAlias = tuple[tuple[int, int], ...]  # the first and the last element of each dimension


@with_directml_names
def dilation(images: Tensor, footprint: Integers | Tensor) -> Tensor:
    """Maximum of the elements under the reflected footprint, around each element.

    Args:
        images: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`torch_dmlpool.max_pooling`. Three dimensions are ``(N, C, W)``, never an image.
        footprint: The size of a box, one int for all spatial dimensions or one each in
            ``D, H, W`` order; or a bool tensor of the spatial dimensions, whose elements that are
            True take part. Its centre is element ``size // 2``, as in SciPy, and need not take
            part. torch.compile reads the tensor where it compiles, and the compiled code raises a
            RuntimeError for a tensor of the same sizes and other elements.

    Returns:
        A tensor of the sizes and the data type of ``images``. Outside the image nothing wins: where
        the footprint has no element inside, the result is -inf, False or the lowest value of the
        type. Every type is exact; NaN wins.

    It can be differentiated to any order, except for integers and bools. The gradient goes to one
    of the greatest elements, so its sum is that of what arrives.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or shape, or a footprint without an element. It is a
            RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[0, 0, 5, 0, 0]]])
        >>> dmlpool.morphology.dilation(row, torch.tensor([True, True, False]))
        tensor([[[0, 5, 5, 0, 0]]])

    Source: https://docs.scipy.org/doc/scipy/reference/generated/scipy.ndimage.grey_dilation.html
    """
    return _extremes(images, footprint, max_pooling)


@with_directml_names
def erosion(images: Tensor, footprint: Integers | Tensor) -> Tensor:
    """Minimum of the elements under the footprint, around each element.

    Args:
        images: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`torch_dmlpool.max_pooling`. Three dimensions are ``(N, C, W)``, never an image.
        footprint: One int, one a spatial dimension, or a bool tensor of the spatial dimensions, as
            in :func:`dilation`.

    Returns:
        A tensor of the sizes and the data type of ``images``. Outside the image nothing wins: where
        the footprint has no element inside, the result is inf, True or the highest value of the
        type. Every type is exact; NaN wins.

    It can be differentiated to any order, except for integers and bools. The gradient goes to one
    of the least elements, so its sum is that of what arrives.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or shape, or a footprint without an element. It is a
            RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[9, 9, 5, 9, 9]]])
        >>> dmlpool.morphology.erosion(row, torch.tensor([True, True, False]))
        tensor([[[9, 9, 5, 5, 9]]])

    Source: https://docs.scipy.org/doc/scipy/reference/generated/scipy.ndimage.grey_erosion.html
    """
    return _extremes(images, footprint, min_pooling)


@with_directml_names
def opening(images: Tensor, footprint: Integers | Tensor) -> Tensor:
    """Dilation of the erosion: it removes what is bright and smaller than the footprint.

    Args:
        images: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`torch_dmlpool.max_pooling`. Three dimensions are ``(N, C, W)``, never an image.
        footprint: One int, one a spatial dimension, or a bool tensor of the spatial dimensions, as
            in :func:`dilation`.

    Returns:
        A tensor of the sizes and the data type of ``images``, nowhere above them. Every type is
        exact; NaN wins.

    It can be differentiated to any order, except for integers and bools, as :func:`erosion` and
    :func:`dilation` one after the other.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or shape, or a footprint without an element. It is a
            RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[0, 7, 0, 4, 4, 4, 0]]])
        >>> dmlpool.morphology.opening(row, 3)
        tensor([[[0, 0, 0, 4, 4, 4, 0]]])

    Source: https://docs.scipy.org/doc/scipy/reference/generated/scipy.ndimage.grey_opening.html
    """
    return dilation(erosion(images, footprint), footprint)


@with_directml_names
def closing(images: Tensor, footprint: Integers | Tensor) -> Tensor:
    """Erosion of the dilation: it fills what is dark and smaller than the footprint.

    Args:
        images: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`torch_dmlpool.max_pooling`. Three dimensions are ``(N, C, W)``, never an image.
        footprint: One int, one a spatial dimension, or a bool tensor of the spatial dimensions, as
            in :func:`dilation`.

    Returns:
        A tensor of the sizes and the data type of ``images``, nowhere below them. Every type is
        exact; NaN wins.

    It can be differentiated to any order, except for integers and bools, as :func:`dilation` and
    :func:`erosion` one after the other.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or shape, or a footprint without an element. It is a
            RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[9, 2, 9, 5, 5, 5, 9]]])
        >>> dmlpool.morphology.closing(row, 3)
        tensor([[[9, 9, 9, 5, 5, 5, 9]]])

    Source: https://docs.scipy.org/doc/scipy/reference/generated/scipy.ndimage.grey_closing.html
    """
    return erosion(dilation(images, footprint), footprint)


@with_directml_names
def gradient(images: Tensor, footprint: Integers | Tensor) -> Tensor:
    """Dilation minus erosion: it is large at edges. Not the gradient of autograd.

    Args:
        images: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`torch_dmlpool.max_pooling`. Three dimensions are ``(N, C, W)``, never an image.
        footprint: One int, one a spatial dimension, or a bool tensor of the spatial dimensions, as
            in :func:`dilation`.

    Returns:
        A tensor of the sizes and the data type of ``images``. Integers wrap around where the
        difference is outside their type, as in PyTorch; of bools it is the exclusive or.

    It can be differentiated to any order, except for integers and bools, as :func:`dilation` minus
    :func:`erosion`.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or shape, or a footprint without an element. It is a
            RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[1, 1, 1, 6, 6, 6]]])
        >>> dmlpool.morphology.gradient(row, 3)
        tensor([[[0, 0, 5, 5, 0, 0]]])

    Source: https://docs.scipy.org/doc/scipy/reference/generated/scipy.ndimage.morphological_gradient.html
    """
    return _difference(dilation(images, footprint), erosion(images, footprint))


@with_directml_names
def top_hat(images: Tensor, footprint: Integers | Tensor) -> Tensor:
    """The images minus their opening: what is bright and smaller than the footprint.

    Args:
        images: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`torch_dmlpool.max_pooling`. Three dimensions are ``(N, C, W)``, never an image.
        footprint: One int, one a spatial dimension, or a bool tensor of the spatial dimensions, as
            in :func:`dilation`.

    Returns:
        A tensor of the sizes and the data type of ``images``, at least 0. Signed integers wrap
        around where the difference is outside their type, as in PyTorch; of bools it is the
        exclusive or.

    It can be differentiated to any order, except for integers and bools, as the images minus
    :func:`opening`.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or shape, or a footprint without an element. It is a
            RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[0, 7, 0, 4, 4, 4, 0]]])
        >>> dmlpool.morphology.top_hat(row, 3)
        tensor([[[0, 7, 0, 0, 0, 0, 0]]])

    Source: https://docs.scipy.org/doc/scipy/reference/generated/scipy.ndimage.white_tophat.html
    """
    return _difference(images, opening(images, footprint))


@with_directml_names
def bottom_hat(images: Tensor, footprint: Integers | Tensor) -> Tensor:
    """The closing of the images minus them: what is dark and smaller than the footprint.

    Args:
        images: ``(N, C, *spatial)`` with 1 to 3 spatial dimensions; the data types of
            :func:`torch_dmlpool.max_pooling`. Three dimensions are ``(N, C, W)``, never an image.
        footprint: One int, one a spatial dimension, or a bool tensor of the spatial dimensions, as
            in :func:`dilation`.

    Returns:
        A tensor of the sizes and the data type of ``images``, at least 0. Signed integers wrap
        around where the difference is outside their type, as in PyTorch; of bools it is the
        exclusive or.

    It can be differentiated to any order, except for integers and bools, as :func:`closing` minus
    the images.

    Raises:
        TypeError: An argument has the wrong type, or a data type that is not supported.
        ValueError: A wrong number, size or shape, or a footprint without an element. It is a
            RuntimeError too.

    Example:
        >>> import torch, torch_dmlpool as dmlpool
        >>> row = torch.tensor([[[9, 2, 9, 5, 5, 5, 9]]])
        >>> dmlpool.morphology.bottom_hat(row, 3)
        tensor([[[0, 7, 0, 0, 0, 0, 0]]])

    Source: https://docs.scipy.org/doc/scipy/reference/generated/scipy.ndimage.black_tophat.html
    """
    return _difference(closing(images, footprint), images)


def _extremes(images: Tensor, footprint: Integers | Tensor, pool: Any) -> Tensor:
    """The dilation of ``images`` by ``max_pooling``, or the erosion by ``min_pooling``."""
    check_pooled(images, ORDERED_TYPES, "images")
    check_spatial_sizes("images", images.shape[2:])
    boxes = _boxes(footprint, images.dim() - 2)
    if len(boxes) > 1 and images.dtype in SIGNED_FOR:
        # PyTorch compares no wide unsigned integers. These signed ones have the same order.
        lowest = torch.iinfo(SIGNED_FOR[images.dtype]).min
        shifted = _extremes(signed(images) ^ lowest, footprint, pool)
        return (shifted ^ lowest).view(images.dtype)
    found = _over(boxes[0], images, pool)
    for box in boxes[1:]:
        found = _greater(found, _over(box, images, pool), are_maxima=pool is max_pooling)
    return found


def _over(box: Box, images: Tensor, pool: Any) -> Tensor:
    """The maxima or minima over a box, given by offsets from the centre, around each element."""
    # A dilation takes the reflected footprint.
    reach = [(-last, -first) if pool is max_pooling else (first, last) for first, last in box]
    before, after = [max(0, -first) for first, _ in reach], [max(0, last) for _, last in reach]
    found = pool(images, [last - first + 1 for first, last in reach], 1, before, after)
    # Where a box lies beside the centre, the pool also has windows that begin or end nearer to it.
    for dimension, (first, last) in enumerate(reach, 2):
        if first > 0 or last < 0:
            found = found.narrow(dimension, max(0, first), images.shape[dimension])
    return found


def _greater(found: Tensor, other: Tensor, are_maxima: bool) -> Tensor:
    """The greater or the lesser of two elements; NaN wins."""
    if not found.requires_grad:
        return (torch.maximum if are_maxima else torch.minimum)(found, other)
    # torch.maximum would send half of a gradient to each of two equal elements, and all of it to
    # both where one is NaN.
    is_kept = found >= other if are_maxima else found <= other
    return torch.where(is_kept | found.isnan(), found, other)


def _difference(minuend: Tensor, subtrahend: Tensor) -> Tensor:
    if minuend.dtype is torch.bool:
        return minuend ^ subtrahend
    if minuend.dtype in SIGNED_FOR:
        return (signed(minuend) - signed(subtrahend)).view(minuend.dtype)
    return minuend - subtrahend


def _boxes(footprint: Integers | Tensor, rank: int) -> tuple[Box, ...]:
    """The boxes whose union is the footprint, as offsets from its centre."""
    if not isinstance(footprint, Tensor):
        sizes = entries("footprint", footprint, rank, 1)
        boxes: tuple[Box, ...] = (tuple((0, size - 1) for size in sizes),)
    else:
        sizes = tuple(footprint.shape)
        if footprint.dtype is not torch.bool:
            raise TypeError(
                "footprint must be ints or a bool tensor, got a tensor of "
                f"{name_of(footprint.dtype)}"
            )
        if len(sizes) != rank:
            raise ArgumentError(
                f"footprint must have the {rank} spatial dimensions of images, got shape {sizes}"
            )
        boxes, values = _read(footprint)
        if is_dynamo_compiling():
            read = torch.tensor(values, dtype=torch.bool, device=footprint.device)
            is_same = (footprint.flatten() == read).all()
            _assert_async(is_same, "footprint has other elements than where this was compiled")
        if not boxes:
            raise ArgumentError(f"footprint must have an element that is True, got shape {sizes}")
    middles = [size // 2 for size in sizes]
    return tuple(
        tuple((first - at, last - at) for (first, last), at in zip(box, middles, strict=True))
        for box in boxes
    )


@constant_in_graphs
def _read(footprint: Tensor) -> tuple[tuple[Box, ...], tuple[bool, ...]]:
    """The boxes of a footprint, which count from its first element, and its elements."""
    rows = footprint.tolist()  # of the tensor itself: torch.export has no values of a view
    values = rows
    for _ in footprint.shape[1:]:
        values = list(itertools.chain.from_iterable(values))
    if not all(type(value) is bool for value in values):
        raise ArgumentError(
            "footprint must have known elements, got a tensor that is traced: let torch.export take"
            " it as a plain attribute or a constant, not as an argument or a buffer"
        )
    return _cover(_frozen(rows)), tuple(values)


def _frozen(rows: Any) -> Any:
    return tuple(map(_frozen, rows)) if isinstance(rows, list) else rows


@functools.lru_cache(1024)
def _cover(inside: Any) -> tuple[Box, ...]:
    """The boxes of each slice, as far as they stay inside the footprint in the slices beside it. So
    no box lies in another. Slices are tuples, and elements bools.
    """
    if isinstance(inside, bool):
        return ((),) if inside else ()
    found = []
    for box in sorted({box for each in inside for box in _cover(each)}):
        holds = [_has(each, box) for each in inside]
        for is_inside, run in itertools.groupby(range(len(inside)), holds.__getitem__):
            if is_inside:
                places = list(run)
                found.append(((places[0], places[-1]), *box))
    return tuple(found)


def _has(inside: Any, box: Box) -> bool:
    """Whether all elements of a box are inside."""
    if not box:
        return bool(inside)
    first, last = box[0]
    return all(_has(each, box[1:]) for each in inside[first : last + 1])
