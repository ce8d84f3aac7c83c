"""`Scheduler` behaviours that deserve a sentence of their own, beside the state machine."""

from __future__ import annotations

import dataclasses

import pytest
from scheduler_simulation import StorageSimulation, make_pool, make_state
from scheduler_steps import DENSE, PAGED, answer, complete, make_scheduler, scheduled, shape

from octavo.cache.cache_pool import CachePool
from octavo.cache.refusals import BlocksExhausted, InvalidArgument
from octavo.cache.sequence import SequenceHandle
from octavo.errors import CapacityError, InvalidRequest
from octavo.request import RequestState
from octavo.scheduler.scheduler import Scheduler
from octavo.step_batch import StorageKind


def test_a_prompt_is_computed_in_chunks_and_samples_after_the_last() -> None:
    scheduler = make_scheduler()
    state = make_state("r1", 70, 2)
    scheduler.add(state)
    shapes = []
    for _ in range(4):
        step = scheduled(scheduler)
        shapes += shape(step)
        scheduler.complete(step, answer(step))
    assert shapes == [("r1", 0, 32, False), ("r1", 32, 64, False), ("r1", 64, 70, True), ("r1", 70, 71, True)]
    assert state.output_token_ids == [7, 7]


def test_a_running_decode_and_a_new_prompt_share_a_step() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_state("r1", 10, 5))
    step = scheduled(scheduler)
    scheduler.complete(step, answer(step))
    scheduler.add(make_state("r2", 40, 5))
    assert shape(scheduled(scheduler)) == [("r1", 10, 11, True), ("r2", 0, 32, False)]


def test_two_storages_run_in_one_batch() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_state("r1", 10, 5), DENSE)
    scheduler.add(make_state("r2", 10, 5))
    assert [row.storage for row in scheduled(scheduler).batch.rows] == [DENSE, PAGED]


def test_a_paged_window_gives_its_blocks_back_as_it_moves() -> None:
    pool = make_pool((12, 4), max_append_tokens=16)
    scheduler = make_scheduler(pool, chunk=16)
    scheduler.add(make_state("r1", 180, 10))
    storage = StorageSimulation()
    starts = []
    while scheduler.has_work:
        step = scheduled(scheduler)
        starts.append(step.batch.rows[0].live_start)
        scheduler.complete(step, storage.run(step))
        if step.states[0].num_tokens == 190:
            scheduler.finish("r1", "length")
    assert starts[:3] == [(0, 0), (0, 0), (0, 13)] and starts[-1] == (0, 188 - 20 + 1)


def test_a_request_that_can_never_fit_is_refused_at_once_with_what_would_fit() -> None:
    scheduler = make_scheduler()
    message = r"prompt has 180 tokens and with 20 new ones makes 200; at most 192 fit the KV cache; shorten"
    with pytest.raises(CapacityError, match=message):
        scheduler.add(make_state("r1", 180, 20))
    assert not scheduler.has_work
    scheduler.add(make_state("r1", 172, 20))


@pytest.mark.parametrize(("num_prompt", "max_new"), [(0, 5), (5, 0), (5, -2)])
def test_a_request_without_prompt_or_room_is_invalid(num_prompt: int, max_new: int) -> None:
    with pytest.raises(InvalidRequest):
        make_scheduler().add(make_state("r1", num_prompt, max_new))


def test_a_request_id_is_unique_among_waiting_and_running() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_state("r1", 5, 5))
    with pytest.raises(InvalidRequest, match="'r1' is in use"):
        scheduler.add(make_state("r1", 5, 5))
    scheduled(scheduler)
    with pytest.raises(InvalidRequest, match="'r1' is in use"):
        scheduler.add(make_state("r1", 5, 5))


def test_a_large_request_at_the_head_is_not_overtaken_and_starts_when_room_is_made() -> None:
    scheduler = make_scheduler()
    for name, num_prompt in (("r1", 100), ("r2", 100), ("r3", 5)):
        scheduler.add(make_state(name, num_prompt, 5))
    step = scheduled(scheduler)
    assert [name for name, *_ in shape(step)] == ["r1"]
    scheduler.complete(step, answer(step))
    scheduler.finish("r1", "stop")
    assert [name for name, *_ in shape(scheduled(scheduler))] == ["r2", "r3"]


