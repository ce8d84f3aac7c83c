"""The engine's loop over a fake engine and a scripted port: no thread, no clock, no socket."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from octavo.engine.engine_loop import EngineLoop
from octavo.engine.events import StepEvent
from octavo.engine.wire import (
    Abort,
    Command,
    Fatal,
    FrameReader,
    Inspect,
    Inspected,
    Message,
    PrefixCacheReset,
    Refused,
    ResetPrefixCache,
    Step,
    Stop,
    Submit,
    encode,
    frame,
)
from octavo.errors import EngineFault, InvalidRequest
from octavo.outputs import TextDelta, TokenLogprobs
from octavo.request import Request
from tests.engine.fake_core import FakeCore, request_of


class ScriptedPort:
    """Hands out one batch of commands per call while there is work; hangs up when asked to wait with none left."""

    def __init__(self, *batches: Sequence[Command]) -> None:
        self.batches = [list(batch) for batch in batches]
        self.waits: list[bool] = []
        self.sent: list[Message] = []

    def receive(self, wait: bool) -> Sequence[Command]:
        self.waits.append(wait)
        if self.batches:
            return self.batches.pop(0)
        if wait:
            raise EOFError
        return ()

    def send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def steps(self) -> list[Step]:
        return [message for message in self.sent if isinstance(message, Step)]


class Clock:
    """Advances by a millisecond at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def run(core: FakeCore, *batches: Sequence[Command], stats_interval_s: float = 1e9) -> ScriptedPort:
    port = ScriptedPort(*batches)
    EngineLoop(core, port, stats_interval_s, Clock()).run()
    return port


def texts(port: ScriptedPort, handle: int) -> str:
    """All text that a request was sent."""
    return "".join(
        event[1] if len(event) == 3 else event[1].delta.text
        for step in port.steps
        for event in step.events
        if event[0] == handle
    )


def test_each_step_is_one_message_with_the_events_of_all_requests() -> None:
    port = run(FakeCore(), [Submit(0, (request_of("a"), request_of("b")))])
    assert [len(step.events) for step in port.steps] == [2, 2, 2]
    assert texts(port, 0) == texts(port, 1) == "<0><1><2>"


def test_a_decode_step_travels_as_plain_tuples_and_the_ends_as_whole_events() -> None:
    port = run(FakeCore(), [Submit(5, (request_of("a"),))])
    first, middle, last = (step.events[0] for step in port.steps)
    assert middle == (5, "<1>", (1,))
    assert isinstance(first[1], StepEvent)
    assert first[1].num_cached_tokens == 1
    assert isinstance(last[1], StepEvent)
    assert last[1].delta.finish_reason == "length"


def test_the_loop_waits_only_while_there_is_nothing_to_compute() -> None:
    port = run(FakeCore(), [], [Submit(0, (request_of("a"),))], [], [])
    assert port.waits == [True, True, False, False, True]


def test_a_stop_ends_the_loop_whatever_runs() -> None:
    core = FakeCore()
    port = run(core, [Submit(0, (request_of("a", 100),))], [], [Stop()])
    assert core.num_steps == 2
    assert core.has_work
    assert not any(isinstance(message, Fatal) for message in port.sent)


def test_an_abort_takes_effect_before_the_next_step() -> None:
    core = FakeCore()
    port = run(core, [Submit(0, (request_of("a", 100),))], [Abort((0,))])
    assert core.num_steps == 1
    assert core.aborted == ["a"]
    assert port.steps[-1][1:4] == (1, 0, 0)


def test_an_abort_of_a_request_that_has_ended_is_passed_over() -> None:
    core = FakeCore()
    run(core, [Submit(0, (request_of("a", 1),))], [Abort((0,)), Abort((17,))])
    assert core.aborted == []


def test_the_id_of_an_aborted_request_can_be_used_again() -> None:
    port = run(FakeCore(), [Submit(0, (request_of("a", 9),))], [Abort((0,)), Submit(1, (request_of("a", 2),))])
    assert texts(port, 1) == "<0><1>"
    assert texts(port, 0) == "<0>"


def test_a_submission_of_which_one_is_refused_queues_none() -> None:
    core = FakeCore()
    bad = request_of("bad")
    bad = Request("bad", (FakeCore.REFUSED,), bad.params, 0)
    port = run(core, [Submit(0, (request_of("a"), bad, request_of("c"))), Submit(3, (request_of("d"),))])
    [refused] = [message for message in port.sent if isinstance(message, Refused)]
    assert refused.first_handle == 0
    assert isinstance(refused.error, InvalidRequest)
    assert str(refused.error) == "request bad is refused"
    assert core.aborted == ["a"]
    assert {event[0] for step in port.steps for event in step.events} == {3}


def test_a_request_that_breaks_the_engine_on_its_way_in_ends_alone() -> None:
    broken = Request("b", (FakeCore.BROKEN,), request_of("b").params, 0)
    port = run(FakeCore(), [Submit(0, (request_of("a"),)), Submit(1, (broken,))])
    [refused] = [message for message in port.sent if isinstance(message, Refused)]
    assert isinstance(refused.error, EngineFault)
    assert "ZeroDivisionError: nobody foresaw this" in str(refused.error)
    assert texts(port, 0) == "<0><1><2>"


