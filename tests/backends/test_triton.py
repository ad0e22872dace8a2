"""What the Triton backend asks of Triton beyond its documented interface; a new Triton that differs
fails here."""

import os
from collections.abc import Iterator

import pytest
import torch

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="compiles kernels"
)

from torch_dmlpool.kernels.launches import Request, max_launches  # noqa: E402

from benchmarks import gpu_prepare, gpu_requests, overhead  # noqa: E402
from torch_dmlpool.backends import triton as backend  # noqa: E402
from torch_dmlpool.window import Window  # noqa: E402


@pytest.fixture
def launched() -> Iterator[list[tuple[object, ...]]]:
    """What Triton's launcher would hand to the driver."""
    record: list[tuple[object, ...]] = []

    class Driver(overhead.Driver):
        @staticmethod
        def launcher_cls(*_: object) -> object:
            return lambda *arguments: record.append(arguments)

    try:
        before = triton.runtime.driver.active
        before.get_current_device()
    except RuntimeError:  # no GPU
        before = None
    triton.runtime.driver.set_active(Driver())
    backend._compiled.cache_clear()
    yield record
    backend._compiled.cache_clear()
    if before is not None:
        triton.runtime.driver.set_active(before)


def a_launch() -> object:
    window = Window.directml(2, 2, 2)
    return max_launches(
        Request(window, (1, 1, 8, 16), (128, 128, 16, 1), (4, 8), 4, True, False), False
    )[0]


def test_a_compiled_kernel_takes_tensors_sizes_and_constants_by_position(
    launched: list[tuple[object, ...]],
) -> None:
    """``JITFunction.warmup`` and ``arg_names``, ``CompiledKernel.__getitem__``: a launch by hand is
    Triton's own."""
    input = torch.zeros(1, 1, 8, 16)
    how = a_launch()
    for _ in range(2):
        backend._run(how, (input, input, input), 0)
    kernel = backend.kernel_named(*how.kernel.split("."))
    kernel[(how.programs,)](
        input, input, input, *how.sizes, **dict(how.constants), enable_fp_fusion=True
    )
    by_hand, again, by_triton = launched
    assert backend._compiled.cache_info().misses == 1
    assert by_hand[:3] == by_triton[:3] == (how.programs, 1, 1)
    assert by_hand[9:] == again[9:] == by_triton[9:]
    assert by_hand[4] == by_triton[4]  # the same machine code


@pytest.mark.usefixtures("launched")
def test_a_stand_in_for_a_tensor_says_whether_it_is_aligned() -> None:
    """Triton compiles from a data type and an address: aligned pointers are read 16 bytes at a
    time, others are not."""
    how = a_launch()
    for aligned in (True, False):
        kinds = ((torch.float32, aligned),) * 3
        compiled, _ = backend._compiled(how.kernel, how.constants, how.size_types, 0, kinds)
        assert ("ld.global.v4" in compiled.asm["ptx"]) is aligned


@pytest.mark.usefixtures("launched")
def test_no_size_is_compiled_in() -> None:
    """Triton specializes on 1 and on multiples of 16 among the numbers of a tuple: what replaces a
    size is neither, so that one kernel fits every size."""
    how = a_launch()
    compiled, _ = backend._compiled(
        how.kernel, how.constants, how.size_types, 0, ((torch.float32, True),) * 3
    )
    source = compiled.src
    names = list(source.signature)
    given = [source.signature[names[3 + i]] for i in range(len(how.sizes))]
    assert [tuple(group) for group in given] == list(how.size_types)
    assert {path[0] for path, attributes in source.attrs.items() if attributes} == {0, 1, 2}


IMAGES = [(h, w) for h in (256, 400, 1024) for w in (272, 512, 784)]
ASKED = {
    "sliding": lambda *given: gpu_requests.sliding(*given, 3, 2, 1),
    "side by side": lambda *given: gpu_requests.sliding(*given, 2),
    "overlapping": lambda *given: gpu_requests.sliding(*given, 3, 1, 1),
    "long": lambda *given: gpu_requests.sliding(*given, 31, 1, 15),
    "adaptive": lambda *given: gpu_requests.adaptive(*given, 7, 7),
    "adaptive to one": lambda *given: gpu_requests.adaptive(*given, 1, 1),
    "whole": lambda operator, shape, dtype, last: gpu_requests.whole(operator, shape, dtype, last),
}


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
def test_an_image_of_another_size_compiles_nothing(
    asked: str, last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first image, but a longer window's tile; sizes that 16 bytes divide, as those of
    networks mostly are."""
    made: list[str] = []

    def compile(name: str, *_: object) -> tuple[object, tuple[()]]:
        made.append(name)
        return gpu_prepare._NotRun(), ()

    monkeypatch.setattr(backend, "_compile", compile)
    monkeypatch.setattr(backend, "launch", lambda how, *given: backend._run(how, given, 0))
    adaptive = asked.startswith("adaptive")
    for operator in gpu_requests.OPERATORS:
        if operator.startswith("adaptive") is not adaptive or operator == "quantized avg":
            continue
        backend._compiled.cache_clear()
        counts = []
        for image in IMAGES:
            request = ASKED[asked](operator, (8, 64, *image), torch.float16, last)
            request.prepared()[1]()
            counts.append(len(made))
        assert counts[0] > 0
        # Longer windows and bins may take another of four tiles along each axis, as may the
        # results of slices.
        most = {"adaptive": 4, "adaptive to one": 3, "whole": 3}.get(asked, counts[0])
        assert counts[-1] <= most, operator
        made.clear()
    backend._compiled.cache_clear()
