"""A connection to an engine whose other end is the test, and what a server does over it: no process, no thread."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from typing import TypeVar

from octavo.bench.mock_tokenizer import mock_tokenizer
from octavo.engine.async_client import RemoteEngine, ServingLimits
from octavo.engine.engine_link import LinkListener
from octavo.engine.events import StepEvent
from octavo.engine.serving import ModelInfo
from octavo.engine.step_meter import StepMeter
from octavo.engine.wire import Command, Launch, Loaded, Message, Step, WireEvent
from octavo.outputs import TextDelta
from tests.engine.fake_core import FakeCore, request_of

_T = TypeVar("_T")
INFO = ModelInfo("m", "fake", 300, 64, 63, "paged", "float32", "f16", "full", 0, 8)


class FakeLink:
    """A connection whose other end is the test. `failure` is what loading comes to."""

    def __init__(self, *first: Message) -> None:
        self.first = first or (loaded(),)
        self.sent: list[Command] = []
        self.closed: list[float] = []
        self.listener: LinkListener | None = None

    async def open(self, launch: Launch, listener: LinkListener) -> None:
        self.listener = listener
        for message in self.first:
            listener.on_message(message)

    def send(self, command: Command) -> None:
        self.sent.append(command)

    async def close(self, grace_s: float) -> None:
        self.closed.append(grace_s)

    def say(self, message: Message) -> None:
        assert self.listener is not None
        self.listener.on_message(message)

    def step(self, *events: WireEvent, received: int = 1, waiting: int = 0, running: int = 1) -> None:
        self.say(Step(list(events), received, waiting, running))

    def sent_of(self, kind: type[_T]) -> list[_T]:
        return [command for command in self.sent if isinstance(command, kind)]


def loaded(max_num_seqs: int = 2) -> Loaded:
    return Loaded(INFO, pickle.dumps(mock_tokenizer()), max_num_seqs, StepMeter().stats(FakeCore()))


def last(handle: int, request_id: str, index: int = 0) -> WireEvent:
    """The event that ends a request."""
    return (handle, StepEvent(TextDelta(request_id, index, "!", (9,), "length")))


def play(
    scene: Callable[[RemoteEngine, FakeLink], Awaitable[None]],
    limits: ServingLimits | None = None,
    link: FakeLink | None = None,
) -> None:
    """Run `scene` with an engine that is ready."""
    link = link or FakeLink()

    async def main() -> None:
        engine = RemoteEngine(link, "nowhere:nothing", (), limits)
        await engine.start()
        await scene(engine, link)

    asyncio.run(asyncio.wait_for(main(), 20))


async def turn() -> None:
    """Let everything run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def collect(engine: RemoteEngine, *request_ids: str) -> list[list[StepEvent]]:
    return [events async for events in engine.run([request_of(request_id) for request_id in request_ids])]


async def end(*readers: asyncio.Task[list[list[StepEvent]]]) -> None:
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
