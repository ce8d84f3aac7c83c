"""Lays out steps: admits whom a decision lets in, takes blocks, and counts tokens as written. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from octavo.cache.cache_pool import CachePool
from octavo.scheduler.queue import WaitingQueue
from octavo.scheduler.running import RunningRequest
from octavo.scheduler.scheduled_step import NOTHING_OUT, UNKNOWN_TOKEN, RowOut, ScheduledStep
from octavo.scheduler.slots import Slots
from octavo.scheduler.view import Decision, fits, less
from octavo.scheduler.view_builder import ViewBuilder
from octavo.step_batch import BlockCopy, StepBatch, StepRow, StorageKind


class StepLayout:
    """A call that raises has changed nothing."""

    def __init__(self, pool: CachePool, waiting: WaitingQueue, slots: Slots, views: ViewBuilder) -> None:
        self._pool = pool
        self._waiting = waiting
        self._slots = slots
        self._views = views

    def lay_out(self, decision: Decision, tick: int, out: Mapping[str, RowOut] = NOTHING_OUT) -> ScheduledStep:
        """The step that was decided; the rows of the step that it follows, if any, are `out`."""
        with ExitStack() as undo:
            step = self._lay_out(decision, tick, out, undo)
            undo.pop_all()
        for share in decision.shares:
            self._slots.running[share.request_id].last_tick = tick
        return step

    def _lay_out(self, decision: Decision, tick: int, out: Mapping[str, RowOut], undo: ExitStack) -> ScheduledStep:
        for request_id in decision.admitted:
            brings = self._waiting.get(request_id).state.num_imported_tokens > 0
            hit = None if brings else self._views.hits.get(request_id)
            self._slots.start(request_id, hit, tick, undo)
        rows: list[StepRow] = []
        states, restores, captures, follows = [], [], [], []
        copies: list[BlockCopy] = []
        for share in decision.shares:
            running = self._slots.running[share.request_id]
            snapshot = running.to_restore
            if snapshot is not None:
                restores.append((len(rows), snapshot))
            state = running.state
            _, start, drawn = out.get(share.request_id) or RowOut(0, state.num_computed_tokens, -1)
            if drawn >= 0:
                row = running.row(self._pool, start, (UNKNOWN_TOKEN,), sample=True)
            else:
                stop = start + running.cut(share.num_tokens)
                row = running.row(self._pool, start, state.tokens(start, stop), sample=stop == state.num_tokens)
            if row.stop == running.capture_at:
                captures.append(len(rows))
            rows.append(row)
            states.append(state)
            follows.append(drawn)
            copies.extend(self._pool.copies(running.handle))
            undo.callback(self._pool.rollback_append, running.handle, row.num_tokens)
        return ScheduledStep(
            StepBatch(tuple(rows), tuple(copies)),
            tuple(states),
            tuple(restores),
            tuple(captures),
            tuple(follows) if out else None,
        )

    def next_tokens(self, before: ScheduledStep, tick: int) -> ScheduledStep | None:
        """One more token of each request of `before`, which gives each of them one; None if there are no blocks for all
        or none goes on.

        What `lay_out` would give too where nobody else has a share, and sooner.
        """
        if self._pool.has_windows and self._fills_windows(before):
            return None
        going_on = [
            (i, running, row.stop)
            for i, (running, row) in enumerate(zip(self.still_running(before), before.batch.rows, strict=True))
            if running is not None and row.stop + 1 < running.state.max_total_tokens
        ]
        if not going_on or not self._room_for(going_on):
            return None
        rows: list[StepRow] = []
        try:
            for _, running, stop in going_on:
                rows.append(running.row(self._pool, stop, (UNKNOWN_TOKEN,), sample=True))
        except BaseException:
            for _, running, _ in going_on[: len(rows)]:
                self._pool.rollback_append(running.handle, 1)
            raise
        for _, running, _ in going_on:
            running.last_tick = tick
        copies: list[BlockCopy] = []
        for (_, running, _), row in zip(going_on, rows, strict=True):
            if row.fresh:  # as a block that is a copy of another is
                copies.extend(self._pool.copies(running.handle))
        return ScheduledStep(
            StepBatch(tuple(rows), tuple(copies)),
            tuple([running.state for _, running, _ in going_on]),
            follows=tuple([i for i, _, _ in going_on]),
        )

    def still_running(self, step: ScheduledStep) -> list[RunningRequest | None]:
        """Per row, its request unless it ended meanwhile. Another may go by its name since."""
        of = self._slots.running.get
        return [
            running
            if (running := of(state.request.request_id)) is not None and running.waiting.state is state
            else None
            for state in step.states
        ]

    def rows_out(self, step: ScheduledStep) -> dict[str, RowOut]:
        """The rows of a step that is out, by request, of those that still run."""
        out, num_drawn = {}, 0
        for running, row in zip(self.still_running(step), step.batch.rows, strict=True):
            if running is not None:
                out[running.waiting.request_id] = RowOut(row.num_tokens, row.stop, num_drawn if row.sample else -1)
            num_drawn += row.sample
        return out

    def may_follow(self, decision: Decision, before: ScheduledStep, out: Mapping[str, RowOut]) -> bool:
        """Whether what is decided can be laid out before `before` has ended, whose rows are `out`.

        Windows keep what two steps write beside what they see, if it is no more than one append takes; of rings,
        chunks cannot be taken back.
        """
        if not self._pool.has_windows:
            return True
        running, most = self._slots.running, self._pool.max_append_tokens
        for share in decision.shares:
            name = share.request_id
            waiting = running[name].waiting if name in running else self._waiting.get(name)
            if self._slots.has_rings and waiting.storage is StorageKind.DENSE:
                return False
            if most is not None and name in out and out[name].num_tokens + share.num_tokens > most:
                return False
        return not (self._slots.has_rings and any(row.storage is StorageKind.DENSE for row in before.batch.rows))

    def _fills_windows(self, step: ScheduledStep) -> bool:
        """Whether some row is as long as an append may be, so that its window has no block for a token after it yet."""
        most = self._pool.max_append_tokens
        return most is not None and any(row.num_tokens >= most for row in step.batch.rows)

    def _room_for(self, going_on: Sequence[tuple[int, RunningRequest, int]]) -> bool:
        """Whether all may take the blocks for one token after `stop`."""
        growths = [growth for _, running, stop in going_on if (growth := running.growth(self._pool, stop + 1))]
        if not growths:
            return True
        room = self._pool.available_blocks()
        for growth in growths:
            if not fits(growth, room):
                return False
            room = less(room, growth)
        return True


def ends(running: RunningRequest, out: RowOut) -> bool:
    """Whether the token that it is about to be given is the last it may hold."""
    return out.drawn >= 0 and out.stop + 1 >= running.state.max_total_tokens
