"""Calls of plain tensors, which are prepared once: all that follows from the arguments of a pool
and from the sizes, strides, data type and device of its input is one remembered object. A call is
then a look-up and ``call(input)``.

A tensor is plain if nobody has to see the call but autograd: no transform, mode, subclass,
compiler or profiler. All others go through PyTorch's dispatcher (``registration``).
"""

import functools
from collections.abc import Callable
from marshal import dumps, loads
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_dynamo_compiling

from torch_dmlpool import backends, tensors
from torch_dmlpool._private import profiler
from torch_dmlpool.backends.interface import Backend, Plan
from torch_dmlpool.operators.dispatching import is_watched, lies_in_memory
from torch_dmlpool.tensors import Mask, TensorFunction
from torch_dmlpool.window import Arguments, Function, Ints, Window, is_literal

Make = Callable[..., Function | None]
"""Makes the call of plain tensors, by ``make(like, backend, dtypes, mask_sizes, *given)``: a
tensor that lies as the input, its backend, data types among the arguments, the sizes of a mask or
None, and the other arguments of a public function. It keeps no tensor. It raises what a wrong
argument raises, and returns None for what it does not prepare. There are three:
``PublicPool._make`` of functions, ``Family.make`` of torch.nn's, and ``_make`` of quantized
averages."""
Prepare = Callable[..., Function | None]
"""The same of arguments that are checked: ``prepare(like, backend, *checked)``, which are the
operator's."""


class Call:
    """A call for all plain tensors that lie as ``like``. ``apply`` applies its autograd function.

    ``arguments`` are those of the pool beside tensors, which its derivatives read.
    """

    is_planned = True  # ``plan`` computes the gradient of plain tensors

    def __init__(self, apply: Any, plan: Plan, like: Tensor, *arguments: Any) -> None:
        self.apply, self.arguments = apply, arguments
        self.plan, self.run = plan, plan.run
        self.run_with_taps = plan.run_with_taps
        self.shape, self.strides = like.shape, like.stride()

    def __call__(self, input: Tensor) -> Any:
        if input.requires_grad and is_grad_enabled():
            return self.apply(input, self)
        return self.run(input)

    @property
    def channels_last(self) -> bool:
        return tensors.suggests_channels_last(self.shape, self.strides)

    def sharded(self, arriving: Tensor) -> Tensor:
        """What arrives at the results: plain tensors have no shards."""
        return arriving


def prepared(
    make: Make,
    input: Tensor,
    mask: Mask,
    given: Arguments,
    dtypes: tuple[torch.dtype | None, ...] = (),
) -> Function | None:
    """The call that ``make`` makes for ``input``, and for ``mask`` if there is one, if these are
    plain tensors; else None. ``dtypes`` stand apart, as marshal does not write them.

    The key of a call has what was given as marshal writes it, which tells 1, True and 1.0 apart,
    and which a later change of a list does not affect. What marshal does not write is no key, such
    as a tensor: such a call is not prepared.
    """
    is_seen = is_dynamo_compiling() or profiler._is_profiler_enabled or is_watched()
    if is_seen or type(input) is not Tensor or not lies_in_memory(input):
        return None
    sizes = None
    if mask is not None:
        is_bool = type(mask) is Tensor and mask.dtype is torch.bool
        if not (is_bool and mask.is_cpu == input.is_cpu and lies_in_memory(mask)):
            return None
        sizes = tuple(mask.shape)
    try:
        written = dumps((sizes, *given), 2)
    except ValueError:
        # Such as sizes of a tensor, which are common: they are tuples of ints.
        given = tuple([tuple(a) if type(a) is torch.Size else a for a in given])
        try:
            written = dumps((sizes, *given), 2)
        except ValueError:
            return None
    backend = backends.serving("cpu" if input.is_cpu else input.device.type)
    try:
        records = input.requires_grad and is_grad_enabled()
        key = make, written, dtypes, records, input.shape, input.stride(), input.dtype, backend
        return _CALLS[key]
    except KeyError:
        return _made(key, input)
    except (RuntimeError, TypeError):  # a nested tensor has no sizes, and a list is no key
        return None


def by_parts(pool: TensorFunction, input: Tensor) -> Tensor:
    """What a linear ``pool``, which takes real numbers, makes of ``input``, real or complex: the
    real and the imaginary parts are pooled alone (rule A7).

    PyTorch's own operators take them apart and put them together, and so their derivatives follow
    PyTorch's convention.
    """
    if not input.is_complex():
        return pool(input)
    return tensors.laid_out_like(torch.complex(pool(input.real), pool(input.imag)), input)


