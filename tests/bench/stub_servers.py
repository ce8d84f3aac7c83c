"""Servers of an arm without processes: stubs that a test makes fast, slow, refusing or mortal, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.bench.load_cell import CellRun, run_cell
from octavo.bench.load_connection import LoadConnection
from octavo.bench.load_mix import LoadRequest
from octavo.bench.served_arm import Arm
from octavo.errors import EngineFault
from tests.bench.stub_endpoint import Behaviour, StubEndpoint

_slowness = [1.0]  # of the stub that is measured


async def steady_run_cell(
    connect: Callable[[], LoadConnection],
    requests: Sequence[LoadRequest],
    concurrency: int,
    on_answer: Callable[[], None] = lambda: None,
) -> CellRun:
    """`run_cell`, but all times are what the stub's `slowness` says, so that no test depends on the machine's."""
    done = await run_cell(connect, requests, concurrency, on_answer)
    tick = 0.01 * _slowness[0]
    outcomes = [
        replace(each, arrivals_s=tuple(tick * (index + 1) for index in range(len(each.arrivals_s))))
        for each in done.outcomes
    ]
    return CellRun(tuple(outcomes), 10 * tick, 0.001)


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
    """`behaviour` is asked for each server with its arm and how often that arm was started before. Beside what a
    `Behaviour` has it may say a `slowness`, 1 if it does not; `steady_run_cell` makes it the only thing that counts.
    """

    behaviour: Callable[[Arm, int], dict[str, Any]] = lambda arm, round_: {}
    started: list[str] = field(default_factory=list)
    stubs: list[StubEndpoint] = field(default_factory=list)

    @contextmanager
    def __call__(self, arm: Arm) -> Iterator[StubServer]:
        round_ = self.started.count(arm.name)
        self.started.append(arm.name)
        given = {"storage": arm.storage or "paged", "slowness": 1.0, **self.behaviour(arm, round_)}
        _slowness[0] = given.pop("slowness")
        stub = StubEndpoint(Behaviour(**given))
        self.stubs.append(stub)
        try:
            yield StubServer(stub)
        finally:
            stub.die()
