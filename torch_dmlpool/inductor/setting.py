"""Whether torch.compile makes code of its own for small windows."""

import torch

from torch_dmlpool.window import check_flag

_OFF = "torch_dmlpool.inductor=off"


def lower(enabled: bool = True) -> None:
    """Whether torch.compile makes code of its own for small windows, as it does by default, or
    always calls the operators.

    This holds for what is compiled from now on; what has been compiled before stays as it is. The
    setting is a word in ``torch.compiler.config.cache_key_tag``, so that torch.compile's caches
    keep graphs that were compiled either way apart.
    """
    check_flag("enabled", enabled)
    settings = torch.compiler.config
    words = [word for word in settings.cache_key_tag.split() if word != _OFF]
    settings.cache_key_tag = " ".join(words if enabled else [*words, _OFF])


def is_lowering() -> bool:
    """Whether torch.compile uses the lowerings in what it compiles from now on."""
    return _OFF not in torch.compiler.config.cache_key_tag.split()
