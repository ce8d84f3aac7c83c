"""Requests' ways between the line and the slots: in, back into line, and out. Decides none of it."""

from __future__ import annotations

from contextlib import ExitStack

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixHit
from octavo.outputs import FinishReason
from octavo.scheduler.admission import admit_to_queue
from octavo.scheduler.queue import WaitingQueue
from octavo.scheduler.running import RunningRequest
from octavo.step_batch import StorageKind


class Slots:
    """`running` is by request id, in the order of admission. `have_changed` is set when one is left."""

    def __init__(self, pool: CachePool, waiting: WaitingQueue) -> None:
        self._pool = pool
        self._waiting = waiting
        self.running: dict[str, RunningRequest] = {}
        self.have_changed = False
        self.has_rings = any(not group.takes_blocks(StorageKind.DENSE) for group in pool.groups)

    def start(self, request_id: str, hit: PrefixHit | None, tick: int, undo: ExitStack) -> None:
        """Move a request from the line to a slot, with what it finds in the prefix cache."""
        waiting = self._waiting.pop(request_id)
        undo.callback(self._waiting.push, waiting)
        state, before = waiting.state, waiting.state.num_cached_tokens
        handle = self._pool.allocate(
            request_id, waiting.storage, state.max_total_tokens, state.keep, prefix=hit, promised=waiting.promised
        )
        per_slot = self.has_rings and waiting.storage is StorageKind.DENSE
        sequence = self._pool.sequence(handle)
        running = RunningRequest.of(waiting, sequence, hit, self._pool.block_size, per_slot=per_slot)
        running.level, running.last_tick = self._waiting.level(waiting), tick
        self.running[request_id] = running
        state.slot, state.num_computed_tokens = handle.slot, running.began_at
        state.num_cached_tokens = running.began_at if before is None else before
        undo.callback(self._unstart, request_id, before)
        self._count_imported(running)

    def requeue(self, running: RunningRequest) -> None:
        """Back to where it stood in line, without slot, blocks, and what it brought, to be computed again."""
        state, waiting = running.state, running.waiting
        again = admit_to_queue(
            self._pool,
            state,
            waiting.storage,
            waiting.domain,
            waiting.reserve,
            arrival=waiting.arrival,
            waited=waiting.waited,
        )
        self._leave(waiting.request_id)
        state.num_computed_tokens = state.num_imported_tokens = 0
        self._waiting.push(again)

    def remove(self, request_id: str, reason: FinishReason) -> bool:
        """End a request, waiting or running; False if it is unknown."""
        if request_id in self._waiting:
            state = self._waiting.pop(request_id).state
        elif request_id in self.running:
            state = self.running[request_id].state
            self._leave(request_id)
        else:
            return False
        state.finish_reason = reason
        if not self.running:
            self._pool.check_idle()
        return True

    def _count_imported(self, running: RunningRequest) -> None:
        """Take blocks for the tokens whose K/V a request brings; it is imported before the step runs.

        That K/V is what a client says it is. So such a request gives nothing to the prefix cache.
        """
        missing = running.state.num_imported_tokens
        while missing:
            share = min(missing, self._pool.max_append_tokens or missing)
            self._pool.append(running.handle, share)
            running.trim_windows(self._pool, self._pool.written(running.handle))
            missing -= share

    def _unstart(self, request_id: str, num_cached_before: int | None) -> None:
        state = self.running[request_id].state
        state.num_computed_tokens, state.num_cached_tokens = 0, num_cached_before
        self._leave(request_id)

    def _leave(self, request_id: str) -> None:
        self.have_changed = True
        running = self.running.pop(request_id)
        self._pool.release(running.handle)
        running.state.slot = None
