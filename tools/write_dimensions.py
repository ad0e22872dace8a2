"""Writes torch_dmlpool.nn's layers and functions for one, two and three dimensions into its source.

The files have signatures and docstrings written out, so that editors and type checkers show what
``help()`` shows. Their texts are in families.py beside this file: edit them there, run
``python tools/write_dimensions.py``, and commit both. tests/nn/test_written.py compares.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from families import FAMILIES, INDICES, INPUT, MASK, QUANTIZED, STAR, Argument, Family

NN = Path(__file__).parent.parent / "torch_dmlpool" / "nn"
WIDTH = 100
RANKS = (1, 2, 3)
AXES = {1: "W", 2: "H, W", 3: "D, H, W"}
WINDOWS = ["Integers", "OutputSize", "Padding"]
WRITTEN = "Written by tools/write_dimensions.py from the texts in tools/families.py: edit those."
FLOAT = [
    "from torch_dmlpool.nn import families",
]
INTEGER = [
    "from torch_dmlpool.nn import quantized_families",
    "from torch_dmlpool.nn.layers.maxima import MaxPool1d, MaxPool2d, MaxPool3d",
]
EXPORTED = """

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
]
"""
PAIR = "tuple[Tensor, Tensor]"
EITHER = f"Tensor | {PAIR}"


def files() -> dict[Path, str]:
    """What the files of layers and functions say."""
    found = {}
    for name, family in FAMILIES.items():
        found[NN / "functional" / f"{name}.py"] = functions(family)
        found[NN / "layers" / f"{name}.py"] = layers([family], FLOAT)
    found[NN / "quantized.py"] = layers(QUANTIZED, INTEGER)
    return found


def functions(family: Family) -> str:
    lines = [line for rank in RANKS for line in function(family, rank)]
    if family.function in ("max_pool", "adaptive_max_pool"):
        lines += [line for rank in RANKS for line in with_indices(family, rank)]
    heading = f"{family.function}1d, {family.function}2d and {family.function}3d."
    imports = ["from torch_dmlpool.nn import pools"]
    imports = ["from torch_dmlpool.keywords import pytorchs", *imports]
    return module(heading, imports, lines)


def function(family: Family, rank: int) -> list[str]:
    name = f"{family.function}{rank}d"
    arguments, lines = family.arguments, []
    if INDICES in arguments:
        for variant, result in overloads(arguments):
            lines += ["@overload", *declared(name, variant, result, " ...")]
        lines += ["", ""]
    lines += ["@pytorchs"]
    lines += declared(name, arguments, EITHER if INDICES in arguments else "Tensor")
    lines += docstring(family, rank, family.summary, arguments, family.example)
    lines += pooled(family, rank)
    return [*lines, "", ""]


def pooled(family: Family, rank: int, suffix: str = "", **given: str) -> list[str]:
    """The call of the function in pools.py, which takes everything by position."""
    arguments = family.arguments
    mask = "mask" if MASK in arguments else "None"
    rest = [each.name for each in arguments if each not in (INPUT, STAR, MASK)]
    rest = [given.get(name, name) for name in rest]
    return call(f"return pools.{family.function}{suffix}", [str(rank), "input", mask, *rest])


def with_indices(family: Family, rank: int) -> list[str]:
    """torch.nn.functional's variants, which return indices whatever is given for them."""
    name = f"{family.function}{rank}d"
    lines = ["@pytorchs", *declared(f"{name}_with_indices", family.arguments, PAIR)]
    text = f":func:`{name}` with ``return_indices=True``, whatever is given for it."
    lines += [f'    """{text}"""']
    lines += pooled(family, rank, "_with_indices", return_indices="True")
    return [*lines, "", ""]


def layers(families: list[Family], imports: list[str]) -> str:
    lines = [line for family in families for rank in RANKS for line in layer(family, rank)]
    heading = f"{families[0].layer}1d, {families[0].layer}2d and {families[0].layer}3d."
    private = [
        f"from torch_dmlpool._private import {family.torchs}"
        for family in families
        if family.torchs.startswith("_")
    ]
    if families is QUANTIZED:
        heading = (
            "Average pooling between quantized layers, of int8 and uint8 or quantized tensors."
        )
    text = module(heading, [*private, *imports], lines)
    return text + EXPORTED if families is QUANTIZED else text


