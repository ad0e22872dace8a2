"""One fresh compiler cache per run, seeded property tests, and the device that the operators are
tested on."""

import functools
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

# PyTorch's on-disk cache does not notice that an operator's derivative or fake has changed: never
# meet an old graph. It is read when torch is imported, hence here and not in a fixture.
# The processes of a run share it: nine seconds of computing for each but the first.
IS_FIRST = "PYTEST_XDIST_WORKER" not in os.environ
if IS_FIRST:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="torch_dmlpool_tests_")
    # A checkout has the kernels of its own processor: those that are asked for are built if needed.
    setup = Path(__file__).parents[1] / "setup.py"
    if "ATEN_CPU_CAPABILITY" in os.environ and setup.exists():
        build = [sys.executable, setup, "-q", "build_ext", "--inplace"]
        subprocess.run(build, cwd=setup.parent, check=True)

# As many processes as cores, with as many threads each: those that wait would spend most of the
# processor's time, and wait for one another.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Tracing makes millions of small objects that live as long as the graph. With Python's threshold of
# 700 new objects the collections took a fourteenth of the tests' time.
gc.set_threshold(50_000, 20, 20)

import pytest  # noqa: E402

pytest.register_assert_rewrite("samples")

# torch is imported where it is needed: the process that only hands out tests does without, which
# saves the start of each run 1.5 seconds.
if TYPE_CHECKING:
    pass

try:
    import hypothesis
except ImportError:
    # A bare GPU machine: what needs it is skipped there.
    hypothesis = None

if hypothesis is not None:
    checks = hypothesis.HealthCheck
    allowed = [checks.too_slow, checks.function_scoped_fixture]
    same = {"derandomize": True, "database": None, "deadline": None}
    everyday = hypothesis.settings(**same, max_examples=40, suppress_health_check=allowed)
    register = hypothesis.settings.register_profile
    register("everyday", everyday)
    register("thorough", everyday, max_examples=1500)
    # Not the same examples every time: what it finds, it prints with the way to see it again.
    requests = int(os.environ.get("REQUESTS", 20_000))
    register("fuzz", everyday, max_examples=requests, derandomize=False, print_blob=True)
    hypothesis.settings.load_profile("everyday")


INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
PYTORCH_WARNS_ITSELF = [
    # Forward-mode AD and Inductor compile PyTorch's own formulas with TorchScript when they are
    # first used.
    "ignore:`torch.jit.script",
    # torch.export's decompositions.
    "ignore:`isinstance.treespec, LeafSpec:FutureWarning",
    # torch.func.linearize, whatever it linearizes.
    "ignore:Attempted to insert a get_attr Node with no underlying reference:UserWarning",
    # torch.export.load of PyTorch 2.11.
    "ignore:The given buffer is not writable:UserWarning",
]


def pytest_ignore_collect(collection_path):
    if collection_path.name != "distributed":
        return None
    from torch import distributed

    return not (distributed.is_available() and distributed.is_gloo_available()) or None


def pytest_configure(config):
    os.environ["TESTS_ASKED_FOR"] = config.option.markexpr
    for line in PYTORCH_WARNS_ITSELF:
        config.addinivalue_line("filterwarnings", line)
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        # Elsewhere a library that was not built is a failure, not another backend that is tested.
        config.addinivalue_line(
            "filterwarnings",
            "ignore:CPU tensors use plain PyTorch operations.*was not built"
            ":torch_dmlpool.SlowBackendWarning",
        )
    hands_out = bool(getattr(config.option, "numprocesses", 0)) and IS_FIRST
    if INTERPRETED and not hands_out:
        # numpy computes for the interpreter, and warns where a GPU quietly makes a NaN.
        config.addinivalue_line(
            "filterwarnings", "ignore:(invalid value|overflow) encountered:RuntimeWarning"
        )
        let_loops_count()
        patch_once_per_launch()
        reduce_by_halves()
    if config.getoption("--backend") == "reference":
        import torch_dmlpool.backends
        from torch_dmlpool.backends import reference

        torch_dmlpool.backends.serving = lambda _: reference.BACKEND


