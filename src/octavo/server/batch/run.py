"""Runs a batch: many lines at once through the server's application, their answers written in the lines' order."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable

from starlette.types import ASGIApp

from octavo.engine.serving import ServingEngine
from octavo.errors import EngineFault
from octavo.server.app import create_app
from octavo.server.batch.answer_file import AnswerFile
from octavo.server.batch.counts import BatchCounts
from octavo.server.batch.lines import BatchLine, answer_line, error_line
from octavo.server.batch.local_call import post
from octavo.server.settings import ServerSettings


async def run_batch(
    engine: ServingEngine,
    settings: ServerSettings,
    lines: Iterable[BatchLine],
    answers: AnswerFile,
    *,
    window: int,
    on_line: Callable[[BatchCounts], None] = lambda counts: None,
) -> BatchCounts:
    """Answer each of `lines` that `answers` does not have. At most `window` are asked, or wait to be written, at once.

    `engine` is ready, and takes that many. Raises `EngineFault` if it fails; what was written by then stays.
    """
    app = create_app(engine, settings)
    counts = BatchCounts()
    pending: deque[asyncio.Task[tuple[bytes, bool]]] = deque()

    async def write_first() -> None:
        written, good = await pending[0]
        pending.popleft()
        answers.append(written)
        counts.answered += good
        counts.failed += not good
        on_line(counts)

    try:
        for line in lines:
            if line.key in answers.answered:
                counts.kept += 1
                on_line(counts)
                continue
            pending.append(asyncio.create_task(_answer(app, engine, line)))
            if len(pending) == window:
                await write_first()
        while pending:
            await write_first()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    return counts


async def _answer(app: ASGIApp, engine: ServingEngine, line: BatchLine) -> tuple[bytes, bool]:
    """The line to write, and whether it has what was asked for."""
    if line.error is not None:
        return error_line(line), False
    answer = await post(app, line.url, line.body)
    status = engine.status
    if answer.status != 200 and status.state != "ready":  # no fault of the line: it is to be asked again
        raise EngineFault(
            f"the engine has failed ({status.reason or status.state}); start again, which goes on from here"
        )
    return answer_line(line, answer.status, answer.request_id, json.loads(answer.body)), answer.status == 200
