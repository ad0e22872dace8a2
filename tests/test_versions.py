"""Other versions, of PyTorch without what may go and of Triton; what importing the package does."""

import ast
import contextlib
import functools
import importlib
import re
from pathlib import Path
from types import ModuleType

import cases
import pytest
import torch

import torch_dmlpool
from torch_dmlpool import keywords

PACKAGE = Path(torch_dmlpool.__file__).parent

# PyTorch's private names, which may change without notice.


@functools.cache
def modules():
    """The package's sources by their dotted names; kernels know nothing of PyTorch."""
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if "kernels" not in path.parts]
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text())
        for path in paths
    }


def imports_in(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def private_names(tree):
    """PyTorch's private names that a module imports or reads from what it imports, in full."""
    known, found = {"torch": "torch"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                found.add(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in known:
            found.add(".".join([known[node.id], *reversed(parts)]))
    # Before something is compiled, torch._inductor has nothing but modules.
    private = re.compile(r"torch\.[\w.]*\b_[a-zA-Z][\w.]*$")
    return {name for name in found if private.match(name) and ".V." not in name}


USERS: dict[str, set[str]] = {}
for module, tree in modules().items():
    for private in private_names(tree):
        USERS.setdefault(private, set()).add(module)


@pytest.mark.parametrize("name", sorted(USERS))
def test_pytorch_still_has_the_private_name(name):
    """If this fails, PyTorch has moved or renamed what a module builds on."""
    if name.startswith("torch.onnx."):
        pytest.importorskip("onnxscript", reason="PyTorch's exporter imports it")
    home, rest = torch, name.split(".")[1:]
    for done, part in enumerate(rest, 2):
        if isinstance(home, ModuleType) and not hasattr(home, part):
            with contextlib.suppress(ImportError):
                importlib.import_module(".".join(name.split(".")[:done]))
        if part == "quint8" or (part.startswith("_empty_") and not hasattr(torch, "quint8")):
            pytest.skip("PyTorch has no quantized tensors any more")
        assert hasattr(home, part), f"{name} is gone; {', '.join(USERS[name])} need it"
        home = getattr(home, part)


LOADED_LATER = {
    "torch._inductor": "inductor",
    "torch.utils._sympy": "inductor",
    "torch.distributed": "distributed",
    "torch.onnx": "onnx",
}
"""Parts of PyTorch that are loaded later than this package, and the room that is loaded with
them."""


def test_private_names_are_in_one_file():
    """Or, if they are of a part that is loaded later, in its room."""
    for name, users in USERS.items():
        rooms = [room for part, room in LOADED_LATER.items() if name.startswith(part)]
        assert {user.split(".")[0] for user in users} == set(rooms[:1] or ["_private"]), name


def test_every_private_name_says_what_it_is_for():
    """In a comment above it, and all of them are used."""
    lines = (PACKAGE / "_private.py").read_text().splitlines()
    own, offered = modules()["_private"], set()
    for node in imports_in(own):
        for alias in node.names if node.module.split(".")[0] == "torch" else ():
            if alias.name != "Tensor":
                # A single name is explained above the statement, several each above its line.
                first = alias.lineno if node.names[1:] else node.lineno
                explained = lines[first - 2].lstrip().startswith("# ")
                assert explained, f"{alias.name} is not explained"
                offered.add(alias.asname or alias.name)
    functions = [node.name for node in own.body if isinstance(node, ast.FunctionDef)]
    offered |= {name for name in functions if not name.startswith("_")}
    taken = {
        alias.name
        for tree in modules().values()
        for node in imports_in(tree)
        if node.module == "torch_dmlpool._private"
        for alias in node.names
    }
    assert len(offered) > 15
    assert offered <= taken


# What a process lacks, or has broken: the CPU goes on, results and gradients.

POOLING = """
import torch_dmlpool as dmlpool
input = torch.arange(16.0).view(1, 1, 4, 4).requires_grad_()
values, indices = dmlpool.max_pooling(input, 2, 2, return_indices=True)
values.sum().backward()
integers = input.detach().to(torch.uint8)
pooled = dmlpool.quantized_linear_average_pooling(integers, 0.5, 0, 0.5, 0, 2, 2)
gradient = int(input.grad.sum())
print(values.flatten().tolist(), indices.flatten().tolist(), gradient, pooled.flatten().tolist())
print(dmlpool.nn.AvgPool2d(4)(input).item())
"""
POOLED = "[5.0, 7.0, 13.0, 15.0] [5, 7, 13, 15] 4 [2, 4, 10, 12]\n7.5\n"
WITHOUT = {
    "quantized tensors, which PyTorch has announced": """
announced = ("quint", "qint", "quantize_", "per_channel_affine", "per_tensor_affine",
             "per_channel_symmetric", "per_tensor_symmetric", "_empty_affine",
             "_empty_per_channel", "_make_per")
for name in [name for name in dir(torch) if name.startswith(announced)]:
    delattr(torch, name)
""",
    "distributed tensors, as on some platforms": """
import sys
sys.modules["torch.distributed.tensor"] = None
torch.distributed.is_available = lambda: False
""",
    "the allocator of Inductor's code": """
import torch._C._dynamo.guards
del torch._C._dynamo.guards._empty_strided_cpu
""",
    "triton": """
import sys
sys.modules["triton"] = None
""",
    "a triton that can be imported": """
import sys, importlib.abc, importlib.machinery
class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec): raise ImportError("libtriton.so: undefined symbol")
    def exec_module(self, module): pass
sys.meta_path.insert(0, Broken())
""",
}


@cases.each("what", WITHOUT, list(WITHOUT)[:1])
def test_a_process_without(what, python):
    """E7: all but the two functions of quantized tensors, and those say what to use instead."""
    ending = """
functions = dmlpool.quantized_average_pooling, dmlpool.quantized_max_pooling
for function in functions * (not hasattr(torch, "quint8")):
    try: function(torch.ones(1, 1, 4, 4), 2)
    except NotImplementedError as error: print(error)
"""
    program = "import torch" + WITHOUT[what] + POOLING + ending
    output = python("-W", "error", "-c", program).stdout
    assert output.startswith(POOLED)
    refusals = output.removeprefix(POOLED).splitlines()
    assert len(refusals) == 2 * what.startswith("quantized")
    assert all("has no quantized tensors" in refusal for refusal in refusals)


UNCHANGED = """
import json, sys, warnings
import torch
from torch._dynamo import config as dynamo
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor.fx_passes import joint_graph, post_grad, pre_grad
from torch._inductor.lowering import lowerings
from torch.compiler import config as compiler
from torch.fx.experimental import _config as shapes

def settings():
    found = {}
    for config in (compiler, inductor, dynamo, functorch, shapes):
        for name in config._config:
            found[config.__name__, name] = repr(getattr(config, name))
    for module in (pre_grad, joint_graph, post_grad):
        for name, value in vars(module).items():
            passes = value if isinstance(value, list) else [value]
            for number, each in enumerate(passes):
                if type(each).__name__ == "PatternMatcherPass":
                    counted = {str(key): len(entries) for key, entries in each.patterns.items()}
                    found[module.__name__, name, number] = counted
    found["lowerings"] = len(lowerings)
    found["filters"] = repr(warnings.filters)
    found["rest"] = torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads()
    found["modes"] = torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
    return found

before = settings()
assert len(before) > 500
import torch_dmlpool, torch_dmlpool.decompositions, torch_dmlpool.operators, torch_dmlpool.onnx
after = settings()
print([name for name in {**before, **after} if before.get(name) != after.get(name)])

torch.compile(lambda x: torch_dmlpool.max_pooling(x.tanh(), 2, 2), backend="aot_eager")(
    torch.ones(1, 1, 4, 4)
)
compiled = settings()
print([name for name in after if after[name] != compiled.get(name) and "lowerings" not in name])
"""


def test_importing_and_compiling_leave_the_users_settings_alone(python):
    """Every setting of the compilers that can be read, the lists of patterns, warnings and
    defaults. A first graph adds lowerings of the operators, and changes nothing else."""
    assert python("-W", "ignore", "-c", UNCHANGED).stdout.splitlines() == ["[]", "[]"]


def test_importing_does_nothing_but_register(python):
    """E7: operators are there before the first call, settings stay; neither triton nor a kernel of
    it is loaded. A module that must be imported says so, unless somebody has imported it."""
    program = """
import sys, torch
before = set(sys.modules), torch.get_num_threads(), torch.get_default_dtype()
import torch_dmlpool
operators = torch.ops.dmlpool
print(*(operator.default._schema.name
        for operator in (operators.max_pooling, operators.average_pooling)))
print((torch.get_num_threads(), torch.get_default_dtype()) == before[1:], torch.is_grad_enabled())
torch_dmlpool.max_pooling(torch.ones(1, 1, 4, 4), 2)
unwanted = ("triton", "torch_dmlpool.kernels.", "torch_dmlpool.backends.triton",
            "torch._inductor", "torch._dynamo")
print([name for name in set(sys.modules) - before[0] if name.startswith(unwanted)])
from torch_dmlpool import backends, keywords
torch.cuda.is_available = lambda: False
print(*(backends.serving(device).name for device in ("cuda", "mps", "xpu")))
import importlib, warnings
warnings.simplefilter("ignore")
for name in keywords.MODULES:
    try: getattr(torch_dmlpool, name)
    except AttributeError as error: print(error)
for name in keywords.MODULES: importlib.import_module(f"torch_dmlpool.{name}")
"""
    printed = python("-W", "error", "-c", program).stdout.splitlines()
    assert printed[:4] == [
        "dmlpool::max_pooling dmlpool::average_pooling",
        "True True",
        "[]",
        "reference reference reference",
    ]
    said = "module 'torch_dmlpool' has no attribute {!r}: write import torch_dmlpool.{}"
    assert set() < {*printed[4:]} <= {said.format(*[each] * 2) for each in keywords.MODULES}
