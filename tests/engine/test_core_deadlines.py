"""Requests that wait or take too long end by themselves, at any stage, and leave nothing behind."""

from __future__ import annotations

import time

import pytest

from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import GREEDY_12, Driver, Outcome, alone, prompt_of


def submit(driver: Driver, name: str, length: int, queue: float | None = None, whole: float | None = None) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    driver.core.add(Request(name, prompt_of(length), params, 0, queue_timeout_s=queue, timeout_s=whole))
    driver.outcomes[name] = Outcome()


def test_who_was_never_started_ends_by_its_queue_timeout_and_who_was_does_not(load):
    loaded = load()
    driver = Driver(loaded, max_num_seqs=1)
    began = time.perf_counter()
    for name in ("runs", "waits", "patient"):
        submit(driver, name, 9, queue=None if name == "patient" else 1000)
    driver.step()
    assert driver.core.expire(began + 999) == []
    (event,) = driver.core.expire(time.perf_counter() + 1000)
    assert (event.delta.request_id, event.delta.finish_reason, event.fault) == ("waits", "error", "queue_timeout")
    assert event.error is not None and "1000 s" in event.error
    assert driver.core.num_waiting == 1
    driver.run()
    expected = alone(loaded, prompt_of(9), GREEDY_12).token_ids
    assert driver.outcomes["runs"].token_ids == driver.outcomes["patient"].token_ids == expected
    driver.assert_idle()


def test_a_preempted_request_has_been_started(load):
    driver = Driver(load(), StorageKind.PAGED)
    submit(driver, "a", 9, queue=1000)
    driver.step()
    driver.core.preempt("a")
    assert driver.core.expire(time.perf_counter() + 5000) == []
    driver.run()
    assert driver.outcomes["a"].finish_reason == "length"


@pytest.mark.parametrize("steps", [0, 1, 4], ids=["queued", "between chunks", "decoding"])
def test_the_request_timeout_ends_it_at_any_stage_with_what_it_has(load, steps):
    loaded = load()
    driver = Driver(loaded, max_num_seqs=1, prefill_chunk=16)
    submit(driver, "a", 40, whole=30)
    for _ in range(steps):
        driver.step()
    (event,) = driver.core.expire(time.perf_counter() + 31)
    assert (event.delta.finish_reason, event.fault) == ("error", "request_timeout")
    given = driver.outcomes["a"].token_ids
    assert (given, event.delta.token_ids) == (alone(loaded, prompt_of(40)).token_ids[: max(0, steps - 2)], ())
    driver.assert_idle()
    assert driver.core.expire(time.perf_counter() + 9999) == []


def test_deadlines_of_requests_that_ended_or_were_aborted_are_forgotten(load):
    driver = Driver(load())
    submit(driver, "a", 5, whole=30)
    submit(driver, "b", 5, whole=30, queue=30)
    driver.core.abort("b")
    driver.run()
    for name in ("a", "b"):
        submit(driver, name, 5)
    assert driver.core.expire(time.perf_counter() + 9999) == [], "these are others, without a limit"
