"""What torch.nn's functions and layers share, whatever they compute: the batch and the mask of an
input, its window, and errors that name torch.nn's arguments.
"""

import functools
import inspect
from collections.abc import Callable
from marshal import dumps, loads
from typing import Any

import torch
from torch import Tensor, strided
from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function_unary

from torch_dmlpool import tensors
from torch_dmlpool._private import _is_tracing
from torch_dmlpool.nn import observed
from torch_dmlpool.operators.calls import prepared
from torch_dmlpool.operators.dispatching import may_skip_dispatcher
from torch_dmlpool.window import AXIS_NAMES, ArgumentError, Integers, NoOutputError, Window


class Family:
    """A pool of torch.nn.functional for one to three dimensions.

    ``request_of`` takes the number of dimensions, a batch and torch.nn's arguments, in the order of
    ``parameters``; it checks these and returns the operator's. ``pool`` computes the results from
    the batch, a mask or None, and the operator's arguments. ``prepare`` makes the call of plain
    tensors. ``of_quantized`` gets ``compute``, the number of dimensions and a batch that is a
    quantized tensor, then a mask and torch.nn's arguments.

    The functions of ``nn.functional`` are named ``name``, the dimensions and ``suffix``.
    """

    def __init__(
        self,
        name: str,
        types: tuple[torch.dtype, ...],
        request_of: Callable[..., tuple[Any, ...]],
        pool: Callable[..., Any],
        prepare: Callable[..., Callable[[Tensor], Any] | None] | None = None,
        of_quantized: Callable[..., Any] | None = None,
        suffix: str = "",
    ) -> None:
        self.family, self.types, self.request_of, self.pool = name, types, request_of, pool
        self.names = ["", *(f"{name}{rank}d{suffix}" for rank in (1, 2, 3))]
        self.originals = [observed.ORIGINALS.get(name) for name in self.names]
        self.parameters = list(inspect.signature(request_of).parameters)[2:]
        self.depends_on_sizes = "output_size" in self.parameters
        self.prepare, self.of_quantized = prepare, of_quantized
        self.prepares = [functools.partial(self.prepared, rank) for rank in range(4)]
        self.masks = [functools.partial(self.masked, rank) for rank in range(4)]

    def __call__(self, who: Any, input: Tensor, mask: Tensor | None, *arguments: Any) -> Any:
        """The results for torch.nn's arguments, all by position, as keywords take a tenth of a
        small call. ``who`` is the number of dimensions, or a layer that has it.
        """
        rank = who if type(who) is int else who._rank
        if not is_dynamo_compiling():
            original = observed.FUNCTIONS.get(self.names[rank]) is self.originals[rank]
            is_seen = not original or has_torch_function_unary(input) or _is_tracing()
            if not is_seen and self.prepare is not None:
                if mask is None:
                    call = prepared(self.prepares[rank], input, *arguments)
                    if call is not None:
                        return call(input)
                elif is_plain_mask(mask, input):
                    call = prepared(self.masks[rank], input, tuple(mask.shape), *arguments)
                    if call is not None:
                        return call(input, mask)
            if is_seen:
                answer = observed.answer(self, who, rank, input, mask, arguments)
                if answer is not NotImplemented:
                    return answer
        return self.computed(rank, input, mask, *arguments)

    def computed(self, rank: int, input: Tensor, mask: Tensor | None, *arguments: Any) -> Any:
        """The results of a call that nobody observes, of what is no plain tensor or is masked."""
        is_usual = type(input) is Tensor and input.layout is strided and not input.is_nested
        compute, accepted = self.compute, self.types
        if not (is_usual and input.dtype in accepted):
            answer = observed.only_theirs(self, rank, input, mask, arguments)
            if answer is not NotImplemented:
                return answer
            if self.of_quantized is not None and is_usual and input.is_quantized:
                compute = functools.partial(self.of_quantized, self.compute)
                accepted = (input.dtype,)
            tensors.check_dense("input", input, accepted)
        batched, added = input, None
        if input.dim() != rank + 2:
            batched, added = with_batch(f"{self.family}{rank}d", rank, input)
        if mask is not None:
            mask = _mask_for(input, added, mask)
        try:
            output = compute(rank, batched, mask, *arguments)
            return output if added is None else without(output, added)
        except NoOutputError as error:
            wrong = error.naming("kernel_size")
        raise wrong

    def compute(self, rank: int, batched: Tensor, mask: Tensor | None, *arguments: Any) -> Any:
        """The results for a batch."""
        return self.pool(batched, mask, *self.request_of(rank, batched, *arguments))

    def prepared(
        self, rank: int, like: Tensor, backend: Any, *arguments: Any
    ) -> Callable[[Tensor], Any] | None:
        """The call for plain tensors that lie as ``like``."""
        if like.dtype not in self.types:
            return None
        batched, added = with_batch(f"{self.family}{rank}d", rank, like)
        try:
            request = self._request(rank, batched, arguments)
            call = self.prepare(batched, backend, *request)  # type: ignore[misc]
        except NoOutputError as error:
            raise error.naming("kernel_size") from None
        if call is None or added is None:
            return call
        return lambda unbatched: without(call(with_batch("", rank, unbatched)[0]), added)

    def masked(
        self, rank: int, like: Tensor, _: Any, mask_shape: tuple[int, ...], *arguments: Any
    ) -> Callable[[Tensor, Tensor], Any] | None:
        """The call under a mask of these sizes, for plain tensors that lie as ``like``."""
        if like.dtype not in self.types:
            return None
        batched, added = with_batch(f"{self.family}{rank}d", rank, like)
        mask = torch.empty(mask_shape, dtype=torch.bool, device="meta")
        missing = (None,) * (_mask_for(like, added, mask).dim() - mask.dim())
        request = self._request(rank, batched, arguments)
        if isinstance(request[0], Window):
            try:
                request[0].output_sizes(batched.shape[2:])
            except NoOutputError as error:
                raise error.naming("kernel_size") from None

        def call(input: Tensor, mask: Tensor) -> Any:
            mask = mask[missing] if missing else mask
            if added is None:
                return self.pool(input, mask, *request)
            return without(self.pool(with_batch("", rank, input)[0], mask, *request), added)

        return call

    def _request(self, rank: int, batched: Tensor, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The operator's arguments, for a meta tensor."""
        if self.depends_on_sizes or any(type(each) is str for each in arguments):
            return self.request_of(rank, batched, *arguments)
        return _known_request(self, rank, dumps(arguments, 2))


@functools.lru_cache(maxsize=2048)
def _known_request(family: Family, rank: int, written: bytes) -> tuple[Any, ...]:
    """What ``request_of`` returns for arguments that do not depend on sizes: a size that a call has
    not had before would spend a tenth of its time on them.
    """
    return family.request_of(rank, None, *loads(written))


def is_plain_mask(mask: Any, input: Tensor) -> bool:
    """Whether a mask is a plain tensor of bools where ``input`` is."""
    is_bool = type(mask) is Tensor and mask.dtype is torch.bool and mask.layout is strided
    return is_bool and mask.is_cpu == input.is_cpu and may_skip_dispatcher(mask)


def with_batch(function: str, rank: int, input: Tensor) -> tuple[Tensor, int | None]:
    """A dense ``input`` as it is pooled, and the number of the dimension that was added to it, if
    any: 0, a batch of one.
    """
    added, dimensions = None, input.dim()
    if dimensions == rank + 1:
        volume, input, added = input, input.unsqueeze(0), 0
        if (
            rank == 3
            and not input.is_contiguous()
            and input.is_contiguous(memory_format=torch.channels_last_3d)
        ):
            # PyTorch tells channels_last by the batch's stride too, which unsqueeze(0) would make
            # too small.
            input = volume.movedim(0, -1).unsqueeze(0).movedim(-1, 1)
    elif dimensions != rank + 2:
        axes, shape = ", ".join(AXIS_NAMES[rank]), tuple(input.shape)
        raise ArgumentError(
            f"{function}: input must be (N, C, {axes}) or, unbatched, (C, {axes}), got shape "
            f"{shape}"
        )
    return input, added


def window_of(
    rank: int, batched: Tensor, size: Integers, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Window:
    """The Window of torch.nn's arguments."""
    sizes = (
        tensors.ints(batched.shape[-rank:]) if isinstance(padding, str) and stride != 1 else None
    )
    return Window.pytorch(rank, size, stride, padding, dilation, ceil, sizes)


def _mask_for(input: Tensor, added: int | None, mask: Tensor) -> Tensor:
    """``mask`` of an ``input`` as it is pooled, which has one dimension more where one was
    ``added``.
    """
    if input.is_quantized:
        raise TypeError("mask must be None for a quantized tensor: pool its integers instead")
    checked: Any = tensors.checked_mask(mask, input, 2 if added is None else 1)
    return checked if added is None else checked.unsqueeze(added)


def without(output: Any, added: int) -> Any:
    """A result, or a pair of them, without the dimension that was added."""
    return (
        output.squeeze(added)
        if isinstance(output, Tensor)
        else tuple(one.squeeze(added) for one in output)
    )
