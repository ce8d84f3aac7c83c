"""Makes the engine that serves a model, and what a server has to know of it. Runs where the engine runs."""

from __future__ import annotations

import time
from pathlib import Path

from octavo.config import EngineConfig
from octavo.engine.core import EngineCore
from octavo.engine.engine_parts import EngineParts
from octavo.engine.hardware import instruction_set
from octavo.engine.loaded_model import LoadedModel, Progress, load_model, plan_model
from octavo.engine.machine import MachineView
from octavo.engine.machine_view import view_machine
from octavo.engine.profile import Profile, ProfileSettings
from octavo.engine.serving import ModelInfo
from octavo.engine.stats import BlockCounts, DecodeSteps, PrefixCounts, RouteCount
from octavo.engine.step_meter import EngineUsage


def load_engine(progress: Progress, path: Path, config: EngineConfig, name: str) -> EngineParts:
    """The model at `path` under `config`, known to clients as `name`.

    Raises `LoadError`, `CapacityError` or `InvalidRequest`.
    """
    loaded = load_model(plan_model(path, config), config, progress)
    core = ServedCore(loaded, config)
    core.grammars.prepare()
    return engine_parts(core, config, name)


def engine_parts(core: ServedCore, config: EngineConfig, name: str) -> EngineParts:
    """An engine that exists, as a server takes it."""
    return EngineParts(core, core.loaded.tokenizer, model_info(core, name), config.max_num_seqs)


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
        hidden_size=plan.config.hidden_size,
        instructions=instruction_set(plan.device),
        exact=plan.exact.holds,
    )


class ServedCore(EngineCore):
    """An `EngineCore` that tells what a server shows, and forgets what it is told to."""

    def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes; the number of blocks that nobody uses any more."""
        before = sum(pool.num_cached for pool in self.pool.pools)
        self.pool.prefix.clear()
        return before - sum(pool.num_cached for pool in self.pool.pools)

    def start_profile(self, settings: ProfileSettings) -> None:
        self.profiler.start(settings)

    def stop_profile(self) -> Profile | None:
        return self.profiler.stop()

    def machine(self) -> MachineView:
        return view_machine(self.pool, self._live.values(), self.ledger)

    def usage(self) -> EngineUsage:
        counters = self.pool.prefix.counters
        return EngineUsage(
            blocks=tuple(BlockCounts(pool.num_free, pool.num_live, pool.num_cached) for pool in self.pool.pools),
            prefix=PrefixCounts(
                hits=counters.hits,
                misses=counters.misses,
                hit_tokens=counters.hit_tokens,
                evictions=counters.evictions,
                rejects=counters.rejects,
            ),
            routes=tuple(
                RouteCount(route.value, reason, count)
                for (route, reason), count in self.runner.cache.routes.counts.items()
            ),
            decode_steps=tuple(DecodeSteps(how, count) for how, count in self.runner.counts.items()),
            kv_bytes=self.ledger.kv_bytes,
            weight_bytes=self.ledger.weight_bytes,
        )
