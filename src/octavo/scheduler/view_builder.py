"""Reads the pool, the line and the running requests into a `SchedulerView`. Decides and changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from octavo.cache.cache_pool import CachePool
from octavo.cache.prefix_types import PrefixHit
from octavo.scheduler.queue import WaitingQueue, WaitingRequest
from octavo.scheduler.running import RunningRequest
from octavo.scheduler.scheduled_step import NOTHING_OUT, RowOut
from octavo.scheduler.siblings import Siblings
from octavo.scheduler.view import Blocks, RunningView, SchedulerView, WaitingView, fits, less, more
from octavo.step_batch import StorageKind


class ViewBuilder:
    """`hits`: what of the prefix cache each request of the latest view's line would begin with."""

    def __init__(self, pool: CachePool, max_batch_tokens: int, prefill_chunk: int, prefill_grant_interval: int) -> None:
        self._pool = pool
        self._max_batch_tokens = max_batch_tokens
        self._prefill_chunk = prefill_chunk
        self._prefill_grant_interval = prefill_grant_interval
        self._rings = any(not group.takes_blocks(StorageKind.DENSE) for group in pool.groups)
        self.hits: dict[str, PrefixHit] = {}

    def view(
        self,
        queue: WaitingQueue,
        running: Collection[RunningRequest],
        tick: int,
        squeezed_ticks: int,
        admits: bool,
        on_their_way: Mapping[str, RowOut] = NOTHING_OUT,
    ) -> SchedulerView:
        """`running` in the order of admission. Unless it `admits`, the line does not matter and is left out.

        What is `on_their_way` of the running counts as done.
        """
        pool, nothing = self._pool, (0,) * len(self._pool.groups)
        self.hits = {}
        views = tuple([self._running(each, tick, on_their_way.get(each.waiting.request_id)) for each in running])
        admits = admits and len(queue) > 0 and pool.num_free_slots > 0
        room = pool.available_blocks() if admits or any(view.growth for view in views) else nothing
        line: tuple[WaitingView, ...] = ()
        watermark = nothing
        if admits:
            line = self._line(queue, running, room)
            for each in running:
                watermark = more(watermark, each.spare)
        return SchedulerView(
            running=views,
            waiting=line,
            free_slots=pool.num_free_slots,
            available_blocks=room,
            longest_runs=pool.longest_runs() if any(view.contiguous for view in line) else nothing,
            max_batch_tokens=self._max_batch_tokens,
            prefill_chunk=self._prefill_chunk,
            prefill_grant_interval=self._prefill_grant_interval,
            watermark=watermark,
            squeezed_ticks=squeezed_ticks,
            admits=admits,
        )

    def view_of(self, waiting: WaitingRequest) -> SchedulerView:
        """Of this request alone, as if nobody else ran or waited."""
        pool = self._pool
        self.hits = {}
        view = self._waiting(waiting)
        return SchedulerView(
            running=(),
            waiting=(view,),
            free_slots=pool.num_free_slots,
            available_blocks=pool.available_blocks(),
            longest_runs=pool.longest_runs(),
            max_batch_tokens=self._max_batch_tokens,
            prefill_chunk=self._prefill_chunk,
        )

    def _running(self, running: RunningRequest, tick: int, out: RowOut | None) -> RunningView:
        state, waiting = running.state, running.waiting
        num_computed, num_tokens = state.num_computed_tokens, state.num_tokens
        if out is not None:
            num_computed, num_tokens = out.stop, num_tokens + (out.drawn >= 0)
        return RunningView(
            waiting.request_id,
            num_tokens - num_computed,
            num_computed,
            running.level,
            waiting.arrival,
            running.growth(self._pool, num_tokens),
            running.grows,
            tick - running.last_tick,
            num_computed >= len(state.request.prompt_token_ids),
        )

    def _line(self, queue: WaitingQueue, running: Collection[RunningRequest], room: Blocks) -> tuple[WaitingView, ...]:
        """The line as far as it can matter: not beyond the first that `room` has no blocks for, nor where those before
        take all tokens of the step.

        A dense one enters by itself while blocks are cached, and if it begins with any: its run evicts what the others
        may have been promised of the prefix cache, and what these take of it may be where its run is to be.
        """
        line: list[WaitingView] = []
        storages: set[StorageKind] = set()
        together = not any(self._pool.num_cached_blocks)
        siblings, num_slots, budget = self._computing(running), self._pool.num_free_slots, self._max_batch_tokens
        for waiting in queue:
            if not num_slots or budget <= 0:
                break
            if behind := siblings.behind(waiting):
                line.append(WaitingView(waiting.request_id, waiting.num_tokens, (), behind=behind))
                continue
            first = not storages
            storages.add(waiting.storage)
            if not (first or together) and StorageKind.DENSE in storages:
                break
            view = self._waiting(waiting)
            together = together and (waiting.storage is StorageKind.PAGED or view.contiguous)
            if not (first or together) and StorageKind.DENSE in storages:
                break
            line.append(view)
            if not fits(view.blocks, room):
                break
            room, num_slots = less(room, view.blocks), num_slots - 1
            budget -= min(view.num_remaining, self._prefill_chunk)
            siblings.add(waiting, 0)
        return tuple(line)

    def _computing(self, running: Collection[RunningRequest]) -> Siblings:
        siblings = Siblings(self._pool.block_size, rings=self._rings)
        for each in running:
            if each.num_remaining > 1:
                siblings.add(each.waiting, each.state.num_computed_tokens)
        return siblings

    def _waiting(self, waiting: WaitingRequest) -> WaitingView:
        pool, state, blocks = self._pool, waiting.state, waiting.blocks
        num_cached = state.num_imported_tokens  # they are written, so not into blocks that others share
        contiguous = dense = waiting.storage is StorageKind.DENSE
        if not num_cached and waiting.domain is not None and waiting.tokens is not None:
            hit = pool.prefix.match(waiting.domain, waiting.tokens, waiting.storage, state.keep)
            if dense:
                hit, blocks = pool.begin_dense(hit, state.max_total_tokens)
                contiguous = not hit.num_tokens  # else it is known that there is a run
            else:
                blocks = pool.blocks_to_admit(waiting.storage, waiting.promised, state.keep, prefix=hit)
            self.hits[waiting.request_id] = hit
            num_cached = hit.num_tokens
        return WaitingView(waiting.request_id, state.num_tokens - num_cached, blocks, contiguous, waiting.spare)