class PublicPool:
    """What public functions of a pool have in common, and those of torch.nn.

    ``check`` takes the input, data types and other arguments, and returns the operator's arguments.
    ``compute`` takes the input, a mask or None, and these arguments; ``prepare`` makes the call of
    plain tensors. ``wrap`` makes the results for other data types by a pool of those that the
    operator takes. ``train`` takes the input, a mask and the call, and records a gradient.
    """

    def __init__(
        self,
        check: Callable[..., Arguments],
        compute: Function,
        prepare: Prepare = lambda *_: None,
        wrap: Callable[[TensorFunction, Tensor], Any] = by_parts,
        train: Function | None = None,
    ) -> None:
        self.check, self.compute, self.prepare, self.wrap = check, compute, prepare, wrap
        self.train = train
        self.make = self._make  # one object, which keys compare by identity

    def __call__(
        self, input: Tensor, mask: Mask, *given: Any, dtypes: tuple[torch.dtype | None, ...] = ()
    ) -> Any:
        call = prepared(self.make, input, mask, given, dtypes)
        if call is not None:
            return call(input) if mask is None else call(input, mask)
        request = self.check(input, *dtypes, *given)
        return self.of(input, tensors.checked_mask(mask, input), request)

    def of(self, input: Tensor, mask: Mask, request: Arguments) -> Any:
        """The results for the operator's arguments, whatever their data type."""
        return self.wrap(lambda each: self.compute(each, mask, *request), input)

    def _make(
        self, like: Tensor, backend: Backend, dtypes: Any, mask_sizes: Any, *given: Any
    ) -> Any:
        request = self.check(like, *dtypes, *given)
        if mask_sizes is not None:
            empty = torch.empty(mask_sizes, dtype=torch.bool, device=like.device)
            tensors.checked_mask(empty, like)
        return self.call_for(like, backend, request, mask_sizes)

    def call_for(
        self, like: Tensor, backend: Backend, request: Arguments, mask_sizes: Ints | None
    ) -> Any:
        """The call of plain tensors that lie as ``like``, with masks of ``mask_sizes`` unless that
        is None. ``request`` has the operator's arguments.

        Under a mask training goes through the operator, unless there is ``train``.
        """
        made = self.prepare(like, backend, *request)
        if mask_sizes is None:
            return made
        if isinstance(request[0], Window):
            request[0].output_sizes(like.shape[2:])  # rejected before any work
        # A plan of the backend's own classes, which has both or neither, takes a mask. A function
        # around a Call, as of norms, takes none.
        run = made.plan.run if backend.maxima and isinstance(made, Call) else None
        train = self.train if run and len(request) == 1 else None  # without indices
        leading = (None,) * (like.dim() - len(mask_sizes))

        def call(input: Tensor, mask: Tensor) -> Any:
            mask = mask[leading] if leading else mask
            records = input.requires_grad and is_grad_enabled()
            if train and records:
                return train(input, mask, made)
            return run(input, mask) if run and not records else self.of(input, mask, request)

        return call


_CALLS: dict[Any, Function | None] = {}
"""The calls that are remembered, at most ``_MOST``: then all are forgotten. Each call looks here,
and a dict answers in two thirds of the time of ``functools.lru_cache``."""
_MOST = 8192
_DTYPES = {torch.dtype, type(None)}


@functools.lru_cache(2048)
def _read(written: bytes) -> Arguments | None:
    """What was written; None if that is unknown: whatever has a buffer, such as a number of numpy,
    is written as bytes, without its type.
    """
    arguments = loads(written)
    return arguments if is_literal(arguments) else None


def _made(key: Arguments, input: Tensor) -> Function | None:
    """The call of this ``key``, which is new, and is remembered."""
    make, written, dtypes, records, _, _, dtype, backend = key
    read, call = _read(written), None
    # Complex and quantized tensors are not prepared, nor what ``check`` rejects.
    is_known = _DTYPES.issuperset(map(type, dtypes)) and dtype in tensors.ORDERED_TYPES
    if is_known and read is not None:
        mask_sizes, *given = read
        call = make(input, backend, dtypes, mask_sizes, *given)
    # A method is called in less time than an object. Without a gradient it is that of the plan,
    # such as ``Averages.run`` of cpu.py.
    if isinstance(call, Call):
        call = call.__call__ if records else call.run
    if len(_CALLS) >= _MOST:
        _CALLS.clear()
    _CALLS[key] = call
    return call
