"""Which revision of this package compiled a graph: an argument of every operator in it.

The caches that torch.compile keeps on disk know a graph by the names and arguments of its
operators, not by what their derivatives, fakes and lowerings do. So each operator has an argument
``revision``, which is empty where a user or an exported program calls it, and which compiled graphs
fill with a digest of the package's sources. A graph without the package's operators has none, and
is found again after an update.
"""

import functools
import hashlib
import sys
from pathlib import Path
from typing import Any

import torch

from torch_dmlpool._private import TracingContext

PACKAGE = Path(__file__).parents[1]


@functools.lru_cache(maxsize=8)
def revision(package: Path = PACKAGE) -> str:
    """A digest of all sources of the package, so that an edit counts as much as a new version."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(
            path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    return digest.hexdigest()[:16]


def is_compiled_now() -> bool:
    """Whether the caller is being traced for torch.compile.

    Exported programs and AOTInductor's packages are not: they outlive a revision and are in no
    cache.
    """
    if TracingContext.try_get() is None or torch.compiler.is_exporting():
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
