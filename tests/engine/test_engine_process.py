"""The engine in a child process of its own: real processes, a fake engine where a model adds nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from octavo.config import EngineConfig
from octavo.engine.async_client import LOAD_ENGINE, ProcessEngine, RemoteEngine, ServingLimits, ThreadEngine
from octavo.engine.events import StepEvent
from octavo.engine.stats import EngineStats
from octavo.errors import EngineFault, InvalidRequest, LoadError, NotReady, QueueFull
from octavo.llm import LLM
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from tests.engine.engine_factories import BROKEN, FAKE, UNLOADABLE, WITH_FAULTS
from tests.engine.fake_core import FakeCore, request_of
from tests.engine.tiny_engines import prompt_of

CONFIG = EngineConfig(
    dtype="bfloat16",
    device="cpu",
    threads=1,
    max_context=512,
    max_num_seqs=3,
    prefill_chunk=4,
    num_kv_blocks=96,
)
LIMITS = ServingLimits(max_queue=8, max_unread_tokens=200)
_T = TypeVar("_T")
Scene = Callable[[RemoteEngine], Awaitable[_T]]


class Stage:
    """An engine that has started, and the event loop it belongs to."""

    def __init__(self, engine: RemoteEngine) -> None:
        self.engine = engine
        self._runner = asyncio.Runner()
        self._runner.run(engine.start())

    def play(self, scene: Scene[_T]) -> _T:
        async def in_time() -> _T:
            async with asyncio.timeout(60):
                return await scene(self.engine)

        return self._runner.run(in_time())

    def close(self) -> None:
        self._runner.run(self.engine.stop())
        self._runner.close()


@pytest.fixture(scope="module", params=[ProcessEngine, ThreadEngine], ids=["process", "thread"])
def tiny(request: pytest.FixtureRequest, directory: Callable[[str], Path]) -> Iterator[Stage]:
    """A tiny real model, served in either form."""
    stage = Stage(request.param(LOAD_ENGINE, (directory("llama"), CONFIG, "tiny"), LIMITS))
    yield stage
    stage.close()


@pytest.fixture
def fake() -> Iterator[Stage]:
    """A fake engine in a child process."""
    stage = Stage(ProcessEngine(FAKE, (), LIMITS))
    yield stage
    stage.close()


async def collect(engine: RemoteEngine, *requests: Request) -> list[StepEvent]:
    return [event async for events in engine.run(requests) for event in events]


async def idle(engine: RemoteEngine) -> EngineStats:
    """The engine's numbers once nothing is left of any request."""
    while engine.stats is None or engine.stats.num_waiting or engine.stats.num_running:
        await asyncio.sleep(0.01)
    return engine.stats


def text_of(events: list[StepEvent]) -> str:
    return "".join(event.delta.text for event in events)


def ids_of(events: list[StepEvent]) -> tuple[int, ...]:
    return tuple(token_id for event in events for token_id in event.delta.token_ids)


def long_request(request_id: str, prompt: int = 20, max_tokens: int = 400) -> Request:
    return Request(request_id, prompt_of(prompt), SamplingParams(max_tokens=max_tokens, ignore_eos=True), 0)


# -- a real model ----------------------------------------------------------------------------------------------------


def test_outputs_equal_those_of_the_offline_api(tiny: Stage, directory: Callable[[str], Path]) -> None:
    llm = LLM(directory("llama"), dtype="bfloat16", device="cpu", threads=1, max_context=512)
    params = [
        SamplingParams(max_tokens=24, ignore_eos=True),
        SamplingParams(max_tokens=24, temperature=0.9, seed=7, ignore_eos=True),
        SamplingParams(max_tokens=9, logprobs=3),
        SamplingParams(max_tokens=24, temperature=1.0, seed=8, stop=("e",)),
    ]
    prompts = [prompt_of(3 + 20 * i, i) for i in range(len(params))]
    expected = [llm.generate([p], each)[0].outputs[0] for p, each in zip(prompts, params, strict=True)]

    async def scene(engine: RemoteEngine) -> list[list[StepEvent]]:
        requests = [
            Request(f"r{i}", p, each, each.seed or 0) for i, (p, each) in enumerate(zip(prompts, params, strict=True))
        ]
        return await asyncio.gather(*(collect(engine, request) for request in requests))

    for events, output in zip(tiny.play(scene), expected, strict=True):
        assert ids_of(events) == output.token_ids
        assert text_of(events) == output.text
        assert events[-1].delta.finish_reason == output.finish_reason
        assert [event.delta.finish_reason for event in events[:-1]] == [None] * (len(events) - 1)
        found = tuple(event.logprobs for event in events if event.logprobs is not None)
        assert found == (output.logprobs or ())


def test_choices_of_one_prompt_run_together(tiny: Stage) -> None:
    async def scene(engine: RemoteEngine) -> list[StepEvent]:
        params = SamplingParams(max_tokens=6, temperature=1.0, ignore_eos=True)
        return await collect(engine, *(Request(f"c{i}", prompt_of(5), params, 3, i) for i in range(3)))

    events = tiny.play(scene)
    by_choice = [ids_of([event for event in events if event.delta.index == i]) for i in range(3)]
    assert [len(ids) for ids in by_choice] == [6, 6, 6]
    assert len(set(by_choice)) > 1


