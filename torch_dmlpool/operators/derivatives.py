"""Which derivatives a tensor may be asked for, and what autograd functions save for them."""

from typing import Any, TypeAlias

from torch import Tensor, is_grad_enabled

from torch_dmlpool._private import _VF, _are_functorch_transforms_active, forward_ad
from torch_dmlpool.operators.dispatching import may_skip_dispatcher
from torch_dmlpool.tensors import Tensors

Gradients: TypeAlias = tuple[Tensor | None, ...]
"""What ``backward`` returns: the gradient of the first argument, and None for each other one. The
gradient that arrives at the results is called ``arriving`` everywhere, in C++ too."""


def records_gradient(*tensors: Tensor) -> bool:
    """Whether autograd records a gradient with respect to one of ``tensors`` in reverse mode."""
    return is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def carries_derivative(tensor: Tensor) -> bool:
    """Whether autograd records a gradient with respect to ``tensor``, or it has a tangent in
    forward mode.
    """
    # A tensor made in inference mode has no tangent, and PyTorch raises an error when asked for it.
    if tensor.is_inference():
        return False
    return records_gradient(tensor) or _VF._unpack_dual(tensor, level=0)[1] is not None


def with_ordinary_tangent(tensor: Tensor) -> Tensor:
    """A tensor whose tangent, if it has one, is no inference tensor: autograd functions reject
    those.
    """
    if forward_ad._current_level >= 0:
        primal, tangent = forward_ad.unpack_dual(tensor)
        if tangent is not None and tangent.is_inference():
            return forward_ad.make_dual(primal, tangent.clone())
    return tensor


def may_be_differentiated(tensor: Tensor) -> bool:
    """Whether ``tensor`` holds floats, and autograd records it or any level of forward mode or
    transform is active, whatever tensor that is for.
    """
    is_active = forward_ad._current_level >= 0 or _are_functorch_transforms_active()
    return tensor.is_floating_point() and (is_active or records_gradient(tensor))


def save(ctx: Any, call: Any, *tensors: Tensor | None) -> None:
    """Keep ``tensors`` for the derivatives of an autograd function, and what it calls, or the
    arguments of that, as ``ctx.call``.
    """
    ctx.call, ctx.kinds = call, [_kind(tensor) for tensor in tensors]
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)


def saved(ctx: Any) -> Tensors:
    """The tensors that :func:`save` has kept. A hook may return tensors of another kind, which
    are rejected: kernels do not check what they read.
    """
    tensors = ctx.saved_tensors
    for tensor, kind in zip(tensors, ctx.kinds if tensors else (), strict=True):
        # Transforms and traces, which read no memory here, may unwrap what was saved.
        if _kind(tensor) != kind and may_skip_dispatcher(tensor):
            raise RuntimeError(
                "a tensor that was saved for the gradient came back with another shape, data type "
                f"or device: {_kind(tensor)} in place of {kind}"
            )
    return tensors


def _kind(tensor: Tensor | None) -> Any:
    return tensor is not None and (tuple(tensor.shape), tensor.dtype, tensor.device)
