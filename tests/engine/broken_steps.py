"""Have one part of an engine's step fail once, and drive the engine through it."""

from __future__ import annotations

from operator import attrgetter

import pytest

from octavo.engine.core import EngineCore
from tests.engine.tiny_engines import Driver


class BrokenOff(BaseException):
    """What a step is interrupted with, as by Ctrl-C."""


def fail_once(
    monkeypatch: pytest.MonkeyPatch,
    core: EngineCore,
    part: str,
    call: int,
    failure: type[BaseException] = BrokenOff,
    *,
    at_once: bool = False,
) -> None:
    """`part` names a method of `core`, as `runner.forward`; its `call`-th call from 0 on raises, when it has done its
    work or `at_once`.
    """
    owner_name, _, name = part.rpartition(".")
    owner = attrgetter(owner_name)(core)
    original, calls = getattr(owner, name), iter(range(1000))

    def once_failing(*args):
        fails = next(calls) == call
        if fails and at_once:
            raise failure
        found = original(*args)
        if fails:
            raise failure
        return found

    monkeypatch.setattr(owner, name, once_failing)


def run_through(driver: Driver) -> int:
    """Step until idle; how many steps were interrupted."""
    interrupted = 0
    while driver.core.has_work:
        try:
            driver.step()
        except BrokenOff:
            interrupted += 1
    return interrupted
