"""How the kernels are built and found: which compiler, what the build asks for, a checkout beside a
wheel, an editable install in type checkers."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import torch_dmlpool
from torch_dmlpool.backends import cpu

ROOT = Path(torch_dmlpool.__file__).resolve().parents[1]
Python = Callable[..., Any]

if not (ROOT / "tools").is_dir():
    pytest.skip("the package is installed: nothing is built from it", allow_module_level=True)


@pytest.fixture
def compilers(monkeypatch):
    """A module of its own for each test: it remembers which compiler works."""
    monkeypatch.delenv("CXX", raising=False)
    spec = importlib.util.spec_from_file_location("compilers", ROOT / "tools" / "compilers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_compilers(compilers, monkeypatch, folder):
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


def test_zig_is_asked_for_exactly_where_nothing_compiles(compilers, monkeypatch, tmp_path, capfd):
    """An install without it succeeds, and says that it builds no kernels."""
    monkeypatch.setattr(compilers, "can_be_had", lambda _: True)
    monkeypatch.setattr(compilers, "own", lambda: "a compiler that works")
    assert compilers.required() == []
    monkeypatch.setattr(compilers, "own", lambda: None)
    without_compilers(compilers, monkeypatch, tmp_path)
    assert compilers.required() == [compilers.ZIG]
    monkeypatch.setattr(compilers, "can_be_had", lambda _: False)
    assert compilers.required() == []
    assert "no kernels are built" in capfd.readouterr().err
    monkeypatch.setenv("CXX", "none")
    assert compilers.required() == []
    assert compilers.found() is None


def test_what_pip_does_not_find_cannot_be_had(compilers, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert not compilers.can_be_had("ziglang>9999")


def test_a_compiler_that_cannot_compile_is_none(compilers, monkeypatch, tmp_path):
    """A Mac without developer tools has a stub of one."""
    stub = tmp_path / "c++"
    stub.write_text("#!/bin/sh\necho no developer tools were found\nexit 1\n")
    stub.chmod(0o755)
    without_compilers(compilers, monkeypatch, tmp_path)
    monkeypatch.setattr(compilers, "OWN", ["c++"])
    assert compilers.found() is None


@pytest.mark.skipif(cpu.library is None, reason="no compiled kernels")
def test_a_compiler_may_have_arguments(compilers, monkeypatch, tmp_path):
    own = compilers.own()
    if own is None:
        pytest.skip("this machine has no C++ compiler of its own")
    monkeypatch.setenv("CXX", f"{own.command[0]} -DMANY=1")
    assert compilers.found().command == (own.command[0], "-DMANY=1")


ROWS = """#include <string.h>
extern "C" void dmlpool_rows(float *rows, long count, long bytes) {
    for (long i = 1; i < count; ++i)
        memcpy(rows + i, rows, bytes);
}
"""
SUMS = """extern "C" float dmlpool_sums(float *rows, long count) {
    _Pragma("clang loop vectorize(assume_safety)")
    for (long i = 1; i < count; ++i)
        if (rows[i] > rows[i - 1])
            return rows[i];
    return 0;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="zig's flags for Linux")
def test_a_library_of_zig_calls_the_systems_memcpy_and_has_the_vectors_it_is_meant_to_have(
    compilers, monkeypatch, tmp_path, capfd
):
    """A loop that is marked as one of vectors, and is none, fails the build of a wheel."""
    lief = pytest.importorskip("lief")
    zig = compilers.zig()
    if zig is None:
        pytest.skip("zig is not installed")
    # The same flags, without the C++ library, which zig would build first: a minute.
    zig = zig._replace(command=[word.replace("c++", "cc") for word in zig.command])
    source, library = tmp_path / "rows.cpp", tmp_path / "library" / "rows.so"
    source.write_text(ROWS)
    zig.link([str(source)], library, [])
    parsed = lief.parse(str(library))
    assert "memcpy" in {symbol.name for symbol in parsed.imported_symbols}
    source.write_text(SUMS)
    zig.link([str(source)], library, [])
    monkeypatch.setattr(compilers, "NAMED", "manylinux_2_17_x86_64")
    with pytest.raises(subprocess.CalledProcessError):
        zig.link([str(source)], library, [])
    assert "loop not vectorized" in capfd.readouterr().err


