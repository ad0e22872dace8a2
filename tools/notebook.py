"""Run the code of notebooks cell after cell; ``--write`` puts what each cell prints beside it.

Jupyter runs them too. It is no dependency, as it brings some thirty packages to run a few cells of
plain Python.
"""

import argparse
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def run(notebook: dict[str, Any], name: str) -> None:
    """Run all code cells in one namespace, print what they print, and keep it as their outputs."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        code = compile("".join(cell["source"]), f"{name}, code cell {number}", "exec")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, namespace)
        text = printed.getvalue()
        sys.stdout.write(text)
        stream = {"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}
        cell["outputs"], cell["execution_count"] = [stream] if text else [], number


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("notebooks", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="keep what is printed in the file")
    options = parser.parse_args()
    for path in options.notebooks:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        run(notebook, path.name)
        if options.write:
            text = json.dumps(notebook, indent=1, ensure_ascii=False)
            path.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
