"""The engine in a child process of its own: real processes, and a fake engine, for a model adds nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from octavo.engine.async_client import ProcessEngine, RemoteEngine
from octavo.engine.events import StepEvent
from octavo.errors import EngineFault, LoadError, NotReady, QueueFull, ShuttingDown
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from tests.engine.engine_factories import BROKEN, FAKE, UNLOADABLE
from tests.engine.engine_stage import LIMITS, Stage, collect, idle, ids_of, is_gone, text_of
from tests.engine.fake_core import FakeCore, request_of


@pytest.fixture
def fake() -> Iterator[Stage]:
    """A fake engine in a child process."""
    stage = Stage(ProcessEngine(FAKE, (), LIMITS))
    yield stage
    stage.close()


def pid_of(engine: RemoteEngine) -> int:
    assert isinstance(engine, ProcessEngine)
    assert engine.pid is not None
    return engine.pid


def test_two_readers_at_a_time_get_what_is_theirs(fake: Stage) -> None:
    async def scene(engine: RemoteEngine) -> list[list[StepEvent]]:
        return await asyncio.gather(*(collect(engine, request_of(i, 50)) for i in "ab"))

    for name, events in zip("ab", fake.play(scene), strict=True):
        assert text_of(events) == "".join(f"<{i}>" for i in range(50))
        assert {event.delta.request_id for event in events} == {name}


def test_a_child_writes_nothing_to_standard_output_and_its_log_lines_are_ours(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    Stage(ProcessEngine(FAKE, ())).close()
    assert capfd.readouterr().out == ""
    assert ("octavo.fake", "it is only a fake") in [(r.name, r.getMessage()) for r in caplog.records]


def test_a_stopped_engine_leaves_no_process(fake: Stage) -> None:
    async def scene(engine: RemoteEngine) -> None:
        reader = asyncio.create_task(collect(engine, request_of("a", 10**6)))
        await asyncio.sleep(0)
        await engine.stop()
        assert is_gone(engine)
        assert (await reader)[-1].fault == "shut_down"

    fake.play(scene)


def test_an_engine_that_is_stuck_in_a_step_can_be_stopped() -> None:
    stage = Stage(ProcessEngine(FAKE, (1000.0,), LIMITS))

    async def scene(engine: RemoteEngine) -> None:
        reader = asyncio.create_task(collect(engine, request_of("a")))
        await asyncio.sleep(0)
        await engine.drain(0)
        await engine.stop()
        assert is_gone(engine)
        assert (await reader)[-1].fault == "shut_down"

    stage.play(scene)
    stage.close()


def test_a_killed_engine_fails_its_requests_and_says_which_signal_it_was(
    fake: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(engine: RemoteEngine) -> None:
        runs = [engine.run([request_of(i, 10**6)]) for i in "abc"]
        for run in runs[:2]:
            await anext(run)
        waiting = asyncio.ensure_future(anext(runs[2]))
        await asyncio.sleep(0)
        os.kill(pid_of(engine), signal.SIGKILL)
        for run in runs[:2]:
            events = [event async for events in run for event in events]
            assert events[-1].fault == "engine_died"
            assert "SIGKILL" in (events[-1].error or "")
        assert (await waiting)[-1].fault == "engine_died"
        await runs[2].aclose()
        assert engine.status.state == "failed"
        assert "was killed by SIGKILL" in engine.status.reason
        assert is_gone(engine)
        with pytest.raises(NotReady, match="SIGKILL"):
            await collect(engine, request_of("d"))

    fake.play(scene)
    assert any("SIGKILL" in record.getMessage() for record in caplog.records)


def test_a_crash_of_the_loop_fails_all_requests_with_its_cause(fake: Stage) -> None:
    async def scene(engine: RemoteEngine) -> None:
        other = asyncio.create_task(collect(engine, request_of("a", 10**6)))
        await asyncio.sleep(0)
        crash = Request("c", (FakeCore.CRASH,), SamplingParams(), 0)
        assert "RuntimeError: the device is on fire" in ((await collect(engine, crash))[-1].error or "")
        assert (await other)[-1].fault == "engine_died"
        assert "RuntimeError: the device is on fire" in engine.status.reason

    fake.play(scene)


def test_a_request_that_fails_in_a_step_ends_alone(fake: Stage) -> None:
    async def scene(engine: RemoteEngine) -> None:
        poison = Request("p", (FakeCore.POISON,), SamplingParams(), 0)
        bad, good = await asyncio.gather(collect(engine, poison), collect(engine, request_of("a", 30)))
        assert [event.fault for event in bad] == ["fault"]
        assert len(ids_of(good)) == 30
        assert engine.status.state == "ready"

    fake.play(scene)


@pytest.mark.parametrize(
    ("factory", "kind", "message"),
    [
        (UNLOADABLE, LoadError, "^model.gguf is cut short; fetch it again$"),
        (BROKEN, EngineFault, "^the model could not be loaded: ZeroDivisionError: nobody foresaw this"),
        ("tests.engine.engine_factories:absent", EngineFault, "AttributeError"),
    ],
)
def test_a_failure_to_load_is_raised_by_start(factory: str, kind: type[Exception], message: str) -> None:
    async def main() -> None:
        engine = ProcessEngine(factory, ())
        with pytest.raises(kind, match=message):
            await engine.start()
        assert engine.status.state == "failed"
        assert is_gone(engine)

    asyncio.run(main())


def test_signals_to_the_whole_group_leave_the_engine_running(fake: Stage) -> None:
    async def scene(engine: RemoteEngine) -> None:
        for signum in (signal.SIGINT, signal.SIGTERM):
            os.kill(pid_of(engine), signum)
            assert len(ids_of(await collect(engine, request_of("a", 5)))) == 5

    fake.play(scene)


PARENT = """
import asyncio, os, sys
from octavo.engine.async_client import ProcessEngine
from tests.engine.fake_core import request_of