def let_loops_count():
    """Triton 3.6's interpreter asks of numpy, for a loop up to a run-time number, what numpy 2.4
    does no more."""
    import triton
    from triton.runtime import interpreter

    def patch(tensor, scope):
        original(tensor, scope)
        # as Triton 3.7 has it
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    if triton.__version__.startswith("3.6."):
        original, interpreter._patch_lang_tensor = interpreter._patch_lang_tensor, patch


def patch_once_per_launch():
    """Triton's interpreter replaces all of triton.language for a launch, and again at every call
    inside: half the time.

    A call inside needs no more than what the launch, or an earlier call, has replaced already.
    """
    from triton import language
    from triton.runtime import interpreter

    @functools.cache
    def languages(function):
        known = language, language.core
        return frozenset(
            one.__name__
            for one in function.__globals__.values()
            if any(one is each for each in known)
        )

    def patch(function):
        wanted = languages(function)
        if patched and wanted <= patched:
            return interpreter._LangPatchScope()
        scope, is_launch = original(function), not patched
        patched.update(wanted)
        if is_launch:
            restore, scope.restore = scope.restore, lambda: (patched.clear(), restore())
        return scope

    patched: set[str] = set()
    original, interpreter._patch_lang = interpreter._patch_lang, patch


def reduce_by_halves():
    """Triton's interpreter reduces a block element by element in Python, and sums in numpy's order.

    Here one half is combined with the other until one element is left, as the threads of a GPU do.
    """
    from triton.runtime import interpreter

    def reduced(self, input):
        several = isinstance(input, tuple)
        parts = [(each.handle.data, each.dtype) for each in (input if several else (input,))]
        if self.axis is None:
            parts = [(data.reshape(-1), dtype) for data, dtype in parts]
        axis = self.axis or 0
        while (length := parts[0][0].shape[axis]) > 1:
            halves = [
                self.to_tensor(data.take(range(first, first + length // 2), axis), dtype)
                for first in (0, length // 2)
                for data, dtype in parts
            ]
            combined = self.combine_fn.fn(*halves)
            combined = combined if isinstance(combined, tuple) else (combined,)
            parts = [(each.handle.data, each.dtype) for each in combined]
        results = tuple(
            self.to_tensor(data if self.keep_dims else data.take(0, axis), dtype)
            for data, dtype in parts
        )
        return results if several else results[0]

    interpreter.ReduceOps.apply_impl = reduced


def pytest_addoption(parser):
    add = parser.addoption
    add("--device", default="cpu", help="device the operators are tested on")
    add("--backend", choices=["reference"], help="the backend for every device; else the fastest")
    add("--sample", type=int, default=1, help="only every Nth case of a test with parameters")


COMPILED_ALONE = {"kernels/test_emulator.py", "kernels/test_every_launch.py"}
COMPILED_ALONE |= {"kernels/test_counts.py", "kernels/test_launch.py"}
COMPILED_ALONE |= {"tests/test_gpu.py", "tests/test_threads.py"}
INTERPRETED_ALONE = {"kernels/test_additions.py", "kernels/test_calls.py"}
MILLIONS = {"test_gradients_of_large_volumes", "test_quotients_beside_a_half[fastest]"}


def reason_to_skip(item):
    """The interpreter is chosen when triton is imported, so a run has either interpreted kernels or
    compiled ones."""
    folder, file = item.path.parts[-2:]
    name = f"{folder}/{file}"
    if not INTERPRETED:
        only = name in INTERPRETED_ALONE
        return "runs kernels on CPU tensors: set TRITON_INTERPRET=1" if only else None
    if folder == "backends" or name in COMPILED_ALONE:
        return "of compiled kernels: TRITON_INTERPRET=1 replaces them"
    many = item.name in MILLIONS
    return "millions of elements: the interpreter would take hours" if many else None


def pytest_collection_modifyitems(config, items):
    for item in items:
        if reason := reason_to_skip(item):
            item.add_marker(pytest.mark.skip(reason=reason))
    every = config.getoption("--sample")
    seen, kept, left_out = Counter(), [], []
    for item in items:
        function = item.nodeid.partition("[")[0]
        (left_out if seen[function] % every else kept).append(item)
        seen[function] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_collection_finish():
    """Modules and tests are a million objects, which every full garbage collection would read
    again. From here on the collector leaves them alone."""
    gc.collect()
    gc.freeze()


def tested(device):
    """What these tests prove something of: the device, its backend, and versions."""
    import platform
    from importlib import metadata

    import torch

    import torch_dmlpool.backends

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch_dmlpool.SlowBackendWarning)
        backend = torch_dmlpool.backends.serving(torch.device(device).type).name
    pooled_by = {
        "cpu": f"compiled C++ ({torch.backends.cpu.get_cpu_capability()})",
        "reference": "PyTorch's own operations",
        "triton": f"Triton's {'interpreter' if INTERPRETED else 'compiled kernels'}",
    }
    found = []
    for name in ("torch", "triton", "onnxruntime"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    found += [f"Python {platform.python_version()}", platform.machine()]
    return f"{device}, {pooled_by[backend]}; {', '.join(found)}"


def pytest_terminal_summary(terminalreporter, config):
    """One line that says what these tests have proved something of."""
    if not config.option.collectonly:
        terminalreporter.write_line(f"tested on {tested(config.getoption('--device'))}")


@pytest.hookimpl(trylast=True)  # pytest collects garbage five times first
def pytest_unconfigure():
    gc.unfreeze()  # Some libraries warn of objects that outlive the interpreter.
    if IS_FIRST:
        shutil.rmtree(os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)


@pytest.fixture(scope="session")
def device(request):
    import torch

    return torch.device(request.config.getoption("--device"))


@pytest.fixture(scope="session")
def python():
    """Python in a process of its own, which must end well unless it is said that it fails. Triton
    is as users have it there."""
    as_usual = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    def run(*arguments, fails=False, environment=as_usual, **rest):
        finished = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            **rest,
        )
        assert bool(finished.returncode) is fails, finished.stdout + finished.stderr
        return finished

    return run


@pytest.fixture(params=["fastest", "reference"])
def either_backend(request, monkeypatch):
    """The test is run with the device's own backend, then with the plain PyTorch backend."""
    import torch_dmlpool.backends
    from torch_dmlpool.backends import reference

    if request.param == "reference":
        monkeypatch.setattr(torch_dmlpool.backends, "serving", lambda _: reference.BACKEND)


@pytest.fixture
def fresh_compiler():
    """No graph of another test is reused or counted."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="session")
def ranks():
    """Four of them, started once."""
    import sharded

    four = sharded.Ranks(4)
    yield four
    four.close()


class Ran(NamedTuple):
    """A launch: its kernel's name without the module, and its constants."""

    kernel: str
    constants: dict[str, Any]


@pytest.fixture
def launched(monkeypatch):
    """What a test launches, in order: on CPU tensors, by the interpreter or, compiled for sm_90, by
    the emulator."""
    import torch_dmlpool.backends
    from torch_dmlpool.backends import triton as backend

    record: list[Ran] = []
    run = backend.launch
    if not INTERPRETED:
        from emulator.launches import launch as run

        monkeypatch.setattr(backend, "runs_ptx", lambda _: True)
        monkeypatch.setattr(torch_dmlpool.backends, "serving", lambda _: backend.BACKEND)

    def recording(how, *arguments):
        record.append(Ran(how.kernel.split(".")[1], dict(how.constants)))
        run(how, *arguments)

    monkeypatch.setattr(backend, "launch", recording)
    return record


@pytest.fixture
def large(monkeypatch):
    """Launches as of large tensors: in 64 bits, as from WIDE_FROM elements on, or rows to a lane as
    of LANES_ENOUGH."""
    from torch_dmlpool.kernels import launch, launches

    def are_enough(name):
        if name:
            monkeypatch.setattr(launch, name, 0)
        for each in vars(launches).values():
            getattr(each, "cache_clear", int)()

    yield are_enough
    are_enough(None)
