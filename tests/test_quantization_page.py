"""docs/quantization.md: its code runs and what it asserts holds, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import torch_dmlpool as dmlpool

PAGE = (Path(__file__).parent.parent / "docs" / "quantization.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel and:UserWarning")
def test_the_code_runs() -> None:
    """Block after block in one namespace, as a reader would type them."""
    namespace: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 8
    assert sum(block.count("assert ") for block in blocks) >= 7
    for block in blocks:
        exec(compile(block, "quantization.md", "exec"), namespace)


def test_the_names_exist() -> None:
    """Those of this package in the table of ways."""
    table = PAGE.partition("| the program has | use |")[2].partition("\n\n")[0]
    names = re.findall(r"`([\w.]+)`", table)
    assert len(names) == 5
    for name in names:
        found: Any = dmlpool.nn.quantized if name.startswith("AvgPool") else dmlpool
        for part in name.split("."):
            found = getattr(found, part)