def test_nobody_enters_into_blocks_that_a_running_request_is_promised() -> None:
    pool = make_pool()
    scheduler = make_scheduler(pool)
    scheduler.add(make_state("r1", 100, 60))  # 7 blocks for its prompt, 2 of them taken by now
    step = scheduled(scheduler)
    scheduler.complete(step, answer(step))
    scheduler.add(make_state("r2", 80, 60))
    assert pool.num_free_blocks == (10, 10)
    assert [name for name, *_ in shape(scheduled(scheduler))] == ["r1"]


def test_a_request_enters_with_blocks_for_its_prompt_and_not_for_all_it_may_generate() -> None:
    scheduler = make_scheduler(budget=96)
    for name in ("r1", "r2", "r3"):
        scheduler.add(make_state(name, 16, 170))
    assert [name for name, *_ in shape(scheduled(scheduler))] == ["r1", "r2", "r3"], "12 blocks, 12 each in the end"
    reserving = make_scheduler(budget=96)
    for name in ("r1", "r2"):
        reserving.add(make_state(name, 16, 170), reserve=True)
    assert [name for name, *_ in shape(scheduled(reserving))] == ["r1"]


@pytest.mark.parametrize("storage", [DENSE, PAGED])
def test_a_finished_request_gives_all_back_at_once(storage: StorageKind) -> None:
    pool = make_pool()
    scheduler = make_scheduler(pool)
    state = make_state("r1", 50, 5)
    scheduler.add(state, storage)
    step = scheduled(scheduler)
    assert pool.num_free_blocks != (12, 12)
    scheduler.complete(step, answer(step))
    scheduler.finish("r1", "stop")
    assert (pool.num_free_blocks, pool.num_free_slots) == ((12, 12), 3)
    assert (state.finish_reason, state.slot, scheduler.has_work) == ("stop", None, False)


def test_a_request_aborted_while_it_waits_leaves_the_others_in_line() -> None:
    scheduler = make_scheduler()
    for name in ("r1", "r2", "r3"):
        scheduler.add(make_state(name, 5, 5))
    assert scheduler.abort("r2")
    assert [name for name, *_ in shape(scheduled(scheduler))] == ["r1", "r3"]


def test_finishing_an_unknown_request_is_a_fault_and_aborting_one_is_not() -> None:
    scheduler = make_scheduler()
    with pytest.raises(InvalidArgument):
        scheduler.finish("r1", "stop")
    assert scheduler.abort("r1") is False


def test_a_result_for_a_request_aborted_meanwhile_is_passed_over() -> None:
    scheduler = make_scheduler()
    gone, stays = make_state("r1", 5, 5), make_state("r2", 5, 5)
    scheduler.add(gone)
    scheduler.add(stays)
    step = scheduled(scheduler)
    scheduler.abort("r1")
    scheduler.add(dataclasses.replace(gone, finish_reason=None))
    scheduler.complete(step, answer(step))
    assert (gone.output_token_ids, stays.output_token_ids) == ([], [7])


def everything(scheduler: Scheduler, pool: CachePool, states: list[RequestState]) -> object:
    return (
        scheduler.num_waiting,
        scheduler.num_running,
        [(s.slot, s.num_computed_tokens, tuple(s.output_token_ids)) for s in states],
        [pool.written(SequenceHandle(s.slot, 1)) for s in states if s.slot is not None],
        pool.available_blocks(),
        pool.num_free_slots,
    )


