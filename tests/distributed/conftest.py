"""Four ranks, started once for all tests of this folder."""

from collections.abc import Iterator

import pytest

torch_distributed = pytest.importorskip("torch.distributed")
if not torch_distributed.is_available() or not torch_distributed.is_gloo_available():
    pytest.skip("needs torch.distributed with gloo", allow_module_level=True)

from sharded import Ranks  # noqa: E402


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    four = Ranks(4)
    yield four
    four.close()
