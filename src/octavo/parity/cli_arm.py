"""The command line as a parity arm: the same prompt through `octavo generate` in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from octavo.config import EngineConfig
from octavo.engine.loaded_model import ModelPlan
from octavo.environment import child_environment
from octavo.parity.trace import Trace


def trace_cli(
    plan: ModelPlan, config: EngineConfig, prompt: str, prompt_token_ids: Sequence[int], num_tokens: int
) -> Trace:
    """Greedy tokens of `prompt`, dense; logits stay in the process. `prompt_token_ids` are what it must encode to."""
    settings = {
        "--model": plan.checkpoint.path,
        "--prompt": prompt,
        "--max-tokens": num_tokens,
        "--max-context": config.max_context or plan.ledger.context_limit,
        "--storage": "dense",
        "--block-size": config.block_size,
        "--dtype": str(plan.dtype).removeprefix("torch."),
        "--weights": config.weights,
        "--kv-dtype": config.kv_dtype,
        "--kv-budget": config.kv_budget or "auto",
        "--device": plan.device.type,
        "--threads": plan.threads,
    }
    switches = ["--json", "--raw", "--ignore-eos", *(["--force"] if config.force else [])]
    command = [sys.executable, "-P", "-m", "octavo", "generate", *switches]
    command += [f"{flag}={value}" for flag, value in settings.items()]
    done = subprocess.run(
        command, env=child_environment(), stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode != 0:
        said = done.stderr.strip().rpartition("\n")[2]
        return Trace(problem=f"octavo generate ended with status {done.returncode}: {said}")
    answer = json.loads(done.stdout)
    problem = None
    if answer["prompt_token_ids"] != list(prompt_token_ids):
        problem = "octavo generate encoded the prompt differently"
    return Trace(answer["token_ids"], [], answer["routes"], problem)
