"""Makes the engine that serves a model, and what a server has to know of it. Runs where the engine runs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.engine_parts import EngineParts
from octavo.engine.events import StepEvent
from octavo.engine.loaded_model import LoadedModel, Progress, load_model, plan_model
from octavo.engine.serving import ModelInfo
from octavo.engine.stats import BlockCounts, PrefixCounts, RouteCount
from octavo.engine.step_meter import EngineUsage
from octavo.request import Request


def load_engine(progress: Progress, path: Path, config: EngineConfig, name: str) -> EngineParts:
    """The model at `path` under `config`, known to clients as `name`.

    Raises `LoadError`, `CapacityError` or `InvalidRequest`.
    """
    loaded = load_model(plan_model(path, config), config, progress)
    return engine_parts(EngineCore(loaded, config), config, name)


def engine_parts(core: EngineCore, config: EngineConfig, name: str) -> EngineParts:
    """An engine that exists, as a server takes it."""
    return EngineParts(ServedCore(core), core.loaded.tokenizer, model_info(core, name), config.max_num_seqs)


def model_info(core: EngineCore, name: str) -> ModelInfo:
    loaded: LoadedModel = core.loaded
    plan = loaded.plan
    k, v = plan.codecs
    return ModelInfo(
        name=name,
        family=plan.config.model_type,
        vocab_size=plan.config.vocab_size,
        max_context=core.max_context,
        max_prompt_tokens=core.max_context - 1,
        storage=core.storage.value,
        dtype=str(plan.dtype).removeprefix("torch."),
        kv_dtype=k.name if k is v else f"k={k.name},v={v.name}",
        weights=" + ".join(loaded.weight_routes),
        created=int(time.time()),
    )


class ServedCore:
    """An `EngineCore` with the numbers that a server shows."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._priorities: dict[str, int] = {}  # of every request that has not ended

    @property
    def has_work(self) -> bool:
        return self._core.has_work

    @property
    def num_running(self) -> int:
        return self._core.pool.num_seqs

    @property
    def num_waiting(self) -> int:
        return len(self._priorities) - self.num_running

    @property
    def preemptions(self) -> int:
        return 0

    @property
    def queue_by_priority(self) -> Mapping[int, int]:
        return Counter(self._priorities.values()) if self.num_waiting else {}

    def add(self, request: Request) -> None:
        self._core.add(request)
        self._priorities[request.request_id] = request.priority

    def abort(self, request_id: str) -> None:
        self._core.abort(request_id)
        self._priorities.pop(request_id, None)

    def expire(self, now: float) -> list[StepEvent]:
        return []

    def step(self) -> list[StepEvent]:
        events = self._core.step()
        for event in events:
            if event.delta.finish_reason is not None:
                del self._priorities[event.delta.request_id]
        return events

    def reset_prefix_cache(self) -> int:
        pools = self._core.pool.pools
        cached = sum(pool.num_cached for pool in pools)
        self._core.pool.prefix.clear()
        return cached - sum(pool.num_cached for pool in pools)

    def usage(self) -> EngineUsage:
        core = self._core
        counters = core.pool.prefix.counters
        return EngineUsage(
            blocks=tuple(BlockCounts(pool.num_free, pool.num_live, pool.num_cached) for pool in core.pool.pools),
            prefix=PrefixCounts(
                hits=counters.hits,
                misses=counters.misses,
                hit_tokens=counters.hit_tokens,
                evictions=counters.evictions,
                rejects=counters.rejects,
            ),
            routes=tuple(
                RouteCount(route.value, reason, count)
                for (route, reason), count in core.runner.cache.routes.counts.items()
            ),
            kv_bytes=core.ledger.kv_bytes,
            weight_bytes=core.ledger.weight_bytes,
        )
