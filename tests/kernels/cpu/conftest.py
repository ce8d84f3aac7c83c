"""What these tests share: they skip where no kernels can be compiled, and leave the pool with one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.kernels.cpu import library


@pytest.fixture(autouse=True)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    if "test_cpu_build" in request.node.nodeid:
        yield
        return
    if library.load().functions is None:
        pytest.skip(f"no compiled kernels: {library.load().reason}")
    yield
    library.set_threads(1)
