"""A step of one more token of each is what the general way would lay out, too."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_simulation import StorageSimulation, make_common_state, make_pool, make_state
from scheduler_steps import DENSE, PAGED, make_scheduler, scheduled

from octavo.errors import CapacityError
from octavo.scheduler.scheduled_step import ScheduledStep
from octavo.scheduler.scheduler import Scheduler
from octavo.step_batch import StorageKind

MAX_TICKS = 120


class Arrival(NamedTuple):
    tick: int
    num_prompt: int
    max_new: int
    storage: StorageKind
    shares_prompt: bool
    priority: int


ARRIVALS = st.lists(
    st.builds(
        Arrival,
        st.integers(0, 12),
        st.integers(1, 40),
        st.integers(1, 40),
        st.sampled_from([PAGED, PAGED, DENSE]),
        st.booleans(),
        st.sampled_from([0, 0, 1]),
    ),
    min_size=1,
    max_size=5,
)
happened: Counter[str] = Counter()


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    arrivals=ARRIVALS,
    num_groups=st.integers(1, 2),
    num_blocks=st.integers(3, 12),
    budget=st.sampled_from([1, 3, 16, 64]),
)
def compare_both_ways_through_a_run(arrivals: list[Arrival], num_groups: int, num_blocks: int, budget: int) -> None:
    pool = make_pool((num_blocks,) * num_groups, max_append_tokens=budget)
    scheduler, storage = make_scheduler(pool, budget, budget), StorageSimulation(num_groups=num_groups)
    step: ScheduledStep | None = None
    sampled: list[int | None] = []
    for tick in range(MAX_TICKS):
        for i, arrival in enumerate(arrivals):
            if arrival.tick == tick:
                arrive(scheduler, f"r{i}", arrival)
        if step is None:
            step = scheduler.schedule()
            if step is None:
                continue
            sampled = storage.run(step)
        compare_both_ways(scheduler, step)
        ahead = scheduler.schedule_ahead()
        after = [] if ahead is None else storage.run(ahead, sampled)
        scheduler.complete(step, sampled, storage.captured(step))
        for state in step.states:
            if state.num_tokens == state.max_total_tokens:
                scheduler.finish(state.request.request_id, "length")
        step, sampled = ahead, after


def arrive(scheduler: Scheduler, name: str, arrival: Arrival) -> None:
    make = make_common_state if arrival.shares_prompt else make_state
    try:
        scheduler.add(make(name, arrival.num_prompt, arrival.max_new, priority=arrival.priority), arrival.storage)
    except CapacityError:
        happened["never fits"] += 1


def compare_both_ways(scheduler: Scheduler, before: ScheduledStep) -> None:
    """Wherever `schedule_ahead` would take the short way."""
    if before.restores or before.captures or before.batch.copies:
        return
    if not scheduler._gives_each_a_token(before) or scheduler._may_have_a_turn():
        return
    now = pickle.dumps(scheduler)
    hasty, thorough = pickle.loads(now), pickle.loads(now)
    short = hasty._layout.next_tokens(hasty._in_flight[0], hasty._tick + 1)
    long = thorough._begin_ahead(thorough._in_flight[0])
    if long is not None and set(names(long)) - set(names(before)):
        happened["another has a share"] += 1
    elif short is None or long is None:
        in_rings = scheduler._slots.has_rings and any(row.storage is DENSE for row in before.batch.rows)
        assert long is None and (short is None or in_rings)
        happened["neither"] += short is None
    else:
        assert (short.batch, names(short), short.follows) == (long.batch, names(long), long.follows)
        assert not (short.restores or long.restores or short.captures or long.captures)
        assert pickle.dumps(hasty._pool) == pickle.dumps(thorough._pool), "the blocks are accounted for otherwise"
        ticks = [[running.last_tick for running in each._running.values()] for each in (hasty, thorough)]
        assert ticks[0] == ticks[1]
        happened["fresh blocks"] += any(row.fresh for row in short.batch.rows)
        happened["one ends"] += len(short.states) < len(before.states)
        happened[f"{len(short.states)} rows"] += 1


def names(step: ScheduledStep) -> list[str]:
    return [state.request.request_id for state in step.states]


def test_one_more_token_of_each_is_laid_out_as_the_general_way_lays_it_out() -> None:
    happened.clear()
    compare_both_ways_through_a_run()
    for event in ("1 rows", "2 rows", "3 rows", "fresh blocks", "neither", "another has a share", "one ends"):
        assert happened[event] >= 10, happened


def test_no_token_follows_the_longest_chunk_into_a_window_that_has_no_block_for_it_yet() -> None:
    pool = make_pool((40, 4), max_append_tokens=30)
    assert pool.blocks_needed(260, PAGED)[1] == 4, "all that there are"
    scheduler, storage = make_scheduler(pool, 30, 30), StorageSimulation()
    scheduler.add(make_state("r1", 240, 20))
    while not (step := scheduled(scheduler)).batch.rows[0].sample:
        scheduler.complete(step, storage.run(step), storage.captured(step))
    assert scheduler.schedule_ahead() is None
    scheduler.complete(step, storage.run(step), storage.captured(step))
    step = scheduled(scheduler)
    assert scheduler.schedule_ahead() is not None, "what no window sees has gone"


def test_two_that_need_a_block_each_do_not_go_on_where_one_is_left() -> None:
    scheduler, storage = make_scheduler(make_pool((5,)), budget=48, chunk=32), StorageSimulation(num_groups=1)
    for name in ("r1", "r2"):
        scheduler.add(make_state(name, 16, 30))
    step = scheduled(scheduler)
    sampled, num_ahead = storage.run(step), 0
    while (ahead := scheduler.schedule_ahead()) is not None:
        after = storage.run(ahead, sampled)
        scheduler.complete(step, sampled)
        step, sampled, num_ahead = ahead, after, num_ahead + 1
    assert num_ahead == 16, "then both need a third block"
