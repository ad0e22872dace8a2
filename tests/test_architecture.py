"""The house: which module may import which, what importing the package does, where PyTorch's
private names live."""

import ast
import functools
import re
import sys
from pathlib import Path

import torch_dmlpool

PACKAGE = Path(torch_dmlpool.__file__).parent
KERNELS = PACKAGE.parent / "kernels"
ROOMS = ["bench", "distributed", "morphology", "nn", "operators", "integrations", "inductor"]
ROOMS += ["onnx", "decompositions", "backends", "kernels"]
"""Top to bottom: a room may import itself, the rooms below it, and the leaves."""
LEAVES = {"window", "tensors", "keywords", "overloads"}
LEAVES |= {"counterparts", "observers", "registry", "timing", "_private"}
NOT_NEIGHBOURS = {
    "distributed": {"nn", "onnx", "kernels"},
    "nn": {"onnx", "backends", "kernels"},
    "morphology": {"onnx", "backends", "kernels"},
    "operators": {"inductor", "onnx", "decompositions", "kernels"},
    "integrations": {"backends", "kernels"},
    "inductor": {"onnx", "backends", "kernels"},
    "onnx": {"backends", "kernels"},
    "kernels": LEAVES,
}
"""nn calls operators, operators call a backend; kernels know triton alone.

distributed stands above the operators, which it teaches about DTensors; nothing imports it but the
user. integrations is what an operator asks about compilers and exporters."""


def sources():
    """Dotted names, without the package's own, of everything that is installed."""
    found = {}
    for root, prefix in ((PACKAGE, ()), (KERNELS, ("kernels",))):
        for path in sorted(root.rglob("*.py")):
            parts = (*prefix, *path.relative_to(root).with_suffix("").parts)
            found[".".join(part for part in parts if part != "__init__")] = path
    return found


SOURCES = sources()


@functools.cache
def nodes_of(name):
    """All that a module's source is made of."""
    return list(ast.walk(ast.parse(SOURCES[name].read_text())))


def calls_in(name):
    return [node for node in nodes_of(name) if isinstance(node, ast.Call)]


def imports_of(name):
    """Absolute dotted names of all that a module imports, at its top or inside a function, types
    included."""
    path = SOURCES[name]
    package = ["torch_dmlpool", *name.split(".")] if name else ["torch_dmlpool"]
    if path.name != "__init__.py":
        package.pop()
    found = set()
    for node in nodes_of(name):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in (
            "import_module",
            "__import__",
        ):
            found |= {_text_of(node.args[0])}
    return found


def _text_of(name):
    """The text of a name that is imported at run time, with a blank for each part that is
    computed."""
    if isinstance(name, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else " " for part in name.values
        )
    assert isinstance(name, ast.Constant), f"what does import_module({ast.unparse(name)}) import?"
    return name.value


def rooms_of(imported):
    """The rooms and leaves of the package among what is imported."""
    return {name.split(".")[1] for name in imported if name.startswith("torch_dmlpool.")}


def test_the_rooms_are_there():
    """The tests below read real files."""
    assert {name.split(".")[0] for name in SOURCES} >= {*ROOMS, *LEAVES}
    assert KERNELS.is_dir()


def test_imports_follow_the_arrow():
    """nn → operators → backends → kernels, with window and tensors as leaves."""
    for name in filter(None, SOURCES):
        room = name.split(".")[0]
        imported = rooms_of(imports_of(name)) - {"__version__"}
        if room in LEAVES:
            # Geometry is integers: no tensors, no types, no devices.
            assert imported <= (LEAVES if name != "window" else {"_private"}), name
        elif room in ROOMS:
            below = {room, *LEAVES, *ROOMS[ROOMS.index(room) + 1 :]}
            allowed = below - NOT_NEIGHBOURS.get(room, set())
            assert imported <= allowed, f"{name} imports {sorted(imported - allowed)}"
        else:
            assert room == "__main__", f"{name} has no place in the house"


def test_no_circle_of_files():
    """No file depends on one that depends on it, imports inside functions and of types counted."""
    arrows = {name: _files_of(name) - {name, ""} for name in SOURCES}
    for start in arrows:
        seen: set[str] = set()
        left = [start]
        while left:
            for each in arrows[left.pop()] - seen:
                seen.add(each)
                left.append(each)
        assert start not in seen, f"{start} is in a circle with {sorted(seen)}"


def _files_of(name):
    """The files that a module's imports name: a module, or the one that has an imported name."""
    found = set()
    for imported in imports_of(name):
        if imported.startswith("torch_dmlpool."):
            inner = imported.removeprefix("torch_dmlpool.")
            found.add(inner if inner in SOURCES else inner.rpartition(".")[0])
    return found & SOURCES.keys()


IN_KERNELS = [name for name in SOURCES if name.split(".")[0] == "kernels"]
ELSEWHERE = [name for name in SOURCES if name not in IN_KERNELS]


def test_kernels_import_triton_and_nothing_else():
    """Beside the standard library and one another."""
    for name in IN_KERNELS:
        for imported in imports_of(name):
            is_known = imported.split(".")[0] in {"triton", *sys.stdlib_module_names}
            inside = imported.startswith("torch_dmlpool.kernels")
            assert is_known or inside, f"{name} imports {imported}"


def test_only_kernels_and_their_launcher_know_triton():
    """And the launcher imports it inside its functions alone."""
    for name in ELSEWHERE:
        tops = {imported.split(".")[0] for imported in imports_of(name)}
        assert "triton" not in tops or name == "backends.triton", name
    for node in ast.parse(SOURCES["backends.triton"].read_text()).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            assert not re.search("triton|kernels", ast.unparse(node)), ast.unparse(node)


def test_no_assert_stands_for_a_refusal():
    """Mistakes of the caller are refused by exceptions, which python -O keeps."""
    for name in SOURCES:
        asserts = [node for node in nodes_of(name) if isinstance(node, ast.Assert)]
        if name.split(".")[0] in {"operators", "tensors", "window", "nn"}:
            assert not [node.lineno for node in asserts], name
        # Elsewhere an assert says what a type checker cannot see, and nothing else.
        assert all(ast.unparse(node.test).endswith(" is not None") for node in asserts), name


def test_rules_that_are_cited_are_in_the_specification():
    """A comment, docstring or test that names E6 leads to a line of the specification, and every
    rule is tested."""
    root, rule = PACKAGE.parent, r"[GAMNBPRKQEWF]\d"
    text = (root / "docs/contributing/specification.md").read_text()
    defined = set(re.findall(rf"^- \*\*({rule})\*\*", text, re.MULTILINE))
    cited = {}
    for folder in ("torch_dmlpool", "kernels", "tests"):
        text = "".join(map(Path.read_text, (root / folder).rglob("*.py")))
        cited[folder] = set(re.findall(rf"\b(?!\w0){rule}\b", text))
    assert set().union(*cited.values()) <= defined
    assert cited["tests"] == defined


FACTORIES = "arange as_tensor empty empty_strided eye full linspace ones rand randint randn "
FACTORIES += "scalar_tensor tensor zeros"


def test_constants_name_their_data_type_and_device():
    """A default data type or device, which model loaders set for a while, never reaches a tensor of
    the package."""
    factories = {f"torch.{factory}" for factory in FACTORIES.split()}
    for name in ELSEWHERE:
        for call in calls_in(name):
            if ast.unparse(call.func) in factories:
                given = {keyword.arg for keyword in call.keywords}
                where = f"{SOURCES[name]}:{call.lineno}: {ast.unparse(call)}"
                assert given >= {"dtype", "device"}, where
