"""The engine's own process: connects it to its parent, loads what it is told to, and runs the loop.

It never outlives its parent, writes nothing to standard output, and leaves signals to the parent. Owns no policy.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import NoReturn

from octavo.engine.engine_loop import EngineLoop
from octavo.engine.engine_parts import EngineParts
from octavo.engine.fault_text import cause_of
from octavo.engine.garbage import keep_what_is_there
from octavo.engine.wire import (
    Command,
    Fatal,
    FrameReader,
    Launch,
    LoadFailed,
    Loading,
    Logged,
    Message,
    frame,
)
from octavo.errors import OctavoError

RECEIVE_BYTES = 1 << 18
# What may lie unread by a parent that has stopped reading, before the engine waits for it.
BACKLOG_BYTES = 64 << 20
LAST_WORDS_S = 5.0  # how long the end of a process waits for its messages to be read
PROGRESS_INTERVAL_S = 0.1
_PR_SET_PDEATHSIG = 1


class SocketPort:
    """An engine's end of a socket. What the parent does not read at once is kept here, and sent between steps.

    The loop's thread receives; any thread may send.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._frames = FrameReader()
        self._backlog = bytearray()
        self._sending = threading.RLock()  # a log line may come from any thread, also while it sends

    def receive(self, wait: bool) -> Sequence[Command]:
        """See Port."""
        while True:
            self._flush()
            try:
                data = self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                if not wait:
                    return ()
                self._poll(select.POLLIN | (select.POLLOUT if self._backlog else 0))
                continue
            except ConnectionError as error:
                raise EOFError from error
            if not data:
                raise EOFError
            if (values := self._frames.feed(data)) or not wait:
                return values

    def send(self, message: Message) -> None:
        """See Port."""
        data = frame(message)
        with self._sending:
            if not self._backlog:
                data = data[self._send(data) :]
            self._backlog += data
            while len(self._backlog) > BACKLOG_BYTES:
                self._poll(select.POLLOUT)
                self._flush()

    def finish(self) -> None:
        """Wait, but not for ever, until all that was sent has left."""
        deadline = time.monotonic() + LAST_WORDS_S
        while self._backlog and (left := deadline - time.monotonic()) > 0:
            self._poll(select.POLLOUT, left)
            self._flush()

    def wait_for_hang_up(self) -> None:
        """Returns when the other side has closed, or has died."""
        poll = select.poll()
        poll.register(self._socket, 0)
        poll.poll()

    def _flush(self) -> None:
        if self._backlog:
            with self._sending:
                del self._backlog[: self._send(self._backlog)]

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except ConnectionError as error:
            raise EOFError from error

    def _poll(self, events: int, timeout_s: float | None = None) -> None:
        poll = select.poll()
        poll.register(self._socket, events)
        poll.poll(None if timeout_s is None else timeout_s * 1000)


class SentLog(logging.Handler):
    """Has the parent log what is logged here, so that all lines look the same and none is torn."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info is not None and record.exc_info[1] is not None:
            text += f": {cause_of(record.exc_info[1])}"
        self._send(Logged(record.name, record.levelno, text))


def main() -> NoReturn:
    """The process's whole life: `python -m octavo.engine.engine_process FD PARENT_PID`."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    _die_with(parent)
    port = SocketPort(socket.socket(fileno=descriptor))
    threading.Thread(target=_end_at_hang_up, args=(port,), daemon=True).start()
    sys.excepthook = _report_crash
    status = _serve(port)
    port.finish()
    _end(status)


def _serve(port: SocketPort) -> int:
    """Load and run; the exit status. What it raises has been told to the parent."""
    try:
        [launch] = port.receive(wait=True)
    except EOFError:
        return 0
    assert isinstance(launch, Launch), "the first command launches the engine"
    try:
        parts = _load(launch, port)
    except EOFError:
        return 0
    except OctavoError as error:
        port.send(LoadFailed(error))
        return error.exit_status
    except BaseException as error:
        port.send(Fatal(f"the model could not be loaded: {cause_of(error)}"))
        port.finish()
        raise
    keep_what_is_there()
    loop = EngineLoop(parts.core, port)
    port.send(parts.loaded())
    try:
        loop.run()
    finally:
        port.finish()
    return 0


def _load(launch: Launch, port: SocketPort) -> EngineParts:
    sys.path[:] = launch.sys_path
    log = logging.getLogger("octavo")
    log.setLevel(launch.log_level)
    log.propagate = False
    log.addHandler(SentLog(port.send))
    return make_engine(launch, port.send)


def make_engine(launch: Launch, send: Callable[[Message], None]) -> EngineParts:
    """Call the factory that `launch` names, telling its progress."""
    module, _, function = launch.factory.partition(":")
    factory = getattr(importlib.import_module(module), function)
    told = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal told
        if (now := time.monotonic()) - told >= PROGRESS_INTERVAL_S or done == total:
            told = now
            send(Loading(done, total))

    parts: EngineParts = factory(progress, *pickle.loads(launch.arguments))
    return parts


def _die_with(parent: int) -> None:
    """Have the kernel, where it can, end this process with its parent, even while a step holds the interpreter.

    Linux takes the thread that started this process for the parent: here the event loop's, which stays.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        _end(0)


def _end_at_hang_up(port: SocketPort) -> None:
    port.wait_for_hang_up()
    _end(0)


def _report_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An excepthook. The parent has been told the cause; the traceback is for who asks for it."""
    if os.environ.get("OCTAVO_DEBUG", "") not in ("", "0"):
        traceback.print_exception(kind, error, trace)
    _end(1)


def _end(status: int) -> NoReturn:
    """Without the interpreter's farewells: threads of kernels may still be at work, and the parent waits."""
    if sys.stderr is not None:
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
