"""Requests beside the load: what is told of an endpoint that hangs."""

from __future__ import annotations

import asyncio
import socket

import pytest

from octavo.bench.load_connection import Address
from octavo.bench.load_endpoint import EndpointControl
from octavo.errors import CapacityError


def test_an_endpoint_that_takes_a_request_and_never_answers_is_told_by_the_kind_of_failure() -> None:
    async def ask(url: str) -> None:
        async with EndpointControl(Address.of(url), timeout_s=0.3) as control:
            await control.routes()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(CapacityError, match=r"stopped answering: ReadTimeout$"):
            asyncio.run(ask(url))
