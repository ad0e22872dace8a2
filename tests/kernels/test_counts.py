"""No size of an image or of a window makes another kernel: what would be compiled is counted."""

import pytest

from benchmarks import gpu_kernels, gpu_requests

EVERY = 29
FAMILIES = {family.name: family for family in gpu_requests.families(EVERY)}


@pytest.mark.parametrize("name", FAMILIES)
def test_few_kernels_serve_all_sizes(name: str) -> None:
    """The limits of ``make gpu-kernels``, for each operator and data type; here of some sizes."""
    family = FAMILIES[name]
    assert gpu_kernels.kernels_of(family.requests) <= family.most


def test_kernels_are_told_apart_by_what_is_compiled() -> None:
    """Another batch makes no kernel; another data type, window or layout does."""
    shapes = (2, 64, 56, 56), (3, 64, 56, 56)
    given = [
        gpu_requests.sliding("max", shape, gpu_requests.F32, False, 3, 2, 1) for shape in shapes
    ]
    assert gpu_kernels.kernels_of(given) == 1
    given.append(gpu_requests.sliding("max", shapes[0], gpu_requests.F16, False, 3, 2, 1))
    given.append(gpu_requests.sliding("max", shapes[0], gpu_requests.F32, False, 3, 1, 1))
    given.append(gpu_requests.sliding("max", shapes[0], gpu_requests.F32, True, 3, 2, 1))
    assert gpu_kernels.kernels_of(given) == 4
