"""The autograd function of operators, and which derivatives a tensor may be asked for."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, is_grad_enabled

from torch_dmlpool._private import (
    _VF,
    _are_functorch_transforms_active,
    forward_ad,
    profiler,
    single_level_function,
)
from torch_dmlpool.ops.dispatching import may_skip_dispatcher

Recording = tuple[Any, ...]
"""What a call gives its autograd function: the results, the tensors to save for its derivatives,
the gradient as a function of what arrives and of these tensors, and the tangent as such a function
or, where forward mode is not active, None."""


class Derivative:
    """The methods of each autograd function. ``record`` computes the call and returns a
    ``Recording``.

    Where a backend plans the gradient of ``operator`` with the call, ``record`` is a function of
    that backend, and returns a ``GradientPlan`` in place of the gradient. ``backward`` calls it for
    ordinary tensors. Where it returns None, the gradient is the adjoint operator's.
    """

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, call: tuple[Callable[..., Recording], tuple[Any, ...], Any]
    ) -> Any:
        record, arguments, operator = call
        if operator is not None:
            output, to_save, gradient = record(input, *arguments)
        else:
            output, to_save, gradient, ctx.tangent = record(input, *arguments)
            arguments = ()  # may be tensors, which only saved tensors may keep alive (rule K4)
            if ctx.tangent is not None:
                ctx.save_for_forward(*to_save)
            ctx.has_winners = type(output) is tuple
            if ctx.has_winners:
                ctx.mark_non_differentiable(*output[1:])
        if to_save:
            ctx.save_for_backward(*to_save)
        ctx.set_materialize_grads(False)
        # Asking for saved tensors takes time even if there are none.
        ctx.recorded = gradient, bool(to_save), operator, arguments
        return output

    @staticmethod
    def backward(ctx: Any, arriving: Tensor | None, *_: Any) -> tuple[Tensor | None, None]:
        if arriving is None:
            return None, None
        gradient, has_saved, operator, remaining = ctx.recorded
        saved = ctx.saved_tensors if has_saved else ()
        if operator is None:
            return gradient(arriving, *saved), None
        is_alone = not is_grad_enabled() and not profiler._is_profiler_enabled
        if is_alone and may_skip_dispatcher(arriving, *saved):
            result = gradient.gradient(arriving, *saved)
            if result is not None:
                return result, None
        adjoint, remaining = operator.adjoint(gradient.like, *saved, *remaining)
        return adjoint(arriving, *saved, *remaining), None

    @staticmethod
    def jvp(ctx: Any, direction: Tensor, *_: Any) -> Any:
        result = ctx.tangent(direction, *ctx.saved_tensors)
        return (result, None) if ctx.has_winners else result


def derivative(name: str) -> Any:
    """The function that applies an autograd function, whose ``name`` the graph's nodes show."""
    title = "".join(part.capitalize() for part in name.split("_"))
    return single_level_function(title, Derivative).apply


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def recording(
    output: Any,
    to_save: Sequence[Tensor],
    gradient: Callable[..., Any],
    tangent: Callable[..., Any] | None = None,
) -> Recording:
    """A ``Recording`` whose ``gradient`` rejects saved tensors of another kind than ``to_save``: a
    hook may return others, and kernels do not check what they read.
    """
    kinds = [_kind(tensor) for tensor in to_save]

    def checked(arriving: Tensor, *saved: Tensor) -> Any:
        if saved and may_skip_dispatcher():
            for tensor, kind in zip(saved, kinds, strict=True):
                if _kind(tensor) != kind and may_skip_dispatcher(tensor):
                    raise RuntimeError(
                        "a tensor that was saved for the gradient came back with another shape, "
                        f"data type or device: {_kind(tensor)} in place of {kind}"
                    )
        return gradient(arriving, *saved)

    return output, to_save, checked, tangent


def as_sharded(gradient: Tensor, shards: Any) -> Tensor:
    """``gradient`` sharded as the input is: a replicated one is cut without communication. Where
    the input is not sharded it stays as it is, which may be sharded or a sum over ranks that is
    still to be made.
    """
    if shards is None:
        return gradient
    placements = zip(shards, gradient.placements, strict=True)  # type: ignore[attr-defined]
    wanted = [old if old.is_shard() else new for old, new in placements]
    return gradient.redistribute(placements=wanted)  # type: ignore[attr-defined]


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
