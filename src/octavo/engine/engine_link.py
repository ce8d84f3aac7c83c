"""A web process's end of the connection to its engine, which runs in a process or in a thread. Imports no torch.

Carries commands and messages, starts the engine and buries it; knows no request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from octavo.engine.engine_loop import EngineLoop
from octavo.engine.engine_process import make_engine
from octavo.engine.fault_text import cause_of
from octavo.engine.wire import (
    Command,
    Fatal,
    FrameReader,
    Launch,
    LoadFailed,
    Message,
    Stop,
    frame,
)
from octavo.errors import OctavoError

_BUFFER_BYTES = 1 << 20
_BURIAL_S = 5.0  # how long a process that has closed its end may take to be gone


class LinkListener(Protocol):
    """Who is told what the engine says, on the event loop's thread."""

    def on_message(self, message: Message) -> None: ...

    def on_lost(self, cause: str) -> None:
        """The engine is gone, unasked; nothing comes after this. `cause` is one line."""
        ...


class EngineLink(Protocol):
    """Used on one event loop's thread."""

    async def open(self, launch: Launch, listener: LinkListener) -> None:
        """Start the engine; what it says goes to `listener`. A process may not outlive the thread that opened it."""
        ...

    def send(self, command: Command) -> None:
        """Never blocks; what is sent to an engine that is gone is dropped."""
        ...

    async def close(self, grace_s: float) -> None:
        """End the engine, by force if it takes longer than `grace_s`. Idempotent."""
        ...


class ProcessLink(asyncio.BufferedProtocol):
    """The engine in a child process that ends when this one does."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._listener: LinkListener | None = None
        self._frames = FrameReader()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._burial: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, dead or alive; None before there is one."""
        return None if self._process is None else self._process.pid

    async def open(self, launch: Launch, listener: LinkListener) -> None:
        """See EngineLink."""
        self._listener = listener
        ours, theirs = socket.socketpair()
        # The child inherits the hold: signals, which a terminal sends to both, wait there until it ignores them.
        with theirs, _signals_held():
            self._process = _spawn(theirs)
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_unix_connection(lambda: self, sock=ours)
        self._transport = transport
        self._write(launch)

    def send(self, command: Command) -> None:
        """See EngineLink."""
        self._write(command)

    async def close(self, grace_s: float) -> None:
        """See EngineLink."""
        self._listener = None
        if self._process is None:
            return
        self._write(Stop())
        if self._transport is not None:
            self._transport.close()  # the child ends then, even in the middle of a step
        await self._bury(grace_s)

    def _write(self, value: Command | Launch) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(value))

    async def _bury(self, grace_s: float) -> int:
        """Wait for the process's end, or bring it about; its exit status."""
        process = self._process
        assert process is not None, "a process was started"
        try:
            return await asyncio.to_thread(process.wait, grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return await asyncio.to_thread(process.wait)

    # -- asyncio's side --------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        with memoryview(self._buffer) as view, view[:nbytes] as data:
            messages = self._frames.feed(data)
        for message in messages:
            if self._listener is not None:
                self._listener.on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._listener is not None:
            self._burial = asyncio.get_running_loop().create_task(self._report_end())

    async def _report_end(self) -> None:
        status = await self._bury(_BURIAL_S)
        if self._listener is not None:
            self._listener.on_lost(f"the engine's process {_ending(status)}")


class ThreadLink:
    """The engine in a thread of this process: for tests, and to compare."""

    def __init__(self) -> None:
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-engine")
        self._listener: LinkListener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life: Future[None] | None = None

    async def open(self, launch: Launch, listener: LinkListener) -> None:
        """See EngineLink."""
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._life = self._executor.submit(self._live, launch)
        self._life.add_done_callback(self._report_end)

    def send(self, command: Command) -> None:
        """See EngineLink."""
        self._commands.put(command)

    async def close(self, grace_s: float) -> None:
        """See EngineLink. A thread cannot be ended by force: it is left alone after `grace_s`."""
        self._listener = None
        self._commands.put(Stop())
        if self._life is not None:
            await asyncio.to_thread(wait, [self._life], grace_s)
        self._executor.shutdown(wait=False)

    def _live(self, launch: Launch) -> None:
        port = _QueuePort(self._commands, self._tell)
        try:
            parts = make_engine(launch, port.send)
        except OctavoError as error:
            port.send(LoadFailed(error))
            return
        except BaseException as error:
            port.send(Fatal(f"the model could not be loaded: {cause_of(error)}"))
            raise
        port.send(parts.loaded())
        EngineLoop(parts.core, port).run()

    def _tell(self, message: Message) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed over our head
                self._loop.call_soon_threadsafe(self._deliver, message)

    def _deliver(self, message: Message) -> None:
        if self._listener is not None:
            self._listener.on_message(message)

    def _report_end(self, life: Future[None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._lost)

    def _lost(self) -> None:
        if self._listener is not None:
            self._listener.on_lost("the engine's thread ended")


class _QueuePort:
    """A thread's Port."""

    def __init__(self, commands: queue.SimpleQueue[Command], tell: Callable[[Message], None]) -> None:
        self._commands = commands
        self.send = tell

    def receive(self, wait: bool) -> Sequence[Command]:
        """See Port."""
        found = [self._commands.get()] if wait else []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._commands.get_nowait())
        return found


def log_level() -> int:
    """What this process logs of Octavo, which its engine needs to know."""
    return logging.getLogger("octavo").getEffectiveLevel()


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Standard output belongs to this process: the child's goes where errors go."""
    descriptor = theirs.fileno()
    command = [sys.executable, "-P", "-m", "octavo.engine.engine_process", str(descriptor), str(os.getpid())]
    stderr = subprocess.DEVNULL if sys.stderr is None else None
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if stderr is not None else 2,
        stderr=stderr,
        pass_fds=(descriptor,),
    )


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ending(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = "; the system may have run out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
