"""Average pooling between integer layers: of int8 and uint8 tensors with the layer's scales, and of quantized tensors.

A layer keeps its scales and zero points as buffers: ``input_scale`` and ``input_zero_point`` for plain tensors (a
quantized tensor brings its own), ``output_scale`` and ``output_zero_point``, which are the input's where they are None.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from torch_dmlpool import functional as operators
from torch_dmlpool import operands, quantized
from torch_dmlpool.nn import functional
from torch_dmlpool.nn.functional import Padding, Sizes
from torch_dmlpool.window import Window, integer

__all__ = ["AvgPool1d", "AvgPool2d", "AvgPool3d"]


class _AveragePool(torch.nn.Module):
    """What the three layers share. torch.nn's layers are no bases of theirs: those take real numbers, these do not."""

    _rank: ClassVar[int]
    input_scale: Tensor
    input_zero_point: Tensor
    output_scale: Tensor | None
    output_zero_point: Tensor | None

    def __init__(
        self,
        kernel_size: Sizes,
        stride: Sizes | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        *,
        dilation: Sizes = 1,
        input_scale: float | Tensor = 1.0,
        input_zero_point: int | Tensor = 0,
        output_scale: float | Tensor | None = None,
        output_zero_point: int | Tensor | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        functional.window_of(self._rank, kernel_size, stride, padding, dilation, ceil_mode)
        operands.check_flag("count_include_pad", count_include_pad)
        if output_dtype is not None:
            operands.checked_output_type(output_dtype, None, torch.empty(0))
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.dilation = dilation
        self.output_dtype = output_dtype
        for name, parameter in (
            ("input_scale", input_scale),
            ("input_zero_point", input_zero_point),
            ("output_scale", output_scale),
            ("output_zero_point", output_zero_point),
        ):
            inherited = parameter is None and name.startswith("output")
            self.register_buffer(name, None if inherited else self._checked(name, parameter))

    @classmethod
    def from_float(cls, layer: torch.nn.Module, **quantization: Any) -> Self:
        """The layer with the window of a float ``layer``, torch.nn's or this package's, and the scales given here."""
        kind = getattr(torch.nn, cls.__name__)
        if not isinstance(layer, kind):
            raise TypeError(f"layer must be a torch.nn.{cls.__name__}, got {type(layer).__name__}")
        divisor = getattr(layer, "divisor_override", None)
        if divisor is not None:
            raise ValueError(
                f"layer must have no divisor_override, as integers are divided by the count; got {divisor}"
            )
        window = {name: getattr(layer, name) for name in ("kernel_size", "stride", "padding", "ceil_mode")}
        counted = bool(layer.count_include_pad)
        return cls(**window, count_include_pad=counted, dilation=getattr(layer, "dilation", 1), **quantization)

    def forward(self, input: Tensor) -> Tensor:
        batched, unbatched = functional.with_batch(f"avg_pool{self._rank}d", self._rank, input)
        window = functional.window_of(
            self._rank,
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            self.ceil_mode,
            batched.shape[2:],
        )
        output = self._pooled(batched, window)
        return output.squeeze(0) if unbatched else output

    def _pooled(self, input: Tensor, window: Window) -> Tensor:
        output_scale, output_zero_point = self.output_scale, self.output_zero_point
        if quantized.is_quantized(input):
            return quantized.quantized_average_pooling_over(
                input, window, self.count_include_pad, output_scale, output_zero_point, self.output_dtype
            )
        operands.check_pooled("input", input, operands.QUANTIZED_TYPES)
        output_dtype = input.dtype if self.output_dtype is None else self.output_dtype
        if output_scale is None:
            output_scale = self.input_scale
        if output_zero_point is None:
            output_zero_point = self.input_zero_point
        return operators.quantized_linear_average_pooling_over(
            input,
            self.input_scale,
            quantized.narrowed("input_zero_point", self.input_zero_point, input.dtype),
            output_scale,
            quantized.narrowed("output_zero_point", output_zero_point, output_dtype),
            window,
            self.count_include_pad,
            output_dtype,
        )

    def _checked(self, name: str, parameter: Any) -> Tensor:
        """One entry for all channels or one each: a scale in float32, a zero point in int64, PyTorch's type for it.

        Which type a zero point must fit is known with the input; here it must fit the output's or one of the two.
        """
        is_scale = name.endswith("scale")
        if not isinstance(parameter, Tensor):
            nothing = torch.empty(0)
            if is_scale:
                number = operands.checked_scale(name, parameter, nothing)
            else:
                number = integer(name, parameter, parameter)
                operands.checked_zero_point(name, number, self._zero_point_type(name, number < 0), nothing)
            parameter = torch.tensor([number])
        elif not is_scale and parameter.dtype in operands.INTEGER_TYPES:
            parameter = parameter.to(torch.int64)
        # What it is checked against is an input with as many channels as it has entries.
        like = torch.empty(0, parameter.numel(), *(1,) * self._rank, device=parameter.device)
        if is_scale:
            scale = cast(Tensor, operands.checked_scale(name, parameter.detach(), like))
            if quantized.is_readable(scale):
                operands.check_scale_values(name, scale)
            return scale
        zero_point = cast(Tensor, operands.checked_zero_point(name, parameter, torch.int64, like))
        is_negative = quantized.is_readable(zero_point) and bool((zero_point < 0).any())
        quantized.narrowed(name, zero_point, self._zero_point_type(name, is_negative))
        return zero_point

    def _zero_point_type(self, name: str, is_negative: bool) -> torch.dtype:
        if name.startswith("output") and self.output_dtype is not None:
            return self.output_dtype
        return torch.int8 if is_negative else torch.uint8

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        scales = {name: getattr(self, name) for name in ("input_scale", "output_scale")}
        super()._apply(fn, recurse)
        for name, scale in scales.items():
            # A model turned to half precision keeps its scales in float32: they follow to another device alone.
            if scale is not None and getattr(self, name).dtype is not scale.dtype:
                setattr(self, name, scale.to(getattr(self, name).device))
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Take over what was saved as it is: the layer may have been built with another number of entries, or none."""
        for name in ("input_scale", "input_zero_point", "output_scale", "output_zero_point"):
            saved = state_dict.get(prefix + name)
            if saved is not None:
                setattr(self, name, self._checked(name, saved).to(self.input_scale.device, copy=True))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        shown = {name: getattr(self, name) for name in ("kernel_size", "stride", "padding")}
        usual = {"ceil_mode": False, "count_include_pad": True, "dilation": 1, "output_dtype": None}
        shown |= {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}
        for name, parameter in self.named_buffers(recurse=False):
            if parameter.numel() != 1 or type(parameter) is not Tensor or parameter.is_meta:
                shown[name] = f"<{parameter.numel()} entries>"
            else:
                shown[name] = f"{parameter.item():.6g}"
        return ", ".join(f"{name}={value}" for name, value in shown.items())


class AvgPool1d(_AveragePool):
    """:class:`torch.nn.AvgPool1d` of integers, ``(N, C, W)`` or ``(C, W)``; arguments as in :class:`AvgPool2d`.

    >>> AvgPool1d(2, output_scale=0.5)(torch.tensor([[10, 13, 7, 9]], dtype=torch.uint8))
    tensor([[23, 16]], dtype=torch.uint8)
    """

    _rank = 1


class AvgPool2d(_AveragePool):
    """:class:`torch.nn.AvgPool2d` of integers that stand for ``scale * (integer - zero_point)``.

    It takes int8 and uint8 tensors, ``(N, C, H, W)`` or ``(C, H, W)``, and gives what
    :func:`~torch_dmlpool.quantized_linear_average_pooling` gives; and it takes quantized tensors (quint8, qint8), which
    bring ``input_scale`` and ``input_zero_point`` of their own, and gives what
    :func:`~torch_dmlpool.quantized_average_pooling` gives. Scales and zero points are buffers, so that a ``state_dict``
    holds them. One loaded from another layer brings its number of entries along.

    Args:
        kernel_size: Taps of the window; this and all arguments down to ``dilation`` are those of
            :class:`torch_dmlpool.nn.AvgPool2d`.
        stride: See there.
        padding: See there; it stands for the real number 0.
        ceil_mode: See there.
        count_include_pad: See there.
        dilation: See there.
        input_scale: Real numbers per step of a plain input: a number for all channels, or a tensor of ``(C,)``.
        input_zero_point: The integer that stands for 0 in a plain input, in the same forms.
        output_scale: The output's scale; the input's unless given.
        output_zero_point: The output's zero point; the input's unless given.
        output_dtype: int8 or uint8; the input's unless given.

    Raises:
        TypeError: When built: an argument of the wrong type. When called: data types that are not supported.
        ValueError: When built: an argument out of range. When called: entries that are not as many as the channels, a
            zero point outside the input's type, a window that leaves no output.

    >>> layer = AvgPool2d(2, input_scale=0.5, input_zero_point=10, output_scale=0.25, output_zero_point=3)
    >>> layer(torch.tensor([[[10, 12], [14, 18]]], dtype=torch.uint8))
    tensor([[[10]]], dtype=torch.uint8)
    >>> layer
    AvgPool2d(kernel_size=2, stride=2, padding=0, input_scale=0.5, input_zero_point=10, output_scale=0.25, \
output_zero_point=3)

    """

    _rank = 2


class AvgPool3d(_AveragePool):
    """:class:`torch.nn.AvgPool3d` of integers, ``(N, C, D, H, W)`` or ``(C, D, H, W)``; see :class:`AvgPool2d`.

    >>> AvgPool3d((1, 2, 2), count_include_pad=False)(torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.int8))
    tensor([[[[2]]]], dtype=torch.int8)
    """

    _rank = 3