def layer(family: Family, rank: int) -> list[str]:
    name = f"{family.layer}{rank}d"
    generic = INDICES in family.constructed
    if family.function:
        bases = [f"families.{family.layer}{'[families.Result]' * generic}"]
        bases += [family.torchs.format(layer=name), f"rank={rank}"]
    else:
        bases = [f"quantized_families.{family.layer}", f"rank={rank}"]
    lines = [f"class {name}({', '.join(bases)}):"]
    if len(lines[0]) > WIDTH:
        lines = [f"class {name}(", *(f"    {base}," for base in bases), "):"]
    lines += docstring(family, rank, family.of_layer, family.constructed, family.of_layers)
    if generic:  # All others inherit their constructor, from which no type of results follows.
        arguments = family.constructed
        lines += [""]
        for variant, result in overloads(arguments):
            lines += ["    @overload"]
            own = Argument("self", f'"{name}[{result}]"')
            lines += indented(declared("__init__", [own, *variant], "None", " ..."))
        lines += ["", "    @layer"]
        lines += indented(declared("__init__", [Argument("self", ""), *arguments], "None"))
        lines += call("super().__init__", [argument.name for argument in arguments], 8)
    return [*lines, "", ""]


def overloads(arguments: list[Argument]) -> Iterator[tuple[list[Argument], str]]:
    """The arguments, and what is returned, without indices and with them, asked for by name."""
    at = arguments.index(INDICES)
    before, after = arguments[:at], arguments[at + 1 :]
    without = INDICES._replace(kind="Literal[False]")
    yield [*before, without, *after], "Tensor"
    by_name = [argument for argument in after if argument is not STAR]
    yield [*before, STAR, INDICES._replace(kind="Literal[True]", default=""), *by_name], PAIR


def declared(name: str, arguments: list[Argument], result: str, body: str = "") -> list[str]:
    listed = [
        f"    {argument.declared() if argument.kind else argument.name}," for argument in arguments
    ]
    return [f"def {name}(", *listed, f") -> {result}:{body}"]


def call(function: str, arguments: list[str], indent: int = 4) -> list[str]:
    """A call as ruff formats it: in one line, or a line for each argument."""
    space = " " * indent
    line = f"{space}{function}({', '.join(arguments)})"
    if len(line) <= WIDTH:
        return [line]
    return [
        f"{space}{function}(",
        *(f"{space}    {argument}," for argument in arguments),
        f"{space})",
    ]


def docstring(
    family: Family, rank: int, summary: str, arguments: list[Argument], example: str
) -> list[str]:
    words = {
        "rank": str(rank),
        "ones": "1, " * (rank - 1),
        "batched": f"(N, C, {AXES[rank]})",
        "unbatched": f"(C, {AXES[rank]})",
        "causal": ' or ``"causal"``' if rank == 1 else "",
        "extremes": family.extremes,
        "padding": family.padding,
    }
    lines = wrapped(f'"""{summary.format(**words)}')
    shapes = "Inputs are ``{batched}`` or, unbatched, ``{unbatched}``."
    if MASK in family.called:
        shapes += (
            " ``layer(input, mask=mask)`` leaves out the elements where ``mask`` is False: a bool "
            "tensor with the input's dimensions, where sizes of 1 broadcast, or with the spatial "
            "ones alone."
        )
    if INPUT not in arguments:
        lines += ["", *wrapped(shapes.format(**words))]
    lines += ["", "    Args:"]
    for argument in arguments:
        if argument.text:
            text = f"{argument.name}: {argument.text.format(**words)}"
            lines += wrapped(text, " " * 8, " " * 12)
    if family.notes:
        lines += ["", *wrapped(family.notes.format(**words))]
    example = re.sub(r"\((\d)\)(?=[,)])", r"\1", example.format(**words))  # (2) of one dimension
    lines += ["", *indented(example.split("\n"))]
    return [*lines, '    """']


def wrapped(text: str, first: str = "    ", rest: str = "    ") -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]


def module(heading: str, imports: list[str], lines: list[str]) -> str:
    """A file of these lines, which imports what they use."""
    body = "\n".join(lines).rstrip() + "\n"
    code = re.sub(r'""".*?"""', "", body, flags=re.DOTALL)
    typing = used_in(code, ["Literal", "overload"])
    windows = ", ".join(used_in(code, WINDOWS))
    used = [
        ["from collections.abc import Sequence"] * ("Sequence[" in code)
        + [f"from typing import {', '.join(typing)}"] * bool(typing),
        ["import torch"] * ("torch." in code)
        + ["from torch import Tensor"] * bool(used_in(code, ["Tensor"])),
        sorted(
            [
                *imports,
                *["from torch_dmlpool.keywords import layer"] * ("@layer" in code),
                *[f"from torch_dmlpool.window import {windows}"] * bool(windows),
            ]
        ),
    ]
    blocks = "\n\n".join("\n".join(block) for block in used if block)
    return f'"""{heading}\n\n{WRITTEN}\n"""\n\n{blocks}\n\n\n{body}'


def used_in(text: str, names: list[str]) -> list[str]:
    return [name for name in names if re.search(rf"\b{name}\b", text)]


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
