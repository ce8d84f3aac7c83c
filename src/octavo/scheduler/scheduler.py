"""Iteration-level continuous batching: turns waiting and running requests into one `StepBatch` after another.

Owns the queue, the running list and the `CachePool`; runs no model and decides no finish. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixDomain, PrefixHit, Snapshot
from octavo.cache.refusals import BlocksExhausted, InvalidArgument
from octavo.errors import InvalidRequest
from octavo.outputs import FinishReason
from octavo.request import RequestState
from octavo.scheduler.admission import admit_to_queue
from octavo.scheduler.policy import Decision, RunningView, SchedulerView, WaitingView, decide_tick
from octavo.scheduler.queue import WaitingQueue, WaitingRequest
from octavo.scheduler.running import RunningRequest
from octavo.step_batch import BlockCopy, StepBatch, StepRow, StorageKind


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step to run: `states[i]` is the request of `batch.rows[i]`. Ends with `complete` or `cancel`.

    Before it runs, the slot of each row i in `restores` gets what that snapshot holds outside of blocks; after it, a
    snapshot of the same is taken of each row in `captures`, for `complete`.
    """

    batch: StepBatch
    states: tuple[RequestState, ...]
    restores: tuple[tuple[int, Snapshot], ...] = ()
    captures: tuple[int, ...] = ()


