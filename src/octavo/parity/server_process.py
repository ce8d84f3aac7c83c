"""`octavo serve` as a process that parity or a benchmark asks: its start, its address, its end; not what is asked."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import httpx

from octavo.environment import child_environment
from octavo.errors import EngineFault

_POLL_S = 0.05
_STOP_TIMEOUT_S = 60
_ROUTINE = re.compile(r"\S+ info +\S+: |octavo: (?!error)")  # in a log: no reason for an end
_LISTENING = re.compile(r"listening on (\S+),")


class ServedProcess:
    """The server that `command` starts, as a context manager: ready when entered, drained and gone when left.

    `--port=0` and `--log-level=info` must be among its flags, for the address is taken from its log. Entering raises
    `EngineFault` if it does not become ready, leaving it if it does not end well. `environment` is added to that of
    our children.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._environment = {**child_environment(), **(environment or {})}

    def __enter__(self) -> ServedProcess:
        self._directory = tempfile.TemporaryDirectory()
        self._log = Path(self._directory.name) / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            self.url = self._address()
            self._wait_until_ready()
        except BaseException:
            self._end()
            self._directory.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            ended_by_itself = self._process.poll() is not None
            status = self._end()
            if error is None and (ended_by_itself or status != 0):
                raise self._fault(status)
        finally:
            self._directory.cleanup()

    def fault(self, within_s: float = 0.0) -> EngineFault | None:
        """What it said last, if it has ended or does so within so many seconds; None if it still runs."""
        try:
            return self._fault(self._process.wait(within_s))
        except subprocess.TimeoutExpired:
            return None

    def _address(self) -> str:
        while True:
            ended = self._process.poll()
            found = _LISTENING.search(self._said())
            if found is not None:
                return found[1]
            if ended is not None:
                raise self._fault(ended)
            time.sleep(_POLL_S)

    def _wait_until_ready(self) -> None:
        """However long loading takes: who runs this sees it, and can break off."""
        with httpx.Client(base_url=self.url, trust_env=False, timeout=_STOP_TIMEOUT_S) as client:
            while True:
                ended = self._process.poll()
                if ended is not None:
                    raise self._fault(ended)
                try:
                    state = client.get("/ready").json()
                except httpx.TransportError:  # it is about to end, or has not begun to accept
                    state = {}
                if state.get("status") == "ready":
                    return
                time.sleep(_POLL_S)

    def _end(self) -> int:
        self._process.terminate()
        try:
            return self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _fault(self, status: int) -> EngineFault:
        lines = [line for line in self._said().strip().splitlines() if not _ROUTINE.match(line)]
        return EngineFault(f"octavo serve ended with status {status}: {lines[-1] if lines else 'without a word'}")

    def _said(self) -> str:
        return self._log.read_text("utf-8", "replace")
