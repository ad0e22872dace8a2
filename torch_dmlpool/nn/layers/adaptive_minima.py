"""AdaptiveMinPool1d, AdaptiveMinPool2d and AdaptiveMinPool3d.

tools/write_dimensions.py writes those for one and three dimensions: edit those for two.
"""

from typing import Literal, overload

from torch import Tensor

from torch_dmlpool._private import _AdaptiveMaxPoolNd
from torch_dmlpool.keywords import layer
from torch_dmlpool.nn import families
from torch_dmlpool.window import OutputSize


class AdaptiveMinPool1d(families.AdaptiveMinPool[families.Result], _AdaptiveMaxPoolNd, rank=1):
    """Minima over ``output_size`` windows that cover the input evenly; torch.nn has no such layer.

    Inputs are ``(N, C, W)`` or, unbatched, ``(C, W)``. ``layer(input, mask=mask)`` leaves out the
    elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of 1
    broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: the minima, and their int64 positions in their
            channel's plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 3)
    >>> AdaptiveMinPool1d(2)(row).flatten()
    tensor([1., 0.])
    """

    @overload
    def __init__(
        self: "AdaptiveMinPool1d[Tensor]",
        output_size: OutputSize,
        return_indices: Literal[False] = False,
    ) -> None: ...
    @overload
    def __init__(
        self: "AdaptiveMinPool1d[tuple[Tensor, Tensor]]",
        output_size: OutputSize,
        *,
        return_indices: Literal[True],
    ) -> None: ...

    @layer
    def __init__(self, output_size: OutputSize, return_indices: bool = False) -> None:
        super().__init__(output_size, return_indices)


class AdaptiveMinPool2d(families.AdaptiveMinPool[families.Result], _AdaptiveMaxPoolNd, rank=2):
    """Minima over ``output_size`` windows that cover the input evenly; torch.nn has no such layer.

    Inputs are ``(N, C, H, W)`` or, unbatched, ``(C, H, W)``. ``layer(input, mask=mask)`` leaves out
    the elements where ``mask`` is False: a bool tensor with the input's dimensions, where sizes of
    1 broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: the minima, and their int64 positions in their
            channel's plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 1, 3)
    >>> AdaptiveMinPool2d((1, 2))(row).flatten()
    tensor([1., 0.])
    """

    @overload
    def __init__(
        self: "AdaptiveMinPool2d[Tensor]",
        output_size: OutputSize,
        return_indices: Literal[False] = False,
    ) -> None: ...
    @overload
    def __init__(
        self: "AdaptiveMinPool2d[tuple[Tensor, Tensor]]",
        output_size: OutputSize,
        *,
        return_indices: Literal[True],
    ) -> None: ...

    @layer
    def __init__(self, output_size: OutputSize, return_indices: bool = False) -> None:
        super().__init__(output_size, return_indices)


class AdaptiveMinPool3d(families.AdaptiveMinPool[families.Result], _AdaptiveMaxPoolNd, rank=3):
    """Minima over ``output_size`` windows that cover the input evenly; torch.nn has no such layer.

    Inputs are ``(N, C, D, H, W)`` or, unbatched, ``(C, D, H, W)``. ``layer(input, mask=mask)``
    leaves out the elements where ``mask`` is False: a bool tensor with the input's dimensions,
    where sizes of 1 broadcast, or with the spatial ones alone.

    Args:
        output_size: Number of windows: an int or one per dimension. None keeps the input's size.
        return_indices: Whether to return a pair: the minima, and their int64 positions in their
            channel's plane.

    >>> row = torch.tensor([1.0, 2.0, 0.0]).view(1, 1, 1, 3)
    >>> AdaptiveMinPool3d((1, 1, 2))(row).flatten()
    tensor([1., 0.])
    """

    @overload
    def __init__(
        self: "AdaptiveMinPool3d[Tensor]",
        output_size: OutputSize,
        return_indices: Literal[False] = False,
    ) -> None: ...
    @overload
    def __init__(
        self: "AdaptiveMinPool3d[tuple[Tensor, Tensor]]",
        output_size: OutputSize,
        *,
        return_indices: Literal[True],
    ) -> None: ...

    @layer
    def __init__(self, output_size: OutputSize, return_indices: bool = False) -> None:
        super().__init__(output_size, return_indices)
