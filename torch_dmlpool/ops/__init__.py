"""Registered operators, one file per family, and which revision of them compiled a graph.

The caches that torch.compile keeps on disk know a graph by the names of the operators in it, not by
what their derivatives, fakes and shardings do. So the package adds a digest of its own sources to
PyTorch's tag for their keys.
"""

import hashlib
from pathlib import Path

import torch.compiler.config

PACKAGE = Path(__file__).parents[1]


def revision(package: Path = PACKAGE) -> str:
    """A digest of all sources of the package, so that an edit counts as much as a new version."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(
            path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    return digest.hexdigest()[:16]


def mark_compiled_graphs() -> None:
    """Have graphs that are compiled from now on kept apart from those of other revisions."""
    mark, settings = f"torch_dmlpool={revision()}", torch.compiler.config
    if mark not in settings.cache_key_tag:
        settings.cache_key_tag = f"{settings.cache_key_tag} {mark}".strip()


mark_compiled_graphs()
