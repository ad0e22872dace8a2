"""The compiled library of the CPU: it fits this package or is not used, and its failures are
Python's exceptions."""

import ctypes
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import cases
import pytest
import torch

import torch_dmlpool as dmlpool
from torch_dmlpool import kernels
from torch_dmlpool.backends import library

pytestmark = cases.OF_THE_LIBRARY
SCARCE = Path(__file__).with_name("scarce.py")


def path_of_library():
    return Path(library.library._name)


def test_both_halves_of_each_struct_agree():
    """Every struct has the same fields in the same order, and as many bytes, in C++ and in
    Python."""
    theirs = {}
    for line in library.library.dmlpool_layout():
        if line.name is None:
            break
        theirs[line.name.decode()] = line.declared.decode(), line.bytes
    ours = library.layout()
    assert theirs.keys() == ours.keys()
    for name, (fields, number) in ours.items():
        declared, their_number = theirs[name]
        # Types and sizes aside, a declaration is a list of names.
        names = re.sub(r"\[3\]|\*|(const )?(u?int\d+_t|float|Axis|Counting|Masking) ", "", declared)
        assert [each.strip() for each in re.split("[,;]", names) if each] == fields
        assert their_number == number
    assert sum(len(fields) for fields, _ in ours.values()) > 40


def swapped(struct):
    """The struct with its first two fields in the other order."""
    first, second, *rest = struct._fields_
    return type(struct.__name__, (ctypes.Structure,), {"_fields_": [second, first, *rest]})


def longer(struct):
    fields = [*struct._fields_, ("added", ctypes.c_int64)]
    return type(struct.__name__, (ctypes.Structure,), {"_fields_": fields})


@pytest.mark.parametrize("change", [swapped, longer])
@pytest.mark.parametrize("name", ["AxisStruct", "Counting", "Problem", "Quantization", "Masking"])
def test_a_library_with_another_struct_is_not_used(name, change, monkeypatch):
    """Fields in another order, or one more: what would be read as other numbers."""
    monkeypatch.setattr(library, name, change(getattr(library, name)))
    check_refused(path_of_library(), rf"\({name.removesuffix('Struct')}\b.* laid out otherwise\)")


def check_refused(path, reason):
    loaded, missing = library.load(path)
    assert loaded is None
    assert re.search(
        f"^{path.name} .*{reason}.* install torch_dmlpool again, from source$", missing
    )


def test_what_is_no_library_of_this_version_is_not_used(monkeypatch, tmp_path):
    """One without a version, as those built before there was one, is PyTorch's own here."""
    [torchs] = (Path(torch.__file__).parent / "lib").glob("libc10.*")
    check_refused(torchs, r"was built from other sources than this package \(it says no version\):")
    path = tmp_path / "cpu_avx2.so"
    path.write_text("built for another processor")
    check_refused(path, "cannot be used: .*;")
    monkeypatch.setattr(library, "VERSION", library.VERSION + 1)
    versions = f"it has version {library.VERSION - 1}, not {library.VERSION}"
    check_refused(path_of_library(), rf"was built from other sources .*\({versions}\):")


# Failures of a call.


@pytest.fixture
def functions_of_threads():
    """PyTorch's functions that the library calls; they are put back. PyTorch has two threads."""
    [path] = (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")
    torchs = ctypes.CDLL(str(path))
    found = torchs.torch_parallel_for, torchs.torch_get_num_threads
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    real = [ctypes.cast(function, ctypes.c_void_p) for function in found]
    try:
        yield real
    finally:
        library.library.dmlpool_use_threads(*real)
        torch.set_num_threads(threads)


def test_failures_of_pytorchs_threads_are_raised(functions_of_threads):
    """What torch_parallel_for and torch_get_num_threads return is looked at, and the next call
    works."""
    fails = ctypes.CFUNCTYPE(ctypes.c_int32)(lambda *_: 7)
    image = torch.randn(4, 4, 64, 64)
    expected = dmlpool.max_pooling(image, 3)
    for at, name in enumerate(("torch_parallel_for", "torch_get_num_threads")):
        functions = [*functions_of_threads]
        functions[at] = ctypes.cast(fails, ctypes.c_void_p)
        library.library.dmlpool_use_threads(*functions)
        with pytest.raises(RuntimeError) as raised:
            dmlpool.max_pooling(image, 3)
        message = f"max_pooling: its kernel failed on the CPU: {name} returned 7"
        assert str(raised.value) == message
    library.library.dmlpool_use_threads(*functions_of_threads)
    assert torch.equal(dmlpool.max_pooling(image, 3), expected)


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1,)])
def test_a_thread_that_is_late_leaves_its_share_to_others(functions_of_threads, order):
    """Threads that come one after the other, in any order, compute everything once: the first one
    takes all shares."""
    part = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    region = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 3, part, ctypes.c_void_p)
    regions = []

    def runs_in_turn(begin, end, grain, run, context):
        regions.append((begin, end, grain))
        for thread in order:
            run(thread, thread + 1, context)
        return 0

    image, kept = torch.randn(5, 7, 97, 64), region(runs_in_turn)
    expected = dmlpool.max_pooling(image, 3), dmlpool.average_pooling(image, (97, 64))
    _, threads = functions_of_threads
    library.library.dmlpool_use_threads(ctypes.cast(kept, ctypes.c_void_p), threads)
    found = dmlpool.max_pooling(image, 3), dmlpool.average_pooling(image, (97, 64))
    assert regions == [(0, 2, 1)] * 2
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_the_working_directory_is_not_searched(tmp_path, monkeypatch):
    """A library that lies there is nobody's installation; ``python -c`` has "" in sys.path."""
    installed = tmp_path / "torch_dmlpool" / "kernels"
    installed.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for folders, expected in ((["", "."], []), ([str(tmp_path)], [str(installed)])):
        monkeypatch.setattr(sys, "path", folders)
        found = runpy.run_path(kernels.__file__, run_name=kernels.__name__)["__path__"]
        assert found[1:] == expected


@pytest.fixture(scope="module")
def failing_malloc(tmp_path_factory):
    """A malloc that fails when it is told to, for LD_PRELOAD."""
    compiler = next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler and Linux")
    target = tmp_path_factory.mktemp("allocations") / "allocations.so"
    source = SCARCE.with_name("allocations.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", source, "-o", target], check=True)
    return str(target)


@cases.each("threads", [1, 2], [2])
def test_each_allocation_may_fail(python, failing_malloc, threads):
    """The first, the second, ... allocation of a call fails: it says so, leaves nothing behind, and
    the next call is right."""
    environment = {**os.environ, "LD_PRELOAD": failing_malloc}
    lines = python(SCARCE, threads, environment=environment).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    functions = set(library.library.dmlpool_names().decode().split(", "))
    assert {each["name"].split(",")[0] for each in found} == functions
    for call in found:
        name, (*failed, last) = call["name"].split(",")[0], call["errors"]
        assert last == ""
        reason = "there is no memory for what it needs on the CPU beside its operands"
        assert set(failed) <= {f"{name}: {reason}"}, call
        allocates_once = name in ("gather_positions", "masked", "max_pooling_indices")
        allocates_once |= name.startswith(("segment", "statistics"))
        assert len(failed) >= 2 * (not allocates_once), call
        assert not any(call["left"]), call
        assert call["right"], call
