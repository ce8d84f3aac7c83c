"""Runs one cell: a number of clients that send request after request until all are answered. Judges nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from octavo.bench.load_connection import Exchange, LoadConnection
from octavo.bench.load_mix import LoadRequest


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request. `started_s` and `ended_s` count from the beginning of the cell, `arrivals_s` (one
    per chunk with output) from the sending of the request. Token counts are the endpoint's usage, None if it gave
    none; `chunk_tokens` is how many tokens each chunk said it carried, 0 where it did not say.
    """

    result: Literal["completed", "cancelled", "failed"]
    asked_prompt_tokens: int
    max_tokens: int
    started_s: float
    ended_s: float
    arrivals_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    prompt_tokens: int | None
    completion_tokens: int | None
    finish_reason: str | None
    error: str | None = None
    unreachable: bool = False

    def as_object(self) -> dict[str, object]:
        content = asdict(self)
        content["arrivals_s"] = [round(each, 6) for each in self.arrivals_s]
        content["chunk_tokens"] = list(self.chunk_tokens) if any(self.chunk_tokens) else None
        return content


@dataclass(frozen=True, slots=True)
class CellRun:
    """`wall_s` from the first request to the last answer; `client_cpu_s` is this process's processor time in it."""

    outcomes: tuple[Outcome, ...]
    wall_s: float
    client_cpu_s: float


async def run_cell(
    connect: Callable[[], LoadConnection],
    requests: Sequence[LoadRequest],
    concurrency: int,
    on_answer: Callable[[], None] = lambda: None,
) -> CellRun:
    """Closed loop: `concurrency` clients, each with an open connection of its own, share the requests in their order.

    No request's failure ends the cell.
    """
    outcomes: list[Outcome] = []
    waiting: Iterator[LoadRequest] = iter(requests)
    connections = [connect() for _ in range(min(concurrency, len(requests)))]
    await asyncio.gather(*(connection.prepare() for connection in connections))
    cpu, began = time.process_time(), time.perf_counter()

    async def client(connection: LoadConnection) -> None:
        try:
            for request in waiting:
                exchange = await connection.send(request.path, request.body, request.plan.cancel_after)
                outcomes.append(_outcome(request, exchange, began))
                on_answer()
        finally:
            connection.close()

    async with asyncio.TaskGroup() as clients:
        for connection in connections:
            clients.create_task(client(connection))
    return CellRun(tuple(outcomes), time.perf_counter() - began, time.process_time() - cpu)


def _outcome(request: LoadRequest, exchange: Exchange, began: float) -> Outcome:
    answer = exchange.answer
    failed = exchange.error is not None
    return Outcome(
        result="failed" if failed else "cancelled" if exchange.cancelled else "completed",
        asked_prompt_tokens=request.plan.prompt_tokens,
        max_tokens=request.plan.max_tokens,
        started_s=exchange.started - began,
        ended_s=exchange.ended - began,
        arrivals_s=tuple(each - exchange.started for each in answer.arrivals),
        chunk_tokens=tuple(answer.chunk_tokens),
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        finish_reason=answer.finish_reason,
        error=exchange.error,
        unreachable=exchange.unreachable,
    )
