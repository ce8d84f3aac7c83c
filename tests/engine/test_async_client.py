"""What requests to an engine that runs elsewhere get, over a scripted connection: no process, no thread."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

import pytest

from octavo.engine.async_client import RemoteEngine, ServingLimits
from octavo.engine.events import StepEvent
from octavo.engine.wire import Abort, Logged, PrefixCacheReset, Refused, ResetPrefixCache, Submit
from octavo.errors import InvalidRequest, QueueFull
from octavo.outputs import TextDelta, TokenLogprobs
from tests.engine.fake_core import request_of
from tests.engine.scripted_link import FakeLink, collect, end, last, play, turn


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