@pytest.mark.parametrize("failing_append", [0, 1, 2])
def test_a_failure_while_laying_out_a_step_loses_nobody(failing_append: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = make_pool()
    scheduler = make_scheduler(pool)
    states = [make_state("r1", 5, 5), make_state("r2", 40, 5), make_state("r3", 5, 5)]
    scheduler.add(states[0])
    step = scheduled(scheduler)
    scheduler.complete(step, answer(step))
    scheduler.add(states[1], DENSE)
    scheduler.add(states[2])
    before = everything(scheduler, pool, states)
    with monkeypatch.context() as patch:
        append, calls = pool.append, iter(range(3))

        def fail(*args: object) -> object:
            if next(calls) == failing_append:
                raise BlocksExhausted("injected")
            return append(*args)  # type: ignore[arg-type]

        patch.setattr(pool, "append", fail)
        with pytest.raises(BlocksExhausted, match="injected"):
            scheduler.schedule()
    assert everything(scheduler, pool, states) == before
    pool.check_integrity()
    assert [name for name, *_ in shape(scheduled(scheduler))] == ["r1", "r2", "r3"]


def test_a_cancelled_step_is_laid_out_again_in_the_same_blocks() -> None:
    scheduler = make_scheduler()
    for name in ("r1", "r2"):
        scheduler.add(make_state(name, 40, 5))
    step = scheduled(scheduler)
    scheduler.cancel(step)
    assert scheduled(scheduler) == step


def test_only_the_step_that_is_out_can_end_and_only_once() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_state("r1", 5, 5))
    step = scheduled(scheduler)
    with pytest.raises(InvalidArgument, match="a step is still out"):
        scheduler.schedule()
    scheduler.complete(step, answer(step))
    with pytest.raises(InvalidArgument):
        scheduler.complete(step, answer(step))
    with pytest.raises(InvalidArgument):
        scheduler.cancel(step)


@pytest.mark.parametrize("sampled", [[], [7, 7], [None]])
def test_samples_that_do_not_match_the_rows_are_refused_and_the_step_stays_out(sampled: list[int | None]) -> None:
    scheduler = make_scheduler()
    state = make_state("r1", 5, 5)
    scheduler.add(state)
    step = scheduled(scheduler)
    with pytest.raises(InvalidArgument):
        scheduler.complete(step, sampled)
    assert state.num_computed_tokens == 0
    scheduler.complete(step, [7])


@pytest.mark.parametrize(("budget", "chunk"), [(64, 32), (0, 5), (64, 0)])
def test_a_chunk_larger_than_the_pool_takes_or_without_tokens_is_refused(budget: int, chunk: int) -> None:
    with pytest.raises(InvalidArgument, match="max_append_tokens, 16"):
        Scheduler(make_pool(max_append_tokens=16), budget, chunk, PAGED)


def test_higher_priorities_enter_first_and_who_has_waited_long_enough_before_them() -> None:
    scheduler = Scheduler(make_pool(max_seqs=1), 64, 32, PAGED, ageing_ticks=10)
    order = []
    scheduler.add(make_state("r0", 5, 5, priority=3))
    for number in range(1, 40):
        scheduler.add(make_state(f"r{number}", 5, 5))
        step = scheduled(scheduler)
        order += [state.request.request_id for state in step.states]
        scheduler.complete(step, answer(step))
        scheduler.finish(order[-1], "stop")
    assert order.index("r0") == 3 * 10 - 1, "three levels, and then it came before all of them"
    assert scheduler.queue_by_priority == {0: 1}


def test_who_outgrows_the_pool_has_others_give_way_and_they_go_on_later_without_a_token_twice() -> None:
    pool = make_pool((12, 12))
    scheduler, storage = make_scheduler(pool), StorageSimulation()
    states = [make_state(name, 16, 150) for name in ("r1", "r2", "r3")]
    for state in states:
        scheduler.add(state)
    gone, seen = set(), {name: [] for name in ("r1", "r2", "r3")}
    while scheduler.has_work:
        before = scheduler.preemptions
        step = scheduled(scheduler)
        if scheduler.preemptions > before:
            gone |= {state.request.request_id for state in states if state.slot is None and not state.finish_reason}
        for state, token in zip(step.states, complete(scheduler, storage, step), strict=True):
            name = state.request.request_id
            seen[name] += [token] if token is not None else []
            if state.num_tokens == state.max_total_tokens:
                scheduler.finish(name, "length")
        assert min(pool.available_blocks()) >= 0
    assert gone == {"r2", "r3"}, "the one that came first never gives way"
    assert all(tokens == list(range(16, 166)) for tokens in seen.values())


