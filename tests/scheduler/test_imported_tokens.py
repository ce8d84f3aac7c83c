"""Requests that bring the K/V of their first tokens: blocks are taken for these, and only the rest is scheduled."""

from __future__ import annotations

import pytest
from scheduler_simulation import WINDOW, make_pool, make_state

from octavo.cache.refusals import BlocksExhausted
from octavo.cache.sequence import SequenceHandle
from octavo.scheduler.scheduler import Scheduler
from octavo.step_batch import StorageKind

STORAGES = list(StorageKind)
every_storage = pytest.mark.parametrize("storage", STORAGES, ids=lambda s: s.value)


def bringing(request_id: str, num_prompt: int, imported: int, max_new: int = 5):
    state = make_state(request_id, num_prompt, max_new)
    state.num_imported_tokens = imported
    return state


@every_storage
@pytest.mark.parametrize("imported", [1, 16, 69])
def test_only_the_rest_of_the_prompt_is_scheduled(storage, imported) -> None:
    pool = make_pool(max_append_tokens=32)
    scheduler = Scheduler(pool, 64, 32, storage)
    state = bringing("r1", 70, imported)
    scheduler.add(state)
    assert state.num_computed_tokens == 0
    starts = []
    while not state.output_token_ids:
        step = scheduler.schedule()
        assert step is not None
        (row,) = step.batch.rows
        starts.append(row.start)
        assert row.token_ids == state.request.prompt_token_ids[row.start : row.stop]
        scheduler.complete(step, [7 if row.sample else None])
    assert starts == list(range(imported, 70, 32))


def test_the_blocks_of_windows_are_let_go_as_if_the_tokens_had_been_computed() -> None:
    pool = make_pool(max_append_tokens=16)
    scheduler = Scheduler(pool, 64, 16, StorageKind.PAGED)
    scheduler.add(bringing("r1", 100, 96))
    step = scheduler.schedule()
    assert step is not None
    (row,) = step.batch.rows
    assert row.live_start == (0, 96 - WINDOW + 1)
    assert pool.table(pool_handle(row), 1)[:4] == (None,) * 4
    assert None not in pool.table(pool_handle(row), 0)
    assert pool.num_free_blocks == (12 - 7, 12 - 3)


def pool_handle(row):
    return SequenceHandle(row.slot, row.generation)


@every_storage
def test_a_schedule_that_fails_leaves_the_request_waiting_with_all_it_brings(storage, monkeypatch) -> None:
    pool = make_pool()
    scheduler = Scheduler(pool, 64, 32, storage)
    state = bringing("r1", 70, 40)
    scheduler.add(state)

    def refuse(handle, n):
        raise BlocksExhausted("none are left")

    with monkeypatch.context() as patch:
        patch.setattr(pool, "append", refuse)
        with pytest.raises(BlocksExhausted):
            scheduler.schedule()
    assert (scheduler.num_waiting, state.slot, state.num_imported_tokens) == (1, None, 40)
    pool.check_integrity()
    step = scheduler.schedule()
    assert step is not None and step.batch.rows[0].start == 40


def test_a_preempted_request_brings_nothing_any_more() -> None:
    scheduler = Scheduler(make_pool(), 64, 64, StorageKind.PAGED)
    state = bringing("r1", 70, 40)
    scheduler.add(state)
    step = scheduler.schedule()
    assert step is not None
    scheduler.complete(step, [7])
    scheduler.preempt("r1")
    step = scheduler.schedule()
    assert step is not None and step.batch.rows[0].start == 0
