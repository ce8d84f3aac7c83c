"""The stream of the machine: one snapshot a tick for all who watch, none for nobody, an end with the server's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from asgi_calls import fake_app, get
from fake_engine import STATS, FakeEngine
from live_app import served

from octavo.errors import NotReady
from octavo.server.errors import HttpError
from octavo.server.live.feed import ENGINE_SHARE, MAX_TICK_S, MAX_VIEWERS, MachineFeed, Viewer


def feed_of(engine: FakeEngine, tick_s: float = 0.01) -> MachineFeed:
    """Pictures are the snapshots' times, `-` where there is none, and `busy`."""
    return MachineFeed(
        engine, lambda seen, busy: b"busy" if busy else b"-" if seen is None else b"%g" % seen.at_s, tick_s
    )


async def seen(viewer: Viewer, count: int) -> list[bytes | None]:
    return [await asyncio.wait_for(viewer.next(), 5) for _ in range(count)]


def test_nothing_is_asked_of_the_engine_while_nobody_watches() -> None:
    async def story() -> None:
        engine = FakeEngine()
        feed = feed_of(engine)
        await asyncio.sleep(0.05)
        assert engine.num_inspected == 0 and not feed.is_ticking
        viewer = feed.join()
        assert await seen(viewer, 3) == [b"0.5", b"1", b"1.5"]
        feed.leave(viewer)
        asked = engine.num_inspected
        await asyncio.sleep(0.05)
        assert engine.num_inspected == asked and not feed.is_ticking

    asyncio.run(story())


def test_all_viewers_see_the_same_snapshots() -> None:
    async def story() -> None:
        engine = FakeEngine()
        feed = feed_of(engine)
        viewers = [feed.join() for _ in range(5)]
        pictures = await asyncio.gather(*(seen(viewer, 4) for viewer in viewers))
        assert all(each == pictures[0] for each in pictures) and engine.num_inspected <= 5
        for viewer in viewers:
            feed.leave(viewer)

    asyncio.run(story())


def test_who_reads_slowly_misses_pictures_and_gets_the_latest() -> None:
    async def story() -> None:
        feed = feed_of(FakeEngine())
        quick, slow = feed.join(), feed.join()
        *_, last = await seen(quick, 6)
        [got] = await seen(slow, 1)
        assert got == last
        feed.leave(quick)
        feed.leave(slow)

    asyncio.run(story())


def test_one_viewer_too_many_is_refused_and_there_is_room_when_one_has_left() -> None:
    async def story() -> None:
        feed = feed_of(FakeEngine())
        viewers = [feed.join() for _ in range(MAX_VIEWERS)]
        with pytest.raises(HttpError, match="32 viewers watch already") as refused:
            feed.join()
        assert refused.value.status == 429
        feed.leave(viewers.pop())
        viewers.append(feed.join())
        for viewer in viewers:
            feed.leave(viewer)
        assert feed.num_viewers == 0

    asyncio.run(story())


@pytest.mark.parametrize(("took_s", "interval_s"), [(0.0, 0.25), (0.004, 0.004 / ENGINE_SHARE), (1.0, MAX_TICK_S)])
def test_ticks_are_fewer_where_a_snapshot_takes_the_engine_long(took_s: float, interval_s: float) -> None:
    async def story() -> None:
        feed = feed_of(FakeEngine(inspect_took_s=took_s), 0.25)
        viewer = feed.join()
        await seen(viewer, 1)
        assert feed.interval_s == pytest.approx(interval_s)
        feed.leave(viewer)

    asyncio.run(story())


def test_a_long_step_is_told_while_its_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.server.live.feed.BUSY_S", 0.02)

    async def story() -> None:
        engine = FakeEngine(inspect_s=0.15)
        feed = feed_of(engine)
        viewer = feed.join()
        pictures = await seen(viewer, 4)
        assert pictures[0] == b"busy" and engine.num_inspected == 1
        while pictures[-1] == b"busy":
            pictures += await seen(viewer, 1)
        assert pictures[-1] == b"0.5"
        feed.leave(viewer)

    asyncio.run(story())


def test_an_engine_that_is_gone_is_told_as_such_and_the_end_of_the_server_ends_the_stream() -> None:
    async def story() -> None:
        engine = FakeEngine()
        feed = feed_of(engine)
        viewer = feed.join()
        await seen(viewer, 1)
        engine.state = "failed"
        while (await seen(viewer, 1)) != [b"-"]:
            pass
        engine.state = "stopped"
        while (last := await viewer.next()) is not None:
            assert last == b"-"
        assert await viewer.next() is None and not feed.is_ticking
        feed.leave(viewer)

    asyncio.run(story())


