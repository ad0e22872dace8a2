"""What torch.nn's functions and layers share, whatever they compute: the batch and the mask of an
input, its window, and errors that name torch.nn's arguments.
"""

import functools
import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from marshal import dumps, loads
from typing import Any

import torch
from torch import Tensor, strided
from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function_unary

from torch_dmlpool._private import _is_tracing
from torch_dmlpool.nn import observed
from torch_dmlpool.operators.calls import PublicPool, prepared
from torch_dmlpool.tensors import Mask, Types, changed, check_dense, checked_mask
from torch_dmlpool.window import AXIS_NAMES, ArgumentError, Arguments, Function, Ints, NoOutputError


@dataclass(eq=False)
class Family:
    """A pool of torch.nn.functional for one to three dimensions.

    ``request_of`` takes the number of dimensions, a batch and torch.nn's arguments, in the order of
    ``parameters``; it checks these and returns the arguments of ``pool``. ``of_quantized`` gets the
    pool of batches alone, a batch that is a quantized tensor, and these arguments.

    The functions of ``nn.functional`` are named ``name``, the dimensions and ``suffix``.
    """

    name: str
    types: Types
    request_of: Callable[..., Arguments]
    pool: PublicPool
    of_quantized: Function | None = None
    suffix: str = ""

    def __post_init__(self) -> None:
        self.names = ["", *(f"{self.name}{rank}d{self.suffix}" for rank in (1, 2, 3))]
        self.originals = [observed.ORIGINALS.get(name) for name in self.names]
        self.parameters = list(inspect.signature(self.request_of).parameters)[2:]
        # Reads in half the time what ``arguments_of`` does, but compilers do not know it. For one
        # attribute it returns no tuple.
        several = operator.attrgetter(*self.parameters)
        self.attributes = several if self.parameters[1:] else self.arguments_of
        self.depends = "output_size" in self.parameters  # on an input's sizes
        # One object for each rank, as keys of calls compare it by identity.
        self.makers = [functools.partial(self.make, rank) for rank in range(4)]

    def call(self, who: Any, input: Tensor, mask: Mask, *arguments: Any) -> Any:
        """The results for torch.nn's arguments. ``who`` is the number of dimensions, or a layer. A
        layer gives its own arguments.
        """
        # No ``__call__``: a method is called in less time than an object.
        rank = who if type(who) is int else who._rank
        is_traced = is_dynamo_compiling()
        if not arguments:
            arguments = self.arguments_of(who) if is_traced else self.attributes(who)
        try:
            if not is_traced:
                is_original = observed.FUNCTIONS.get(self.names[rank]) is self.originals[rank]
                is_seen = not is_original or has_torch_function_unary(input)
                if not is_seen:
                    call = prepared(self.makers[rank], input, mask, arguments)
                    if call is not None:
                        return call(input) if mask is None else call(input, mask)
                if is_seen or _is_tracing():
                    answer = observed.answer(self, who, rank, input, mask, arguments)
                    if answer is not NotImplemented:
                        return answer
            return self.computed(rank, input, mask, arguments)
        except NoOutputError as error:
            wrong = error.naming("kernel_size")
        raise wrong

    def arguments_of(self, layer: Any) -> Arguments:
        """The attributes of a layer that are arguments."""
        return tuple([getattr(layer, name) for name in self.parameters])

    def computed(self, rank: int, input: Tensor, mask: Mask, arguments: Arguments) -> Any:
        """The results of a call that nobody observes and that is not prepared."""
        is_usual = type(input) is Tensor and input.layout is strided and not input.is_nested
        is_quantized = False
        if not (is_usual and input.dtype in self.types):
            answer = observed.only_theirs(self, rank, input, mask, arguments)
            if answer is not NotImplemented:
                return answer
            is_quantized = self.of_quantized is not None and is_usual and input.is_quantized
            check_dense("input", input, (input.dtype,) if is_quantized else self.types)
        batched = self.batched(rank, input)
        checked = None if mask is None else _mask_for(input, batched is not input, mask)
        request = self.request_of(rank, batched, *arguments)
        if is_quantized:
            pool = functools.partial(self.pool.of, mask=None, request=request)
            output = self.of_quantized(pool, batched, request)  # type: ignore[misc]
        else:
            output = self.pool.of(batched, checked, request)
        return output if batched is input else _without_batch(output)

    def make(
        self, rank: int, like: Tensor, backend: Any, _: Any, mask_sizes: Ints | None, *given: Any
    ) -> Function | None:
        """The call for plain tensors that lie as ``like``, and a mask if its sizes are given."""
        if like.dtype not in self.types:
            return None
        batched = self.batched(rank, like)
        depends = self.depends or str in map(type, given)
        request = (
            self.request_of(rank, batched, *given)
            if depends
            else _known_request(self, rank, dumps(given, 2))
        )
        if mask_sizes is not None:
            empty = torch.empty(mask_sizes, dtype=torch.bool, device=like.device)
            _mask_for(like, batched is not like, empty)
        call = self.pool.call_for(batched, backend, request, mask_sizes)
        if call is None or batched is like:
            return call
        return lambda single, *mask: _without_batch(call(self.batched(rank, single), *mask))

    def batched(self, rank: int, input: Tensor) -> Tensor:
        """A dense ``input``; if it has no batch, a batch of it alone."""
        dimensions = input.dim()
        if dimensions == rank + 2:
            return input
        if dimensions != rank + 1:
            axes, shape = ", ".join(AXIS_NAMES[rank]), tuple(input.shape)
            raise ArgumentError(
                f"{self.name}{rank}d: input must be (N, C, {axes}) or, unbatched, (C, {axes}), "
                f"got shape {shape}"
            )
        batched = input.unsqueeze(0)
        if (
            rank < 3
            or batched.is_contiguous()
            or not batched.is_contiguous(memory_format=torch.channels_last_3d)
        ):
            return batched
        # PyTorch tells channels_last by the batch's stride too, which unsqueeze(0) makes too small.
        return input.movedim(0, -1).unsqueeze(0).movedim(-1, 1)


@functools.lru_cache(2048)
def _known_request(family: Family, rank: int, written: bytes) -> Arguments:
    """What ``request_of`` returns for arguments that do not depend on sizes: a size that a call has
    not had before would spend a tenth of its time on them.
    """
    return family.request_of(rank, None, *loads(written))


def _mask_for(input: Tensor, is_single: bool, mask: Tensor) -> Tensor:
    """``mask`` of an ``input`` as it is pooled, in a batch if it is ``is_single``."""
    if input.is_quantized:
        raise TypeError("mask must be None for a quantized tensor: pool its integers instead")
    checked: Any = checked_mask(mask, input, 1 if is_single else 2)
    return checked.unsqueeze(0) if is_single else checked


def _without_batch(output: Any) -> Any:
    """The results of the only one in a batch."""
    return changed(output, lambda each: each.squeeze(0))
