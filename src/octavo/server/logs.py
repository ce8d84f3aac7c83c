"""How the server logs: one line a record on standard error, as text or as JSON, with the id of the request.

A traceback is shown at level debug only; at others its last line is.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from octavo.server.request_ids import current_request_id

MAX_LINE = 2000  # characters
REPEAT_S = 60.0
MAX_KNOWN = 16  # warnings that are told apart


def configure_logs(level: str, log_format: str) -> None:
    """Send what Octavo and uvicorn log to standard error, from `level` on. Replaces handlers that were there."""
    handler = logging.StreamHandler(sys.stderr)
    debug = level == "debug"
    handler.setFormatter(JsonLines(debug) if log_format == "json" else TextLines(debug))
    for name in ("octavo", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
    # What uvicorn says at info, that it has started and stopped, the server says itself.
    connections = logging.getLogger("uvicorn.error")
    connections.setLevel(logging.DEBUG if debug else logging.WARNING)
    # Anyone can send what is no HTTP, and be warned of: not a line for each.
    connections.filters = [] if debug else [Repeats()]


class Repeats(logging.Filter):
    """Lets a warning pass once in `REPEAT_S` seconds, with the number of those like it that did not since the last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._held: dict[str, tuple[float, int]] = {}  # when it last passed, and how many have not since

    def filter(self, record: logging.LogRecord) -> bool:
        """See the class."""
        if record.levelno != logging.WARNING:
            return True
        message, now = record.getMessage(), self._clock()
        passed, held = self._held.get(message, (now - REPEAT_S, 0))
        if now - passed < REPEAT_S:
            self._held[message] = passed, held + 1
            return False
        if message not in self._held and len(self._held) >= MAX_KNOWN:
            self._held.clear()
        self._held[message] = now, 0
        if held:
            record.msg, record.args = f"{message} ({held} more like it since the last)", ()
        return True


class _Lines(logging.Formatter):
    def __init__(self, debug: bool) -> None:
        super().__init__()
        self._debug = debug

    def _parts(self, record: logging.LogRecord) -> tuple[str, str, str]:
        """Message on one line; traceback, if it is to be shown; the request's id."""
        message = record.getMessage()
        trace = ""
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            message = f"{message} {''.join(traceback.format_exception_only(error))}"
            if self._debug:
                trace = "".join(traceback.format_exception(error))
        return one_line(message), trace, current_request_id.get()


class TextLines(_Lines):
    """`2026-11-30T08:00:00.123Z info  octavo.access: message id=…`, and at level debug a traceback after it."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        message, trace, request_id = self._parts(record)
        line = f"{_time(record)} {record.levelname.lower():<7} {record.name}: {message}"
        if request_id:
            line += f" id={request_id}"
        return f"{line}\n{trace.rstrip()}" if trace else line


class JsonLines(_Lines):
    """An object a line: time, level, logger, message, request_id, traceback, and the values that the message shows."""

    def format(self, record: logging.LogRecord) -> str:
        """See the class."""
        message, trace, request_id = self._parts(record)
        found: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
        }
        if request_id:
            found["request_id"] = request_id
        if isinstance(record.args, dict):
            found |= record.args
        if trace:
            found["traceback"] = trace
        return json.dumps(found, default=str)


def one_line(text: str) -> str:
    """`text` on one line, without characters that a terminal or a reader of logs could take for something else."""
    line = "".join(character for character in " ".join(text.split()) if character.isprintable())
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…"


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"