def test_an_engine_that_ends_while_it_is_asked_is_told_by_its_state() -> None:
    class Ending(FakeEngine):
        async def inspect(self) -> Any:
            raise NotReady("it has failed")

    async def story() -> None:
        feed = feed_of(Ending())
        viewer = feed.join()
        assert await seen(viewer, 2) == [b"-", b"-"]
        feed.leave(viewer)

    asyncio.run(story())


def test_a_fault_of_the_feed_is_logged_and_ends_the_streams(caplog: pytest.LogCaptureFixture) -> None:
    def broken(seen: object, busy: bool) -> bytes:
        raise ZeroDivisionError("nobody foresaw this")

    async def story() -> None:
        feed = MachineFeed(FakeEngine(), broken, 0.01)
        viewer = feed.join()
        assert await asyncio.wait_for(viewer.next(), 5) is None
        feed.leave(viewer)

    asyncio.run(story())
    assert "nobody foresaw this" in caplog.text


# -- over HTTP ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def watched(engine: FakeEngine, **settings: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """The events' objects of a server over `engine`."""
    async with (
        served(fake_app(engine, **settings)) as url,
        httpx.AsyncClient(base_url=url, timeout=10, trust_env=False) as client,
        client.stream("GET", "/v1/internal/events") as response,
    ):
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        yield events(response)


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_an_event_tells_the_machine_and_agrees_with_the_routes_of_the_cache() -> None:
    async def story() -> dict[str, Any]:
        async with watched(FakeEngine()) as pictures:
            await anext(pictures)
            return await anext(pictures)

    picture = asyncio.run(story())
    machine, app = picture["machine"], fake_app()
    assert picture["engine"] == {"state": "ready", "reason": "", "busy": False}
    assert picture["model"]["name"] == "fake-model" and picture["model"]["chat_template"] is True
    assert machine["cache"] == get(app, "/v1/cache/stats").json()
    assert machine["routes"] == get(app, "/v1/internal/routes").json()["routes"]
    for group, told in zip(machine["groups"], machine["cache"]["groups"], strict=True):
        counts = group["counts"]
        assert (counts["free"], counts["cached"], group["blocks"]) == (told["free"], told["cached"], told["total"])
        assert counts["live"] + counts["shared"] + counts["pinned"] == told["live"]
    assert machine["groups"][0]["runs"][0] == [2, 1, 0, 1, 16, 1] and machine["groups"][1]["window"] == 64
    [request] = machine["requests"]
    assert (request["id"], request["stage"], request["max_generated_tokens"]) == ("one", "running", 8)
    assert machine["rates"]["generated_tokens_per_s"] == 0 and machine["rates"]["first_token_s"] is None


def test_rates_are_of_the_time_since_the_last_event() -> None:
    async def story() -> dict[str, Any]:
        engine = FakeEngine()
        async with watched(engine) as pictures:
            first = await anext(pictures)
            assert first["machine"]["rates"]["generated_tokens_per_s"] is None
            engine.counted = replace(STATS, generated_tokens=STATS.generated_tokens + 30)
            while not (rates := (await anext(pictures))["machine"]["rates"])["generated_tokens_per_s"]:
                pass
            return rates

    assert asyncio.run(story())["generated_tokens_per_s"] == 60  # the fake engine's clock ticks by half a second


def test_while_the_model_loads_there_is_a_state_and_no_machine() -> None:
    async def story() -> dict[str, Any]:
        async with watched(FakeEngine(state="loading", reason="loading the model: 7%")) as pictures:
            return await anext(pictures)

    picture = asyncio.run(story())
    assert picture["machine"] is None and picture["model"] is None
    assert picture["engine"]["reason"] == "loading the model: 7%"


def test_a_viewer_who_leaves_ends_the_ticking() -> None:
    async def story() -> None:
        engine = FakeEngine()
        app = fake_app(engine)
        async with (
            served(app) as url,
            httpx.AsyncClient(base_url=url, timeout=10, trust_env=False) as client,
        ):
            async with client.stream("GET", "/v1/internal/events") as response:
                await anext(events(response))
                assert app.state.feed.num_viewers == 1
            while app.state.feed.is_ticking:
                await asyncio.sleep(0.01)
            assert app.state.feed.num_viewers == 0

    asyncio.run(story())


def test_the_machine_can_be_asked_for_once() -> None:
    machine = get(fake_app(), "/v1/internal/machine").json()["machine"]
    assert machine["memory"]["kv_bytes"] == 4096 and machine["rates"]["step_s"] is None
    assert get(fake_app(FakeEngine(state="failed", reason="it fell")), "/v1/internal/machine").status == 503


@pytest.mark.parametrize("path", ["/v1/internal/events", "/v1/internal/machine"])
def test_what_is_in_the_machine_takes_a_key(path: str) -> None:
    assert get(fake_app(api_keys=("secret",)), path).status == 401
