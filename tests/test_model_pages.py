"""docs/conversion.md and docs/compile.md: their code runs, and what it asserts holds."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize(("page", "least"), [("conversion.md", 3), ("compile.md", 2)])
def test_the_code_runs(page: str, least: int, fresh_compiler: None) -> None:
    """Block after block in one namespace, as a reader would type them."""
    namespace: dict[str, Any] = {}
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= least
    for block in blocks:
        assert "assert" in block
        exec(compile(block, page, "exec"), namespace)