def test_a_request_that_fails_in_a_step_ends_with_its_cause_and_the_others_go_on() -> None:
    poison = Request("p", (FakeCore.POISON,), request_of("p").params, 0)
    port = run(FakeCore(), [Submit(0, (poison, request_of("a")))])
    event = port.steps[0].events[0][1]
    assert isinstance(event, StepEvent)
    assert (event.fault, event.error) == ("fault", "its logits are not numbers")
    assert texts(port, 1) == "<0><1><2>"


def test_deadlines_are_looked_at_before_every_step_by_the_time_it_begins() -> None:
    core = FakeCore()
    late = Request("late", (FakeCore.EXPIRED,), request_of("late").params, 0)
    port = run(core, [Submit(0, (late, request_of("a", 2)))])
    event = port.steps[0].events[0][1]
    assert isinstance(event, StepEvent)
    assert event.fault == "queue_timeout"
    assert len(core.expired_at) == core.num_steps == 2
    assert core.expired_at == sorted(core.expired_at)


def test_no_step_is_run_for_requests_that_have_all_expired() -> None:
    core = FakeCore()
    late = Request("late", (FakeCore.EXPIRED,), request_of("late").params, 0)
    port = run(core, [Submit(0, (late,))])
    assert core.num_steps == 0
    assert port.steps[-1].stats is not None
    assert port.steps[-1].stats.steps == 0


def test_a_crash_of_the_engine_is_told_with_its_cause_on_one_line() -> None:
    crash = Request("c", (FakeCore.CRASH,), request_of("c").params, 0)
    port = ScriptedPort([Submit(0, (crash,))])
    with pytest.raises(RuntimeError):
        EngineLoop(FakeCore(), port).run()
    fatal = port.sent[-1]
    assert isinstance(fatal, Fatal)
    assert fatal.cause.startswith("the engine failed: RuntimeError: the device is on fire (fake_core.py:")


def test_messages_tell_how_many_arrived_wait_and_run() -> None:
    port = run(
        FakeCore(slots=1), [Submit(0, (request_of("a", 2), request_of("b", 1)))], [Submit(2, (request_of("c"),))]
    )
    assert [step[1:4] for step in port.steps][:2] == [(2, 1, 1), (3, 2, 0)]
    assert port.steps[-1][1:4] == (3, 0, 0)


def test_statistics_come_when_the_engine_goes_idle_and_at_most_so_often_while_it_is_busy() -> None:
    quiet = run(FakeCore(), [Submit(0, (request_of("a", 50),))])
    assert [step.stats is not None for step in quiet.steps] == [False] * 49 + [True]
    often = run(FakeCore(), [Submit(0, (request_of("a", 50),))], stats_interval_s=0.01)
    given = [i for i, step in enumerate(often.steps) if step.stats is not None]
    assert 5 < len(given) < 25


def test_statistics_count_steps_batches_and_tokens() -> None:
    port = run(FakeCore(), [Submit(0, (request_of("a", 3, 5), request_of("b", 1, 4)))])
    stats = port.steps[-1].stats
    assert stats is not None
    assert stats.steps == sum(stats.step_seconds.counts) == 3
    assert stats.batch_size.bounds[:2] == (1.0, 2.0)
    assert stats.batch_size.counts[:2] == (2, 1)
    assert stats.batch_size.total == 4
    assert (stats.prompt_tokens, stats.cached_prompt_tokens, stats.generated_tokens) == (9, 2, 4)
    assert (stats.num_waiting, stats.num_running) == (0, 0)
    assert (stats.kv_bytes, stats.weight_bytes, stats.blocks[0].free) == (7, 5, 10)


def test_the_prefix_cache_is_reset_on_request() -> None:
    port = run(FakeCore(), [ResetPrefixCache(3)])
    assert port.sent[0] == PrefixCacheReset(3, 4)


def test_frames_arrive_whole_however_the_bytes_are_cut() -> None:
    values = [Abort((1, 2)), Step([(1, "é", (5,))], 1, 2, 3), Fatal("x" * 5000)]
    data = b"".join(map(frame, values))
    for size in (1, 7, 100, len(data)):
        reader, got = FrameReader(), []
        for start in range(0, len(data), size):
            got += reader.feed(data[start : start + size])
        assert got == values


@pytest.mark.parametrize(
    "more",
    [{"logprobs": TokenLogprobs(1, -0.5)}, {"num_cached_tokens": 0}, {"prompt_logprobs": (None,)}, {"error": "e"}],
    ids=lambda more: next(iter(more)),
)
def test_only_events_that_add_nothing_but_text_and_tokens_are_sent_plain(more: dict[str, object]) -> None:
    delta = TextDelta("a", 0, "x", (1,), "error" if "error" in more else None)
    assert encode(7, StepEvent(TextDelta("a", 0, "x", (1,)))) == (7, "x", (1,))
    event = StepEvent(delta, **more)  # type: ignore[arg-type]
    assert encode(7, event) == (7, event)


def test_a_snapshot_is_made_when_asked_for_and_its_numbers_are_of_one_moment() -> None:
    core = FakeCore(slots=1)
    port = run(core, [Submit(0, (request_of("a", 2), request_of("b", 1)))], [Inspect(7)])
    [told] = [message for message in port.sent if isinstance(message, Inspected)]
    snapshot = told.snapshot
    assert told.call == 7 and snapshot.took_s > 0
    assert (snapshot.stats.num_running, snapshot.stats.num_waiting, snapshot.view.num_left_out) == (1, 1, 1)
    assert snapshot.stats.blocks[0].live == 1 and snapshot.stats.generated_tokens == 1
