"""Which derivatives a tensor may be asked for, and how it is sharded: what operators ask beside
``dispatching.may_skip_dispatcher``.
"""

from typing import Any

from torch import Tensor, is_grad_enabled

from torch_dmlpool._private import _VF, _are_functorch_transforms_active, forward_ad


def shards_of(tensor: Tensor) -> Any:
    """The placements of a DTensor; None for other tensors."""
    return None if type(tensor) is Tensor else getattr(tensor, "placements", None)


def beside(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor`` for arithmetic with ``like``: as a replicated DTensor if that is a DTensor."""
    if shards_of(like) is None:
        return tensor
    return type(like).from_local(tensor, like.device_mesh)  # type: ignore[attr-defined]


def records_gradient(*tensors: Tensor) -> bool:
    """Whether autograd records a gradient with respect to one of ``tensors`` in reverse mode."""
    if is_grad_enabled():
        for tensor in tensors:
            if tensor.requires_grad:
                return True
    return False


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
    """Whether autograd records ``tensor``, or any level of forward mode or transform is active,
    whatever tensor that is for.
    """
    if records_gradient(tensor):
        return True
    return forward_ad._current_level >= 0 or _are_functorch_transforms_active()
