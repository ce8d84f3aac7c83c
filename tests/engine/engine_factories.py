"""Engines that a child process is told to make by their import paths. For tests."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.bench.mock_tokenizer import mock_tokenizer
from octavo.config import EngineConfig
from octavo.engine.engine_parts import EngineParts
from octavo.engine.serving import ModelInfo
from octavo.errors import LoadError
from tests.engine.fake_core import FakeCore

if TYPE_CHECKING:
    from octavo.engine.loaded_model import Progress

INFO = ModelInfo("fake", "fake", 300, 64, 63, "paged", "float32", "f16", "full", 0, 8)
FAKE = "tests.engine.engine_factories:fake_engine"
BROKEN = "tests.engine.engine_factories:broken_engine"
UNLOADABLE = "tests.engine.engine_factories:unloadable_engine"
WITH_FAULTS = "tests.engine.engine_factories:engine_with_faults"


def fake_engine(progress: Progress, step_s: float = 0.001, slots: int = 2) -> EngineParts:
    """`FakeCore`, whose steps take so long."""
    logging.getLogger("octavo.fake").warning("it is only a fake")
    print("this must not go to standard output")
    progress(1, 1)
    return EngineParts(FakeCore(slots, step_s), mock_tokenizer(), INFO, slots)


def broken_engine(progress: Progress) -> EngineParts:
    raise ZeroDivisionError("nobody foresaw this")


def unloadable_engine(progress: Progress) -> EngineParts:
    raise LoadError("model.gguf is cut short; fetch it again")


def engine_with_faults(progress: Progress, path: Path, config: EngineConfig) -> EngineParts:
    """A real engine whose logits are NaN for requests with an id that begins with `nan`, and whose steps raise for
    those that begin with `raise`.
    """
    from torch import Tensor

    from octavo.engine.loaded_model import load_model, plan_model
    from octavo.engine.served_model import ServedCore, engine_parts

    def spoil(request_id: str, logits: Tensor) -> None:
        if request_id.startswith("nan"):
            logits.fill_(float("nan"))
        if request_id.startswith("raise"):
            raise ZeroDivisionError("in the middle of a step")

    loaded = load_model(plan_model(path, config), config, progress)
    return engine_parts(ServedCore(loaded, config, spoil), config, "tiny")
