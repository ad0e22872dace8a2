"""AdaptiveMaxPool1d, AdaptiveMaxPool2d and AdaptiveMaxPool3d.

tools/write_dimensions.py writes those for one and three dimensions: edit those for two.
"""

from typing import Literal, overload

import torch
from torch import Tensor

from torch_dmlpool.keywords import layer
from torch_dmlpool.nn import families
from torch_dmlpool.window import OutputSize


class AdaptiveMaxPool1d(
    families.AdaptiveMaxPool[families.Result], torch.nn.AdaptiveMaxPool1d, rank=1
):
    """:class:`torch.nn.AdaptiveMaxPool1d`: maxima over ``output_size`` windows that cover the input
    evenly.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``. ``layer(input, mask=mask)`` leaves out the
    elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of 1
    broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: the maxima, and their int64 positions in their
            channel's plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 3)
    >>> AdaptiveMaxPool1d(2)(row).flatten()
    tensor([2., 2.])
    """

    @overload
    def __init__(
        self: "AdaptiveMaxPool1d[Tensor]",
        output_size: OutputSize,
        return_indices: Literal[False] = False,
    ) -> None: ...
    @overload
    def __init__(
        self: "AdaptiveMaxPool1d[tuple[Tensor, Tensor]]",
        output_size: OutputSize,
        *,
        return_indices: Literal[True],
    ) -> None: ...

    @layer
    def __init__(self, output_size: OutputSize, return_indices: bool = False) -> None:
        super().__init__(output_size, return_indices)


class AdaptiveMaxPool2d(
    families.AdaptiveMaxPool[families.Result], torch.nn.AdaptiveMaxPool2d, rank=2
):
    """:class:`torch.nn.AdaptiveMaxPool2d`: maxima over ``output_size`` windows that cover the input
    evenly.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``. ``layer(input, mask=mask)`` leaves out
    the elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of
    1 broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: the maxima, and their int64 positions in their
            channel's plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 1, 3)
    >>> AdaptiveMaxPool2d((1, 2))(row).flatten()
    tensor([2., 2.])
    """

    @overload
    def __init__(
        self: "AdaptiveMaxPool2d[Tensor]",
        output_size: OutputSize,
        return_indices: Literal[False] = False,
    ) -> None: ...
    @overload
    def __init__(
        self: "AdaptiveMaxPool2d[tuple[Tensor, Tensor]]",
        output_size: OutputSize,
        *,
        return_indices: Literal[True],
    ) -> None: ...

    @layer
    def __init__(self, output_size: OutputSize, return_indices: bool = False) -> None:
        super().__init__(output_size, return_indices)


class AdaptiveMaxPool3d(
    families.AdaptiveMaxPool[families.Result], torch.nn.AdaptiveMaxPool3d, rank=3
):
    """:class:`torch.nn.AdaptiveMaxPool3d`: maxima over ``output_size`` windows that cover the input
    evenly.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``. ``layer(input, mask=mask)``
    leaves out the elements where ``mask`` is False: a bool tensor with the input's dimensions,
    where sizes of 1 broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: the maxima, and their int64 positions in their
            channel's plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 1, 1, 3)
    >>> AdaptiveMaxPool3d((1, 1, 2))(row).flatten()
    tensor([2., 2.])
    """

    @overload
    def __init__(
        self: "AdaptiveMaxPool3d[Tensor]",
        output_size: OutputSize,
        return_indices: Literal[False] = False,
    ) -> None: ...
    @overload
    def __init__(
        self: "AdaptiveMaxPool3d[tuple[Tensor, Tensor]]",
        output_size: OutputSize,
        *,
        return_indices: Literal[True],
    ) -> None: ...

    @layer
    def __init__(self, output_size: OutputSize, return_indices: bool = False) -> None:
        super().__init__(output_size, return_indices)
