"""What a `Scheduler` shares between prompts with the same beginning, and keeps of one that gives way."""

from __future__ import annotations

import dataclasses
from unittest.mock import Mock

import pytest
from scheduler_simulation import StorageSimulation, make_common_state, make_pool, make_state
from scheduler_steps import DENSE, PAGED, complete, make_scheduler, run_all, scheduled, shape

from octavo.cache.prefix_types import PrefixDomain
from octavo.cache.refusals import InvalidArgument
from octavo.request import RequestState
from octavo.scheduler.scheduler import Scheduler


def test_a_prompt_that_was_computed_before_is_computed_from_its_last_block_on() -> None:
    scheduler, storage, states = make_scheduler(), StorageSimulation(), []
    for name in ("r1", "r2", "r3"):
        states.append(make_common_state(name, 40, 2))
        scheduler.add(states[-1])
        rows = run_all(scheduler, storage)
        first = 0 if name == "r1" else 32
        assert rows[0][:2] == (name, first)
    assert states[0].output_token_ids == states[1].output_token_ids == states[2].output_token_ids


def test_a_prompt_longer_by_the_answer_continues_where_that_ended() -> None:
    scheduler, storage = make_scheduler(), StorageSimulation()
    first = make_common_state("r1", 40, 20)
    scheduler.add(first)
    run_all(scheduler, storage)
    request = dataclasses.replace(first.request, request_id="r2", prompt_token_ids=first.tokens(0, 60))
    scheduler.add(RequestState(request, 70))
    assert run_all(scheduler, storage)[0] == ("r2", 48, 60, True)


def test_identical_prompts_that_arrive_together_are_computed_once_and_others_overtake_them() -> None:
    scheduler, storage = make_scheduler(make_pool((30, 30)), budget=48, chunk=16), StorageSimulation()
    states = [make_common_state(name, 60, 3) for name in ("r1", "r2", "r3")]
    scheduler.add(states[0])
    scheduler.add(states[1])
    scheduler.add(make_state("r4", 20, 3))
    step = scheduled(scheduler)
    assert shape(step) == [("r1", 0, 16, False), ("r4", 0, 16, False)]
    complete(scheduler, storage, step)
    scheduler.add(states[2])
    rows = run_all(scheduler, storage)
    assert next(row for row in rows if row[0] == "r2") == ("r2", 48, 60, True)
    assert next(row for row in rows if row[0] == "r3") == ("r3", 48, 60, True)
    assert states[0].output_token_ids == states[1].output_token_ids == states[2].output_token_ids


@pytest.mark.parametrize("end", ["abort", "preempt"])
def test_who_waits_for_a_beginning_goes_on_where_whoever_computed_it_is_gone(end: str) -> None:
    scheduler, storage = make_scheduler(make_pool((30, 30)), budget=48, chunk=16), StorageSimulation()
    for name in ("r1", "r2"):
        scheduler.add(make_common_state(name, 60, 3))
    complete(scheduler, storage, scheduled(scheduler))
    getattr(scheduler, end)("r1")
    rows = run_all(scheduler, storage)
    first = "r2" if end == "abort" else "r1"
    assert rows[0] == (first, 16, 32, False)
    assert next(start for name, start, *_ in rows if name == "r2") == (16 if end == "abort" else 48)


def test_prompts_shorter_than_a_block_wait_for_nobody() -> None:
    scheduler = make_scheduler()
    for name in ("r1", "r2"):
        scheduler.add(make_common_state(name, 16, 3))
    assert shape(scheduled(scheduler)) == [("r1", 0, 16, True), ("r2", 0, 16, True)]


def test_domains_and_rings_without_a_snapshot_share_nothing_and_the_cache_can_be_off() -> None:
    scheduler, storage = make_scheduler(), StorageSimulation()
    scheduler.add(make_common_state("r1", 40, 2))
    run_all(scheduler, storage)
    scheduler.add(make_common_state("r2", 40, 2), domain=PrefixDomain(salt="other"))
    assert run_all(scheduler, storage)[0][:2] == ("r2", 0)
    scheduler.add(make_common_state("r3", 40, 2), DENSE)
    assert run_all(scheduler, storage)[0][:2] == ("r3", 0)
    pool = make_pool()
    off = Scheduler(pool, 64, 32, PAGED, prefix_cache=False)
    for name in ("r1", "r2"):
        off.add(make_common_state(name, 40, 2))
        assert run_all(off, storage)[0][:2] == (name, 0)
    assert pool.num_cached_blocks == (0, 0)


def test_a_dense_prompt_is_computed_to_its_last_block_then_captured_and_sent_again_begins_there() -> None:
    scheduler, storage = make_scheduler(), StorageSimulation()
    for name, expected in (
        ("r1", [("r1", 0, 32, False), ("r1", 32, 64, False), ("r1", 64, 80, False), ("r1", 80, 90, True)]),
        ("r2", [("r2", 80, 90, True)]),
    ):
        scheduler.add(make_common_state(name, 90, 1), DENSE)
        assert run_all(scheduler, storage) == expected


