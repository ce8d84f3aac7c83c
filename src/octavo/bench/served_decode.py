"""Aggregate decode speed of a server of ours: clients at once, timed from their first tokens on. Starts nothing."""

from __future__ import annotations

import asyncio
from typing import Any

from octavo.bench.kernel_loads import DecodeLoad
from octavo.bench.load_cell import CellRun, run_cell
from octavo.bench.load_connection import Address
from octavo.bench.load_endpoint import Endpoint, EndpointControl
from octavo.bench.load_mix import LoadRequest, Plan, make_requests
from octavo.bench.load_prompts import PromptSource, prompt_source
from octavo.errors import EngineFault


class ServedDecode:
    """Asks one server. Prompts of a load are the same each time, so that their K/V is computed once."""

    def __init__(self, url: str, timeout_s: float = 600) -> None:
        """Raises `CapacityError` or `InvalidRequest` if it cannot be measured."""
        self._address, self._timeout_s = Address.of(url), timeout_s
        self._endpoint, self._source = asyncio.run(self._find())

    def decode(self, load: DecodeLoad, new_tokens: int) -> float:
        """Tokens/s of a client from its first chunk to its last, summed over the clients: one for each sequence.

        Chunks that carry several tokens are taken to carry as many each. Raises `EngineFault` if an answer fails, has
        another length or comes in one chunk.
        """
        plans = [Plan(length, new_tokens) for length in load.lengths]
        requests = make_requests(plans, self._endpoint, self._source, load.name)
        done = asyncio.run(self._run(requests))
        speed = 0.0
        for each in done.outcomes:
            if each.error is not None or each.completion_tokens != new_tokens:
                raise EngineFault(f"{each.error or f'{each.completion_tokens} tokens for {new_tokens}'}")
            chunks = len(each.arrivals_s)
            if chunks < 2:
                raise EngineFault("all tokens came at once, so there is nothing to time; ask for more")
            speed += new_tokens * (chunks - 1) / chunks / (each.arrivals_s[-1] - each.arrivals_s[0])
        return speed

    def routes(self) -> dict[str, int]:
        """How often attention took which route."""
        found: list[dict[str, Any]] = asyncio.run(self._routes())["routes"]
        counts: dict[str, int] = {}
        for each in found:
            counts[each["route"]] = counts.get(each["route"], 0) + each["count"]
        return counts

    def _control(self) -> EndpointControl:
        return EndpointControl(self._address, None, self._timeout_s)

    async def _find(self) -> tuple[Endpoint, PromptSource]:
        async with self._control() as control:
            endpoint = await control.find(None, "completions")
            return endpoint, await prompt_source(control, endpoint, None, ())

    async def _run(self, requests: list[LoadRequest]) -> CellRun:
        async with self._control() as control:
            return await run_cell(control.connection, requests, len(requests))

    async def _routes(self) -> dict[str, Any]:
        async with self._control() as control:
            return await control.routes()
