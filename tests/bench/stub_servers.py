"""Servers of an arm without processes: stubs that a test makes fast, slow, refusing or mortal, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from octavo.bench.served_arm import Arm
from octavo.errors import EngineFault
from tests.bench.stub_endpoint import Behaviour, StubEndpoint


@dataclass
class StubServer:
    """What `octavo.bench.served_arm.Server` asks for."""

    stub: StubEndpoint

    @property
    def url(self) -> str:
        return self.stub.url

    @url.setter
    def url(self, value: str) -> None:
        raise AssertionError(value)

    def fault(self, within_s: float = 0.0) -> EngineFault | None:
        return EngineFault("octavo serve ended with status -9: out of memory") if self.stub.dead else None


@dataclass
class StubServers:
    """`behaviour` is asked for each server with its arm and how often that arm was started before."""

    behaviour: Callable[[Arm, int], dict[str, Any]] = lambda arm, round_: {}
    started: list[str] = field(default_factory=list)
    stubs: list[StubEndpoint] = field(default_factory=list)

    @contextmanager
    def __call__(self, arm: Arm) -> Iterator[StubServer]:
        round_ = self.started.count(arm.name)
        self.started.append(arm.name)
        stub = StubEndpoint(Behaviour(**{"storage": arm.storage or "paged", **self.behaviour(arm, round_)}))
        self.stubs.append(stub)
        try:
            yield StubServer(stub)
        finally:
            stub.die()
