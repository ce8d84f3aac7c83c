"""What a server sees of an engine that runs elsewhere, over a scripted connection: no process, no thread."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

import pytest

from octavo.bench.mock_tokenizer import mock_tokenizer
from octavo.engine.async_client import RemoteEngine, ServingLimits
from octavo.engine.engine_link import LinkListener
from octavo.engine.events import StepEvent
from octavo.engine.serving import ModelInfo
from octavo.engine.step_meter import StepMeter
from octavo.engine.wire import (
    Abort,
    Command,
    Fatal,
    Launch,
    Loaded,
    LoadFailed,
    Loading,
    Logged,
    Message,
    PrefixCacheReset,
    Refused,
    ResetPrefixCache,
    Step,
    Submit,
    WireEvent,
)
from octavo.errors import EngineFault, InvalidRequest, LoadError, NotReady, QueueFull
from octavo.outputs import TextDelta, TokenLogprobs
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


def test_a_reader_that_keeps_up_gets_each_step_as_a_list_of_its_own() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect(engine, "a"))
        await turn()
        for i in range(3):
            link.step((0, f"<{i}>", (i,)))
            await turn()
        link.step(last(0, "a"), running=0)
        lists = await reader
        assert [[event.delta.text for event in events] for events in lists] == [["<0>"], ["<1>"], ["<2>"], ["!"]]

    play(scene)


def test_a_reader_that_falls_behind_gets_what_it_missed_merged_into_one_event() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect(engine, "a"))
        await turn()
        link.step((0, "x", (1,)))
        link.step((0, "y", (2,)))
        link.step((0, "", (3,)))
        link.step(last(0, "a"), running=0)
        [events] = await reader
        assert [event.delta for event in events] == [
            TextDelta("a", 0, "xy", (1, 2, 3)),
            TextDelta("a", 0, "!", (9,), "length"),
        ]

    play(scene)


def test_merging_keeps_the_order_of_events_with_logprobs() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect(engine, "a"))
        await turn()
        scored = StepEvent(TextDelta("a", 0, "s", (5,)), TokenLogprobs(5, -1.0))
        for event in ((0, "x", (1,)), (0, scored), (0, "y", (2,)), (0, "z", (3,)), last(0, "a")):
            link.step(event)  # type: ignore[arg-type]
        [events] = await reader
        assert [event.delta.text for event in events] == ["x", "s", "yz", "!"]

    play(scene)


def test_a_step_wakes_only_the_readers_that_it_has_something_for() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        a, b = engine.run([request_of("a")]), engine.run([request_of("b")])
        async with aclosing(a), aclosing(b):
            first = asyncio.ensure_future(anext(a))
            second = asyncio.ensure_future(anext(b))
            await turn()
            link.step((1, "only b", (1,)), received=2)
            await turn()
            assert second.done()
            assert not first.done()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)

    play(scene)


def test_several_choices_of_one_run_are_told_apart_and_it_ends_with_the_last() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect_choices(engine))
        await turn()
        link.step((0, "x", (1,)), (1, "y", (2,)), received=2, running=2)
        link.step(last(0, "0"), (1, "y", (2,)), received=2)
        await turn()
        assert not reader.done()
        link.step(last(1, "1", 1), received=2, running=0)
        events = await reader
        text = {i: "".join(event.delta.text for event in events if event.delta.index == i) for i in (0, 1)}
        assert text == {0: "x!", 1: "yy!"}

    async def collect_choices(engine: RemoteEngine) -> list[StepEvent]:
        requests = [request_of(str(i), choice=i) for i in range(2)]
        return [event async for events in engine.run(requests) for event in events]

    play(scene)


def test_leaving_a_run_aborts_what_has_not_ended() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        run = engine.run([request_of("a"), request_of("b")])
        async with aclosing(run):
            first = asyncio.ensure_future(anext(run))
            await turn()
            link.step(last(0, "a"), (1, "x", (1,)), received=2)
            await first
        assert link.sent_of(Abort) == [Abort((1,))]
        link.step((1, "too late", (2,)), received=2, running=0)

    play(scene)


def test_a_refusal_is_raised_before_the_first_list() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect(engine, "a", "b"))
        await turn()
        link.say(Refused(0, InvalidRequest("the prompt has 0 tokens; give at least 1")))
        with pytest.raises(InvalidRequest, match="the prompt has 0 tokens"):
            await reader
        assert link.sent_of(Abort) == []

    play(scene)


def test_more_than_may_wait_are_told_to_come_again_and_nothing_of_them_is_sent() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        readers = [asyncio.create_task(collect(engine, str(i))) for i in range(5)]  # 2 run, 3 wait
        await turn()
        with pytest.raises(QueueFull, match="3 requests wait already and at most 3 may") as refusal:
            await collect(engine, "late")
        assert refusal.value.retry_after_s >= 1
        assert sum(len(submit.requests) for submit in link.sent_of(Submit)) == 5
        link.step(last(0, "0"), received=5, waiting=2, running=2)
        readers.append(asyncio.create_task(collect(engine, "next")))
        await turn()
        assert not readers[-1].done()
        await end(*readers)

    play(scene, ServingLimits(max_queue=3))


def test_choices_enter_together_once_there_is_room_for_one_so_that_single_ones_cannot_keep_them_out() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        readers = [asyncio.create_task(collect(engine, str(i))) for i in range(4)]  # 2 run, 2 wait
        await turn()
        with pytest.raises(QueueFull):
            await collect(engine, "a", "b", "c")
        link.step(last(0, "0"), received=4, waiting=1, running=2)  # as each time a single one gets in
        readers.append(asyncio.create_task(collect(engine, "a", "b", "c")))
        await turn()
        assert not readers[-1].done()
        with pytest.raises(QueueFull, match="4 requests wait already and at most 2 may"):
            await collect(engine, "d")
        await end(*readers)

    play(scene, ServingLimits(max_queue=2))


def test_more_choices_than_can_ever_be_there_are_refused_for_good() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        # No lack of room for a long prompt, which a `CapacityError` would be to clients.
        with pytest.raises(InvalidRequest, match="3 choices are asked for at once; at most 2 run and 0 wait"):
            await collect(engine, "a", "b", "c")

    play(scene, ServingLimits(max_queue=0))


def test_slots_that_memory_keeps_empty_do_not_make_room_in_the_queue() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect(engine, "a", "b"))
        await turn()
        link.step((0, "x", (1,)), received=2, waiting=1, running=1)
        with pytest.raises(QueueFull, match="1 requests wait already"):
            await collect(engine, "c")
        await end(reader)

    play(scene, ServingLimits(max_queue=1))


def test_the_time_to_come_again_follows_how_fast_requests_end() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        now = 100.0
        asyncio.get_running_loop().time = lambda: now  # type: ignore[method-assign]
        readers = [asyncio.create_task(collect(engine, str(i))) for i in range(6)]
        await turn()
        for ended in range(2):
            link.step(last(ended, str(ended)), received=6, waiting=4, running=2)
            now += 7.0
        link.step(last(2, "2"), received=6, waiting=4, running=2)
        with pytest.raises(QueueFull) as refusal:
            await collect(engine, *map(str, range(10, 14)))
        assert refusal.value.retry_after_s == 7  # 1 too many, 7 seconds each
        await end(*readers)

    play(scene, ServingLimits(max_queue=4))


def test_a_slow_reader_is_cut_off_past_the_bound_and_the_others_are_not() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        slow, quick = engine.run([request_of("slow")]), asyncio.create_task(collect(engine, "quick"))
        first = asyncio.ensure_future(anext(slow))
        await turn()
        link.step((0, "q", (1,)), (1, "s", (1,)), received=2, running=2)
        await first
        for _ in range(11):
            link.step((0, "q", (1,)), (1, "s", (1,)), received=2, running=2)
            await turn()  # the quick one reads
        assert link.sent_of(Abort) == [Abort((1,))]
        for _ in range(1000):
            link.step((1, "more", (1,)), received=2, running=2)
        events = await anext(slow)
        assert len(events) == 2
        assert events[0].delta.text == "s" * 11
        assert (events[1].fault, events[1].delta.finish_reason) == ("slow_reader", "error")
        assert "10 tokens" in (events[1].error or "")
        with pytest.raises(StopAsyncIteration):
            await anext(slow)
        link.step(last(0, "quick"), received=2)
        assert all(event.fault is None for events in await quick for event in events)

    play(scene, ServingLimits(max_unread_tokens=10))


def test_a_reader_that_waits_for_its_turn_is_not_behind_however_much_arrives() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect(engine, "a"))
        await turn()
        for _ in range(1000):
            link.step((0, "x", (1,)))
        link.step(last(0, "a"), running=0)
        [events] = await reader
        assert [event.fault for event in events] == [None, None]

    play(scene, ServingLimits(max_unread_tokens=10))


def test_a_reader_that_has_read_nothing_for_too_long_is_cut_off() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        now = 100.0
        asyncio.get_running_loop().time = lambda: now  # type: ignore[method-assign]
        run = engine.run([request_of("a")])
        first = asyncio.ensure_future(anext(run))
        await turn()
        link.step((0, "x", (1,)))
        await first
        link.step((0, "y", (2,)))
        now += 30.0
        link.step((0, "z", (3,)))
        assert link.sent_of(Abort) == []
        now += 31.0
        link.step((0, "z", (4,)))
        assert link.sent_of(Abort) == [Abort((0,))]
        assert [event.fault for event in await anext(run)] == [None, "slow_reader"]

    play(scene, ServingLimits(max_unread_s=60))


def test_draining_takes_nothing_new_and_returns_when_the_last_has_ended() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect(engine, "a"))
        await turn()
        drain = asyncio.create_task(engine.drain(1000))
        await turn()
        assert engine.status.state == "draining"
        with pytest.raises(NotReady, match="shutting down"):
            await collect(engine, "b")
        assert not drain.done()
        link.step(last(0, "a"), running=0)
        await drain
        [events] = await reader
        assert events[0].delta.finish_reason == "length"

    play(scene)


def test_draining_ends_those_left_at_the_deadline() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect(engine, "a"))
        await turn()
        await engine.drain(0.01)
        [events] = await reader
        assert (events[0].fault, events[0].delta.finish_reason) == ("shut_down", "error")
        assert link.sent_of(Abort) == [Abort((0,))]

    play(scene)


def test_stopping_ends_what_runs_and_closes_the_connection_each_time_it_is_asked() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect(engine, "a"))
        await turn()
        await engine.stop()
        await engine.stop()
        [events] = await reader
        assert events[0].fault == "shut_down"
        assert engine.status.state == "stopped"
        assert link.closed
        with pytest.raises(NotReady):
            await collect(engine, "b")

    play(scene)


@pytest.mark.parametrize("by_message", [True, False], ids=["a crash of the loop", "a death of the process"])
def test_a_dead_engine_fails_all_open_requests_with_the_cause(
    by_message: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        readers = [asyncio.create_task(collect(engine, i)) for i in "ab"]
        reset = asyncio.create_task(engine.reset_prefix_cache())
        await turn()
        if by_message:
            link.say(Fatal("it burnt down"))
        assert link.listener is not None
        link.listener.on_lost("ended" if by_message else "it burnt down")
        for reader in readers:
            [[event]] = await reader
            assert (event.fault, event.error, event.delta.finish_reason) == ("engine_died", "it burnt down", "error")
        with pytest.raises(EngineFault, match="it burnt down"):
            await reset
        assert (engine.status.state, engine.status.reason) == ("failed", "it burnt down")
        with pytest.raises(NotReady, match="it burnt down"):
            await collect(engine, "c")
        await engine.stop()
        assert engine.status.state == "failed"

    play(scene)
    assert [record.getMessage() for record in caplog.records] == ["it burnt down"]


def test_a_load_that_fails_raises_what_the_engine_raised() -> None:
    async def main() -> None:
        engine = RemoteEngine(link, "nowhere:nothing", ())
        assert engine.status.state == "loading"
        with pytest.raises(NotReady, match="loading"):
            await collect(engine, "a")
        with pytest.raises(LoadError, match=r"^x\.gguf is cut short$"):
            await engine.start()
        assert (engine.status.state, engine.status.reason) == ("failed", "x.gguf is cut short")

    link = FakeLink(Loading(1, 2), LoadFailed(LoadError("x.gguf is cut short")))
    asyncio.run(main())
    assert link.closed == [0]


def test_loading_tells_its_progress() -> None:
    told = []

    async def main() -> None:
        def note(done: int, total: int) -> None:
            told.append((done, total, engine.status.reason))

        engine = RemoteEngine(FakeLink(Loading(1, 4), Loading(4, 4), loaded()), "nowhere:nothing", (), None, note)
        with pytest.raises(EngineFault, match="not loaded yet"):
            engine.info  # noqa: B018 - that it raises is what matters
        await engine.start()
        assert engine.status.reason == ""
        assert engine.info == INFO
        assert engine.tokenizer.decode(engine.tokenizer.encode("as ever")) == "as ever"
        assert engine.stats is not None

    asyncio.run(main())
    assert told == [(1, 4, "loading the model: 25%"), (4, 4, "loading the model: 100%")]


def test_a_stop_while_loading_breaks_it_off() -> None:
    async def main() -> None:
        link = FakeLink(Loading(1, 4))
        engine = RemoteEngine(link, "nowhere:nothing", ())
        start = asyncio.create_task(engine.start())
        await turn()
        await engine.stop()
        with pytest.raises(EngineFault, match="the engine was stopped"):
            await start
        assert engine.status.state == "stopped"
        assert set(link.closed) == {0}

    asyncio.run(main())


def test_a_step_that_does_not_end_is_reported_until_it_does(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect(engine, "a"))
        await turn()
        link.step((0, "x", (1,)))
        while not engine.status.reason:
            await asyncio.sleep(0.005)
        assert engine.status.state == "ready"
        assert "a step has taken" in engine.status.reason
        link.step(last(0, "a"), running=0)
        assert engine.status.reason == ""
        await reader
        await engine.stop()

    play(scene, ServingLimits(watchdog_s=0.02))
    assert "has not finished a step" in caplog.records[0].getMessage()
    assert "goes on" in caplog.records[1].getMessage()


def test_an_engine_without_work_may_be_silent() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        reader = asyncio.create_task(collect(engine, "a"))
        await turn()
        link.step(last(0, "a"), running=0)
        await reader
        await asyncio.sleep(0.05)
        assert engine.status.reason == ""

    play(scene, ServingLimits(watchdog_s=0.01))


def test_the_prefix_cache_is_reset_where_it_lies() -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        first = asyncio.create_task(engine.reset_prefix_cache())
        second = asyncio.create_task(engine.reset_prefix_cache())
        await turn()
        calls = [command.call for command in link.sent_of(ResetPrefixCache)]
        link.say(PrefixCacheReset(calls[1], 2))
        link.say(PrefixCacheReset(calls[0], 1))
        assert (await first, await second) == (1, 2)

    play(scene)


def test_what_the_engine_logs_is_logged_here(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(engine: RemoteEngine, link: FakeLink) -> None:
        link.say(Logged("octavo.kernels", logging.WARNING, "100% of it is slow"))

    play(scene)
    [record] = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == ("octavo.kernels", "WARNING", "100% of it is slow")


async def end(*readers: asyncio.Task[list[list[StepEvent]]]) -> None:
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
