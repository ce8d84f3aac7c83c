"""How an arm starts `octavo` as a process of its own: the same model under the same settings. It starts none itself."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from octavo.config import EngineConfig
from octavo.engine.loaded_model import ModelPlan


def child_command(
    plan: ModelPlan, config: EngineConfig, command: str, settings: Mapping[str, object], *switches: str
) -> list[str]:
    """The process's arguments. `settings` are flags of `command` beyond those of the engine, or in their place."""
    flags = {
        "--model": plan.checkpoint.path,
        "--max-context": config.max_context or plan.ledger.context_limit,
        "--block-size": config.block_size,
        "--dtype": str(plan.dtype).removeprefix("torch."),
        "--weights": config.weights,
        "--kv-dtype": config.kv_dtype,
        "--kv-budget": config.kv_budget or "auto",
        "--device": plan.device.type,
        "--threads": plan.threads,
        **settings,
    }
    forced = ["--force"] if config.force else []
    exact = [] if config.exact is None else ["--exact" if config.exact else "--no-exact"]
    given = [f"{flag}={value}" for flag, value in flags.items()]
    return [sys.executable, "-P", "-m", "octavo", command, *switches, *forced, *exact, *given]