async def main():
    engine = ProcessEngine({factory!r}, ())
    {start}
    print("ready", flush=True)
    async for events in engine.run([request_of("a", 10**9)]):
        pass

asyncio.run(main())
"""


@contextmanager
def family(start: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with an engine. Both hold its standard error, which ends when both have. A test that fails ends it."""
    script = PARENT.format(factory=FAKE, start=start)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=root, start_new_session=True) as parent:
        try:
            yield parent
        finally:
            parent.kill()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_an_engine_does_not_outlive_its_parent(signum: signal.Signals) -> None:
    with family("await engine.start()") as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.send_signal(signum)
        parent.communicate(timeout=20)  # until standard error has ended, so the child too
        assert parent.returncode == -signum


def test_an_interrupt_from_the_terminal_is_the_parents_to_handle() -> None:
    with family("await engine.start()") as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        os.killpg(parent.pid, signal.SIGINT)
        _, errors = parent.communicate(timeout=20)
        assert b"KeyboardInterrupt" in errors
        assert errors.count(b"\nKeyboardInterrupt") == 1  # the parent's own, in this script


def test_an_interrupt_while_the_child_starts_does_not_end_it() -> None:
    """The parent handles it, so lives; the child has not had the time to say what it wants of signals."""
    start = "import signal; signal.signal(signal.SIGINT, lambda *a: None); start = asyncio.create_task(engine.start())"
    interrupt = "await asyncio.sleep(0); os.killpg(0, signal.SIGINT); await start"
    with family(f"{start}; {interrupt}") as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        parent.kill()
        parent.communicate(timeout=20)


def test_a_queue_that_is_full_is_told_at_once_and_takes_more_when_it_has_room(fake: Stage) -> None:
    async def scene(engine: RemoteEngine) -> None:
        readers = [asyncio.create_task(collect(engine, request_of(str(i), 10**6))) for i in range(10)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="8 requests wait already and at most 8 may"):
            await collect(engine, request_of("late"))
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await engine.reset_prefix_cache()  # answered after the aborts
        await idle(engine)
        assert len(ids_of(await collect(engine, request_of("next", 5)))) == 5

    fake.play(scene)


def test_a_slow_reader_is_ended_and_holds_nobody(fake: Stage) -> None:
    async def scene(engine: RemoteEngine) -> None:
        slow = engine.run([request_of("slow", 10**6)])
        await anext(slow)
        assert len(ids_of(await collect(engine, request_of("quick", 500)))) == 500
        events = await anext(slow)
        assert events[-1].fault == "slow_reader"
        assert len(ids_of(events)) == LIMITS.max_unread_tokens + 1
        await slow.aclose()
        assert (await idle(engine)).num_running == 0

    fake.play(scene)


def test_draining_lets_running_requests_end_and_ends_the_rest_at_the_deadline(fake: Stage) -> None:
    async def scene(engine: RemoteEngine) -> None:
        short = asyncio.create_task(collect(engine, request_of("short", 40)))
        endless = asyncio.create_task(collect(engine, request_of("endless", 10**9)))
        await asyncio.sleep(0)
        await engine.drain(0.5)
        assert (await short)[-1].delta.finish_reason == "length"
        assert (await endless)[-1].fault == "shut_down"
        assert engine.status.state == "draining"
        with pytest.raises(ShuttingDown, match="takes no new requests"):
            await collect(engine, request_of("late", 1))

    fake.play(scene)


def test_neither_side_waits_for_the_other_when_both_have_much_to_say(fake: Stage) -> None:
    """Prompts larger than the sockets' buffers, sent to an engine whose words nobody reads for a while."""

    async def scene(engine: RemoteEngine) -> None:
        flood = asyncio.create_task(collect(engine, request_of("flood", 1000)))
        await asyncio.sleep(0)
        readers = [asyncio.create_task(collect(engine, request_of(f"big{i}", 3, 300_000))) for i in range(4)]
        await asyncio.sleep(0)
        time.sleep(0.3)  # the event loop is held, and the sockets fill
        assert len(ids_of(await flood)) == 1000
        for reader in readers:
            assert text_of(await reader) == "<0><1><2>"

    fake.play(scene)


def test_the_web_process_needs_no_torch() -> None:
    code = "import sys, octavo.engine.async_client, octavo.engine.serving; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
