"""Families of averages between quantized layers: of int8 and uint8 with the layer's scales, and of
quantized tensors.

The layers for one, two and three dimensions are in ``nn/quantized.py``.
"""

import inspect
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from torch_dmlpool import operands, quantized
from torch_dmlpool.keywords import layer
from torch_dmlpool.nn import dimensions
from torch_dmlpool.nn.families import Pool
from torch_dmlpool.ops.adaptive_pooling import bins
from torch_dmlpool.ops.dispatching import is_readable
from torch_dmlpool.window import (
    ArgumentError,
    Integers,
    NoOutputError,
    OutputSize,
    Padding,
    Window,
    shared,
    shown,
)


class QuantizedPool(Pool):
    """What layers with scales and zero points share; a subclass has its own window."""

    input_scale: Tensor
    input_zero_point: Tensor
    output_scale: Tensor | None
    output_zero_point: Tensor | None

    output_dtype: torch.dtype | None

    if TYPE_CHECKING:

        def __call__(self, input: Tensor) -> Tensor: ...

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if "rank" in arguments:
            cls.__module__ = "torch_dmlpool.nn.quantized"

    @classmethod
    def from_float(cls, layer: torch.nn.Module, **quantization: Any) -> Self:
        """The layer with the window or the output size of a float ``layer``, torch.nn's or this
        package's, and the scales given here.
        """
        if not isinstance(layer, getattr(torch.nn, cls.__name__)):
            raise TypeError(f"layer must be a torch.nn.{cls.__name__}, got {type(layer).__name__}")
        divisor = getattr(layer, "divisor_override", None)
        if divisor is not None:
            raise ArgumentError(
                f"layer must have no divisor_override, which integers do not take, got {divisor}"
            )
        names = inspect.signature(cls).parameters
        window = {name: getattr(layer, name) for name in names if hasattr(layer, name)}
        if "count_include_pad" in window:  # torch.nn takes any number
            window["count_include_pad"] = bool(window["count_include_pad"])
        return cls(**window, **quantization)

    def _hold(self, output_dtype: torch.dtype | None, *parameters: Any) -> None:
        """Check the data type of results, and register the scales and zero points as buffers."""
        operands.check_output_type(output_dtype)
        self.output_dtype = output_dtype
        for name, parameter in zip(operands.PARAMETERS, parameters, strict=True):
            inherited = parameter is None and name.startswith("output")
            self.register_buffer(name, None if inherited else self._checked(name, parameter))

    def _window(self, input: Tensor) -> tuple[Window, bool]:
        """The window over a batched input, and whether padding counts."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        # getattr, as a later PyTorch may have no quantized tensors
        is_quantized = getattr(input, "is_quantized", False)
        types = (input.dtype,) if is_quantized else operands.QUANTIZED_TYPES
        operands.check_dense("input", input, types)
        batched, added = dimensions.with_batch(f"avg_pool{self._rank}d", self._rank, input)
        output = self.output_scale, self.output_zero_point
        try:
            window, counted = self._window(batched)
            if is_quantized:  # it has a scale and a zero point of its own
                plain_types = quantized.check_quantized(batched)
                pooled = quantized.average(
                    batched, plain_types, window, counted, *output, self.output_dtype
                )
            else:
                own = self.input_scale, self.input_zero_point
                inherited = [
                    mine if each is None else each for mine, each in zip(own, output, strict=True)
                ]
                pooled = quantized.average_of_integers(
                    batched, (*own, *inherited), window, counted, self.output_dtype or input.dtype
                )
        except NoOutputError as error:
            raise error.naming("kernel_size") from None
        return pooled if added is None else dimensions.without(pooled, added)

    def _checked(self, name: str, parameter: Any) -> Tensor:
        """A checked parameter as a vector of one entry or of one for each channel: a scale in
        float32, a zero point in int64, PyTorch's type for it.

        The input's type is not known here, so a zero point must fit ``output_dtype`` if it is the
        output's, else int8 or uint8.
        """
        dtype = torch.float32 if name.endswith("scale") else torch.int64
        is_tensor, count, device = isinstance(parameter, Tensor), 1, torch.device("cpu")
        if is_tensor:
            count, device = parameter.numel(), parameter.device
        # It is checked against an empty input that has a channel for each of its entries.
        like = torch.empty(0, count, *(1,) * self._rank, dtype=torch.int8, device=device)
        if is_tensor and dtype is torch.int64 and parameter.dtype in operands.INTEGER_TYPES:
            parameter = parameter.to(torch.int64)
        checked = operands.checked_parameter(name, parameter, dtype, like)
        number = 0 if checked is None else checked
        vector = torch.as_tensor(number, dtype=dtype, device=device).detach().reshape(-1)
        if dtype is torch.int64:
            is_negative = is_readable(vector) and bool((vector < 0).any())
            own = self.output_dtype if name.startswith("output") else None
            quantized.narrowed(name, vector, own or (torch.int8 if is_negative else torch.uint8))
        elif is_readable(vector):
            operands.check_scale_values(name, vector)
        return vector

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        scales = {name: getattr(self, name) for name in ("input_scale", "output_scale")}
        super()._apply(fn, recurse)
        for name, scale in scales.items():
            # Scales stay float32 where a model is turned to half precision, but move to its device.
            if scale is not None and getattr(self, name).dtype is not scale.dtype:
                setattr(self, name, scale.to(getattr(self, name).device))
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Load scales and zero points with any number of entries: the layer may have been built
        with another number, or with none.
        """
        for name in operands.PARAMETERS:
            saved = state_dict.get(prefix + name)
            if saved is not None:
                setattr(
                    self, name, self._checked(name, saved).to(self.input_scale.device, copy=True)
                )
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def extra_repr(self) -> str:
        usual = {"ceil_mode": False, "count_include_pad": True, "dilation": 1, "output_dtype": None}
        names = ("output_size", "kernel_size", "stride", "padding", *usual)
        known = {name: vars(self)[name] for name in names if name in vars(self)}
        shown = {name: value for name, value in known.items() if value != usual.get(name, self)}
        for name, parameter in self.named_buffers(recurse=False):
            count = parameter.numel()
            is_number = count == 1 and type(parameter) is Tensor and not parameter.is_meta
            shown[name] = f"{parameter.item():.6g}" if is_number else f"<{count} entries>"
        return ", ".join(f"{name}={value}" for name, value in shown.items())


