"""torch.nn's pooling layers on this package's operators: subclasses that keep no state of their
own.

A bad argument is refused when the layer is built. ``forward`` builds the window again from the
attributes, so a changed one is honoured. Each family is defined once; its classes for one, two and
three dimensions stand at the end.
"""

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool._private import _AdaptiveMaxPoolNd, _MaxPoolNd
from torch_dmlpool.functional import OutputSize, Pooled
from torch_dmlpool.nn import dimensions, functional, quantized_tensors
from torch_dmlpool.nn.functional import Padding, Sizes
from torch_dmlpool.window import Window, shared

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AdaptiveMinPool1d",
    "AdaptiveMinPool2d",
    "AdaptiveMinPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "LPPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "MaxUnpool1d",
    "MaxUnpool2d",
    "MaxUnpool3d",
    "MinPool1d",
    "MinPool2d",
    "MinPool3d",
]


class Pool(torch.nn.Module):
    """What the layers share; it stands before torch's class among a layer's bases, which declares
    the attributes.
    """

    __call__: Callable[..., Tensor]
    _rank: ClassVar[int]
    _function: ClassVar[Callable[..., Any]]
    _description: ClassVar[str]

    def __init_subclass__(cls, rank: int = 0, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        if rank:
            cls._rank, cls.__module__ = rank, cls.__module__.removesuffix(".layers")
            cls.__doc__ = dimensions.described(cls._description, rank)
            words = re.sub(
                r"(?<=[a-z])(?=Pool)|(?<=Max)(?=Unpool)|(?<=Adaptive)|(?<=LP)", "_", cls.__name__
            )
            name = words.lower()
            function = getattr(functional, name)
            family = name.removesuffix(f"{rank}d")
            cls._function = staticmethod(quantized_tensors.accepting(function, family, rank))
        elif not hasattr(cls, "_rank"):  # a family, not a subclass of somebody's own
            cls._description, cls.__doc__ = inspect.cleandoc(cls.__doc__ or ""), None

    def extra_repr(self: Any) -> str:
        shown = super().extra_repr()
        for name in ("padding", "dilation"):
            if hasattr(type(self), name):  # torch's layer lacks it
                value, usual = getattr(self, name), getattr(type(self), name)
                entries = value if isinstance(value, (tuple, list)) else (value,)
                shown += f", {name}={value}" if any(entry != usual for entry in entries) else ""
        return shown

    def __prepare_scriptable__(self) -> NoReturn:
        name = f"{type(self).__module__}.{type(self).__name__}"
        raise NotImplementedError(
            f"torch.jit.script cannot compile {name}: use torch.compile, export or jit.trace"
        )


class _MaxPool(Pool):
    """:class:`torch.nn.MaxPool{rank}d` on ``{batched}`` or ``{unbatched}``, with any padding.

    Args:
        {window}
        return_indices: Whether to return the indices of the maxima too: int64, counted in each
            channel's plane.

    >>> layer = MaxPool{rank}d(({ones}3), stride=1, padding="same")
    >>> layer(torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, {ones}4)).flatten()
    tensor([4., 4., 4., 3.])
    """

    __call__: Callable[..., Any]  # a tensor, or with return_indices a pair

    def __init__(
        self: Any,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        dilation: Sizes = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)
        Window.pytorch(self._rank, kernel_size, stride, padding, dilation, ceil_mode)
        operands.check_flag("return_indices", return_indices)

    def forward(self: Any, input: Tensor, mask: Tensor | None = None) -> Pooled:
        window = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        return self._function(input, *window, self.return_indices, mask=mask)


class _MinPool(_MaxPool):
    """Minima over windows of ``{batched}`` or ``{unbatched}``, with the arguments of
    :class:`MaxPool{rank}d`; torch.nn has no such layer.

    Args:
        {window}
        return_indices: Whether to return the indices of the minima too: int64, counted in each
            channel's plane.

    >>> layer = MinPool{rank}d(({ones}3), stride=1, padding="same")
    >>> layer(torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, {ones}4)).flatten()
    tensor([1., 1., 2., 2.])
    """


class _AvgPool(Pool):
    """:class:`torch.nn.AvgPool{rank}d` on ``{batched}`` or ``{unbatched}``, with any padding and
    with ``dilation``.

    Args:
        {window}
        count_include_pad: Whether padding counts in the divisor; it adds nothing to the sum.
        divisor_override: Divide every sum by this instead of the count; not 0.

    >>> row = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, {ones}4)
    >>> AvgPool{rank}d(({ones}2), stride=1, dilation=2)(row).flatten()
    tensor([2., 3.])
    """

    # What some of torch's own layers lack.
    divisor_override: int | None = None
    dilation: Sizes = 1

    def __init__(
        self: Any,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        dilation: Sizes = 1,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        if isinstance(padding, str):  # torch's AvgPool1d has split the word into letters
            vars(self)["padding"] = padding
        self.divisor_override, self.dilation = divisor_override, dilation
        Window.pytorch(self._rank, kernel_size, stride, padding, dilation, ceil_mode)
        operands.check_flag("count_include_pad", count_include_pad)
        operands.check_divisor(divisor_override)

    def forward(self: Any, input: Tensor, mask: Tensor | None = None) -> Tensor:
        window = (self.kernel_size, self.stride, self.padding, self.ceil_mode)
        counted = self.count_include_pad, self.divisor_override
        return self._function(input, *window, *counted, dilation=self.dilation, mask=mask)


class _LPPool(Pool):
    """:class:`torch.nn.LPPool{rank}d` on ``{batched}`` or ``{unbatched}``, with the norms of
    DirectML and ONNX.

    :func:`torch_dmlpool.nn.functional.lp_pool{rank}d` says where PyTorch's differ.

    Args:
        norm_type: The norm's exponent, at least 1, or ``math.inf``.
        {window}

    >>> LPPool{rank}d(2, ({ones}2))(torch.tensor([3.0, -4.0]).view(1, {ones}2)).flatten()
    tensor([5.])
    """

    padding: Padding = 0
    dilation: Sizes = 1

    def __init__(
        self: Any,
        norm_type: float,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        ceil_mode: bool = False,
        *,
        padding: Padding = 0,
        dilation: Sizes = 1,
    ) -> None:
        # first: PyTorch 2.14 checks it too, in other words
        operands.check_norm("norm_type", norm_type)
        super().__init__(norm_type, kernel_size, stride, ceil_mode)
        self.padding, self.dilation = padding, dilation
        Window.pytorch(self._rank, kernel_size, stride, padding, dilation, ceil_mode)

    def forward(self: Any, input: Tensor, mask: Tensor | None = None) -> Tensor:
        window = (self.kernel_size, self.stride, self.ceil_mode)
        more = {"padding": self.padding, "dilation": self.dilation, "mask": mask}
        return self._function(input, self.norm_type, *window, **more)


class _AdaptiveAvgPool(Pool):
    """:class:`torch.nn.AdaptiveAvgPool{rank}d` on ``{batched}`` or ``{unbatched}``.

    Args:
        output_size: Windows, an int or one per dimension; None keeps the input's size.

    >>> AdaptiveAvgPool{rank}d(({ones}2))(torch.tensor([1.0, 2.0, 3.0]).view(1, {ones}3)).flatten()
    tensor([1.5000, 2.5000])
    """

    def __init__(self: Any, output_size: OutputSize) -> None:
        super().__init__(output_size)
        operands.checked_output_size(shared(output_size), (1,) * self._rank)

    def forward(self: Any, input: Tensor, mask: Tensor | None = None) -> Tensor:
        return self._function(input, self.output_size, mask=mask)


class _AdaptiveMaxPool(Pool):
    """:class:`torch.nn.AdaptiveMaxPool{rank}d` on ``{batched}`` or ``{unbatched}``.

    Args:
        output_size: Windows, an int or one per dimension; None keeps the input's size.
        return_indices: Whether to return the indices of the maxima too: int64, counted in each
            channel's plane.

    >>> AdaptiveMaxPool{rank}d(({ones}2))(torch.tensor([1.0, 2.0, 0.0]).view(1, {ones}3)).flatten()
    tensor([2., 2.])
    """

    __call__: Callable[..., Any]

    def __init__(self: Any, output_size: OutputSize, return_indices: bool = False) -> None:
        super().__init__(output_size, return_indices)
        operands.checked_output_size(shared(output_size), (1,) * self._rank)
        operands.check_flag("return_indices", return_indices)

    def forward(self: Any, input: Tensor, mask: Tensor | None = None) -> Pooled:
        return self._function(input, self.output_size, self.return_indices, mask=mask)


class _AdaptiveMinPool(_AdaptiveMaxPool):
    """Minima over ``output_size`` windows that cover ``{batched}`` or ``{unbatched}`` evenly;
    torch.nn has no such layer.

    Args:
        output_size: Windows, an int or one per dimension; None keeps the input's size.
        return_indices: Whether to return the indices of the minima too: int64, counted in each
            channel's plane.

    >>> AdaptiveMinPool{rank}d(({ones}2))(torch.tensor([1.0, 2.0, 0.0]).view(1, {ones}3)).flatten()
    tensor([1., 0.])
    """


class _MaxUnpool(Pool):
    """:class:`torch.nn.MaxUnpool{rank}d` on ``{batched}`` or ``{unbatched}``: the last of several
    at one index.

    Args:
        kernel_size: Taps of the window that pooled; an int or one per dimension, as are the others.
        stride: Its stride; ``kernel_size`` unless given.
        padding: Its padding, also as ``((start, end), ...)`` or as a word.

    >>> values = torch.tensor([4.0, 3.0]).view(1, {ones}2)
    >>> indices = torch.tensor([1, 2]).view(1, {ones}2)
    >>> MaxUnpool{rank}d(({ones}2))(values, indices).flatten()
    tensor([0., 4., 3., 0.])
    """

    def __init__(
        self: Any, kernel_size: Sizes, stride: Sizes | None = None, padding: Padding = 0
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        if isinstance(padding, str):  # torch's has split the word into letters
            vars(self)["padding"] = padding
        Window.pytorch(self._rank, kernel_size, stride, padding)

    def forward(
        self: Any, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None
    ) -> Tensor:
        return self._function(
            input, indices, self.kernel_size, self.stride, self.padding, output_size
        )


class MaxPool1d(_MaxPool, torch.nn.MaxPool1d, rank=1): ...


class MaxPool2d(_MaxPool, torch.nn.MaxPool2d, rank=2): ...


class MaxPool3d(_MaxPool, torch.nn.MaxPool3d, rank=3): ...


class AvgPool1d(_AvgPool, torch.nn.AvgPool1d, rank=1): ...


class AvgPool2d(_AvgPool, torch.nn.AvgPool2d, rank=2): ...


class AvgPool3d(_AvgPool, torch.nn.AvgPool3d, rank=3): ...


class LPPool1d(_LPPool, torch.nn.LPPool1d, rank=1): ...


class LPPool2d(_LPPool, torch.nn.LPPool2d, rank=2): ...


class LPPool3d(_LPPool, torch.nn.LPPool3d, rank=3): ...


class AdaptiveAvgPool1d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool1d, rank=1): ...


class AdaptiveAvgPool2d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool2d, rank=2): ...


class AdaptiveAvgPool3d(_AdaptiveAvgPool, torch.nn.AdaptiveAvgPool3d, rank=3): ...


class AdaptiveMaxPool1d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool1d, rank=1): ...


class AdaptiveMaxPool2d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool2d, rank=2): ...


class AdaptiveMaxPool3d(_AdaptiveMaxPool, torch.nn.AdaptiveMaxPool3d, rank=3): ...


class MaxUnpool1d(_MaxUnpool, torch.nn.MaxUnpool1d, rank=1): ...


class MaxUnpool2d(_MaxUnpool, torch.nn.MaxUnpool2d, rank=2): ...


class MaxUnpool3d(_MaxUnpool, torch.nn.MaxUnpool3d, rank=3): ...


class MinPool1d(_MinPool, _MaxPoolNd, rank=1): ...


class MinPool2d(_MinPool, _MaxPoolNd, rank=2): ...


class MinPool3d(_MinPool, _MaxPoolNd, rank=3): ...


class AdaptiveMinPool1d(_AdaptiveMinPool, _AdaptiveMaxPoolNd, rank=1): ...


class AdaptiveMinPool2d(_AdaptiveMinPool, _AdaptiveMaxPoolNd, rank=2): ...


class AdaptiveMinPool3d(_AdaptiveMinPool, _AdaptiveMaxPoolNd, rank=3): ...
