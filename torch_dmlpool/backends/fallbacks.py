"""Where Triton cannot run on a GPU, or the CPU has no compiled library, plain PyTorch computes the
results, and one warning says why.
"""

import functools
import os
import sys
import warnings
from typing import Any

from torch_dmlpool.backends import reference
from torch_dmlpool.window import Decorated

SWITCH = "TORCH_DMLPOOL_TRITON"
"""An environment variable. If it is ``0``, plain PyTorch pools GPU tensors."""


class SlowBackendWarning(RuntimeWarning):
    """Plain PyTorch operations are used on a device that this package has kernels for.

    It is given once for each kind of device in a process, at the first call that pools there.
    ``warnings.filterwarnings("ignore", category=torch_dmlpool.SlowBackendWarning)`` hides it.
    """


class KernelError(RuntimeError):
    """A kernel is launched that could not be compiled."""


class NoKernelError(RuntimeError):
    """No kernel computes a request. Known networks make no such request."""


class MissingKernel:
    """Takes the place of a kernel that could not be compiled, so that nothing tries it again."""

    def __init__(self, name: str, error: Exception) -> None:
        while isinstance(error.__cause__, Exception):
            error = error.__cause__  # the innermost function's
        # The text, and not the error itself, whose frames would keep tensors alive.
        self.why = f"Triton cannot compile {name} ({type(error).__name__}: {str(error).strip()})"

    def __getitem__(self, grid: object) -> Any:
        raise KernelError(self.why)

    def __getattr__(self, name: str) -> Any:
        raise KernelError(self.why)


def is_turned_off() -> bool:
    return os.environ.get(SWITCH) == "0"


def or_reference(function: Decorated) -> Decorated:
    """Decorate a function of the Triton backend: if there is no kernel, or it cannot be compiled,
    the reference's function of that name is called. It knows no masks: under one NoKernelError is
    raised.
    """

    @functools.wraps(function)
    def guarded(*args: Any, **under: Any) -> Any:
        try:
            return function(*args, **under)
        except NoKernelError:
            pass
        except KernelError as error:
            warn(str(error))
        if under:
            raise NoKernelError
        return getattr(reference.BACKEND, function.__name__)(*args)

    return guarded  # type: ignore[return-value]


def warn(why: str) -> None:
    """Say once in a process why plain PyTorch is used on a GPU."""
    if _warned:
        return
    _warned.append(why)
    reason = why if len(why) <= 300 else f"{why[:300]}..."
    warn_of_slowness(
        f"{reason}; plain PyTorch is used on the GPU instead, several times slower. docs/gpu.md "
        f"says what Triton needs; {SWITCH}=0 in the environment chooses plain PyTorch"
    )


_warned: list[str] = []


def warn_of_slowness(message: str) -> None:
    """Warn with the line of the caller that is outside this package and PyTorch."""
    level, frame, inside = 1, sys._getframe(0), ("torch", "torch_dmlpool", "contextlib")
    while frame.f_back and str(frame.f_globals.get("__name__")).split(".")[0] in inside:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, SlowBackendWarning, stacklevel=level)
