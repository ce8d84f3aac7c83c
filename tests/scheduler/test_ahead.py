"""Steps that are laid out before the one in front of them has ended."""

from __future__ import annotations

from scheduler_simulation import StorageSimulation, make_pool, make_state
from scheduler_steps import DENSE, complete, make_scheduler, scheduled, shape

from octavo.scheduler.scheduled_step import UNKNOWN_TOKEN


def test_chunks_go_on_tokens_follow_and_who_came_begins_while_a_step_is_out() -> None:
    scheduler, storage = make_scheduler(make_pool((30,)), budget=48, chunk=16), StorageSimulation(num_groups=1)
    scheduler.add(make_state("r1", 40, 8))
    scheduler.add(make_state("r2", 9, 8))
    first = scheduled(scheduler)
    assert shape(first) == [("r1", 0, 16, False), ("r2", 0, 9, True)]
    scheduler.add(make_state("r3", 7, 8))
    ahead = scheduler.schedule_ahead()
    assert ahead is not None
    assert shape(ahead) == [("r2", 9, 10, True), ("r1", 16, 32, False), ("r3", 0, 7, True)]
    assert ahead.follows == (0, -1, -1)
    assert ahead.batch.rows[0].token_ids == (UNKNOWN_TOKEN,)
    assert scheduler.schedule_ahead() is None, "two are out"
    sampled = storage.run(first)
    after = storage.run(ahead, sampled)
    scheduler.complete(first, sampled)
    third = scheduler.schedule_ahead()
    assert third is not None
    assert shape(third) == [("r2", 10, 11, True), ("r3", 7, 8, True), ("r1", 32, 40, True)]
    assert third.follows == (0, 1, -1)
    storage.run(third, after)


def test_a_request_whose_last_token_is_on_its_way_has_no_further_row() -> None:
    scheduler = make_scheduler(make_pool((30,)), budget=48, chunk=16)
    scheduler.add(make_state("r1", 40, 8))
    scheduler.add(make_state("r2", 9, 1))
    scheduled(scheduler)
    ahead = scheduler.schedule_ahead()
    assert ahead is not None
    assert shape(ahead) == [("r1", 16, 32, False)]


def test_nobody_gives_way_to_a_step_laid_out_ahead() -> None:
    scheduler, storage = make_scheduler(make_pool((4,)), budget=48, chunk=32), StorageSimulation(num_groups=1)
    for name in ("r1", "r2"):
        scheduler.add(make_state(name, 16, 30))
    step = scheduled(scheduler)
    assert len(step.states) == 2
    sampled, num_ahead = storage.run(step), 0
    while (ahead := scheduler.schedule_ahead()) is not None:
        after = storage.run(ahead, sampled)
        scheduler.complete(step, sampled)
        step, sampled, num_ahead = ahead, after, num_ahead + 1
    assert num_ahead == 16, "then both need a third block"
    scheduler.complete(step, sampled)
    assert scheduler.preemptions == 0
    scheduled(scheduler)
    assert scheduler.preemptions == 1


def test_chunks_of_rings_and_more_than_a_window_keeps_are_not_laid_out_ahead() -> None:
    dense = make_scheduler(make_pool((30, 30)), budget=48, chunk=16)
    dense.add(make_state("r1", 60, 8), DENSE)
    scheduled(dense)
    assert dense.schedule_ahead() is None
    paged = make_scheduler(make_pool((30, 30), max_append_tokens=16), budget=48, chunk=16)
    paged.add(make_state("r1", 60, 8))
    scheduled(paged)
    assert paged.schedule_ahead() is None


def test_a_cancelled_step_takes_back_the_chunk_behind_it_too() -> None:
    scheduler, storage = make_scheduler(make_pool((30,)), budget=48, chunk=16), StorageSimulation(num_groups=1)
    scheduler.add(make_state("r1", 40, 8))
    first = scheduled(scheduler)
    assert scheduler.schedule_ahead() is not None
    scheduler.cancel(first)
    again = scheduled(scheduler)
    assert shape(again) == [("r1", 0, 16, False)]
    assert again.batch.rows[0].fresh == first.batch.rows[0].fresh
    complete(scheduler, storage, again)