class Scheduler:
    """One step at a time: `schedule`, run it, `complete` (or `cancel`), `finish` those that are done.

    With the prefix cache on, a request begins with what the cache has of its prompt, and whenever a step has filled
    one of its blocks, that is shared from then on, also a block of a dense one's run. What dense requests keep in rings
    is shared by snapshots: one is taken when the last whole block of a prompt has been computed, for which the chunk
    ends there, so that the same prompt and whatever goes on from it begin there.

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
    ) -> None:
        """`max_batch_tokens` and `prefill_chunk` are tokens per step; `storage` is what requests get by default.

        Raises `InvalidArgument` if a chunk may exceed what `pool` lets one append take.
        """
        self._max_batch_tokens = max_batch_tokens
        self._prefill_chunk = min(prefill_chunk, max_batch_tokens)
        if self._prefill_chunk < 1 or self._prefill_chunk > (pool.max_append_tokens or self._prefill_chunk):
            raise InvalidArgument(
                f"a prefill chunk has {self._prefill_chunk} tokens; it must be from 1 to the pool's "
                f"max_append_tokens, {pool.max_append_tokens}"
            )
        self._pool = pool
        self._storage = storage
        self._prefix_cache = prefix_cache
        self._hits: dict[str, PrefixHit] = {}  # of those in line, as of the latest view
        self._waiting = WaitingQueue()
        self._running: dict[str, RunningRequest] = {}  # in arrival order
        self._in_flight: ScheduledStep | None = None
        self._has_rings = any(not group.takes_blocks(StorageKind.DENSE) for group in pool.groups)
        self._windowed_groups = [i for i, group in enumerate(pool.groups) if group.spec.window is not None]

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def add(self, state: RequestState, storage: StorageKind | None = None, domain: PrefixDomain | None = None) -> None:
        """Put a request at the end of the line. `domain` is whom it shares a prefix with: all of its salt unless given.

        Raises `InvalidRequest` (id in use, empty prompt, no room for a token) or `CapacityError` (can never fit).
        """
        request_id = state.request.request_id
        if request_id in self._running or request_id in self._waiting:
            raise InvalidRequest(f"request id {request_id!r} is in use; choose another")
        storage = storage or self._storage
        if not self._prefix_cache or state.request.scores_prompt:  # what is not computed has no logits
            domain = None
        elif domain is None:
            domain = PrefixDomain(salt=state.request.cache_salt)
        self._waiting.push(admit_to_queue(self._pool, state, storage, domain))

    def schedule(self) -> ScheduledStep | None:
        """Admit whom there is room for and lay out the next step; None if there is nothing to compute.

        Blocks are taken and tokens counted as written in the pool at once. Raises `InvalidArgument` while a step is
        out; whatever it raises, every request stays where it was.
        """
        if self._in_flight is not None:
            raise InvalidArgument("a step is still out; complete or cancel it before the next")
        decision = decide_tick(self._view())
        if not decision.shares:
            return None
        with ExitStack() as undo:
            self._in_flight = self._lay_out(decision, undo)
            undo.pop_all()
        return self._in_flight

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
        self._in_flight = None
        captured = dict(zip(step.captures, snapshots, strict=True))
        for i, (running, row, token_id) in enumerate(zip(self._still_running(step), rows, sampled, strict=True)):
            if running is None:
                continue
            running.state.num_computed_tokens += row.num_tokens
            if token_id is not None:
                running.state.output_token_ids.append(token_id)
            self._pool.donate(running.handle, running.state.tokens, running.state.num_computed_tokens)
            if i in captured:
                self._pool.prefix.attach_snapshot(*running.captured_prefix, captured[i])
            self._trim_windows(running)

    def cancel(self, step: ScheduledStep) -> None:
        """Take `step` back because it failed to run. Its tokens keep their blocks for when they are scheduled again.

        Whom it admitted stays admitted, so the next step may order and share out its rows differently. A dense sequence
        with rings is preempted after a chunk of several tokens, unless that began from a snapshot: the rings may lack
        what the chunk would read again. Raises `InvalidArgument` if `step` is not the one that is out.
        """
        self._check_in_flight(step)
        self._in_flight = None
        lost = []
        for running, row in zip(self._still_running(step), step.batch.rows, strict=True):
            if running is None:
                continue
            in_rings = self._has_rings and row.storage is StorageKind.DENSE
            if in_rings and row.start and row.num_tokens > 1 and running.to_restore is None:
                lost.append(running)
            else:
                self._pool.rollback_append(running.handle, row.num_tokens)
        for running in reversed(lost):  # so that the line has them in the order of their arrival
            self._requeue(running)

    def finish(self, request_id: str, reason: FinishReason) -> None:
        """End a request, waiting or running; its blocks are free at once. Raises `InvalidArgument` if it is unknown.

        While a step is out, call this only once nothing of that step can still write.
        """
        if not self._remove(request_id, reason):
            raise InvalidArgument(f"request {request_id!r} is neither waiting nor running")

    def abort(self, request_id: str) -> bool:
        """`finish` with reason `abort`; False if the request is unknown, for it may just have ended by itself."""
        return self._remove(request_id, "abort")

    def preempt(self, request_id: str) -> None:
        """Take a running request's slot and blocks; it goes to the head of the line, to be computed again.

        It keeps the tokens it was given, and what the prefix cache then still has of them is not computed again.
        Raises `InvalidArgument` if it does not run or a step is out.
        """
        if self._in_flight is not None:
            raise InvalidArgument("a step is still out; complete or cancel it before a request is preempted")
        if request_id not in self._running:
            raise InvalidArgument(f"request {request_id!r} is not running and cannot be preempted")
        if self._pool.sequence(self._running[request_id].handle).rope_offset:
            raise InvalidArgument(f"request {request_id!r} has forgotten tokens and cannot be computed again")
        self._requeue(self._running[request_id])

    def shift_contexts(self) -> list[str]:
        """Have running requests that hold as much as they may forget the older half of it, but their kept tokens.

        Returns those that cannot, because others share their blocks and there are none to copy these to: end them.
        Raises `InvalidArgument` while a step is out.
        """
        if self._in_flight is not None:
            raise InvalidArgument("a step is still out; complete or cancel it before contexts are shifted")
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

    def _line(self) -> list[WaitingView]:
        """Those that may be admitted together, oldest first: as many as there are slots.

        A dense one enters by itself while blocks are cached, and if it begins with any: its run evicts what the others
        may have been promised of the prefix cache, and what these take of it may be where its run is to be.
        """
        line: list[WaitingView] = []
        storages: set[StorageKind] = set()
        together = not any(self._pool.num_cached_blocks)
        for waiting in self._waiting.head(self._pool.num_free_slots):
            storages.add(waiting.storage)
            if line and not together and StorageKind.DENSE in storages:
                break
            view = self._waiting_view(waiting)
            together = together and (waiting.storage is StorageKind.PAGED or view.contiguous)
            if line and not together and StorageKind.DENSE in storages:
                break
            line.append(view)
        return line

    def _waiting_view(self, waiting: WaitingRequest) -> WaitingView:
        pool, state, request_id = self._pool, waiting.state, waiting.state.request.request_id
        blocks, dense = waiting.blocks, waiting.storage is StorageKind.DENSE
        num_cached = state.num_imported_tokens  # they are written, so not into blocks that others share
        contiguous = dense
        if not num_cached and waiting.domain is not None and waiting.tokens is not None:
            hit = pool.prefix.match(waiting.domain, waiting.tokens, waiting.storage, state.keep)
            if dense:
                hit, blocks = pool.begin_dense(hit, state.max_total_tokens)
                contiguous = not hit.num_tokens  # else it is known that there is a run
            else:
                blocks = pool.blocks_to_admit(waiting.storage, state.max_total_tokens, state.keep, prefix=hit)
            self._hits[request_id] = hit
            num_cached = hit.num_tokens
        return WaitingView(request_id, state.num_tokens - num_cached, blocks, contiguous)

    def _view(self) -> SchedulerView:
        pool = self._pool
        self._hits = {}
        waiting = tuple(self._line())
        nothing = (0,) * len(pool.groups)
        return SchedulerView(
            running=tuple(RunningView(request_id, r.num_remaining) for request_id, r in self._running.items()),
            waiting=waiting,
            free_slots=pool.num_free_slots,
            available_blocks=pool.available_blocks() if waiting else nothing,
            longest_runs=pool.longest_runs() if any(w.contiguous for w in waiting) else nothing,
            max_batch_tokens=self._max_batch_tokens,
            prefill_chunk=self._prefill_chunk,
        )

    def _lay_out(self, decision: Decision, undo: ExitStack) -> ScheduledStep:
        for request_id in decision.admitted:
            self._start(request_id, undo)
        rows: list[StepRow] = []
        states, restores, captures = [], [], []
        copies: list[BlockCopy] = []
        for share in decision.shares:
            running = self._running[share.request_id]
            snapshot = running.to_restore
            if snapshot is not None:
                restores.append((len(rows), snapshot))
            row = self._row(running, running.cut(share.num_tokens))
            if row.stop == running.capture_at:
                captures.append(len(rows))
            rows.append(row)
            states.append(running.state)
            copies.extend(self._pool.copies(running.handle))
            undo.callback(self._pool.rollback_append, running.handle, row.num_tokens)
        return ScheduledStep(StepBatch(tuple(rows), tuple(copies)), tuple(states), tuple(restores), tuple(captures))

    def _start(self, request_id: str, undo: ExitStack) -> None:
        """Move a request from the line to a slot. Undone in reverse, so the line gets its old order back."""
        waiting = self._waiting.pop(request_id)
        undo.callback(self._waiting.push_front, waiting)
        state, before = waiting.state, waiting.state.num_cached_tokens
        hit = None if state.num_imported_tokens else self._hits.get(request_id)
        handle = self._pool.allocate(request_id, waiting.storage, state.max_total_tokens, state.keep, prefix=hit)
        per_slot = self._has_rings and waiting.storage is StorageKind.DENSE
        running = RunningRequest.of(waiting, handle, hit, self._pool.block_size, per_slot=per_slot)
        self._running[request_id] = running
        state.slot, state.num_computed_tokens = handle.slot, running.began_at
        state.num_cached_tokens = running.began_at if before is None else before
        undo.callback(self._unstart, request_id, before)
        self._count_imported(running)

    def _count_imported(self, running: RunningRequest) -> None:
        """Take blocks for the tokens whose K/V a request brings; it is imported before the step runs.

        That K/V is what a client says it is. So such a request gives nothing to the prefix cache.
        """
        missing = running.state.num_imported_tokens
        while missing:
            share = min(missing, self._pool.max_append_tokens or missing)
            self._pool.append(running.handle, share)
            self._trim_windows(running)
            missing -= share

    def _unstart(self, request_id: str, num_cached_before: int | None) -> None:
        state = self._running[request_id].state
        state.num_computed_tokens, state.num_cached_tokens = 0, num_cached_before
        self._stop(request_id)

    def _requeue(self, running: RunningRequest) -> None:
        """Back to the head of the line, without slot, blocks, and what it brought, to be computed again."""
        state, waiting = running.state, running.waiting
        again = admit_to_queue(self._pool, state, waiting.storage, waiting.domain)
        self._stop(state.request.request_id)
        state.num_computed_tokens = state.num_imported_tokens = 0
        self._waiting.push_front(again)

    def _stop(self, request_id: str) -> None:
        running = self._running.pop(request_id)
        self._pool.release(running.handle)
        running.state.slot = None

    def _row(self, running: RunningRequest, num_tokens: int) -> StepRow:
        state, handle = running.state, running.handle
        start = state.num_computed_tokens
        sequence, live_start = self._pool.sequence(handle), self._pool.live_start(handle)
        return StepRow(
            slot=handle.slot,
            generation=handle.generation,
            storage=running.waiting.storage,
            token_ids=state.tokens(start, start + num_tokens),
            start=start,
            fresh=self._pool.append(handle, num_tokens),
            live_start=live_start,
            sample=start + num_tokens == state.num_tokens,
            keep=sequence.keep,
            rope_offset=sequence.rope_offset,
        )

    def _still_running(self, step: ScheduledStep) -> list[RunningRequest | None]:
        """Per row, its request unless it ended meanwhile. None can have come back: that takes another `schedule`."""
        return [self._running.get(state.request.request_id) for state in step.states]

    def _trim_windows(self, running: RunningRequest) -> None:
        if running.waiting.storage is StorageKind.PAGED:
            written = self._pool.written(running.handle)
            for group in self._windowed_groups:
                self._pool.trim_front(running.handle, group, self._pool.groups[group].spec.first_visible(written))

    def _remove(self, request_id: str, reason: FinishReason) -> bool:
        if request_id in self._waiting:
            state = self._waiting.pop(request_id).state
        elif request_id in self._running:
            state = self._running[request_id].state
            self._stop(request_id)
        else:
            return False
        state.finish_reason = reason
        if not self._running:
            self._pool.check_idle()
        return True

    def _check_in_flight(self, step: ScheduledStep) -> None:
        if step is not self._in_flight:
            raise InvalidArgument("this step is not out; each scheduled step ends once, in complete or cancel")