def test_snapshots_that_do_not_match_the_captures_are_refused_and_the_step_stays_out() -> None:
    scheduler, storage = make_scheduler(chunk=64), StorageSimulation()
    scheduler.add(make_common_state("r1", 70, 2), DENSE)
    step = scheduled(scheduler)
    tokens = storage.run(step)
    assert (shape(step), step.captures) == ([("r1", 0, 64, False)], (0,))
    with pytest.raises(InvalidArgument, match="0 snapshots were given for 1 rows and 1 captures"):
        scheduler.complete(step, tokens)
    scheduler.complete(step, tokens, storage.captured(step))


def test_a_dense_chunk_that_fails_amid_a_prompt_with_rings_begins_the_prompt_anew() -> None:
    scheduler, storage = make_scheduler(), StorageSimulation()
    state = make_common_state("r1", 60, 1)
    scheduler.add(state, DENSE)
    step = scheduled(scheduler)
    scheduler.complete(step, storage.run(step))
    step = scheduled(scheduler)
    storage.run(step)
    scheduler.cancel(step)
    assert (scheduler.num_running, scheduler.num_waiting, state.num_computed_tokens) == (0, 1, 0)
    assert run_all(scheduler, storage)[0] == ("r1", 0, 32, False)


def test_a_shared_prefix_lets_more_requests_run_at_once() -> None:
    pool = make_pool((12, 12), max_append_tokens=32)
    scheduler, storage = make_scheduler(pool), StorageSimulation()
    scheduler.add(make_common_state("r1", 100, 20))
    for _ in range(4):
        step = scheduled(scheduler)
        scheduler.complete(step, storage.run(step))
    scheduler.add(make_common_state("r2", 100, 20))
    assert [name for name, *_ in shape(scheduled(scheduler))] == ["r1", "r2"], "16 blocks' worth in 12"


def test_a_preempted_request_goes_on_with_its_tokens_and_computes_little_again() -> None:
    scheduler, storage = make_scheduler(), StorageSimulation()
    state, other = make_common_state("r1", 40, 20), make_state("r2", 10, 4)
    scheduler.add(state)
    for _ in range(8):
        step = scheduled(scheduler)
        scheduler.complete(step, storage.run(step))
    before = list(state.output_token_ids)
    scheduler.add(other)
    scheduler.preempt("r1")
    assert (state.output_token_ids, state.slot, scheduler.num_waiting) == (before, None, 2)
    rows = run_all(scheduler, storage)
    assert rows[:2] == [("r1", 32, 47, True), ("r2", 0, 10, True)]
    assert state.output_token_ids == list(range(40, 60))


def test_a_cancelled_step_tells_its_cached_blocks_again() -> None:
    scheduler, storage = make_scheduler(), StorageSimulation()
    scheduler.add(make_common_state("r1", 40, 2))
    run_all(scheduler, storage)
    scheduler.add(make_common_state("r2", 40, 2))
    step = scheduled(scheduler)
    scheduler.cancel(step)
    again = scheduled(scheduler)
    assert again == step and again.batch.rows[0].fresh[0].first == 0


def test_two_hundred_requests_of_every_kind_of_end_leave_all_blocks_free_or_cached() -> None:
    pool = make_pool((12, 12))
    scheduler, storage = make_scheduler(pool), StorageSimulation()
    for i in range(200):
        scheduler.add(make_common_state(f"r{i}", 20 + i % 50, 3 + i % 4, stem=i % 5))
        if i % 4 == 0:
            scheduler.abort(f"r{i}")
        if i % 3 == 0:
            step = scheduled(scheduler) if scheduler.has_work else None
            if step is not None:
                scheduler.complete(step, storage.run(step))
                for state in step.states:
                    if state.num_tokens == state.max_total_tokens:
                        scheduler.finish(state.request.request_id, "stop")
    run_all(scheduler, storage)
    for one in pool.pools:
        assert one.num_live == 0 and one.num_free + one.num_cached == 12
    pool.check_integrity()


def test_nobody_is_looked_up_for_whom_a_step_has_no_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool((60, 60))
    scheduler, match = make_scheduler(pool, budget=64, chunk=32), Mock(side_effect=pool.prefix.match)
    monkeypatch.setattr(pool.prefix, "match", match)
    for i in range(6):
        scheduler.add(make_state(f"r{i}", 24 + i, 3))
    assert [row[:3] for row in shape(scheduled(scheduler))] == [("r0", 0, 24), ("r1", 0, 25), ("r2", 0, 15)]
    assert match.call_count == 3
