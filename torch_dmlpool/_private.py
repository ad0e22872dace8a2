"""PyTorch's private names, which may change without notice, each with what it is for.

No other file has one, but for parts of PyTorch that are loaded later than this package: Inductor's
are in ``inductor``, those of distributed tensors in ``distributed``, the exporter's in ``onnx``.
tests/test_versions.py holds that, and says of each name when it is gone.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import (
    # unpacks a tensor of forward mode, whatever transforms have wrapped it
    _VF,
    Tensor,
    # a condition that a compiled graph checks where it runs, without waiting for a GPU
    _assert_async,
    # whether a tensor is a wrapper of functionalization, which has no memory
    _is_functional_tensor,
)
from torch._C import (
    # inside, neither modes nor subclasses of functions see anything
    DisableTorchFunction,
    # whether torch.func or vmap is at work, and has to see an operator
    _are_functorch_transforms_active,
    # calls an operator again below its implementation for autograd
    _AutoDispatchBelowAutograd,
    # the ``__torch_function__`` of subclasses that override no function
    _disabled_torch_function_impl,
    # the keys that a thread includes in every call, by which graphs that are traced above autograd
    # show
    _dispatch_tls_local_include_set,
    # whether a tensor has memory of its own: a wrapper that has outlived its transform does not
    _has_storage,
    # whether subclasses may override functions here
    _is_torch_function_enabled,
    # whether torch.jit's tracer records
    _is_tracing,
    # whether a mode, such as that of fake tensors, has to see an operator
    _len_torch_dispatch_stack,
    # whether a mode of functions is entered, as where graphs are traced
    _len_torch_function_stack,
)

# lets an autograd function be applied at a single level while torch.func is at work
from torch._functorch.autograd_function import enable_single_level_autograd_function

# what torch.compile and torch.export trace a graph in
from torch._guards import TracingContext

# the type of torch.ops.dmlpool.max_pooling.default
from torch._ops import OpOverload

# the memory format of results, by a tensor's strides
from torch._prims_common import suggest_memory_format
from torch.autograd import (
    # how many levels of forward mode are entered: a global of this module, which changes
    forward_ad,
    # whether a profiler runs: a global of this module, which changes
    profiler,
)

# switches forward mode on again below an operator's implementation for autograd
from torch.autograd.forward_ad import _set_fwd_grad_enabled

# lets the code of a graph import a function
from torch.fx.graph import _register_custom_builtin
from torch.nn.modules.pooling import (
    # PyTorch's layers for one, two and three dimensions: adaptive maxima, and minima that are like
    # them
    _AdaptiveMaxPoolNd,
    # maxima, and minima that are like them
    _MaxPoolNd,
)

# the modes of functions that are entered
from torch.overrides import _get_current_function_mode_stack

# whether a tensor is made of zeros that PyTorch has not written
_is_zerotensor = Tensor._is_zerotensor

_Function = TypeVar("_Function", bound=Callable[..., Any])
_CHANGING = forward_ad._current_level, profiler._is_profiler_enabled
"""The two names are read where they are needed. They stand here too, so that the import fails where
PyTorch has removed one."""

# The functions beneath torch.nn.functional's maxima, which some models call.
NN_FUNCTIONS: Any = torch._C._nn


def _empty_strided(device: str, sizes: Any, strides: Any, dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor, where PyTorch lacks the faster functions below."""
    return torch.empty_strided(sizes, strides, dtype=dtype, device=device)


try:
    # Tensors for results on the CPU, in half the time of torch.empty_strided.
    from torch._C._dynamo.guards import _empty_strided_cpu as empty_strided_cpu  # type: ignore[attr-defined]

    # The same on the current GPU.
    from torch._C._dynamo.guards import _empty_strided_cuda as empty_strided_cuda  # type: ignore[attr-defined]
except ImportError:  # a PyTorch whose generated code allocates otherwise
    empty_strided_cpu = partial(_empty_strided, "cpu")
    empty_strided_cuda = partial(_empty_strided, "cuda")

# Quantized tensors of one scale and zero point, and of one for each channel, with uninitialised
# integers. PyTorch has announced that it will remove them.
empty_affine_quantized: Any = getattr(torch, "_empty_affine_quantized", None)
empty_per_channel_affine_quantized: Any = getattr(
    torch, "_empty_per_channel_affine_quantized", None
)

current_gpu: Any = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
"""The number of the current GPU where a tensor is on one: the public function asks more first. A
PyTorch for CPUs alone lacks this."""


def applied_at_a_single_level(function: type[torch.autograd.Function]) -> Any:
    """What applies ``function`` beneath the method that asks whether torch.func is at work: as an
    operator's implementation for the key Autograd, and in prepared calls.
    """
    # PyTorch's own transforms make such a class of a Function. From 2.15 on the C function rejects
    # a Function itself while a transform is active.
    base: Any = torch.autograd.function._SingleLevelFunction
    own = function.__mro__[: function.__mro__.index(torch.autograd.Function)]
    members = {name: vars(each)[name] for each in reversed(own) for name in vars(each)}
    single: Any = type(function.__name__, (base,), members)
    node = single._backward_cls
    # Compiled autograd asks the node for what the Function has; PyTorch's own ``apply`` would look
    # for ``backward`` with another method.
    node._forward_cls, node.apply = function, function.backward
    return single.apply


def is_mapped() -> bool:
    """Whether vmap is at work, at any level of torch.func's transforms."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == torch._C._functorch.TransformType.Vmap for level in levels)


def is_exporting() -> bool:
    """Whether torch.export traces. Dynamo of PyTorch 2.11 takes the public function of that name
    for True in graphs of torch.compile, too.
    """
    return torch.compiler._is_exporting_flag


def constant_in_graphs(function: _Function) -> _Function:
    """What ``torch.compiler.assume_constant_result`` does, which would load the compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
