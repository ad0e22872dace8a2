"""The types of functions of maxima and minima: a tensor, or a pair with ``return_indices=True``.

Each type stands here once, and the function that has it is written out where it is. An editor shows
its docstring, and both forms where it is called.
"""

from collections.abc import Callable
from typing import Literal, Protocol, overload

import torch
from torch import Tensor

from torch_dmlpool.keywords import with_directml_names, with_pytorch_names
from torch_dmlpool.tensors import Mask, Pair
from torch_dmlpool.window import Function, Integers, OutputSize, Padding, Stride


class Pooling(Protocol):
    """Maxima or minima over windows, with DirectML's names."""

    @overload
    def __call__(
        self,
        input: Tensor,
        window_size: Integers,
        strides: Integers = 1,
        start_padding: Integers = 0,
        end_padding: Integers = 0,
        dilations: Integers = 1,
        *,
        ceil_mode: bool = False,
        return_indices: Literal[False] = False,
        index_dtype: torch.dtype = torch.int64,
        mask: Mask = None,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        input: Tensor,
        window_size: Integers,
        strides: Integers = 1,
        start_padding: Integers = 0,
        end_padding: Integers = 0,
        dilations: Integers = 1,
        *,
        ceil_mode: bool = False,
        return_indices: Literal[True],
        index_dtype: torch.dtype = torch.int64,
        mask: Mask = None,
    ) -> Pair: ...


class AdaptivePooling(Protocol):
    """Maxima or minima over ``output_size`` windows, with DirectML's names."""

    @overload
    def __call__(
        self,
        input: Tensor,
        output_size: OutputSize,
        *,
        return_indices: Literal[False] = False,
        index_dtype: torch.dtype = torch.int64,
        mask: Mask = None,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        input: Tensor,
        output_size: OutputSize,
        *,
        return_indices: Literal[True],
        index_dtype: torch.dtype = torch.int64,
        mask: Mask = None,
    ) -> Pair: ...


class PytorchPool(Protocol):
    """Maxima or minima over windows, with torch.nn's names."""

    @overload
    def __call__(
        self,
        input: Tensor,
        kernel_size: Integers,
        stride: Stride = None,
        padding: Padding = 0,
        dilation: Integers = 1,
        ceil_mode: bool = False,
        return_indices: Literal[False] = False,
        *,
        mask: Mask = None,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        input: Tensor,
        kernel_size: Integers,
        stride: Stride = None,
        padding: Padding = 0,
        dilation: Integers = 1,
        ceil_mode: bool = False,
        *,
        return_indices: Literal[True],
        mask: Mask = None,
    ) -> Pair: ...


class PytorchAdaptivePool(Protocol):
    """Maxima or minima over ``output_size`` windows, with torch.nn's names."""

    @overload
    def __call__(
        self,
        input: Tensor,
        output_size: OutputSize,
        return_indices: Literal[False] = False,
        *,
        mask: Mask = None,
    ) -> Tensor: ...
    @overload
    def __call__(
        self,
        input: Tensor,
        output_size: OutputSize,
        *,
        return_indices: Literal[True],
        mask: Mask = None,
    ) -> Pair: ...


pooling: Callable[[Function], Pooling] = with_directml_names
adaptive_pooling: Callable[[Function], AdaptivePooling] = with_directml_names
pool: Callable[[Function], PytorchPool] = with_pytorch_names
adaptive_pool: Callable[[Function], PytorchAdaptivePool] = with_pytorch_names
"""Decorators that give a function such a type, and do what those of keywords.py do."""
