"""`Scheduler` under random arrivals, failures and aborts; a simulated storage checks every row it is shown."""

from __future__ import annotations

import os
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from scheduler_simulation import StorageSimulation, make_common_state, make_pool, make_state

from octavo.cache.cache_pool import CachePool
from octavo.cache.sequence import SequenceHandle
from octavo.errors import CapacityError
from octavo.request import RequestState
from octavo.scheduler.scheduled_step import ScheduledStep
from octavo.scheduler.scheduler import Scheduler
from octavo.step_batch import StorageKind

NUM_BLOCKS = (12, 9)


class SchedulerMachine(RuleBasedStateMachine):
    happened: ClassVar[Counter[object]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.begin(32, 16)

    @initialize(budget=st.sampled_from([1, 2, 5, 32, 64]), chunk=st.sampled_from([1, 7, 16, 64]))
    def resize(self, budget: int, chunk: int) -> None:
        self.begin(budget, chunk)

    def begin(self, budget: int, chunk: int) -> None:
        self.budget = budget
        self.pool: CachePool = make_pool(NUM_BLOCKS, max_seqs=3, max_append_tokens=min(budget, chunk))
        self.scheduler = Scheduler(self.pool, budget, chunk, StorageKind.PAGED)
        self.storage = StorageSimulation()
        self.live: dict[str, RequestState] = {}  # in arrival order
        self.started: list[str] = []
        self.sharing: set[str] = set()
        self.left_out: dict[str, int] = {}  # steps in a row that a decode row was not in
        self.num_named = 0

    # -- rules --------------------------------------------------------------------------------------------------

    @rule(
        num_prompt=st.one_of(st.integers(1, 40), st.integers(60, 185)),
        max_new=st.one_of(st.integers(1, 8), st.integers(1, 60)),
        storage=st.sampled_from([None, *StorageKind]),
        stem=st.sampled_from([None, 0, 0, 1]),
        priority=st.sampled_from([0, 0, 0, -1, 2]),
    )
    def add(
        self, num_prompt: int, max_new: int, storage: StorageKind | None, stem: int | None, priority: int = 0
    ) -> None:
        name = f"r{self.num_named}"
        if stem is None:
            state = make_state(name, num_prompt, max_new, priority)
        else:
            state = make_common_state(name, num_prompt, max_new, stem, priority)
        self.num_named += 1
        if not self.pool.fits_ever(num_prompt + max_new, storage or StorageKind.PAGED):
            with pytest.raises(CapacityError):
                self.scheduler.add(state, storage)
            return
        self.scheduler.add(state, storage)
        self.live[state.request.request_id] = state
        if stem is not None:
            self.sharing.add(name)

    @rule(
        num_prompt=st.one_of(st.integers(20, 140), st.integers(66, 72)),
        more=st.integers(0, 30),
        storage=st.sampled_from(StorageKind),
        ends=st.booleans(),
    )
    def go_on_from_a_prompt(self, num_prompt: int, more: int, storage: StorageKind, ends: bool) -> None:
        """The same prompt twice, the second time longer by `more`, when the first has ended or has just begun."""
        self.add(num_prompt, 8, storage, 0)
        first = list(self.live.values())[-1]
        for _ in range(200):
            if self.live and not (first.output_token_ids and not ends) and first.finish_reason is None:
                self.step()
        self.add(num_prompt + (more if ends else 0), 8, storage, 0)
        for _ in range(4):
            self.step()

    @rule(num_prompt=st.integers(1, 20))
    def outgrow_the_pool_together(self, num_prompt: int) -> None:
        for _ in range(3):
            self.add(num_prompt, 80, StorageKind.PAGED, None)
        for _ in range(70):
            if self.live:
                self.step()

    @precondition(lambda self: self.live)
    @rule()
    def step(self) -> None:
        self.complete(self.checked_schedule())

    @precondition(lambda self: self.live)
    @rule(times=st.integers(1, 40))
    def steps(self, times: int) -> None:
        for _ in range(times):
            if self.live:
                self.step()

    @precondition(lambda self: self.live)
    @rule(late=st.booleans())
    def step_fails_and_is_tried_again(self, late: bool) -> None:
        failed = self.checked_schedule()
        if late:
            self.storage.run(failed)  # it failed when all was written
        placed = self.placement(failed)
        self.scheduler.cancel(failed)
        again = self.checked_schedule()
        assert placed <= self.placement(failed), "a token of the failed step lost its block"
        self.complete(again)

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 20))
    def abort(self, index: int) -> None:
        request_id = list(self.live)[index % len(self.live)]
        assert self.scheduler.abort(request_id)
        assert self.live.pop(request_id).finish_reason == "abort"
        assert not self.scheduler.abort(request_id)

    @precondition(lambda self: self.scheduler.num_running)
    @rule(index=st.integers(0, 20))
    def preempt(self, index: int) -> None:
        running = [state for state in self.live.values() if state.slot is not None]
        state = running[index % len(running)]
        outputs = list(state.output_token_ids)
        self.scheduler.preempt(state.request.request_id)
        assert (state.slot, state.num_computed_tokens, state.output_token_ids) == (None, 0, outputs)

    @precondition(lambda self: self.scheduler.num_running)
    @rule(index=st.integers(0, 20), most=st.integers(0, 20))
    def give(self, index: int, most: int) -> None:
        """Tokens that need no step; one that gets as many as it may would end."""
        running = [state for state in self.live.values() if state.slot is not None and state.output_token_ids]
        if not running:
            return
        state = running[index % len(running)]
        room = self.scheduler.room(state.request.request_id)
        assert room == state.max_total_tokens - state.num_tokens
        self.scheduler.give(state.request.request_id, range(min(most, room - 1)))
        self.happened["several tokens of an answer"] += state.num_tokens - state.num_computed_tokens > 1

    @precondition(lambda self: self.live)
    @rule(index=st.integers(0, 20), cancel=st.booleans())
    def abort_while_a_step_is_out(self, index: int, cancel: bool) -> None:
        step = self.checked_schedule()
        self.abort(index)
        if cancel:
            self.scheduler.cancel(step)
        else:
            self.complete(step)

    # -- helpers ------------------------------------------------------------------------------------------------

    def checked_schedule(self) -> ScheduledStep:
        preemptions = self.scheduler.preemptions
        step = self.scheduler.schedule()
        assert step is not None, "there is work, and nothing is scheduled"
        assert 1 <= step.batch.num_tokens <= self.budget
        names = [state.request.request_id for state in step.states]
        self.happened["gave way"] += self.scheduler.preemptions - preemptions
        for request_id, state in self.live.items():
            decodes = state.slot is not None and state.num_tokens - state.num_computed_tokens == 1
            self.left_out[request_id] = self.left_out.get(request_id, 0) + 1 if decodes else 0
            if request_id in names:
                self.left_out[request_id] = 0
            assert self.left_out[request_id] <= 2 * self.pool.max_seqs, "a decode row is left out"
        for row, state in zip(step.batch.rows, step.states, strict=True):
            assert row.slot == state.slot
            assert row.token_ids == state.tokens(row.start, row.stop)
            assert row.start == state.num_computed_tokens
            assert row.sample == (row.stop == state.num_tokens)
        fresh = [name for name in names if name not in self.started and self.live[name].request.priority == 0]
        self.started += fresh
        return step

    def complete(self, step: ScheduledStep) -> None:
        self.scheduler.complete(step, self.storage.run(step), self.storage.captured(step))
        for row, state in zip(step.batch.rows, step.states, strict=True):
            if row.start and row.start == state.num_cached_tokens and not state.output_token_ids[1:]:
                self.happened["hit", row.storage] += 1
        self.happened["restored ring"] += len(step.restores)
        self.happened["copied for a dense run"] += len(step.batch.copies)
        for state in step.states:
            request_id = state.request.request_id
            if request_id in self.live and state.num_tokens == state.max_total_tokens:
                self.scheduler.finish(request_id, "length")
                del self.live[request_id]

    def placement(self, step: ScheduledStep) -> set[tuple[int, int, int, int | None]]:
        """(slot, group, absolute block, block id) of every paged sequence in the step; a dense one may start anew."""
        return {
            (row.slot, group, i, block_id)
            for row in step.batch.rows
            if row.storage is StorageKind.PAGED
            for group in range(len(self.pool.groups))
            for i, block_id in enumerate(self.pool.table(SequenceHandle(row.slot, row.generation), group))
        }

    # -- what must hold -----------------------------------------------------------------------------------------

    @invariant()
    def blocks_add_up(self) -> None:
        self.pool.check_integrity()
        assert self.scheduler.has_work == bool(self.live)
        assert self.scheduler.num_waiting + self.scheduler.num_running == len(self.live)
        assert all(n >= 0 for n in self.pool.available_blocks()), "more is promised than there is"
        if not self.scheduler.num_running:
            assert self.pool.num_free_blocks == NUM_BLOCKS

    @invariant()
    def first_come_first_served(self) -> None:
        """Of equal priority; those that share a beginning may have to wait for one another."""
        alone = [name for name in self.started if name not in self.sharing]
        assert alone == sorted(alone, key=lambda name: int(name[1:]))

    def teardown(self) -> None:
        """Everybody finishes, and every block comes back."""
        for _ in range(10_000):
            if not self.live:
                break
            self.step()
        assert not self.live and not self.scheduler.has_work
        assert self.pool.num_free_blocks == NUM_BLOCKS
        assert self.scheduler.schedule() is None


def test_no_interleaving_shows_a_request_another_row_or_keeps_it_waiting() -> None:
    SchedulerMachine.happened.clear()
    run_state_machine_as_test(
        SchedulerMachine, settings=settings(derandomize=True, deadline=None, max_examples=50, stateful_step_count=20)
    )
    happened = SchedulerMachine.happened
    for event in (
        ("hit", StorageKind.DENSE),
        ("hit", StorageKind.PAGED),
        "restored ring",
        "copied for a dense run",
        "gave way",
        "several tokens of an answer",
    ):
        assert happened[event] >= 10, happened


@pytest.mark.nightly
@pytest.mark.skipif(os.environ.get("OCTAVO_NIGHTLY") != "1", reason="long; set OCTAVO_NIGHTLY=1")
class TestSchedulerAtLength(SchedulerMachine.TestCase):  # type: ignore[valid-type, misc]
    settings = settings(deadline=None, max_examples=1000, stateful_step_count=60)