@pytest.mark.parametrize("where", ["queue", "prefill", "decode"])
def test_leaving_a_request_frees_its_blocks_wherever_it_is(tiny: Stage, where: str) -> None:
    async def scene(engine: RemoteEngine) -> None:
        before = sum(block.free + block.cached for block in (await idle(engine)).blocks)
        occupants = [engine.run([long_request(f"o{i}")]) for i in range(3 if where == "queue" else 1)]
        for occupant in occupants:
            await anext(occupant)
        run = engine.run([long_request(where, prompt=20 if where == "decode" else 400, max_tokens=100)])
        first = asyncio.ensure_future(anext(run))
        if where == "decode":
            await first
        for _ in range(2):  # a prefill takes a hundred steps
            await anext(occupants[0])
        assert where != "queue" or not first.done()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        for each in (run, *occupants):
            await each.aclose()
        after = await idle_again(engine)
        assert sum(block.free + block.cached for block in after.blocks) == before
        assert all(block.live == 0 for block in after.blocks)
        assert len(ids_of(await collect(engine, long_request("next", max_tokens=3)))) == 3

    async def idle_again(engine: RemoteEngine) -> EngineStats:
        await asyncio.sleep(0)
        await engine.reset_prefix_cache()  # answered after the aborts
        return await idle(engine)

    tiny.play(scene)


def test_what_the_engine_refuses_is_raised_with_its_own_words(tiny: Stage) -> None:
    async def scene(engine: RemoteEngine) -> None:
        with pytest.raises(InvalidRequest, match="the prompt has 600 tokens; the context holds 512"):
            await collect(engine, long_request("long", prompt=600))
        with pytest.raises(InvalidRequest, match="the prompt has 0 tokens"):
            await collect(engine, Request("empty", (), SamplingParams(), 0))

    tiny.play(scene)


def test_a_server_learns_what_it_serves(tiny: Stage, directory: Callable[[str], Path]) -> None:
    info = tiny.engine.info
    assert (info.name, info.family, info.vocab_size) == ("tiny", "llama", 384)
    assert (info.max_context, info.max_prompt_tokens, info.dtype, info.storage) == (512, 511, "bfloat16", "paged")
    ids = tiny.engine.tokenizer.encode("as it was")
    assert tiny.engine.tokenizer.decode(ids) == "as it was"


def test_a_gguf_tokenizer_crosses_as_it_is(directory: Callable[[str], Path]) -> None:
    stage = Stage(ProcessEngine.for_model(directory("llama-q4_0"), CONFIG, "tiny"))
    try:
        text = "Schöne Grüße, 123 <|im_start|>"
        expected = LLM(directory("llama-q4_0"), device="cpu", threads=1).tokenizer
        for parse in (False, True):
            assert stage.engine.tokenizer.encode(text, parse_special=parse) == expected.encode(
                text, parse_special=parse
            )
    finally:
        stage.close()


def test_requests_that_fail_in_a_step_of_a_real_engine_end_with_their_causes_and_no_other_does(
    directory: Callable[[str], Path],
) -> None:
    stage = Stage(ProcessEngine(WITH_FAULTS, (directory("llama"), CONFIG)))

    async def scene(engine: RemoteEngine) -> list[list[StepEvent]]:
        names = ("nan", "sound", "raise", "other")
        return await asyncio.gather(*(collect(engine, long_request(name, max_tokens=12)) for name in names))

    try:
        nan, sound, raised, other = stage.play(scene)
        assert stage.engine.status.state == "ready"
    finally:
        stage.close()
    for bad in (nan, raised):
        assert (bad[-1].fault, bad[-1].delta.finish_reason) == ("fault", "error")
    assert "in the middle of a step" in (raised[-1].error or "")
    assert ids_of(sound) == ids_of(other)
    assert len(ids_of(sound)) == 12


def test_deadlines_end_requests_that_wait_or_take_too_long(tiny: Stage) -> None:
    async def scene(engine: RemoteEngine) -> None:
        occupants = [engine.run([long_request(f"o{i}")]) for i in range(3)]
        for occupant in occupants:
            await anext(occupant)
        late = replace(long_request("late"), queue_timeout_s=0.001)
        assert [event.fault for event in await collect(engine, late)] == ["queue_timeout"]
        for occupant in occupants:
            await occupant.aclose()
        slow = replace(long_request("slow"), timeout_s=0.05)
        events = await collect(engine, slow)
        assert events[-1].fault == "request_timeout"
        assert len(ids_of(events)) < 400

    tiny.play(scene)


def test_a_model_that_cannot_be_loaded_is_refused_as_it_is_in_this_process(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and nothing more")
    with pytest.raises(LoadError) as expected:
        LLM(path)

    async def main() -> None:
        engine = ProcessEngine.for_model(path, CONFIG, "broken")
        with pytest.raises(LoadError) as raised:
            await engine.start()
        assert str(raised.value) == str(expected.value)
        assert type(raised.value) is type(expected.value)
        assert engine.status.state == "failed"
        assert is_gone(engine)

    asyncio.run(main())


# -- a fake one ------------------------------------------------------------------------------------------------------


def is_gone(engine: RemoteEngine) -> bool:
    """Whether the engine's process has been waited for."""
    assert isinstance(engine, ProcessEngine)
    assert engine.pid is not None
    try:
        os.kill(engine.pid, 0)
    except ProcessLookupError:
        return True
    return False


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
