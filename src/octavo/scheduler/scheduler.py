"""Iteration-level continuous batching: turns waiting and running requests into one `StepBatch` after another.

Owns the queue, the running list and the `CachePool`; runs no model and decides no finish. Torch-free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixDomain, Snapshot
from octavo.cache.refusals import BlocksExhausted, InvalidArgument
from octavo.errors import InvalidRequest
from octavo.outputs import FinishReason
from octavo.request import RequestState
from octavo.scheduler.admission import admit_to_queue
from octavo.scheduler.policy import AGEING_TICKS, decide_tick
from octavo.scheduler.queue import WaitingQueue
from octavo.scheduler.running import RunningRequest
from octavo.scheduler.scheduled_step import NOTHING_OUT, RowOut, ScheduledStep
from octavo.scheduler.slots import Slots
from octavo.scheduler.step_layout import StepLayout, ends
from octavo.scheduler.view import Decision, Share
from octavo.scheduler.view_builder import ViewBuilder
from octavo.step_batch import StorageKind

MOST_AHEAD = 8  # steps in a row that `schedule_ahead` lays out while somebody waits
_NOT_OUT = "this step is not out, or not the first; each scheduled step ends once, in complete or cancel"


class Scheduler:
    """One step at a time: `schedule`, run it, `complete` (or `cancel`), `finish` those that are done. While it runs,
    before its tokens are known, `schedule_ahead` may lay out the next.

    With the prefix cache on, a request begins with what the cache has of its prompt, and whenever a step has filled
    one of its blocks, that is shared from then on, also a block of a dense one's run. What dense requests keep in rings
    is shared by snapshots: one is taken when the last whole block of a prompt has been computed, for which the chunk
    ends there, so that the same prompt and whatever goes on from it begin there.

    A paged request is promised blocks for the tokens it has when it is admitted, and takes more as it grows. When there
    are none left, not even cached ones, another gives up its slot and blocks and returns to the line (`decide_tick`
    says who), to go on later with the tokens it was given. Dense requests, and those with `reserve`, are promised all
    they may need, and never give way.

    Mutates the `num_computed_tokens`, `output_token_ids`, `slot` and `finish_reason` of the requests it was given.
    A call that raises has changed nothing. Used by one thread.
    """

    def __init__(
        self,
        pool: CachePool,
        max_batch_tokens: int,
        prefill_chunk: int,
        storage: StorageKind,
        prefix_cache: bool = True,
        prefill_grant_interval: int = 4,
        ageing_ticks: int = AGEING_TICKS,
    ) -> None:
        """`max_batch_tokens` and `prefill_chunk` are tokens per step; `storage` is what requests get by default.

        A tick is a call of `schedule`. Where decode rows fill the steps, prefill gets a part of each
        `prefill_grant_interval`-th; who waits rises one level of priority for each `ageing_ticks`.

        Raises `InvalidArgument` if a chunk may exceed what `pool` lets one append take.
        """
        chunk = min(prefill_chunk, max_batch_tokens)
        if chunk < 1 or chunk > (pool.max_append_tokens or chunk):
            raise InvalidArgument(
                f"a prefill chunk has {chunk} tokens; it must be from 1 to the pool's max_append_tokens, "
                f"{pool.max_append_tokens}"
            )
        self._pool = pool
        self._prefill_chunk = chunk
        self._views = ViewBuilder(pool, max_batch_tokens, chunk, prefill_grant_interval)
        self._storage = storage
        self._prefix_cache = prefix_cache
        self._waiting = WaitingQueue(ageing_ticks)
        self._slots = Slots(pool, self._waiting)
        self._running = self._slots.running
        self._layout = StepLayout(pool, self._waiting, self._slots, self._views)
        self._tick = self._squeezed_ticks = self._num_arrived = 0
        self.preemptions = 0  # ever
        self._in_flight: list[ScheduledStep] = []
        self._num_ahead = 0  # steps since the line was looked at
        self._has_arrivals = False  # since then

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    @property
    def queue_by_priority(self) -> dict[int, int]:
        """How many wait, per priority that they were given."""
        return self._waiting.by_priority()

    def add(
        self,
        state: RequestState,
        storage: StorageKind | None = None,
        domain: PrefixDomain | None = None,
        reserve: bool = False,
    ) -> None:
        """Put a request in line, at the end of those of its priority.

        `domain` is whom it shares a prefix with: all of its salt unless given. With `reserve` it will be promised its
        whole length: for those that cannot be computed again once they have shifted their context.

        Raises `InvalidRequest` (id in use, empty prompt, no room for a token) or `CapacityError` (can never fit).
        """
        request_id = state.request.request_id
        if request_id in self._running or request_id in self._waiting:
            raise InvalidRequest(f"request id {request_id!r} is in use; choose another")
        storage = storage or self._storage
        if not self._prefix_cache or state.request.reads_whole_prompt:  # what is not computed has no logits
            domain = None
        elif domain is None:
            domain = PrefixDomain(salt=state.request.cache_salt)
        self._waiting.push(admit_to_queue(self._pool, state, storage, domain, reserve, self._num_arrived))
        self._num_arrived += 1
        self._has_arrivals = True

    def schedule(self) -> ScheduledStep | None:
        """Admit whom there is room for and lay out the next step; None if there is nothing to compute.

        Blocks are taken and tokens counted as written in the pool at once. Raises `InvalidArgument` while a step is
        out; whatever it raises, every request stays where it was, but that those preempted for it stay preempted.
        """
        self._check_between_steps("the next")
        self._num_ahead, self._has_arrivals, self._slots.have_changed = 0, False, False
        self._waiting.age()
        self._tick += 1
        decision = self._decide(admits=True)
        while decision.preempted is not None:
            self._slots.requeue(self._running[decision.preempted])
            self.preemptions += 1
            decision = self._decide(admits=False)  # who gave way does not come back in the same tick
        if not decision.shares:
            return None
        step = self._begin(decision)
        self._squeezed_ticks = decision.squeezed_ticks
        return step

    def schedule_ahead(self) -> ScheduledStep | None:
        """Lay out the step after the one that is out, as if all that it computes were there, but for the tokens.

        For devices that compute while the host goes on: until the step that is out has really ended, its blocks must
        not be written but by steps that the device runs after it. Both end in the order they were scheduled. None where
        somebody would have to give way for it, and where rings or snapshots of them would be in its way.
        """
        if len(self._in_flight) != 1:
            return None
        before = self._in_flight[0]
        if before.restores or before.captures or before.batch.copies:  # these would not be made again after a failure
            return None
        if self._gives_each_a_token(before) and not self._may_have_a_turn():
            step = self._layout.next_tokens(before, self._tick + 1)
            if step is not None:
                self._waiting.age()
                self._tick += 1
                self._num_ahead += 1
                self._in_flight.append(step)
            return step
        return self._begin_ahead(before)

    def _gives_each_a_token(self, step: ScheduledStep) -> bool:
        """Whether all who run get one by `step`."""
        if not all(row.sample for row in step.batch.rows):
            return False
        return self._running.keys() <= {state.request.request_id for state in step.states}

    def _may_have_a_turn(self) -> bool:
        """Whether the line has to be looked at: for who came just now, who may take the place of one that ended, and
        at times for whoever waits.
        """
        if not self._waiting:
            return False
        return self._num_ahead >= MOST_AHEAD or self._has_arrivals or self._slots.have_changed

    def _begin_ahead(self, before: ScheduledStep) -> ScheduledStep | None:
        """`schedule` while `before` is out."""
        out = self._layout.rows_out(before)
        running = [
            each for name, each in self._running.items() if (row := out.get(name)) is None or not ends(each, row)
        ]
        view = self._views.view(self._waiting, running, self._tick + 1, self._squeezed_ticks, True, out)
        decision = decide_tick(view)
        if not decision.shares or decision.preempted is not None or not self._layout.may_follow(decision, before, out):
            return None
        self._waiting.age()
        self._tick += 1
        self._num_ahead, self._has_arrivals, self._slots.have_changed = 0, False, False
        step = self._begin(decision, out)
        self._squeezed_ticks = decision.squeezed_ticks
        return step

    def schedule_alone(self, request_id: str) -> ScheduledStep | None:
        """Lay out the next share of a request that was in the step before, by itself: to find out whose fault it was.

        If `cancel` returned it to the line it is admitted again, out of turn; None if there is no room for it now.
        Raises `InvalidArgument` if it is neither running nor waiting, or a step is out.
        """
        self._check_between_steps("another")
        running = self._running.get(request_id)
        if running is not None:
            return self._begin(Decision((Share(request_id, min(running.num_remaining, self._prefill_chunk)),)))
        if request_id not in self._waiting:
            raise InvalidArgument(f"request {request_id!r} is neither waiting nor running and has no share of a step")
        decision = decide_tick(self._views.view_of(self._waiting.get(request_id)))
        return self._begin(decision) if decision.admitted else None

    def complete(self, step: ScheduledStep, sampled: Sequence[int | None], snapshots: Sequence[Snapshot] = ()) -> None:
        """Record that `step` ran: `sampled[i]` is row i's new token id, None for rows that did not ask for one, and
        `snapshots` are those of `step.captures`.

        Requests that were finished or aborted meanwhile are passed over. Raises `InvalidArgument` if `step` is not
        the one that is out, or `sampled` or `snapshots` do not match it.
        """
        self._check_in_flight(step)
        rows = step.batch.rows
        if len(sampled) != len(rows) or len(snapshots) != len(step.captures):
            raise InvalidArgument(
                f"{len(sampled)} sampled tokens and {len(snapshots)} snapshots were given for {len(rows)} rows and "
                f"{len(step.captures)} captures"
            )
        for i, (row, token_id) in enumerate(zip(rows, sampled, strict=True)):
            if row.sample is (token_id is None):
                raise InvalidArgument(f"row {i} has sample={row.sample} but its sampled token is {token_id}")
        del self._in_flight[0]
        size = self._pool.block_size
        captured = dict(zip(step.captures, snapshots, strict=True))
        for i, (running, row, token_id) in enumerate(zip(self._layout.still_running(step), rows, sampled, strict=True)):
            if running is None:
                continue
            state = running.state
            before = state.num_computed_tokens
            state.num_computed_tokens = before + len(row.token_ids)
            if token_id is not None:
                state.output_token_ids.append(token_id)
            if self._prefix_cache and state.num_computed_tokens // size > before // size:
                self._pool.donate(running.handle, state.tokens, state.num_computed_tokens)
            if i in captured:
                self._pool.prefix.attach_snapshot(*running.captured_prefix, captured[i])
            if self._pool.has_windows:
                running.trim_windows(self._pool, state.num_computed_tokens)

    def cancel(self, step: ScheduledStep) -> None:
        """Take `step` back because it failed to run, and the one that follows it. Their tokens keep their blocks for
        when they are scheduled again.

        Whom it admitted stays admitted, so the next step may order and share out its rows differently. A dense sequence
        with rings is preempted after a chunk of several tokens, unless that began from a snapshot, and if two steps
        are taken back: the rings may lack what would be read again. Raises `InvalidArgument` if `step` is not out.
        """
        index = next((i for i, each in enumerate(self._in_flight) if each is step), None)
        if index is None:
            raise InvalidArgument(_NOT_OUT)
        cancelled = self._in_flight[index:]
        del self._in_flight[index:]
        lost: dict[str, RunningRequest] = {}
        for each in reversed(cancelled):
            for running, row in zip(self._layout.still_running(each), each.batch.rows, strict=True):
                if running is None or running.waiting.request_id in lost:
                    continue
                in_rings = self._slots.has_rings and row.storage is StorageKind.DENSE and row.start > 0
                if in_rings and (row.num_tokens > 1 or len(cancelled) > 1) and running.to_restore is None:
                    lost[running.waiting.request_id] = running
                else:
                    self._pool.rollback_append(running.handle, row.num_tokens)
        for running in lost.values():
            self._slots.requeue(running)

    def room(self, request_id: str) -> int:
        """Tokens that a running request may be given before it holds as many as it may. Raises `InvalidArgument` if it
        does not run.
        """
        running = self._running.get(request_id)
        if running is None:
            raise InvalidArgument(f"request {request_id!r} is not running and has room for nothing")
        held = self._pool.sequence(running.handle).rope_position + running.num_remaining
        return running.state.max_total_tokens - held

    def give(self, request_id: str, token_ids: Sequence[int]) -> None:
        """Have a running request go on with tokens for which no step is needed; its next one computes all it has.

        Raises `InvalidArgument` if it does not run, has no `room` for them, or a step is out.
        """
        self._check_between_steps("a request is given tokens")
        room = self.room(request_id)
        if len(token_ids) > room:
            raise InvalidArgument(f"request {request_id!r} is given {len(token_ids)} tokens and has room for {room}")
        self._running[request_id].state.output_token_ids.extend(token_ids)

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request, waiting or running; its blocks are free at once. Raises `InvalidArgument` if it is unknown.

        While a step is out, call this only once nothing of that step can still write.
        """
        if not self._slots.remove(request_id, reason):
            raise InvalidArgument(f"request {request_id!r} is neither waiting nor running")

    def abort(self, request_id: str) -> bool:
        """`finish` with reason `abort`; False if the request is unknown, for it may just have ended by itself."""
        return self._slots.remove(request_id, "abort")

    def preempt(self, request_id: str) -> None:
        """Take a running request's slot and blocks; it goes to the head of the line, to be computed again.

        It keeps the tokens it was given, and what the prefix cache then still has of them is not computed again.
        Raises `InvalidArgument` if it does not run or a step is out.
        """
        self._check_between_steps("a request is preempted")
        if request_id not in self._running:
            raise InvalidArgument(f"request {request_id!r} is not running and cannot be preempted")
        if self._pool.sequence(self._running[request_id].handle).rope_offset:
            raise InvalidArgument(f"request {request_id!r} has forgotten tokens and cannot be computed again")
        self._slots.requeue(self._running[request_id])
        self.preemptions += 1

    def shift_contexts(self) -> list[str]:
        """Have running requests that hold as much as they may forget the older half of it, but their kept tokens.

        Returns those that cannot, because others share their blocks and there are none to copy these to: end them.
        Raises `InvalidArgument` while a step is out.
        """
        self._check_between_steps("contexts are shifted")
        stuck = []
        for request_id, running in self._running.items():
            state, size = running.state, self._pool.block_size
            if self._pool.sequence(running.handle).rope_position + running.num_remaining <= state.max_total_tokens:
                continue
            try:
                self._pool.shift(running.handle, max(1, (state.max_total_tokens - state.keep) // 2 // size) * size)
            except BlocksExhausted:
                stuck.append(request_id)
        return stuck

    def _decide(self, admits: bool) -> Decision:
        return decide_tick(
            self._views.view(self._waiting, self._running.values(), self._tick, self._squeezed_ticks, admits)
        )

    def _begin(self, decision: Decision, out: Mapping[str, RowOut] = NOTHING_OUT) -> ScheduledStep:
        step = self._layout.lay_out(decision, self._tick, out)
        self._in_flight.append(step)
        return step

    def _check_between_steps(self, what: str) -> None:
        if self._in_flight:
            raise InvalidArgument(f"a step is still out; complete or cancel it before {what}")

    def _check_in_flight(self, step: ScheduledStep) -> None:
        if not self._in_flight or step is not self._in_flight[0]:
            raise InvalidArgument(_NOT_OUT)
