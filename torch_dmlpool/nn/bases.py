"""Families of layers on this package's operators, for any number of spatial dimensions.

The layers themselves, for one, two and three, are subclasses of these and of torch.nn's, in
``nn/layers``. They keep no state of their own. A bad argument is rejected when the layer is built;
``forward`` builds the window again from the attributes, so a changed one is honoured.
"""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NoReturn, overload

import torch
from torch import Tensor
from typing_extensions import TypeVar

from torch_dmlpool.keywords import layer_with_pytorch_names
from torch_dmlpool.nn import pools
from torch_dmlpool.nn.family import Family
from torch_dmlpool.tensors import Mask, Pair, Pooled, checked_divisor, checked_norm
from torch_dmlpool.window import Divisor, Integers, OutputSize, Padding, Sizes, Stride, Window

Flag = TypeVar("Flag", Literal[False], Literal[True], bool, default=Literal[False])
"""Whether a layer of maxima returns indices too: type checkers know what it returns."""


class PoolLayer(torch.nn.Module):
    """What all layers share. Among a layer's bases it comes before torch's class, which declares
    the attributes.
    """

    _rank: ClassVar[int]
    _family: ClassVar[Family]  # of pools.py

    def __init_subclass__(cls, rank: int = 0) -> None:
        super().__init_subclass__()
        if rank:
            cls._rank, cls.__module__ = rank, "torch_dmlpool.nn"

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
            f"torch.jit.script cannot compile {name}: use `with "
            "torch_dmlpool.nn.reverted(model):` around it, or torch.compile, export or jit.trace"
        )


class MaskedLayer(PoolLayer, Generic[Flag]):
    """Layers that take a mask with the input, and pool by their attributes."""

    def forward(self, input: Tensor, mask: Mask = None) -> Any:
        return self._family.call(self, input, mask)

    forward.__qualname__ = "forward"  # errors of Python show it, and users know no MaskedLayer

    def _check(self: Any) -> None:
        """Reject wrong attributes, by an input that has one element."""
        # Nobody who observes calls sees this one, which is no tensor.
        one = SimpleNamespace(shape=(1,) * (self._rank + 2))
        self._family.request_of(self._rank, one, *self._family.arguments_of(self))

    if TYPE_CHECKING:

        @overload
        def __call__(
            self: "MaskedLayer[Literal[False]]", input: Tensor, mask: Mask = None
        ) -> Tensor: ...
        @overload
        def __call__(
            self: "MaskedLayer[Literal[True]]", input: Tensor, mask: Mask = None
        ) -> Pair: ...
        @overload
        def __call__(self: "MaskedLayer[bool]", input: Tensor, mask: Mask = None) -> Pooled: ...
        def __call__(self, *_: Any, **__: Any) -> Any: ...


class MaxPool(MaskedLayer[Flag]):
    _family = pools.max_pool

    @layer_with_pytorch_names
    def __init__(
        self: Any,
        kernel_size: Integers,
        stride: Stride = None,
        padding: Padding = 0,
        dilation: Integers = 1,
        return_indices: Flag = False,  # type: ignore[assignment]
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, return_indices, ceil_mode)
        self._check()


class MinPool(MaxPool[Flag]):
    _family = pools.min_pool


class AvgPool(MaskedLayer):
    _family = pools.avg_pool
    # Some of torch's own layers lack these attributes.
    divisor_override: Divisor = None
    dilation: Integers = 1

    @layer_with_pytorch_names
    def __init__(
        self: Any,
        kernel_size: Integers,
        stride: Stride = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Divisor = None,
        *,
        dilation: Integers = 1,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        if isinstance(padding, str):  # torch's AvgPool1d has split the word into letters
            vars(self)["padding"] = padding
        # A Parameter would be registered, which fails with PyTorch's message.
        self.divisor_override = checked_divisor(divisor_override)
        self.dilation = dilation
        self._check()


class LPPool(MaskedLayer):
    _family = pools.lp_pool
    padding: Padding = 0
    dilation: Integers = 1

    @layer_with_pytorch_names
    def __init__(
        self: Any,
        norm_type: float,
        kernel_size: Integers,
        stride: Stride = None,
        ceil_mode: bool = False,
        *,
        padding: Padding = 0,
        dilation: Integers = 1,
    ) -> None:
        # This comes first because PyTorch 2.14 checks it too, with another message.
        norm_type = checked_norm("norm_type", norm_type)
        super().__init__(norm_type, kernel_size, stride, ceil_mode)
        self.padding, self.dilation = padding, dilation
        self._check()


class AdaptiveAvgPool(MaskedLayer):
    _family = pools.adaptive_avg_pool

    @layer_with_pytorch_names
    def __init__(self: Any, output_size: OutputSize) -> None:
        super().__init__(output_size)
        self._check()


class AdaptiveMaxPool(MaskedLayer[Flag]):
    _family = pools.adaptive_max_pool

    @layer_with_pytorch_names
    def __init__(
        self: Any,
        output_size: OutputSize,
        return_indices: Flag = False,  # type: ignore[assignment]
    ) -> None:
        super().__init__(output_size, return_indices)
        self._check()


class AdaptiveMinPool(AdaptiveMaxPool[Flag]):
    _family = pools.adaptive_min_pool


class MaxUnpool(PoolLayer):
    _family = pools.max_unpool

    @layer_with_pytorch_names
    def __init__(
        self: Any, kernel_size: Integers, stride: Stride = None, padding: Padding = 0
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        if isinstance(padding, str):  # torch's has split the word into letters
            vars(self)["padding"] = padding
        Window.pytorch(self._rank, kernel_size, stride, padding)

    def forward(
        self: Any, input: Tensor, indices: Tensor, output_size: Sizes | None = None
    ) -> Tensor:
        window = self.kernel_size, self.stride, self.padding
        return self._family.call(self, input, None, indices, *window, output_size)

    if TYPE_CHECKING:
        __call__ = forward
