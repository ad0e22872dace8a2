"""Kernels by name, and compiled for what they are launched with, without PyTorch: a machine that
has Triton alone compiles what a GPU will find in Triton's cache.
"""

import importlib
from functools import lru_cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias

# Data types and alignments of operands.
Kinds: TypeAlias = tuple[Any, ...]


@lru_cache
def kernel_named(module: str, name: str) -> Any:
    """A kernel or a launch function by name, cached: an ``import`` statement would take each call
    some microseconds.
    """
    return getattr(importlib.import_module(f"torch_dmlpool.kernels.{module}"), name)


def compiled(
    name: str,
    constants: tuple[tuple[str, Any], ...],
    size_types: tuple[Any, ...],
    kinds: Kinds,
    options: dict[str, Any],
) -> tuple[Any, tuple[Any, ...]]:
    """A kernel compiled for the current device, from Triton's cache if it is there, and its
    constants by position. ``kinds`` has each tensor's data type and whether it is aligned, of a
    number its type.
    """
    kernel = kernel_named(*name.split("."))
    make_keys(kernel)
    # Triton specializes on a tensor's type, and on whether its address is a multiple of 16.
    arguments: list[Any] = [
        SimpleNamespace(dtype=kind[0], data_ptr=partial(int, not kind[1]))
        if isinstance(kind, tuple)
        else kind()
        for kind in kinds
    ]
    by_name = dict(constants)
    arguments.append(_stand_in(size_types))
    result = kernel.warmup(*arguments, grid=(1,), **by_name, **options)
    return result, tuple(by_name[each] for each in kernel.arg_names[len(arguments) :])


def make_keys(function: Any, *callers: Any) -> None:
    """Let Triton make the cache's key of a function after the keys of the functions that it calls.
    In other orders Triton 3.6 leaves constants out of keys, and another process compiles again.
    """
    names = function.fn.__code__.co_names
    used = [function.__globals__.get(name) for name in names]
    modules = [vars(each) for each in used if isinstance(each, ModuleType)]
    used += [module.get(name) for module in modules for name in names]
    for each in used:  # asking the object itself for the attribute would make its key
        has_key = "cache_key" in dir(type(each))
        if has_key and vars(each).get("hash", "") is None and id(each) not in callers:
            make_keys(each, *callers, id(each))
    function.cache_key  # noqa: B018


def _stand_in(types: Any) -> Any:
    """A kernel's ``sizes`` as far as Triton compiles for them. Numbers in a tuple are specialised
    where they are 1 or a multiple of 16: these are neither.
    """
    if isinstance(types, tuple):
        return tuple(map(_stand_in, types))
    return {"i32": 2**30 + 1, "i64": 2**40 + 1}[types]
