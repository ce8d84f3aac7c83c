"""When a request was queued, began, got its first token and ended, as its first and last events tell."""

from __future__ import annotations

import time

import pytest

from octavo.engine.core import EngineCore
from octavo.engine.events import RequestTimes
from octavo.engine.loaded_model import LoadedModel
from octavo.request import Request
from octavo.sampling_params import SamplingParams
from tests.engine.tiny_engines import Driver, Outcome, prompt_of


def core_of(loaded: LoadedModel, *names: str) -> EngineCore:
    """An engine that runs one request at a time; those of `names` may come."""
    driver = Driver(loaded, max_num_seqs=1)
    driver.outcomes = {name: Outcome() for name in names}
    return driver.core


def request_of(name: str, num_tokens: int, **fields: object) -> Request:
    params = SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    return Request(name, prompt_of(9), params, 0, **fields)  # type: ignore[arg-type]


def test_the_first_event_and_the_last_carry_the_times_and_no_other_does(load):
    core = core_of(load(), "a")
    before = time.perf_counter()
    core.add(request_of("a", 4))
    added = time.perf_counter()
    events = [event for _ in range(4) for event in core.step()]
    after = time.perf_counter()
    first, *between, last = [event.times for event in events]
    assert between == [None, None]
    assert first is not None and first.started is not None and first.first_token is not None
    assert before <= first.queued <= added <= first.started <= first.first_token
    assert first.ended is None
    assert last is not None and last.ended is not None
    assert (last.queued, last.started, last.first_token) == (first.queued, first.started, first.first_token)
    assert last.first_token is not None and last.first_token < last.ended <= after


def test_one_that_waits_begins_when_the_one_before_it_has_ended(load):
    core = core_of(load(), "runs", "waits")
    for name in ("runs", "waits"):
        core.add(request_of(name, 3))
    ends: dict[str, RequestTimes] = {}
    while core.has_work:
        for event in core.step():
            if event.delta.finish_reason is not None and event.times is not None:
                ends[event.delta.request_id] = event.times
    assert ends["waits"].started is not None and ends["runs"].ended is not None
    assert ends["waits"].queued < ends["runs"].ended <= ends["waits"].started


def test_one_that_expires_in_the_queue_never_began(load):
    core = core_of(load(), "expires")
    core.add(request_of("expires", 3, queue_timeout_s=1000))
    (expired,) = core.expire(time.perf_counter() + 1000)
    assert expired.times is not None and expired.times.ended is not None
    assert (expired.times.started, expired.times.first_token) == (None, None)
    assert expired.times.prefill_s == expired.times.decode_s == 0


def test_durations_come_from_the_times():
    assert RequestTimes(1.0, 2.0, 4.0, 8.0).prefill_s == 2.0
    assert RequestTimes(1.0, 2.0, 4.0, 8.0).decode_s == 4.0
    assert RequestTimes(1.0, 2.0, None, 3.5).prefill_s == pytest.approx(1.5)
    assert RequestTimes(1.0, None, None, 3.5).prefill_s == 0.0
    assert RequestTimes(1.0, 2.0, 4.0).decode_s == 0.0