@pytest.mark.parametrize(("num_blocks", "enters"), [(7, False), (8, True)])
def test_beside_others_a_request_enters_only_if_a_block_stays_free_for_each_that_may_grow(
    num_blocks: int, enters: bool
) -> None:
    scheduler = make_scheduler(make_pool((num_blocks, 12)), budget=96)
    scheduler.add(make_state("r1", 48, 40))
    step = scheduled(scheduler)
    scheduler.complete(step, answer(step))
    scheduler.add(make_state("r2", 48, 40))  # 3 blocks each, and one more for either
    assert [name for name, *_ in shape(scheduled(scheduler))] == ["r1", "r2"][: 1 + enters]


def test_dense_requests_and_those_that_reserve_never_give_way() -> None:
    scheduler, storage = make_scheduler(make_pool((12, 12))), StorageSimulation()
    for name, storage_kind, reserve in (("r1", DENSE, False), ("r2", PAGED, True), ("r3", PAGED, False)):
        scheduler.add(make_state(name, 16, 64 if name != "r3" else 100), storage_kind, reserve=reserve)
    order = []
    while scheduler.has_work:
        step = scheduled(scheduler)
        complete(scheduler, storage, step)
        for state in step.states:
            if state.num_tokens == state.max_total_tokens:
                order.append(state.request.request_id)
                scheduler.finish(order[-1], "length")
    assert order == ["r1", "r2", "r3"]


def test_a_request_alone_gets_its_next_share_and_nobody_else_does() -> None:
    scheduler = make_scheduler()
    for name in ("r1", "r2"):
        scheduler.add(make_state(name, 40, 5))
    scheduler.cancel(scheduled(scheduler))
    alone = scheduler.schedule_alone("r2")
    assert shape(alone) == [("r2", 0, 32, False)]
    scheduler.complete(alone, answer(alone))
    assert shape(scheduled(scheduler)) == [("r1", 0, 32, False), ("r2", 32, 40, True)]
    with pytest.raises(InvalidArgument, match="a step is still out"):
        scheduler.schedule_alone("r1")


def test_a_request_that_does_not_run_or_is_in_a_step_is_not_preempted() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_state("r1", 5, 5))
    with pytest.raises(InvalidArgument, match="'r1' is not running"):
        scheduler.preempt("r1")
    step = scheduled(scheduler)
    with pytest.raises(InvalidArgument, match="a step is still out"):
        scheduler.preempt("r1")
    scheduler.complete(step, answer(step))
    scheduler.preempt("r1")
    assert [name for name, *_ in shape(scheduled(scheduler))] == ["r1"]


@pytest.mark.parametrize("storage", StorageKind)
def test_tokens_that_were_given_are_computed_with_the_latest_one_and_one_is_sampled_after_them(
    storage: StorageKind,
) -> None:
    scheduler, simulation = make_scheduler(chunk=4, budget=5), StorageSimulation()
    state = make_state("r1", 3, 30)
    scheduler.add(state, storage)
    complete(scheduler, simulation, scheduled(scheduler))
    assert scheduler.room("r1") == 29
    scheduler.give("r1", [1, 2, 3, 4, 5])
    assert scheduler.room("r1") == 24 and state.output_token_ids[1:] == [1, 2, 3, 4, 5]
    shapes = []
    for _ in range(3):
        step = scheduled(scheduler)
        shapes += shape(step)
        complete(scheduler, simulation, step)
    assert shapes == [("r1", 3, 7, False), ("r1", 7, 9, True), ("r1", 9, 10, True)]


def test_tokens_are_given_between_steps_to_those_that_run_and_have_room() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_state("r1", 3, 4))
    with pytest.raises(InvalidArgument, match="not running"):
        scheduler.give("r1", [1])
    step = scheduled(scheduler)
    with pytest.raises(InvalidArgument, match="a step is still out"):
        scheduler.give("r1", [1])
    scheduler.complete(step, answer(step))
    with pytest.raises(InvalidArgument, match="given 4 tokens and has room for 3"):
        scheduler.give("r1", [1, 2, 3, 4])
    assert step.states[0].output_token_ids == [7]
    scheduler.give("r1", [1, 2, 3])
    assert scheduler.room("r1") == 0


def test_an_idle_scheduler_has_nothing_to_schedule() -> None:
    assert make_scheduler().schedule() is None
