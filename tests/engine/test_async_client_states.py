"""How an engine that runs elsewhere loads, drains, stops and dies, as a server sees it over a scripted connection."""

from __future__ import annotations

import asyncio

import pytest

from octavo.engine.async_client import RemoteEngine, ServingLimits
from octavo.engine.wire import Abort, Fatal, LoadFailed, Loading
from octavo.errors import EngineFault, LoadError, NotReady
from tests.engine.scripted_link import INFO, FakeLink, collect, last, loaded, play, turn


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
