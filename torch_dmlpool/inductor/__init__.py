"""Lowerings for Inductor: under torch.compile small windows become expressions that fuse with
neighbours.

Inductor computes what stands before and after such a window in the window's own loop, forward and
backward. Windows of more taps, and whatever an expression would compute otherwise than the
operator, call the operator, which takes tensors in the layout that Inductor has.
"""

import contextlib
import sys

from torch_dmlpool.inductor.setting import is_lowering, lower

__all__ = ["is_lowering", "lower"]


def register() -> None:
    """Give Inductor the lowerings once it is loaded. If it lacks a name that they import, compiled
    graphs call the operators.
    """
    if "torch._inductor.lowering" in sys.modules:
        with contextlib.suppress(ImportError, AttributeError):
            from torch_dmlpool.inductor import lowerings  # noqa: F401
