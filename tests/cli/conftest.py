"""Runs the command, in this process or as one of its own, on tiny checkpoints that the tests share."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from octavo.cli.errors import exit_status_of
from octavo.cli.main import invoke
from octavo.engine import loaded_model
from tests.tiny_models import save_gguf, save_hf


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The one line that says why it failed; all that is on standard error but for what was chosen at loading."""
        lines = [line for line in self.err.splitlines(keepends=True) if not line.startswith("octavo: llama")]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("octavo: error: ") and lines[0].endswith("\n")
        assert lines[0].isascii() or lines[0].strip().isprintable()
        assert self.out == ""
        return lines[0]


Run = Callable[..., Done]


@pytest.fixture
def octavo(capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`octavo("generate", "-p", "x", stdin=b"", OCTAVO_SEED="1")`: the command, in this process, on one thread."""
    for name in list(os.environ):
        if name.startswith("OCTAVO_") and name != "OCTAVO_MODELS":
            monkeypatch.delenv(name)
    monkeypatch.setenv("OCTAVO_THREADS", "1")

    def run(*arguments: object, stdin: bytes = b"", **environment: str) -> Done:
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
            capsysbinary.readouterr()
            status = exit_status_of(lambda: invoke([str(each) for each in arguments]))
        out, err = capsysbinary.readouterr()
        return Done(status, out.decode(), err.decode())

    return run


@pytest.fixture
def loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, a command that goes as far as packing weights fails."""

    def load_model(*arguments: object) -> None:
        raise AssertionError("weights are loaded")

    monkeypatch.setattr(loaded_model, "load_model", load_model)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "octavo", *map(str, arguments)]


def environment(**variables: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    return {**inherited, "OMP_NUM_THREADS": "1", "OCTAVO_THREADS": "1", **variables}


def start(*arguments: object, **variables: str) -> subprocess.Popen[bytes]:
    """The command as a process whose streams are pipes."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command(*arguments), env=environment(**variables), stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory named `llama` with a tiny model of 1,024 tokens of context and a chat template."""
    path = tmp_path_factory.mktemp("models") / "llama"
    save_hf(path, "llama", num_hidden_layers=2, max_position_embeddings=1024)
    return path


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A 4-bit GGUF file of a tiny model."""
    path = tmp_path_factory.mktemp("models")
    theirs = save_hf(path / "hf", "llama", num_hidden_layers=2, max_position_embeddings=1024)
    return save_gguf(path / "llama.gguf", theirs, "llama", "Q4_0")
