"""Starts server processes, waits for what they log, and talks to them over sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

HERE = Path(__file__).parent
DEADLINE_S = 60.0


class ServerProcess:
    """A process whose standard error is read as it comes."""

    def __init__(self, arguments: list[str], **environment: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
        inherited |= {"OMP_NUM_THREADS": "1", "OCTAVO_THREADS": "1", **environment}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            arguments, env=inherited, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line.rstrip("\n"))

    @property
    def log(self) -> str:
        return "\n".join(self._lines)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first match in what it has logged, waited for."""
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            ended = self.process.poll() is not None
            if found := re.search(pattern, self.log):
                return found
            if ended:
                self._reader.join()
                if found := re.search(pattern, self.log):
                    return found
                break
            time.sleep(0.01)
        raise AssertionError(f"{pattern!r} did not come:\n{self.log}")

    @property
    def url(self) -> str:
        return self.wait_for(r"listening on (\S+?),")[1]

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **settings: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=DEADLINE_S, trust_env=False, **settings)

    def wait_until_ready(self) -> None:
        self.wait_for("ready: ")

    def ended(self, timeout_s: float = DEADLINE_S) -> int:
        """Its exit status, waited for."""
        status = self.process.wait(timeout_s)
        self._reader.join(timeout_s)
        return status


@contextmanager
def fake_server(engine: dict[str, Any] | None = None, **settings: Any) -> Iterator[ServerProcess]:
    """A server over the fake engine, on a free port."""
    script = [sys.executable, str(HERE / "fake_server.py"), json.dumps(engine or {}), json.dumps(settings)]
    with _running(ServerProcess(script)) as server:
        yield server


@contextmanager
def model_server(model: Path, config: dict[str, Any] | None = None, **settings: Any) -> Iterator[ServerProcess]:
    """A server over an engine of `config`, as `octavo serve` starts one, with settings that have no flag."""
    script = [sys.executable, str(HERE / "model_server.py"), str(model), json.dumps(config or {}), json.dumps(settings)]
    with _running(ServerProcess(script)) as server:
        yield server


@contextmanager
def octavo_serve(*arguments: object, **environment: str) -> Iterator[ServerProcess]:
    """The command, on a free port unless `arguments` name one."""
    command = [sys.executable, "-m", "octavo", "serve", "--port", "0", *map(str, arguments)]
    with _running(ServerProcess(command, **environment)) as server:
        yield server


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """While open, SIGTERM unwinds the stack of a program that runs servers, so that they end with it."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _running(server: ServerProcess) -> Iterator[ServerProcess]:
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        assert server.process.stdout is not None and server.process.stderr is not None
        server._reader.join(10)
        server.process.stdout.close()
        server.process.stderr.close()
