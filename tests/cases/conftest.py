"""Fixtures of the engine's and the command line's tests, for the replayed reports too, and a server for clients."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.cases.scripted_model import save_scripted
from tests.cases.served import Served
from tests.cli.conftest import octavo
from tests.engine.conftest import directory, load
from tests.server.server_process import DEADLINE_S, octavo_serve

__all__ = ["directory", "load", "octavo"]


@pytest.fixture(scope="session")
def scripted_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("scripted") / "scripted"
    save_scripted(path)
    with octavo_serve("-m", path, "--parallel", 4) as server:
        server.wait_until_ready()
        limits = httpx.Limits(max_connections=None)
        with httpx.Client(base_url=server.url, timeout=DEADLINE_S, trust_env=False, limits=limits) as client:
            yield Served(server, client)


@pytest.fixture
def served(scripted_server: Served) -> Iterator[Served]:
    """Four requests at a time over the scripted model; whatever a test does, the server must be idle soon after."""
    yield scripted_server
    scripted_server.until_idle()
    assert "Traceback" not in scripted_server.server.log
