"""Steps that fail: whose fault it was is found out, that request ends with the cause, and the others go on."""

from __future__ import annotations

import pytest

from octavo.engine.core import MOST_LONE_FAULTS
from octavo.step_batch import StorageKind
from tests.engine.tiny_engines import STORAGES, Driver, alone, prompt_of

LENGTHS = {"a": 40, "b": 3, "c": 9}
POISON = 7  # a token id that the device chokes on
both_storages = pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)


class DeviceFault(Exception):
    """What a step fails with here."""


@pytest.fixture
def choking(monkeypatch):
    """Have an engine's forward pass fail while `fails(step batch)`; returns how often it did."""

    def install(driver: Driver, fails) -> list[int]:
        forward, failures = driver.core.runner.forward, []

        def maybe(batch, *token_ids):
            if fails(batch):
                failures.append(len(batch.rows))
                raise DeviceFault("the device choked\non a token")
            return forward(batch, *token_ids)

        monkeypatch.setattr(driver.core.runner, "forward", maybe)
        return failures

    return install


def poisoned(batch) -> bool:
    return any(POISON in row.token_ids for row in batch.rows)


def clean_prompt(length: int) -> tuple[int, ...]:
    return tuple(token + (token == POISON) for token in prompt_of(length))


def submit(driver: Driver) -> None:
    for name, length in LENGTHS.items():
        driver.add(name, clean_prompt(length))


def assert_others_unharmed(loaded, driver: Driver, victim: str | None = None) -> None:
    for name, length in LENGTHS.items():
        outcome = driver.outcomes[name]
        if name != victim:
            assert (outcome.finish_reason, outcome.error) == ("length", None)
            assert outcome.token_ids == alone(loaded, clean_prompt(length)).token_ids
    driver.assert_idle()


@both_storages
@pytest.mark.parametrize("case", ["llama", "gemma3"])
@pytest.mark.parametrize("chunk", [16, 64])
def test_the_request_that_makes_steps_fail_ends_with_the_cause_and_the_others_go_on(
    load, choking, case, storage, chunk
):
    loaded = load(case)
    driver = Driver(loaded, storage, max_num_seqs=4, prefill_chunk=chunk)
    choking(driver, poisoned)
    submit(driver)
    driver.step()
    driver.add("bad", (*clean_prompt(20), POISON, *clean_prompt(5)))
    events = []
    while driver.core.has_work:
        events += driver.step()
    (last,) = [event for event in events if event.delta.request_id == "bad"]
    assert (last.delta.finish_reason, last.fault) == ("error", "fault")
    assert last.error is not None and last.error.startswith("DeviceFault: the device choked on a token (")
    assert_others_unharmed(loaded, driver)


@both_storages
@pytest.mark.parametrize("case", ["llama", "gemma3"])
@pytest.mark.parametrize("failing", range(5))
def test_a_step_that_fails_once_is_made_up_for_at_once(load, choking, case, storage, failing):
    loaded, calls = load(case), iter(range(1000))
    driver = Driver(loaded, storage, max_num_seqs=2, prefill_chunk=16)
    failures = choking(driver, lambda batch: next(calls) == failing)
    submit(driver)
    driver.run()
    assert len(failures) == 1
    assert_others_unharmed(loaded, driver)


def test_a_fault_of_every_request_is_the_engines_and_leaves_all_where_they_were(load, choking):
    loaded, broken = load(), [False]
    driver = Driver(loaded, max_num_seqs=4)
    choking(driver, lambda batch: broken[0])
    submit(driver)
    driver.step()
    given = {name: list(outcome.token_ids) for name, outcome in driver.outcomes.items()}
    broken[0] = True
    for _ in range(3):
        with pytest.raises(DeviceFault):
            driver.step()
    broken[0] = False
    assert {name: outcome.token_ids for name, outcome in driver.outcomes.items()} == given
    driver.run()
    assert_others_unharmed(loaded, driver)


def test_a_lone_request_that_fails_ends_and_several_in_a_row_are_the_engines_fault(load, choking):
    driver = Driver(load(), max_num_seqs=1)
    choking(driver, lambda batch: True)
    for name in map(str, range(MOST_LONE_FAULTS)):
        driver.add(name, prompt_of(5))
    for name in map(str, range(MOST_LONE_FAULTS - 1)):
        (event,) = driver.step()
        assert (event.delta.request_id, event.fault) == (name, "fault")
    with pytest.raises(DeviceFault):
        driver.step()


@both_storages
@pytest.mark.parametrize("part", ["push", "finish"])
def test_a_request_of_whose_token_no_text_can_be_made_ends_alone_with_the_cause(load, storage, part, monkeypatch):
    loaded = load()
    driver = Driver(loaded, storage, max_num_seqs=4)
    submit(driver)
    driver.step()
    detokenizer = driver.core._live["b"].output._detokenizer

    def fail(*arguments):
        raise KeyError("a token without bytes")

    monkeypatch.setattr(detokenizer, part, fail)
    events = []
    while driver.core.has_work:
        events += driver.step()
    (last,) = [event for event in events if event.delta.request_id == "b" and event.delta.finish_reason]
    assert (last.delta.finish_reason, last.fault) == ("error", "fault")
    assert last.error is not None and last.error.startswith("KeyError: 'a token without bytes' (")
    assert_others_unharmed(loaded, driver, victim="b")


def test_what_happened_before_an_interrupt_is_told_after_it(load, choking, monkeypatch):
    """While the rows of a failed step are tried one by one, the second try is broken off."""
    loaded, calls = load(), iter(range(1000))
    driver = Driver(loaded, max_num_seqs=4)

    def fails(batch) -> bool:
        call = next(calls)
        if call == 3:
            raise KeyboardInterrupt
        return call == 1  # the second step

    choking(driver, fails)
    submit(driver)
    driver.step()
    with pytest.raises(KeyboardInterrupt):
        driver.step()
    driver.run()
    assert_others_unharmed(loaded, driver)


def test_a_culprit_whose_chunk_in_rings_cannot_be_taken_back_is_tried_from_its_beginning(load, choking):
    driver = Driver(load("gemma3"), StorageKind.DENSE, max_num_seqs=1, prefill_chunk=16)
    failures = choking(driver, poisoned)
    driver.add("bad", (*clean_prompt(20), POISON, *clean_prompt(5)))
    driver.run(max_steps=3)
    assert (driver.outcomes["bad"].finish_reason, len(failures)) == ("error", 2)
    driver.assert_idle()