def test_a_wheel_without_kernels_is_of_any_platform(python, tmp_path):
    """Also where an earlier build left kernels."""
    source = checkout(tmp_path / "source", with_sources=True)
    for stale in ("lib", f"lib.{sys.platform}-x86_64"):
        folder = source / "build" / stale / "torch_dmlpool" / "kernels"
        folder.mkdir(parents=True)
        (folder / "cpu_avx2.so").write_text("stale")
    command = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    python(*command, environment={**os.environ, "CXX": "none"})
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert not [name for name in names if name.endswith((".so", ".dll", ".lib"))]
        (about,) = (name for name in names if name.endswith("/WHEEL"))
        assert b"Root-Is-Purelib: true" in archive.read(about)
        # What finds the kernels of a checkout would find none in a wheel.
        assert b"checkout" not in archive.read("torch_dmlpool/kernels/__init__.py")


HOSTING = re.compile(r"\.gitignore|\.ci/.*|\.github/.*")
"""Files of the repository that whoever has its source alone has no use for."""


def test_the_source_distribution_can_be_tested(python, tmp_path):
    """It holds every file of the repository, but those that its hosting needs, and nothing else."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("git does not say which files are the repository's")

    def listed(*options):
        command = ["git", "ls-files", *options]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return {name for name in names.stdout.splitlines() if (ROOT / name).exists()}

    tracked, others = listed(), listed("--others")
    python("-m", "build", "--sdist", "--no-isolation", "--outdir", tmp_path, ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        packed = {each.name.partition("/")[2] for each in file.getmembers() if each.isfile()}
    assert {name for name in tracked - packed if not HOSTING.fullmatch(name)} == set()
    assert not [name for name in packed if name.endswith((".so", ".dll", ".pyc"))]
    # What nobody has committed yet, such as a new test, may be packed.
    made = {name for name in packed if name.startswith("torch_dmlpool.egg-info/")}
    assert packed - tracked - others - made == {"PKG-INFO"}


@pytest.mark.skipif(cpu.library is None, reason="no compiled kernels")
def test_a_wheel_is_not_handed_out_as_it_should_not_be(tmp_path, monkeypatch):
    """A stray file, a missing library, one that exports too much or needs what systems lack."""
    pytest.importorskip("lief")
    if importlib.util.find_spec("auditwheel") is None:
        pytest.skip("auditwheel is for Linux")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    wheels = importlib.import_module("wheels")
    wheel = tmp_path / "torch_dmlpool-0.3.0-py3-none-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch_dmlpool/__init__.py", "")
        archive.writestr("torch_dmlpool/kernels/pooling.lib", "")
        archive.write(cpu.library._name, "torch_dmlpool/kernels/cpu_avx2.so")
    monkeypatch.setattr(wheels.compilers, "exported_by", lambda _: {"dmlpool_max_pooling"})
    found = "\n".join(wheels.complaints(wheel))
    assert "cpu_avx512.so is missing" in found
    assert "pooling.lib does not belong there" in found
    assert "exports ['dmlpool_calls_forced', " in found
    assert "by auditwheel" in found
    monkeypatch.setattr(wheels, "LARGEST", 1000)
    assert "larger than" in next(wheels.complaints(wheel))


def checkout(folder, with_sources=False):
    """A copy of this one, with nothing compiled."""
    built = shutil.ignore_patterns("*.so", "*.dll", "__pycache__")
    for name in ("torch_dmlpool", "kernels", *(["tools"] if with_sources else [])):
        shutil.copytree(ROOT / name, folder / name, ignore=built)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.mark.skipif(os.name == "nt", reason="the stub is a shell script")
def test_a_checkout_builds_one_library_again_where_a_source_is_newer(python, tmp_path):
    """That of its processor, which is replaced when the new one is there; one that cannot be
    compiled is removed, as tests would be of the one before."""
    source, log = checkout(tmp_path / "source", with_sources=True), tmp_path / "log"
    stub = tmp_path / "stub"
    stub.write_text(f"#!/bin/sh\nfor last; do :; done; echo $last >>{log}; echo a >$last\n")
    stub.chmod(0o755)

    def build(**environment):
        log.write_text("")
        how = {**os.environ, "CXX": str(stub), **environment}
        python("setup.py", "--quiet", "build_ext", "--inplace", cwd=source, environment=how)
        return [path.name for path in (source / "kernels").glob("cpu_*")]

    (name,) = build()
    assert log.read_text().count(".o\n") == len(list(source.glob("kernels/cpu/*.cpp")))
    assert (build(), ".o" in log.read_text()) == ([name], False)
    header, library = source / "kernels" / "cpu" / "vectors.h", source / "kernels" / name
    later = library.stat().st_mtime + 1
    os.utime(header, (later, later))
    assert (build(), ".o" in log.read_text()) == ([name], True)
    if name == "cpu_avx512.so":
        assert set(build(ATEN_CPU_CAPABILITY="avx2")) == {name, "cpu_avx2.so"}
        (source / "kernels" / "cpu_avx2.so").unlink()
    os.utime(header, (later + 9, later + 9))
    assert build(CXX="none") == []


SERVED = """
import torch, torch_dmlpool
from torch_dmlpool import backends
torch_dmlpool.max_pooling(torch.ones(1, 1, 4, 4), 2)
print(torch_dmlpool.__file__, backends.serving("cpu").name)
"""


@pytest.mark.skipif(cpu.library is None, reason="no compiled kernels")
def test_a_checkout_beside_a_wheel_is_served_by_its_kernels(python, tmp_path):
    """Python imports what lies in the folder that it runs in, where nothing may be compiled."""
    here = checkout(tmp_path / "checkout")
    wheel = tmp_path / "site-packages"
    shutil.copytree(here / "torch_dmlpool", wheel / "torch_dmlpool")
    shutil.rmtree(wheel / "torch_dmlpool" / "kernels")
    shutil.copytree(here / "kernels", wheel / "torch_dmlpool" / "kernels")
    # What else is installed would be found as well: this checkout or another wheel.
    program = (
        "import os, sys\n"
        f"own = ('', {str(here)!r}, {str(wheel)!r})\n"
        "others = [p for p in sys.path if os.path.isdir(os.path.join(p, 'torch_dmlpool'))]\n"
        "sys.path[:] = [p for p in sys.path if p in own or p not in others]\n"
    ) + SERVED
    environment = {**os.environ, "PYTHONPATH": str(wheel), "PYTHONWARNINGS": "ignore"}
    imported = str(here / "torch_dmlpool" / "__init__.py")
    for backend in ("reference", "cpu"):
        found = python("-c", program, environment=environment, cwd=here).stdout.split()
        assert found[-2:] == [imported, backend]
        shutil.copy(cpu.library._name, wheel / "torch_dmlpool" / "kernels")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the PATH is one of Unix")
def test_a_machine_without_a_compiler_gets_compiled_kernels(compilers, python, tmp_path):
    """The editable install of make test and a plain one, with zig from PyPI."""
    if not compilers.can_be_had(compilers.ZIG):
        pytest.skip("no package index can be reached")
    source = checkout(tmp_path / "source", with_sources=True)
    path = tmp_path / "bin"
    path.mkdir()
    for name in ("sh", "ls", "cp", "rm", "mkdir"):
        (path / name).symlink_to(shutil.which(name))
    own = {name: value for name, value in os.environ.items() if name not in ("CXX", "PYTHONPATH")}
    environment = {**own, "PATH": str(path), "PYTHONWARNINGS": "ignore"}
    environment["ZIG_GLOBAL_CACHE_DIR"] = environment["ZIG_LOCAL_CACHE_DIR"] = str(tmp_path / "zig")
    python("-m", "venv", tmp_path / "venv")
    interpreter = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    # PyTorch; path files in there, such as that of this checkout, are not read.
    others = [folder for folder in sys.path if folder.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others))

    def run(*command, cwd=tmp_path):
        ran = subprocess.run(
            [interpreter, *command], env=environment, cwd=cwd, capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    install = ("-m", "pip", "install", "--no-deps")
    run(*install, "-e", source)
    assert run("-c", SERVED).split() == [str(source / "torch_dmlpool" / "__init__.py"), "cpu"]
    assert sorted(each.suffix for each in (source / "kernels").glob("cpu_*"))
    run("-m", "pip", "uninstall", "-y", "torch-dmlpool")
    run(*install, source)
    assert run("-c", SERVED).split() == [str(site / "torch_dmlpool" / "__init__.py"), "cpu"]
