"""A one-node ONNX model as bytes, so that ONNX Runtime can be a peer where the onnx package is not installed.

Protocol buffers are tagged fields one after the other: numbers as base-128 integers, all else as a length and bytes.
The field numbers are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

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


def pooling_model(workload: Workload) -> bytes:
    """``MaxPool`` or ``AveragePool`` from ``input`` to ``values``, and to ``indices`` where the mode wants them."""
    attributes = [
        _ints_attribute("kernel_shape", workload.window),
        _ints_attribute("strides", workload.stride),
        _ints_attribute("pads", [*workload.padding, *workload.padding]),
        _ints_attribute("dilations", workload.dilation),
        _int_attribute("ceil_mode", workload.ceil_mode),
    ]
    if workload.family == "average":
        attributes.append(_int_attribute("count_include_pad", workload.include_padding))
    outputs = {"values": (workload.torch_dtype, workload.output_sizes)}
    if workload.mode == "indices":
        outputs["indices"] = (torch.int64, workload.output_sizes)
    node = [
        _message(1, b"input"),
        *(_message(2, name.encode()) for name in outputs),
        _message(4, {"max": b"MaxPool", "average": b"AveragePool"}[workload.family]),
        *(_message(5, attribute) for attribute in attributes),
    ]
    graph = [
        _message(1, b"".join(node)),
        _message(2, b"pooling"),
        _message(11, _value("input", workload.torch_dtype, workload.sizes)),
        *(_message(12, _value(name, *described)) for name, described in outputs.items()),
    ]
    opset = _message(1, b"") + _number(2, OPSET)
    return _number(1, IR_VERSION) + _message(7, b"".join(graph)) + _message(8, opset)


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
    return _message(1, name.encode()) + b"".join(_number(8, value) for value in values) + _number(20, _INTS)


def _value(name: str, dtype: torch.dtype, sizes: Sequence[int]) -> bytes:
    shape = b"".join(_message(1, _number(1, size)) for size in sizes)
    tensor = _number(1, ELEMENT_TYPES[dtype]) + _message(2, shape)
    return _message(1, name.encode()) + _message(2, _message(1, tensor))
