"""Reads an engine's pool and requests for those who look at the machine. Changes nothing, keeps nothing."""

from __future__ import annotations

import time
from collections.abc import Collection

from octavo.cache.block_map import block_maps
from octavo.cache.cache_pool import CachePool
from octavo.config import MAX_COUNT
from octavo.engine.ledger import Ledger
from octavo.engine.live_request import LiveRequest
from octavo.engine.machine import MAX_REQUESTS, MachineView, RequestProgress


def view_machine(pool: CachePool, lives: Collection[LiveRequest], ledger: Ledger) -> MachineView:
    """The view between two steps. Takes time in proportion to the blocks and requests."""
    now = time.perf_counter()
    ordered = sorted(lives, key=lambda live: live.state.slot is None)
    specs = [group.spec for group in pool.groups]
    return MachineView(
        maps=block_maps(pool),
        requests=tuple(_progress(live, now) for live in ordered[:MAX_REQUESTS]),
        num_left_out=max(0, len(ordered) - MAX_REQUESTS),
        memory=ledger.as_object(),
        group_kinds=tuple(spec.kind for spec in specs),
        group_layers=tuple(len(group.layers) for group in pool.groups),
        group_windows=tuple(spec.window for spec in specs),
    )


def _progress(live: LiveRequest, now: float) -> RequestProgress:
    state, most = live.state, live.output.max_new_tokens
    request = state.request
    return RequestProgress(
        request_id=request.request_id,
        choice=request.choice,
        stage="waiting" if state.slot is None else "running",
        priority=request.priority,
        prompt=len(request.prompt_token_ids),
        computed=state.num_computed_tokens,
        cached=state.num_cached_tokens,
        generated=len(state.output_token_ids),
        max_generated=0 if request.generates_nothing else None if most >= MAX_COUNT else most,
        age_s=now - live.queued,
    )
