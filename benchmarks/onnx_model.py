"""A one-node ONNX model as bytes, so that ONNX Runtime can be a peer where the onnx package is not
installed.

Protocol buffers are tagged fields one after the other: numbers as base-128 integers, all else as a
length and bytes. The field numbers are those of onnx.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from benchmarks.quantized import quantization
from benchmarks.workloads import Workload

ELEMENT_TYPES = {
    torch.float32: 1,
    torch.uint8: 2,
    torch.int8: 3,
    torch.int64: 7,  # indices alone
    torch.float16: 10,
    torch.float64: 11,
}
IR_VERSION, OPSET = 10, 22
_INT, _INTS = 2, 7  # AttributeProto.AttributeType
RUNTIMES_OWN = b"com.microsoft"  # operators that only ONNX Runtime has


def pooling_model(workload: Workload) -> bytes:
    """The row's operator from ``input`` to ``values``, and to ``indices`` where the mode wants
    them.

    ``MaxPool`` and ``AveragePool`` are ONNX's; ``QLinearAveragePool``, of quantized rows, is ONNX
    Runtime's own.
    """
    quantized = workload.mode == "quantized"
    attributes = [
        _ints_attribute("kernel_shape", workload.window),
        _ints_attribute("strides", workload.stride),
        _ints_attribute("pads", [*workload.padding, *workload.padding]),
        _int_attribute("ceil_mode", workload.ceil_mode),
    ]
    if workload.family == "average":
        attributes.append(_int_attribute("count_include_pad", workload.include_padding))
    attributes.append(
        _int_attribute("channels_last", workload.channels_last)
        if quantized
        else _ints_attribute("dilations", workload.dilation)
    )
    constants = _quantization(workload) if quantized else {}
    outputs = {"values": (workload.torch_dtype, _in_order(workload, workload.output_sizes))}
    if workload.mode == "indices":
        outputs["indices"] = (torch.int64, workload.output_sizes)
    operator = (
        b"QLinearAveragePool"
        if quantized
        else {"max": b"MaxPool", "average": b"AveragePool"}[workload.family]
    )
    node = [
        *(_message(1, name.encode()) for name in ("input", *constants)),
        *(_message(2, name.encode()) for name in outputs),
        _message(4, operator),
        *(_message(5, attribute) for attribute in attributes),
        *([_message(7, RUNTIMES_OWN)] if quantized else []),
    ]
    graph = [
        _message(1, b"".join(node)),
        _message(2, b"pooling"),
        *(_message(5, constant) for constant in constants.values()),
        _message(11, _value("input", workload.torch_dtype, _in_order(workload, workload.sizes))),
        *(_message(12, _value(name, *described)) for name, described in outputs.items()),
    ]
    model = (
        _number(1, IR_VERSION)
        + _message(7, b"".join(graph))
        + _message(8, _message(1, b"") + _number(2, OPSET))
    )
    return model + _message(8, _message(1, RUNTIMES_OWN) + _number(2, 1)) if quantized else model


def _in_order(workload: Workload, sizes: Sequence[int]) -> Sequence[int]:
    return (sizes[0], *sizes[2:], sizes[1]) if workload.channels_last else sizes


def _quantization(workload: Workload) -> dict[str, bytes]:
    """Scales and zero points as constants without dimensions, in the order in which the operator
    takes them."""
    numbers = quantization(workload, torch.device("cpu"))
    zero_point = struct.pack("<B" if workload.dtype == "uint8" else "<b", numbers.zero_point)
    described = {
        "input_scale": (torch.float32, struct.pack("<f", numbers.input_scale)),
        "input_zero_point": (workload.torch_dtype, zero_point),
        "output_scale": (torch.float32, struct.pack("<f", numbers.output_scale)),
        "output_zero_point": (workload.torch_dtype, zero_point),
    }
    return {
        name: _number(2, ELEMENT_TYPES[dtype]) + _message(8, name.encode()) + _message(9, content)
        for name, (dtype, content) in described.items()
    }


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _number(tag: int, value: int) -> bytes:
    return _varint(tag << 3) + _varint(value)


def _message(tag: int, content: bytes) -> bytes:
    return _varint(tag << 3 | 2) + _varint(len(content)) + content


def _int_attribute(name: str, value: int) -> bytes:
    return _message(1, name.encode()) + _number(3, int(value)) + _number(20, _INT)


def _ints_attribute(name: str, values: Sequence[int]) -> bytes:
    return (
        _message(1, name.encode())
        + b"".join(_number(8, value) for value in values)
        + _number(20, _INTS)
    )


def _value(name: str, dtype: torch.dtype, sizes: Sequence[int]) -> bytes:
    shape = b"".join(_message(1, _number(1, size)) for size in sizes)
    tensor = _number(1, ELEMENT_TYPES[dtype]) + _message(2, shape)
    return _message(1, name.encode()) + _message(2, _message(1, tensor))
