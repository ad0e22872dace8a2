"""Exported programs keep operators whole, and a fresh process loads and runs them: with this
package and, taken apart, without it (E2)."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import cases
import onnx_forms
import operators
import pytest
import samples
import torch
import torch.utils.cpp_extension

import torch_dmlpool as dmlpool
from torch_dmlpool.decompositions import decompositions

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Apart(operators.Pools):
    """What can be taken apart: all but layers that put maxima back, which call for this package's
    own order."""

    def __init__(self):
        super().__init__()
        self.norm = dmlpool.nn.LPPool2d(2.0, 2, 1)
        scales = {"input_scale": 0.5, "output_scale": 0.25, "output_zero_point": 3}
        self.quantized = operators.QuantizedAverages(2, {"kernel_size": 2}, **scales)

    def forward(self, input, integers):
        return *super().forward(input), self.norm(self.features(input)), self.quantized(integers)


def inputs(batch=2):
    integers = samples.integers(batch, 3, 8, 6, dtype=torch.uint8)
    return samples.normal(batch, 3, 14, 13), integers


def program_of(network, **how):
    batch = {0: torch.export.Dim("batch", min=2)}
    return torch.export.export(network.eval(), inputs(), dynamic_shapes=(batch, batch), **how)


def operators_in(program):
    targets = [str(node.target) for node in program.graph.nodes]
    return [each.split(".")[1] for each in targets if each.startswith("dmlpool.")]


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_program_keeps_operators_whole(strict):
    """E2: decomposed too, but for norms. Where sizes are known to divide, bins are a window."""
    program, features = program_of(Apart(), strict=strict), ["max_pooling", "average_pooling"]
    pools = [*features, "max_pooling_with_indices", "average_pooling", *features]
    quantized = "quantized_linear_average_pooling_of_numbers"
    assert operators_in(program) == [*pools, "lp_pooling", quantized]
    assert operators_in(program.run_decompositions())[:6] == pools


class Trained(onnx_forms.Shared):
    """As after any layer that is trained: winners are numbered for a gradient too."""

    def __init__(self, forms):
        super().__init__(forms)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, *inputs):
        return super().forward(*(x * self.scale if x.is_floating_point() else x for x in inputs))


@cases.each(("rank", "step"), [(2, 6), (1, 1), (2, 1), (3, 1)], [(2, 6)])
def test_every_form_of_sizes_that_are_left_open(rank, step):
    """E2: PyTorch is asked to prove nothing about padding that "same" has computed, and the program
    is right for even and odd sizes, large ones too.

    More than 225 elements in a plane take a wider type where winners are numbered.
    """
    forms = [form for form in onnx_forms.first_half(rank, False) if form.larger is not None]
    model = Trained(forms[::step]).eval()
    opened = model.dynamic_shapes(True)
    program = torch.export.export(model, tuple(model.inputs), dynamic_shapes=opened).module()
    large = [each.repeat(1, 1, *[3] * rank) for each in model.larger]
    for inputs in (model.inputs, model.larger, large):
        torch.testing.assert_close(program(*inputs), model(*inputs), equal_nan=True)


RUN = """
import sys, torch
{imports}
load, path, results = sys.argv[1:]
arguments = torch.load(results + ".inputs")
if load == "program":
    model = torch.export.load(path).module()
else:
    model = torch._inductor.aoti_load_package(path)
with torch.no_grad():
    torch.save(model(*arguments), results)
