"""Average pooling of quantized integers: their differences from the zero point are added up, and
each sum is rescaled and rounded once.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dmlpool import operands
from torch_dmlpool.backends import serving
from torch_dmlpool.ops.calls import is_plain
from torch_dmlpool.ops.derivatives import carries_derivative
from torch_dmlpool.ops.dispatching import is_readable
from torch_dmlpool.ops.registration import Operator
from torch_dmlpool.window import Window


def quantized_linear_average_pooling(
    input: Tensor,
    parameters: Sequence[Any],
    window: Window,
    include_padding: bool,
    output_dtype: torch.dtype,
) -> Tensor:
    """The average of every window of ``input``, requantized; operands are checked already but for
    tensors' values.
    """
    operands.check_counted(window, include_padding)
    tensors = [parameter for parameter in parameters if isinstance(parameter, Tensor)]
    if not is_plain(input, *tensors):
        numbers = tuple(
            parameter or 0 for parameter in parameters if not isinstance(parameter, Tensor)
        )
        if len(numbers) == 4 and {float, int}.issuperset(map(type, numbers)):
            request = *window.arguments, include_padding, output_dtype
            return _pooling_of_numbers.dispatch(input, *numbers, *request)
        # The operator of tensors takes no numbers, so tensors are filled on the device, which does
        # not wait for it.
        vectors = list(parameters)
        for at, dtype in enumerate((torch.float32, input.dtype, torch.float32, output_dtype)):
            if vectors[at] is not None and not isinstance(vectors[at], Tensor):
                vectors[at] = torch.full((1,), vectors[at], dtype=dtype, device=input.device)
        return _pooling.dispatch(input, *vectors, *window.arguments, include_padding, output_dtype)
    if tensors:
        _check_tensors(parameters)
    pool = _pooling.backend_function(input)
    return pool(input, *parameters, window, include_padding, output_dtype)


def _output_sizes(input: Tensor, *arguments: Any) -> list[int]:
    *_, window, include_padding, _ = arguments
    operands.check_counted(window, include_padding)
    return [*input.shape[:2], *window.output_sizes(input.shape[2:])]


def _check_tensors(parameters: Sequence[Any], gradients: bool = True, values: bool = True) -> None:
    """Reject scales and zero points that are differentiated, and bad scale values on the CPU.

    ``gradients`` and ``values`` turn the first and the second check on.
    """
    for name, parameter in zip(operands.PARAMETERS, parameters, strict=True):
        if not isinstance(parameter, Tensor):
            continue
        if gradients and carries_derivative(parameter):
            raise RuntimeError(
                f"quantized_linear_average_pooling has no gradient, but {name} requires one: "
                "detach it"
            )
        # On other devices than the CPU the check would wait for the device.
        if values and parameter.is_floating_point() and parameter.is_cpu:
            operands.check_scale_values(name, parameter)


def _complete(input: Tensor, *arguments: Any) -> tuple[Any, ...]:
    """Scales and zero points as vectors, or as numbers that rules Q3 and Q4 allow."""
    parameters, _ = operands.checked_quantization(input, arguments[:4], arguments[-1])
    if is_readable(input):
        _check_tensors(parameters, gradients=False)
    return input, *parameters, *arguments[4:]


def _vmap(info: Any, dimensions: Any, input: Tensor, *arguments: Any) -> tuple[Tensor, int]:
    # The dimension that vmap maps over becomes more channels, which have parameters of their own.
    batch = info.batch_size
    batched = (
        input.expand(batch, *input.shape)
        if dimensions[0] is None
        else input.movedim(dimensions[0], 0)
    )
    batched, channels = batched.movedim(0, 1), batched.shape[2]
    vectors = []
    for parameter, dimension in zip(arguments[:4], dimensions[1:5], strict=True):
        if parameter is not None:
            own = parameter.unsqueeze(0) if dimension is None else parameter.movedim(dimension, 0)
            parameter = own.reshape(own.shape[0], -1).expand(batch, channels).reshape(-1)
        vectors.append(parameter)
    pooled = _pooling.dispatch(batched.flatten(1, 2), *vectors, *arguments[4:])
    return pooled.unflatten(1, (batch, channels)), 1


_pooling = Operator(
    "quantized_linear_average_pooling(Tensor input, Tensor input_scale, Tensor? input_zero_point, "
    "Tensor output_scale, Tensor? output_zero_point, WINDOW, bool include_padding, ScalarType "
    "output_dtype) -> Tensor",
    [operands.QUANTIZED_TYPES],
    _output_sizes,
    lambda backend: backend.quantized_linear_average_pooling,
    complete=_complete,
    dtypes=lambda input, *arguments: (arguments[-1],),
    vmap=_vmap,
    reject=lambda input, *arguments: _check_tensors(arguments[:4], values=False),
)


_pooling_of_numbers = Operator(
    "quantized_linear_average_pooling_of_numbers(Tensor input, float input_scale, "
    "int input_zero_point, float output_scale, int output_zero_point, WINDOW, "
    "bool include_padding, ScalarType output_dtype) -> Tensor",
    [operands.QUANTIZED_TYPES],
    _output_sizes,
    lambda backend: backend.quantized_linear_average_pooling,
    complete=_complete,
    dtypes=lambda input, *arguments: (arguments[-1],),
)


def prepared(device: str, *request: Any) -> Callable[[Tensor], Tensor]:
    """The call for plain tensors, whose scales and zero points are numbers."""
    parameters, window, include_padding, output_dtype = request
    operands.check_counted(window, include_padding)
    pool = serving(device).quantized_linear_average_pooling
    return lambda input: pool(input, *parameters, window, include_padding, output_dtype)
