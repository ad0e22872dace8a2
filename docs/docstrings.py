"""What the documentation's generator must know about this package's docstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe

import torch_dmlpool

ROLE = re.compile(r":(?:func|class|meth|attr|mod|data):`~?([\w.]+)`")


class Docstrings(griffe.Extension):
    """Docstrings are written for ``help()``; this turns their cross-references and examples into
    Markdown.
    """

    def on_instance(self, *, obj: griffe.Object, **rest: Any) -> None:  # noqa: ARG002
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    text = ROLE.sub(lambda role: reference(role.group(1)), docstring)
    text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
    # An example outside such a section: the lines from >>> to the next empty one.
    return re.sub(
        r"^(>>> .*?)(?=\n\n|\Z)", r"```pycon\n\1\n```", text, flags=re.MULTILINE | re.DOTALL
    )


def reference(name: str) -> str:
    """A link to what these pages describe, code for what others do."""
    last = name.rpartition(".")[2]
    if name in torch_dmlpool.__all__:
        return f"[`{name}`][torch_dmlpool.{name}]"
    return f"[`{last}`][{name}]" if name.startswith("torch_dmlpool.") else f"`{name}`"