print("torch_dmlpool" in sys.modules)
"""


def run_in_a_fresh_process(load, path, imports, arguments):
    """What a saved model computes where nothing but ``imports`` has been imported, and what it
    complains of."""
    results = path.with_suffix(".results")
    torch.save(arguments, f"{results}.inputs")
    command = [sys.executable, "-c", RUN.format(imports=imports), load, path, results]
    how: Any = {"capture_output": True, "text": True, "timeout": 240, "cwd": path.parent}
    completed = subprocess.run(command, check=False, **how)
    if completed.returncode:
        return None, completed.stderr
    assert completed.stdout.strip() == str(bool(imports))
    return torch.load(results), completed.stderr


def check(results, expected):
    for result, tensor in zip(results, expected, strict=True):
        torch.testing.assert_close(result, tensor.detach())


@pytest.mark.slow
def test_a_saved_program(tmp_path):
    """Loaded where the package is imported, and refused in words where it is not; other batch sizes
    too."""
    network, arguments = Apart(), inputs(5)
    path = tmp_path / "network.pt2"
    torch.export.save(program_of(network), path)
    check(torch.export.load(path).module()(*arguments), network(*arguments))
    results, _ = run_in_a_fresh_process("program", path, "import torch_dmlpool", arguments)
    check(results, network(*arguments))
    results, complaint = run_in_a_fresh_process("program", path, "", arguments)
    assert results is None
    assert re.search(r"failed to resolve torch\.ops\.dmlpool\.\w+", complaint)


def apart(network):
    return program_of(network).run_decompositions(
        {**torch.export.default_decompositions(), **decompositions()}
    )


def test_a_program_taken_apart_runs_without_the_package(tmp_path):
    network, arguments = Apart(), inputs(5)
    path = tmp_path / "network.pt2"
    torch.export.save(apart(network), path)
    results, _ = run_in_a_fresh_process("program", path, "", arguments)
    check(results, network(*arguments))


@pytest.mark.slow
def test_packages_of_aot_inductor(tmp_path):
    """The operators call back into Python, so that the process must import the package; taken apart
    they do not."""
    network, arguments = Apart(), inputs(5)
    path = tmp_path / "whole.pt2"
    if torch.torch_version.TorchVersion(torch.__version__) < "2.13":
        with pytest.raises(Exception, match="dmlpool::max_pooling_with_indices takes a data type"):
            torch._inductor.aoti_compile_and_package(program_of(network), package_path=str(path))
    else:
        torch._inductor.aoti_compile_and_package(program_of(network), package_path=str(path))
        results, _ = run_in_a_fresh_process("package", path, "import torch_dmlpool", arguments)
        check(results, network(*arguments))
        results, complaint = run_in_a_fresh_process("package", path, "", arguments)
        assert results is None
        assert "Could not find schema for dmlpool::" in complaint
    path = tmp_path / "apart.pt2"
    torch._inductor.aoti_compile_and_package(apart(network), package_path=str(path))
    results, _ = run_in_a_fresh_process("package", path, "", arguments)
    check(results, network(*arguments))
    check(run_in_cpp(path, arguments), network(*arguments))


CPP = """
#include <fstream>
#include <iterator>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/pickle.h>

int main(int, char** arguments) {
  std::ifstream file(arguments[2], std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  auto loaded = torch::jit::pickle_load(bytes);
  std::vector<at::Tensor> inputs;
  for (const auto& input : loaded.toListRef()) inputs.push_back(input.toTensor());
  torch::inductor::AOTIModelPackageLoader model(arguments[1]);
  auto saved = torch::jit::pickle_save(c10::IValue(model.run(inputs)));
  std::ofstream(arguments[3], std::ios::binary).write(saved.data(), saved.size());
}
"""


def run_in_cpp(package, arguments):
    """What a package computes in a program that knows no Python."""
    folder, torch_folder = package.parent, Path(torch.__file__).parent
    source, program = folder / "run.cpp", folder / "run"
    source.write_text(CPP)
    includes = [f"-I{path}" for path in torch.utils.cpp_extension.include_paths()]
    libraries = [f"-L{torch_folder}/lib", "-ltorch", "-ltorch_cpu", "-lc10"]
    libraries.append(f"-Wl,-rpath,{torch_folder}/lib")
    compiler = torch.utils.cpp_extension.get_cxx_compiler()
    build = [compiler, "-std=c++20", "-O0", str(source), "-o", str(program), *includes, *libraries]
    subprocess.run(build, check=True, capture_output=True, timeout=500)
    torch.save(list(arguments), folder / "inputs")
    run = [program, package, folder / "inputs", folder / "outputs"]
    subprocess.run(run, check=True, capture_output=True, timeout=240)
    return torch.load(folder / "outputs", weights_only=False)  # a list that C++ wrote
