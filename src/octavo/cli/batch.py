"""`octavo batch`: the requests in a file answered into another, as `octavo serve` would answer them."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli import engine_options as flags
from octavo.cli.options import texts
from octavo.cli.serve import DEFAULT_PARALLEL, Parallel, ReasoningParser, ServedModelName, ToolParser, served_name
from octavo.errors import InvalidRequest

if TYPE_CHECKING:
    from octavo.engine.serving import ServingEngine
    from octavo.server.batch.counts import BatchCounts

_MIN_WINDOW = 64  # lines asked at once, so that short ones fill the place of those that have ended
_ANY_QUEUE = 1 << 20  # the window is the limit


@flags.with_engine_flags()
def batch(
    *,
    requests: Annotated[Path, typer.Argument(help="File of requests, one JSON object a line.", metavar="IN.jsonl")],
    answers: Annotated[Path, typer.Argument(help="File that the answers are appended to.", metavar="OUT.jsonl")],
    model: flags.Model = None,
    parallel: Parallel = DEFAULT_PARALLEL,
    engine: flags.EngineFlags,
    force: flags.Force = False,
    served_model_name: ServedModelName = None,
    tool_parser: ToolParser = "auto",
    reasoning_parser: ReasoningParser = "auto",
) -> None:
    """Answer a file of requests. Started again after it was ended, it goes on where it was."""
    from octavo.server.settings import ServerSettings

    settings = ServerSettings(
        model_names=texts(served_model_name, "--served-model-name"),
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
    )
    if parallel < 1:
        raise InvalidRequest(f"--parallel is {parallel}; it must be at least 1")
    config = engine.config(parallel, force=force)
    total = _num_lines(requests)
    if answers.exists() and requests.samefile(answers):
        raise InvalidRequest(f"{str(answers)!r} is given for requests and for answers; name two files")

    from octavo.server.batch.answer_file import answer_file
    from octavo.server.batch.counts import BatchCounts
    from octavo.server.batch.lines import URLS, read_lines

    with answer_file(answers) as file:
        with requests.open("rb") as source:
            if all(line.key in file.answered for line in read_lines(source, URLS)):  # no model is needed
                _report(BatchCounts(kept=total), answers)
                return
        from octavo.engine.async_client import LOAD_ENGINE, ServingLimits, ThreadEngine
        from octavo.server.batch.run import run_batch
        from octavo.store import TerminalProgress, resolve_model

        path = resolve_model(model, progress=TerminalProgress())
        name = settings.model_names[0] if settings.model_names else served_name(model, path)

        async def run() -> BatchCounts:
            limits = ServingLimits(max_queue=_ANY_QUEUE)
            async with _started(ThreadEngine(LOAD_ENGINE, (path, config, name), limits)) as ready:
                with requests.open("rb") as source, _bar(total) as on_line:
                    return await run_batch(
                        ready,
                        settings,
                        read_lines(source, URLS),
                        file,
                        window=max(_MIN_WINDOW, 8 * parallel),
                        on_line=on_line,
                    )

        with _no_access_log():
            counts = asyncio.run(run())
    _report(counts, answers)


def _report(counts: BatchCounts, answers: Path) -> None:
    kept = f", {counts.kept} were there already" if counts.kept else ""
    print(f"octavo: {counts.answered} answered, {counts.failed} failed{kept}: {answers}", file=sys.stderr)


def _num_lines(path: Path) -> int:
    """Lines that are not blank. Raises `InvalidRequest` if there is no such file."""
    try:
        with path.open("rb") as file:
            return sum(not line.isspace() for line in file)
    except OSError as error:
        raise InvalidRequest(f"{str(path)!r} cannot be read ({error.strerror}); name a file of requests") from error


@asynccontextmanager
async def _started(engine: ServingEngine) -> AsyncIterator[ServingEngine]:
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


@contextmanager
def _no_access_log() -> Iterator[None]:
    """A line per request is for servers."""
    log = logging.getLogger("octavo.access")
    before = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[BatchCounts], None]]:
    """Shows lines done of `total` on standard error, if that is a terminal."""
    from octavo.store.progress import draws_bars

    if not draws_bars():
        yield lambda counts: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("answering", total=total)

        def show(counts: BatchCounts) -> None:
            failed = f", {counts.failed} failed" if counts.failed else ""
            progress.update(task, completed=counts.total, description=f"answering{failed}")

        yield show
