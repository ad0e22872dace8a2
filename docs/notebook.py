"""The notebook of examples/ as a page of the documentation."""

from __future__ import annotations

import json
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOK = Path("examples/first_steps.ipynb")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Its texts, its code and what that prints, as Markdown."""
    parts = []
    for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        printed = "".join(line for output in cell.get("outputs", []) for line in output["text"])
        parts += [f"```text\n{printed}```"] * bool(printed)
    content = "\n\n".join(parts)
    files.append(File.generated(config, f"{NOTEBOOK.stem}.md", content=content))
    return files
