"""A child process of a benchmark: JSON lines in and out, and the processor time that it took."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from octavo.environment import child_environment
from octavo.errors import EngineFault, InvalidRequest

STOP_TIMEOUT_S = 20
_PROC = Path("/proc")


class ChildProcess:
    """`python -m module arguments`, which prints a JSON line once it is ready. A context manager that ends it."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._name = f"{module.rpartition('.')[2]} {arguments[0]}" if arguments else module
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - until its end
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=child_environment(),
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        finally:
            self._errors.close()

    def read(self) -> dict[str, Any]:
        """The next line. Raises `EngineFault`, with the last of what it said, if the process has ended, and
        `KeyboardInterrupt` if an interrupt ended it: a terminal sends one to every process, and it may be the first.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            if self._process.wait() == -signal.SIGINT:
                raise KeyboardInterrupt
            self._errors.seek(0)
            said = self._errors.read().strip().splitlines()
            raise EngineFault(f"the process `{self._name}` ended: {said[-1] if said else 'without a word'}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, question: Mapping[str, object]) -> dict[str, Any]:
        """Write a line and read the answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return self.read()  # which says why it ended
        return self.read()


def run_to_end(command: Sequence[str], given: str) -> subprocess.CompletedProcess[str]:
    """What `command` prints when it is given this text. An interrupt ends the process, too, before it is raised on."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(),
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            out, err = process.communicate(given)
        finally:
            process.kill()  # does nothing to one that has ended
            process.wait()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def check_proc() -> None:
    """Raises `InvalidRequest` where processor times of other processes cannot be read."""
    if not (_PROC / "self" / "stat").exists():
        raise InvalidRequest(f"bench overhead reads {_PROC}, which {sys.platform} does not have; run it on Linux")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and all its threads, user and system; its resolution is a clock tick, often 10 ms."""
    user, system = _stat(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """Process ids of its living children."""
    found = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                parent = int(_stat(int(entry.name))[1])
            except OSError:  # it ended meanwhile
                continue
            if parent == pid:
                found.append(int(entry.name))
    return found


def _stat(pid: int) -> Sequence[str]:
    """Fields of /proc/PID/stat from the third on; the second, a name, may hold anything."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
