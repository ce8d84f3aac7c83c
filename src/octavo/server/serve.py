"""Runs the server from an open socket to its end: serves while loading, drains on a signal, ends on a second."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from octavo.engine.serving import ModelInfo, ServingEngine
from octavo.server.app import create_app
from octavo.server.connection import Connection
from octavo.server.listener import is_loopback, url_of
from octavo.server.settings import ServerSettings
from octavo.server.tracing.call import CallTrace

# How long the end of streams may take to reach their readers, once the engine has drained.
FLUSH_TIMEOUT_S = 5
# How long an engine may take past the deadline of a drain, before it is stopped without having said so.
DRAIN_GRACE_S = 10.0
FAILURE_CHECK_S = 0.5
SPARE_FILES = 256  # for what a process has open beside its connections
KEEP_ALIVE_S = 75  # of an idle connection; longer than the 60 s after which proxies let theirs go
_log = logging.getLogger("octavo.server")


def serve(engine: ServingEngine, settings: ServerSettings, listener: socket.socket) -> int:
    """Serve on `listener` until a signal; returns the process's exit status.

    That is 0 after a drain, 128 + the signal's number if it came while the model was loading, and 1 after a failure of
    the engine if the server is to end with it. A second signal ends the process here, with 128 + its number. Raises
    what `engine.start` raises.
    """
    if not settings.api_keys and not is_loopback(listener):
        _log.warning("anyone who can reach %s can use it: no --api-key is set", url_of(listener, _tls(settings)))
    _allow_open_files(settings.max_connections + SPARE_FILES)
    with _tracing(settings.traces_url) as write_trace:
        config = _uvicorn_config(engine, settings, write_trace)
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            return runner.run(_serve(engine, settings, listener, _Server(config)))


@contextmanager
def _tracing(url: str | None) -> Iterator[Callable[[CallTrace], None] | None]:
    """What is given every call that has ended; None to trace nothing."""
    if url is None:
        yield None
        return
    from octavo.server.tracing.spans import span_writer

    with span_writer(url) as writer:
        yield writer.write


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are ours."""
        yield


class _Signals:
    """The first SIGINT or SIGTERM is an event; the second ends the process at once."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.first: asyncio.Future[int] = self._loop.create_future()

    @contextmanager
    def caught(self) -> Generator[None]:
        """While open; the handlers before are put back at its end."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.first.done():
            sys.stderr.flush()
            os._exit(128 + number)
        self._loop.call_soon_threadsafe(self._note, number)

    def _note(self, number: int) -> None:
        if not self.first.done():
            self.first.set_result(number)


async def _serve(
    engine: ServingEngine, settings: ServerSettings, listener: socket.socket, server: uvicorn.Server
) -> int:
    url = url_of(listener, _tls(settings))
    signals = _Signals()
    with signals.caught():
        serving = asyncio.create_task(server.serve([listener]))
        loading = asyncio.create_task(engine.start())
        _log.info("listening on %s, loading the model", url)
        try:
            await asyncio.wait((serving, loading, signals.first), return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                return 128 + signals.first.result() if signals.first.done() else 1
            loading.result()
            _give_way()
            _log.info("ready: %s at %s/v1", _describe(engine.info, settings), url)
            ends: list[asyncio.Future[Any]] = [serving, signals.first]
            if settings.exit_on_failure:
                ends.append(asyncio.create_task(_failure(engine)))
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not signals.first.done():
                return 1
            await _drain(engine, settings.drain_timeout_s)
        finally:
            loading.cancel()
            await engine.stop()
            server.should_exit = True
            await serving
        _log.info("drained")  # behind the lines of the last requests
        return 0


def _give_way() -> None:
    """Where the kernel can, never push the engine off its core: each step's message wakes this thread, which would
    otherwise often run at once where the sender was about to begin the next step. Its share of the time stays.
    """
    if sys.platform == "linux":
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        except OSError as error:  # a sandbox may forbid it; then it only runs as everybody does
            _log.debug("the web process keeps its scheduling policy: %s", error)


async def _failure(engine: ServingEngine) -> None:
    """Returns once the engine has failed, after its requests have been told."""
    while engine.status.state != "failed":
        await asyncio.sleep(FAILURE_CHECK_S)
    _log.error("the engine has failed, so the server ends: %s", engine.status.reason)


async def _drain(engine: ServingEngine, deadline_s: float) -> None:
    _log.info("draining: requests that run have %g seconds to end; a second signal ends at once", deadline_s)
    try:
        async with asyncio.timeout(deadline_s + DRAIN_GRACE_S):
            await engine.drain(deadline_s)
    except TimeoutError:
        _log.error("the engine has not drained %g seconds after the deadline; it is stopped", DRAIN_GRACE_S)


def _allow_open_files(num_files: int) -> None:
    """Raise this process's own limit, often 1,024, as far as the system lets it."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = num_files if hard == resource.RLIM_INFINITY else min(num_files, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _describe(info: ModelInfo, settings: ServerSettings) -> str:
    names = ", ".join(settings.model_names or (info.name,))
    return (
        f"{names} ({info.family}, {info.dtype} on {info.instructions}, {info.weights} weights, {info.storage} storage, "
        f"{info.kv_dtype} K/V, context {info.max_context}, {'exact' if info.exact else 'not exact'})"
    )


def _uvicorn_config(
    engine: ServingEngine, settings: ServerSettings, write_trace: Callable[[CallTrace], None] | None
) -> uvicorn.Config:
    bounded = type("BoundedConnection", (Connection,), {"max_connections": settings.max_connections})
    return uvicorn.Config(
        create_app(engine, settings, write_trace),
        http=bounded,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a client's address is only logged; whom to believe about it would be a flag of its own
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FLUSH_TIMEOUT_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )


def _tls(settings: ServerSettings) -> bool:
    return settings.tls_cert is not None
