"""Whether a call may go straight to the backend, or has to go through PyTorch's dispatcher.

is_watched            a transform, mode or trace is active
lies_in_memory        a tensor is no subclass, and its elements are in memory as they are
may_skip_dispatcher   nothing is watched or compiled, and all tensors lie in memory
is_plain              the same, and no profiler runs
is_unobserved         the same, and autograd is switched off
is_readable           the same as may_skip_dispatcher, of a tensor on a CPU
"""

import sys

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_dynamo_compiling
from torch.nn import Parameter

from torch_dmlpool import tensors
from torch_dmlpool._private import (
    _are_functorch_transforms_active,
    _dispatch_tls_local_include_set,
    _is_tracing,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
    forward_ad,
    profiler,
)

with torch.inference_mode():
    _PLAIN_KEYS = {_dispatch_tls_local_include_set().raw_repr()}
_PLAIN_KEYS.add(_dispatch_tls_local_include_set().raw_repr())
"""The keys that a thread includes in every call where no transform, mode or trace is active."""
_FAR = 2**44
"""No storage has this many bytes."""


def is_watched() -> bool:
    """Whether a transform, mode or trace is active, which has to see an operator."""
    return bool(
        _len_torch_dispatch_stack()
        or _are_functorch_transforms_active()
        or _is_tracing()
        or forward_ad._current_level >= 0
        # Graphs may be traced above autograd by modes of functions; to ask for the keys takes
        # longer than all of this.
        or (
            _len_torch_function_stack()
            and _dispatch_tls_local_include_set().raw_repr() not in _PLAIN_KEYS
        )
    )


def lies_in_memory(tensor: Tensor) -> bool:
    """Whether ``tensor`` is no subclass, and its elements are in memory as they are."""
    kind = type(tensor)
    if kind is not Tensor and kind is not Parameter:
        _require_rules(kind)
        return False
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a wrapper that has outlived its transform has no storage
        return False
    # Where a storage has no memory, the address of a tensor is its offset in that storage. Most
    # systems put memory at addresses for which nobody has to ask more.
    if address < _FAR and address == tensor.storage_offset() * tensor.itemsize:
        if not tensors.has_memory(tensor):
            return False
        tensors.check_memory(tensor)
    return not tensor.is_neg()


def may_skip_dispatcher(*inputs: Tensor) -> bool:
    """Whether a call may go straight to the backend, on any device: no transform, mode, subclass or
    compilation has to see it. ``backends.aten.is_plain_cpu`` asks about the values.
    """
    if is_dynamo_compiling():
        return False
    if is_watched():
        for tensor in inputs:
            _require_rules(type(tensor))
        if _is_tracing() and torch.onnx.is_in_onnx_export():
            raise TypeError(
                "torch.onnx.export with dynamo=False writes only the pools that "
                "torch.nn.functional has, and this is another: use dynamo=True"
            )
        return False
    return all(map(lies_in_memory, inputs))


def is_plain(*tensors: Tensor) -> bool:
    """Whether nobody but autograd has to see a call of ``tensors``."""
    return not profiler._is_profiler_enabled and may_skip_dispatcher(*tensors)


def is_unobserved(*tensors: Tensor) -> bool:
    """Whether nobody has to see a call of ``tensors``, autograd neither."""
    if is_grad_enabled() or profiler._is_profiler_enabled or is_dynamo_compiling() or is_watched():
        return False
    return all(map(lies_in_memory, tensors))


def is_readable(tensor: Tensor) -> bool:
    """Whether the numbers in ``tensor`` can be looked at: not in a trace, nor where that would wait
    for a device.
    """
    return tensor.is_cpu and may_skip_dispatcher(tensor)


def _require_rules(kind: type[Tensor]) -> None:
    """Reject a DTensor where nobody has taught the operators about them."""
    if (
        kind.__module__.startswith("torch.distributed.tensor")
        and "torch_dmlpool.distributed" not in sys.modules
    ):
        raise TypeError(
            "to pool a DTensor, write `import torch_dmlpool.distributed` once, in every process"
        )
