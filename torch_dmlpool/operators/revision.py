"""Which revision of this package compiled a graph: an argument of every operator in it.

The caches that torch.compile keeps on disk know a graph by the names and arguments of its
operators, not by what their derivatives, fakes and lowerings do. So each operator has an argument
``revision``, which is empty where a user or an exported program calls it, and which compiled graphs
fill with the package's version and a digest of its code. A graph without the package's operators
has none, and is found again after an update.
"""

import contextlib
import functools
import hashlib
import importlib.resources
import sys
from collections.abc import Iterator
from typing import Any

from torch_dmlpool._private import TracingContext, is_exporting


@functools.lru_cache(8)
def revision(package: Any = None) -> str:
    """The package's version and a digest of its code, so that an edit counts as much as an update.

    Code is sources, in folders or in an archive, or compiled files that lie in their place. A
    frozen program has neither, and then the version is all.
    """
    from torch_dmlpool import __version__

    digest = hashlib.sha256()
    with contextlib.suppress(OSError, ImportError, TypeError, NotImplementedError):
        for path, code in _code_in(package or importlib.resources.files("torch_dmlpool")):
            digest.update(path.encode() + b"\0" + code + b"\0")
    return f"{__version__}-{digest.hexdigest()[:16]}"


def _code_in(folder: Any, path: str = "") -> Iterator[tuple[str, bytes]]:
    """The paths and contents of all files of code below a folder of any kind."""
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _code_in(entry, f"{path}{entry.name}/")
        elif entry.name.endswith((".py", ".pyc")):
            yield path + entry.name, entry.read_bytes()


def is_compiled_now() -> bool:
    """Whether the caller is being traced for torch.compile.

    Exported programs and AOTInductor's packages are not: they outlive a revision and are in no
    cache.
    """
    if TracingContext.try_get() is None or is_exporting():
        return False
    virtualized = sys.modules.get("torch._inductor.virtualized")
    return virtualized is None or not virtualized.V.aot_compilation


def arguments() -> dict[str, str]:
    """The keyword arguments of an operator's call: ``revision`` under torch.compile, none
    elsewhere.
    """
    return {"revision": revision()} if is_compiled_now() else {}


def sign_traced_call(overload: Any) -> None:
    """Add ``revision`` to the call that Dynamo is tracing, whoever wrote that call.

    Dynamo runs an operator's fake implementation for each call that it has added to its graph.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    node = utils.get_current_node() if utils is not None else None
    if node is None or node.target not in (overload, overload.overloadpacket):
        return
    if "revision" not in node.kwargs and is_compiled_now():
        node.kwargs = {**node.kwargs, **arguments()}