class AvgPool(QuantizedPool):
    @layer
    def __init__(
        self,
        kernel_size: Integers,
        stride: Integers | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        *,
        dilation: Integers = 1,
        input_scale: float | Tensor = 1.0,
        input_zero_point: int | Tensor = 0,
        output_scale: float | Tensor | None = None,
        output_zero_point: int | Tensor | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        Window.pytorch(self._rank, kernel_size, stride, padding, dilation, ceil_mode)
        operands.check_flag("count_include_pad", count_include_pad)
        self.kernel_size, self.stride = kernel_size, kernel_size if stride is None else stride
        self.padding, self.dilation, self.ceil_mode = padding, dilation, ceil_mode
        self.count_include_pad = count_include_pad
        self._hold(output_dtype, input_scale, input_zero_point, output_scale, output_zero_point)

    def _window(self, input: Tensor) -> tuple[Window, bool]:
        geometry = (self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        return dimensions.window_of(self._rank, input, *geometry), self.count_include_pad


class AdaptiveAvgPool(QuantizedPool):
    @layer
    def __init__(
        self,
        output_size: OutputSize,
        *,
        input_scale: float | Tensor = 1.0,
        input_zero_point: int | Tensor = 0,
        output_scale: float | Tensor | None = None,
        output_zero_point: int | Tensor | None = None,
        output_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        operands.checked_output_size(shared(output_size), (1,) * self._rank)
        self.output_size = output_size
        self._hold(output_dtype, input_scale, input_zero_point, output_scale, output_zero_point)

    def _window(self, input: Tensor) -> tuple[Window, bool]:
        sizes = tuple(input.shape[2:])
        _, window = bins(shared(self.output_size), sizes, self._rank)
        if window is None:
            raise ArgumentError(
                f"output_size must divide the input's sizes {sizes[-self._rank :]} for windows "
                f"of one size, got {shown(self.output_size)}"
            )
        return window, True
